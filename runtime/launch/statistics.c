/* statistics.c: what a row's scores are as a whole (abi.h): from what forward summed, behind the outputs of a chunk; of
 * listed columns from their scores; of shards from what each has. */
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/launch/launch.h"

flp_status flp_launch_statistics(const flp_call *call, flp_row_range rows) {
  const flp_args *a = call->args;
  int is_listed = call->scheme.mode == FLP_MODE_LISTED;
  if (!a->statistics && !a->partial_statistics) return FLP_OK;
  if (is_listed) {
    flp_statistics_list_given list = {.capacity = call->scheme.chunk_rows, FLP_GIVE_ROWS(rows)};
    FLP_TRY(flp_launch_over(call, FLP_ENTRY_statistics_list, &list, rows.end - rows.begin, 32));
  }
  flp_statistics_given p = {
      .capacity = call->scheme.chunk_rows,
      .parts = is_listed ? 1 : (int32_t)flp_ceil_div(a->vocab_valid, call->plan->planner.unit_columns),
      .scores = flp_call_has_targets(call) ? flp_targets_scores(call) : 0,
      FLP_GIVE_ROWS(rows),
      .stats = flp_call_stats(call),
      .out = flp_call_pointer(a->statistics),
      .partial_statistics = a->partial ? flp_call_pointer(a->partial_statistics) : 0,
  };
  return flp_launch_over(call, FLP_ENTRY_statistics, &p, rows.end - rows.begin, 32);
}

flp_status flp_launch_statistics_merged(const flp_call *call) {
  const flp_args *a = call->args;
  if (!a->statistics) return FLP_OK;
  flp_statistics_merge_given p = {.stats = flp_call_stats(call), .out = flp_call_pointer(a->statistics)};
  return flp_launch_over(call, FLP_ENTRY_statistics_merge, &p, a->n, 32);
}
