/* lora.c: a low-rank adapter on the head: scores h Wᵀ + u Bᵀ with u = s·(h Aᵀ), and the gradients of A, B and hidden.
 *
 * With G = dz·B:  dh = dz·W + s·G·A,  dA = s·Gᵀ·h,  dB = dzᵀ·u.
 * u is rounded once, to the operands' dtype, as the kernels have it. u Bᵀ is a product of its own that is added to
 * h Wᵀ, so that where B is 0 no bit of a score changes. Tiles of A and G are EAGER_TILE_COLUMNS wide, zeros behind r. */
#include <string.h>

#include "runtime/base/half.h"
#include "runtime/base/util.h"
#include "runtime/eager/core.h"

enum { TILE = EAGER_TILE_COLUMNS };

static const char *element_at(const void *base, int64_t row, int64_t stride, flp_dtype dtype) {
  return (const char *)base + row * stride * flp_half_bytes(dtype);
}

static void set_sizes(const flp_spec *spec, eager_lora *out) {
  *out = (eager_lora){.rank = spec->lora_rank, .padded = flp_round_up(spec->lora_rank, TILE)};
}

void eager_lora_carve_forward(const flp_spec *spec, const eager_plan *plan, eager_block *block, eager_lora *out) {
  set_sizes(spec, out);
  if (!out->rank) return;
  uint64_t rank = (uint64_t)out->rank, threads = (uint64_t)plan->threads;
  out->a = eager_block_take(block, (uint64_t)out->padded * (uint64_t)spec->hidden, sizeof(float));
  out->u = eager_block_take(block, (uint64_t)plan->panel_rows * rank, sizeof(float));
  out->b = eager_block_take(block, threads * TILE * rank, sizeof(float));
  out->more = eager_block_take(block, threads * EAGER_TILE_ROWS * TILE, sizeof(float));
}

int eager_lora_wants_sums(const flp_spec *spec) {
  return spec->lora_rank && (spec->grads & (FLP_GRAD_HIDDEN | FLP_GRAD_LORA_A));
}

void eager_lora_carve_backward(const flp_spec *spec, const eager_plan *plan, int64_t n, eager_block *block,
                               eager_lora *out) {
  set_sizes(spec, out);
  if (!out->rank) return;
  uint64_t rank = (uint64_t)out->rank, padded = (uint64_t)out->padded, depth = (uint64_t)spec->hidden;
  uint64_t chunk = (uint64_t)plan->chunk_columns, all = (uint64_t)flp_round_up(n, EAGER_TILE_ROWS);
  uint64_t rows = plan->mode == FLP_MODE_RECOMPUTE_VOCAB ? all : (uint64_t)plan->panel_rows;
  out->a = eager_block_take(block, padded * depth, sizeof(float));
  out->u = eager_block_take(block, (uint64_t)plan->panel_rows * rank, sizeof(float));
  out->b = eager_block_take(block, chunk * rank, sizeof(float));
  out->more = eager_block_take(block, (uint64_t)plan->threads * EAGER_TILE_ROWS * TILE, sizeof(float));
  if (eager_lora_wants_sums(spec)) out->sums = eager_block_take(block, rows * padded, sizeof(float));
  if (spec->grads & FLP_GRAD_LORA_A) out->grad_a = eager_block_take(block, padded * depth, sizeof(float));
  if (spec->grads & FLP_GRAD_LORA_B) out->grad_b = eager_block_take(block, chunk * rank, sizeof(float));
}

void eager_lora_begin(const eager_call *call, const eager_lora *lora) {
  const flp_spec *spec = call->spec;
  int64_t depth = spec->hidden;
  if (!lora->rank) return;
  for (int64_t i = 0; i < lora->rank; i++)
    flp_half_widen(spec->dtype, element_at(call->args->lora_a, i, call->args->lora_a_stride, spec->dtype), depth,
                   lora->a + i * depth);
  size_t row = (size_t)depth * sizeof(float);
  memset(lora->a + lora->rank * depth, 0, (size_t)(lora->padded - lora->rank) * row);
  if (lora->grad_a) memset(lora->grad_a, 0, (size_t)lora->padded * row);
}

/* s·x, rounded to the operands' dtype. */
static void round_part(const eager_call *call, const float *x, int64_t count, float *out) {
  float scaled[TILE], rounded[TILE];
  float scale = call->args->lora_scale;
  for (int64_t i = 0; i < count; i++) scaled[i] = scale == 0 ? 0 : scale * x[i];
  flp_half_narrow(call->spec->dtype, scaled, count, rounded);
  flp_half_widen(call->spec->dtype, rounded, count, out);
}

void eager_lora_project(const eager_call *call, const eager_lora *lora, int64_t row_tile, const float *hidden,
                        int worker) {
  if (!lora->rank) return;
  int64_t depth = call->spec->hidden;
  float *made = lora->more + worker * EAGER_TILE_ROWS * TILE;
  for (int64_t first = 0; first < lora->rank; first += TILE) {
    eager_tile_scores(hidden, lora->a + first * depth, depth, made);
    int64_t count = flp_min(lora->rank - first, TILE);
    for (int64_t i = 0; i < EAGER_TILE_ROWS; i++)
      round_part(call, made + i * TILE, count, lora->u + (row_tile * EAGER_TILE_ROWS + i) * lora->rank + first);
  }
}

