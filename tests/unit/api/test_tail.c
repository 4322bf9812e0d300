/* test_tail.c: spec.tail at the API: which specs, options and arguments are refused, with which sentence; queries,
 * descriptions and ids; and the eager rung, which leaves nothing out. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/driver/driver.h"
#include "runtime/plan/plan.h"
#include "tests/unit/support/refuse.h"
#include "tests/unit/support/stage.h"

static flp_spec tail_spec(uint32_t grads) {
  flp_spec spec = stage_spec(grads);
  spec.tail = 0x1p-9f;
  return spec;
}

/* ---- specs and options ---- */

Test(tail, specs_that_are_taken) {
  static const float tails[] = {0, 0x1p-20f, 0x1p-9f, 0.003f, 0x1p-2f};
  uint8_t program[FLP_LOSS_BYTES_MAX];
  flp_spec out;
  for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++)
    for (int dtype = FLP_DTYPE_BF16; dtype <= FLP_DTYPE_FP32; dtype++) {
      flp_spec spec = stage_spec(3);
      spec.dtype = (flp_dtype)dtype;
      spec.tail = tails[i];
      cr_assert_eq(flp_spec_resolve(&spec, &out), FLP_OK, "%s", flp_error_detail());
      cr_expect_eq(out.tail, tails[i]);
      cr_assert_eq(flp_loss_builtin_bytes("grpo", program, sizeof program, &spec.loss_bytes), FLP_OK);
      spec.loss = program;
      cr_expect_eq(flp_spec_resolve(&spec, &out), FLP_OK, "%s", flp_error_detail());
    }
}

Test(tail, specs_that_are_refused) {
  static const struct {
    float tail;
    const char *text;
  } bad[] = {{NAN, "nan"}, {-0x1p-9f, "-0.00195312"}, {0x1p-21f, "4.76837e-07"}, {0.5f, "0.5"}, {INFINITY, "inf"}};
  char sentence[200];
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    flp_spec spec = stage_spec(3);
    spec.tail = bad[i].tail;
    snprintf(sentence, sizeof sentence, "spec.tail is %s (accepted: 2^-20 to 2^-2, or 0 for exact gradients)",
             bad[i].text);
    expect_refused(resolve_spec(spec), sentence);
  }
  expect_refused(resolve_spec(tail_spec(0)),
                 "spec.tail is 0.00195312, but spec.grads is 0 (accepted: FLP_GRAD_* bits)");
}

Test(tail, modes_that_are_refused) {
  stage s;
  stage_open(&s, "");
  flp_plan *plan;
  flp_options options = stage_options(0, FLP_MODE_TAIL);
  flp_spec spec = stage_spec(3);
  expect_refused(flp_plan_create(&spec, &options, &plan),
                 "options.mode is FLP_MODE_TAIL, but spec.tail is 0 (accepted: 2^-20 to 2^-2)");
  spec = tail_spec(3);
  options.mode = FLP_MODE_SAVE;
  expect_refused(flp_plan_create(&spec, &options, &plan),
                 "options.mode is FLP_MODE_SAVE, but spec.keep is 0 (accepted: 1)");
  options.mode = FLP_MODE_STREAM;
  expect_refused(flp_plan_create(&spec, &options, &plan),
                 "options.mode is FLP_MODE_STREAM, but spec.tail is 0.00195312 (accepted: 0, or mode 0 or "
                 "FLP_MODE_TAIL)");
}

/* ---- arguments ---- */

