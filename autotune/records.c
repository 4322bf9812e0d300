/* records.c: records of tuning in SQLite. See records.h. */
#include "autotune/records.h"

#include <sqlite3.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/names.h"
#include "runtime/base/status.h"

struct records {
  sqlite3 *db;
  char path[1024];
};

static const char schema[] =
    "CREATE TABLE run(id INTEGER PRIMARY KEY, started TEXT, finished TEXT NULL, command TEXT, gpu TEXT,"
    " multiprocessors INTEGER, driver INTEGER, flp_version TEXT, sources TEXT, seed INTEGER, budget_s REAL,"
    " effort TEXT);"
    "CREATE TABLE spec(id INTEGER PRIMARY KEY, run INTEGER, text TEXT, vocab INTEGER, hidden INTEGER, dtype TEXT,"
    " entropy TEXT, grads TEXT, bias INTEGER, softcap INTEGER, rows INTEGER, model TEXT NULL, finished TEXT NULL,"
    " plan TEXT NULL);"
    "CREATE TABLE candidate(id INTEGER PRIMARY KEY, spec INTEGER, kind TEXT, tune TEXT, chunk_rows INTEGER,"
    " chunk_vocab INTEGER, status TEXT, reason TEXT NULL, predicted_ms REAL, error REAL NULL, rounds INTEGER,"
    " ms REAL NULL, ms_low REAL NULL, ms_high REAL NULL, clock_mhz REAL NULL, power_w REAL NULL, is_default INTEGER,"
    " ratio REAL NULL);"
    "CREATE TABLE bare(id INTEGER PRIMARY KEY, spec INTEGER, product TEXT, rows INTEGER, ms REAL, ms_low REAL,"
    " ms_high REAL, algorithm INTEGER);"
    "CREATE INDEX candidate_spec ON candidate(spec, kind, tune);"
    "CREATE INDEX spec_text ON spec(text, rows);"
    "PRAGMA user_version = 1;";

static flp_status failed(const records *file) {
  return flp_fail(FLP_ERROR_IO, "%s: %s", file->path, sqlite3_errmsg(file->db));
}

static flp_status run_sql(records *file, const char *sql) {
  return sqlite3_exec(file->db, sql, NULL, NULL, NULL) == SQLITE_OK ? FLP_OK : failed(file);
}

/* ---- statements ---- */

/* Binds by letter: s text or NULL, i int64, d double, n double or, below 0, NULL. */
static flp_status prepare(records *file, sqlite3_stmt **out, const char *sql, const char *types, ...) {
  if (sqlite3_prepare_v2(file->db, sql, -1, out, NULL) != SQLITE_OK) return failed(file);
  va_list values;
  va_start(values, types);
  for (int i = 0; types[i]; i++) {
    const char *text = types[i] == 's' ? va_arg(values, const char *) : NULL;
    if (types[i] == 's' && text) sqlite3_bind_text(*out, i + 1, text, -1, SQLITE_TRANSIENT);
    if (types[i] == 'i') sqlite3_bind_int64(*out, i + 1, va_arg(values, int64_t));
    if (types[i] != 'd' && types[i] != 'n') continue;
    double value = va_arg(values, double);
    if (types[i] == 'd' || value >= 0) sqlite3_bind_double(*out, i + 1, value);
  }
  va_end(values);
  return FLP_OK;
}

/* Runs a statement that gives no rows and forgets it. */
static flp_status finish(records *file, sqlite3_stmt *statement) {
  int result = sqlite3_step(statement);
  sqlite3_finalize(statement);
  return result == SQLITE_DONE ? FLP_OK : failed(file);
}

static flp_status finish_insert(records *file, sqlite3_stmt *statement, int64_t *id) {
  FLP_TRY(finish(file, statement));
  *id = sqlite3_last_insert_rowid(file->db);
  return FLP_OK;
}

static void copy_text(char *out, size_t capacity, const unsigned char *text) {
  size_t length = text ? strnlen((const char *)text, capacity - 1) : 0;
  if (length) memcpy(out, text, length);
  out[length] = 0;
}

/* ---- opening ---- */

