/* launch_case.h: what the tests of a device's launches play with: the stand-ins, and one plan on them. */
#ifndef FLP_TEST_LAUNCH_CASE_H
#define FLP_TEST_LAUNCH_CASE_H

#include <criterion/criterion.h>

#include "tests/unit/support/stage.h"
#include "tests/unit/support/words.h"

static stage s;
static flp_spec spec;
static flp_plan *plan;

/* A plan of that spec, by its words, in the place of the present one; options NULL: those of words_options(""). */
static inline void use_plan(const char *words, const flp_options *options) {
  flp_options usual = words_options("");
  flp_plan_destroy(plan);
  spec = words_spec(words);
  plan = stage_plan(&spec, options ? options : &usual);
}

static inline void open_plan(const char *cuda_script, const char *words) {
  stage_open(&s, cuda_script);
  use_plan(words, NULL);
}

static inline void close_plan(void) {
  flp_plan_destroy(plan);
}

/* words_call that must succeed. */
static inline flp_args args_of(flp_pass pass, const char *words) {
  flp_args a;
  cr_assert_eq(words_call(plan, &spec, pass, words, &a), FLP_OK, "%s", flp_error_detail());
  return a;
}

#endif
