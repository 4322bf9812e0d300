/* test_records.c: records of tuning: what is written is found again where it holds, files that are none are refused,
 * and what a killed process leaves can be read. */
#include <criterion/criterion.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autotune/records.h"
#include "tests/unit/support/kernel_sample.h"

/* The file of a test, and what it is of. */
static char path[512];
static records_run run;
static records_spec spec;

static void begin(void) {
  static const flp_spec head = {.vocab = 1000, .hidden = 64, .dtype = FLP_DTYPE_BF16};
  snprintf(path, sizeof path, "%s/tune.sqlite", sample_directory());
  run = (records_run){.command = "flpgen tune",
                      .gpu = "Fake H200",
                      .sources = "abc",
                      .effort = "normal",
                      .multiprocessors = 132,
                      .driver = 13000,
                      .seed = 1,
                      .budget_s = 60};
  spec = (records_spec){.spec = &head, .text = "bf16 V=1000 D=64", .rows = 128};
}

TestSuite(records, .init = begin);

static records *open_file(void) {
  records *file = NULL;
  cr_assert_eq(records_open(path, &file), FLP_OK, "%s", flp_error_detail());
  return file;
}

static search_candidate sample_candidate(search_status status) {
  search_candidate c = {.kind = FLP_KERNEL_DZ,
                        .tune = {FLP_SCHEDULE_COOPERATIVE, 128, 256, 4, 2, 8},
                        .predicted_ms = 1.5,
                        .status = status,
                        .error = -1,
                        .clock_mhz = -1,
                        .power_w = -1};
  if (status == SEARCH_WRONG || status == SEARCH_FAILED) strcpy(c.reason, "gradients are 'far' off; \xce\xb5 > 0.1");
  if (status != SEARCH_TIMED && status != SEARCH_CHOSEN) return c;
  c.rounds = 7;
  c.ms = (measure_summary){1.25, 1.2, 1.4};
  c.ratio = 0.97;
  c.error = 1e-3;
  c.clock_mhz = 1755;
  return c;
}

