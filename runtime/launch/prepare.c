/* prepare.c: what every pass starts with: rows classified, the active ones put together, outputs of the others. */
#include "runtime/base/status.h"
#include "runtime/launch/launch.h"

flp_status flp_launch_prepare(const flp_call *call, int outputs) {
  const flp_args *a = call->args;
  /* What forward kept is of forward's active rows, whatever the upstream gradients. */
  int backward = a->pass == FLP_PASS_BACKWARD && !flp_mode_keeps(call->scheme.mode);
  int has_targets = flp_call_has_targets(call); /* one stands for a row's, and is no column of its own */
  CUdeviceptr upstream =
      has_targets ? flp_call_region(call, FLP_REGION_target_weight) : flp_call_pointer(a->grad_logprob);
  if (call->scores) upstream = call->scores->any; /* derivatives by lse and mean_score count, too */
  if (has_targets) FLP_TRY(flp_launch_targets_rows(call));
  flp_prepare_given p = {
      .target = has_targets ? flp_call_region(call, FLP_REGION_target_row) : flp_call_pointer(a->target),
      .temperature = flp_call_pointer(a->temperature_rows),
      .row_scale = call->row_scale,
      .unit = call->unit,
      .vocab_valid = has_targets ? 0 : a->vocab_valid,
      .grad_logprob = backward && a->grad_logprob ? upstream : 0,
      .grad_entropy = backward && !call->scores ? flp_call_pointer(a->grad_entropy) : 0,
      .logprob = outputs && !has_targets ? flp_call_pointer(a->logprob) : 0,
      .entropy = outputs ? flp_call_pointer(a->entropy) : 0,
      .stats = outputs ? flp_call_pointer(a->stats) : 0,
      .partial = a->pass == FLP_PASS_FORWARD ? flp_call_pointer(a->partial) : 0,
  };
  FLP_TRY(flp_launch(call, FLP_ENTRY_prepare, &p, 1));
  int is_decided = call->is_flat || a->pass == FLP_PASS_BACKWARD;
  return call->flat && is_decided ? flp_launch_flat_gate(call, 0) : FLP_OK;
}
