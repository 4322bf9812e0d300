/* diverge.c: flp_diverge, one pass over two rows of scores that exist already: a single launch, or the eager rung. */
#include "runtime/eager/diverge.h"
#include "runtime/api/execute.h"
#include "runtime/api/op.h"
#include "runtime/api/validate.h"
#include "runtime/base/status.h"
#include "runtime/launch/launch.h"

static flp_status enqueue(flp_call *call, const void *args) {
  return flp_launch_diverge(call, args);
}

static flp_status check_shard(const flp_plan *plan) {
  flp_loss_plan loss;
  if (plan->rung == FLP_RUNG_EAGER)
    return flp_fail(FLP_ERROR_UNSUPPORTED, "args.is_shard is 1, but the eager rung makes sums of whole rows alone");
  flp_loss_plan_of(&plan->loss, &loss);
  if (loss.level_count <= 1) return FLP_OK;
  return flp_fail(FLP_ERROR_UNSUPPORTED, "args.is_shard is 1, but spec.loss, %s, has sums of what reads other sums",
                  plan->loss.name);
}

static flp_status run_host(flp_plan *plan, const flp_diverge_args *args) {
  uint64_t bad_rows = 0;
  FLP_TRY(flp_eager_diverge(&plan->spec, &plan->loss, args, plan->options.threads, &bad_rows));
  return flp_plan_count_bad(plan, bad_rows);
}

/* The caller's parameters, or the program's defaults. error: ARGUMENT */
static flp_status take_parameters(const flp_loss *loss, flp_diverge_args *args, double out[FLP_LOSS_PARAMETERS_MAX]) {
  for (uint32_t i = 0; i < loss->parameter_count; i++)
    out[i] = args->loss_parameters ? args->loss_parameters[i] : loss->parameters[i].fallback;
  args->loss_parameters = out;
  return flp_loss_check_parameters(loss, out);
}

flp_status flp_diverge(flp_plan *plan, const flp_diverge_args *args) {
  flp_detail_clear();
  FLP_TRY(flp_op_check_plan(plan, FLP_OP_DIVERGE));
  flp_diverge_args resolved;
  double parameters[FLP_LOSS_PARAMETERS_MAX];
  FLP_TRY(flp_diverge_args_resolve(&plan->spec, args, &resolved));
  FLP_TRY(take_parameters(&plan->loss, &resolved, parameters));
  if (resolved.is_shard) FLP_TRY(check_shard(plan));
  if (plan->rung == FLP_RUNG_EAGER) return run_host(plan, &resolved);
  flp_call call = {.plan = plan, .stream = resolved.stream};
  return flp_call_run(&call, enqueue, &resolved);
}