Test(tail, arguments) {
  flp_spec spec = tail_spec(7), exact = stage_spec(7);
  flp_args backward = stage_args(&spec, FLP_PASS_BACKWARD, 10), forward = stage_args(&spec, FLP_PASS_FORWARD, 10);
  forward.saved = backward.saved = AT(5);
  forward.old_lse = AT(6);
  backward.tail_report = AT(7);
  cr_expect_eq(resolve_args(spec, &forward), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(resolve_args(spec, &backward), FLP_OK, "%s", flp_error_detail());
  backward.saved = NULL;
  expect_refused(resolve_args(exact, &backward), "args.tail_report is given, but spec.tail is 0");
  backward.tail_report = (float *)(uintptr_t)0x70002;
  expect_refused(resolve_args(spec, &backward), "args.tail_report is 0x70002 (accepted: multiples of 4 bytes)");
  forward.tail_report = AT(7);
  expect_refused(resolve_args(spec, &forward),
                 "args.tail_report is given, but only backward and step leave anything out");
  backward.tail_report = NULL;
  backward.saved = AT(5);
  expect_refused(resolve_args(exact, &backward), "args.saved is given, but spec.keep and spec.tail are 0");
}

/* ---- queries, descriptions and ids ---- */

static void expect_text(const flp_spec *spec, const char *text, const char *options) {
  char got[FLP_SPEC_TEXT_BYTES], words[FLP_SPEC_OPTIONS_BYTES];
  flp_plan_spec_text(spec, got);
  flp_plan_spec_options(spec, words);
  cr_expect_str_eq(got, text);
  cr_expect_str_eq(words, options);
}

Test(tail, texts_of_a_spec) {
  flp_spec spec = tail_spec(1);
  expect_text(&spec, "bf16 V=1000 D=64 grads=hidden tail=2^-9",
              "--vocab 1000 --hidden 64 --dtype bf16 --grad hidden --tail 2^-9");
  spec.tail = 0.003f;
  expect_text(&spec, "bf16 V=1000 D=64 grads=hidden tail=0.00300000003",
              "--vocab 1000 --hidden 64 --dtype bf16 --grad hidden --tail 0.00300000003");
}

Test(tail, a_plan_says_what_it_keeps) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = tail_spec(3), other = spec;
  char text[4096], first[17], second[17];
  flp_plan *plan = stage_plan(&spec, NULL);
  size_t saved = 0, most = 0;
  cr_assert_eq(flp_plan_saved(plan, 100, 0, &saved), FLP_OK);
  cr_assert_eq(flp_spec_saved(&spec, 100, 0, &most), FLP_OK);
  cr_expect_eq(saved, most);
  cr_expect_eq(saved, flp_planner_saved_bytes(&spec, FLP_MODE_TAIL, 100));
  cr_expect_gt(saved, 100 * (16 + 8 + 8 * 1000));
  cr_assert_eq(flp_spec_saved(&spec, 100, saved - 1, &most), FLP_OK);
  cr_expect_eq(most, 0);
  cr_assert_eq(flp_plan_saved(plan, 100, saved, &saved), FLP_OK);
  cr_expect_eq(saved, 0, "no room for the workspace");
  cr_assert_eq(flp_plan_describe(plan, text, sizeof text), FLP_OK);
  cr_expect_not_null(strstr(text,
                            "kernels rows, forward, dz, grad_hidden, grad_weight, listed, listed_weight, "
                            "forward_emit, emitted, tail for sm_80"),
                     "%s", text);
  cr_expect_null(strstr(text, "keeps nothing"));
  flp_plan_get_id(plan, first);
  other.tail = 0x1p-8f;
  flp_plan *rough = stage_plan(&other, NULL);
  flp_plan_get_id(rough, second);
  cr_expect_str_neq(first, second, "ranks that leave out different amounts");
  flp_plan_destroy(rough);
  flp_options options = stage_options(0, FLP_MODE_RECOMPUTE_ROWS);
  rough = stage_plan(&spec, &options);
  cr_assert_eq(flp_plan_describe(rough, text, sizeof text), FLP_OK);
  cr_expect_not_null(strstr(text, "keeps nothing for backward: options.mode asks for recomputing"), "%s", text);
  flp_plan_destroy(rough);
  flp_plan_destroy(plan);
}

/* ---- the eager rung ---- */

enum { N = 3, V = 1000, D = 64 };

Test(tail, the_eager_rung_is_exact_and_says_so) {
  static uint16_t hidden[N * D] __attribute__((aligned(16))), weight[V * D] __attribute__((aligned(16)));
  static uint16_t grad_hidden[N * D] __attribute__((aligned(16)));
  static unsigned char workspace[1 << 20] __attribute__((aligned(256)));
  static float stats[4 * N] __attribute__((aligned(16)));
  int64_t target[N] = {1, 2, 3};
  float logprob[N], ones[N] = {1, 1, 1}, report[4] = {7, 7, 7, 7};
  flp_spec spec = tail_spec(FLP_GRAD_HIDDEN);
  flp_options options = FLP_OPTIONS_INIT;
  char text[4096];
  size_t saved = 1;
  options.device = FLP_DEVICE_HOST;
  flp_plan *plan = stage_plan(&spec, &options);
  cr_assert_eq(flp_plan_saved(plan, N, 0, &saved), FLP_OK);
  cr_expect_eq(saved, 0);
  cr_assert_eq(flp_plan_describe(plan, text, sizeof text), FLP_OK);
  cr_expect_not_null(strstr(text, "keeps nothing for backward: the eager rung recomputes"), "%s", text);
  flp_args a = FLP_ARGS_INIT;
  a.n = N;
  a.hidden = hidden;
  a.weight = weight;
  a.target = target;
  a.logprob = logprob;
  a.stats = stats;
  a.workspace = workspace;
  a.workspace_bytes = sizeof workspace;
  cr_assert_eq(flp_execute(plan, &a), FLP_OK, "%s", flp_error_detail());
  a.pass = FLP_PASS_BACKWARD;
  a.logprob = NULL;
  a.grad_logprob = ones;
  a.grad_hidden = grad_hidden;
  a.tail_report = report;
  cr_assert_eq(flp_execute(plan, &a), FLP_OK, "%s", flp_error_detail());
  for (int i = 0; i < 4; i++) cr_expect_eq(report[i], 0);
  flp_plan_destroy(plan);
}
