/* test_launch_step.c: a training step on a device, in stream and recompute modes: what is launched in which order, that
 * chunks cover every row once, which rows backward takes, and the rungs' messages about a loss. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/driver/driver.h"
#include "runtime/loss/loss.h"
#include "tests/unit/support/launch_case.h"

static uint8_t program[FLP_LOSS_BYTES_MAX];

static flp_spec step_spec(uint32_t grads, const char *loss, flp_entropy entropy) {
  flp_spec spec = stage_spec(grads);
  spec.entropy = entropy;
  spec.loss = program;
  cr_assert_eq(flp_loss_builtin_bytes(loss, program, sizeof program, &spec.loss_bytes), FLP_OK);
  return spec;
}

TestSuite(launch_step, .fini = close_plan);

static flp_args step_args(int64_t n) {
  flp_args a = stage_args(&spec, FLP_PASS_BACKWARD, n);
  a.pass = FLP_PASS_STEP;
  a.stats = NULL;
  a.grad_logprob = NULL;
  a.old_logprob = STAGE_AT(20);
  a.ref_logprob = STAGE_AT(21);
  a.advantage = STAGE_AT(22);
  a.loss = STAGE_AT(23);
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_STEP, n, 0);
  return a;
}

static void run_step(const flp_args *a) {
  s.reset();
  cr_assert_eq(flp_step(plan, a), FLP_OK, "%s", flp_error_detail());
}

#define CHUNK "forward keep_reference forward_keep combine loss_rows record keep_finish dz "

/* Chunk i of three, of 256 rows each but the last. */
static void expect_chunk(int i, int64_t n) {
  int64_t begin = 256 * i, end = i < 2 ? begin + 256 : n;
  flp_loss_rows_params loss = STAGE_PARAMS(flp_loss_rows_params, stage_launch(&s, "loss_rows", i));
  flp_record_params record = STAGE_PARAMS(flp_record_params, stage_launch(&s, "record", i));
  flp_combine_params combine = STAGE_PARAMS(flp_combine_params, stage_launch(&s, "combine", i));
  flp_grad_weight_params weight = STAGE_PARAMS(flp_grad_weight_params, stage_launch(&s, "grad_weight", i));
  cr_expect(loss.row_begin == begin && loss.row_end == end && record.row_begin == begin && record.row_end == end);
  cr_expect(weight.row_begin == begin && weight.row_end == end);
  cr_expect_eq(loss.logprob, combine.logprob);
  cr_expect_eq(record.stats, combine.stats);
  cr_expect_eq(record.grad_logprob, loss.grad_logprob);
  cr_expect_eq(loss.grad_entropy, 0, "the loss does not depend on the entropy");
  cr_expect_eq(loss.n, n);
  cr_expect_eq(loss.parameter0, 0.2, "a default");
  cr_expect_eq(weight.read_acc, i > 0);
  cr_expect_eq(weight.write_acc, i < 2);
  cr_expect_eq(weight.write_out, i == 2);
}

Test(launch_step, a_step_streams_chunks_of_rows) {
  open_plan("", step_spec(3, "grpo+k3", FLP_ENTROPY_NONE), 256, FLP_MODE_STREAM);
  flp_layout layout = FLP_LAYOUT_INIT;
  int64_t n = 600;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_STEP, n, 0, &layout), FLP_OK);
  cr_expect_eq(layout.mode, FLP_MODE_STREAM);
  cr_expect_eq(layout.products, 3);
  cr_expect_eq(layout.chunks, 3);
  flp_args a = step_args(n);
  run_step(&a);
  stage_expect_sequence(&s, "prepare " CHUNK "keep_gather grad_hidden grad_weight " CHUNK
                            "keep_gather grad_hidden grad_weight " CHUNK
                            "keep_gather grad_hidden grad_weight loss_rows fill");
  cr_expect_eq(s.launch_count(), (size_t)layout.launches);
  stage_expect_capturable(&s);
  for (int i = 0; i < 3; i++) expect_chunk(i, n);
  flp_loss_rows_params idle = STAGE_PARAMS(flp_loss_rows_params, stage_launch(&s, "loss_rows", 3));
  cr_expect_neq(idle.row_class, 0);
  cr_expect_eq(idle.loss, stage_address(a.loss));
}

