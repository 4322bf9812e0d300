/* bench.c: reads JSON records: of `flpgen bench` and `python -m flp.bench`, and searches of `flpgen tune` as
 * autotune/tuning_records.py exports them. */
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/report/parts/parts.h"

enum { RECORD_BYTES_MAX = 64 << 20, ROWS_MAX = 100000 };

static const char *text_of(report_data *data, const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  return json_is_string(value) ? report_data_keep(data, json_string_value(value)) : "";
}

static double number_of(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  return json_is_number(value) ? json_number_value(value) : NAN;
}

static int64_t count_of(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  return json_is_integer(value) ? json_integer_value(value) : 0;
}

/* "hidden,weight" of ["hidden", "weight"]. */
static const char *list_of(report_data *data, const json_t *object, const char *key) {
  const json_t *list = json_object_get(object, key);
  char text[128] = "";
  for (size_t i = 0; i < json_array_size(list); i++) {
    const char *word = json_string_value(json_array_get(list, i));
    size_t used = strlen(text);
    if (word) snprintf(text + used, sizeof text - used, "%s%s", used ? "," : "", word);
  }
  return report_data_keep(data, text);
}

/* Of the record's GEMM baselines that of the scores of n rows, the fastest way; NaN without. */
static double product_of(const json_t *record, int64_t n) {
  const json_t *baselines = json_object_get(record, "bare");
  double best = NAN;
  for (size_t i = 0; i < json_array_size(baselines); i++) {
    const json_t *one = json_array_get(baselines, i), *name = json_object_get(one, "product");
    if (count_of(one, "N") != n || !json_is_string(name) || strcmp(json_string_value(name), "scores") != 0) continue;
    double ms = number_of(one, "ms");
    if (ms > 0 && !(best <= ms)) best = ms;
  }
  return best;
}

/* Who computed a row. A tail is a contender of its own: it leaves out what others compute. */
static const char *peer_of(report_data *data, const json_t *row) {
  const char *peer = text_of(data, row, json_object_get(row, "peer") ? "peer" : "who");
  return !peer[0] && strcmp(text_of(data, row, "mode"), "tail") == 0 ? "flp, tail" : peer;
}

/* A row that names no case, shape or time, nor a reason for having none, belongs to a record of another kind. */
static int is_usable(const report_bench *row) {
  return row->which[0] && row->rows > 0 && row->hidden > 0 && row->vocab > 0 && (row->ms > 0 || row->reason[0]);
}

static void take_row(report_data *data, int source, const json_t *record, const json_t *row) {
  report_bench bench = {.source = source,
                        .which = text_of(data, row, "case"),
                        .peer = peer_of(data, row),
                        .dtype = text_of(data, row, "dtype"),
                        .entropy = text_of(data, row, "entropy"),
                        .grads = list_of(data, row, "grads"),
                        .loss = text_of(data, row, "loss"),
                        .reason = text_of(data, row, "reason"),
                        .variant = text_of(data, row, "variant"),
                        .data = text_of(data, row, "data"),
                        .mode = text_of(data, row, "mode"),
                        .run = count_of(row, "run"),
                        .rows = count_of(row, "N"),
                        .hidden = count_of(row, "D"),
                        .vocab = count_of(row, "V"),
                        .active = count_of(row, "active_rows"),
                        .gemms = count_of(row, "gemms"),
                        .ms = number_of(row, "ms"),
                        .ms_low = number_of(row, "ms_low"),
                        .ms_high = number_of(row, "ms_high"),
                        .baseline_ms = number_of(row, "bare_ms"),
                        .first_ms = number_of(row, "first_ms"),
                        .extra_bytes = number_of(row, "extra_bytes"),
                        .product_ms = product_of(record, count_of(row, "N")),
                        .median_entropy = number_of(json_object_get(row, "entropies"), "0.5")};
  if (bench.active <= 0) bench.active = bench.rows;
  if (!is_usable(&bench)) {
    data->left_out++;
    return;
  }
  REPORT_ADD(data, benches, bench_count);
  if (!data->incomplete) data->benches[data->bench_count - 1] = bench;
}

/* ---- exported searches: the timed candidates of the first ---- */

static void take_candidate(report_data *data, const char *kind, const char *chosen, const json_t *row) {
  report_candidate c = {.spec = data->spec_count - 1,
                        .kind = kind,
                        .tune = text_of(data, row, "tune"),
                        .reason = "",
                        .status = REPORT_TIMED,
                        .rounds = count_of(row, "rounds"),
                        .predicted_ms = NAN,
                        .error = NAN,
                        .ms = number_of(row, "ms"),
                        .ms_low = number_of(row, "ms_low"),
                        .ms_high = number_of(row, "ms_high"),
                        .clock_mhz = NAN,
                        .power_w = NAN,
                        .ratio = number_of(row, "ratio")};
  if (!c.tune[0] || !(c.ms > 0)) {
    data->left_out++;
    return;
  }
  if (strcmp(c.tune, chosen) == 0) c.status = REPORT_CHOSEN;
  c.tiling = report_data_tiling(kind, c.tune);
  REPORT_ADD(data, candidates, candidate_count);
  if (!data->incomplete) data->candidates[data->candidate_count - 1] = c;
}

