/* test_check_top.c: what `flpgen check` says of best columns and ranks that are wrong: each fault that is planted in a
 * right result is found, and no other output fails. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gen/cli/check/compare.h"
#include "gen/cli/check/run.h"

enum { N = 10, V = 300, K = 5 };

typedef struct fixture {
  check_problem problem;
  check_truth truth;
  call_result result;
} fixture;

static fixture open_case(check_fill fill, check_rows rows, int shards) {
  fixture f = {0};
  check_case c = check_case_default(FLP_DTYPE_FP32, N, V, 32);
  check_how how = {.options = {.struct_bytes = sizeof(flp_options), .rung = FLP_RUNG_EAGER, .threads = 2}};
  c.fill = fill;
  c.rows = rows;
  c.shards = shards;
  c.spec.topk = K;
  c.spec.rank = shards == 1;
  cr_assert_eq(check_problem_create(&c, &f.problem), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(check_truth_create(&f.problem, NULL, &f.truth), FLP_OK);
  cr_assert_eq(check_run(&f.problem, &how, &f.result), FLP_OK, "%s", flp_error_detail());
  return f;
}

static void close_case(fixture *f) {
  call_result_clear(&f->result);
  check_truth_clear(&f->truth);
  check_problem_clear(&f->problem);
}

/* Which output fails, "" if none does; more than one joined by '+'. note: of the last */
static const char *failing(const fixture *f, char note[256]) {
  static char names[200];
  check_report report = {0};
  names[0] = note[0] = 0;
  cr_assert_eq(check_compare_top(&f->problem, &f->truth, &f->result, FLP_RUNG_EAGER, &report), FLP_OK);
  cr_assert_eq(report.count, f->result.rank ? 4 : 2);
  for (int64_t i = 0; i < report.count; i++) {
    if (report.findings[i].metric.pass) continue;
    size_t used = strlen(names);
    snprintf(names + used, sizeof names - used, "%s%s", used ? "+" : "", report.findings[i].output);
    snprintf(note, 256, "%s", report.findings[i].note);
  }
  check_report_clear(&report);
  return names;
}

static void expect(const fixture *f, const char *outputs, const char *because) {
  char note[256];
  cr_expect_str_eq(failing(f, note), outputs);
  cr_expect_str_eq(note, because);
}

Test(check_top, right_results_pass) {
  static const check_fill fills[] = {CHECK_FILL_RANDOM, CHECK_FILL_EQUAL, CHECK_FILL_SHARP};
  for (int fill = 0; fill < 3; fill++)
    for (int rows = CHECK_ROWS_ALL; rows <= CHECK_ROWS_NAN; rows++)
      for (int shards = 1; shards <= 3; shards += 2) {
        fixture f = open_case(fills[fill], (check_rows)rows, shards);
        expect(&f, "", "");
        close_case(&f);
      }
}

Test(check_top, wrong_ids) {
  fixture f = open_case(CHECK_FILL_RANDOM, CHECK_ROWS_ALL, 1);
  int64_t *ids = (int64_t *)f.result.top_ids + 3 * K, right[K];
  memcpy(right, ids, sizeof right);
  ids[1] = ids[0];
  expect(&f, "top_ids", "an id stands twice");
  memcpy(ids, right, sizeof right);
  ids[2] = V;
  expect(&f, "top_ids", "an id is no column");
  ids[2] = -1;
  expect(&f, "top_ids", "an id is no column");
  memcpy(ids, right, sizeof right);
  ids[0] = right[4], ids[4] = right[0];
  expect(&f, "top_ids", "ids are not in falling order of their scores");
  memcpy(ids, right, sizeof right);
  for (int64_t v = 0; v < V; v++) /* a column that is no best one, behind the others */
    if (v != right[0] && v != right[1] && v != right[2] && v != right[3] && v != right[4]) ids[4] = v;
  expect(&f, "top_ids", "a column that is not named has a higher score");
  close_case(&f);
}

Test(check_top, wrong_numbers) {
  fixture f = open_case(CHECK_FILL_RANDOM, CHECK_ROWS_ALL, 1);
  f.result.top_logprob[4 * K + 4] -= 1e-3f;
  expect(&f, "top_logprob", "");
  f.result.top_logprob[4 * K + 4] += 1e-3f;
  f.result.top_rest[2] += 1e-4f;
  expect(&f, "top_rest", "");
  f.result.top_rest[2] = NAN;
  expect(&f, "top_ids+top_rest", "");
  close_case(&f);
}

Test(check_top, wrong_ranks) {
  fixture f = open_case(CHECK_FILL_RANDOM, CHECK_ROWS_ALL, 1);
  f.result.rank[5]++;
  expect(&f, "rank", "fewer columns are above the target");
  f.result.rank[5] -= 2;
  expect(&f, "rank", "more columns are above the target");
  close_case(&f);
  f = open_case(CHECK_FILL_EQUAL, CHECK_ROWS_ALL, 1);
  cr_expect_eq(f.result.rank[5], 0, "columns of the target's very score are not above it");
  f.result.rank[5] = 1;
  expect(&f, "rank", "fewer columns are above the target");
  close_case(&f);
}

Test(check_top, rows_without_columns) {
  fixture f = open_case(CHECK_FILL_RANDOM, CHECK_ROWS_MASKED, 1);
  ((int64_t *)f.result.top_ids)[1 * K] = 0;
  expect(&f, "top_ids", "a row without work has ids");
  ((int64_t *)f.result.top_ids)[1 * K] = -1;
  f.result.rank[1] = 0;
  expect(&f, "rank", "a row without a rank has one");
  f.result.rank[1] = -1;
  f.result.top_logprob[1 * K] = NAN;
  expect(&f, "top_logprob", "");
  close_case(&f);
  f = open_case(CHECK_FILL_RANDOM, CHECK_ROWS_BAD, 1);
  f.result.top_rest[1] = 0;
  expect(&f, "top_rest", "");
  close_case(&f);
  f = open_case(CHECK_FILL_RANDOM, CHECK_ROWS_NAN, 1);
  f.result.rank[1] = 0;
  expect(&f, "rank", "a row that is not a number has a rank");
  close_case(&f);
}

Test(check_top, ids_of_another_shard) {
  fixture f = open_case(CHECK_FILL_RANDOM, CHECK_ROWS_ALL, 3);
  int64_t *ids = f.result.top_ids;
  ids[(1 * N + 2) * K] -= 100;
  expect(&f, "top_ids", "an id is no column");
  close_case(&f);
}