Test(launch_step, a_step_on_hopper_adds_to_the_callers_own_gradient) {
  flp_spec wanted = step_spec(3, "grpo+entropy", FLP_ENTROPY_BACKWARD);
  wanted.grad_weight_dtype = FLP_DTYPE_FP32;
  wanted.accumulate_grad_weight = 1;
  open_plan("capability=9.0", wanted, 512, FLP_MODE_STREAM);
  flp_args a = step_args(600);
  a.logprob = STAGE_AT(6);
  run_step(&a);
#define MAPPED                                                                                                  \
  "gather forward_map keep_reference forward_keep_map combine loss_rows record keep_finish dz_map keep_expand " \
  "keep_gather products_map "
  stage_expect_sequence(&s, "prepare " MAPPED MAPPED "loss_rows fill");
  flp_products_map_params products;
  memcpy(&products, stage_launch(&s, "products_map", 0)->params, sizeof products);
  cr_expect_eq(products.weight_acc, stage_address(a.grad_weight));
  cr_expect_eq(products.weight_flags & FLP_PRODUCT_READ_ACC, FLP_PRODUCT_READ_ACC);
  cr_expect_neq(products.factor, 0, "a row without a gradient has factor 0");
  flp_loss_rows_params loss = STAGE_PARAMS(flp_loss_rows_params, stage_launch(&s, "loss_rows", 0));
  cr_expect_eq(loss.logprob, stage_address(a.logprob));
  cr_expect_neq(loss.grad_entropy, 0);
  cr_expect_eq(STAGE_PARAMS(flp_record_params, stage_launch(&s, "record", 0)).grad_entropy, loss.grad_entropy);
}

/* Every row is set to NaN where the loss puts gradients, before it does. */
static void expect_unset(uint64_t address, int64_t n) {
  char call[128];
  snprintf(call, sizeof call, "start=0x%llx value=255 bytes=%lld stream=0x7", (unsigned long long)address,
           (long long)n * 4);
  const char *at = strstr(s.log(), call);
  cr_expect(at && at < strstr(s.log(), "flp_loss_rows"), "%s in\n%s", call, s.log());
}

/* Rows whose loss has no gradient are left out of backward, and a bad row counts once. */
Test(launch_step, a_step_in_mode_R_prepares_its_rows_for_each_pass) {
  flp_spec wanted = step_spec(3, "grpo", FLP_ENTROPY_NONE);
  wanted.dtype = FLP_DTYPE_FP16;
  open_plan("", wanted, 0, (flp_mode)0);
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_STEP, 300, 0, &layout), FLP_OK);
  cr_expect_eq(layout.products, 4);
  flp_args a = step_args(300);
  run_step(&a);
  stage_expect_sequence(&s,
                        "prepare forward combine loss_rows loss_rows prepare record dz_scale dz grad_hidden "
                        "grad_weight fill");
  cr_expect_eq(s.launch_count(), (size_t)layout.launches);
  stage_expect_capturable(&s);
  flp_prepare_params forward = STAGE_PARAMS(flp_prepare_params, stage_launch(&s, "prepare", 0));
  flp_prepare_params backward = STAGE_PARAMS(flp_prepare_params, stage_launch(&s, "prepare", 1));
  flp_loss_rows_params loss = STAGE_PARAMS(flp_loss_rows_params, stage_launch(&s, "loss_rows", 0));
  flp_record_params record = STAGE_PARAMS(flp_record_params, stage_launch(&s, "record", 0));
  cr_expect_eq(forward.grad_logprob, 0, "rows of any gradient");
  cr_expect_neq(loss.grad_logprob, 0);
  cr_expect_eq(backward.grad_logprob, loss.grad_logprob);
  cr_expect_eq(backward.grad_entropy, 0, "the loss does not depend on the entropy");
  expect_unset(loss.grad_logprob, 300);
  cr_expect_eq(backward.logprob, 0, "outputs are as forward left them");
  cr_expect_eq(backward.stats, 0);
  cr_expect_eq(record.index, backward.index);
  cr_expect_eq(record.stats, forward.stats);
  cr_expect_eq(backward.error_word, forward.error_word + 4, "a word that no check reads");
}

