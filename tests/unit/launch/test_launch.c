/* test_launch.c: what flp_execute sends to the driver: sequences, grids and parameters of every pass, mode and gradient
 * mask, against the stand-in. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/driver/driver.h"
#include "runtime/kernel/abi.h"
#include "tests/unit/support/stage.h"

/* ---- forward ---- */

Test(launch, forward) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(0);
  spec.vocab = 10000;
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_FORWARD, 300);
  a.hidden_stride = 72;
  a.temperature = 2;
  a.scale = 3;
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_FORWARD, 300, 0);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare forward combine");
  stage_expect_capturable(&s);
  const fake_launch *l = s.launch_at(0);
  cr_expect_eq(l->grid, 1);
  flp_prepare_params prepare = STAGE_PARAMS(flp_prepare_params, l);
  cr_expect_eq(prepare.target, stage_address(STAGE_AT(4)));
  cr_expect_eq(prepare.temperature, 0);
  cr_expect_eq(prepare.row_scale, (float)(3 * M_LOG2E / 2));
  cr_expect_eq(prepare.unit, (float)(3 * M_LOG2E));
  cr_expect_eq(prepare.n, 300);
  cr_expect_eq(prepare.ignore_index, -100);
  cr_expect_eq(prepare.vocab_valid, 10000);
  cr_expect_eq(prepare.vocab_total, 10000);
  cr_expect_eq(prepare.logprob, stage_address(STAGE_AT(6)));
  cr_expect_eq(prepare.stats, stage_address(STAGE_AT(5)));
  cr_expect_eq(prepare.grad_logprob, 0);
  cr_expect_neq(prepare.error_word, 0);
  l = s.launch_at(1);
  cr_expect_eq(l->grid, 3 * 4); /* ceil(300 / 128) row panels x ceil(10000 / 3072) groups */
  cr_expect_eq(l->block, 256);
  cr_expect_eq(l->shared, 98304);
  cr_expect_eq(l->stream, STAGE_STREAM);
  flp_forward_params forward = STAGE_PARAMS(flp_forward_params, l);
  cr_expect_eq(forward.hidden_stride, 72);
  cr_expect_eq(forward.weight_stride, 64);
  cr_expect_eq(forward.bands, 3);
  cr_expect_eq(forward.groups, 4);
  cr_expect_eq(forward.depth, 64);
  cr_expect_eq(forward.capacity, 300);
  cr_expect_eq(forward.index, prepare.index);
  l = s.launch_at(2);
  cr_expect_eq(l->grid, 10); /* ceil(300 / 32) */
  flp_combine_params combine = STAGE_PARAMS(flp_combine_params, l);
  cr_expect_eq(combine.part, forward.part);
  cr_expect_eq(combine.zy, forward.zy);
  cr_expect_eq(combine.parts, 4);
  cr_expect_eq(combine.fold, 1);
  cr_expect_eq(combine.capped, 0);
  cr_expect_eq(combine.partial, 0);
  flp_plan_destroy(plan);
}

Test(launch, forward_in_chunks_of_rows) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(0);
  spec.vocab = 10000;
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_FORWARD, 300);
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_FORWARD, 300, 0, &layout), FLP_OK);
  a.workspace_bytes = layout.smallest_bytes;
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare forward combine forward combine forward combine");
  stage_expect_capturable(&s);
  for (int chunk = 0; chunk < 3; chunk++) { /* of 128 rows, the last of 44 */
    flp_forward_params forward = STAGE_PARAMS(flp_forward_params, s.launch_at(1 + 2 * chunk));
    flp_combine_params combine = STAGE_PARAMS(flp_combine_params, s.launch_at(2 + 2 * chunk));
    cr_expect_eq(forward.row_begin, chunk * 128);
    cr_expect_eq(forward.row_end, chunk == 2 ? 300 : (chunk + 1) * 128);
    cr_expect_eq(forward.bands, 1);
    cr_expect_eq(forward.capacity, 128);
    cr_expect_eq(combine.row_begin, forward.row_begin);
    cr_expect_eq(combine.row_end, forward.row_end);
    cr_expect_eq(combine.capacity, 128);
    cr_expect_eq(s.launch_at(2 + 2 * chunk)->grid, chunk == 2 ? 2 : 4);
  }
  flp_plan_destroy(plan);
}

