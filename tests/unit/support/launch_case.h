/* launch_case.h: what the tests of a device's launches play with: the stand-ins, and one plan on them. */
#ifndef FLP_TEST_LAUNCH_CASE_H
#define FLP_TEST_LAUNCH_CASE_H

#include "tests/unit/support/stage.h"

static stage s;
static flp_spec spec;
static flp_plan *plan;

/* Another plan in the place of the present one. */
static inline void use_plan(flp_spec wanted, const flp_options *options) {
  flp_plan_destroy(plan);
  spec = wanted;
  plan = stage_plan(&spec, options);
}

static inline void open_plan(const char *cuda_script, flp_spec wanted, int64_t chunk_rows, flp_mode mode) {
  flp_options options = stage_options(chunk_rows, mode);
  stage_open(&s, cuda_script);
  use_plan(wanted, &options);
}

static inline void close_plan(void) {
  flp_plan_destroy(plan);
}

static inline size_t saved_bytes(int64_t n) {
  return stage_saved(plan, n);
}

#endif
