/* test_targets_loss.c: plans and steps of losses over targets: which go together, and what is missing. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/flp.h"

enum { N = 3, V = 40, D = 8, K = 4 };

static flp_status plan_of(const char *loss, int32_t targets, flp_plan **out) {
  static uint8_t program[4096];
  flp_spec spec = FLP_SPEC_INIT;
  flp_options options = FLP_OPTIONS_INIT;
  cr_assert_eq(flp_loss_builtin_bytes(loss, program, sizeof program, &spec.loss_bytes), FLP_OK);
  spec.loss = program;
  spec.dtype = FLP_DTYPE_FP32, spec.vocab = V, spec.hidden = D, spec.targets = targets;
  options.device = FLP_DEVICE_HOST;
  return flp_plan_create(&spec, &options, out);
}

Test(targets_loss, a_loss_of_one_target_is_refused_beside_several) {
  flp_plan *plan;
  cr_expect_eq(plan_of("grpo", K, &plan), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(), "spec.targets is 4, but spec.loss is grpo, a loss of one target (accepted: 1, or a "
                                       "loss over targets, such as forward_kl)");
  cr_expect_null(plan);
}

Test(targets_loss, a_step_needs_what_its_loss_reads) {
  static _Alignas(16) float hidden[N * D], weight[V * D];
  static float teacher[N * K], loss[N];
  static int64_t target[N * K];
  for (int i = 0; i < V * D; i++) weight[i] = (float)(i % 7) / 7;
  for (int i = 0; i < N * K; i++) target[i] = i % V, teacher[i] = -2;
  flp_plan *plan;
  size_t bytes;
  cr_assert_eq(plan_of("forward_kl", K, &plan), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(flp_plan_workspace(plan, FLP_PASS_STEP, N, 0, &bytes), FLP_OK, "%s", flp_error_detail());
  flp_args args = FLP_ARGS_INIT;
  args.pass = FLP_PASS_STEP, args.n = N, args.hidden = hidden, args.weight = weight, args.target = target;
  args.loss = loss, args.workspace = aligned_alloc(256, (bytes + 255) / 256 * 256), args.workspace_bytes = bytes;
  cr_expect_eq(flp_step(plan, &args), FLP_ERROR_ARGUMENT);
  cr_expect(strstr(flp_error_detail(), "teacher_logprob") && strstr(flp_error_detail(), "loss forward_kl reads it"), "%s",
            flp_error_detail());
  args.teacher_logprob = teacher;
  cr_expect_eq(flp_step(plan, &args), FLP_OK, "%s", flp_error_detail());
  /* every token has 1/40 */
  double p = exp(-2), want = 4 * p * (-2 + log(40)) + (1 - 4 * p) * (log(1 - 4 * p) - log(0.9));
  for (int i = 0; i < N; i++) cr_expect_lt(fabs((double)loss[i] - want), 1e-6, "%g, want %g", (double)loss[i], want);
  free(args.workspace);
  flp_plan_destroy(plan);
}
