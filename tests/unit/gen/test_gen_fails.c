/* test_gen_fails.c: every bad template of tests/fails/templates gives exactly the message that its first line expects. */
#include "tests/unit/support/gen_case.h"

static void check_file(const char *name) {
  char path[4096], expected[512] = "", error[512];
  size_t length;
  snprintf(path, sizeof path, "%s/tests/fails/templates/%s", FLP_TEST_TREE, name);
  char *text = gen_case_read(path, &length);
  gen_case_expected(name, text, expected);
  gen_case_arch = strstr(text, "\n-- arch: sm_90a\n") ? "sm_90a" : "sm_80";
  flpgen_result result;
  flp_status status = gen_case_text(text, length, &result, error);
  cr_expect_eq(status, FLP_ERROR_COMPILE, "%s: status %d", name, (int)status);
  cr_expect_str_eq(error, expected, "%s:\n  expected %s\n  got      %s", name, expected, error);
  cr_expect_null(result.ptx);
  free(text);
}

Test(gen_fails, every_bad_template_reports_what_and_where) {
  cr_assert_geq(gen_case_each_below(FLP_TEST_TREE "/tests/fails/templates", check_file), 137);
}

Test(gen_fails, a_binary_chunk_is_refused) {
  flpgen_result result;
  char error[512];
  cr_expect_eq(gen_case_text("\x1bLua", 4, &result, error), FLP_ERROR_COMPILE);
  cr_expect_str_eq(error, "portable/forward.lua:1: a template is text, not a binary chunk");
}

/* A module of more than a million instructions would take LLVM minutes and gigabytes. */
Test(gen_fails, a_module_may_not_grow_without_bound) {
  flpgen_result result;
  char error[512];
  flp_status status = gen_case_body("local x = k.tid()\nfor _ = 1, 2000000 do x = x * x end", &result, error);
  cr_expect_eq(status, FLP_ERROR_COMPILE);
  cr_expect_str_eq(error, "portable/forward.lua:4: the module is larger than 1048576 instructions");
}
