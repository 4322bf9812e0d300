/* forward.c: the forward pass: prepare, then for each chunk of rows gather (where operands come through tensor
 * maps), forward and combine (twice where both partial and outputs are wanted). Chunks share one block of partials;
 * their sizes do not enter a row's bits. Forward has part keep in save mode (keep.c), part emit in tail mode (tail.c),
 * part targets with K targets a row, and targets_finish behind all chunks (targets.c), and part top where best columns
 * or ranks are asked for (top.c). Direction mode is all of direction.c, listed columns all of listed.c. */
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/launch/keep.h"
#include "runtime/launch/launch.h"

static flp_status launch_listed(const flp_call *call) {
  flp_row_range rows = {0, call->args->n};
  FLP_TRY(flp_launch_listed(call));
  FLP_TRY(flp_launch_top_listed(call, rows));
  FLP_TRY(flp_launch_outputs(call, rows));
  return flp_launch_top_others(call);
}

flp_status flp_launch_forward_made(const flp_call *call) {
  const flp_args *a = call->args;
  FLP_TRY(flp_launch_prepare(call, 1));
  if (call->scheme.mode == FLP_MODE_DIRECTION) return flp_launch_direction(call);
  if (call->scheme.mode == FLP_MODE_LISTED) return launch_listed(call);
  int is_tail = call->scheme.mode == FLP_MODE_TAIL;
  if (flp_call_has_targets(call)) FLP_TRY(flp_launch_targets_sort(call));
  FLP_TRY(flp_launch_lora_project(call));
  if (call->flat) FLP_TRY(flp_launch_flat(call));
  int64_t chunk = call->scheme.chunk_rows;
  for (int64_t begin = 0; begin < a->n; begin += chunk) {
    flp_row_range rows = {begin, flp_min(begin + chunk, a->n)};
    FLP_TRY(flp_launch_gather(call, rows));
    if (is_tail) {
      FLP_TRY(flp_launch_tail(call, rows));
    } else if (a->saved) {
      flp_keep_sink keep = flp_keep_saved(call, begin);
      FLP_TRY(flp_launch_keep(call, rows, &keep));
    } else {
      FLP_TRY(flp_launch_columns(call, rows, (flp_sinks){0}));
    }
    FLP_TRY(flp_launch_outputs(call, rows));
    if (is_tail) FLP_TRY(flp_launch_tail_kept(call, rows));
  }
  return flp_launch_top_others(call);
}

flp_status flp_launch_forward(const flp_call *call) {
  flp_own_call own;
  FLP_TRY(flp_launch_operands(call, &own));
  return flp_launch_forward_made(&own.call);
}
