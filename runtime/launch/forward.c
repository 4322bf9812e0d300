/* forward.c: the forward pass: prepare, then for each chunk of rows gather (where operands come through tensor
 * maps), forward and combine (twice where both partial and outputs are wanted). Chunks share one block of partials;
 * their sizes do not enter a row's bits. Forward has part keep in save mode (keep.c), part emit in tail mode (tail.c),
 * part targets with K targets a row, and targets_finish behind all chunks (targets.c), and part top where best columns
 * or ranks are asked for (top.c). Direction mode is all of direction.c, listed columns all of listed.c. */
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/launch/keep.h"
#include "runtime/launch/launch.h"

/* Partials of a chunk of rows, the weight as it is or slice by slice. */
static flp_status launch_slices(const flp_call *call, flp_row_range rows) {
  int64_t vocab = call->args->vocab_valid, number = 0;
  for (int64_t begin = 0, end; begin < vocab; begin = end, number++) {
    end = call->scheme.slice ? flp_min(flp_planner_slice_end(&call->scheme, begin), vocab) : vocab;
    flp_own_call own;
    FLP_TRY(call->scheme.ahead ? flp_launch_next_slice(call, number, begin, end, &own)
                               : flp_launch_slice(call, begin, end, &own));
    FLP_TRY(flp_launch_scores(&own.call, rows, (flp_column_range){begin, end}, (flp_sinks){0}));
  }
  return FLP_OK;
}

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
  int64_t chunk = call->scheme.chunk_rows;
  for (int64_t begin = 0; begin < a->n; begin += chunk) {
    flp_row_range rows = {begin, flp_min(begin + chunk, a->n)};
    FLP_TRY(flp_launch_gather(call, rows));
    if (is_tail) {
      FLP_TRY(flp_launch_tail(call, rows));
    } else if (a->saved) {
      flp_keep_sink keep = flp_keep_saved(call, begin);
      FLP_TRY(flp_launch_keep(call, rows, &keep));
    } else if (flp_call_wants_top(call)) {
      FLP_TRY(flp_launch_top(call, rows, (flp_column_range){0, a->vocab_valid}, (flp_sinks){0}));
    } else {
      FLP_TRY(launch_slices(call, rows));
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
