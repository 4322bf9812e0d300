/* saved.c: what one call passes to another: save, direction and tail modes from forward to backward; sums from one
 * backward pass over rows to the next. */
#include "runtime/api/execute.h"
#include "runtime/api/validate.h"
#include "runtime/base/args.h"
#include "runtime/base/quantity.h"
#include "runtime/base/status.h"
#include "runtime/eager/eager.h"
#include "runtime/kernel/op.h"
#include "runtime/plan/plan.h"

static flp_status check_saved(int64_t n, const size_t *out_bytes) {
  if (!out_bytes) return flp_fail(FLP_ERROR_ARGUMENT, "out_bytes is NULL (accepted: where to put the size)");
  if (n < 0 || n > FLP_COUNT_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "n is %lld (accepted: 0 to %d)", (long long)n, FLP_COUNT_MAX);
  return FLP_OK;
}

flp_status flp_plan_saved(const flp_plan *plan, int64_t n, uint64_t budget_bytes, size_t *out_bytes) {
  flp_detail_clear();
  if (!plan) return flp_fail(FLP_ERROR_ARGUMENT, "plan is NULL (accepted: a plan of flp_plan_create)");
  if (out_bytes) *out_bytes = 0;
  FLP_TRY(check_saved(n, out_bytes));
  uint64_t budget = flp_pass_budget(budget_bytes ? budget_bytes : plan->options.budget_bytes, FLP_PASS_BACKWARD,
                                    plan->device.memory_bytes);
  flp_mode mode = flp_plan_keeps(plan);
  if (mode) *out_bytes = flp_planner_saved(&plan->planner, n, budget);
  if (mode == FLP_MODE_TAIL && n && !*out_bytes) flp_plan_log_exact(plan);
  return FLP_OK;
}

uint64_t flp_plan_sums_bytes(const flp_plan *plan) {
  int is_eager = plan->rung == FLP_RUNG_EAGER;
  return is_eager ? flp_eager_sums_bytes(&plan->spec) : flp_planner_sums_bytes(&plan->planner);
}

flp_status flp_plan_check_given(const flp_plan *plan) {
  if (flp_spec_takes_scores(&plan->spec)) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "pass is BACKWARD_GIVEN, but %s", FLP_ARRAY[FLP_ARRAY_grad_raw_scores].unasked);
}

flp_status flp_plan_sums(const flp_plan *plan, size_t *out_bytes) {
  flp_detail_clear();
  if (!plan) return flp_fail(FLP_ERROR_ARGUMENT, "plan is NULL (accepted: a plan of flp_plan_create)");
  if (!out_bytes) return flp_fail(FLP_ERROR_ARGUMENT, "out_bytes is NULL (accepted: where to put the size)");
  *out_bytes = 0;
  FLP_TRY(flp_plan_check_given(plan));
  *out_bytes = flp_plan_sums_bytes(plan);
  return FLP_OK;
}

flp_status flp_spec_saved(const flp_spec *spec, int64_t n, uint64_t budget_bytes, size_t *out_bytes) {
  flp_spec resolved;
  uint64_t budget = budget_bytes;
  flp_detail_clear();
  if (out_bytes) *out_bytes = 0;
  FLP_TRY(check_saved(n, out_bytes));
  FLP_TRY(flp_spec_resolve(spec, &resolved));
  if (!budget) FLP_TRY(flp_options_in_force(NULL, FLP_PASS_BACKWARD, NULL, NULL, &budget));
  int emits = flp_kernel_spec_emits(&resolved);
  int saves = resolved.keep && !(flp_op_of(resolved.op)->has_head && flp_weight_is_sliced(&resolved));
  if (!saves && !emits) return FLP_OK;
  uint64_t saved = flp_planner_saved_bytes(&resolved, resolved.keep ? FLP_MODE_SAVE : FLP_MODE_TAIL, n);
  uint64_t directions =
      flp_planner_has_direction(&resolved) ? flp_planner_saved_bytes(&resolved, FLP_MODE_DIRECTION, n) : 0;
  if (saved <= budget) *out_bytes = saved;
  if (directions <= budget && directions > *out_bytes) *out_bytes = directions;
  return FLP_OK;
}