Test(launch, softcap_and_row_temperatures) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(0);
  spec.softcap = 30;
  spec.per_row_temperature = 1;
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_FORWARD, 10);
  a.temperature_rows = STAGE_AT(20);
  a.scale = 3;
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_FORWARD, 10, 0);
  stage_execute(&s, plan, &a);
  flp_prepare_params prepare = STAGE_PARAMS(flp_prepare_params, s.launch_at(0));
  cr_expect_eq(prepare.temperature, stage_address(STAGE_AT(20)));
  cr_expect_eq(prepare.unit, (float)(30 * M_LOG2E));
  cr_expect_eq(STAGE_PARAMS(flp_forward_params, s.launch_at(1)).cap_in, 0.1f);
  cr_expect_eq(STAGE_PARAMS(flp_combine_params, s.launch_at(2)).capped, 1);
  cr_expect_eq(STAGE_PARAMS(flp_combine_params, s.launch_at(2)).error_word, prepare.error_word);
  flp_plan_destroy(plan);
}

Test(launch, a_shard_writes_partials) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(0);
  spec.vocab = 10000;
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_FORWARD, 10);
  a.logprob = a.stats = NULL;
  a.partial = STAGE_AT(12);
  a.vocab_offset = 10000;
  a.vocab_valid = 3000;
  a.vocab_total = 13000;
  int32_t *rows = STAGE_AT(13);
  a.rows = rows;
  a.row_count = 7;
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_FORWARD, 10, 0);
  stage_execute(&s, plan, &a);
  flp_prepare_params prepare = STAGE_PARAMS(flp_prepare_params, s.launch_at(0));
  cr_expect_eq(prepare.vocab_offset, 10000);
  cr_expect_eq(prepare.vocab_valid, 3000);
  cr_expect_eq(prepare.vocab_total, 13000);
  cr_expect_eq(prepare.partial, stage_address(STAGE_AT(12)));
  cr_expect_eq(prepare.rows, stage_address(rows));
  cr_expect_eq(prepare.row_count, 7);
  cr_expect_eq(STAGE_PARAMS(flp_forward_params, s.launch_at(1)).groups, 1, "of the valid columns");
  cr_expect_eq(STAGE_PARAMS(flp_combine_params, s.launch_at(2)).partial, stage_address(STAGE_AT(12)));
  stage_expect_sequence(&s, "prepare forward combine");
  /* The kernel writes one or the other, so a whole head that wants both takes two launches. */
  a.vocab_offset = a.vocab_valid = a.vocab_total = 0;
  a.logprob = STAGE_AT(6);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare forward combine combine");
  cr_expect_eq(STAGE_PARAMS(flp_combine_params, s.launch_at(2)).partial, stage_address(STAGE_AT(12)));
  cr_expect_eq(STAGE_PARAMS(flp_combine_params, s.launch_at(3)).partial, 0);
  cr_expect_eq(STAGE_PARAMS(flp_combine_params, s.launch_at(3)).logprob, stage_address(STAGE_AT(6)));
  flp_plan_destroy(plan);
}

Test(launch, combine) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(0);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_COMBINE, 1000);
  a.hidden = a.weight = NULL;
  a.partial = STAGE_AT(12);
  a.shard_count = 4;
  a.vocab_total = 4000;
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_COMBINE, 1000, 0);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare merge");
  stage_expect_capturable(&s);
  cr_expect_eq(STAGE_PARAMS(flp_prepare_params, s.launch_at(0)).partial, 0, "an input here");
  flp_merge_params merge = STAGE_PARAMS(flp_merge_params, s.launch_at(1));
  cr_expect_eq(merge.partial, stage_address(STAGE_AT(12)));
  cr_expect_eq(merge.shard_count, 4);
  cr_expect_eq(merge.n, 1000);
  cr_expect_eq(merge.logprob, stage_address(STAGE_AT(6)));
  cr_expect_eq(s.launch_at(1)->grid, 4);
  flp_plan_destroy(plan);
}

/* ---- padding, no rows ---- */

Test(launch, padded_rows_of_the_head_are_zeroed) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(7);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_BACKWARD, 10);
  a.vocab_valid = 990;
  a.grad_weight_stride = 80;
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_BACKWARD, 10, 0);
  stage_execute(&s, plan, &a);
  char expected[200];
  snprintf(expected, sizeof expected,
           "cuMemsetD2D8Async start=0x%lx pitch=160 value=0 width=128 height=10 stream=0x7\n",
           (unsigned long)(stage_address(STAGE_AT(9)) + 990 * 160));
  cr_expect_not_null(strstr(s.log(), expected), "%s", s.log());
  snprintf(expected, sizeof expected, "cuMemsetD8Async start=0x%lx value=0 bytes=20 stream=0x7\n",
           (unsigned long)(stage_address(STAGE_AT(10)) + 990 * 2));
  cr_expect_not_null(strstr(s.log(), expected), "%s", s.log());
  flp_plan_destroy(plan);
}