/* The file, with one spec more that has this candidate. */
static records *with_candidate(search_candidate *c) {
  records *file = open_file();
  cr_assert_eq(records_begin_run(file, &run), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(records_begin_spec(file, &run, &spec), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(records_put(file, &spec, c), FLP_OK, "%s", flp_error_detail());
  return file;
}

static void put(search_candidate *c) {
  records_close(with_candidate(c));
}

/* One number of the file, by SQL, as another program would read it. */
static int64_t number(const char *sql) {
  sqlite3 *db;
  sqlite3_stmt *statement;
  cr_assert_eq(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
  cr_assert_eq(sqlite3_prepare_v2(db, sql, -1, &statement, NULL), SQLITE_OK, "%s", sqlite3_errmsg(db));
  cr_assert_eq(sqlite3_step(statement), SQLITE_ROW, "%s", sql);
  int64_t value = sqlite3_column_int64(statement, 0);
  sqlite3_finalize(statement);
  sqlite3_close(db);
  return value;
}

static void run_sql(const char *sql) {
  sqlite3 *db;
  cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
  cr_assert_eq(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK, "%s", sqlite3_errmsg(db));
  sqlite3_close(db);
}

/* ---- what is written ---- */

Test(records, a_new_file_is_of_this_version_and_opens_again) {
  records_close(open_file());
  cr_expect_eq(number("PRAGMA user_version"), RECORDS_VERSION);
  records_close(open_file());
  records_close(NULL);
}

Test(records, a_candidate_has_one_row_with_all_that_is_known) {
  search_candidate c = sample_candidate(SEARCH_WAITING), timed = sample_candidate(SEARCH_TIMED);
  records *file = with_candidate(&c);
  cr_expect_eq(number("SELECT count(*) FROM candidate WHERE status = 'waiting' AND ms IS NULL AND ratio IS NULL"
                      " AND reason IS NULL AND error IS NULL"),
               1);
  timed.id = c.id;
  cr_assert_eq(records_put(file, &spec, &timed), FLP_OK, "%s", flp_error_detail());
  records_close(file);
  cr_expect_eq(number("SELECT count(*) FROM candidate"), 1);
  cr_expect_eq(number("SELECT count(*) FROM candidate WHERE status = 'timed' AND kind = 'dz' AND rounds = 7 AND "
                      "tune = 'cooperative,128x256,stages=4,cluster=2,raster=8' AND ms = 1.25 AND ms_low = 1.2 AND "
                      "ms_high = 1.4 AND ratio = 0.97 AND predicted_ms = 1.5 AND error = 1e-3 AND is_default = 0 "
                      "AND clock_mhz = 1755 AND power_w IS NULL"),
               1);
  cr_expect_eq(number("SELECT count(*) FROM spec JOIN run ON run.id = spec.run WHERE vocab = 1000 AND hidden = 64 "
                      "AND dtype = 'bf16' AND rows = 128 AND spec.finished IS NULL AND gpu = 'Fake H200'"),
               1);
}

Test(records, runs_and_specs_are_finished_and_gemm_baselines_kept) {
  search_candidate c = sample_candidate(SEARCH_CHOSEN);
  records_baseline baseline = {"scores", 128, {0.5, 0.4, 0.6}, 2};
  records *file = with_candidate(&c);
  cr_assert_eq(records_put_baseline(file, &spec, &baseline), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(records_finish_spec(file, &spec, "0123456789abcdef"), FLP_OK);
  cr_assert_eq(records_finish_run(file, &run), FLP_OK);
  records_close(file);
  cr_expect_eq(number("SELECT count(*) FROM run, spec, bare WHERE run.finished >= run.started AND "
                      "spec.plan = '0123456789abcdef' AND bare.product = 'scores' AND bare.ms = 0.5"),
               1);
}

/* ---- going on ---- */

static int recalled(search_candidate *c) {
  records *file = open_file();
  int found = -1;
  cr_assert_eq(records_recall(file, &run, &spec, c, &found), FLP_OK, "%s", flp_error_detail());
  records_close(file);
  return found;
}

Test(records, what_was_found_out_is_recalled) {
  static const search_status was[] = {SEARCH_TIMED, SEARCH_CHOSEN, SEARCH_WRONG, SEARCH_FAILED};
  static const search_status got[] = {SEARCH_TIMED, SEARCH_TIMED, SEARCH_WRONG, SEARCH_FAILED};
  for (int i = 0; i < 4; i++) {
    begin();
    search_candidate c = sample_candidate(was[i]), back = sample_candidate(SEARCH_WAITING);
    put(&c);
    cr_assert_eq(recalled(&back), 1);
    cr_expect_eq(back.status, got[i]);
    cr_expect_str_eq(back.reason, c.reason);
    cr_expect(back.rounds == c.rounds && back.ms.median == c.ms.median && back.ms.low == c.ms.low &&
              back.ms.high == c.ms.high && back.ratio == c.ratio && back.error == c.error &&
              back.clock_mhz == c.clock_mhz && back.power_w == c.power_w);
    cr_expect_eq(back.id, 0, "it gets a row of its own");
  }
}

Test(records, what_was_not_tried_is_not_recalled) {
  static const search_status was[] = {SEARCH_WAITING, SEARCH_ILLEGAL, SEARCH_PRUNED};
  for (int i = 0; i < 3; i++) {
    begin();
    search_candidate c = sample_candidate(was[i]), back = sample_candidate(SEARCH_WAITING);
    put(&c);
    cr_expect_eq(recalled(&back), 0);
  }
}

Test(records, what_was_found_out_elsewhere_is_not_recalled) {
  const search_candidate same = sample_candidate(SEARCH_WAITING);
  search_candidate c = sample_candidate(SEARCH_TIMED);
  put(&c);
  const records_run here = run;
  const records_spec this = spec;
  c = same;
  cr_expect_eq(recalled(&c), 1);
#define OTHER(what, field, value)        \
  do {                                   \
    run = here, spec = this, c = same;   \
    field = value;                       \
    cr_expect_eq(recalled(&c), 0, what); \
  } while (0)
  OTHER("GPU", run.gpu, "Fake H100");
  OTHER("multiprocessors", run.multiprocessors, 114);
  OTHER("driver", run.driver, 12080);
  OTHER("sources", run.sources, "abd");
  OTHER("spec", spec.text, "bf16 V=1000 D=128");
  OTHER("rows", spec.rows, 256);
  OTHER("kind", c.kind, FLP_KERNEL_FORWARD);
  OTHER("tiling", c.tune.raster, 16);
  OTHER("layout", c.kind, 0);
#undef OTHER
}

Test(records, the_default_is_never_recalled_for_it_is_timed_each_time) {
  search_candidate c = sample_candidate(SEARCH_TIMED);
  c.is_default = 1;
  put(&c);
  cr_expect_eq(recalled(&c), 0);
}

Test(records, layouts_are_distinguished_by_mode_and_chunks) {
  search_candidate c = sample_candidate(SEARCH_TIMED);
  c.kind = 0;
  c.mode = FLP_MODE_RECOMPUTE_VOCAB;
  c.chunk_rows = 128;
  c.chunk_vocab = 512;
  put(&c);
  cr_expect_str_eq(records_kind(&c), "layout");
  search_candidate same = c, other_mode = c, other_chunk = c;
  other_mode.mode = FLP_MODE_RECOMPUTE_SPLIT;
  other_chunk.chunk_vocab = 256;
  cr_expect_eq(recalled(&same), 1);
  cr_expect_eq(recalled(&other_mode), 0);
  cr_expect_eq(recalled(&other_chunk), 0);
}

/* What release 0.1.0 wrote: letters for modes. */
Test(records, layouts_and_targets_with_letters_of_modes_are_recalled) {
  spec.text = "bf16 V=1000 D=64 mode=stream workspace=1024";
  search_candidate c = sample_candidate(SEARCH_TIMED);
  c.kind = 0;
  c.mode = FLP_MODE_STREAM;
  c.chunk_rows = 128;
  put(&c);
  cr_expect_eq(number("SELECT count(*) FROM candidate WHERE tune = 'stream'"), 1);
  run_sql("UPDATE candidate SET tune = 'P'; UPDATE spec SET text = replace(text, 'stream', 'P')");
  search_candidate same = c, other = c;
  other.mode = FLP_MODE_SAVE;
  cr_expect_eq(recalled(&same), 1);
  cr_expect_eq(recalled(&other), 0);
}

Test(records, the_newest_counts) {
  search_candidate old = sample_candidate(SEARCH_WRONG), new = sample_candidate(SEARCH_TIMED);
  put(&old);
  put(&new);
  cr_assert_eq(recalled(&old), 1);
  cr_expect_eq(old.status, SEARCH_TIMED);
  cr_expect_str_eq(old.reason, "");
}

static int finished(char plan_id[17]) {
  records *file = open_file();
  int found = -1;
  cr_assert_eq(records_find_finished(file, &run, &spec, plan_id, &found), FLP_OK, "%s", flp_error_detail());
  records_close(file);
  return found;
}

/* Adds a run of that effort; plan NULL: which is not finished. */
static void add_run(const char *effort, const char *plan) {
  search_candidate c = sample_candidate(SEARCH_CHOSEN);
  const char *own = run.effort;
  run.effort = effort;
  records *file = with_candidate(&c);
  run.effort = own;
  if (plan) cr_assert_eq(records_finish_spec(file, &spec, plan), FLP_OK);
  records_close(file);
}

Test(records, a_spec_is_done_if_the_newest_was_finished_with_this_effort_here) {
  char plan[17] = "";
  cr_expect_eq(finished(plan), 0, "an empty file");
  add_run("normal", "aaaaaaaaaaaaaaaa");
  cr_expect_eq(finished(plan), 1);
  cr_expect_str_eq(plan, "aaaaaaaaaaaaaaaa");
  run.driver++;
  cr_expect_eq(finished(plan), 0, "on another driver");
  run.driver--;
  run.effort = "exhaustive";
  cr_expect_eq(finished(plan), 0, "with another effort");
  run.effort = "normal";
  add_run("quick", "bbbbbbbbbbbbbbbb");
  cr_expect_eq(finished(plan), 0, "what is stored now is of another effort");
  add_run("normal", NULL);
  cr_expect_eq(finished(plan), 0, "the newest was stopped");
  add_run("normal", "cccccccccccccccc");
  cr_expect_eq(finished(plan), 1);
  cr_expect_str_eq(plan, "cccccccccccccccc");
}

/* ---- files that are none ---- */

static void expect_refused(const char *at, flp_status want, const char *words) {
  records *file = (records *)&file;
  cr_expect_eq(records_open(at, &file), want, "%s", flp_error_detail());
  cr_expect_null(file);
  cr_expect(strstr(flp_error_detail(), words) && strstr(flp_error_detail(), at), "%s", flp_error_detail());
}

Test(records, a_file_that_is_no_database_is_refused) {
  FILE *out = fopen(path, "w");
  cr_assert_not_null(out);
  fputs(
      "{\"this\": \"is no database, and of more than a hundred bytes, so that there is a head to look at: "
      "the head of a database has as many\"}\n",
      out);
  fclose(out);
  expect_refused(path, FLP_ERROR_CORRUPT, "not a record of tuning");
}

Test(records, a_truncated_file_is_refused) {
  records_close(open_file());
  cr_assert_eq(truncate(path, 5000), 0);
  expect_refused(path, FLP_ERROR_CORRUPT, "not a record of tuning");
}

Test(records, a_database_of_others_is_refused_and_left_alone) {
  run_sql("CREATE TABLE photos(id INTEGER)");
  expect_refused(path, FLP_ERROR_CORRUPT, "not a record of tuning");
  run_sql("PRAGMA user_version = 1");
  expect_refused(path, FLP_ERROR_CORRUPT, "no such table: run");
  cr_expect_eq(number("SELECT count(*) FROM sqlite_schema"), 1);
}

Test(records, a_file_of_another_version_or_without_a_column_is_refused) {
  static const char *const changed[][2] = {{"PRAGMA user_version = 2", "version 2, accepted: 1"},
                                           {"ALTER TABLE candidate DROP COLUMN ratio", "no such column: ratio"}};
  for (int i = 0; i < 2; i++) {
    begin();
    records_close(open_file());
    run_sql(changed[i][0]);
    expect_refused(path, FLP_ERROR_CORRUPT, changed[i][1]);
  }
}

Test(records, a_place_that_cannot_be_written_is_reported) {
  expect_refused("/nonexistent/folder/tune.sqlite", FLP_ERROR_IO, "unable to open");
  expect_refused("/proc/tune.sqlite", FLP_ERROR_IO, "");
}

/* ---- processes ---- */

Test(records, a_killed_process_leaves_what_it_had_written) {
  int pipes[2];
  cr_assert_eq(pipe(pipes), 0);
  pid_t child = fork();
  if (child == 0) {
    search_candidate c = sample_candidate(SEARCH_TIMED), open = sample_candidate(SEARCH_FAILED);
    records *file = with_candidate(&c);
    records_begin(file); /* a transaction that never ends */
    records_put(file, &spec, &open);
    (void)!write(pipes[1], "x", 1);
    for (;;) pause();
  }
  char ready;
  cr_assert_eq(read(pipes[0], &ready, 1), 1);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  search_candidate back = sample_candidate(SEARCH_WAITING);
  cr_expect_eq(recalled(&back), 1);
  cr_expect_eq(back.status, SEARCH_TIMED);
  cr_expect_eq(number("SELECT count(*) FROM candidate"), 1);
}

Test(records, processes_may_create_the_same_file_at_once) {
  enum { PROCESSES = 8 };
  for (int round = 0; round < 3; round++) {
    begin();
    int gate[2], failed = 0;
    cr_assert_eq(pipe(gate), 0);
    for (int i = 0; i < PROCESSES; i++)
      if (fork() == 0) {
        records *file;
        char c;
        close(gate[1]);
        (void)!read(gate[0], &c, 1); /* until the gate is closed */
        _exit(records_open(path, &file) != FLP_OK || records_begin_run(file, &run) != FLP_OK);
      }
    close(gate[1]);
    close(gate[0]);
    for (int i = 0, status; i < PROCESSES; i++) failed += wait(&status) < 0 || status != 0;
    cr_expect_eq(failed, 0);
    cr_expect_eq(number("SELECT count(*) FROM run"), PROCESSES);
  }
}
