/* lora.c: a low-rank adapter on the head (abi.h): u of all rows before scores are made, and the gradients of A and B.
 *
 * With G = dz·B: dB = dzᵀ·u comes from each chunk of dz, as G does; when G is whole, dh += s·G·A and dA = s·Gᵀ·h. */
#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/launch/backward.h"

static const flp_spec *spec_of(const flp_call *call) {
  return &call->plan->spec;
}

static int wants(const flp_call *call, uint32_t grads) {
  return (spec_of(call)->grads & grads) != 0;
}

flp_status flp_launch_lora_project(const flp_call *call) {
  const flp_args *a = call->args;
  const flp_kernel_desc *desc = flp_call_desc(call, FLP_KERNEL_LORA);
  if (!spec_of(call)->lora_rank) return FLP_OK;
  int64_t tiles_m = flp_ceil_div(a->n, desc->tile_rows);
  int64_t tiles_n = flp_ceil_div(spec_of(call)->lora_rank, desc->tile_columns);
  flp_lora_project_given p = {.row_end = (int32_t)a->n, FLP_GIVE_TILES(tiles_m, tiles_n)};
  return flp_launch(call, FLP_ENTRY_lora_project, &p, tiles_m * tiles_n);
}

/* ---- products ---- */

static backward_product product_of(const flp_call *call, flp_entry_id entry, CUdeviceptr operand, int64_t stride,
                                   int64_t depth) {
  CUdeviceptr index = flp_call_region(call, FLP_REGION_index);
  return (backward_product){FLP_KERNEL_LORA, entry, operand, stride, index, depth};
}

/* G, over all chunks of columns. */
static backward_sink sum_sink(const flp_call *call, const backward_chunk *c) {
  return (backward_sink){.acc = flp_call_region(call, FLP_REGION_lora_sum),
                         .acc_stride = spec_of(call)->lora_rank,
                         .read_acc = call->scheme.mode == FLP_MODE_RECOMPUTE_VOCAB && !c->first,
                         .write_acc = 1};
}

/* dB, over all chunks of rows: an f32 gradient is its own sum. */
static backward_sink b_sink(const flp_call *call, const backward_chunk *c) {
  const flp_args *a = call->args;
  int by_rows = backward_is_by_rows(call);
  int reads = by_rows && !c->first, writes = by_rows && !c->last;
  CUdeviceptr out = flp_call_pointer(a->grad_lora_b);
  if (spec_of(call)->grad_lora_dtype == FLP_DTYPE_FP32)
    return (backward_sink){.acc = out, .acc_stride = a->grad_lora_b_stride, .read_acc = reads, .write_acc = 1};
  return (backward_sink){.acc = flp_call_region(call, FLP_REGION_lora_b_acc),
                         .acc_stride = spec_of(call)->lora_rank,
                         .out = out,
                         .out_stride = a->grad_lora_b_stride,
                         .read_acc = reads,
                         .write_acc = writes,
                         .write_out = !writes};
}

/* u of a chunk's rows as dB takes it. */
static CUdeviceptr u_of(const flp_call *call, const backward_chunk *c) {
  return c->factor ? flp_call_region(call, FLP_REGION_lora_scaled) : flp_lora_u(call, c->rows.begin);
}

/* u times the factors of saved exponentials, of a chunk's rows. */
static flp_status launch_factor(const flp_call *call, const backward_chunk *c) {
  flp_lora_factor_given p = {FLP_GIVE_ROWS(c->rows)};
  return flp_launch_over(call, FLP_ENTRY_lora_factor, &p, backward_rows(c), 32);
}

flp_status backward_launch_lora_products(const flp_call *call, const backward_chunk *c) {
  if (!spec_of(call)->lora_rank) return FLP_OK;
  backward_sink sum = sum_sink(call, c), b = b_sink(call, c);
  int wants_sum = wants(call, FLP_GRAD_HIDDEN | FLP_GRAD_LORA_A), wants_b = wants(call, FLP_GRAD_LORA_B);
  if (!wants_sum && !wants_b) return FLP_OK;
  if (wants_b && c->factor) FLP_TRY(launch_factor(call, c));
  if (call->plan->planner.is_mapped)
    return backward_launch_lora_products_map(call, c, u_of(call, c), wants_sum ? &sum : NULL, wants_b ? &b : NULL);
  int64_t rank = spec_of(call)->lora_rank;
  backward_product by_b = product_of(call, FLP_ENTRY_lora_rows, flp_lora_b(call, 0), call->args->lora_b_stride, rank);
  backward_product by_u = product_of(call, FLP_ENTRY_lora_columns, u_of(call, c), rank, rank);
  by_u.index = 0;
  if (wants_sum) FLP_TRY(backward_launch_product(call, c, &by_b, &sum));
  return wants_b ? backward_launch_product(call, c, &by_u, &b) : FLP_OK;
}

