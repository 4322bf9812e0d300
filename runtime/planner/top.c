/* top.c: best columns and ranks (abi.h): the lists of a chunk of rows, and the slices of the vocabulary in which forward
 * makes them.
 *
 * Of columns in no order a slice lists K·(ratio - 1) columns a row, ratio: columns behind it over columns before it. So
 * slices grow by a ratio that fills half a list at most. Each boundary costs a part of a wave, and floors. */
#include <math.h>

#include "runtime/base/util.h"
#include "runtime/planner/internal.h"

/* With few best columns what a slice lists varies more: lists overflow once in e^(places/ratio) rows of one. */
static const double ratio_most = 24;

int32_t flp_planner_top_places(const flp_spec *spec) {
  enum { FEW = 32, FEW_PLACES = 1024 };
  if (spec->topk == 0) return 0;
  return spec->topk <= FEW ? FEW_PLACES : FLP_TOP_PLACES_MOST;
}

int64_t flp_planner_top_sample(const flp_spec *spec, int64_t columns) {
  return spec->topk == 0 || columns <= flp_planner_top_places(spec) ? 0 : FLP_LEAF_COLUMNS;
}

int flp_planner_top_slices(const flp_spec *spec, int64_t columns) {
  int64_t sample = flp_planner_top_sample(spec, columns);
  if (!sample) return 1;
  double most = fmin(ratio_most, flp_planner_top_places(spec) / (2.0 * spec->topk));
  int slices = 1;
  while (pow((double)columns / (double)sample, 1.0 / slices) > most) slices++;
  return slices;
}

int flp_planner_has_top(const flp_spec *spec) {
  return spec->topk > 0 || spec->rank;
}

void planner_put_top(const flp_planner *p, flp_scheme *s, int64_t n, int64_t rows) {
  static const flp_region by_row[] = {FLP_REGION_top_low, FLP_REGION_top_floor, FLP_REGION_top_mark,
                                      FLP_REGION_top_count, FLP_REGION_top_above};
  if (!flp_planner_has_top(&p->spec)) return;
  int64_t places = flp_planner_top_places(&p->spec);
  for (size_t i = 0; i < sizeof by_row / sizeof by_row[0]; i++) planner_put_region(s, by_row[i], rows, 4);
  planner_put_region(s, FLP_REGION_top_lost, 1 + rows, 4);
  planner_put_region(s, FLP_REGION_stats, n, 16);
  if (!places) return;
  planner_put_region(s, FLP_REGION_top_column, rows * places, 4);
  planner_put_region(s, FLP_REGION_top_score, rows * places, 4);
}

int64_t planner_top_launches(const flp_planner *p, int64_t chunks) {
  const flp_spec *spec = &p->spec;
  if (!flp_planner_has_top(spec)) return 0;
  int sample = flp_planner_top_sample(spec, spec->vocab) > 0, slices = flp_planner_top_slices(spec, spec->vocab);
  /* top_begin, top_finish; top_target; more slices than one, a floor for each, and top_redo; top_others */
  int64_t chunk = 2 + spec->rank + (spec->topk ? 2 * (sample + slices) : 0);
  return chunk * chunks + 1;
}
