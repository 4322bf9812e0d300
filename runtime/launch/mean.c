/* mean.c: the mean of scores where no product with one vector gives it (abi.h): with a softcap, an adapter, a weight
 * that comes in slices, or of listed columns. A forward pass of scores so small that their sums are the mean comes before
 * the step's own. What its derivative has of dz is each[a], times the softcap's slope: of lists score_list adds it; else dz
 * is made once more, of a record and a scale of 0 with which it is that, and added to the chunk's own. */
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/launch/backward.h"

/* Scores so small that every 2^(t - m) is 1. */
static const float tiny = 0x1p-40f;

flp_status flp_launch_score_means(const flp_call *call) {
  flp_own_call own;
  if (!call->scores || !call->scores->partial) return flp_launch_score_weight(call);
  flp_call_copy(call, &own);
  flp_args *a = &own.args;
  a->partial = (float *)(uintptr_t)call->scores->partial;
  a->logprob = a->entropy = a->stats = a->top_logprob = a->top_rest = a->statistics = NULL;
  a->top_ids = NULL;
  a->rank = NULL;
  own.call.unit *= tiny;
  own.call.row_scale *= tiny;
  own.call.error_word += sizeof(int32_t); /* the pass that follows counts bad rows */
  return flp_launch_forward_made(&own.call);
}

/* A workspace array in another's place. */
static void replace(flp_call *call, flp_region region, CUdeviceptr by) {
  call->scheme.offset[region] = by - flp_call_pointer(call->args->workspace);
}

flp_status backward_launch_mean(const flp_call *call, const backward_chunk *chunk) {
  if (!call->scores || !call->scores->record) return FLP_OK;
  int64_t rows = backward_rows(chunk), columns = backward_columns(chunk);
  flp_own_call own;
  backward_chunk c = *chunk;
  flp_call_copy(call, &own);
  if (!call->capped) own.args.bias = NULL; /* which may be -inf */
  replace(&own.call, FLP_REGION_record, call->scores->record);
  replace(&own.call, FLP_REGION_scale, call->scores->scale);
  c.dz = flp_call_region(call, FLP_REGION_mean_dz);
  c.bias_part = chunk->bias_part ? flp_call_region(call, FLP_REGION_mean_dz_part) : 0;
  FLP_TRY(backward_launch_dz(&own.call, &c));
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