void eager_lora_project_row(const eager_call *call, int64_t row, float *u) {
  const flp_spec *spec = call->spec;
  const flp_args *args = call->args;
  float hidden[EAGER_DEPTH_BLOCK], a[EAGER_DEPTH_BLOCK];
  double exact[FLP_LORA_RANK_MAX] = {0};
  for (int64_t begin = 0; begin < spec->hidden; begin += EAGER_DEPTH_BLOCK) {
    int64_t width = flp_min(spec->hidden - begin, EAGER_DEPTH_BLOCK);
    eager_widen_part(spec, spec->hidden_dtype, args->hidden, row * args->hidden_stride + begin, width, hidden);
    for (int64_t i = 0; i < spec->lora_rank; i++) {
      eager_widen_part(spec, spec->dtype, args->lora_a, i * args->lora_a_stride + begin, width, a);
      exact[i] += eager_dot(hidden, a, width);
    }
  }
  for (int64_t i = 0; i < spec->lora_rank; i++) u[i] = (float)exact[i];
  for (int64_t first = 0; first < spec->lora_rank; first += TILE)
    round_part(call, u + first, flp_min(spec->lora_rank - first, TILE), u + first);
}

void eager_lora_widen_b(const eager_call *call, const eager_lora *lora, int64_t column, float *out) {
  if (!lora->rank) return;
  const flp_args *args = call->args;
  int64_t count = flp_max(flp_min(args->vocab_valid - column, TILE), 0);
  for (int64_t i = 0; i < count; i++)
    flp_half_widen(call->spec->dtype, element_at(args->lora_b, column + i, args->lora_b_stride, call->spec->dtype),
                   lora->rank, out + i * lora->rank);
  memset(out + count * lora->rank, 0, (size_t)((TILE - count) * lora->rank) * sizeof *out);
}

void eager_lora_add_scores(const eager_lora *lora, int64_t row_tile, const float *b, int worker, float *scores) {
  if (!lora->rank) return;
  int64_t rank = lora->rank;
  float *more = lora->more + worker * EAGER_TILE_ROWS * TILE;
  eager_tile_scores(lora->u + row_tile * EAGER_TILE_ROWS * rank, b, rank, more);
  for (int64_t i = 0; i < EAGER_TILE_ROWS * TILE; i++) scores[i] += more[i];
}

void eager_lora_add_sums(const eager_lora *lora, const float *dz, const float *b, float *sums) {
  eager_tile_add(EAGER_GRAD_HIDDEN, dz, TILE, b, lora->rank, (int)lora->rank, sums, lora->padded);
}

void eager_lora_add_grad_b(const eager_lora *lora, const float *dz, int64_t row_tile, int64_t tile) {
  int64_t rank = lora->rank;
  eager_tile_add(EAGER_GRAD_WEIGHT, dz, TILE, lora->u + row_tile * EAGER_TILE_ROWS * rank, rank, (int)rank,
                 lora->grad_b + tile * TILE * rank, rank);
}

void eager_lora_scale_sums(const eager_call *call, const eager_lora *lora, float *sums) {
  for (int64_t i = 0; i < EAGER_TILE_ROWS * lora->padded; i++) sums[i] *= call->args->lora_scale;
}

void eager_lora_add_grad_hidden(const eager_call *call, const eager_lora *lora, const float *sums, int64_t begin,
                                int width, float *grad_hidden) {
  int64_t depth = call->spec->hidden;
  for (int64_t first = 0; first < lora->padded; first += TILE)
    eager_tile_add(EAGER_GRAD_HIDDEN, sums + first, lora->padded, lora->a + first * depth + begin, depth, width,
                   grad_hidden, depth);
}

void eager_lora_add_grad_a(const eager_call *call, const eager_lora *lora, const float *sums, const float *hidden,
                           int64_t first, int64_t begin, int width) {
  int64_t depth = call->spec->hidden;
  eager_tile_add(EAGER_GRAD_WEIGHT, sums + first, lora->padded, hidden + begin, depth, width,
                 lora->grad_a + first * depth + begin, depth);
}

static void write_rows(const flp_spec *spec, const float *sums, int64_t rows, int64_t columns, void *base,
                       int64_t first, int64_t stride) {
  int64_t element = flp_half_bytes(spec->grad_lora_dtype);
  for (int64_t i = 0; i < rows; i++)
    flp_half_narrow(spec->grad_lora_dtype, sums + i * columns, columns, (char *)base + (first + i) * stride * element);
}

void eager_lora_write_grad_a(const eager_call *call, const eager_lora *lora) {
  if (lora->grad_a)
    write_rows(call->spec, lora->grad_a, lora->rank, call->spec->hidden, call->args->grad_lora_a, 0,
               call->args->grad_lora_a_stride);
}

void eager_lora_write_grad_b(const eager_call *call, const eager_lora *lora, int64_t column, int64_t columns) {
  write_rows(call->spec, lora->grad_b, columns, lora->rank, call->args->grad_lora_b, column,
             call->args->grad_lora_b_stride);
}

static void zero_rows(const flp_spec *spec, void *base, int64_t first, int64_t end, int64_t columns, int64_t stride) {
  int64_t element = flp_half_bytes(spec->grad_lora_dtype);
  for (int64_t row = first; row < end; row++)
    memset((char *)base + row * stride * element, 0, (size_t)(columns * element));
}

void eager_lora_fill(const flp_spec *spec, const flp_args *args, int64_t first) {
  if ((spec->grads & FLP_GRAD_LORA_A) && args->n == 0)
    zero_rows(spec, args->grad_lora_a, 0, spec->lora_rank, spec->hidden, args->grad_lora_a_stride);
  if (spec->grads & FLP_GRAD_LORA_B)
    zero_rows(spec, args->grad_lora_b, first, spec->vocab, spec->lora_rank, args->grad_lora_b_stride);
}
