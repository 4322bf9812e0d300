/* test_gen_loss.c: tracing of loss files: names, bytes that do not change, and the IR that a program becomes. */
#include "tests/unit/support/gen_case.h"

static flp_status trace(const char *file, const char *text, flpgen_loss *out, char error[512]) {
  error[0] = 0;
  return flpgen_loss_trace(file, text, strlen(text), out, error, 512);
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
                   "options.loss: needed with key.kind loss_rows or loss_scores and a digest in key.loss, or loss_targets or "
                   "diverge, and with no other kind");
  cr_assert_eq(generate(NULL, FLP_KERNEL_LOSS, &result, error), FLP_OK, "%s", error);
  cr_expect_leq(result.desc.entries[0].shared_bytes, 48 << 10, "the kernel of any loss, on every device");
  flpgen_result_clear(&result);
  cr_expect_eq(generate(NULL, FLP_KERNEL_FORWARD, &result, error), FLP_OK, "%s", error);
  flpgen_result_clear(&result);
}
