/* given.c: the one layout of a backward pass whose gradient of raw scores the caller has: what its products read. */
#include "runtime/base/util.h"
#include "runtime/planner/internal.h"

uint64_t flp_planner_sums_bytes(const flp_planner *p) {
  flp_scheme sums = {.chunks = FLP_GIVEN_CALLS};
  planner_put_head_accumulators(p, &sums);
  return sums.bytes;
}

void planner_search_given(planner_search *s) {
  const flp_planner *p = s->planner;
  uint32_t grads = p->spec.grads;
  int hidden = planner_wants(grads, FLP_GRAD_HIDDEN), weight = planner_wants(grads, FLP_GRAD_WEIGHT);
  int is_scaled = p->spec.dtype == FLP_DTYPE_FP16;
  flp_scheme only;
  planner_begin(p, &only, FLP_MODE_GIVEN, s->n, s->n, p->spec.vocab);
  if (is_scaled) planner_put_region(&only, FLP_REGION_bound, s->n, 4);
  planner_put_pair(p, &only, s->n);
  if (p->is_mapped) planner_put_gather(p, &only, s->n);
  only.products = hidden + weight;
  /* prepare, dz_scale, gather, products, fill */
  only.launches = 1 + is_scaled + p->is_mapped + (p->is_mapped ? 1 : only.products) + hidden;
  if (flp_planner_grids_fit(p, s->n, p->spec.vocab)) planner_offer(s, &only);
}
