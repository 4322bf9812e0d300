/* data.c: reads tuning records: SQLite files of schema version 1.
 *
 * Invariants: the file is opened for reading only and nothing in it is run: every name that is read is a plain table.
 * A link between tables (candidate to spec, spec to run) that leads nowhere makes the file corrupt. */
#include "gen/cli/report/parts/parts.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

enum { SCHEMA_VERSION = 1, TEXT_BYTES_MAX = 1 << 16, ROWS_MAX = 1000000 };

/* ---- arrays and texts ---- */

typedef struct text_item {
  struct text_item *next;
  char text[];
} text_item;

const char *report_data_keep(report_data *data, const char *text) {
  if (!text || !text[0]) return "";
  size_t length = strlen(text);
  text_item *item = malloc(sizeof *item + length + 1);
  if (!item) {
    data->incomplete = 1;
    return "";
  }
  memcpy(item->text, text, length + 1);
  item->next = data->texts;
  data->texts = item;
  return item->text;
}

void *report_data_grow(report_data *data, void *array, int *count, size_t item_bytes) {
  size_t used = (size_t)*count;
  if ((used & (used - 1)) == 0) { /* full: capacities are powers of two */
    void *grown = realloc(array, (used ? 2 * used : 1) * item_bytes);
    if (!grown) {
      data->incomplete = 1;
      return array;
    }
    array = grown;
  }
  memset((char *)array + used * item_bytes, 0, item_bytes);
  ++*count;
  return array;
}

flp_status report_data_check_memory(const report_data *data, const char *path) {
  return data->incomplete ? flp_fail(FLP_ERROR_MEMORY, "%s: out of memory", path) : FLP_OK;
}

void report_data_clear(report_data *data) {
  for (text_item *item = data->texts, *next; item; item = next) {
    next = item->next;
    free(item);
  }
  free(data->runs);
  free(data->specs);
  free(data->candidates);
  free(data->bares);
  free(data->benches);
  free(data->sources);
  memset(data, 0, sizeof *data);
}

const char *report_data_base(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash && slash[1] ? slash + 1 : path;
}

/* ---- the file ---- */

typedef struct reader {
  sqlite3 *db;
  sqlite3_stmt *query;
  const char *path;
  report_data *data;
  int first_run, first_spec; /* of this file, in the arrays */
} reader;

static flp_status fail_sqlite(const reader *r, int code) {
  int is_corrupt = code == SQLITE_CORRUPT || code == SQLITE_NOTADB || code == SQLITE_ERROR || code == SQLITE_TOOBIG;
  return flp_fail(is_corrupt ? FLP_ERROR_CORRUPT : FLP_ERROR_IO, "%s: cannot be read as tuning records: %s", r->path,
                  r->db ? sqlite3_errmsg(r->db) : sqlite3_errstr(code));
}

/* The one number of a statement's first row. */
static flp_status read_number(reader *r, const char *sql, int64_t *out) {
  int code = sqlite3_prepare_v2(r->db, sql, -1, &r->query, NULL);
  if (code == SQLITE_OK) code = sqlite3_step(r->query);
  flp_status status = code == SQLITE_ROW ? FLP_OK : fail_sqlite(r, code);
  if (status == FLP_OK) *out = sqlite3_column_int64(r->query, 0);
  sqlite3_finalize(r->query);
  return status;
}

static flp_status check_version(reader *r) {
  int64_t version = 0;
  FLP_TRY(read_number(r, "PRAGMA user_version", &version));
  if (version == SCHEMA_VERSION) return FLP_OK;
  return flp_fail(FLP_ERROR_CORRUPT, "%s: tuning records of version %lld; version %d is accepted", r->path,
                  (long long)version, SCHEMA_VERSION);
}

/* Plain tables only: a view or a virtual table of that name could run anything for any time. */
static flp_status check_tables(reader *r) {
  static const char *const names[] = {"run", "spec", "candidate", "bare"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    char sql[256];
    int64_t count = 0;
    snprintf(sql, sizeof sql,
             "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = '%s' AND rootpage > 0", names[i]);
    FLP_TRY(read_number(r, sql, &count));
    if (count != 1)
      return flp_fail(FLP_ERROR_CORRUPT, "%s: no tuning records: it has no table '%s'", r->path, names[i]);
  }
  return FLP_OK;
}

