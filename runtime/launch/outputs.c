/* outputs.c: scores of a chunk of rows as the call wants them, and what their partials give. */
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/launch/launch.h"

flp_status flp_launch_range(const flp_call *call, flp_row_range rows, flp_column_range columns, flp_sinks to) {
  return (flp_call_wants_top(call) ? flp_launch_top : flp_launch_scores)(call, rows, columns, to);
}

flp_status flp_launch_columns(const flp_call *call, flp_row_range rows, flp_sinks to) {
  int64_t vocab = call->args->vocab_valid, number = 0;
  for (int64_t begin = 0, end; begin < vocab; begin = end, number++) {
    end = call->scheme.slice ? flp_min(flp_planner_slice_end(&call->scheme, begin), vocab) : vocab;
    flp_own_call own;
    FLP_TRY(flp_launch_slice(call, number, begin, end, &own));
    FLP_TRY(flp_launch_range(&own.call, rows, (flp_column_range){begin, end}, to));
  }
  return FLP_OK;
}

/* A shard of a larger vocabulary gives none of these. */
flp_status flp_launch_values(const flp_call *call, flp_row_range rows, CUdeviceptr partial) {
  const flp_args *a = call->args;
  if (flp_args_are_whole(a) && (a->logprob || a->entropy || flp_call_stats(call)))
    FLP_TRY(flp_call_has_targets(call) ? flp_launch_targets_finish(call, rows, partial, flp_targets_scores(call), 1)
                                       : flp_launch_fold(call, rows, 0));
  FLP_TRY(flp_launch_top_finish(call, rows));
  return flp_launch_statistics(call, rows);
}

/* Several targets need partials by row. */
flp_status flp_launch_outputs(const flp_call *call, flp_row_range rows) {
  CUdeviceptr partial = flp_call_pointer(call->args->partial);
  if (flp_call_has_targets(call) && !partial) partial = flp_call_region(call, FLP_REGION_target_sums);
  if (partial) FLP_TRY(flp_launch_fold(call, rows, partial));
  return flp_launch_values(call, rows, partial);
}
