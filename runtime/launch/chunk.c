/* chunk.c: one chunk of the backward pass: record, dz, and the products and column sums made from it.
 *
 * Invariant: each gradient element is written out once, by the last chunk that adds to it. */
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/kernel/kernel.h"
#include "runtime/launch/backward.h"

flp_status backward_launch_record(const flp_call *call, flp_row_range rows) {
  if (call->scores) return flp_launch_score_record(call, rows);
  const flp_args *a = call->args;
  int has_targets = flp_call_has_targets(call);
  flp_record_given p = {
      .grad_logprob = has_targets && a->grad_logprob ? flp_call_region(call, FLP_REGION_target_gradient)
                                                     : flp_call_pointer(a->grad_logprob),
      FLP_GIVE_ROWS(rows),
  };
  return flp_launch_over(call, FLP_ENTRY_record, &p, rows.end - rows.begin, 1);
}

FLP_GIVEN_BEGINS(dz_lora, dz, FLP_PARAMS_dz)

static flp_status launch_dz_portable(const flp_call *call, const backward_chunk *c) {
  const flp_kernel_desc *desc = backward_dz_desc(call);
  int64_t tiles_m = flp_ceil_div(backward_rows(c), desc->tile_rows);
  int64_t tiles_n = flp_ceil_div(backward_columns(c), desc->tile_columns);
  flp_dz_lora_given p = {
      .count = c->count,
      .depth = (int32_t)flp_call_depth(call),
      FLP_GIVE_ROWS(c->rows),
      FLP_GIVE_COLUMNS(c->columns),
      FLP_GIVE_TILES(tiles_m, tiles_n),
      .dz = c->dz,
      .dz_stride = c->dz_stride,
      .bias_part = c->bias_part,
      .lora_b = flp_lora_b(call, 0),
      .lora_b_stride = call->args->lora_b_stride,
  };
  return flp_launch(call, call->plan->spec.lora_rank ? FLP_ENTRY_dz_lora : FLP_ENTRY_dz, &p, tiles_m * tiles_n);
}

flp_status backward_launch_dz(const flp_call *call, const backward_chunk *c) {
  return call->plan->planner.is_mapped ? backward_launch_dz_map(call, c) : launch_dz_portable(call, c);
}

flp_status backward_launch_product(const flp_call *call, const backward_chunk *c, const backward_product *x,
                                   const backward_sink *to) {
  const flp_kernel_desc *desc = flp_call_desc(call, x->kind);
  int is_rows = x->entry == FLP_ENTRY_grad_hidden || x->entry == FLP_ENTRY_lora_rows;
  int64_t tiles_m = flp_ceil_div(is_rows ? backward_rows(c) : backward_columns(c), desc->tile_rows);
  int64_t tiles_n = flp_ceil_div(x->depth, desc->tile_columns);
  flp_grad_hidden_given p = {
      .dz = c->dz,
      .dz_stride = c->dz_stride,
      .operand = x->operand,
      .operand_stride = x->stride,
      .index = x->index,
      .factor = x->entry == FLP_ENTRY_grad_weight ? 0 : c->factor,
      .depth = (int32_t)x->depth,
      FLP_GIVE_ROWS(c->rows),
      FLP_GIVE_COLUMNS(c->columns),
      FLP_GIVE_TILES(tiles_m, tiles_n),
      .acc = to->acc,
      .acc_stride = to->acc_stride,
      .out = to->out,
      .out_stride = to->out_stride,
      .read_acc = to->read_acc,
      .write_acc = to->write_acc,
      .write_out = to->write_out,
      .if_any = call->is_flat,
  };
  return flp_launch(call, x->entry, &p, tiles_m * tiles_n);
}

static flp_status launch_grad_hidden(const flp_call *call, const backward_chunk *c, const backward_sink *to) {
  const flp_args *a = call->args;
  backward_product x = {FLP_KERNEL_GRAD_HIDDEN,
                        FLP_ENTRY_grad_hidden,
                        flp_call_pointer(a->weight),
                        a->weight_stride,
                        flp_call_region(call, FLP_REGION_index),
                        call->plan->spec.hidden};
  return backward_launch_product(call, c, &x, to);
}

/* Of the rows of hidden, or of those that have been multiplied by their factors. */
static flp_status launch_grad_weight(const flp_call *call, const backward_chunk *c, const backward_sink *to) {
  const flp_args *a = call->args;
  int64_t depth = call->plan->spec.hidden;
  backward_product x = {FLP_KERNEL_GRAD_WEIGHT,
                        FLP_ENTRY_grad_weight,
                        flp_call_pointer(a->hidden),
                        a->hidden_stride,
                        flp_call_region(call, FLP_REGION_index),
                        depth};
  if (c->factor) {
    x.operand = flp_call_region(call, FLP_REGION_gather);
    x.stride = flp_planner_gather_stride(depth);
    x.index = 0;
  }
  return backward_launch_product(call, c, &x, to);
}

/* Sums over chunks in a workspace accumulator; the last chunk writes the result out. */
static backward_sink through(CUdeviceptr acc, int64_t acc_stride, const backward_chunk *c, CUdeviceptr out,
                             int64_t out_stride) {
  backward_sink to = {
      .out = out, .out_stride = out_stride, .read_acc = !c->first, .write_acc = !c->last, .write_out = c->last};
  if (to.read_acc || to.write_acc) {
    to.acc = acc;
    to.acc_stride = acc_stride;
  }
  return to;
}

