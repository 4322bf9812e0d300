/* test_refusals.c: calls of the API that lack an argument or ask for what the plan does not do, each refused with the
 * sentence that names it; and what may be left out. */
#include <criterion/criterion.h>

#include "runtime/driver/driver.h"
#include "runtime/loss/loss.h"
#include "runtime/plan/plan.h"
#include "tests/unit/support/refuse.h"
#include "tests/unit/support/stage.h"

static stage s;

Test(refusals, no_plan) {
  char id[17], text[100];
  size_t bytes;
  expect_refused_with(flp_step(NULL, NULL), "plan is NULL");
  expect_refused_with(flp_plan_saved(NULL, 1, 0, &bytes), "plan is NULL");
  expect_refused_with(flp_plan_get_id(NULL, id), "plan is NULL");
  expect_refused_with(flp_plan_describe(NULL, text, sizeof text), "plan is NULL");
  cr_expect_eq(flp_plan_get_rung(NULL), FLP_RUNG_AUTO);
  flp_arena_stats stats = FLP_ARENA_STATS_INIT;
  expect_refused_with(flp_arena_get_stats(NULL, &stats), "arena is NULL");
  flp_arena *arena;
  cr_assert_eq(flp_arena_create(FLP_DEVICE_HOST, &arena), FLP_OK);
  expect_refused_with(flp_arena_get_stats(arena, NULL), "stats is NULL");
  flp_arena_destroy(arena);
}

Test(refusals, passes_that_a_plan_does_not_do) {
  stage_open(&s, "");
  flp_spec spec = stage_spec(3);
  flp_plan *plan = stage_plan(&spec, NULL);
  size_t bytes;
  flp_args a = stage_args(&spec, FLP_PASS_FORWARD, 1);
  expect_refused_with(flp_step(plan, &a), "spec.loss is NULL");
  expect_refused_with(flp_plan_workspace(plan, FLP_PASS_STEP, 1, 0, &bytes), "pass is STEP, but spec.loss is NULL");
  expect_refused_with(flp_plan_workspace(plan, FLP_PASS_FORWARD_SAVED, 1, 0, &bytes),
                      "pass is FORWARD_SAVED, but this plan");
  expect_refused_with(flp_plan_workspace(plan, FLP_PASS_BACKWARD_SAVED, 1, 0, &bytes),
                      "pass is BACKWARD_SAVED, but this");
  expect_refused_with(flp_plan_workspace(plan, (flp_pass)0, 1, 0, &bytes), "pass is 0");
  expect_refused_with(flp_plan_workspace(plan, FLP_PASS_FORWARD, 1073741825, 0, &bytes), "n is 1073741825");
  expect_refused_with(flp_plan_saved(plan, 1073741825, 0, &bytes), "n is 1073741825");
  flp_plan_destroy(plan);
}

/* Stream mode wants a loss, gradients and bf16; each lack is named. */
Test(refusals, stream_mode_without_what_it_streams) {
  stage_open(&s, "");
  uint8_t program[FLP_LOSS_BYTES_MAX];
  flp_options options = FLP_OPTIONS_INIT;
  options.mode = FLP_MODE_STREAM;
  flp_spec spec = stage_spec(3);
  flp_plan *plan;
  expect_refused_with(flp_plan_create(&spec, &options, &plan), "FLP_MODE_STREAM, but spec.loss is NULL");
  spec.loss = program;
  cr_assert_eq(flp_loss_builtin_bytes("grpo", program, sizeof program, &spec.loss_bytes), FLP_OK);
  spec.dtype = FLP_DTYPE_FP16;
  expect_refused_with(flp_plan_create(&spec, &options, &plan), "spec.loss is given, spec.grads 3 and spec.dtype fp16");
  spec.dtype = FLP_DTYPE_BF16;
  spec.hidden = (int64_t)1 << 40;
  expect_refused_with(flp_plan_create(&spec, &options, &plan), "spec.hidden is 1099511627776");
}

Test(refusals, losses) {
  size_t bytes;
  flp_loss_description description = {.struct_bytes = sizeof description};
  uint8_t program[FLP_LOSS_BYTES_MAX];
  cr_assert_eq(flp_loss_builtin_bytes("grpo", program, sizeof program, &bytes), FLP_OK);
  expect_refused_with(flp_loss_builtin_bytes(NULL, program, sizeof program, &bytes), "name is NULL");
  expect_refused_with(flp_loss_builtin_bytes("grpo", program, sizeof program, NULL), "out_bytes is NULL");
  expect_refused_with(flp_loss_describe(NULL, bytes, &description), "bytes is NULL");
  expect_refused_with(flp_loss_describe(program, bytes, NULL), "out is NULL");
}
