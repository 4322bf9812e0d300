/* test_check_lists.c: lists of columns as `flpgen check` gives them to a rung and to the oracle, pattern by pattern. */
#include <criterion/criterion.h>

#include "tests/unit/support/check_case.h"

enum { ROWS = 48, VOCAB = 90 };

static check_problem create(check_lists lists, check_rows rows, flp_dtype target_dtype) {
  check_case c = check_case_default(FLP_DTYPE_FP32, ROWS, VOCAB, 8);
  c.mode = FLP_MODE_LISTED;
  c.spec.listed = 1;
  c.spec.target_dtype = target_dtype;
  c.kept = 12;
  c.lists = lists;
  c.rows = rows;
  check_problem problem = check_fixture_problem(&c);
  cr_assert_eq(problem.oracle.list_offsets, problem.column_offsets);
  cr_assert_eq(problem.oracle.list_columns, problem.list_columns);
  return problem;
}

static int64_t id_at(const check_problem *p, int64_t entry) {
  return p->c.spec.target_dtype == FLP_DTYPE_INT32 ? ((int32_t *)p->list_ids)[entry] : ((int64_t *)p->list_ids)[entry];
}

/* How often an id stands in a row's list as the rung gets it. */
static int64_t times(const check_problem *p, int64_t row, int64_t id) {
  int64_t count = 0;
  for (int64_t e = p->list_offsets[row]; e < p->list_offsets[row + 1]; e++) count += id_at(p, e) == id;
  return count;
}

/* The oracle's list of a good row has what the rung's has, ascending, each once; a bad row's is empty. */
static void expect_sorted(const check_problem *p, int64_t row) {
  int64_t begin = p->column_offsets[row], end = p->column_offsets[row + 1], entries = 0;
  cr_assert_eq(p->list_bad[row], end == begin, "row %ld", (long)row);
  for (int64_t i = begin; i < end; i++) {
    cr_assert(i == begin || p->list_columns[i - 1] < p->list_columns[i]);
    cr_assert(times(p, row, p->list_columns[i]) > 0);
    entries += times(p, row, p->list_columns[i]);
  }
  if (end > begin) cr_assert_eq(entries, p->list_offsets[row + 1] - p->list_offsets[row]);
}

Test(check_lists, good_patterns_have_what_they_say) {
  static const check_lists patterns[] = {CHECK_LISTS_DRAWN, CHECK_LISTS_ONE, CHECK_LISTS_ALL, CHECK_LISTS_REPEATS};
  for (int i = 0; i < 4; i++) {
    check_problem p = create(patterns[i], CHECK_ROWS_ALL, i % 2 ? FLP_DTYPE_INT32 : FLP_DTYPE_INT64);
    int64_t twice = 0, three_times = 0;
    cr_assert_eq(p.list_count, p.list_offsets[ROWS]);
    for (int64_t row = 0; row < ROWS; row++) {
      int64_t length = p.column_offsets[row + 1] - p.column_offsets[row];
      expect_sorted(&p, row);
      cr_assert_eq(p.forward_class[row], CHECK_ACTIVE);
      cr_assert(times(&p, row, p.target_id[row]) > 0);
      if (patterns[i] == CHECK_LISTS_ONE) cr_assert_eq(length, 1);
      if (patterns[i] == CHECK_LISTS_ALL) cr_assert_eq(length, VOCAB);
      for (int64_t v = 0; v < VOCAB; v++) {
        twice += times(&p, row, v) == 2;
        three_times += times(&p, row, v) == 3;
      }
    }
    cr_expect_eq(twice > 0, patterns[i] == CHECK_LISTS_DRAWN || patterns[i] == CHECK_LISTS_REPEATS);
    cr_expect_eq(three_times > 0, patterns[i] == CHECK_LISTS_REPEATS);
    cr_expect_eq(p.has_bad, 0);
    check_problem_clear(&p);
  }
}

