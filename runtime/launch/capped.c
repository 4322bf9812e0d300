/* capped.c: the mean of scores with a softcap (abi.h): a forward pass of scores so small that their sums are the mean, before
 * the step's own; and what its derivative has of dz: dz once more, of a record and a scale of 0 with which
 * it is each[a] times the softcap's slope, added to the chunk's own. */
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/launch/backward.h"

/* Scores so small that every 2^(t - m) is 1. */
static const float tiny = 0x1p-40f;

flp_status flp_launch_score_means(const flp_call *call) {
  if (!call->scores->partial) return FLP_OK;
  flp_call own = *call;
  own.unit *= tiny;
  own.row_scale *= tiny;
  own.error_word += sizeof(int32_t); /* the pass that follows counts bad rows */
  FLP_TRY(flp_launch_prepare(&own, 0));
  for (int64_t begin = 0; begin < own.args->n; begin += own.scheme.chunk_rows) {
    flp_row_range rows = {begin, flp_min(begin + own.scheme.chunk_rows, own.args->n)};
    FLP_TRY(flp_launch_gather(&own, rows));
    FLP_TRY(flp_launch_scores(&own, rows, (flp_column_range){0, own.args->vocab_valid}, (flp_sinks){0}));
    FLP_TRY(flp_launch_fold(&own, rows, own.scores->partial));
  }
  return FLP_OK;
}

/* A workspace array in another's place. */
static void replace(flp_call *call, flp_region region, CUdeviceptr by) {
  call->scheme.offset[region] = by - flp_call_pointer(call->args->workspace);
}

flp_status backward_launch_capped(const flp_call *call, const backward_chunk *chunk) {
  if (!call->scores || !call->scores->record) return FLP_OK;
  int64_t rows = backward_rows(chunk), columns = backward_columns(chunk);
  flp_call own = *call;
  backward_chunk c = *chunk;
  replace(&own, FLP_REGION_record, call->scores->record);
  replace(&own, FLP_REGION_scale, call->scores->scale);
  c.dz = flp_call_region(call, FLP_REGION_capped_dz);
  c.bias_part = chunk->bias_part ? flp_call_region(call, FLP_REGION_capped_part) : 0;
  FLP_TRY(backward_launch_dz(&own, &c));
  flp_score_add_given p = {
      .dz = chunk->dz,
      .other = c.dz,
      .elements = rows * chunk->dz_stride,
      .bias_part = chunk->bias_part,
      .other_part = c.bias_part,
      .parts = flp_ceil_div(rows, call->plan->planner.dz_rows) * columns,
  };
  return flp_launch_over(call, FLP_ENTRY_score_add, &p, p.elements, 1);
}
