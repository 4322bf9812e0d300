/* test_plan_golden.c: which rung, kernels and tile configurations plans get and why, as tests/golden/plan has it; and
 * what the API takes and refuses, with which sentence, as tests/golden/api has it. Each file has a process. */
#include <criterion/criterion.h>
#include <glob.h>
#include <string.h>

#include "tests/unit/support/golden.h"
#include "tests/unit/support/rows.h"

static const glob_t *files(void) {
  static glob_t found;
  cr_assert_eq(glob(FLP_TEST_TREE "/tests/golden/{api,plan}/*.txt", GLOB_BRACE, NULL, &found), 0);
  return &found;
}

ParameterizedTestParameters(plan_golden, is_as_it_was) {
  return rows_numbered(files()->gl_pathc);
}

ParameterizedTest(int *at, plan_golden, is_as_it_was, .timeout = 900) {
  golden_check_file(files()->gl_pathv[*at] + strlen(FLP_TEST_TREE "/tests/golden/"), NULL);
}
