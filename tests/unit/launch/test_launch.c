/* test_launch.c: what a trace of a call (tests/golden/launch, tests/golden/plan/calls.txt) cannot say: checks of every
 * call, and layouts that a plan remembers. */
#include <criterion/criterion.h>

#include "tests/unit/support/launch_case.h"

TestSuite(launch, .fini = close_plan);

Test(launch, strict_mode_checks_every_call) {
  flp_options options = words_options("rung=auto strict");
  stage_open(&s, "badrows=2");
  use_plan("", &options);
  flp_args a = args_of(FLP_PASS_FORWARD, "n=100");
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_DATA);
  s.script("");
  stage_execute(&s, plan, &a);
  cr_expect_eq(s.calls("cuStreamSynchronize"), 1);
}

/* A layout of fewer ids in the same workspace is another one. */
Test(launch, the_last_layout_is_taken_for_as_many_ids_alone) {
  open_plan("", "grads=weight listed");
  flp_args a = args_of(FLP_PASS_BACKWARD, "n=10 list_offsets list_ids list_count=5000");
  stage_execute(&s, plan, &a);
  flp_list_place_params many = STAGE_PARAMS(flp_list_place_params, stage_launch(&s, "list_place", 1));
  a.list_count = 100;
  stage_execute(&s, plan, &a);
  flp_list_place_params few = STAGE_PARAMS(flp_list_place_params, stage_launch(&s, "list_place", 1));
  cr_expect_lt(few.to, many.to);
  a.list_count = 6000;
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_WORKSPACE);
}
