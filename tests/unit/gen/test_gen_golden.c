/* test_gen_golden.c: the IR of small kernels, as the template builds it, compared byte for byte with tests/golden.
 *
 * FLP_GOLDEN_UPDATE=1 writes the files anew; the difference is then reviewed like code. */
#include "tests/unit/support/gen_case.h"

static void check_file(const char *name) {
  char path[4096], error[512];
  size_t length;
  snprintf(path, sizeof path, "%s/tests/golden/%s", FLP_TEST_TREE, name);
  char *text = gen_case_read(path, &length);
  flpgen_result result;
  cr_assert_eq(gen_case_text(text, length, &result, error), FLP_OK, "%s: %s", name, error);
  memcpy(path + strlen(path) - 4, ".ll", 4);
  gen_case_golden(path, result.ir);
  free(text);
  flpgen_result_clear(&result);
}

Test(gen_golden, ir_is_as_it_was) {
  cr_assert_geq(gen_case_each(FLP_TEST_TREE "/tests/golden", check_file), 5);
}