static void expect_bad_rows(flp_dtype target_dtype) {
  check_problem p = create(CHECK_LISTS_BAD, CHECK_ROWS_ALL, target_dtype);
  int64_t outside = 0, empty = 0, lacking = 0;
  for (int64_t row = 0; row < ROWS; row++) {
    int64_t foreign = p.list_offsets[row + 1] - p.list_offsets[row];
    for (int64_t v = 0; v < VOCAB; v++) foreign -= times(&p, row, v);
    int is_empty = p.list_offsets[row + 1] == p.list_offsets[row], lacks = times(&p, row, p.target_id[row]) == 0;
    expect_sorted(&p, row);
    outside += foreign > 0;
    empty += is_empty;
    lacking += lacks && !is_empty && !foreign;
    cr_assert_eq(p.list_bad[row], foreign > 0 || lacks);
    cr_assert_eq(p.forward_class[row], p.list_bad[row] ? CHECK_BAD : CHECK_ACTIVE);
  }
  cr_expect_eq(outside, 3 * ROWS / 8);
  cr_expect(empty >= ROWS / 8 && empty + lacking == 2 * ROWS / 8);
  cr_expect_eq(p.has_bad, 1);
  check_problem_clear(&p);
}

Test(check_lists, bad_lists_are_of_every_sort_and_known) {
  expect_bad_rows(FLP_DTYPE_INT32);
  expect_bad_rows(FLP_DTYPE_INT64);
}

Test(check_lists, offsets_that_are_no_lists_make_every_row_bad) {
  for (check_lists lists = CHECK_LISTS_DESCEND; lists <= CHECK_LISTS_BEHIND; lists++) {
    check_problem p = create(lists, CHECK_ROWS_MASKED, FLP_DTYPE_INT64);
    int broken = p.list_offsets[0] < 0 || p.list_offsets[ROWS] > p.list_count;
    for (int64_t row = 0; row < ROWS; row++) {
      broken += p.list_offsets[row] > p.list_offsets[row + 1];
      cr_assert_eq(p.forward_class[row], row % 3 == 1 ? CHECK_LEFT_OUT : CHECK_BAD, "a masked row has no list");
    }
    cr_expect_eq(broken, 1);
    check_problem_clear(&p);
  }
}

Test(check_lists, a_list_goes_where_its_row_goes) {
  check_problem p = create(CHECK_LISTS_REPEATS, CHECK_ROWS_ALL, FLP_DTYPE_INT32);
  check_problem old = create(CHECK_LISTS_REPEATS, CHECK_ROWS_ALL, FLP_DTYPE_INT32);
  const int64_t order[3] = {40, 3, 17};
  cr_assert_eq(check_problem_permute(&p, order, 3), FLP_OK);
  cr_assert_eq(p.oracle.list_columns, p.list_columns);
  cr_assert_eq(p.list_offsets[3], p.list_count);
  for (int64_t row = 0; row < 3; row++) {
    int64_t from = order[row], count = p.list_offsets[row + 1] - p.list_offsets[row];
    cr_assert_eq(count, old.list_offsets[from + 1] - old.list_offsets[from]);
    for (int64_t i = 0; i < count; i++)
      cr_assert_eq(id_at(&p, p.list_offsets[row] + i), id_at(&old, old.list_offsets[from] + i));
    expect_sorted(&p, row);
  }
  check_problem_clear(&p);
  check_problem_clear(&old);
}

Test(check_lists, reversed_lists_hold_the_same_ids) {
  check_problem p = create(CHECK_LISTS_DRAWN, CHECK_ROWS_ALL, FLP_DTYPE_INT64);
  check_problem old = create(CHECK_LISTS_DRAWN, CHECK_ROWS_ALL, FLP_DTYPE_INT64);
  check_lists_reverse(&p);
  for (int64_t row = 0; row < ROWS; row++)
    for (int64_t begin = p.list_offsets[row], end = p.list_offsets[row + 1], i = begin; i < end; i++)
      cr_assert_eq(id_at(&p, i), id_at(&old, end - 1 - (i - begin)));
  check_problem_clear(&p);
  check_problem_clear(&old);
}
