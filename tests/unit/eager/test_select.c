/* test_select.c: flp_select: what it refuses, what it launches, and that nothing else of a plan is for it. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/names.h"
#include "runtime/kernel/abi.h"
#include "tests/unit/support/refuse.h"
#include "tests/unit/support/stage.h"

static flp_spec good_spec(void) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.op = FLP_OP_SELECT;
  spec.vocab = 1000;
  spec.entropy = FLP_ENTROPY_BACKWARD;
  return spec;
}

/* ---- specs ---- */

/* A field of heads alone. */
#define REFUSE_FIELD(field, value) \
  REFUSE_SPEC(spec.field = value, "spec." #field " is not 0, but spec.op is FLP_OP_SELECT (accepted: 0)")

Test(select, specs) {
  flp_spec spec = good_spec(), out;
  static const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32, FLP_DTYPE_FP64};
  for (int i = 0; i < 4; i++) {
    spec.dtype = dtypes[i];
    cr_assert_eq(flp_spec_resolve(&spec, &out), FLP_OK, "%s", flp_error_detail());
    cr_expect_eq(out.grad_hidden_dtype, 0);
  }
  char unknown[64];
  snprintf(unknown, sizeof unknown, "spec.op is %d (accepted: 0 to %d)", FLP_OP_COUNT, FLP_OP_COUNT - 1);
  REFUSE_SPEC(spec.op = (flp_op)FLP_OP_COUNT, unknown);
  REFUSE_SPEC(spec.dtype = FLP_DTYPE_INT32, "spec.dtype is 4 (accepted: BF16 1, FP16 2, FP32 3, FP64 6)");
  REFUSE_FIELD(hidden, 64);
  REFUSE_FIELD(grads, 1);
  REFUSE_FIELD(softcap, 30);
  REFUSE_FIELD(listed, 1);
  REFUSE_FIELD(tail, 0x1p-9f);
  REFUSE_FIELD(targets, 2);
  REFUSE_FIELD(topk, 1);
  REFUSE_FIELD(rank, 1);
  REFUSE_SPEC(spec.target_dtype = FLP_DTYPE_FP64, "spec.target_dtype is 6 (accepted: INT32 4, INT64 5)");
  REFUSE_SPEC(spec.vocab = 1, "spec.vocab is 1 (accepted: 2 to 1073741824)");
  REFUSE_SPEC((spec.dtype = FLP_DTYPE_FP64, spec.alignment = 4),
              "spec.alignment is 4 (accepted: powers of two from 8 to 16)");
}

/* ---- arguments ---- */

static flp_select_args good_args(flp_pass pass) {
  flp_select_args a = FLP_SELECT_ARGS_INIT;
  a.pass = pass;
  a.n = 10;
  a.k = 3;
  a.scores = STAGE_AT(1);
  a.target = STAGE_AT(4);
  a.stats = STAGE_AT(5);
  a.logprob = STAGE_AT(6);
  if (pass == FLP_PASS_BACKWARD) {
    a.grad_logprob = STAGE_AT(7);
    a.grad_scores = STAGE_AT(8);
  }
  return a;
}

static flp_status resolve_select(flp_spec given, const flp_select_args *args) {
  flp_spec spec;
  flp_select_args out;
  cr_assert_eq(flp_spec_resolve(&given, &spec), FLP_OK, "%s", flp_error_detail());
  return flp_select_args_resolve(&spec, args, &out);
}

#define REFUSE_ARGS(which, assignment, part)               \
  do {                                                     \
    flp_spec spec = good_spec();                           \
    flp_select_args a = good_args(which);                  \
    assignment;                                            \
    expect_refused_with(resolve_select(spec, &a), part);   \
  } while (0)

