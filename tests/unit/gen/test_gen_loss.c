/* test_gen_loss.c: tracing of loss files: messages, bytes that do not change, and the IR that a program becomes. */
#include "tests/unit/support/gen_case.h"

static flp_status trace(const char *file, const char *text, flpgen_loss *out, char error[512]) {
  error[0] = 0;
  return flpgen_loss_trace(file, text, strlen(text), out, error, 512);
}

static void check_file(const char *name) {
  char path[4096], expected[512] = "", error[512];
  size_t length;
  flpgen_loss loss;
  snprintf(path, sizeof path, "%s/tests/fails/losses/%s", FLP_TEST_TREE, name);
  char *text = gen_case_read(path, &length);
  gen_case_expected(name, text, expected);
  flp_status status = trace(strrchr(name, '/') + 1, text, &loss, error);
  cr_expect_eq(status, FLP_ERROR_COMPILE, "%s: status %d", name, (int)status);
  cr_expect_str_eq(error, expected, "%s:\n  expected %s\n  got      %s", name, expected, error);
  free(text);
}

Test(gen_loss, every_bad_file_reports_what_and_where) {
  cr_assert_geq(gen_case_each_below(FLP_TEST_TREE "/tests/fails/losses", check_file), 51);
}

Test(gen_loss, a_binary_chunk_is_refused) {
  flpgen_loss loss;
  char error[512];
  cr_expect_eq(trace("x.lua", "\x1bLua", &loss, error), FLP_ERROR_COMPILE);
  cr_expect_str_eq(error, "x.lua:1: a template is text, not a binary chunk");
  cr_expect_eq(flpgen_loss_builtin("gppo", &loss, error, sizeof error), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(error, "there is no built-in loss 'gppo'");
}

/* What the lint must leave alone. */
Test(gen_loss, ordinary_lua_passes) {
  static const char *const bodies[] = {
      "local min = math.min if min(1, 2) == 1 then return row.logprob end",
      "local function max(a, b) return a > b end if max(2, 1) then return row.logprob end",
      "for _, name in ipairs {'logprob'} do if name == 'logprob' then return row[name] end end",
      "local t = {lt = 3} if t.lt == 3 and not nil then return row.logprob end",
  };
  for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
    char text[512], error[512];
    flpgen_loss loss;
    snprintf(text, sizeof text, "return function(row) %s end", bodies[i]);
    cr_expect_eq(trace("x.lua", text, &loss, error), FLP_OK, "%s: %s", bodies[i], error);
  }
}

Test(gen_loss, names_come_from_the_text_or_the_file) {
  flpgen_loss loss;
  char error[512];
  cr_assert_eq(trace("a/b.c/soft_clip.lua", "return function(row) return row.logprob end", &loss, error), FLP_OK);
  cr_expect_str_eq(loss.program.name, "soft_clip");
  cr_assert_eq(trace("Mine.lua", "return function(row) return row.logprob end", &loss, error), FLP_OK);
  cr_expect_str_eq(loss.program.name, "loss");
  cr_assert_eq(
      trace("x.lua", "return {name = 'mine', formula = 'x', source = 'y', loss = function(row) return row.logprob end}",
            &loss, error),
      FLP_OK);
  cr_expect_str_eq(loss.program.name, "mine");
  cr_expect_str_eq(loss.formula, "x");
  cr_expect_str_eq(loss.source, "y");
  cr_assert_eq(
      trace("x.lua", "local e = exp(1) return {name = 'mine', loss = function(row) return e * row.logprob end}", &loss,
            error),
      FLP_OK);
  cr_expect_eq(loss.program.node_count, 4, "a value from outside the function stays what it is");
}

