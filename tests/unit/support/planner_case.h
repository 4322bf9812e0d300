/* planner_case.h: what the tests of layouts share: planners of specs by their words, on the stand-ins' device, and a
 * layout that must be found. */
#ifndef FLP_TEST_PLANNER_CASE_H
#define FLP_TEST_PLANNER_CASE_H

#include <criterion/criterion.h>

#include "runtime/plan/plan.h"
#include "tests/unit/support/stage.h"
#include "tests/unit/support/words.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define MAPPED "capability=9.0"

/* The planner of a plan; good until the next one but one. device: "" or MAPPED */
static inline flp_planner planner_of(const char *device, const char *spec) {
  static stage s;
  static flp_plan *plans[2];
  static int made;
  flp_plan **plan = &plans[made++ % 2];
  flp_spec wanted = words_spec(spec);
  flp_options options = words_options("");
  if (made == 1) stage_open(&s, "");
  s.script(device);
  flp_plan_destroy(*plan);
  *plan = stage_plan(&wanted, &options);
  return (*plan)->planner;
}

/* Ids of all lists over that many rows, where columns are listed. */
static inline int64_t ids_of(int64_t n) {
  return 20 * n;
}

/* What picks a layout of the spec. query: as of flp_planner_pick */
static inline flp_status try_pick(const flp_planner *p, flp_pass pass, int64_t n, uint64_t budget, int query,
                                  flp_scheme *out) {
  if (p->spec.listed && pass != FLP_PASS_COMBINE)
    return flp_planner_pick_listed(p, pass, n, ids_of(n), budget, out);
  return flp_planner_pick(p, pass, n, budget, query, out);
}

static inline flp_scheme pick(const flp_planner *p, flp_pass pass, int64_t n, uint64_t budget) {
  flp_scheme s;
  cr_assert_eq(try_pick(p, pass, n, budget, 1, &s), FLP_OK, "%s", flp_error_detail());
  return s;
}

/* The bytes of the smallest layout. */
static inline uint64_t smallest(const flp_planner *p, flp_pass pass, int64_t n) {
  flp_scheme s;
  cr_assert_eq(try_pick(p, pass, n, 0, 0, &s), FLP_ERROR_BUDGET);
  return s.smallest_bytes;
}

#endif
