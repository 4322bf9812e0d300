/* backward.c: the backward pass: prepare, record, then chunk after chunk (chunk.c), then fill (fill.c).
 * Where operands come through tensor maps, active rows are gathered before: all of them, or those of a chunk of rows.
 * In save mode dz is made of what forward saved (keep.c), in direction mode grad_hidden itself (direction.c); in given
 * mode the caller has it, and calls over chunks of rows pass sums on. Where
 * columns are listed all of listed.c takes the place of chunks. In tail mode (tail.c) lists stand before and their sums
 * behind a backward pass in recompute mode.
 *
 * Invariant: chunks of one call reuse one dz buffer, in stream order. */
#include "runtime/launch/backward.h"

#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/launch/keep.h"

static flp_status launch_dz_scale(const flp_call *call) {
  if (call->plan->spec.dtype != FLP_DTYPE_FP16) return FLP_OK;
  return flp_launch(call, FLP_ENTRY_dz_scale, NULL, 1);
}

/* A chunk of dz made from hidden and weight, in the plan's own order of columns and rows. */
static flp_status launch_chunk(const flp_call *call, flp_row_range rows, flp_column_range columns, uint32_t grads,
                               int first, int last) {
  int gathers_own = call->scheme.mode == FLP_MODE_RECOMPUTE_ROWS;
  backward_chunk c = {.rows = rows,
                      .columns = columns,
                      .grads = grads,
                      .first = first,
                      .last = last,
                      .count = flp_call_region(call, FLP_REGION_count),
                      .dz = flp_call_region(call, FLP_REGION_dz),
                      .dz_stride = flp_planner_dz_stride(columns.end - columns.begin),
                      .bias_part = grads & FLP_GRAD_BIAS ? flp_call_region(call, FLP_REGION_bias_part) : 0,
                      .gathered_from = gathers_own ? rows.begin : 0};
  if (gathers_own) FLP_TRY(flp_launch_gather(call, rows));
  FLP_TRY(backward_launch_dz(call, &c));
  FLP_TRY(backward_launch_mean(call, &c));
  FLP_TRY(backward_launch_targets(call, &c));
  FLP_TRY(backward_launch_products(call, &c));
  FLP_TRY(backward_launch_lora_products(call, &c));
  return grads & FLP_GRAD_BIAS ? backward_launch_bias_reduce(call, &c) : FLP_OK;
}

static flp_status by_vocab(const flp_call *call, uint32_t grads) {
  int64_t step = call->scheme.chunk_vocab, end = call->args->vocab_valid;
  flp_row_range rows = {0, call->args->n};
  for (int64_t begin = 0; begin < end; begin += step) {
    flp_column_range columns = {begin, flp_min(begin + step, end)};
    flp_own_call own;
    FLP_TRY(flp_launch_slice(call, 0, columns.begin, columns.end, &own));
    FLP_TRY(launch_chunk(&own.call, rows, columns, grads, begin == 0, begin + step >= end));
  }
  return FLP_OK;
}

static flp_status by_rows(const flp_call *call, uint32_t grads) {
  int64_t step = call->scheme.chunk_rows, end = call->args->n;
  flp_column_range columns = {0, call->args->vocab_valid};
  for (int64_t begin = 0; begin < end; begin += step) {
    flp_row_range rows = {begin, flp_min(begin + step, end)};
    FLP_TRY(launch_chunk(call, rows, columns, grads, begin == 0, begin + step >= end));
  }
  return FLP_OK;
}

/* What forward saved, in one chunk. */
static flp_status from_saved(const flp_call *call) {
  flp_row_range rows = {0, call->args->n};
  flp_keep_sink keep = flp_keep_saved(call, 0);
  FLP_TRY(flp_launch_lora_project(call));
  FLP_TRY(flp_launch_targets_gradients(call));
  FLP_TRY(flp_launch_gather(call, rows));
  FLP_TRY(flp_launch_kept(call, rows, &keep, 1, 1));
  return flp_launch_lora_gradients(call);
}

