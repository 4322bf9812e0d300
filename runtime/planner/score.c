/* score.c: what losses that read lse or mean_score add to the layouts of a step: their values and derivatives by row, and
 * the sums that the mean and its derivative are made of. Where it is a product with one vector weight and hidden are read
 * once more, and products add what follows from that, but to gradients in fp32; else the step is in recompute mode, and
 * forward and dz are made twice. */
#include "runtime/base/util.h"
#include "runtime/planner/internal.h"

uint64_t flp_planner_added_bytes(const flp_planner *p) {
  return (uint64_t)(p->spec.hidden + FLP_MEAN_ADDED) * 4;
}

void planner_put_pair(const flp_planner *p, flp_scheme *s, int64_t n) {
  int64_t added = FLP_MEAN_ADDED + 2 * (p->spec.hidden + FLP_MEAN_ADDED) + n;
  if (p->step_scores && !flp_kernel_spec_passes_for_mean(&p->spec))
    planner_put_region(s, FLP_REGION_scale_pair, added, 4);
  else if (p->spec.dtype == FLP_DTYPE_FP16)
    planner_put_region(s, FLP_REGION_scale_pair, 2, 4);
}

/* At most so many slabs: at D = 4096 as many CTAs as an H100 runs at once. */
static const int64_t most_slabs = 396, least_slab_rows = 64;

int64_t flp_planner_slab_rows(int64_t rows) {
  return flp_max(flp_ceil_div(rows, most_slabs), least_slab_rows);
}

static void put_sums(const flp_planner *p, flp_scheme *s, int64_t n) {
  int64_t width = p->spec.hidden + 1, rows = flp_max(n, p->spec.vocab); /* fewer may make more slabs, but not than this */
  planner_put_region(s, FLP_REGION_mean_part, flp_min(flp_ceil_div(rows, least_slab_rows), most_slabs) * width, 4);
  planner_put_region(s, FLP_REGION_mean_weight, width, 4);
}

void planner_put_scores(const flp_planner *p, flp_scheme *s, int64_t n) {
  if (!p->step_scores) return;
  PLANNER_PUT_EACH(s, n, 4, FLP_REGION_score_lse, FLP_REGION_score_mean, FLP_REGION_score_grad_lse,
                   FLP_REGION_score_grad_mean, FLP_REGION_score_any, FLP_REGION_score_each);
  planner_put_region(s, FLP_REGION_score_stats, n, 16);
  if (!p->step_mean) return;
  if (!p->mean_passes) {
    put_sums(p, s, n);
    return;
  }
  planner_put_region(s, FLP_REGION_mean_partial, n, 16);
  if (p->spec.listed) return;
  planner_put_region(s, FLP_REGION_mean_record, n, 16);
  planner_put_region(s, FLP_REGION_mean_scale, n, 4);
}

double planner_scores_cost(const flp_planner *p, int64_t n) {
  if (!p->step_mean || p->mean_passes) return 0;
  double element = (double)flp_dtype_bytes(p->spec.dtype), vocab = (double)p->spec.vocab;
  double bytes = (vocab + (double)n) * element; /* of a column of D; fp32 gradients are read and written */
  if (planner_wants(p->spec.grads, FLP_GRAD_HIDDEN) && p->spec.grad_hidden_dtype == FLP_DTYPE_FP32)
    bytes += 8.0 * (double)n;
  if (planner_wants(p->spec.grads, FLP_GRAD_WEIGHT)) bytes += (double)n * element;
  if (planner_wants(p->spec.grads, FLP_GRAD_WEIGHT) && p->spec.grad_weight_dtype == FLP_DTYPE_FP32)
    bytes += 8.0 * vocab;
  return bytes * (double)p->spec.hidden / p->bandwidth;
}

int64_t planner_scores_launches(const flp_planner *p, int64_t row_chunks, int64_t chunks) {
  uint32_t grads = p->spec.grads;
  int64_t launches = p->step_scores ? row_chunks : 0; /* score_rows */
  if (!p->step_mean) return launches;
  /* score_list; dz, score_add */
  if (p->mean_passes) return launches + (p->spec.listed ? 1 : 2 * chunks);
  /* mean_sums, mean_fold, once more for products; mean_sums, mean_fold of hidden; score_hidden, score_head */
  return launches + 3 + 2 * planner_wants(grads, FLP_GRAD_WEIGHT | FLP_GRAD_BIAS) +
         (planner_wants(grads, FLP_GRAD_HIDDEN) && p->spec.grad_hidden_dtype == FLP_DTYPE_FP32) +
         (planner_wants(grads, FLP_GRAD_WEIGHT) && p->spec.grad_weight_dtype == FLP_DTYPE_FP32) +
         planner_wants(grads, FLP_GRAD_BIAS);
}