Test(select, arguments_of_both_passes) {
  const flp_pass forward = FLP_PASS_FORWARD;
  expect_refused_with(resolve_select(good_spec(), NULL), "args is NULL (accepted: a flp_select_args)");
  REFUSE_ARGS(forward, a.struct_bytes = 8,
              "args.struct_bytes is 8 (accepted: multiples of 8 from 128 to 4096; the flp_select_args of this library");
  REFUSE_ARGS(FLP_PASS_COMBINE, (void)0, "args.pass is 2 (accepted: FORWARD 1, BACKWARD 3)");
  REFUSE_ARGS(forward, a.n = -1, "args.n is -1 (accepted: 0 to 1073741824)");
  REFUSE_ARGS(forward, a.k = 0, "args.k is 0 (accepted: 1 to 1073741824)");
  REFUSE_ARGS(forward, a.temperature = 0, "args.temperature is 0 (accepted: 1.18e-38 to 3.4e38, log2(e)/T");
  static const double temperatures[] = {NAN, 1e-300, 1e39, 3e38, 5e-39, INFINITY};
  for (int i = 0; i < 6; i++) {
    char text[64];
    snprintf(text, sizeof text, "args.temperature is %g", temperatures[i]);
    REFUSE_ARGS(forward, a.temperature = temperatures[i], text);
  }
  REFUSE_ARGS(forward, a.scores = NULL, "args.scores is NULL, but n is 10");
  REFUSE_ARGS(forward, a.target = NULL, "args.target is NULL, but n is 10");
  REFUSE_ARGS(forward, a.scores_stride = 999,
              "args.scores_stride is 999 (accepted: 0 for dense, or at least spec.vocab");
  REFUSE_ARGS(forward, a.scores_stride = 1001, "with a stride of 1001 elements (accepted: multiples of 16 bytes");
  REFUSE_ARGS(forward, a.scores_stride = INT64_MAX - 7, "accepted: at most 2^63 - 1 bytes");
  REFUSE_ARGS(forward, a.scores = (char *)STAGE_AT(1) + 8, "(accepted: multiples of 16 bytes");
  REFUSE_ARGS(forward, a.logprob = (char *)STAGE_AT(6) + 2, "args.logprob is");
  REFUSE_ARGS(forward, (spec.dtype = FLP_DTYPE_FP64, a.stats = (char *)STAGE_AT(6) + 4),
              "(accepted: multiples of 8 bytes)");
  REFUSE_ARGS(forward, (spec.entropy = FLP_ENTROPY_NONE, a.entropy = STAGE_AT(9)),
              "args.entropy is given, but spec.entropy is NONE");
  REFUSE_ARGS(forward, a.grad_scores = STAGE_AT(8), "args.grad_scores is given, but args.pass is FORWARD");
}

Test(select, arguments_of_the_gradient) {
  const flp_pass backward = FLP_PASS_BACKWARD;
  REFUSE_ARGS(backward, a.logprob = NULL, "args.logprob is NULL, but n is 10");
  REFUSE_ARGS(backward, a.stats = NULL, "args.stats is NULL, but n is 10");
  REFUSE_ARGS(backward, a.grad_scores = NULL, "args.grad_scores is NULL, but n is 10");
  REFUSE_ARGS(backward, (spec.entropy = FLP_ENTROPY_FORWARD, a.grad_entropy = STAGE_AT(9)),
              "args.grad_entropy is given, but spec.entropy is not BACKWARD");
  REFUSE_ARGS(backward, a.grad_scores = (char *)STAGE_AT(1) + 2000, "args.grad_scores overlaps args.scores");
  REFUSE_ARGS(backward, (a.grad_scores = STAGE_AT(1), a.grad_scores_stride = 1008),
              "args.grad_scores overlaps args.scores");
}

/* Of rows that are 1008 elements apart the last one ends behind 1000. */
Test(select, gradients_may_begin_where_the_last_row_of_scores_ends) {
  flp_select_args a = good_args(FLP_PASS_BACKWARD);
  a.scores_stride = 1008;
  a.grad_scores = (char *)STAGE_AT(1) + (9 * 1008 + 1000) * 2;
  cr_expect_eq(resolve_select(good_spec(), &a), FLP_OK, "%s", flp_error_detail());
  a.grad_scores = (char *)a.grad_scores - 16;
  cr_expect_eq(resolve_select(good_spec(), &a), FLP_ERROR_ARGUMENT);
}

Test(select, pointers_of_no_rows_are_not_looked_at) {
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_BACKWARD; pass += 2) {
    flp_select_args a = good_args((flp_pass)pass);
    a.n = 0;
    a.scores = (char *)STAGE_AT(1) + 1;
    a.logprob = (char *)STAGE_AT(6) + 1;
    a.stats = NULL;
    cr_expect_eq(resolve_select(good_spec(), &a), FLP_OK, "%s", flp_error_detail());
  }
}