static flp_status check_pages(reader *r) {
  int code = sqlite3_prepare_v2(r->db, "PRAGMA quick_check(1)", -1, &r->query, NULL);
  if (code == SQLITE_OK) code = sqlite3_step(r->query);
  flp_status status = code == SQLITE_ROW ? FLP_OK : fail_sqlite(r, code);
  const char *text = status == FLP_OK ? (const char *)sqlite3_column_text(r->query, 0) : NULL;
  if (status == FLP_OK && (!text || strcmp(text, "ok") != 0))
    status = flp_fail(FLP_ERROR_CORRUPT, "%s: the file is damaged: %s", r->path, text ? text : "no answer");
  sqlite3_finalize(r->query);
  return status;
}

/* ---- rows ---- */

static const char *text_at(reader *r, int column) {
  return report_data_keep(r->data, (const char *)sqlite3_column_text(r->query, column));
}

static double number_at(reader *r, int column) {
  int type = sqlite3_column_type(r->query, column);
  double value = type == SQLITE_INTEGER || type == SQLITE_FLOAT ? sqlite3_column_double(r->query, column) : NAN;
  return isfinite(value) ? value : NAN;
}

static int64_t integer_at(reader *r, int column) {
  return sqlite3_column_int64(r->query, column);
}

/* "CUDA 13.0" of a number of cuDriverGetVersion. */
static void driver_text(int64_t driver, char out[48]) {
  if (driver <= 0)
    snprintf(out, 48, "not recorded");
  else
    snprintf(out, 48, "CUDA %lld.%lld", (long long)(driver / 1000), (long long)(driver % 1000 / 10));
}

static flp_status take_run(reader *r) {
  report_data *data = r->data;
  REPORT_ADD(data, runs, run_count);
  REPORT_ADD(data, sources, source_count);
  FLP_TRY(report_data_check_memory(data, r->path));
  report_run *run = &data->runs[data->run_count - 1];
  *run = (report_run){.file = report_data_keep(data, r->path),
                      .id = integer_at(r, 0),
                      .started = text_at(r, 1),
                      .finished = text_at(r, 2),
                      .command = text_at(r, 3),
                      .gpu = text_at(r, 4),
                      .multiprocessors = integer_at(r, 5),
                      .driver = integer_at(r, 6),
                      .flp_version = text_at(r, 7),
                      .sources = text_at(r, 8),
                      .seed = integer_at(r, 9),
                      .budget_s = number_at(r, 10),
                      .effort = text_at(r, 11)};
  char driver[48];
  driver_text(run->driver, driver);
  data->sources[data->source_count - 1] = (report_source){.file = report_data_base(run->file),
                                                          .what = "tuning",
                                                          .gpu = run->gpu,
                                                          .driver = report_data_keep(data, driver),
                                                          .date = run->started,
                                                          .sources = run->sources,
                                                          .command = run->command};
  return FLP_OK;
}

static flp_status fail_link(const reader *r, const char *table, const char *field, int64_t id) {
  return flp_fail(FLP_ERROR_CORRUPT, "%s: table '%s': %s %lld is not there", r->path, table, field, (long long)id);
}

static flp_status take_spec(reader *r) {
  report_data *data = r->data;
  int64_t run = integer_at(r, 1);
  int index = r->first_run;
  while (index < data->run_count && data->runs[index].id != run) index++;
  if (index == data->run_count) return fail_link(r, "spec", "run", run);
  REPORT_ADD(data, specs, spec_count);
  FLP_TRY(report_data_check_memory(data, r->path));
  data->specs[data->spec_count - 1] = (report_spec){.id = integer_at(r, 0),
                                                    .run = index,
                                                    .text = text_at(r, 2),
                                                    .vocab = integer_at(r, 3),
                                                    .hidden = integer_at(r, 4),
                                                    .dtype = text_at(r, 5),
                                                    .entropy = text_at(r, 6),
                                                    .grads = text_at(r, 7),
                                                    .rows = integer_at(r, 8),
                                                    .model = text_at(r, 9)};
  return FLP_OK;
}

