/* test_mixed.c: specs whose operands have two dtypes: what they resolve to, and what is refused. */
#include "tests/unit/support/refuse.h"

static flp_spec good_spec(void) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.vocab = 1000;
  spec.hidden = 64;
  return spec;
}

Test(mixed, operands_of_two_dtypes) {
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
  REFUSE_SPEC(spec.weight_dtype = FLP_DTYPE_FP16, "spec.weight_dtype is 2 (accepted: 0, spec.dtype 1, FP32 3)");
  REFUSE_SPEC(spec.hidden_dtype = (flp_dtype)7, "spec.hidden_dtype is 7 (accepted: 0, spec.dtype 1, FP32 3)");
  REFUSE_SPEC(spec.weight_dtype = FLP_DTYPE_FP32,
              "spec.weight_dtype is fp32 and spec.dtype bf16, but spec.mixed is 0 (accepted: FLP_MIXED_ROUND 1, "
              "FLP_MIXED_SPLIT 2)");
  REFUSE_SPEC((spec.mixed = FLP_MIXED_ROUND, spec.hidden_dtype = spec.weight_dtype = FLP_DTYPE_FP32),
              "spec.weight_dtype is fp32, and spec.hidden_dtype too, but spec.dtype is bf16 (accepted: one of both, or "
              "spec.dtype FP32 3)");
  REFUSE_SPEC((spec.mixed = FLP_MIXED_SPLIT, spec.weight_dtype = spec.bias_dtype = FLP_DTYPE_FP32),
              "spec.bias_dtype is fp32, but spec.mixed is FLP_MIXED_SPLIT 2 (accepted: 0, 1)");
}
