/* test_scale.c: flp_scale: what it refuses, what it launches, and what it computes on the CPU. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/half.h"
#include "runtime/kernel/abi.h"
#include "tests/unit/support/refuse.h"
#include "tests/unit/support/stage.h"

static flp_spec good_spec(void) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.op = FLP_OP_SCALE;
  spec.vocab = 1000;
  return spec;
}

Test(scale, specs) {
  flp_spec spec = good_spec(), out;
  static const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32};
  for (int i = 0; i < 3; i++) {
    spec.dtype = dtypes[i];
    cr_expect_eq(flp_spec_resolve(&spec, &out), FLP_OK, "%s", flp_error_detail());
  }
  REFUSE_SPEC(spec.dtype = FLP_DTYPE_FP64, "spec.dtype is 6 (accepted: BF16 1, FP16 2, FP32 3)");
  REFUSE_SPEC(spec.hidden = 64, "spec.hidden is not 0, but spec.op is FLP_OP_SCALE (accepted: 0)");
  REFUSE_SPEC(spec.grads = 1, "spec.grads is not 0, but spec.op is FLP_OP_SCALE (accepted: 0)");
  REFUSE_SPEC(spec.entropy = FLP_ENTROPY_FORWARD,
              "spec.entropy is not NONE, but spec.op is FLP_OP_SCALE (accepted: NONE)");
}

/* ---- arguments ---- */

static flp_scale_args good_args(void) {
  flp_scale_args a = FLP_SCALE_ARGS_INIT;
  a.n = 5003;
  a.values = STAGE_AT(1);
  a.factor = STAGE_AT(2);
  return a;
}

#define REFUSE_ARGS(assignment, part)                                         \
  do {                                                                        \
    flp_scale_args a = good_args(), resolved;                                 \
    assignment;                                                               \
    expect_refused_with(flp_scale_args_resolve(&spec, &a, &resolved), part);  \
  } while (0)

Test(scale, arguments) {
  flp_spec given = good_spec(), spec;
  cr_assert_eq(flp_spec_resolve(&given, &spec), FLP_OK);
  flp_scale_args a = good_args(), out;
  cr_assert_eq(flp_scale_args_resolve(&spec, &a, &out), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(out.values_stride, 1000);
  expect_refused(flp_scale_args_resolve(&spec, NULL, &out), "args is NULL (accepted: a flp_scale_args)");
  REFUSE_ARGS(a.n = -1, "args.n is -1 (accepted: 0 to ");
  REFUSE_ARGS(a.reserved = 3, "args.reserved is 3 (accepted: 0)");
  REFUSE_ARGS(a.values = NULL, "args.values is NULL, but n is 5003");
  REFUSE_ARGS(a.values = (char *)STAGE_AT(1) + 2, "args.values is ");
  REFUSE_ARGS(a.values_stride = 999, "args.values_stride is 999 (accepted: 0 for dense, or at least spec.vocab 1000)");
  REFUSE_ARGS(a.values_stride = 1001, "with a stride of 1001 elements");
  REFUSE_ARGS(a.factor = NULL, "args.factor is NULL, but n is 5003");
  REFUSE_ARGS(a.factor = (const float *)((char *)STAGE_AT(2) + 2), "args.factor is ");
  a = (flp_scale_args)FLP_SCALE_ARGS_INIT; /* no rows: nothing is looked at */
  cr_expect_eq(flp_scale_args_resolve(&spec, &a, &out), FLP_OK, "%s", flp_error_detail());
}

/* ---- launches ---- */

Test(scale, launches) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = good_spec();
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_scale_args a = good_args();
  a.values_stride = 1024;
  a.stream = STAGE_STREAM;
  s.reset();
  cr_assert_eq(flp_scale(plan, &a), FLP_OK, "%s", flp_error_detail());
  stage_expect_sequence(&s, "scale");
  stage_expect_capturable(&s);
  const fake_launch *l = s.launch_at(0);
  cr_expect_lt(l->grid, 5003, "CTAs take rows in turn");
  cr_expect_eq(l->stream, STAGE_STREAM);
  flp_scale_params p = STAGE_PARAMS(flp_scale_params, l);
  cr_expect_eq(p.values, stage_address(STAGE_AT(1)));
  cr_expect_eq(p.values_stride, 1024);
  cr_expect_eq(p.n, 5003);
  cr_expect_eq(p.columns, 1000);
  cr_expect_eq(p.factor, stage_address(STAGE_AT(2)));
  a.n = 3;
  s.reset();
  cr_assert_eq(flp_scale(plan, &a), FLP_OK);
  cr_expect_eq(s.launch_at(0)->grid, 3);
  a.n = 0;
  s.reset();
  cr_assert_eq(flp_scale(plan, &a), FLP_OK);
  stage_expect_sequence(&s, "");
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_FORWARD, 10, 0, &layout), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(layout.bytes, 0);
  cr_expect_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, 10, 0, &layout), FLP_ERROR_ARGUMENT);
  flp_args others = FLP_ARGS_INIT;
  expect_refused_with(flp_execute(plan, &others), "flp_scale runs it");
  flp_plan_destroy(plan);
}

/* ---- on the CPU ---- */

Test(scale, eager) {
  flp_spec spec = good_spec();
  spec.vocab = 3;
  spec.dtype = FLP_DTYPE_BF16;
  spec.alignment = 2;
  flp_options host = FLP_OPTIONS_INIT;
  host.device = FLP_DEVICE_HOST;
  flp_plan *plan;
  cr_assert_eq(flp_plan_create(&spec, &host, &plan), FLP_OK, "%s", flp_error_detail());
  float given[] = {1, -2, NAN, 7, 0.3f, INFINITY, -0.0f, 5}; /* a gap behind each row of three */
  uint16_t values[8], before[8];
  float factors[] = {1, 1.0f / 3};
  flp_half_narrow(FLP_DTYPE_BF16, given, 8, values);
  memcpy(before, values, sizeof before);
  flp_scale_args a = FLP_SCALE_ARGS_INIT;
  a.n = 2;
  a.values = values;
  a.values_stride = 4;
  a.factor = &factors[0];
  cr_assert_eq(flp_scale(plan, &a), FLP_OK, "%s", flp_error_detail());
  cr_expect_arr_eq(values, before, sizeof before);
  a.factor = &factors[1];
  cr_assert_eq(flp_scale(plan, &a), FLP_OK);
  for (int i = 0; i < 8; i++) {
    float was = flp_half_from_bf16(before[i]), is = flp_half_from_bf16(values[i]);
    float want = i % 4 == 3 ? was : flp_half_from_bf16(flp_half_to_bf16(was * factors[1]));
    cr_expect(isnan(was) ? isnan(is) : is == want, "%d: %g", i, (double)is);
  }
  flp_plan_destroy(plan);
}
