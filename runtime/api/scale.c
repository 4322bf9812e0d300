/* scale.c: flp_scale, gradients times a factor: a single launch, or the eager rung. */
#include "runtime/eager/scale.h"
#include "runtime/api/execute.h"
#include "runtime/api/op.h"
#include "runtime/api/validate.h"
#include "runtime/base/status.h"
#include "runtime/launch/launch.h"

static flp_status enqueue(flp_call *call, const void *args) {
  return flp_launch_scale(call, args);
}

flp_status flp_scale(flp_plan *plan, const flp_scale_args *args) {
  flp_detail_clear();
  FLP_TRY(flp_op_check_plan(plan, FLP_OP_SCALE));
  flp_scale_args resolved;
  FLP_TRY(flp_scale_args_resolve(&plan->spec, args, &resolved));
  if (plan->rung == FLP_RUNG_EAGER) {
    flp_eager_scale(&plan->spec, &resolved);
    return FLP_OK;
  }
  flp_call call = {.plan = plan, .stream = resolved.stream};
  return flp_call_run(&call, enqueue, &resolved);
}
