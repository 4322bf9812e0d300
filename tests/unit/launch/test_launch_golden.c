/* test_launch_golden.c: what every pass, mode and feature sends to the driver, as tests/golden/launch has it; and that each
 * call of the driver may fail. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "tests/unit/support/golden.h"

Test(launch_golden, traces_are_as_they_were) {
  golden_check("launch", 20, NULL);
}

/* Nothing follows a call that failed, and the caller's context is back. */
static void fail_at(golden *g, const flp_args *args, const char *function, int k) {
  char script[320];
  snprintf(script, sizeof script, "%s;fail:%s=719@%d", g->device, function, k);
  g->s.script(script);
  cr_expect_eq(golden_run(g, args), FLP_ERROR_DRIVER, "%s", script);
  cr_expect_eq(g->s.calls(function), k, "something follows %s", script);
  cr_expect_eq(g->s.calls("cuCtxPushCurrent_v2"), g->s.calls("cuCtxPopCurrent_v2"), "%s", script);
}

static void fail_everywhere(golden *g, const flp_args *args) {
  static const char *const functions[] = {"cuLaunchKernel", "cuLaunchKernelEx", "cuMemsetD8Async", "cuMemsetD2D8Async",
                                          "cuTensorMapEncodeTiled"};
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    int calls = g->s.calls(functions[i]);
    for (int k = 1; k <= calls; k++) fail_at(g, args, functions[i], k);
    g->s.script(g->device);
    cr_assert_eq(golden_run(g, args), FLP_OK);
  }
}

Test(launch_golden, every_call_of_the_driver_may_fail) {
  golden_check("launch", 20, fail_everywhere);
}
