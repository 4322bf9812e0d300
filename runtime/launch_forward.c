/* launch_forward.c: the forward pass: prepare, forward, combine (twice where both partial and outputs are wanted). */
#include "launch.h"
#include "status.h"

static flp_status launch_scores(const flp_call *call, int64_t groups) {
  const flp_args *a = call->args;
  int64_t bands = flp_ceil_div(a->n, flp_call_desc(call, FLP_KERNEL_FORWARD)->tile_rows);
  flp_forward_params p = {
      .hidden = flp_call_pointer(a->hidden),
      .hidden_stride = a->hidden_stride,
      .weight = flp_call_pointer(a->weight),
      .weight_stride = a->weight_stride,
      .bias = flp_call_pointer(a->bias),
      .index = flp_call_region(call, FLP_REGION_INDEX),
      .local_target = flp_call_region(call, FLP_REGION_LOCAL_TARGET),
      .scale = flp_call_region(call, FLP_REGION_SCALE),
      .count = flp_call_region(call, FLP_REGION_COUNT),
      .cap_in = call->cap_in,
      .depth = (int32_t)call->plan->spec.hidden,
      .vocab_valid = (int32_t)a->vocab_valid,
      .bands = (int32_t)bands,
      .groups = (int32_t)groups,
      .part = flp_call_region(call, FLP_REGION_PART),
      .capacity = a->n,
      .zy = flp_call_region(call, FLP_REGION_ZY),
  };
  return flp_launch(call, FLP_ENTRY_forward, &p, bands * groups);
}

/* The kernel writes either a shard's partial or the outputs of a whole head. */
static flp_status launch_fold(const flp_call *call, int64_t groups, int partial) {
  const flp_args *a = call->args;
  flp_combine_params p = {
      .part = flp_call_region(call, FLP_REGION_PART),
      .capacity = a->n,
      .groups = (int32_t)groups,
      .zy = flp_call_region(call, FLP_REGION_ZY),
      .index = flp_call_region(call, FLP_REGION_INDEX),
      .local_target = flp_call_region(call, FLP_REGION_LOCAL_TARGET),
      .scale = flp_call_region(call, FLP_REGION_SCALE),
      .count = flp_call_region(call, FLP_REGION_COUNT),
      .cap_in = call->cap_in,
      .capped = call->capped,
      .logprob = partial ? 0 : flp_call_pointer(a->logprob),
      .entropy = partial ? 0 : flp_call_pointer(a->entropy),
      .stats = partial ? 0 : flp_call_pointer(a->stats),
      .partial = partial ? flp_call_pointer(a->partial) : 0,
  };
  return flp_launch_over(call, FLP_ENTRY_combine, &p, a->n, 1);
}

flp_status flp_launch_forward(const flp_call *call) {
  const flp_args *a = call->args;
  int64_t unit = flp_call_desc(call, FLP_KERNEL_FORWARD)->unit_columns;
  int64_t groups = flp_ceil_div(a->vocab_valid, unit);
  FLP_TRY(flp_launch_prepare(call, 1));
  FLP_TRY(launch_scores(call, groups));
  if (a->partial) FLP_TRY(launch_fold(call, groups, 1));
  return a->logprob || a->entropy || a->stats ? launch_fold(call, groups, 0) : FLP_OK;
}