/* SQLite's message for a file that is no database, or damaged. */
static flp_status failed_to_read(const records *file) {
  int code = sqlite3_errcode(file->db);
  if (code != SQLITE_NOTADB && code != SQLITE_CORRUPT) return failed(file);
  return flp_fail(FLP_ERROR_CORRUPT, "%s: not a record of tuning: %s", file->path, sqlite3_errmsg(file->db));
}

static flp_status read_version(records *file, int64_t *version, int64_t *tables) {
  static const char sql[] =
      "SELECT (SELECT user_version FROM pragma_user_version),"
      " (SELECT count(*) FROM sqlite_schema)";
  sqlite3_stmt *statement;
  if (sqlite3_prepare_v2(file->db, sql, -1, &statement, NULL) != SQLITE_OK) return failed_to_read(file);
  flp_status status = sqlite3_step(statement) == SQLITE_ROW ? FLP_OK : failed_to_read(file);
  *version = sqlite3_column_int64(statement, 0);
  *tables = sqlite3_column_int64(statement, 1);
  sqlite3_finalize(statement);
  return status;
}

/* The version number proves little, so every column is checked. */
static flp_status check_columns(const records *file) {
  static const char *const columns[] = {
      "SELECT id, started, finished, command, gpu, multiprocessors, driver, flp_version, sources, seed, budget_s, "
      "effort"
      " FROM run",
      "SELECT id, run, text, vocab, hidden, dtype, entropy, grads, bias, softcap, rows, model, finished, plan FROM "
      "spec",
      "SELECT id, spec, kind, tune, chunk_rows, chunk_vocab, status, reason, predicted_ms, error, rounds, ms, ms_low,"
      " ms_high, clock_mhz, power_w, is_default, ratio FROM candidate",
      "SELECT id, spec, product, rows, ms, ms_low, ms_high, algorithm FROM bare"};
  for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
    sqlite3_stmt *statement;
    int code = sqlite3_prepare_v2(file->db, columns[i], -1, &statement, NULL);
    sqlite3_finalize(statement);
    if (code == SQLITE_ERROR)
      return flp_fail(FLP_ERROR_CORRUPT, "%s: not a record of tuning: %s", file->path, sqlite3_errmsg(file->db));
    if (code != SQLITE_OK) return failed_to_read(file);
  }
  return FLP_OK;
}

/* Under a writer's lock: two processes may create the same file at once. */
static flp_status create_schema(records *file) {
  int64_t version = 0, tables = 0;
  FLP_TRY(records_begin(file));
  flp_status status = read_version(file, &version, &tables);
  if (status == FLP_OK && version == 0 && tables == 0) status = run_sql(file, schema);
  if (status == FLP_OK) return records_commit(file);
  return status; /* closing rolls back */
}

static flp_status check_schema(records *file) {
  int64_t version = 0, tables = 0;
  FLP_TRY(read_version(file, &version, &tables));
  if (version == 0 && tables == 0) {
    FLP_TRY(create_schema(file));
    FLP_TRY(read_version(file, &version, &tables));
  }
  if (version == RECORDS_VERSION) return check_columns(file);
  if (version == 0) return flp_fail(FLP_ERROR_CORRUPT, "%s: not a record of tuning: it has other tables", file->path);
  return flp_fail(FLP_ERROR_CORRUPT, "%s: a record of tuning of version %lld, accepted: %d", file->path,
                  (long long)version, RECORDS_VERSION);
}

flp_status records_open(const char *path, records **out) {
  records *file = calloc(1, sizeof *file);
  *out = NULL;
  if (!file) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for records");
  copy_text(file->path, sizeof file->path, (const unsigned char *)path);
  flp_status status = FLP_OK;
  if (sqlite3_open(path, &file->db) != SQLITE_OK) status = failed(file);
  if (status == FLP_OK) sqlite3_busy_timeout(file->db, 10000);
  if (status == FLP_OK) status = check_schema(file);
  if (status == FLP_OK) status = run_sql(file, "PRAGMA synchronous = OFF"); /* rows come by the hundred */
  if (status != FLP_OK) {
    records_close(file);
    return status;
  }
  *out = file;
  return FLP_OK;
}

void records_close(records *file) {
  if (!file) return;
  sqlite3_close(file->db);
  free(file);
}

flp_status records_begin(records *file) {
  return run_sql(file, "BEGIN IMMEDIATE");
}

