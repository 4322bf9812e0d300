/* test_launch_kept.c: what plans keep from forward to backward is in one budget with the workspaces of both; and one
 * kernel serves any loss as data. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/loss/loss.h"
#include "runtime/plan/plan.h"
#include "tests/unit/support/launch_case.h"

TestSuite(launch_kept, .fini = close_plan);

static size_t most_of(int64_t n, uint64_t budget) {
  size_t most;
  cr_assert_eq(flp_spec_saved(&spec, n, budget, &most), FLP_OK, "%s", flp_error_detail());
  return most;
}

/* Queries with and without a budget agree with each other, and layouts with them. */
static void expect_in_one_budget(flp_pass pass, uint64_t budget, size_t kept) {
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, pass, 3000, budget, &layout), FLP_OK, "%s", flp_error_detail());
  cr_expect(layout.saved_bytes == kept && layout.bytes + kept <= budget);
  flp_args a = args_of(pass == FLP_PASS_FORWARD_SAVED ? FLP_PASS_FORWARD : FLP_PASS_BACKWARD, "n=3000 saved");
  a.workspace_bytes = layout.bytes;
  stage_execute(&s, plan, &a);
}

/* What a caller asks, in this order, and one budget for all of it. */
Test(launch_kept, one_budget_holds_what_is_saved_and_the_workspaces) {
  open_plan("", "grads=hidden,weight keep");
  int64_t n = 3000;
  size_t all = stage_saved(plan, n), bytes;
  flp_layout forward = FLP_LAYOUT_INIT, backward = FLP_LAYOUT_INIT, layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD_SAVED, n, 0, &backward), FLP_OK);
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_FORWARD_SAVED, n, 0, &forward), FLP_OK);
  cr_expect(backward.saved_bytes == all && forward.saved_bytes == all);
  uint64_t least = forward.smallest_bytes > backward.bytes ? forward.smallest_bytes : backward.bytes;
  for (uint64_t budget = all + least - 1; budget <= all + least; budget++) {
    cr_assert_eq(flp_plan_saved(plan, n, budget, &bytes), FLP_OK);
    cr_expect_eq(bytes, budget < all + least ? 0 : all);
  }
  cr_assert_eq(flp_plan_saved(plan, n, all + 1000, &bytes), FLP_OK);
  cr_expect_eq(bytes, 0, "they fit the budget, but no workspace beside them");
  cr_expect(most_of(n, all) == all && most_of(n, all - 1) == 0);
  for (int pass = FLP_PASS_BACKWARD_SAVED; pass <= FLP_PASS_FORWARD_SAVED; pass++) {
    cr_expect_eq(flp_plan_layout(plan, (flp_pass)pass, n, all, &layout), FLP_ERROR_BUDGET);
    expect_in_one_budget((flp_pass)pass, all + least, all);
  }
  cr_expect_eq(flp_plan_layout(plan, FLP_PASS_FORWARD, n, all, &layout), FLP_OK);
  cr_expect_eq(layout.saved_bytes, 0);
}

static void run_step_of(int64_t n, uint64_t bytes) {
  char words[64];
  snprintf(words, sizeof words, "n=%lld old_logprob advantage", (long long)n);
  flp_args a = args_of(FLP_PASS_STEP, words);
  cr_assert_leq(bytes, a.workspace_bytes);
  a.workspace_bytes = bytes;
  cr_assert_eq(flp_step(plan, &a), FLP_OK, "%s", flp_error_detail());
}

/* A step of a plan with a tail that has no room for lists is exact, and the log says so once, whatever the rows. */
Test(launch_kept, steps_without_room_for_lists_are_logged_once) {
  open_plan("", "grads=hidden,weight tail=2^-9 loss=grpo");
  for (int64_t n = 100; n <= 200; n += 100) {
    uint64_t least = flp_planner_tail_step_least(&plan->planner, n);
    flp_layout layout = FLP_LAYOUT_INIT;
    cr_assert_eq(flp_plan_layout(plan, FLP_PASS_STEP, n, least, &layout), FLP_OK, "%s", flp_error_detail());
    cr_expect(layout.mode == FLP_MODE_TAIL && layout.bytes == least);
    cr_assert_eq(flp_plan_layout(plan, FLP_PASS_STEP, n, least - 1, &layout), FLP_OK, "%s", flp_error_detail());
    cr_expect_neq(layout.mode, FLP_MODE_TAIL);
    run_step_of(n, least);
    cr_expect_eq(stage_logged("no room for lists"), n > 100);
    run_step_of(n, least - 1);
    cr_expect_eq(stage_logged("no room for lists"), 1);
  }
}

static uint64_t program_of(int launch) {
  return STAGE_PARAMS(flp_loss_rows_params, stage_launch(&s, "loss_rows", launch)).program;
}

static void run_step(void) {
  flp_args a = args_of(FLP_PASS_STEP, "n=100 old_logprob ref_logprob advantage loss");
  s.reset();
  cr_assert_eq(flp_step(plan, &a), FLP_OK, "%s", flp_error_detail());
}

/* The kernel that ships for any loss, and the program beside it. */
Test(launch_kept, the_generic_rung_runs_any_loss_as_data) {
  static const char *const losses[] = {"grpo", "ppo+k3"};
  char ids[2][17];
  flp_spec shipped = words_spec("grads=hidden,weight loss=grpo");
  flp_options options = words_options("rung=generic");
  stage_open(&s, "");
  stage_fill_generic(s.generic, &shipped);
  for (int i = 0; i < 2; i++) {
    char words[64];
    flp_loss loss;
    flp_loss_code code;
    snprintf(words, sizeof words, "grads=hidden,weight loss=%s", losses[i]);
    use_plan(words, &options);
    run_step();
    cr_assert_eq(flp_loss_find(losses[i], &loss), FLP_OK);
    flp_loss_encode(&loss, &code);
    uint64_t device = program_of(0);
    cr_assert_neq(device, 0);
    cr_expect_eq(memcmp((const void *)(uintptr_t)device, &code, sizeof code), 0, "%s", losses[i]);
    cr_expect_eq(program_of(1), device, "idle rows too");
    flp_plan_get_id(plan, ids[i]);
  }
  cr_expect_str_neq(ids[0], ids[1], "one kernel, but another program");
}
