/* select.c: flp_select, one pass over scores that exist already: a single launch, or the eager rung. */
#include "runtime/api/execute.h"
#include "runtime/api/validate.h"
#include "runtime/base/status.h"
#include "runtime/eager/eager.h"

static flp_status enqueue(flp_call *call, const void *args) {
  return flp_launch_select(call, args);
}

static flp_status run_host(flp_plan *plan, const flp_select_args *args) {
  uint64_t bad_targets = 0;
  flp_eager_select(&plan->spec, args, plan->options.threads, &bad_targets);
  atomic_fetch_add(&plan->bad_rows, bad_targets);
  return plan->options.strict ? flp_plan_check(plan, args->stream) : FLP_OK;
}

flp_status flp_select(flp_plan *plan, const flp_select_args *args) {
  flp_detail_clear();
  if (!plan) return flp_fail(FLP_ERROR_ARGUMENT, "plan is NULL (accepted: a plan of flp_plan_create)");
  if (plan->spec.op != FLP_OP_SELECT)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "the plan's spec.op is FLP_OP_HEAD (accepted: FLP_OP_SELECT; flp_execute runs it)");
  flp_select_args resolved;
  FLP_TRY(flp_select_args_resolve(&plan->spec, args, &resolved));
  if (plan->rung == FLP_RUNG_EAGER) return run_host(plan, &resolved);
  flp_call call = {.plan = plan, .stream = resolved.stream};
  return flp_call_run(&call, enqueue, &resolved);
}