flp_status records_commit(records *file) {
  return run_sql(file, "COMMIT");
}

/* ---- runs and specs ---- */

#define NOW "strftime('%Y-%m-%dT%H:%M:%SZ','now')"

flp_status records_begin_run(records *file, records_run *run) {
  sqlite3_stmt *statement;
  FLP_TRY(
      prepare(file, &statement,
              "INSERT INTO run(started, command, gpu, multiprocessors, driver, flp_version, sources, seed, budget_s,"
              " effort) VALUES(" NOW ", ?, ?, ?, ?, ?, ?, ?, ?, ?)",
              "ssiissids", run->command, run->gpu, (int64_t)run->multiprocessors, (int64_t)run->driver, flp_version(),
              run->sources, run->seed, run->budget_s, run->effort));
  return finish_insert(file, statement, &run->id);
}

flp_status records_finish_run(records *file, const records_run *run) {
  sqlite3_stmt *statement;
  FLP_TRY(run_sql(file, "PRAGMA synchronous = FULL"));
  FLP_TRY(prepare(file, &statement, "UPDATE run SET finished = " NOW " WHERE id = ?", "i", run->id));
  return finish(file, statement);
}

flp_status records_begin_spec(records *file, const records_run *run, records_spec *s) {
  sqlite3_stmt *statement;
  const flp_spec *spec = s->spec;
  char grads[FLP_GRADS_TEXT_BYTES];
  FLP_TRY(prepare(file, &statement,
                  "INSERT INTO spec(run, text, vocab, hidden, dtype, entropy, grads, bias, softcap, rows, model)"
                  " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                  "isiisssiiis", run->id, s->text, spec->vocab, spec->hidden, flp_dtype_name(spec->dtype),
                  flp_entropy_name(spec->entropy), spec->grads ? flp_grads_text(spec->grads, ",", grads) : "none",
                  (int64_t)spec->has_bias, (int64_t)(spec->softcap > 0), s->rows, s->model));
  return finish_insert(file, statement, &s->id);
}

flp_status records_finish_spec(records *file, const records_spec *spec, const char *plan_id) {
  sqlite3_stmt *statement;
  FLP_TRY(
      prepare(file, &statement, "UPDATE spec SET finished = " NOW ", plan = ? WHERE id = ?", "si", plan_id, spec->id));
  return finish(file, statement);
}

/* ---- candidates ---- */

const char *records_kind(const search_candidate *c) {
  return c->kind ? flp_kernel_kind_name(c->kind) : "layout";
}

/* For a layout, the mode's name is in the column of the tunables. */
static void tune_text(const search_candidate *c, char out[FLP_TUNABLES_TEXT_BYTES]) {
  if (c->kind)
    flp_tunables_text(&c->tune, out);
  else
    strcpy(out, flp_mode_name(c->mode));
}

flp_status records_put(records *file, const records_spec *spec, search_candidate *c) {
  sqlite3_stmt *statement;
  char tune[FLP_TUNABLES_TEXT_BYTES];
  tune_text(c, tune);
  double none = -1;
  int timed = c->rounds > 0;
  FLP_TRY(prepare(file, &statement,
                  "INSERT OR REPLACE INTO candidate(id, spec, kind, tune, chunk_rows, chunk_vocab, status, reason,"
                  " predicted_ms, error, rounds, ms, ms_low, ms_high, clock_mhz, power_w, is_default, ratio)"
                  " VALUES(NULLIF(?, 0), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                  "iissiissdninnnnnin", c->id, spec->id, records_kind(c), tune, c->chunk_rows, c->chunk_vocab,
                  search_status_name(c->status), c->reason[0] ? c->reason : NULL, c->predicted_ms, c->error,
                  (int64_t)c->rounds, timed ? c->ms.median : none, timed ? c->ms.low : none, timed ? c->ms.high : none,
                  timed ? c->clock_mhz : none, timed ? c->power_w : none, (int64_t)c->is_default,
                  timed ? c->ratio : none));
  return finish_insert(file, statement, &c->id);
}