static void take_search(report_data *data, const json_t *record, const json_t *search) {
  const json_t *spec = json_object_get(record, "spec"), *row;
  const report_source *source = &data->sources[data->source_count - 1];
  const char *kind = text_of(data, record, "kind"), *chosen = text_of(data, search, "chosen");
  size_t i;
  REPORT_ADD(data, runs, run_count);
  REPORT_ADD(data, specs, spec_count);
  REPORT_ADD(data, bares, baseline_count);
  if (data->incomplete) return;
  data->runs[data->run_count - 1] = (report_run){.id = data->run_count,
                                                 .file = source->file,
                                                 .started = text_of(data, search, "started"),
                                                 .finished = text_of(data, search, "finished"),
                                                 .command = text_of(data, search, "command"),
                                                 .gpu = source->gpu,
                                                 .flp_version = "",
                                                 .sources = source->sources,
                                                 .effort = text_of(data, search, "effort"),
                                                 .seed = count_of(search, "seed"),
                                                 .budget_s = NAN};
  data->specs[data->spec_count - 1] = (report_spec){.run = data->run_count - 1,
                                                    .text = "",
                                                    .dtype = text_of(data, spec, "dtype"),
                                                    .entropy = text_of(data, spec, "entropy"),
                                                    .grads = text_of(data, spec, "grads"),
                                                    .model = "",
                                                    .vocab = count_of(spec, "vocab"),
                                                    .hidden = count_of(spec, "hidden"),
                                                    .rows = count_of(record, "N")};
  data->bares[data->baseline_count - 1] = (report_baseline){.spec = data->spec_count - 1,
                                                            .product = "scores",
                                                            .rows = count_of(record, "N"),
                                                            .ms = number_of(search, "bare_ms"),
                                                            .ms_low = NAN,
                                                            .ms_high = NAN};
  json_array_foreach(json_object_get(record, "rows"), i, row) {
    take_candidate(data, kind[0] ? kind : "forward", chosen, row);
  }
}

/* ---- the document ---- */

static flp_status take_record(const char *path, const json_t *record, report_data *data) {
  const json_t *rows = json_object_get(record, "rows");
  if (!json_is_array(rows) || json_array_size(rows) > ROWS_MAX)
    return flp_fail(FLP_ERROR_CORRUPT, "%s: no benchmark record: 'rows' is missing, no list, or longer than %d", path,
                    ROWS_MAX);
  REPORT_ADD(data, sources, source_count);
  FLP_TRY(report_data_check_memory(data, path));
  data->sources[data->source_count - 1] = (report_source){.file = report_data_keep(data, report_data_base(path)),
                                                          .what = "benchmark",
                                                          .gpu = text_of(data, record, "gpu"),
                                                          .driver = text_of(data, record, "driver"),
                                                          .date = text_of(data, record, "date"),
                                                          .sources = text_of(data, record, "sources_hash"),
                                                          .command = text_of(data, record, "command")};
  const json_t *search = json_array_get(json_object_get(record, "searches"), 0);
  if (search) data->sources[data->source_count - 1].what = "tuning";
  if (search) take_search(data, record, search);
  for (size_t i = 0; !search && i < json_array_size(rows); i++)
    take_row(data, data->source_count - 1, record, json_array_get(rows, i));
  return report_data_check_memory(data, path);
}

flp_status report_bench_read(const char *path, report_data *data) {
  char *text = NULL;
  size_t bytes = 0;
  FLP_TRY(cli_read_file(path, RECORD_BYTES_MAX, &text, &bytes));
  json_error_t error;
  json_t *record = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
  free(text);
  if (!record)
    return flp_fail(FLP_ERROR_CORRUPT, "%s: neither tuning records nor JSON: line %d: %s", path, error.line,
                    error.text);
  flp_status status = take_record(path, record, data);
  json_decref(record);
  return status;
}

/* ---- order and names: passes, then shapes ---- */

static int rank_of(const char *which) {
  static const char *const order[] = {"forward", "forward+backward", "backward"};
  int i = 0;
  while (i < 3 && strcmp(order[i], which) != 0) i++;
  return i;
}

static int compare_numbers(int64_t a, int64_t b) {
  return a < b ? -1 : a > b;
}

int report_bench_compare(const report_bench *a, const report_bench *b) {
  const int64_t numbers[][2] = {{rank_of(a->which), rank_of(b->which)},
                                {a->hidden, b->hidden},
                                {a->vocab, b->vocab},
                                {a->rows, b->rows},
                                {b->active, a->active}};
  int order = 0;
  for (size_t i = 0; order == 0 && i < sizeof numbers / sizeof numbers[0]; i++)
    order = compare_numbers(numbers[i][0], numbers[i][1]);
  if (order == 0) order = strcmp(a->which, b->which);
  if (order == 0) order = strcmp(a->dtype, b->dtype);
  if (order == 0) order = strcmp(a->grads, b->grads);
  if (order == 0) order = strcmp(a->loss, b->loss);
  return order ? order : strcmp(a->entropy, b->entropy);
}

void report_append(char *out, size_t capacity, const char *format, ...) {
  size_t used = strlen(out);
  va_list list;
  va_start(list, format);
  if (used && used + 5 < capacity) used += (size_t)snprintf(out + used, capacity - used, " \u00b7 ");
  vsnprintf(out + used, capacity - used, format, list);
  va_end(list);
}

void report_bench_text(const report_bench *row, char out[REPORT_SHAPE_BYTES]) {
  char masked[48] = "";
  if (row->active < row->rows)
    snprintf(masked, sizeof masked, " \u00b7 %.0f%% masked", 100.0 * (1 - (double)row->active / (double)row->rows));
  snprintf(out, REPORT_SHAPE_BYTES, "%.40s%s%s%.40s \u00b7 N %lld \u00b7 D %lld \u00b7 V %lld \u00b7 %.12s", row->which,
           masked, row->loss[0] ? " \u00b7 loss " : "", row->loss, (long long)row->rows, (long long)row->hidden,
           (long long)row->vocab, row->dtype);
  if (row->entropy[0]) report_append(out, REPORT_SHAPE_BYTES, "entropy %.20s", row->entropy);
  if (row->grads[0]) report_append(out, REPORT_SHAPE_BYTES, "grads %.40s", row->grads);
}