/* Specs come in the order of their ids. */
static int compare_specs(const void *id, const void *spec) {
  int64_t a = *(const int64_t *)id, b = ((const report_spec *)spec)->id;
  return a < b ? -1 : a > b;
}

static flp_status find_spec(const reader *r, const char *table, int64_t id, int *out) {
  const report_data *data = r->data;
  const report_spec *found = data->spec_count > r->first_spec
                                 ? bsearch(&id, data->specs + r->first_spec, (size_t)(data->spec_count - r->first_spec),
                                           sizeof *data->specs, compare_specs)
                                 : NULL;
  if (!found) return fail_link(r, table, "spec", id);
  *out = (int)(found - data->specs);
  return FLP_OK;
}

static const char *const status_names[REPORT_STATUSES] = {"illegal", "pruned", "wrong", "failed",
                                                          "waiting", "timed",  "chosen"};

const char *report_status_name(report_status status) {
  return status_names[status];
}

static flp_status read_status(const reader *r, const char *text, report_status *out) {
  for (int i = 0; i < REPORT_STATUSES; i++)
    if (strcmp(text, status_names[i]) == 0) {
      *out = (report_status)i;
      return FLP_OK;
    }
  return flp_fail(FLP_ERROR_CORRUPT,
                  "%s: table 'candidate': status '%.40s' is not known; illegal, pruned, wrong, failed, waiting, timed "
                  "and chosen are accepted",
                  r->path, text);
}

flp_tunables report_data_tiling(const char *kind, const char *tune) {
  static const flp_tunables none;
  flp_tuning tuning;
  char text[256];
  snprintf(text, sizeof text, "%s%s%s", strchr(tune, ':') ? "" : kind, strchr(tune, ':') ? "" : ":", tune);
  if (!tune[0] || flp_tuning_parse("tune", text, &tuning) != FLP_OK) return none;
  for (int i = 0; i < FLP_KERNEL_KINDS; i++)
    if (i != 0 && strcmp(flp_kernel_kind_name((flp_kernel_kind)i), kind) == 0) return tuning.of[i];
  return none;
}

static flp_status take_candidate(reader *r) {
  report_data *data = r->data;
  report_candidate c = {.kind = text_at(r, 1),
                        .tune = text_at(r, 2),
                        .chunk_rows = integer_at(r, 3),
                        .chunk_vocab = integer_at(r, 4),
                        .reason = text_at(r, 6),
                        .predicted_ms = number_at(r, 7),
                        .error = number_at(r, 8),
                        .rounds = integer_at(r, 9),
                        .ms = number_at(r, 10),
                        .ms_low = number_at(r, 11),
                        .ms_high = number_at(r, 12),
                        .clock_mhz = number_at(r, 13),
                        .power_w = number_at(r, 14),
                        .ratio = number_at(r, 15)};
  FLP_TRY(find_spec(r, "candidate", integer_at(r, 0), &c.spec));
  FLP_TRY(read_status(r, text_at(r, 5), &c.status));
  c.tiling = report_data_tiling(c.kind, c.tune);
  REPORT_ADD(data, candidates, candidate_count);
  FLP_TRY(report_data_check_memory(data, r->path));
  data->candidates[data->candidate_count - 1] = c;
  return FLP_OK;
}

static flp_status take_baseline(reader *r) {
  report_data *data = r->data;
  report_baseline baseline = {.product = text_at(r, 1),
                              .rows = integer_at(r, 2),
                              .ms = number_at(r, 3),
                              .ms_low = number_at(r, 4),
                              .ms_high = number_at(r, 5)};
  FLP_TRY(find_spec(r, "bare", integer_at(r, 0), &baseline.spec));
  REPORT_ADD(data, bares, baseline_count);
  FLP_TRY(report_data_check_memory(data, r->path));
  data->bares[data->baseline_count - 1] = baseline;
  return FLP_OK;
}

