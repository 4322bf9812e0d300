/* rows.h: tests with a process for each row of a table. The parameter is the row's number, since addresses differ from
 * process to process. */
#ifndef FLP_TEST_ROWS_H
#define FLP_TEST_ROWS_H

#include <criterion/criterion.h>
#include <criterion/parameterized.h>

static inline struct criterion_test_params rows_numbered(size_t count) {
  static int at[256];
  cr_assert_leq(count, sizeof at / sizeof at[0]);
  for (size_t i = 0; i < count; i++) at[i] = (int)i;
  return cr_make_param_array(int, at, count);
}

#endif