Test(launch, no_rows_launch_nothing) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(7);
  flp_plan *plan = stage_plan(&spec, NULL);
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_BACKWARD; pass++) {
    cr_expect_eq(stage_workspace(plan, (flp_pass)pass, 0, 0), 0);
    flp_args a = stage_args(&spec, (flp_pass)pass, 0);
    a.partial = STAGE_AT(12);
    a.shard_count = 1;
    a.workspace = NULL;
    stage_execute(&s, plan, &a);
    cr_expect_eq(s.launch_count(), 0);
    cr_expect_eq(s.calls("cuMemsetD8Async"), pass == FLP_PASS_BACKWARD ? 2 : 0);
  }
  char expected[200];
  snprintf(expected, sizeof expected, "cuMemsetD8Async start=0x%lx value=0 bytes=128000 stream=0x7\n",
           (unsigned long)stage_address(STAGE_AT(9)));
  cr_expect_not_null(strstr(s.log(), expected), "%s", s.log());
  flp_plan_destroy(plan);
  spec.grads = FLP_GRAD_WEIGHT;
  spec.grad_weight_dtype = FLP_DTYPE_FP32;
  spec.accumulate_grad_weight = 1;
  plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_BACKWARD, 0);
  stage_execute(&s, plan, &a);
  cr_expect_eq(s.calls("cuMemsetD8Async"), 0, "an accumulated gradient stays");
  flp_plan_destroy(plan);
}

/* ---- failures ---- */

Test(launch, too_little_workspace) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(3);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, 1000, 0, &layout), FLP_OK);
  flp_args a = stage_args(&spec, FLP_PASS_BACKWARD, 1000);
  a.workspace_bytes = layout.smallest_bytes - 1;
  s.reset();
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_WORKSPACE);
  char expected[200];
  snprintf(expected, sizeof expected,
           "args.workspace_bytes is %zu, but the smallest layout of this pass over 1000 rows needs %zu",
           a.workspace_bytes, a.workspace_bytes + 1);
  cr_expect_str_eq(flp_error_detail(), expected);
  cr_expect_eq(s.launch_count(), 0);
  a.workspace_bytes++;
  stage_execute(&s, plan, &a);
  a.workspace = NULL;
  a.workspace_bytes = 0;
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_WORKSPACE);
  flp_plan_destroy(plan);
}

Test(launch, a_sticky_fault_names_kernel_and_spec) {
  static const struct {
    const char *script, *error;
  } faults[] = {{"fail:cuLaunchKernel=700@2+",
                 "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was "
                 "encountered"},
                {"fail:cuLaunchKernel=719@2+", "CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure"}};
  for (size_t i = 0; i < 2; i++) {
    stage s;
    stage_open(&s, faults[i].script);
    flp_spec spec = stage_spec(1);
    flp_plan *plan = stage_plan(&spec, NULL);
    flp_args a = stage_args(&spec, FLP_PASS_FORWARD, 100);
    a.workspace_bytes = stage_workspace(plan, FLP_PASS_FORWARD, 100, 0);
    cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_DRIVER);
    char expected[300];
    snprintf(expected, sizeof expected,
             "cuLaunchKernel(flp_forward) for bf16 V=1000 D=64 grads=hidden failed: %s", faults[i].error);
    cr_expect_str_eq(flp_error_detail(), expected);
    cr_expect_eq(s.calls("cuCtxPushCurrent_v2"), s.calls("cuCtxPopCurrent_v2"), "the caller's context is back");
    cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_DRIVER, "and again: it is sticky");
    flp_plan_destroy(plan);
  }
}

Test(launch, every_launch_may_fail) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(7);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_BACKWARD, 100);
  a.vocab_valid = 990;
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_BACKWARD, 100, 0);
  stage_execute(&s, plan, &a);
  int launches = (int)s.launch_count();
  cr_assert_gt(launches, 5);
  for (int i = 1; i <= launches; i++) {
    char script[64];
    snprintf(script, sizeof script, "fail:cuLaunchKernel=719@%d", i);
    s.script(script);
    cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_DRIVER);
    cr_expect_eq(s.calls("cuLaunchKernel"), i, "nothing is launched after the failure");
  }
  static const char *const others[] = {"fail:cuMemsetD8Async=1", "fail:cuCtxPushCurrent_v2=201"};
  for (size_t i = 0; i < 2; i++) {
    s.script(others[i]);
    cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_DRIVER, "%s", others[i]);
  }
  s.script("");
  flp_plan_destroy(plan);
}

