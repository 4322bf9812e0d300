/* bench.c: reads JSON records: of `flpgen bench` and `python -m flp.bench`, and searches of `flpgen tune` as
 * autotune/tuning_records.py exports them. */
#include <jansson.h>
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

/* A row that names no case, shape or time, nor a reason for having none, belongs to a record of another kind. */
static int is_usable(const report_bench *row) {
  return row->which[0] && row->rows > 0 && row->hidden > 0 && row->vocab > 0 && (row->ms > 0 || row->reason[0]);
}

static void take_row(report_data *data, int source, const json_t *row) {
  report_bench bench = {.source = source,
                        .which = text_of(data, row, "case"),
                        .peer = text_of(data, row, json_object_get(row, "peer") ? "peer" : "who"),
                        .dtype = text_of(data, row, "dtype"),
                        .entropy = text_of(data, row, "entropy"),
                        .grads = list_of(data, row, "grads"),
                        .loss = text_of(data, row, "loss"),
                        .reason = text_of(data, row, "reason"),
                        .variant = text_of(data, row, "variant"),
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
                        .extra_bytes = number_of(row, "extra_bytes")};
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
    take_row(data, data->source_count - 1, json_array_get(rows, i));
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