static flp_status read_rows(reader *r, const char *sql, flp_status (*take)(reader *)) {
  int code = sqlite3_prepare_v2(r->db, sql, -1, &r->query, NULL);
  flp_status status = code == SQLITE_OK ? FLP_OK : fail_sqlite(r, code);
  for (int rows = 0; status == FLP_OK && (code = sqlite3_step(r->query)) == SQLITE_ROW; rows++)
    status =
        rows < ROWS_MAX ? take(r) : flp_fail(FLP_ERROR_CORRUPT, "%s: more than %d rows in a table", r->path, ROWS_MAX);
  if (status == FLP_OK && code != SQLITE_DONE) status = fail_sqlite(r, code);
  sqlite3_finalize(r->query);
  return status;
}

static flp_status read_tables(reader *r) {
  FLP_TRY(check_version(r));
  FLP_TRY(check_tables(r));
  FLP_TRY(check_pages(r));
  FLP_TRY(read_rows(r,
                    "SELECT id, started, finished, command, gpu, multiprocessors, driver, flp_version, sources, seed, "
                    "budget_s, effort FROM run ORDER BY id",
                    take_run));
  FLP_TRY(read_rows(r, "SELECT id, run, text, vocab, hidden, dtype, entropy, grads, rows, model FROM spec ORDER BY id",
                    take_spec));
  FLP_TRY(
      read_rows(r,
                "SELECT spec, kind, tune, chunk_rows, chunk_vocab, status, reason, predicted_ms, error, rounds, ms, "
                "ms_low, ms_high, clock_mhz, power_w, ratio FROM candidate ORDER BY id",
                take_candidate));
  return read_rows(r, "SELECT spec, product, rows, ms, ms_low, ms_high FROM bare ORDER BY id", take_baseline);
}