flp_status records_put_baseline(records *file, const records_spec *spec, const records_baseline *baseline) {
  sqlite3_stmt *statement;
  FLP_TRY(prepare(file, &statement,
                  "INSERT INTO bare(spec, product, rows, ms, ms_low, ms_high, algorithm) VALUES(?, ?, ?, ?, ?, ?, ?)",
                  "isidddi", spec->id, baseline->product, baseline->rows, baseline->ms.median, baseline->ms.low,
                  baseline->ms.high, (int64_t)baseline->algorithm));
  return finish(file, statement);
}

/* ---- going on ---- */

/* Measurements elsewhere or with other sources do not count. Release 0.1.0 named modes by letters. */
#define SAME_PLACE                                                                                              \
  " replace(s.text, ' mode=P', ' mode=stream') = ? AND s.rows = ? AND r.gpu = ? AND r.multiprocessors = ? AND " \
  "r.driver = ? AND r.sources = ? AND r.flp_version = ?"

flp_status records_find_finished(records *file, const records_run *run, const records_spec *spec, char plan_id[17],
                                 int *found) {
  sqlite3_stmt *statement;
  *found = 0;
  FLP_TRY(prepare(
      file, &statement,
      "SELECT s.plan, s.finished IS NOT NULL AND r.effort = ? FROM spec s JOIN run r ON r.id = s.run WHERE" SAME_PLACE
      " ORDER BY s.id DESC LIMIT 1",
      "ssisiiss", run->effort, spec->text, spec->rows, run->gpu, (int64_t)run->multiprocessors, (int64_t)run->driver,
      run->sources, flp_version()));
  int result = sqlite3_step(statement);
  if (result == SQLITE_ROW) {
    *found = sqlite3_column_int(statement, 1);
    if (*found) copy_text(plan_id, 17, sqlite3_column_text(statement, 0));
  }
  sqlite3_finalize(statement);
  return result == SQLITE_ROW || result == SQLITE_DONE ? FLP_OK : failed(file);
}

static void take_row(sqlite3_stmt *row, search_candidate *c) {
  int status = search_status_of((const char *)sqlite3_column_text(row, 0));
  c->status = status == SEARCH_CHOSEN ? SEARCH_TIMED : (search_status)status;
  copy_text(c->reason, sizeof c->reason, sqlite3_column_text(row, 1));
  c->error = sqlite3_column_type(row, 2) == SQLITE_NULL ? -1 : sqlite3_column_double(row, 2);
  c->rounds = sqlite3_column_int(row, 3);
  c->ms =
      (measure_summary){sqlite3_column_double(row, 4), sqlite3_column_double(row, 5), sqlite3_column_double(row, 6)};
  c->ratio = sqlite3_column_double(row, 7);
  c->clock_mhz = sqlite3_column_type(row, 8) == SQLITE_NULL ? -1 : sqlite3_column_double(row, 8);
  c->power_w = sqlite3_column_type(row, 9) == SQLITE_NULL ? -1 : sqlite3_column_double(row, 9);
}

flp_status records_recall(records *file, const records_run *run, const records_spec *spec, search_candidate *c,
                          int *found) {
  sqlite3_stmt *statement;
  char tune[FLP_TUNABLES_TEXT_BYTES];
  tune_text(c, tune);
  *found = 0;
  FLP_TRY(prepare(file, &statement,
                  "SELECT c.status, c.reason, c.error, c.rounds, c.ms, c.ms_low, c.ms_high, c.ratio, c.clock_mhz,"
                  " c.power_w FROM candidate c JOIN spec s ON s.id = c.spec JOIN run r ON r.id = s.run WHERE" SAME_PLACE
                  " AND c.kind = ? AND c.tune IN (?, ?) AND c.chunk_rows = ? AND c.chunk_vocab = ? AND c.is_default = 0"
                  " AND c.status IN ('wrong', 'failed', 'timed', 'chosen') ORDER BY c.id DESC LIMIT 1",
                  "sisiisssssii", spec->text, spec->rows, run->gpu, (int64_t)run->multiprocessors, (int64_t)run->driver,
                  run->sources, flp_version(), records_kind(c), tune, c->kind ? tune : flp_mode_alias(c->mode),
                  c->chunk_rows, c->chunk_vocab));
  int result = sqlite3_step(statement);
  if (result == SQLITE_ROW) {
    *found = 1;
    take_row(statement, c);
  }
  sqlite3_finalize(statement);
  return result == SQLITE_ROW || result == SQLITE_DONE ? FLP_OK : failed(file);
}
