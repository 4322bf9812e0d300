/* execute.c: flp_execute and flp_step: one call of a head, from its layout to its launches or to the eager rung; or of
 * a loss without one. */
#include "runtime/api/execute.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "runtime/api/op.h"
#include "runtime/api/validate.h"
#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include "runtime/eager/eager.h"

static void set_scales(flp_call *call) {
  double softcap = (double)call->plan->spec.softcap, scale = (double)call->args->scale;
  double unit = (softcap > 0 ? softcap : scale) * M_LOG2E;
  call->capped = softcap > 0;
  call->cap_in = softcap > 0 ? (float)(scale / softcap) : 0.0f;
  call->unit = (float)unit;
  call->row_scale = call->plan->spec.per_row_temperature ? 0.0f : (float)(unit / (double)call->args->temperature);
}

static flp_status too_small(const flp_args *args, uint64_t smallest) {
  return flp_fail(FLP_ERROR_WORKSPACE,
                  "args.workspace_bytes is %zu, but the smallest layout of this pass over %" PRId64
                  " rows needs %" PRIu64,
                  args->workspace_bytes, args->n, smallest);
}

/* A backward pass uses what forward kept where the workspace holds that; forward keeps it in any layout. */
static flp_status pick_scheme(flp_call *call) {
  flp_pass pass = call->args->pass;
  if (call->args->grad_raw_scores) return flp_call_pick(call, FLP_PASS_BACKWARD_GIVEN);
  if (!call->args->saved) return flp_call_pick(call, pass);
  if (pass == FLP_PASS_FORWARD) return flp_call_pick(call, FLP_PASS_FORWARD_SAVED);
  flp_status status = flp_call_pick(call, FLP_PASS_BACKWARD_SAVED);
  if (status != FLP_ERROR_BUDGET && status != FLP_ERROR_UNSUPPORTED) return status;
  flp_detail_clear();
  return flp_call_pick(call, pass);
}

static flp_status enqueue(flp_call *call, const void *context) {
  const flp_args *args = context;
  if (args->n == 0 && args->pass < FLP_PASS_BACKWARD) return FLP_OK;
  if (args->n == 0) {
    FLP_TRY(flp_launch_exact_report(call));
    return flp_launch_zero_head(call, 0);
  }
  flp_status status = pick_scheme(call);
  if (status == FLP_ERROR_BUDGET) return too_small(args, call->scheme.smallest_bytes);
  FLP_TRY(status);
  int wants_lists = flp_plan_keeps(call->plan) == FLP_MODE_TAIL && (args->saved || args->pass == FLP_PASS_STEP);
  if (wants_lists && call->scheme.mode != FLP_MODE_TAIL) flp_plan_log_exact(call->plan);
  static flp_status (*const passes[])(const flp_call *) = {[FLP_PASS_FORWARD] = flp_launch_forward,
                                                           [FLP_PASS_COMBINE] = flp_launch_combine,
                                                           [FLP_PASS_BACKWARD] = flp_launch_backward,
                                                           [FLP_PASS_STEP] = flp_launch_step};
  return passes[args->pass](call);
}

flp_status flp_call_run(flp_call *call, flp_enqueue_fn run, const void *context) {
  const flp_driver *driver = call->plan->driver;
  FLP_TRY(flp_process_check("plan", call->plan->process));
  FLP_TRY(flp_call_status(call, driver->cuCtxPushCurrent_v2(call->plan->context), "cuCtxPushCurrent"));
  flp_status status = run(call, context);
  CUcontext popped;
  CUresult result = driver->cuCtxPopCurrent_v2(&popped);
  if (status == FLP_OK) status = flp_call_status(call, result, "cuCtxPopCurrent");
  if (status == FLP_OK && call->plan->options.strict) status = flp_plan_check(call->plan, call->stream);
  return status;
}

static flp_status enqueue_loss(flp_call *call, const void *args) {
  (void)args;
  return flp_launch_loss(call);
}