Test(launch_step, a_step_in_mode_R_leaves_out_rows_by_both_gradients) {
  flp_spec wanted = step_spec(3, "grpo+entropy", FLP_ENTROPY_BACKWARD);
  wanted.dtype = FLP_DTYPE_FP16;
  open_plan("", wanted, 0, (flp_mode)0);
  flp_args a = step_args(300);
  run_step(&a);
  flp_prepare_params backward = STAGE_PARAMS(flp_prepare_params, stage_launch(&s, "prepare", 1));
  cr_expect_eq(s.calls("cuMemsetD8Async"), 2);
  expect_unset(backward.grad_logprob, 300);
  expect_unset(backward.grad_entropy, 300);
}

Test(launch_step, a_step_for_the_losses_alone_prepares_its_rows_once) {
  flp_spec wanted = step_spec(0, "grpo", FLP_ENTROPY_NONE);
  open_plan("", wanted, 0, (flp_mode)0);
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_STEP, 300, 0, &layout), FLP_OK);
  flp_args a = step_args(300);
  run_step(&a);
  stage_expect_sequence(&s, "prepare forward combine loss_rows loss_rows");
  cr_expect_eq(s.launch_count(), (size_t)layout.launches);
  cr_expect_eq(s.calls("cuMemsetD8Async"), 0);
}

Test(launch_step, a_step_without_rows_zeroes_the_head) {
  open_plan("", step_spec(3, "grpo", FLP_ENTROPY_NONE), 0, (flp_mode)0);
  flp_args a = step_args(0);
  run_step(&a);
  cr_expect_eq(s.launch_count(), 0);
  cr_expect_eq(s.calls("cuMemsetD8Async"), 1);
}

/* ---- rungs ---- */

/* Without a generator: the kernel that ships for any loss, and the program beside it. */
Test(launch_step, the_generic_rung_runs_any_loss_as_data) {
  static const char *const losses[] = {"grpo", "ppo+k3"};
  flp_options options = FLP_OPTIONS_INIT;
  char ids[2][17];
  stage_open(&s, "");
  spec = step_spec(3, losses[0], FLP_ENTROPY_NONE);
  stage_fill_generic(s.generic, &spec);
  setenv("FLP_JIT_LIBRARY", "/nowhere.so", 1);
  for (int i = 0; i < 2; i++) {
    use_plan(step_spec(3, losses[i], FLP_ENTROPY_NONE), &options);
    cr_assert_eq(flp_plan_get_rung(plan), FLP_RUNG_GENERIC, "%s", flp_plan_get_reason(plan, FLP_RUNG_GENERIC));
    flp_args a = step_args(100);
    run_step(&a);
    flp_loss loss;
    flp_loss_code code;
    cr_assert_eq(flp_loss_find(losses[i], &loss), FLP_OK);
    flp_loss_encode(&loss, &code);
    CUdeviceptr device = STAGE_PARAMS(flp_loss_rows_params, stage_launch(&s, "loss_rows", 0)).program;
    cr_assert_neq(device, 0);
    cr_expect_eq(memcmp((const void *)(uintptr_t)device, &code, sizeof code), 0, "%s", losses[i]);
    cr_expect_eq(STAGE_PARAMS(flp_loss_rows_params, stage_launch(&s, "loss_rows", 1)).program, device, "idle rows too");
    flp_plan_get_id(plan, ids[i]);
  }
  cr_expect_str_neq(ids[0], ids[1], "one kernel, but another program");
}

Test(launch_step, a_compiled_loss_has_no_program_beside_it) {
  open_plan("", step_spec(1, "grpo", FLP_ENTROPY_NONE), 0, (flp_mode)0);
  flp_args a = step_args(100);
  run_step(&a);
  cr_expect_eq(STAGE_PARAMS(flp_loss_rows_params, stage_launch(&s, "loss_rows", 0)).program, 0);
}

Test(launch_step, the_cache_holds_each_loss_under_its_own_key) {
  open_plan("", step_spec(3, "grpo", FLP_ENTROPY_NONE), 0, (flp_mode)0);
  flp_options options = stage_options(0, (flp_mode)0);
  int made = s.provider_calls();
  char first[17], second[17];
  flp_plan_get_id(plan, first);
  use_plan(spec, &options);
  cr_expect_eq(s.provider_calls(), made, "all of it is there");
  use_plan(step_spec(3, "dapo", FLP_ENTROPY_NONE), &options);
  cr_expect_eq(s.provider_calls(), made + 1, "one kernel is new");
  flp_plan_get_id(plan, second);
  cr_expect_str_neq(first, second);
}
