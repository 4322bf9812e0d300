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

enum { IDS, LOGPROB, REST, RANK };

/* Adds to a number, or stands in the place of what is none. */
static void spoil(check_fixture *f, int field, int at, double by) {
  float *numbers = field == LOGPROB ? f->result.top_logprob : f->result.top_rest;
  if (field == IDS)
    ids_of(f, 0)[at] += (int64_t)by;
  else if (field == RANK)
    f->result.rank[at] += (int32_t)by;
  else
    numbers[at] = isnan(numbers[at]) ? (float)by : numbers[at] + (float)by;
}

/* In row 1 a masked, a bad one or one of NaN. */
Test(check_top, each_wrong_number_is_found) {
  static const struct {
    check_fill fill;
    check_rows rows;
    int shards, field, at;
    double by;
    const char *outputs, *because;
  } faults[] = {
      {CHECK_FILL_RANDOM, CHECK_ROWS_ALL, 1, LOGPROB, 4 * K + 4, -1e-3, "top_logprob", ""},
      {CHECK_FILL_RANDOM, CHECK_ROWS_ALL, 1, REST, 2, 1e-4, "top_rest", ""},
      {CHECK_FILL_RANDOM, CHECK_ROWS_ALL, 1, REST, 2, NAN, "top_ids+top_rest", ""},
      {CHECK_FILL_RANDOM, CHECK_ROWS_ALL, 1, RANK, 5, 1, "rank", "fewer columns are above the target"},
      {CHECK_FILL_RANDOM, CHECK_ROWS_ALL, 1, RANK, 5, -1, "rank", "more columns are above the target"},
      {CHECK_FILL_EQUAL, CHECK_ROWS_ALL, 1, RANK, 5, 1, "rank", "fewer columns are above the target"},
      {CHECK_FILL_RANDOM, CHECK_ROWS_MASKED, 1, IDS, K, 1, "top_ids", "a row without work has ids"},
      {CHECK_FILL_RANDOM, CHECK_ROWS_MASKED, 1, RANK, 1, 1, "rank", "a row without a rank has one"},
      {CHECK_FILL_RANDOM, CHECK_ROWS_MASKED, 1, LOGPROB, K, NAN, "top_logprob", ""},
      {CHECK_FILL_RANDOM, CHECK_ROWS_BAD, 1, REST, 1, 0, "top_rest", ""},
      {CHECK_FILL_RANDOM, CHECK_ROWS_NAN, 1, RANK, 1, 1, "rank", "a row that is not a number has a rank"},
      {CHECK_FILL_RANDOM, CHECK_ROWS_ALL, 3, IDS, (N + 2) * K, -100, "top_ids", "an id is no column"},
  };
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
    check_fixture f = open_case(faults[i].fill, faults[i].rows, faults[i].shards);
    spoil(&f, faults[i].field, faults[i].at, faults[i].by);
    expect(&f, faults[i].outputs, faults[i].because);
    check_fixture_close(&f);
  }
}
