/* select.c: flp_select, one pass over scores that exist already: a single launch, or the eager rung. */
#include "runtime/eager/select.h"
#include "runtime/api/execute.h"
#include "runtime/api/op.h"
#include "runtime/api/validate.h"
#include "runtime/base/status.h"
#include "runtime/launch/launch.h"

static flp_status enqueue(flp_call *call, const void *args) {
  return flp_launch_select(call, args);
}

static flp_status run_host(flp_plan *plan, const flp_select_args *args) {
  uint64_t bad_rows = 0;
  flp_eager_select(&plan->spec, args, plan->options.threads, &bad_rows);
  return flp_plan_count_bad(plan, bad_rows);
}

flp_status flp_select(flp_plan *plan, const flp_select_args *args) {
  flp_detail_clear();
  FLP_TRY(flp_op_check_plan(plan, FLP_OP_SELECT));
  flp_select_args resolved;
  FLP_TRY(flp_select_args_resolve(&plan->spec, args, &resolved));
  if (plan->rung == FLP_RUNG_EAGER) return run_host(plan, &resolved);
  flp_call call = {.plan = plan, .stream = resolved.stream};
  return flp_call_run(&call, enqueue, &resolved);
}
