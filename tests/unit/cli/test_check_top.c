/* test_check_top.c: what `flpgen check` says of best columns and ranks that are wrong: each fault that is planted in a
 * right result is found, and no other output fails. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/support/check_case.h"

enum { N = 10, V = 300, K = 5 };

static check_fixture open_case(check_fill fill, check_rows rows, int shards) {
  check_fixture f;
  check_case c = check_case_default(FLP_DTYPE_FP32, N, V, 32);
  c.fill = fill;
  c.rows = rows;
  c.shards = shards;
  c.spec.topk = K;
  c.spec.rank = shards == 1;
  check_fixture_open(&f, &c, 0);
  return f;
}

static void expect(check_fixture *f, const char *outputs, const char *because) {
  EXPECT_FAILING(f, outputs);
  cr_expect_str_eq(check_fixture_note(f), because);
}

static int64_t *ids_of(check_fixture *f, int64_t row) {
  return (int64_t *)f->result.top_ids + row * K;
}

Test(check_top, right_results_pass) {
  static const check_fill fills[] = {CHECK_FILL_RANDOM, CHECK_FILL_EQUAL, CHECK_FILL_SHARP};
  for (int fill = 0; fill < 3; fill++)
    for (int rows = CHECK_ROWS_ALL; rows <= CHECK_ROWS_NAN; rows++)
      for (int shards = 1; shards <= 3; shards += 2) {
        check_fixture f = open_case(fills[fill], (check_rows)rows, shards);
        expect(&f, "", "");
        check_fixture_close(&f);
      }
}

Test(check_top, wrong_ids) {
  check_fixture f = open_case(CHECK_FILL_RANDOM, CHECK_ROWS_ALL, 1);
  int64_t *ids = ids_of(&f, 3), right[K], other = 0;
  memcpy(right, ids, sizeof right);
  for (int i = 0; i < K; i++) /* a column that is no best one */
    if (other == right[i]) other++, i = -1;
  const struct {
    int at;
    int64_t id, fourth;
    const char *because;
  } faults[] = {{1, right[0], right[4], "an id stands twice"},
                {2, V, right[4], "an id is no column"},
                {2, -1, right[4], "an id is no column"},
                {0, right[4], right[0], "ids are not in falling order of their scores"},
                {4, other, other, "a column that is not named has a higher score"}};
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
    ids[4] = faults[i].fourth;
    ids[faults[i].at] = faults[i].id;
    expect(&f, "top_ids", faults[i].because);
    memcpy(ids, right, sizeof right);
  }
  check_fixture_close(&f);
}

Test(check_top, wrong_numbers) {
  check_fixture f = open_case(CHECK_FILL_RANDOM, CHECK_ROWS_ALL, 1);
  f.result.top_logprob[4 * K + 4] -= 1e-3f;
  expect(&f, "top_logprob", "");
  f.result.top_logprob[4 * K + 4] += 1e-3f;
  f.result.top_rest[2] += 1e-4f;
  expect(&f, "top_rest", "");
  f.result.top_rest[2] = NAN;
  expect(&f, "top_ids+top_rest", "");
  check_fixture_close(&f);
}

Test(check_top, wrong_ranks) {
  check_fixture f = open_case(CHECK_FILL_RANDOM, CHECK_ROWS_ALL, 1);
  f.result.rank[5]++;
  expect(&f, "rank", "fewer columns are above the target");
  f.result.rank[5] -= 2;
  expect(&f, "rank", "more columns are above the target");
  check_fixture_close(&f);
  f = open_case(CHECK_FILL_EQUAL, CHECK_ROWS_ALL, 1);
  cr_expect_eq(f.result.rank[5], 0, "columns of the target's very score are not above it");
  f.result.rank[5] = 1;
  expect(&f, "rank", "fewer columns are above the target");
  check_fixture_close(&f);
}

Test(check_top, rows_without_columns) {
  check_fixture f = open_case(CHECK_FILL_RANDOM, CHECK_ROWS_MASKED, 1);
  *ids_of(&f, 1) = 0;
  expect(&f, "top_ids", "a row without work has ids");
  *ids_of(&f, 1) = -1;
  f.result.rank[1] = 0;
  expect(&f, "rank", "a row without a rank has one");
  f.result.rank[1] = -1;
  f.result.top_logprob[1 * K] = NAN;
  expect(&f, "top_logprob", "");
  check_fixture_close(&f);
  f = open_case(CHECK_FILL_RANDOM, CHECK_ROWS_BAD, 1);
  f.result.top_rest[1] = 0;
  expect(&f, "top_rest", "");
  check_fixture_close(&f);
  f = open_case(CHECK_FILL_RANDOM, CHECK_ROWS_NAN, 1);
  f.result.rank[1] = 0;
  expect(&f, "rank", "a row that is not a number has a rank");
  check_fixture_close(&f);
}

Test(check_top, ids_of_another_shard) {
  check_fixture f = open_case(CHECK_FILL_RANDOM, CHECK_ROWS_ALL, 3);
  *ids_of(&f, N + 2) -= 100;
  expect(&f, "top_ids", "an id is no column");
  check_fixture_close(&f);
}