/* ---- what follows from G ---- */

/* Where hidden's gradient is of lists, which then add what is made here. */
static int is_listed(const flp_call *call) {
  return call->scheme.mode == FLP_MODE_LISTED || call->scheme.mode == FLP_MODE_TAIL;
}

/* s·G in the operands' dtype. Of fp16 by a power of two that brings its largest element to 2^14, in the place of dz's, of
 * which there are no more chunks. */
static flp_status launch_round(const flp_call *call) {
  int64_t n = call->args->n;
  int is_scaled = spec_of(call)->dtype == FLP_DTYPE_FP16;
  if (is_scaled || is_listed(call)) FLP_TRY(flp_launch_over(call, FLP_ENTRY_lora_bound, NULL, n, 32));
  if (is_scaled) FLP_TRY(flp_launch(call, FLP_ENTRY_dz_scale, NULL, 1));
  return flp_launch_over(call, FLP_ENTRY_lora_round, NULL, n, 32);
}

flp_status flp_launch_lora_gradients(const flp_call *call) {
  const flp_args *a = call->args;
  if (!spec_of(call)->lora_rank || !wants(call, FLP_GRAD_HIDDEN | FLP_GRAD_LORA_A)) return FLP_OK;
  int64_t rank = spec_of(call)->lora_rank, depth = spec_of(call)->hidden;
  backward_chunk all = {.rows = {0, a->n},
                        .columns = {0, rank},
                        .dz = flp_call_region(call, FLP_REGION_lora_gradient),
                        .dz_stride = rank};
  backward_product by_a = product_of(call, FLP_ENTRY_lora_rows, flp_call_pointer(a->lora_a), a->lora_a_stride, depth);
  backward_product by_hidden =
      product_of(call, FLP_ENTRY_lora_columns, flp_call_pointer(a->hidden), a->hidden_stride, depth);
  backward_sink hidden = {.acc = flp_call_region(call, FLP_REGION_hidden_acc),
                          .acc_stride = depth,
                          FLP_GIVE_GRAD_HIDDEN(a),
                          .read_acc = !is_listed(call),
                          .write_acc = is_listed(call),
                          .write_out = !is_listed(call)};
  CUdeviceptr out = flp_call_pointer(a->grad_lora_a);
  int is_f32 = spec_of(call)->grad_lora_dtype == FLP_DTYPE_FP32, is_sum = is_f32 || call->lora_a_acc;
  CUdeviceptr sum = call->lora_a_acc ? call->lora_a_acc : flp_call_region(call, FLP_REGION_lora_a_acc);
  backward_sink of_a = {.acc = is_f32 ? out : sum,
                        .acc_stride = is_f32 ? a->grad_lora_a_stride : depth,
                        .out = out,
                        .out_stride = a->grad_lora_a_stride,
                        .read_acc = call->scheme.mode == FLP_MODE_TAIL, /* of the rows that were recomputed */
                        .write_acc = is_sum,
                        .write_out = !is_sum};
  FLP_TRY(launch_round(call));
  if (wants(call, FLP_GRAD_HIDDEN)) FLP_TRY(backward_launch_product(call, &all, &by_a, &hidden));
  all.factor = flp_call_region(call, is_listed(call) ? FLP_REGION_bound : FLP_REGION_factor);
  return wants(call, FLP_GRAD_LORA_A) ? backward_launch_product(call, &all, &by_hidden, &of_a) : FLP_OK;
}

flp_status flp_launch_zero_lora(const flp_call *call, int64_t first) {
  const flp_args *a = call->args;
  const flp_spec *spec = spec_of(call);
  flp_gradient of_a = {a->grad_lora_a, spec->grad_lora_dtype, a->grad_lora_a_stride, spec->lora_rank, spec->hidden};
  flp_gradient of_b = {a->grad_lora_b, spec->grad_lora_dtype, a->grad_lora_b_stride, spec->vocab, spec->lora_rank};
  if (wants(call, FLP_GRAD_LORA_A) && a->n == 0) FLP_TRY(flp_launch_zero(call, of_a, 0));
  return wants(call, FLP_GRAD_LORA_B) ? flp_launch_zero(call, of_b, first) : FLP_OK;
}
