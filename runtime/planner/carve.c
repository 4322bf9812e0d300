/* carve.c: the arrays of a workspace, one behind the other, and how large they are. */
#include "runtime/base/util.h"
#include "runtime/base/operands.h"
#include "runtime/planner/internal.h"

enum { REGION_ALIGNMENT = 256, DZ_ALIGNMENT = 64 };

int64_t flp_planner_dz_stride(int64_t columns) {
  return flp_round_up(columns, DZ_ALIGNMENT);
}

int64_t flp_planner_gather_stride(int64_t depth) {
  enum { TENSOR_MAP_ELEMENTS = 8 }; /* strides are multiples of 16 bytes, elements have 2 or 4 */
  return flp_round_up(depth, TENSOR_MAP_ELEMENTS);
}

uint64_t planner_round_up(uint64_t bytes) {
  return flp_round_up_u64(bytes, REGION_ALIGNMENT);
}

uint64_t flp_planner_references_bytes(int64_t n) {
  return planner_round_up((uint64_t)n * 4);
}

uint64_t planner_exponentials_bytes(const flp_spec *spec, int64_t n) {
  uint64_t row = (uint64_t)flp_planner_dz_stride(spec->vocab) * flp_dtype_bytes(spec->dtype);
  return flp_planner_references_bytes(n) + (uint64_t)n * row;
}

int64_t flp_planner_redo_columns(const flp_planner *p, int64_t chunk_rows, int64_t chunk_vocab) {
  int64_t rows = flp_min(chunk_rows, FLP_KEPT_BLOCK_ROWS), room = chunk_rows / rows;
  return flp_min(room * flp_planner_dz_stride(chunk_vocab), p->spec.vocab);
}

/* ---- arrays ---- */

void planner_put_region(flp_scheme *s, flp_region region, int64_t count, uint64_t element_bytes) {
  s->offset[region] = s->bytes;
  s->size[region] = (uint64_t)count * element_bytes;
  s->bytes += planner_round_up(s->size[region]);
}

void planner_put_rows(flp_scheme *s, int64_t n) {
  planner_put_region(s, FLP_REGION_row_class, n, 1);
  PLANNER_PUT_EACH(s, n, 4, FLP_REGION_index, FLP_REGION_local_target, FLP_REGION_scale);
  planner_put_region(s, FLP_REGION_count, 1, 4);
}

void planner_put_part(const flp_planner *p, flp_scheme *s, int64_t n, int64_t count) {
  planner_put_region(s, FLP_REGION_part, count, 12);
  if (!p->spec.statistics) return;
  planner_put_region(s, FLP_REGION_statistics_part, count, 8);
  planner_put_stats(s, n);
}

void planner_put_stats(flp_scheme *s, int64_t n) {
  if (!s->size[FLP_REGION_stats]) planner_put_region(s, FLP_REGION_stats, n, 16);
}

uint64_t planner_dz_bytes(const flp_planner *p, int64_t rows, int64_t columns) {
  return (uint64_t)rows * (uint64_t)flp_planner_dz_stride(columns) * flp_dtype_bytes(p->spec.dtype);
}

uint64_t planner_bias_part_bytes(const flp_planner *p, int64_t rows, int64_t columns) {
  if (!(p->spec.grads & FLP_GRAD_BIAS)) return 0;
  return (uint64_t)(flp_ceil_div(rows, p->dz_unit_rows) * (p->dz_unit_rows / p->dz_rows)) * (uint64_t)columns * 4;
}

/* Three roundings at 2^-12 of a sum add up to a tenth of bf16's own at 2^-8. */
int flp_planner_weight_low_bits(int64_t chunks) {
  enum { FEW_CHUNKS = 4 };
  return chunks <= FEW_CHUNKS ? 4 : 8;
}

double flp_planner_weight_sum_bytes(const flp_planner *p, int64_t chunks) {
  return p->spec.grad_weight_dtype == FLP_DTYPE_BF16 ? 2 + flp_planner_weight_low_bits(chunks) / 8.0 : 4;
}

/* Of each element of whole tiles. */
static int64_t weight_low_bytes(const flp_planner *p, int64_t chunks) {
  int64_t elements = flp_round_up(p->spec.vocab, p->weight_rows) * flp_round_up(p->spec.hidden, p->weight_columns);
  return elements / 8 * flp_planner_weight_low_bits(chunks);
}

/* An fp32 gradient is its own accumulator; one in bf16 holds the upper half of its own (abi.h). */
static void put_weight_accumulator(const flp_planner *p, flp_scheme *s) {
  if (p->spec.grad_weight_dtype == FLP_DTYPE_BF16)
    planner_put_region(s, FLP_REGION_weight_low, weight_low_bytes(p, s->chunks), 1);
  else if (p->spec.grad_weight_dtype != FLP_DTYPE_FP32)
    planner_put_region(s, FLP_REGION_weight_acc, p->spec.vocab * p->spec.hidden, 4);
}

void planner_put_head_accumulators(const flp_planner *p, flp_scheme *s) {
  uint32_t grads = p->spec.grads;
  if (grads & FLP_GRAD_WEIGHT) put_weight_accumulator(p, s);
  if ((grads & FLP_GRAD_BIAS) && p->spec.grad_bias_dtype != FLP_DTYPE_FP32)
    planner_put_region(s, FLP_REGION_bias_acc, p->spec.vocab, 4);
}

/* Rows put together, and the counter by which CTAs share out the work. */
void planner_put_gather(const flp_planner *p, flp_scheme *s, int64_t gathered) {
  planner_put_region(s, FLP_REGION_gather,
                     gathered * flp_planner_gather_stride(p->spec.hidden * flp_operand_terms(&p->spec)),
                     flp_dtype_bytes(p->spec.dtype));
  planner_put_region(s, FLP_REGION_turn, 1, 4);
}