static flp_status by_chunks(const flp_call *call) {
  uint32_t grads = call->plan->spec.grads;
  flp_row_range rows = {0, call->args->n};
  FLP_TRY(backward_launch_record(call, rows));
  FLP_TRY(flp_launch_score_hidden_sums(call));
  FLP_TRY(flp_launch_lora_project(call));
  FLP_TRY(flp_launch_targets_gradients(call));
  FLP_TRY(launch_dz_scale(call));
  if (call->scheme.mode != FLP_MODE_RECOMPUTE_ROWS) FLP_TRY(flp_launch_gather(call, rows));
  switch (call->scheme.mode) {
    case FLP_MODE_RECOMPUTE_ROWS:
      return by_rows(call, grads);
    case FLP_MODE_RECOMPUTE_SPLIT:
      FLP_TRY(by_rows(call, FLP_GRAD_HIDDEN));
      return by_vocab(call, grads & ~(uint32_t)FLP_GRAD_HIDDEN);
    default:
      return by_vocab(call, grads);
  }
}

/* What the caller has, in one chunk; in fp16 it is as it is. */
static flp_status from_given(const flp_call *call) {
  const flp_args *a = call->args;
  backward_chunk c = {.rows = {0, a->n},
                      .columns = {0, a->vocab_valid},
                      .grads = call->plan->spec.grads,
                      .first = !(a->sums_bits & FLP_SUMS_CONTINUE),
                      .last = !(a->sums_bits & FLP_SUMS_LEAVE),
                      .count = flp_call_region(call, FLP_REGION_count),
                      .dz = flp_call_pointer(a->grad_raw_scores),
                      .dz_stride = a->grad_raw_scores_stride};
  uint64_t bound_bytes = call->scheme.size[FLP_REGION_bound];
  FLP_TRY(flp_launch_set_bytes(call, flp_call_region(call, FLP_REGION_bound), bound_bytes, 0));
  FLP_TRY(launch_dz_scale(call));
  FLP_TRY(flp_launch_gather(call, c.rows));
  return backward_launch_products(call, &c);
}

static flp_status recompute(const flp_call *call) {
  FLP_TRY(by_chunks(call));
  return flp_launch_lora_gradients(call);
}

/* Rows that lists do not serve take a pass of their own, which writes every gradient. */
static flp_status launch_tail(const flp_call *call) {
  flp_own_call dense;
  FLP_TRY(flp_launch_tail_lists(call));
  FLP_TRY(flp_tail_dense(call, &dense));
  FLP_TRY(flp_launch_backward(&dense.call));
  return flp_launch_tail_sums(call);
}

static flp_status launch(const flp_call *call) {
  static flp_status (*const modes[])(const flp_call *) = {
      [FLP_MODE_RECOMPUTE_VOCAB] = recompute,           [FLP_MODE_RECOMPUTE_ROWS] = recompute,
      [FLP_MODE_RECOMPUTE_SPLIT] = recompute,           [FLP_MODE_SAVE] = from_saved,
      [FLP_MODE_DIRECTION] = flp_launch_direction_rows, [FLP_MODE_LISTED] = flp_launch_listed_gradients,
      [FLP_MODE_GIVEN] = from_given};
  FLP_TRY(flp_launch_prepare(call, 0));
  if (call->scheme.mode == FLP_MODE_TAIL) return launch_tail(call);
  FLP_TRY(flp_launch_exact_report(call));
  FLP_TRY(flp_launch_score_nothing(call));
  FLP_TRY(modes[call->scheme.mode](call));
  return flp_launch_fill(call);
}

flp_status flp_launch_backward(const flp_call *call) {
  flp_own_call own;
  FLP_TRY(flp_launch_operands(call, &own));
  return launch(&own.call);
}
