/* direction.c: direction mode (abi.h, saved exponentials): forward makes the sum of each row from which grad_hidden follows
 * for any upstream gradient; the backward pass is one small kernel.
 *
 * By chunk of rows: gather, keep_reference; by chunk of columns forward with part keep, direction_strike and the
 * product, which adds to the sums; then combine for the outputs and for this shard's own partial, from which
 * direction_finish decides which blocks of rows are to be redone; these go through dz and the product once more.
 * Invariants: references, slopes and sums are indexed by active row and are the caller's (args.saved); one chunk of
 * exponentials is there at a time, in the place of dz. */
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/launch/backward.h"
#include "runtime/launch/keep.h"

static CUdeviceptr references(const flp_call *call) {
  return flp_call_pointer(call->args->saved);
}

static CUdeviceptr slopes(const flp_call *call) {
  return references(call) + flp_planner_references_bytes(call->args->n);
}

/* The exponentials of a chunk, or the dz of a block that is redone. */
static backward_chunk chunk_of(const flp_call *call, flp_row_range rows, flp_column_range columns, int64_t stride,
                               int64_t gathered_from) {
  return (backward_chunk){.rows = rows,
                          .columns = columns,
                          .grads = FLP_GRAD_HIDDEN,
                          .first = columns.begin == 0,
                          .last = columns.end == call->args->vocab_valid,
                          .count = flp_call_region(call, FLP_REGION_count),
                          .dz = flp_call_region(call, FLP_REGION_dz),
                          .dz_stride = stride,
                          .gathered_from = gathered_from};
}

static flp_status launch_strike(const flp_call *call, const backward_chunk *c) {
  flp_direction_strike_given p = {
      FLP_GIVE_ROWS(c->rows),
      FLP_GIVE_COLUMNS(c->columns),
      .kept = c->dz,
      .kept_stride = c->dz_stride,
  };
  return flp_launch_over(call, FLP_ENTRY_direction_strike, &p, backward_rows(c), 1);
}

/* The sums of a chunk of rows. */
static flp_status launch_sums(const flp_call *call, flp_row_range rows) {
  int64_t step = call->scheme.chunk_vocab, end = call->args->vocab_valid;
  flp_keep_sink keep = {.reference = references(call),
                        .kept = flp_call_region(call, FLP_REGION_dz),
                        .stride = flp_planner_dz_stride(step)};
  FLP_TRY(flp_launch_gather(call, rows));
  FLP_TRY(flp_launch_reference(call, rows, &keep));
  for (int64_t begin = 0; begin < end; begin += step) {
    flp_column_range columns = {begin, flp_min(begin + step, end)};
    backward_chunk c = chunk_of(call, rows, columns, keep.stride, rows.begin);
    FLP_TRY(flp_launch_range(call, rows, columns, (flp_sinks){.keep = &keep}));
    FLP_TRY(launch_strike(call, &c));
    FLP_TRY(backward_launch_products(call, &c));
  }
  return FLP_OK;
}

/* What the caller asked for, and this shard's own partial, which is all that decides what is redone. */
static flp_status launch_outputs(const flp_call *call, flp_row_range rows) {
  const flp_args *a = call->args;
  CUdeviceptr partial = a->partial ? flp_call_pointer(a->partial) : flp_call_region(call, FLP_REGION_stats);
  FLP_TRY(flp_launch_fold(call, rows, partial));
  flp_direction_finish_given p = {
      .partial = partial,
      .reference = references(call),
      .slope = slopes(call),
      FLP_GIVE_ROWS(rows),
  };
  FLP_TRY(flp_launch(call, FLP_ENTRY_direction_finish, &p, flp_ceil_div(rows.end - rows.begin, FLP_KEPT_BLOCK_ROWS)));
  return flp_launch_values(call, rows, 0);
}

/* One block of rows after the other, in as many columns at a time as the chunk's exponentials leave room for; the device
 * decides for each whether there is anything to do, by the block's own count of active rows. */
static flp_status launch_redo(const flp_call *call, flp_row_range rows) {
  const flp_planner *planner = &call->plan->planner;
  int64_t step = flp_planner_redo_columns(planner, call->scheme.chunk_rows, call->scheme.chunk_vocab);
  int64_t end = call->args->vocab_valid;
  flp_call block = *call;
  block.scheme.offset[FLP_REGION_count] = call->scheme.offset[FLP_REGION_redo];
  for (int64_t first = rows.begin; first < rows.end; first += FLP_KEPT_BLOCK_ROWS) {
    flp_row_range own = {first, flp_min(first + FLP_KEPT_BLOCK_ROWS, rows.end)};
    for (int64_t begin = 0; begin < end; begin += step) {
      flp_column_range columns = {begin, flp_min(begin + step, end)};
      backward_chunk c = chunk_of(&block, own, columns, flp_planner_dz_stride(step), rows.begin);
      FLP_TRY(backward_launch_dz(&block, &c));
      FLP_TRY(backward_launch_products(&block, &c));
    }
    block.scheme.offset[FLP_REGION_count] += sizeof(int32_t);
  }
  return FLP_OK;
}

flp_status flp_launch_direction(const flp_call *call) {
  int64_t n = call->args->n, chunk = call->scheme.chunk_rows;
  for (int64_t begin = 0; begin < n; begin += chunk) {
    flp_row_range rows = {begin, flp_min(begin + chunk, n)};
    FLP_TRY(launch_sums(call, rows));
    FLP_TRY(launch_outputs(call, rows));
    FLP_TRY(launch_redo(call, rows));
  }
  return flp_launch_top_others(call);
}

flp_status flp_launch_direction_rows(const flp_call *call) {
  const flp_args *a = call->args;
  flp_row_range rows = {0, a->n};
  FLP_TRY(backward_launch_record(call, rows));
  flp_direction_rows_given p = {
      .sums = backward_direction_sums(call),
      .reference = references(call),
      .slope = slopes(call),
      FLP_GIVE_GRAD_HIDDEN(a),
      .out_is_f32 = call->plan->spec.grad_hidden_dtype == FLP_DTYPE_FP32,
  };
  return flp_launch_over(call, FLP_ENTRY_direction_rows, &p, a->n, 32);
}
