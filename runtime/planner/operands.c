/* operands.c: what a workspace has of operands of another dtype than products take (abi.h, operands of two dtypes). */
#include "runtime/kernel/operands.h"

#include "runtime/base/util.h"
#include "runtime/planner/internal.h"

static uint64_t row_bytes(const flp_planner *p) {
  return (uint64_t)(p->spec.hidden * flp_operand_terms(&p->spec)) * flp_dtype_bytes(p->spec.dtype);
}

void planner_put_operands(const flp_planner *p, flp_scheme *s, int64_t n) {
  const flp_spec *spec = &p->spec;
  if (flp_hidden_is_made(spec)) planner_put_region(s, FLP_REGION_operand_hidden, n, row_bytes(p));
  if (spec->has_bias && flp_bias_dtype(spec) != spec->dtype)
    planner_put_region(s, FLP_REGION_operand_bias, spec->vocab, flp_dtype_bytes(spec->dtype));
}

void planner_put_slice(const flp_planner *p, flp_scheme *s, int64_t columns) {
  s->slice = flp_weight_is_sliced(&p->spec) ? columns : 0;
  if (s->slice) planner_put_region(s, FLP_REGION_operand_weight, columns, row_bytes(p));
}

/* A slice is read and written, and a launch more. */
double planner_slices_cost(const flp_planner *p, int64_t slices, int64_t times) {
  if (!flp_weight_is_sliced(&p->spec)) return 0;
  uint64_t bytes = (uint64_t)p->spec.hidden * flp_dtype_bytes(flp_weight_dtype(&p->spec)) + row_bytes(p);
  return (double)times * ((double)p->spec.vocab * (double)bytes / p->bandwidth + 4e-6 * (double)slices);
}

flp_planner planner_of_made_operands(const flp_planner *p) {
  flp_planner made = *p;
  made.spec.hidden_dtype = made.spec.bias_dtype = p->spec.dtype;
  return made;
}