/* ---- values that only the device sees ---- */

Test(launch, bad_rows_are_reported_once) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(0);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_FORWARD, 100);
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_FORWARD, 100, 0);
  stage_execute(&s, plan, &a);
  cr_expect_eq(flp_plan_check(plan, STAGE_STREAM), FLP_OK, "%s", flp_error_detail());
  s.script("badrows=3");
  stage_execute(&s, plan, &a);
  stage_execute(&s, plan, &a);
  cr_expect_eq(flp_plan_check(plan, STAGE_STREAM), FLP_ERROR_DATA);
  cr_expect_str_eq(
      flp_error_detail(),
      "6 rows or row ids were bad since the last check: targets outside [0, vocab_total), temperatures not "
      "finite and > 0, largest scores beyond 2^30 in units of ln 2, or row ids outside [0, n)");
  cr_expect_eq(flp_plan_check(plan, STAGE_STREAM), FLP_OK);
  s.script("fail:cuStreamSynchronize=700");
  cr_expect_eq(flp_plan_check(plan, STAGE_STREAM), FLP_ERROR_DRIVER);
  cr_expect_str_eq(flp_error_detail(),
                   "work before cuStreamSynchronize for bf16 V=1000 D=64 failed: "
                   "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered");
  flp_plan_destroy(plan);
}

Test(launch, strict_mode_checks_every_call) {
  stage s;
  stage_open(&s, "badrows=2");
  flp_spec spec = stage_spec(0);
  flp_options options = FLP_OPTIONS_INIT;
  options.strict = 1;
  flp_plan *plan = stage_plan(&spec, &options);
  flp_args a = stage_args(&spec, FLP_PASS_FORWARD, 100);
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_FORWARD, 100, 0);
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_DATA);
  s.script("");
  stage_execute(&s, plan, &a);
  cr_expect_eq(s.calls("cuStreamSynchronize"), 1);
  flp_plan_destroy(plan);
}

Test(launch, bad_arguments_reach_no_driver) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(0);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_FORWARD, 100);
  a.temperature = 0;
  s.reset();
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_ARGUMENT);
  cr_expect_eq(flp_execute(plan, NULL), FLP_ERROR_ARGUMENT);
  cr_expect_eq(s.calls(NULL), 0);
  flp_plan_destroy(plan);
}

/* ---- the eager rung behind the same door ---- */

Test(launch, eager_counts_bad_rows_too) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(0);
  flp_options options = FLP_OPTIONS_INIT;
  options.device = FLP_DEVICE_HOST;
  options.threads = 1;
  flp_plan *plan = stage_plan(&spec, &options);
  enum { N = 3 };
  static _Alignas(256) uint16_t hidden[N * 64], weight[1000 * 64];
  int64_t target[N] = {5, 1000, -100};
  float logprob[N];
  flp_args a = FLP_ARGS_INIT;
  a.n = N;
  a.hidden = hidden;
  a.weight = weight;
  a.target = target;
  a.logprob = logprob;
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_FORWARD, N, 0);
  cr_assert_gt(a.workspace_bytes, 0);
  a.workspace_bytes--;
  a.workspace = aligned_alloc(256, (a.workspace_bytes + 256) / 256 * 256);
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_FORWARD, N, 0, &layout), FLP_OK);
  size_t enough = a.workspace_bytes + 1;
  a.workspace_bytes = layout.smallest_bytes - 1;
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_WORKSPACE, "%s", flp_error_detail());
  a.workspace_bytes = enough;
  cr_assert_eq(flp_execute(plan, &a), FLP_OK, "%s", flp_error_detail());
  cr_expect_float_eq(logprob[0], -logf(1000), 1e-5);
  cr_expect(isnan(logprob[1]));
  cr_expect_eq(logprob[2], 0);
  cr_expect_eq(flp_plan_check(plan, NULL), FLP_ERROR_DATA);
  cr_expect_eq(strncmp(flp_error_detail(), "1 row or row id was bad", 23), 0, "%s", flp_error_detail());
  cr_expect_eq(flp_plan_check(plan, NULL), FLP_OK);
  free(a.workspace);
  flp_plan_destroy(plan);
}
