/* top.c: best columns and ranks (abi.h): the lists of a chunk of rows, and the slices of the vocabulary in which forward
 * makes them.
 *
 * Of columns in no order a slice lists K·(ratio - 1) columns a row on average, ratio: columns up to its end over columns
 * before it: as many as ratio times a number that is distributed as Gamma(K). One row whose list overflows costs a
 * twentieth of a product, so slices grow by a ratio at which it is one of 10^8. Each boundary costs a part of a wave, and
 * floors. */
#include <math.h>

#include "runtime/planner/internal.h"

/* What Gamma(K) is above once in 10^8. */
static double gamma_most(double k) {
  return k + 5.6 * sqrt(k) + 12;
}

int32_t flp_planner_top_places(const flp_spec *spec) {
  enum { FEW = 24, FEW_PLACES = 1024 };
  if (spec->topk == 0) return 0;
  return spec->topk <= FEW ? FEW_PLACES : FLP_TOP_PLACES_MOST;
}

int64_t flp_planner_top_sample(const flp_spec *spec, int64_t columns) {
  return spec->topk == 0 || columns <= flp_planner_top_places(spec) ? 0 : FLP_LEAF_COLUMNS;
}

double flp_planner_top_ratio(const flp_spec *spec) {
  const double more_gains_nothing = 24;
  return fmin(more_gains_nothing, flp_planner_top_places(spec) / gamma_most(spec->topk));
}

int flp_planner_top_slices(const flp_spec *spec, int64_t columns) {
  int64_t sample = flp_planner_top_sample(spec, columns);
  if (!sample) return 1;
  double most = flp_planner_top_ratio(spec);
  int slices = 1;
  while (pow((double)columns / (double)sample, 1.0 / slices) > most) slices++;
  return slices;
}

int flp_planner_has_top(const flp_spec *spec) {
  return spec->topk > 0 || spec->rank;
}

int flp_planner_has_row_values(const flp_spec *spec) {
  return flp_planner_has_top(spec) || spec->statistics;
}

void planner_put_top(const flp_planner *p, flp_scheme *s, int64_t n, int64_t rows) {
  if (!flp_planner_has_top(&p->spec)) return;
  int64_t places = flp_planner_top_places(&p->spec);
  PLANNER_PUT_EACH(s, rows, 4, FLP_REGION_top_low, FLP_REGION_top_floor, FLP_REGION_top_mark, FLP_REGION_top_count,
                   FLP_REGION_top_above);
  planner_put_region(s, FLP_REGION_top_lost, 1 + rows, 4);
  planner_put_stats(s, n);
  if (places) PLANNER_PUT_EACH(s, rows * places, 4, FLP_REGION_top_column, FLP_REGION_top_score);
}

int64_t planner_values_launches(const flp_planner *p, int64_t chunks) {
  const flp_spec *spec = &p->spec;
  int64_t statistics = spec->statistics ? chunks : 0;
  if (!flp_planner_has_top(spec)) return statistics;
  int sample = flp_planner_top_sample(spec, spec->vocab) > 0, slices = flp_planner_top_slices(spec, spec->vocab);
  /* top_begin, top_finish; top_target; more slices, at most, a floor for each, and top_redo; top_others */
  int64_t chunk = 2 + spec->rank + (spec->topk ? 2 * (sample + slices) : 0);
  return chunk * chunks + 1 + statistics;
}
