/* test_lora.c: spec.lora_rank at the API: which specs and arguments are refused, with which sentence, and what
 * descriptions and ids say. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/plan/plan.h"
#include "tests/unit/support/refuse.h"

enum { ALL = FLP_GRAD_HIDDEN | FLP_GRAD_LORA_A | FLP_GRAD_LORA_B };

static flp_spec lora_spec(int rank, uint32_t grads) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.vocab = 40;
  spec.hidden = 16;
  spec.lora_rank = rank;
  spec.grads = grads;
  return spec;
}

static flp_spec good_spec(void) {
  return lora_spec(8, ALL);
}

Test(lora, specs_that_are_taken) {
  flp_spec out;
  for (int rank = 0; rank <= FLP_LORA_RANK_MAX; rank += 8) {
    flp_spec spec = lora_spec(rank, rank ? ALL : FLP_GRAD_HIDDEN);
    cr_assert_eq(flp_spec_resolve(&spec, &out), FLP_OK, "%s", flp_error_detail());
    cr_expect(out.lora_rank == rank && out.grad_lora_dtype == FLP_DTYPE_BF16);
  }
}

Test(lora, specs_that_are_refused) {
  const int ranks[] = {-8, 4, 9, 520};
  for (int i = 0; i < 4; i++) {
    char sentence[128];
    snprintf(sentence, sizeof sentence,
             "spec.lora_rank is %d (accepted: 0 for none, or multiples of 8 from 8 to 512)", ranks[i]);
    expect_refused(resolve_spec(lora_spec(ranks[i], 0)), sentence);
  }
  expect_refused(resolve_spec(lora_spec(0, FLP_GRAD_LORA_A)),
                 "spec.grads has FLP_GRAD_LORA_A, but spec.lora_rank is 0 (accepted: multiples of 8 to 512)");
  expect_refused(resolve_spec(lora_spec(0, FLP_GRAD_HIDDEN | FLP_GRAD_LORA_B)),
                 "spec.grads has FLP_GRAD_LORA_B, but spec.lora_rank is 0 (accepted: multiples of 8 to 512)");
  expect_refused(resolve_spec(lora_spec(8, FLP_GRAD_WEIGHT)),
                 "spec.grads has FLP_GRAD_WEIGHT, but spec.lora_rank is 8 (accepted: a frozen weight: HIDDEN, BIAS, "
                 "LORA_A, LORA_B)");
  expect_refused(resolve_spec(lora_spec(8, 32)), "spec.grads is 32 (accepted: 0 to 31)");
  REFUSE_SPEC(spec.grad_lora_dtype = FLP_DTYPE_FP16, "spec.grad_lora_dtype is 2 (accepted: 0, spec.dtype 1, FP32 3)");
}

/* ---- arguments ---- */

static flp_args good_args(flp_pass pass) {
  flp_args args = FLP_ARGS_INIT;
  args.pass = pass;
  args.n = 2;
  args.hidden = args.weight = args.target = args.lora_a = args.lora_b = AT(1);
  args.lora_scale = 1;
  if (pass == FLP_PASS_FORWARD) args.logprob = AT(2);
  if (pass == FLP_PASS_BACKWARD) args.grad_logprob = args.stats = AT(2), args.grad_lora_a = AT(3);
  return args;
}

Test(lora, arguments_that_are_refused) {
  REFUSE(FORWARD, spec = lora_spec(0, 0), "args.lora_a is given, but spec.lora_rank is 0");
  REFUSE(FORWARD, (spec = lora_spec(0, 0), args.lora_a = args.lora_b = NULL, args.lora_scale = 2),
         "args.lora_scale is 2, but spec.lora_rank is 0 (accepted: 0)");
  REFUSE(FORWARD, args.lora_b = NULL, "args.lora_b is NULL, but spec.lora_rank is not 0");
  REFUSE(FORWARD, args.lora_b_stride = 4,
         "args.lora_b_stride is 4 (accepted: 0 for dense, or at least spec.lora_rank 8)");
  REFUSE(FORWARD, args.lora_a_stride = 8,
         "args.lora_a_stride is 8 (accepted: 0 for dense, or at least spec.hidden 16)");
  REFUSE(FORWARD, args.lora_a_stride = 20,
         "args.lora_a_stride is 20 elements of bf16 (accepted: multiples of 16 bytes, the larger of element and "
         "spec.alignment)");
  REFUSE(BACKWARD, (spec.grads = FLP_GRAD_LORA_A, args.grad_lora_a = NULL),
         "args.grad_lora_a is NULL, but spec.grads has FLP_GRAD_LORA_A");
  REFUSE(BACKWARD, (spec.grads = FLP_GRAD_LORA_A, args.grad_lora_b = AT(3)),
         "args.grad_lora_b is given, but spec.grads lacks FLP_GRAD_LORA_B");
  REFUSE(BACKWARD, (spec.grads -= FLP_GRAD_HIDDEN, args.grad_lora_b = AT(3), args.grad_lora_b_stride = 2),
         "args.grad_lora_b_stride is 2 (accepted: 0 for dense, or at least spec.lora_rank 8)");
  expect_refused_with(ARGS_WITH(FORWARD, args.lora_scale = 1.0f / 0.0f),
                      "args.lora_scale is inf (accepted: 0, or magnitudes from ");
}

Test(lora, strides_are_filled_in) {
  flp_spec given = good_spec(), spec;
  flp_args args = good_args(FLP_PASS_FORWARD), out;
  cr_assert_eq(flp_spec_resolve(&given, &spec), FLP_OK);
  args.lora_scale = 0;
  cr_assert_eq(flp_args_resolve(&spec, &args, &out), FLP_OK, "%s", flp_error_detail());
  cr_expect(out.lora_a_stride == 16 && out.lora_b_stride == 8);
}

/* ---- plans ---- */

Test(lora, descriptions_and_ids_name_the_rank) {
  char text[4096], ids[3][17];
  for (int i = 0; i < 3; i++) {
    flp_spec spec = lora_spec(8 * i, i ? ALL : FLP_GRAD_HIDDEN);
    flp_options options = FLP_OPTIONS_INIT;
    flp_plan *plan;
    options.device = FLP_DEVICE_HOST;
    cr_assert_eq(flp_plan_create(&spec, &options, &plan), FLP_OK, "%s", flp_error_detail());
    cr_assert_eq(flp_plan_describe(plan, text, sizeof text), FLP_OK);
    cr_assert_eq(flp_plan_get_id(plan, ids[i]), FLP_OK);
    if (i == 1) cr_expect(strstr(text, "grads=hidden,lora_a,lora_b lora=8;"), "%s", text);
    flp_plan_destroy(plan);
  }
  cr_expect_str_neq(ids[0], ids[1]);
  cr_expect_str_neq(ids[1], ids[2]);
  flp_spec spec = lora_spec(16, ALL);
  char options[FLP_SPEC_OPTIONS_BYTES];
  flp_plan_spec_options(&spec, options);
  cr_expect(strstr(options, "--grad hidden,lora_a,lora_b --lora-rank 16"), "%s", options);
}
