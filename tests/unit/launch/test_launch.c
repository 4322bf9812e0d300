/* test_launch.c: what a trace of a call cannot say: sticky faults, values that only the device sees, and layouts that a
 * plan remembers. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/driver/driver.h"
#include "tests/unit/support/launch_case.h"

TestSuite(launch, .fini = close_plan);

/* ---- failures ---- */

static void expect_sticky(const char *script, const char *words, const char *args, const char *sentence) {
  open_plan("", words);
  flp_args a = args_of(FLP_PASS_FORWARD, args);
  s.script(script);
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_DRIVER);
  cr_expect_str_eq(flp_error_detail(), sentence);
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_DRIVER, "and again: it is sticky");
  cr_expect_eq(s.calls("cuCtxPushCurrent_v2"), s.calls("cuCtxPopCurrent_v2"), "the caller's context is back");
}

Test(launch, a_sticky_fault_names_kernel_and_spec) {
  expect_sticky("fail:cuLaunchKernel=700@2+", "grads=hidden", "n=100",
                "cuLaunchKernel(flp_forward) for bf16 V=1000 D=64 grads=hidden failed: "
                "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered");
  expect_sticky("fail:cuLaunchKernel=719@2+", "grads=hidden", "n=100",
                "cuLaunchKernel(flp_forward) for bf16 V=1000 D=64 grads=hidden failed: CUDA_ERROR_LAUNCH_FAILED (719): "
                "unspecified launch failure");
  expect_sticky("fail:cuLaunchKernel=700@3+", "grads=hidden,weight,bias bias listed",
                "n=100 list_offsets list_ids list_count=70",
                "cuLaunchKernel(flp_list_sort) for bf16 V=1000 D=64 grads=hidden,weight,bias bias listed failed: "
                "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered");
}

Test(launch, bad_arguments_reach_no_driver) {
  open_plan("", "");
  flp_args a = args_of(FLP_PASS_FORWARD, "n=100 temperature=0");
  s.reset();
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_ARGUMENT);
  cr_expect_eq(flp_execute(plan, NULL), FLP_ERROR_ARGUMENT);
  cr_expect_eq(s.calls(NULL), 0);
}

/* ---- values that only the device sees ---- */

static void expect_bad(const char *sentence) {
  cr_expect_eq(flp_plan_check(plan, STAGE_STREAM), FLP_ERROR_DATA);
  cr_expect_str_eq(flp_error_detail(), sentence);
  cr_expect_eq(flp_plan_check(plan, STAGE_STREAM), FLP_OK, "they are reported once");
}

Test(launch, bad_rows_are_reported_once) {
  open_plan("", "");
  flp_args a = args_of(FLP_PASS_FORWARD, "n=100");
  stage_execute(&s, plan, &a);
  cr_expect_eq(flp_plan_check(plan, STAGE_STREAM), FLP_OK, "%s", flp_error_detail());
  s.script("badrows=3");
  stage_execute(&s, plan, &a);
  stage_execute(&s, plan, &a);
  expect_bad("6 rows or row ids were bad since the last check: targets outside [0, vocab_total), temperatures not "
             "finite and > 0, largest scores beyond 2^30 in units of ln 2, or row ids outside [0, n)");
  s.script("fail:cuStreamSynchronize=700");
  cr_expect_eq(flp_plan_check(plan, STAGE_STREAM), FLP_ERROR_DRIVER);
  cr_expect_str_eq(flp_error_detail(),
                   "work before cuStreamSynchronize for bf16 V=1000 D=64 failed: CUDA_ERROR_ILLEGAL_ADDRESS (700): an "
                   "illegal memory access was encountered");
}

Test(launch, bad_lists_are_named_with_the_rest) {
  open_plan("badrows=3", "listed");
  flp_args a = args_of(FLP_PASS_FORWARD, "n=10 list_offsets list_ids list_count=70");
  stage_execute(&s, plan, &a);
  expect_bad("3 rows or row ids were bad since the last check: targets outside [0, vocab_total), temperatures not "
             "finite and > 0, largest scores beyond 2^30 in units of ln 2, row ids outside [0, n), lists without their "
             "target or with ids outside [0, vocab_total), or list_offsets that do not ascend within [0, list_count]");
}

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

/* ---- what the plan remembers ---- */

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