static flp_status run_device(flp_plan *plan, const flp_args *args) {
  flp_call call = {.plan = plan, .args = args, .stream = args->stream, .error_word = plan->error_word};
  if (plan->spec.op == FLP_OP_LOSS) return flp_call_run(&call, enqueue_loss, args);
  set_scales(&call);
  return flp_call_run(&call, enqueue, args);
}

static flp_status run_host(flp_plan *plan, const flp_args *args) {
  uint64_t bad_rows = 0;
  int threads = plan->options.threads;
  if (plan->spec.op == FLP_OP_LOSS) return flp_eager_loss(&plan->loss, args);
  flp_status status = args->pass == FLP_PASS_STEP ? flp_eager_step(&plan->spec, &plan->loss, args, threads, &bad_rows)
                                                  : flp_eager_execute(&plan->spec, args, threads, &bad_rows);
  if (args->tail_report) memset(args->tail_report, 0, FLP_TAIL_REPORT_BYTES); /* exact */
  return status == FLP_OK ? flp_plan_count_bad(plan, bad_rows) : status;
}

static flp_status check_saved(const flp_plan *plan, const flp_args *args) {
  flp_mode mode = flp_plan_keeps(plan);
  if (!args->saved) return FLP_OK;
  if (!mode)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.saved is given, but this plan keeps nothing (accepted: NULL where flp_plan_saved gives 0)");
  if (mode == FLP_MODE_SAVE && (args->vocab_offset || args->vocab_valid != args->vocab_total))
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.saved is given, but the call covers a vocab shard (accepted: NULL in mode save)");
  uint64_t bytes = flp_planner_saved_bytes(&plan->spec, mode, args->n);
  if (args->saved_bytes >= bytes) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "args.saved_bytes is %zu, but mode %s keeps %" PRIu64 " bytes of %" PRId64
                  " rows (accepted: what flp_plan_saved gives)",
                  args->saved_bytes, flp_mode_name(mode), bytes, args->n);
}

static flp_status check_sums(const flp_plan *plan, const flp_args *args) {
  if (!args->sums_bits) return FLP_OK;
  uint64_t bytes = flp_plan_sums_bytes(plan);
  if (bytes && !args->sums)
    return flp_fail(FLP_ERROR_ARGUMENT, "args.sums is NULL, but args.sums_bits is %" PRId64, args->sums_bits);
  if (args->sums_bytes >= bytes) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "args.sums_bytes is %zu, but sums take %" PRIu64 " bytes (accepted: what flp_plan_sums gives)",
                  args->sums_bytes, bytes);
}

flp_status flp_execute(flp_plan *plan, const flp_args *args) {
  flp_detail_clear();
  FLP_TRY(flp_op_check_plan(plan, FLP_OP_HEAD));
  flp_args resolved;
  FLP_TRY(flp_args_resolve(&plan->spec, args, &resolved));
  FLP_TRY(check_saved(plan, &resolved));
  FLP_TRY(check_sums(plan, &resolved));
  return plan->rung == FLP_RUNG_EAGER ? run_host(plan, &resolved) : run_device(plan, &resolved);
}

flp_status flp_step(flp_plan *plan, const flp_args *args) {
  flp_args resolved;
  flp_detail_clear();
  if (!plan) return flp_fail(FLP_ERROR_ARGUMENT, "plan is NULL (accepted: a plan of flp_plan_create)");
  if (plan->spec.op != FLP_OP_LOSS) FLP_TRY(flp_op_check_plan(plan, FLP_OP_HEAD));
  if (!plan->spec.loss)
    return flp_fail(FLP_ERROR_ARGUMENT, "the plan's spec.loss is NULL (accepted: a loss program, for flp_step)");
  FLP_TRY(flp_step_resolve(&plan->spec, &plan->loss, args, &resolved));
  return plan->rung == FLP_RUNG_EAGER ? run_host(plan, &resolved) : run_device(plan, &resolved);
}
