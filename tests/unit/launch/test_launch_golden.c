/* test_launch_golden.c: what every pass, mode and feature sends to the driver, as tests/golden/launch has it; and what
 * is asked of each of these calls: it fails where the driver does, and takes the smallest workspace and no less. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/support/golden.h"
#include "tests/unit/support/trace.h"

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
  cr_expect_eq(g->s.calls("cuCtxPushCurrent_v2") - g->s.calls("cuCtxPopCurrent_v2"),
               strcmp(function, "cuCtxPushCurrent_v2") == 0, "%s", script);
}

static void fail_everywhere(golden *g, const flp_args *args) {
  static const char *const functions[] = {"cuCtxPushCurrent_v2", "cuLaunchKernel",     "cuLaunchKernelEx",
                                          "cuMemsetD8Async",     "cuMemsetD2D8Async", "cuTensorMapEncodeTiled"};
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

static void shrink(golden *g, const flp_args *args) {
  flp_args a = *args;
  const flp_scheme *scheme = trace_scheme(g->plan);
  if (!scheme) return;
  a.workspace_bytes = scheme->smallest_bytes;
  cr_expect_eq(golden_run(g, &a), FLP_OK, "%s", flp_error_detail());
  if (a.saved && a.pass == FLP_PASS_BACKWARD) return; /* which may recompute */
  char expected[200];
  g->s.reset();
  a.workspace_bytes--;
  snprintf(expected, sizeof expected,
           "args.workspace_bytes is %zu, but the smallest layout of this pass over %ld rows needs %zu",
           a.workspace_bytes, (long)a.n, a.workspace_bytes + 1);
  cr_expect_eq(golden_run(g, &a), FLP_ERROR_WORKSPACE);
  cr_expect_str_eq(flp_error_detail(), expected);
  cr_expect_eq(g->s.launch_count(), 0);
}

Test(launch_golden, the_smallest_workspace_is_named_and_does) {
  golden_check("launch", 20, shrink);
}
