/* planner_case.h: what the tests of layouts share: a layout that must be found, and what holds for the arrays of any. */
#ifndef FLP_TEST_PLANNER_CASE_H
#define FLP_TEST_PLANNER_CASE_H

#include <criterion/criterion.h>

#include "runtime/planner/planner.h"

static inline flp_scheme pick(const flp_planner *p, flp_pass pass, int64_t n, uint64_t budget) {
  flp_scheme s;
  cr_assert_eq(flp_planner_pick(p, pass, n, budget, 1, &s), FLP_OK, "%s", flp_error_detail());
  return s;
}

static inline int is_in(uint64_t mask, int region) {
  return region < 64 && (mask >> region & 1);
}

/* Every array starts aligned, ends inside, and overlaps no other; but those of a mask, of the first 64 regions, may lie over
 * each other. */
static inline void expect_disjoint_but(const flp_scheme *s, uint64_t mask) {
  for (int a = 0; a < FLP_REGION_ID_COUNT; a++) {
    if (!s->size[a]) continue;
    cr_expect_eq(s->offset[a] % 256, 0);
    cr_expect_leq(s->offset[a] + s->size[a], s->bytes);
    for (int b = 0; b < a; b++) {
      if (!s->size[b] || (is_in(mask, a) && is_in(mask, b))) continue;
      cr_expect(s->offset[a] >= s->offset[b] + s->size[b] || s->offset[b] >= s->offset[a] + s->size[a],
                "regions %d and %d overlap", a, b);
    }
  }
}

static inline void expect_disjoint(const flp_scheme *s) {
  expect_disjoint_but(s, 0);
}

#endif
