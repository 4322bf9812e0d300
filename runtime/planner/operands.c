/* operands.c: what a workspace has of operands of another dtype than products take (abi.h, operands of two dtypes). */
#include "runtime/base/operands.h"

#include "runtime/base/util.h"
#include "runtime/planner/internal.h"

static uint64_t row_bytes(const flp_planner *p) {
  return (uint64_t)(p->spec.hidden * flp_operand_terms(&p->spec)) * flp_dtype_bytes(p->spec.dtype);
}

void planner_put_operands(const flp_planner *p, flp_scheme *s, int64_t n) {
  const flp_spec *spec = &p->spec;
  if (p->operands_made) return;
  if (flp_hidden_is_made(spec)) planner_put_region(s, FLP_REGION_operand_hidden, n, row_bytes(p));
  if (spec->has_bias && flp_bias_dtype(spec) != spec->dtype)
    planner_put_region(s, FLP_REGION_operand_bias, spec->vocab, flp_dtype_bytes(spec->dtype));
}

void planner_begin(const flp_planner *p, flp_scheme *s, flp_mode mode, int64_t n, int64_t rows, int64_t columns) {
  int64_t chunks = flp_ceil_div(n, rows) * flp_ceil_div(p->spec.vocab, columns);
  *s = (flp_scheme){.mode = mode, .chunk_rows = rows, .chunk_vocab = columns, .chunks = chunks};
  planner_put_rows(s, n);
  planner_put_operands(p, s, n);
}

void planner_put_slice(const flp_planner *p, flp_scheme *s, int64_t columns, int ahead, int64_t first) {
  s->slice = flp_weight_is_sliced(&p->spec) ? columns : 0;
  s->ahead = ahead;
  s->first = first;
  if (s->slice) planner_put_region(s, FLP_REGION_operand_weight, ahead ? 2 * columns : columns, row_bytes(p));
}

int64_t flp_planner_slice_end(const flp_scheme *s, int64_t begin) {
  if (begin >= s->slice) return (begin / s->slice + 1) * s->slice;
  if (begin < s->first) return s->first;
  return begin < 3 * s->first ? flp_min(3 * s->first, s->slice) : s->slice;
}

static double source_bytes(const flp_planner *p) {
  return (double)p->spec.hidden * (double)flp_dtype_bytes(flp_weight_dtype(&p->spec));
}

/* Read and written, by a launch of its own. */
double planner_slice_cost(const flp_planner *p, int64_t columns) {
  if (!flp_weight_is_sliced(&p->spec)) return 0;
  return (double)columns * (source_bytes(p) + (double)row_bytes(p)) / p->bandwidth + planner_launch_seconds;
}

/* Two warps of a multiprocessor have 2 KiB each on the way, which come within some 1.3 us; a quarter is added, as products
 * of this model are by so much faster than real ones. */
double planner_ahead_cost(const flp_planner *p, int64_t columns) {
  static const double rate = 4e9;
  return (double)columns * source_bytes(p) / (rate * p->multiprocessors);
}

int planner_makes_ahead(const flp_planner *p) {
  return p->is_mapped && flp_weight_dtype(&p->spec) != p->spec.dtype;
}
