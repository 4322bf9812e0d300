/* targets.c: K targets a row (abi.h).
 *
 * Forward: targets_rows stands before prepare, targets_sort behind it; forward has part targets, and
 * targets_finish that of combine's outputs, or of merge. Backward: lists anew, their scores, and for the bias entries in
 * the order of columns; then each chunk's dz, made as on a shard without any target, is written anew at the targets.
 * Invariant: without an upstream gradient of logprobs there is nothing to write anew. */
#include "runtime/base/status.h"
#include "runtime/launch/backward.h"

/* ---- forward ---- */

static flp_status launch_rows(const flp_call *call, const float *grad_logprob, CUdeviceptr scores) {
  flp_targets_rows_given p = {.grad_logprob = flp_call_pointer(grad_logprob), .score = scores};
  return flp_launch_over(call, FLP_ENTRY_targets_rows, &p, call->args->n, 32);
}

flp_status flp_launch_targets_rows(const flp_call *call) {
  const flp_args *a = call->args;
  return launch_rows(call, a->pass == FLP_PASS_BACKWARD ? a->grad_logprob : NULL,
                     flp_args_want_outputs(a) ? flp_targets_scores(call) : 0);
}

flp_status flp_launch_targets_sums(const flp_call *call) {
  return flp_call_has_targets(call) ? launch_rows(call, call->args->grad_logprob, 0) : FLP_OK;
}

flp_status flp_launch_targets_sort(const flp_call *call) {
  return flp_launch(call, FLP_ENTRY_targets_sort, NULL, call->args->n);
}

flp_status flp_launch_targets_finish(const flp_call *call, flp_row_range rows, CUdeviceptr partial, CUdeviceptr scores,
                                     int64_t shard_count) {
  flp_targets_finish_given p = {
      .partial = partial,
      .score = scores,
      .shard_count = shard_count,
      FLP_GIVE_ROWS(rows),
      .stats = flp_call_stats(call),
  };
  return flp_launch_over(call, FLP_ENTRY_targets_finish, &p, rows.end - rows.begin, 32);
}

/* ---- backward ---- */

static int has_gradients(const flp_call *call) {
  return flp_call_has_targets(call) && call->args->grad_logprob;
}

flp_status flp_launch_targets_gradients(const flp_call *call) {
  if (!has_gradients(call)) return FLP_OK;
  FLP_TRY(flp_launch_targets_sort(call));
  if (flp_call_region(call, FLP_REGION_list_score))
    FLP_TRY(flp_launch_list_scores(call, flp_call_region(call, FLP_REGION_target_offsets)));
  if (!(call->plan->spec.grads & FLP_GRAD_BIAS)) return FLP_OK;
  int64_t count = call->args->n * call->plan->spec.targets;
  CUdeviceptr total = flp_call_region(call, FLP_REGION_target_total);
  return flp_launch_list_order(call, (flp_entries){(int32_t)count, total});
}

flp_status backward_launch_strike(const flp_call *call, const backward_chunk *c) {
  if (!has_gradients(call) || !c->bias_part) return FLP_OK;
  flp_targets_strike_given p = {
      FLP_GIVE_ROWS(c->rows),
      .kept = c->dz,
      .kept_stride = c->dz_stride,
  };
  return flp_launch_over(call, FLP_ENTRY_targets_strike, &p, backward_rows(c), 32);
}

static flp_status launch_bias(const flp_call *call, const backward_chunk *c) {
  flp_targets_bias_given p = {
      FLP_GIVE_ROWS(c->rows),
      FLP_GIVE_COLUMNS(c->columns),
  };
  return flp_launch_over(call, FLP_ENTRY_targets_bias, &p, backward_columns(c), 32);
}

flp_status backward_launch_targets(const flp_call *call, const backward_chunk *c) {
  if (!has_gradients(call)) return FLP_OK;
  flp_targets_patch_given p = {
      .score = flp_call_region(call, FLP_REGION_list_score) ? 0 : flp_targets_scores(call),
      FLP_GIVE_ROWS(c->rows),
      FLP_GIVE_COLUMNS(c->columns),
      .dz = c->dz,
      .dz_stride = c->dz_stride,
  };
  FLP_TRY(flp_launch_over(call, FLP_ENTRY_targets_patch, &p, backward_rows(c), 32));
  return c->bias_part ? launch_bias(call, c) : FLP_OK;
}