flp_status report_data_read(const char *path, report_data *data) {
  reader r = {.path = path, .data = data, .first_run = data->run_count, .first_spec = data->spec_count};
  int code = sqlite3_open_v2(path, &r.db, SQLITE_OPEN_READONLY, NULL);
  flp_status status = code == SQLITE_OK ? FLP_OK : fail_sqlite(&r, code);
  if (status == FLP_OK) {
    sqlite3_busy_timeout(r.db, 5000); /* a tuning run may be writing */
    sqlite3_db_config(r.db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(r.db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_limit(r.db, SQLITE_LIMIT_LENGTH, TEXT_BYTES_MAX);
    status = read_tables(&r);
  }
  sqlite3_close(r.db);
  return status == FLP_OK ? report_data_check_memory(data, path) : status;
}

/* ---- what charts ask ---- */

static double baseline_of(const report_data *data, int spec, const char *product) {
  for (int i = 0; i < data->baseline_count; i++) {
    const report_baseline *baseline = &data->bares[i];
    if (baseline->spec == spec && baseline->rows == data->specs[spec].rows && strcmp(baseline->product, product) == 0)
      return baseline->ms;
  }
  return NAN;
}

/* " mode=direction ..." of a spec that was tuned in that mode, whose forward pass makes all products; NULL of others. */
static const char *find_direction(const report_spec *spec) {
  return strstr(spec->text, " mode=direction");
}

const char *report_data_pass(const report_data *data, int spec, const char *kind) {
  if (strcmp(kind, "forward") == 0) return "forward pass";
  if (strcmp(kind, "dz") == 0 || report_data_best(data, spec, "forward_keep") < 0) return "backward pass";
  if (strstr(data->specs[spec].text, " loss=")) return "step";
  if (strcmp(kind, "forward_keep") == 0) return "forward pass";
  return strcmp(kind, "layout") == 0 ? "backward pass" : "training step";
}

double report_data_baseline_ms(const report_data *data, int spec, const char *kind) {
  double scores = baseline_of(data, spec, "scores"), products = 0;
  int is_all = strcmp(kind, "forward_keep") == 0 && find_direction(&data->specs[spec]);
  if (strcmp(report_data_pass(data, spec, kind), "forward pass") == 0 && !is_all) return scores;
  if (strstr(data->specs[spec].grads, "hidden")) products += baseline_of(data, spec, "grad_hidden");
  if (strstr(data->specs[spec].grads, "weight")) products += baseline_of(data, spec, "grad_weight");
  return products == 0 ? NAN : scores + products; /* whatever is tuned, the whole pass is timed */
}

static int compare_candidates(const void *left, const void *right) {
  const report_candidate *a = left, *b = right;
  if (a->spec != b->spec) return a->spec < b->spec ? -1 : 1;
  return a->order < b->order ? -1 : a->order > b->order;
}

void report_data_sort(report_data *data) {
  for (int i = 0; i < data->candidate_count; i++) data->candidates[i].order = i;
  if (data->candidate_count)
    qsort(data->candidates, (size_t)data->candidate_count, sizeof *data->candidates, compare_candidates);
}

void report_data_range(const report_data *data, int spec, int *first, int *end) {
  int low = 0, high = data->candidate_count;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (data->candidates[middle].spec < spec)
      low = middle + 1;
    else
      high = middle;
  }
  *first = *end = low;
  while (*end < data->candidate_count && data->candidates[*end].spec == spec) ++*end;
}

const char *report_data_shape(const report_spec *spec, char buffer[REPORT_SHAPE_BYTES]) {
  const char *entropy = strcmp(spec->entropy, "none") == 0 ? "" : spec->entropy;
  const char *grads = strcmp(spec->grads, "none") == 0 ? "" : spec->grads;
  const char *loss = strstr(spec->text, " loss="), *mode = loss ? loss : find_direction(spec);
  const char *trains = mode ? mode : strstr(spec->text, " keep");
  int length = trains ? (int)strcspn(trains + 1, " ") : 0;
  snprintf(buffer, REPORT_SHAPE_BYTES, "%.80s%sV %lld \u00b7 D %lld \u00b7 %.16s \u00b7 N %lld%s%.16s%s%.32s%s%.*s",
           spec->model, spec->model[0] ? " \u00b7 " : "", (long long)spec->vocab, (long long)spec->hidden, spec->dtype,
           (long long)spec->rows, entropy[0] ? " \u00b7 entropy " : "", entropy, grads[0] ? " \u00b7 grads " : "",
           grads, length ? " \u00b7 " : "", length < 72 ? length : 72, length ? trains + 1 : "");
  return buffer;
}

const char *report_data_record(const report_data *data, int spec, char buffer[REPORT_RECORD_BYTES]) {
  char shape[REPORT_SHAPE_BYTES], other[REPORT_SHAPE_BYTES];
  const report_spec *own = &data->specs[spec];
  const char *file = report_data_base(data->runs[own->run].file);
  int alike = 0, in_file = 0, in_run = 0;
  report_data_shape(own, shape);
  for (int s = 0; s < data->spec_count; s++) {
    if (s == spec || strcmp(shape, report_data_shape(&data->specs[s], other)) != 0) continue;
    alike = 1;
    in_file |= strcmp(data->runs[data->specs[s].run].file, data->runs[own->run].file) == 0;
    in_run |= data->specs[s].run == own->run;
  }
  int used = snprintf(buffer, REPORT_RECORD_BYTES, "%.*s", alike ? 48 : 0, file);
  if (in_file)
    used +=
        snprintf(buffer + used, REPORT_RECORD_BYTES - (size_t)used, ", run %lld", (long long)data->runs[own->run].id);
  if (in_run) snprintf(buffer + used, REPORT_RECORD_BYTES - (size_t)used, ", spec %lld", (long long)own->id);
  return buffer;
}

int report_data_best(const report_data *data, int spec, const char *kind) {
  int best = -1, first, end;
  report_data_range(data, spec, &first, &end);
  for (int i = first; i < end; i++) {
    const report_candidate *c = &data->candidates[i];
    if (strcmp(c->kind, kind) != 0 || c->status < REPORT_TIMED || isnan(c->ms)) continue;
    if (c->status == REPORT_CHOSEN) return i;
    const report_candidate *b = best < 0 ? NULL : &data->candidates[best];
    if (!b || c->rounds > b->rounds || (c->rounds == b->rounds && c->ms < b->ms)) best = i;
  }
  return best;
}

const char *const REPORT_KINDS[] = {"forward", "dz", "products", "layout", "forward_keep", NULL};
