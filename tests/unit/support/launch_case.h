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

/* stage_args with the workspace of the default budget, and the words' fields. */
static inline flp_args args_of(flp_pass pass, int64_t n, const char *words) {
  flp_args a = stage_args(&spec, pass == FLP_PASS_STEP ? FLP_PASS_BACKWARD : pass, n);
  a.pass = pass;
  if (pass == FLP_PASS_STEP) a.stats = NULL, a.grad_logprob = NULL;
  words_set_args(words, &a);
  if (a.saved) a.saved_bytes = stage_saved(plan, n);
  flp_layout layout = FLP_LAYOUT_INIT;
  int keeps = a.saved != NULL;
  flp_pass own = keeps ? (pass == FLP_PASS_FORWARD ? FLP_PASS_FORWARD_SAVED : FLP_PASS_BACKWARD_SAVED) : pass;
  flp_status status = spec.listed ? flp_plan_layout_listed(plan, own, n, a.list_count, 0, &layout)
                                  : flp_plan_layout(plan, own, n, 0, &layout);
  cr_assert_eq(status, FLP_OK, "%s", flp_error_detail());
  a.workspace_bytes = layout.bytes;
  return a;
}

#endif
