/* keep.c: exponentials of a chunk of rows and the gradients made of them (abi.h, saved exponentials).
 *
 * keep_reference, forward with part keep; then record, keep_finish, dz over each block of rows in case it is to be
 * redone, keep_expand in the expanded form, keep_gather for grad_weight, the products, bias_reduce.
 * Invariants: reference, record and factor are indexed by active row, exponentials and redo by row and block of the
 * chunk; the chunk's gathered rows give way to the same rows times their factors, once dz is done. */
#include "runtime/launch/keep.h"

#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/launch/backward.h"

flp_keep_sink flp_keep_saved(const flp_call *call, int64_t first) {
  const flp_spec *spec = &call->plan->spec;
  CUdeviceptr start = flp_call_pointer(call->args->saved);
  int64_t stride = flp_planner_dz_stride(spec->vocab);
  uint64_t row_bytes = (uint64_t)stride * flp_dtype_bytes(spec->dtype);
  return (flp_keep_sink){.reference = start,
                         .kept = start + flp_planner_references_bytes(call->args->n) + (uint64_t)first * row_bytes,
                         .stride = stride,
                         .expands = call->plan->planner.saved_expands};
}

/* The maximum over the first columns, or the LSE of a policy near this one. */
flp_status flp_launch_reference(const flp_call *call, flp_row_range rows, const flp_keep_sink *keep) {
  int has_lse = call->args->old_lse != NULL;
  flp_column_range columns = {0, flp_min(call->args->vocab_valid, FLP_REFERENCE_COLUMNS)};
  if (!has_lse) FLP_TRY(flp_launch_scores(call, rows, columns, (flp_sinks){0}));
  flp_keep_reference_given p = {
      .part = has_lse ? 0 : flp_call_region(call, FLP_REGION_part),
      FLP_GIVE_ROWS(rows),
      .reference = keep->reference,
  };
  return flp_launch_over(call, FLP_ENTRY_keep_reference, &p, rows.end - rows.begin, 1);
}

flp_status flp_launch_keep(const flp_call *call, flp_row_range rows, const flp_keep_sink *keep) {
  FLP_TRY(flp_launch_reference(call, rows, keep));
  return flp_launch_range(call, rows, (flp_column_range){0, call->args->vocab_valid}, (flp_sinks){.keep = keep});
}

/* ---- gradients ---- */

static flp_status launch_finish(const flp_call *call, flp_row_range rows, const flp_keep_sink *keep) {
  flp_keep_finish_given p = {
      .stats = call->scores && call->scores->stats ? call->scores->stats : flp_call_pointer(call->args->stats),
      .reference = keep->reference,
      FLP_GIVE_ROWS(rows),
      .plain = !keep->expands,
      .kept = keep->kept,
      .kept_stride = keep->stride,
  };
  return flp_launch(call, FLP_ENTRY_keep_finish, &p, flp_ceil_div(rows.end - rows.begin, FLP_KEPT_BLOCK_ROWS));
}

/* dz over one block of rows after the other; the device decides for each whether there is anything to do. */
static flp_status launch_redo(const flp_call *call, const backward_chunk *whole) {
  uint64_t element = flp_dtype_bytes(call->plan->spec.dtype);
  uint64_t tiles = (uint64_t)(FLP_KEPT_BLOCK_ROWS / call->plan->planner.dz_rows);
  backward_chunk block = *whole;
  block.count = flp_call_region(call, FLP_REGION_redo);
  for (int64_t begin = whole->rows.begin; begin < whole->rows.end; begin += FLP_KEPT_BLOCK_ROWS) {
    block.rows.begin = begin;
    block.rows.end = flp_min(begin + FLP_KEPT_BLOCK_ROWS, whole->rows.end);
    FLP_TRY(backward_launch_dz(call, &block));
    block.count += sizeof(int32_t);
    block.dz += FLP_KEPT_BLOCK_ROWS * (uint64_t)whole->dz_stride * element;
    if (block.bias_part) block.bias_part += tiles * (uint64_t)backward_columns(whole) * sizeof(float);
  }
  return FLP_OK;
}

static flp_status launch_expand(const flp_call *call, const backward_chunk *c, const flp_keep_sink *keep) {
  int64_t tile_rows = call->plan->planner.dz_rows;
  flp_keep_expand_given p = {
      .kept = keep->kept,
      .kept_stride = keep->stride,
      .reference = keep->reference,
      FLP_GIVE_ROWS(c->rows),
      .tile_rows = (int32_t)tile_rows,
  };
  return flp_launch(
      call, FLP_ENTRY_keep_expand, &p,
      flp_ceil_div(backward_rows(c), tile_rows) * flp_ceil_div(call->args->vocab_valid, FLP_EXPAND_COLUMNS));
}

static flp_status launch_scaled_rows(const flp_call *call, flp_row_range rows) {
  flp_keep_gather_given p = {
      FLP_GIVE_ROWS(rows),
      .out = flp_call_region(call, FLP_REGION_gather),
      .out_stride = flp_planner_gather_stride(call->plan->spec.hidden),
  };
  return flp_launch_over(call, FLP_ENTRY_keep_gather, &p, rows.end - rows.begin, 32);
}

flp_status flp_launch_kept(const flp_call *call, flp_row_range rows, const flp_keep_sink *keep, int first, int last) {
  uint32_t grads = call->plan->spec.grads;
  backward_chunk c = {.rows = rows,
                      .columns = {0, call->args->vocab_valid},
                      .grads = grads,
                      .first = first,
                      .last = last,
                      .count = flp_call_region(call, FLP_REGION_count),
                      .dz = keep->kept,
                      .dz_stride = keep->stride,
                      .bias_part = grads & FLP_GRAD_BIAS ? flp_call_region(call, FLP_REGION_bias_part) : 0,
                      .gathered_from = rows.begin,
                      .factor = flp_call_region(call, FLP_REGION_factor)};
  FLP_TRY(backward_launch_record(call, rows));
  FLP_TRY(launch_finish(call, rows, keep));
  if (call->scores) FLP_TRY(flp_launch_score_target(call, rows, keep));
  if (last) FLP_TRY(flp_launch_score_hidden_sums(call));
  FLP_TRY(backward_launch_strike(call, &c));
  FLP_TRY(launch_redo(call, &c));
  if (keep->expands) FLP_TRY(launch_expand(call, &c, keep));
  FLP_TRY(backward_launch_targets(call, &c));
  if (grads & FLP_GRAD_WEIGHT) FLP_TRY(launch_scaled_rows(call, rows));
  FLP_TRY(backward_launch_products(call, &c));
  FLP_TRY(backward_launch_lora_products(call, &c));
  return grads & FLP_GRAD_BIAS ? backward_launch_bias_reduce(call, &c) : FLP_OK;
}