CUdeviceptr backward_direction_sums(const flp_call *call) {
  const flp_args *a = call->args;
  return flp_call_pointer(a->saved) + 2 * flp_planner_references_bytes(a->n);
}

static backward_sink hidden_sink(const flp_call *call, const backward_chunk *c) {
  const flp_args *a = call->args;
  if (call->scheme.mode == FLP_MODE_DIRECTION)
    return (backward_sink){.acc = backward_direction_sums(call),
                           .acc_stride = call->plan->spec.hidden,
                           .read_acc = !c->first,
                           .write_acc = 1};
  if (call->plan->spec.lora_rank) /* what an adapter adds comes behind all chunks */
    return (backward_sink){.acc = flp_call_region(call, FLP_REGION_hidden_acc),
                           .acc_stride = call->plan->spec.hidden,
                           .read_acc = call->scheme.mode == FLP_MODE_RECOMPUTE_VOCAB && !c->first,
                           .write_acc = 1};
  backward_chunk whole = *c; /* every chunk of rows holds all that its rows add */
  if (call->scheme.mode != FLP_MODE_RECOMPUTE_VOCAB) whole.first = whole.last = 1;
  return through(flp_call_region(call, FLP_REGION_hidden_acc), call->plan->spec.hidden, &whole,
                 flp_call_pointer(a->grad_hidden), a->grad_hidden_stride);
}

static int is_given(const flp_call *call) {
  return call->scheme.mode == FLP_MODE_GIVEN;
}

int backward_is_by_rows(const flp_call *call) {
  return call->scheme.mode == FLP_MODE_RECOMPUTE_ROWS || call->scheme.mode == FLP_MODE_STREAM || is_given(call);
}

/* The accumulator of a weight's gradient that is none itself, and the elements between its rows, or its lower bits. */
static CUdeviceptr weight_sums(const flp_call *call, int64_t *stride) {
  int is_split = call->plan->spec.grad_weight_dtype == FLP_DTYPE_BF16;
  int64_t chunks = is_given(call) ? FLP_GIVEN_CALLS : call->scheme.chunks;
  *stride = is_split ? flp_planner_weight_low_bits(chunks) : call->plan->spec.hidden;
  if (is_given(call)) return flp_call_pointer(call->args->sums);
  return flp_call_region(call, is_split ? FLP_REGION_weight_low : FLP_REGION_weight_acc);
}

static backward_sink weight_sink(const flp_call *call, const backward_chunk *c) {
  const flp_args *a = call->args;
  const flp_spec *spec = &call->plan->spec;
  CUdeviceptr out = flp_call_pointer(a->grad_weight);
  int by_rows = backward_is_by_rows(call);
  backward_chunk whole = *c;
  if (!by_rows) whole.first = whole.last = 1;
  if (spec->accumulate_grad_weight || (by_rows && spec->grad_weight_dtype == FLP_DTYPE_FP32))
    return (backward_sink){.acc = out,
                           .acc_stride = a->grad_weight_stride,
                           .write_acc = 1,
                           .read_acc = spec->accumulate_grad_weight || !whole.first};
  int64_t stride = 0;
  CUdeviceptr sums = weight_sums(call, &stride);
  return through(sums, stride, &whole, out, a->grad_weight_stride);
}

flp_status backward_launch_products(const flp_call *call, const backward_chunk *c) {
  backward_sink hidden = hidden_sink(call, c), weight = weight_sink(call, c);
  int wants_hidden = (c->grads & FLP_GRAD_HIDDEN) != 0, wants_weight = (c->grads & FLP_GRAD_WEIGHT) != 0;
  if (!wants_hidden && !wants_weight) return FLP_OK;
  if (call->plan->planner.is_mapped)
    return backward_launch_products_map(call, c, wants_hidden ? &hidden : NULL, wants_weight ? &weight : NULL);
  if (wants_hidden) FLP_TRY(launch_grad_hidden(call, c, &hidden));
  return wants_weight ? launch_grad_weight(call, c, &weight) : FLP_OK;
}

/* The kernel writes its accumulator in fp32 and the result in the operands' dtype. */
static backward_sink bias_sink(const flp_call *call, const backward_chunk *c) {
  CUdeviceptr out = flp_call_pointer(call->args->grad_bias);
  if (call->plan->spec.grad_bias_dtype == FLP_DTYPE_FP32)
    return (backward_sink){.acc = out, .acc_stride = 1, .read_acc = !c->first, .write_acc = 1};
  return through(flp_call_region(call, FLP_REGION_bias_acc), 1, c, out, 1);
}

flp_status backward_launch_bias_reduce(const flp_call *call, const backward_chunk *c) {
  backward_chunk whole = *c;
  if (!backward_is_by_rows(call)) whole.first = whole.last = 1;
  backward_sink to = bias_sink(call, &whole);
  if (whole.last) FLP_TRY(flp_launch_score_bias(call, c->bias_part, backward_columns(c)));
  flp_bias_reduce_given p = {
      FLP_GIVE_ROWS(c->rows),
      .tile_rows = (int32_t)backward_dz_desc(call)->tile_rows,
      FLP_GIVE_COLUMNS(c->columns),
      .acc = to.acc,
      .out = to.out,
      .read_acc = to.read_acc,
      .write_acc = to.write_acc,
      .write_out = to.write_out,
  };
  return flp_launch_over(call, FLP_ENTRY_bias_reduce, &p, backward_columns(c), 1);
}
