/* test_launch.c: what a trace of a call (tests/golden/launch, tests/golden/plan/calls.txt) cannot say: checks of every call,
 * the eager rung, and layouts that a plan remembers. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/driver/driver.h"
#include "tests/unit/support/launch_case.h"

TestSuite(launch, .fini = close_plan);

Test(launch, strict_mode_checks_every_call) {
  flp_options options = FLP_OPTIONS_INIT;
  options.strict = 1;
  stage_open(&s, "badrows=2");
  use_plan("", &options);
  flp_args a = args_of(FLP_PASS_FORWARD, "n=100");
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_DATA);
  s.script("");
  stage_execute(&s, plan, &a);
  cr_expect_eq(s.calls("cuStreamSynchronize"), 1);
}

Test(launch, eager_counts_bad_rows_too) {
  flp_options options = FLP_OPTIONS_INIT;
  options.device = FLP_DEVICE_HOST;
  options.threads = 1;
  stage_open(&s, "");
  use_plan("", &options);
  static _Alignas(256) uint16_t hidden[3 * 64], weight[1000 * 64];
  int64_t target[3] = {5, 1000, -100};
  float logprob[3];
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_FORWARD, 3, 0, &layout), FLP_OK);
  flp_args a = args_of(FLP_PASS_FORWARD, "n=3 -stats");
  a.hidden = hidden, a.weight = weight, a.target = target, a.logprob = logprob;
  a.workspace = aligned_alloc(256, (a.workspace_bytes + 255) / 256 * 256);
  a.workspace_bytes = layout.smallest_bytes - 1;
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_WORKSPACE, "%s", flp_error_detail());
  a.workspace_bytes = layout.bytes;
  cr_assert_eq(flp_execute(plan, &a), FLP_OK, "%s", flp_error_detail());
  cr_expect_float_eq(logprob[0], -logf(1000), 1e-5);
  cr_expect(isnan(logprob[1]) && logprob[2] == 0);
  cr_expect_eq(flp_plan_check(plan, NULL), FLP_ERROR_DATA);
  cr_expect_eq(strncmp(flp_error_detail(), "1 row or row id was bad", 23), 0, "%s", flp_error_detail());
  cr_expect_eq(flp_plan_check(plan, NULL), FLP_OK);
  free(a.workspace);
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