Test(gen_loss, constants_fold_and_equal_values_are_one) {
  flpgen_loss loss;
  char error[512];
  const char *text =
      "return function(row)\n"
      "  local dead = exp(row.entropy)\n"
      "  local two = min(3, 2) * sqrt(abs(detach(1)))\n"
      "  return (row.logprob * 1 / 1 + two) * (row.logprob + 2)\n"
      "end";
  cr_assert_eq(trace("x.lua", text, &loss, error), FLP_OK, "%s", error);
  cr_expect_eq(loss.program.node_count, 4, "logprob, 2, their sum and its square: %u", loss.program.node_count);
  cr_expect_eq(flp_loss_inputs(&loss.program), 1u << FLP_LOSS_LOGPROB);
  cr_expect_eq(loss.program.constant_count, 1);
}

/* Tables of Lua have no order of their own. */
Test(gen_loss, the_same_text_gives_the_same_bytes) {
  char error[512], path[4096];
  size_t length;
  uint8_t first[FLP_LOSS_BYTES_MAX], again[FLP_LOSS_BYTES_MAX];
  flpgen_loss loss;
  snprintf(path, sizeof path, "%s/tests/golden/losses/every_word.lua", FLP_TEST_TREE);
  char *text = gen_case_read(path, &length);
  for (int i = 0; i < 20; i++) {
    cr_assert_eq(trace("every_word.lua", text, &loss, error), FLP_OK, "%s", error);
    size_t bytes = flp_loss_write(&loss.program, i ? again : first, sizeof first);
    cr_assert_gt(bytes, 0);
    cr_expect_eq(i ? memcmp(first, again, bytes) : 0, 0);
  }
  cr_expect_str_eq(loss.program.parameters[0].name, "high", "parameters are sorted by name");
  cr_expect_str_eq(loss.program.vectors[0], "reward", "vectors keep their order");
  free(text);
}

/* ---- kernels ---- */

static flp_status generate(const flp_loss *loss, flp_kernel_kind kind, flpgen_result *out, char error[512]) {
  flp_kernel_key key = gen_case_key(kind);
  flpgen_options options = {.want_ir = 1, .loss = loss};
  return flpgen_generate(&key, &options, out, error, 512);
}

/* FLP_GOLDEN_UPDATE=1 writes the file anew; the difference is then reviewed like code. */
Test(gen_loss, ir_is_as_it_was) {
  char error[512];
  size_t length;
  flpgen_loss loss;
  flpgen_result result;
  char *text = gen_case_read(FLP_TEST_TREE "/tests/golden/losses/every_word.lua", &length);
  cr_assert_eq(trace("every_word.lua", text, &loss, error), FLP_OK, "%s", error);
  cr_assert_eq(generate(&loss.program, FLP_KERNEL_LOSS, &result, error), FLP_OK, "%s", error);
  gen_case_golden(FLP_TEST_TREE "/tests/golden/losses/every_word.ll", result.ir);
  free(text);
  flpgen_result_clear(&result);
}

Test(gen_loss, the_module_has_one_entry_and_needs_its_kind) {
  char error[512];
  flp_loss loss;
  flpgen_result result;
  cr_assert_eq(flp_loss_find("grpo+k3+entropy", &loss), FLP_OK);
  cr_assert_eq(generate(&loss, FLP_KERNEL_LOSS, &result, error), FLP_OK, "%s", error);
  cr_expect_eq(result.desc.entry_count, 1);
  cr_expect_str_eq(result.desc.entries[0].name, "loss_rows");
  flpgen_result_clear(&result);
  cr_expect_eq(generate(&loss, FLP_KERNEL_FORWARD, &result, error), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(error,
                   "options.loss: needed with key.kind loss_rows or loss_scores and a digest in key.loss, or loss_targets, and with no other kind");
  cr_assert_eq(generate(NULL, FLP_KERNEL_LOSS, &result, error), FLP_OK, "%s", error);
  cr_expect_leq(result.desc.entries[0].shared_bytes, 48 << 10, "the kernel of any loss, on every device");
  flpgen_result_clear(&result);
  cr_expect_eq(generate(NULL, FLP_KERNEL_FORWARD, &result, error), FLP_OK, "%s", error);
  flpgen_result_clear(&result);
}
