/* test_validate.c: every value that C can see to be bad is refused with its field, its value and what is accepted. */
#include <criterion/criterion.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/kernel/kernel.h"
#include "tests/unit/support/refuse.h"

/* ---- spec ---- */

static flp_spec good_spec(void) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.vocab = 1000;
  spec.hidden = 64;
  spec.entropy = FLP_ENTROPY_BACKWARD;
  spec.grads = 7;
  spec.has_bias = 1;
  return spec;
}

Test(validate, specs_resolve) {
  flp_spec spec = good_spec(), out;
  cr_assert_eq(flp_spec_resolve(&spec, &out), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(out.grad_hidden_dtype, FLP_DTYPE_BF16);
  cr_expect_eq(out.grad_weight_dtype, FLP_DTYPE_BF16);
  cr_expect_eq(out.grad_bias_dtype, FLP_DTYPE_BF16);
  spec.dtype = FLP_DTYPE_FP32;
  spec.accumulate_grad_weight = 1;
  spec.alignment = 4;
  cr_assert_eq(flp_spec_resolve(&spec, &out), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(out.grad_weight_dtype, FLP_DTYPE_FP32);
}

#define DTYPES " (accepted: 0, spec.dtype 1, FP32 3)"
#define SOFTCAPS " (accepted: 1.18e-38 to 3.4e38, or 0 for none)"

Test(validate, spec_struct) {
  char detail[256];
  expect_refused(flp_spec_resolve(NULL, &(flp_spec){0}), "spec is NULL (accepted: a flp_spec)");
  snprintf(detail, sizeof detail,
           "spec.struct_bytes is 8 (accepted: multiples of 8 from 88 to 4096; the flp_spec of this library "
           "has %zu, start from its _INIT value)",
           sizeof(flp_spec));
  REFUSE_SPEC(spec.struct_bytes = 8, detail);
}

Test(validate, spec_dtypes) {
  REFUSE_EACH(REFUSE_SPEC, spec.dtype, "BF16 1, FP16 2, FP32 3", 0, FLP_DTYPE_INT32);
  REFUSE_SPEC(spec.target_dtype = FLP_DTYPE_BF16, "spec.target_dtype is 1 (accepted: INT32 4, INT64 5)");
  REFUSE_SPEC(spec.grad_hidden_dtype = FLP_DTYPE_FP16, "spec.grad_hidden_dtype is 2" DTYPES);
  REFUSE_SPEC(spec.grad_weight_dtype = FLP_DTYPE_INT64, "spec.grad_weight_dtype is 5" DTYPES);
  REFUSE_SPEC(spec.grad_bias_dtype = FLP_DTYPE_FP16, "spec.grad_bias_dtype is 2" DTYPES);
}

Test(validate, spec_shape) {
  REFUSE_EACH(REFUSE_SPEC, spec.vocab, "2 to 1073741824", 1, -5, 1073741825);
  REFUSE_EACH(REFUSE_SPEC, spec.hidden, "multiples of 8 from 8 to 1048576", 0, 100, -8);
  REFUSE_EACH(REFUSE_SPEC, spec.alignment, "powers of two from 2 to 16", 0, 12, 32);
  REFUSE_SPEC((spec.dtype = FLP_DTYPE_FP32, spec.alignment = 2),
              "spec.alignment is 2 (accepted: powers of two from 4 to 16)");
}

Test(validate, spec_wishes) {
  REFUSE_SPEC(spec.entropy = (flp_entropy)3, "spec.entropy is 3 (accepted: 0 to 2)");
  REFUSE_SPEC(spec.grads = 32, "spec.grads is 32 (accepted: 0 to 31)");
  REFUSE_SPEC(spec.has_bias = 0, "spec.grads has FLP_GRAD_BIAS, but spec.has_bias is 0 (accepted: 1)");
  REFUSE_SPEC(spec.has_bias = 2, "spec.has_bias is 2 (accepted: 0 to 1)");
  REFUSE_SPEC(spec.per_row_temperature = -1, "spec.per_row_temperature is -1 (accepted: 0 to 1)");
  REFUSE_SPEC(spec.accumulate_grad_weight = 7, "spec.accumulate_grad_weight is 7 (accepted: 0 to 1)");
  REFUSE_SPEC(spec.listed = 2, "spec.listed is 2 (accepted: 0 to 1)");
  REFUSE_SPEC(spec.accumulate_grad_weight = 1,
              "spec.accumulate_grad_weight is 1, but spec.grad_weight_dtype is 0 (accepted: FP32 3)");
  REFUSE_SPEC(spec.softcap = -1, "spec.softcap is -1" SOFTCAPS);
  REFUSE_SPEC(spec.softcap = NAN, "spec.softcap is nan" SOFTCAPS);
  REFUSE_SPEC(spec.softcap = 1e-40f, "spec.softcap is 9.99995e-41" SOFTCAPS);
  REFUSE_SPEC(spec.softcap = INFINITY, "spec.softcap is inf" SOFTCAPS);
}

Test(validate, operands_of_two_dtypes) {
  flp_spec spec = good_spec(), out;
  spec.weight_dtype = FLP_DTYPE_FP32;
  spec.mixed = FLP_MIXED_ROUND;
  cr_assert_eq(flp_spec_resolve(&spec, &out), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(out.hidden_dtype, FLP_DTYPE_BF16);
  cr_expect_eq(out.grad_hidden_dtype, FLP_DTYPE_BF16);
  cr_expect_eq(out.grad_weight_dtype, FLP_DTYPE_FP32);
  cr_expect_eq(out.bias_dtype, FLP_DTYPE_FP32);
  spec.mixed = FLP_MIXED_SPLIT;
  cr_assert_eq(flp_spec_resolve(&spec, &out), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(out.bias_dtype, FLP_DTYPE_BF16);
  REFUSE_SPEC(spec.mixed = (flp_mixed)3, "spec.mixed is 3 (accepted: 0 to 2)");
  REFUSE_SPEC(spec.mixed = FLP_MIXED_ROUND,
              "spec.mixed is 1, but no operand is wider than spec.dtype bf16 (accepted: 0)");
  REFUSE_SPEC(spec.weight_dtype = FLP_DTYPE_FP16, "spec.weight_dtype is 2" DTYPES);
  REFUSE_SPEC(spec.hidden_dtype = (flp_dtype)7, "spec.hidden_dtype is 7" DTYPES);
  REFUSE_SPEC(spec.weight_dtype = FLP_DTYPE_FP32,
              "spec.weight_dtype is fp32 and spec.dtype bf16, but spec.mixed is 0 (accepted: FLP_MIXED_ROUND 1, "
              "FLP_MIXED_SPLIT 2)");
  REFUSE_SPEC((spec.mixed = FLP_MIXED_ROUND, spec.hidden_dtype = spec.weight_dtype = FLP_DTYPE_FP32),
              "spec.weight_dtype is fp32, and spec.hidden_dtype too, but spec.dtype is bf16 (accepted: one of both, or "
              "spec.dtype FP32 3)");
  REFUSE_SPEC((spec.mixed = FLP_MIXED_SPLIT, spec.weight_dtype = spec.bias_dtype = FLP_DTYPE_FP32),
              "spec.bias_dtype is fp32, but spec.mixed is FLP_MIXED_SPLIT 2 (accepted: 0, 1)");
}

/* ---- options ---- */

static void no_environment(void) {
  unsetenv("FLP_FORCE");
  unsetenv("FLP_STRICT");
  unsetenv("FLP_BUDGET");
}

#define REFUSE_OPTIONS(assignment, sentence)                                   \
  do {                                                                         \
    flp_options options = FLP_OPTIONS_INIT, out;                               \
    assignment;                                                                \
    expect_refused(flp_options_resolve(&options, &out), sentence);             \
  } while (0)


static flp_options resolve_options(const flp_options *options) {
  flp_options out;
  cr_assert_eq(flp_options_resolve(options, &out), FLP_OK, "%s", flp_error_detail());
  return out;
}

Test(validate, options_have_defaults) {
  no_environment();
  flp_options out = resolve_options(NULL);
  cr_expect_eq(out.device, 0);
  cr_expect_eq(out.rung, FLP_RUNG_AUTO);
  cr_expect_eq(out.strict, 0);
  cr_expect_eq(out.budget_bytes, 0);
}

Test(validate, options_fields) {
  no_environment();
  char detail[256];
  snprintf(detail, sizeof detail,
           "options.struct_bytes is 0 (accepted: multiples of 8 from 64 to 4096; the flp_options of this library "
           "has %zu, start from its _INIT value)",
           sizeof(flp_options));
  REFUSE_OPTIONS(options.struct_bytes = 0, detail);
  REFUSE_OPTIONS(options.device = -2, "options.device is -2 (accepted: -1 to 1023)");
  REFUSE_OPTIONS(options.rung = (flp_rung)6, "options.rung is 6 (accepted: 0 to 5)");
  REFUSE_OPTIONS(options.strict = 2, "options.strict is 2 (accepted: 0 to 1)");
  REFUSE_OPTIONS(options.host_fallback = 3, "options.host_fallback is 3 (accepted: 0 to 1)");
  REFUSE_OPTIONS(options.chunk_rows = -1, "options.chunk_rows is -1 (accepted: 0 to 1073741824)");
  REFUSE_EACH(REFUSE_OPTIONS, options.mode, "0, FLP_MODE_RECOMPUTE_VOCAB 2 to FLP_MODE_DIRECTION 7, FLP_MODE_TAIL 9",
              FLP_MODE_SCORE, 8);
  REFUSE_OPTIONS(options.chunk_vocab = -1, "options.chunk_vocab is -1 (accepted: 0 to 1073741824)");
  REFUSE_OPTIONS(options.threads = -1, "options.threads is -1 (accepted: 0 to 4096)");
  REFUSE_OPTIONS((options.device = FLP_DEVICE_HOST, options.rung = FLP_RUNG_JIT),
                 "options.rung is jit, but options.device is FLP_DEVICE_HOST (accepted: auto, eager)");
}

Test(validate, the_environment_is_merged) {
  no_environment();
  setenv("FLP_FORCE", "generic", 1);
  setenv("FLP_STRICT", "1", 1);
  setenv("FLP_BUDGET", "64M", 1);
  flp_options out = resolve_options(NULL);
  cr_expect_eq(out.rung, FLP_RUNG_GENERIC);
  cr_expect_eq(out.strict, 1);
  cr_expect_eq(out.budget_bytes, (uint64_t)64 << 20);
  flp_options options = FLP_OPTIONS_INIT;
  options.rung = FLP_RUNG_JIT;
  options.budget_bytes = 5;
  out = resolve_options(&options);
  cr_expect_eq(out.rung, FLP_RUNG_JIT, "the caller's word comes first");
  cr_expect_eq(out.budget_bytes, 5);
  options.rung = FLP_RUNG_AUTO;
  options.device = FLP_DEVICE_HOST;
  cr_expect_eq(resolve_options(&options).rung, FLP_RUNG_EAGER, "host pointers have one rung");
}

Test(validate, budgets_of_the_environment) {
  no_environment();
  static const struct {
    const char *text;
    uint64_t bytes;
  } good[] = {{"1", 1},
              {"4096", 4096},
              {"3K", 3072},
              {"3KiB", 3072},
              {"2G", (uint64_t)2 << 30},
              {"1.5G", (uint64_t)3 << 29},
              {"0.1GiB", 107374182},
              {"2.9", 2},
              {"1T", (uint64_t)1 << 40},
              {"1.25TiB", (uint64_t)5 << 38},
              {"8388607.9999999999999999T", (uint64_t)INT64_MAX},
              {"", 0}};
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    setenv("FLP_BUDGET", good[i].text, 1);
    cr_expect_eq(resolve_options(NULL).budget_bytes, good[i].bytes, "%s", good[i].text);
  }
  static const char *const bad[] = {
      "0",   "0.5", "-1",  "+1", "x",   "K",   "1GB",   "1Ki",  "1KiBs",    "1k", "1P", " 1",
      "1 G", "1.",  ".5G", "1.G", "1e9", "0x10", "inf", "nan", "99999999999999999999", "99999999999G", "8388608T"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    setenv("FLP_BUDGET", bad[i], 1);
    char detail[256];
    snprintf(detail, sizeof detail,
             "FLP_BUDGET is \"%s\" (accepted: bytes >= 1, decimal, a fraction too, with or without a suffix K, M, G, "
             "T or KiB, MiB, GiB, TiB (1024 each))",
             bad[i]);
    REFUSE_OPTIONS((void)0, detail);
  }
}

/* Where commas part fractions, points still do here. */
Test(validate, bytes_do_not_depend_on_the_locale) {
  uint64_t bytes;
  setlocale(LC_ALL, "de_DE.UTF-8"); /* where it is not installed, the test shows little */
  cr_expect_eq(flp_bytes_parse("x", "1.5K", 1, &bytes), FLP_OK);
  cr_expect_eq(bytes, 1536);
  cr_expect_eq(flp_bytes_parse("x", "1,5K", 1, &bytes), FLP_ERROR_ARGUMENT);
  cr_expect_eq(bytes, 0);
  cr_expect_eq(flp_bytes_parse("x", "0", 0, &bytes), FLP_OK);
  cr_expect_eq(flp_bytes_parse("x", NULL, 0, &bytes), FLP_ERROR_ARGUMENT);
}

Test(validate, what_is_in_force) {
  no_environment();
  flp_rung rung;
  int32_t strict;
  uint64_t budget;
  cr_assert_eq(flp_options_in_force(NULL, FLP_PASS_FORWARD, &rung, &strict, &budget), FLP_OK);
  cr_expect(rung == FLP_RUNG_AUTO && strict == 0 && budget == (uint64_t)256 << 20);
  cr_assert_eq(flp_options_in_force(NULL, FLP_PASS_BACKWARD, NULL, NULL, &budget), FLP_OK);
  cr_expect_eq(budget, (uint64_t)1 << 30);
  setenv("FLP_FORCE", "generic", 1);
  setenv("FLP_STRICT", "1", 1);
  setenv("FLP_BUDGET", "3M", 1);
  cr_assert_eq(flp_options_in_force(NULL, FLP_PASS_STEP, &rung, &strict, &budget), FLP_OK);
  cr_expect(rung == FLP_RUNG_GENERIC && strict == 1 && budget == (uint64_t)3 << 20);
  flp_options options = FLP_OPTIONS_INIT;
  options.rung = FLP_RUNG_JIT;
  options.budget_bytes = 77;
  cr_assert_eq(flp_options_in_force(&options, FLP_PASS_STEP, &rung, NULL, &budget), FLP_OK);
  cr_expect(rung == FLP_RUNG_JIT && budget == 77, "options come first");
  expect_refused(flp_options_in_force(NULL, (flp_pass)0, NULL, NULL, NULL), "pass is 0 (accepted: 1 to 6)");
  setenv("FLP_STRICT", "maybe", 1);
  expect_refused(flp_options_in_force(NULL, FLP_PASS_FORWARD, NULL, NULL, NULL),
                 "FLP_STRICT is \"maybe\" (accepted: 0, 1)");
}

Test(validate, misspelt_environment) {
  no_environment();
  setenv("FLP_FORCE", "eagre", 1);
  REFUSE_OPTIONS((void)0, "FLP_FORCE is \"eagre\" (accepted: tuned, heuristic, jit, generic, eager)");
  setenv("FLP_FORCE", "auto", 1);
  REFUSE_OPTIONS((void)0, "FLP_FORCE is \"auto\" (accepted: tuned, heuristic, jit, generic, eager)");
  unsetenv("FLP_FORCE");
  setenv("FLP_STRICT", "yes", 1);
  REFUSE_OPTIONS((void)0, "FLP_STRICT is \"yes\" (accepted: 0, 1)");
}

/* ---- arguments ---- */

static flp_args good_args(flp_pass pass) {
  flp_args args = FLP_ARGS_INIT;
  args.pass = pass;
  args.n = 10;
  args.hidden = AT(1);
  args.weight = AT(2);
  args.bias = AT(3);
  args.target = AT(4);
  args.stats = AT(5);
  args.workspace = AT(6);
  args.workspace_bytes = 1024;
  args.grad_logprob = AT(7);
  args.grad_hidden = AT(8);
  args.grad_weight = AT(9);
  args.grad_bias = AT(10);
  if (pass != FLP_PASS_BACKWARD) args.logprob = AT(11);
  if (pass == FLP_PASS_COMBINE) {
    args.partial = AT(12);
    args.shard_count = 4;
    args.vocab_total = 4000;
  }
  return args;
}

#define STRIDES " (accepted: 0 for dense, or at least spec.hidden 64)"
#define BYTES_16 " (accepted: multiples of 16 bytes, the larger of element and spec.alignment)"
#define SCALES " (accepted: 0, or magnitudes from 1.18e-38 to 3.4e38)"
#define TEMPERATURES " (accepted: 1.18e-38 to 3.4e38)"
#define OF_A_SHARD " is given, but the call covers a vocab shard, which does not know the other columns"

#define REFUSE_FORWARD(assignment, sentence) REFUSE(FORWARD, assignment, sentence)

#define REFUSE_COMBINE(assignment, sentence) REFUSE(COMBINE, assignment, sentence)

Test(validate, args_resolve) {
  flp_spec given = good_spec(), spec;
  cr_assert_eq(flp_spec_resolve(&given, &spec), FLP_OK, "%s", flp_error_detail());
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_BACKWARD; pass++) {
    flp_args args = good_args((flp_pass)pass), out;
    cr_assert_eq(flp_args_resolve(&spec, &args, &out), FLP_OK, "%s", flp_error_detail());
    cr_expect_eq(out.vocab_valid, 1000);
    cr_expect_eq(out.vocab_total, pass == FLP_PASS_COMBINE ? 4000 : 1000);
    if (pass == FLP_PASS_COMBINE) continue;
    cr_expect_eq(out.hidden_stride, 64);
    cr_expect_eq(out.weight_stride, 64);
  }
}

Test(validate, args_head) {
  expect_refused(resolve_args(good_spec(), NULL), "args is NULL (accepted: a flp_args)");
  char detail[256];
  snprintf(detail, sizeof detail,
           "args.struct_bytes is 4 (accepted: multiples of 8 from 392 to 4096; the flp_args of this library "
           "has %zu, start from its _INIT value)",
           sizeof(flp_args));
  REFUSE(FORWARD, args.struct_bytes = 4, detail);
  REFUSE(FORWARD, args.pass = (flp_pass)0,
         "args.pass is 0 (accepted: FORWARD 1, COMBINE 2, BACKWARD 3; flp_step runs STEP 4)");
  REFUSE(FORWARD, args.pass = (flp_pass)4,
         "args.pass is 4 (accepted: FORWARD 1, COMBINE 2, BACKWARD 3; flp_step runs STEP 4)");
  REFUSE_EACH(REFUSE_FORWARD, args.n, "0 to 1073741824", -1, (int64_t)1 << 31);
}

Test(validate, args_operands) {
  REFUSE(FORWARD, args.hidden = NULL, "args.hidden is NULL, but the pass reads it");
  REFUSE(BACKWARD, args.weight = NULL, "args.weight is NULL, but the pass reads it");
  REFUSE(FORWARD, args.bias = NULL, "args.bias is NULL, but spec.has_bias is 1");
  REFUSE(FORWARD, (spec.has_bias = 0, spec.grads = 3), "args.bias is given, but spec.has_bias is 0");
  REFUSE(FORWARD, args.target = NULL, "args.target is NULL, but every pass needs the targets");
  REFUSE(FORWARD, args.target = (char *)AT(4) + 4, "args.target is 0x40004 (accepted: multiples of 8 bytes)");
  REFUSE(FORWARD, args.bias = (char *)AT(3) + 1, "args.bias is 0x30001 (accepted: multiples of 2 bytes)");
}

Test(validate, args_alignment_and_strides) {
  REFUSE(FORWARD, args.hidden = (char *)AT(1) + 2, "args.hidden is 0x10002" BYTES_16);
  REFUSE(FORWARD, (spec.alignment = 2, args.hidden = (char *)AT(1) + 1),
         "args.hidden is 0x10001 (accepted: multiples of 2 bytes, the larger of element and spec.alignment)");
  REFUSE(FORWARD, args.hidden_stride = 63, "args.hidden_stride is 63" STRIDES);
  REFUSE(FORWARD, args.weight_stride = -64, "args.weight_stride is -64" STRIDES);
  REFUSE(FORWARD, args.hidden_stride = 65, "args.hidden_stride is 65 elements of bf16" BYTES_16);
  REFUSE(FORWARD, args.hidden_stride = INT64_MAX / 8,
         "args.hidden_stride is 1152921504606846975 (accepted: at most 2^63 - 1 bytes in all 10 rows)");
  REFUSE(BACKWARD, args.grad_weight_stride = 8, "args.grad_weight_stride is 8" STRIDES);
  REFUSE(BACKWARD, args.grad_hidden = (char *)AT(8) + 8, "args.grad_hidden is 0x80008" BYTES_16);
  ACCEPT(FORWARD, (spec.alignment = 2, args.hidden_stride = 65, args.hidden = (char *)AT(1) + 2));
  ACCEPT(FORWARD, args.hidden_stride = 72);
  REFUSE(BACKWARD, (spec.alignment = 2, spec.grad_weight_dtype = FLP_DTYPE_FP32, args.grad_weight = (char *)AT(9) + 2),
         "args.grad_weight is 0x90002 (accepted: multiples of 4 bytes, the larger of element and spec.alignment)");
}

Test(validate, args_scales) {
  REFUSE(FORWARD, args.scale = NAN, "args.scale is nan" SCALES);
  REFUSE(FORWARD, args.scale = INFINITY, "args.scale is inf" SCALES);
  REFUSE(COMBINE, args.scale = -1e-40f, "args.scale is -9.99995e-41" SCALES);
  REFUSE(FORWARD, args.temperature = 0, "args.temperature is 0" TEMPERATURES);
  REFUSE(BACKWARD, args.temperature = -1, "args.temperature is -1" TEMPERATURES);
  REFUSE(COMBINE, args.temperature = NAN, "args.temperature is nan" TEMPERATURES);
  REFUSE(FORWARD, args.temperature = INFINITY, "args.temperature is inf" TEMPERATURES);
  REFUSE(FORWARD, args.temperature = 1e-40f, "args.temperature is 9.99995e-41" TEMPERATURES);
  REFUSE(FORWARD, args.temperature_rows = AT(20), "args.temperature_rows is given, but spec.per_row_temperature is 0");
  REFUSE(FORWARD, spec.per_row_temperature = 1, "args.temperature_rows is NULL, but spec.per_row_temperature is 1");
  ACCEPT(FORWARD, (spec.per_row_temperature = 1, args.temperature_rows = AT(20), args.temperature = 0));
  ACCEPT(FORWARD, (args.temperature = 1e-3f, args.scale = -2));
}

#define NORMAL(product) " (accepted: values for which " product "·log2(e) is a normal number of fp32)"
#define CAP " (accepted: 0, or scales for which 2·scale/softcap is a normal number of fp32)"

/* What kernels make of numbers that are fine alone is neither infinite nor flushed to 0. */
Test(validate, args_products_of_scales) {
  REFUSE(FORWARD, (args.temperature = 1e-10f, args.scale = 1e30f), "args.temperature is 1e-10" NORMAL("scale/T"));
  REFUSE(BACKWARD, (args.temperature = 1e30f, args.scale = -1e-10f), "args.temperature is 1e+30" NORMAL("scale/T"));
  REFUSE(COMBINE, (spec.softcap = 1e30f, args.temperature = 1e-10f), "args.temperature is 1e-10" NORMAL("softcap/T"));
  REFUSE(FORWARD, (spec.softcap = 1e-20f, args.temperature = 1e20f), "args.temperature is 1e+20" NORMAL("softcap/T"));
  REFUSE(FORWARD, (spec.per_row_temperature = 1, args.temperature_rows = AT(20), args.scale = 3e38f),
         "args.scale is 3e+38" NORMAL("scale"));
  REFUSE(FORWARD, (spec.per_row_temperature = 1, args.temperature_rows = AT(20), spec.softcap = 3e38f, args.scale = 30),
         "spec.softcap is 3e+38" NORMAL("softcap"));
  REFUSE(FORWARD, (spec.softcap = 1e-20f, args.scale = 1e20f), "args.scale is 1e+20 while spec.softcap is 1e-20" CAP);
  REFUSE(FORWARD, (spec.softcap = 9e20f, args.scale = 1e-20f), "args.scale is 1e-20 while spec.softcap is 9e+20" CAP);
  ACCEPT(FORWARD, args.scale = 0);
  ACCEPT(FORWARD, (spec.softcap = 1e-30f, args.scale = 0, args.temperature = 1e-4f));
  ACCEPT(FORWARD, (args.scale = 1e30f, args.temperature = 1e30f));
}

Test(validate, args_rows) {
  REFUSE(FORWARD, args.row_count = -1, "args.row_count is -1 (accepted: 0 to 1073741824)");
  REFUSE(FORWARD, args.row_count = 3, "args.rows is NULL, but args.row_count is not 0");
  REFUSE(FORWARD, args.rows = (int32_t *)0x50002, "args.rows is 0x50002 (accepted: multiples of 4 bytes)");
  ACCEPT(FORWARD, args.rows = AT(21)); /* the empty set */
}

Test(validate, args_shard) {
  REFUSE(FORWARD, args.vocab_offset = -1, "args.vocab_offset is -1 (accepted: 0 or more)");
  REFUSE_EACH(REFUSE_FORWARD, args.vocab_valid, "0 for all, or 1 to spec.vocab 1000", 1001, -1);
  REFUSE(FORWARD, args.vocab_offset = INT64_MAX,
         "args.vocab_offset is 9223372036854775807 (accepted: at most 2^63 - 1 - vocab_valid)");
  REFUSE(FORWARD, args.vocab_total = 999,
         "args.vocab_total is 999 (accepted: 0, or at least vocab_offset + vocab_valid, 1000)");
  REFUSE(FORWARD, args.vocab_total = 2000, "args.logprob" OF_A_SHARD);
  REFUSE(FORWARD, (args.vocab_offset = 8, args.logprob = NULL), "args.stats" OF_A_SHARD);
  REFUSE(FORWARD, (args.vocab_offset = 8, args.logprob = NULL, args.stats = NULL),
         "args.partial is NULL, but the call covers a vocab shard, which writes it");
  ACCEPT(FORWARD, (args.vocab_offset = 8, args.logprob = NULL, args.stats = NULL, args.partial = AT(12)));
  ACCEPT(FORWARD, (args.vocab_valid = 900, args.partial = AT(12))); /* a whole head with padding gives both */
}

Test(validate, args_forward_outputs) {
  REFUSE(FORWARD, args.logprob = args.stats = NULL,
         "args.logprob, entropy, stats and partial are all NULL (accepted: at least one)");
  REFUSE(FORWARD, (spec.entropy = FLP_ENTROPY_NONE, args.entropy = AT(13)),
         "args.entropy is given, but spec.entropy is FLP_ENTROPY_NONE");
  REFUSE(FORWARD, args.stats = (float *)0x50008, "args.stats is 0x50008 (accepted: multiples of 16 bytes)");
}

Test(validate, args_combine) {
  REFUSE_EACH(REFUSE_COMBINE, args.shard_count, "1 to 65536", 0, 65537);
  REFUSE(COMBINE, args.partial = NULL, "args.partial is NULL, but the combine pass reads it");
  REFUSE(COMBINE, args.vocab_total = 0,
         "args.vocab_total is 0, but a combine of 4 shards needs the size of the whole vocabulary");
  REFUSE(COMBINE, (args.logprob = NULL, args.stats = NULL),
         "args.logprob, entropy and stats are all NULL (accepted: at least one)");
  ACCEPT(COMBINE, (args.hidden = NULL, args.weight = NULL, args.bias = NULL));
}

Test(validate, args_backward) {
  REFUSE(BACKWARD, spec.grads = 0, "args.pass is FLP_PASS_BACKWARD, but spec.grads is 0 (accepted: FLP_GRAD_* bits)");
  REFUSE(BACKWARD, args.grad_logprob = NULL,
         "args.grad_logprob and args.grad_entropy are both NULL (accepted: at least one)");
  REFUSE(BACKWARD, (spec.entropy = FLP_ENTROPY_FORWARD, args.grad_entropy = AT(14)),
         "args.grad_entropy is given, but spec.entropy is not FLP_ENTROPY_BACKWARD");
  REFUSE(BACKWARD, args.stats = NULL, "args.stats is NULL, but the backward pass reads it");
  REFUSE(BACKWARD, args.grad_hidden = NULL, "args.grad_hidden is NULL, but spec.grads has FLP_GRAD_HIDDEN");
  REFUSE(BACKWARD, args.grad_weight = NULL, "args.grad_weight is NULL, but spec.grads has FLP_GRAD_WEIGHT");
  REFUSE(BACKWARD, args.grad_bias = NULL, "args.grad_bias is NULL, but spec.grads has FLP_GRAD_BIAS");
  REFUSE(BACKWARD, spec.grads = FLP_GRAD_WEIGHT | FLP_GRAD_BIAS,
         "args.grad_hidden is given, but spec.grads lacks FLP_GRAD_HIDDEN");
  ACCEPT(BACKWARD, (args.grad_logprob = NULL, args.grad_entropy = AT(14)));
  ACCEPT(BACKWARD, args.grad_bias = (char *)AT(10) + 2);
  REFUSE(BACKWARD, (spec.grad_bias_dtype = FLP_DTYPE_FP32, args.grad_bias = (char *)AT(10) + 2),
         "args.grad_bias is 0xa0002 (accepted: multiples of 4 bytes)");
}

Test(validate, args_workspace) {
  REFUSE(FORWARD, args.workspace = NULL, "args.workspace is NULL, but args.workspace_bytes is not 0");
  REFUSE(FORWARD, args.workspace = (char *)AT(6) + 128, "args.workspace is 0x60080 (accepted: multiples of 256 bytes)");
}

/* Empty tensors have no address in many hosts. */
Test(validate, no_rows_need_no_pointers) {
  const flp_args empty = FLP_ARGS_INIT;
  ACCEPT(FORWARD, args = empty);
  ACCEPT(COMBINE, (args = empty, args.pass = FLP_PASS_COMBINE, args.shard_count = 1));
  REFUSE(BACKWARD, (args = empty, args.pass = FLP_PASS_BACKWARD),
         "args.grad_weight is NULL, but spec.grads has FLP_GRAD_WEIGHT");
  ACCEPT(BACKWARD, (args = empty, args.pass = FLP_PASS_BACKWARD, args.grad_weight = AT(9), args.grad_bias = AT(10)));
}