/* ---- launches ---- */

Test(select, launches) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = good_spec();
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_select_args a = good_args(FLP_PASS_FORWARD);
  a.temperature = 2;
  a.stream = STAGE_STREAM;
  s.reset();
  cr_assert_eq(flp_select(plan, &a), FLP_OK, "%s", flp_error_detail());
  stage_expect_sequence(&s, "select");
  stage_expect_capturable(&s);
  const fake_launch *l = s.launch_at(0);
  cr_expect_eq(l->grid, 10);
  cr_expect_eq(l->stream, STAGE_STREAM);
  flp_select_params p = STAGE_PARAMS(flp_select_params, l);
  cr_expect_eq(p.scores, stage_address(STAGE_AT(1)));
  cr_expect_eq(p.scores_stride, 1000);
  cr_expect_eq(p.k, 3);
  cr_expect_eq(p.vocab, 1000);
  cr_expect_eq(p.ignore_index, INT64_MIN);
  cr_expect_eq(p.inverse, 0.5);
  cr_expect_eq(p.target, stage_address(STAGE_AT(4)));
  cr_expect_eq(p.logprob, stage_address(STAGE_AT(6)));
  cr_expect_eq(p.entropy, 0);
  cr_expect_eq(p.stats, stage_address(STAGE_AT(5)));
  cr_expect_neq(p.error_word, 0);

  a = good_args(FLP_PASS_BACKWARD);
  a.grad_scores = STAGE_AT(1);
  a.temperature = 4;
  a.ignore_index = -100;
  s.reset();
  cr_assert_eq(flp_select(plan, &a), FLP_OK, "%s", flp_error_detail());
  stage_expect_sequence(&s, "select_grad");
  flp_select_grad_params g = STAGE_PARAMS(flp_select_grad_params, s.launch_at(0));
  cr_expect_eq(g.scores, stage_address(STAGE_AT(1)));
  cr_expect_eq(g.target, stage_address(STAGE_AT(4)));
  cr_expect_eq(g.stats, stage_address(STAGE_AT(5)));
  cr_expect_eq(g.logprob, stage_address(STAGE_AT(6)));
  cr_expect_eq(g.grad_logprob, stage_address(STAGE_AT(7)));
  cr_expect_eq(g.k, 3);
  cr_expect_eq(g.vocab, 1000);
  cr_expect_eq(g.ignore_index, -100);
  cr_expect_eq(g.inverse, 0.25);
  cr_expect_eq(g.grad_scores, g.scores);
  cr_expect_eq(g.grad_scores_stride, 1000);
  cr_expect_eq(g.grad_entropy, 0);
  a.n = 0;
  s.reset();
  cr_assert_eq(flp_select(plan, &a), FLP_OK);
  stage_expect_sequence(&s, "");
  flp_plan_destroy(plan);
}

Test(select, plans_are_for_one_operation) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = good_spec(), head_spec = stage_spec(0);
  flp_plan *plan = stage_plan(&spec, NULL), *head = stage_plan(&head_spec, NULL);
  flp_select_args a = good_args(FLP_PASS_FORWARD);
  flp_args args = stage_args(&head_spec, FLP_PASS_FORWARD, 10);
  expect_refused_with(flp_select(head, &a), "flp_execute runs it");
  expect_refused_with(flp_execute(plan, &args), "flp_select runs it");
  cr_expect_eq(flp_select(NULL, &a), FLP_ERROR_ARGUMENT);
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, 10, 0, &layout), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(layout.bytes, 0);
  cr_expect_eq(layout.launches, 1);
  cr_expect_eq(flp_plan_layout(plan, FLP_PASS_COMBINE, 10, 0, &layout), FLP_ERROR_ARGUMENT);
  char text[1024];
  cr_assert_eq(flp_plan_describe(plan, text, sizeof text), FLP_OK);
  cr_expect_not_null(strstr(text, "kernels select for sm_80; spec bf16 V=1000 entropy=backward op=select"), "%s", text);
  flp_plan_destroy(plan);
  flp_plan_destroy(head);
}
