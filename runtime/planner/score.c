/* score.c: what losses that read lse or mean_score add to the layouts of a step: their values and derivatives by row, and
 * the sums that the mean and its derivative are made of. Without a softcap these are read once more, weight and hidden,
 * beside the products; with one the step is in recompute mode, and forward and dz are made twice. */
#include "runtime/base/util.h"
#include "runtime/planner/internal.h"

int flp_planner_has_capped_mean(const flp_planner *p) {
  return p->step_mean && p->spec.softcap > 0;
}

static void put_sums(const flp_planner *p, flp_scheme *s, int64_t n) {
  int64_t width = p->spec.hidden + 1, rows = flp_max(n, p->spec.vocab);
  planner_put_region(s, FLP_REGION_mean_part, flp_ceil_div(rows, FLP_MEAN_ROWS) * width, 4);
  planner_put_region(s, FLP_REGION_mean_weight, width, 4);
  planner_put_region(s, FLP_REGION_mean_hidden, width, 4);
}

void planner_put_scores(const flp_planner *p, flp_scheme *s, int64_t n) {
  static const flp_region by_row[] = {FLP_REGION_score_lse,       FLP_REGION_score_mean, FLP_REGION_score_grad_lse,
                                      FLP_REGION_score_grad_mean, FLP_REGION_score_any,  FLP_REGION_score_each};
  if (!p->step_scores) return;
  for (size_t i = 0; i < sizeof by_row / sizeof by_row[0]; i++) planner_put_region(s, by_row[i], n, 4);
  planner_put_region(s, FLP_REGION_score_stats, n, 16);
  if (!p->step_mean) return;
  if (!flp_planner_has_capped_mean(p)) {
    put_sums(p, s, n);
    return;
  }
  planner_put_region(s, FLP_REGION_capped_record, n, 16);
  planner_put_region(s, FLP_REGION_capped_scale, n, 4);
  planner_put_region(s, FLP_REGION_capped_partial, n, 16);
}

double planner_scores_cost(const flp_planner *p, int64_t n) {
  if (!p->step_mean || flp_planner_has_capped_mean(p)) return 0;
  double element = (double)flp_dtype_bytes(p->spec.dtype), vocab = (double)p->spec.vocab;
  double rows = vocab + (double)n * (planner_wants(p->spec.grads, FLP_GRAD_HIDDEN) ? 3 : 1);
  if (planner_wants(p->spec.grads, FLP_GRAD_WEIGHT)) rows += 2 * vocab + (double)n;
  return rows * (double)p->spec.hidden * element / p->bandwidth;
}

int64_t planner_scores_launches(const flp_planner *p, int64_t chunks) {
  uint32_t grads = p->spec.grads;
  int64_t launches = p->step_scores ? chunks : 0; /* score_rows */
  if (!p->step_mean) return launches;
  if (flp_planner_has_capped_mean(p)) return launches + 2 * chunks + 3; /* dz, score_add; prepare, forward, combine */
  /* mean_sums, mean_fold; score_hidden; mean_sums, mean_fold, score_head */
  return launches + 2 + planner_wants(grads, FLP_GRAD_HIDDEN) +
         3 * planner_wants(grads, FLP_GRAD_WEIGHT | FLP_GRAD_BIAS);
}
