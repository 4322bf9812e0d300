/* combine.c: the combine pass over the partials of all vocab shards: prepare, merge,
 * or with K targets a row targets_finish. */
#include "runtime/base/status.h"
#include "runtime/launch/launch.h"

flp_status flp_launch_combine(const flp_call *call) {
  const flp_args *a = call->args;
  FLP_TRY(flp_launch_prepare(call, 1));
  if (flp_call_has_targets(call))
    FLP_TRY(flp_launch_targets_finish(call, (flp_row_range){0, a->n}, flp_call_pointer(a->partial),
                                      flp_call_pointer(a->partial_targets), a->shard_count));
  else
    FLP_TRY(flp_launch_over(call, FLP_ENTRY_merge, NULL, a->n, 1));
  return flp_launch_statistics_merged(call);
}
