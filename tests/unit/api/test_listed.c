/* test_listed.c: plans of listed columns at the API: which specs, options and arguments are refused, with which
 * sentence; their queries, their description and id. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/driver/driver.h"
#include "runtime/plan/plan.h"
#include "tests/unit/support/refuse.h"
#include "tests/unit/support/stage.h"

static flp_spec listed_spec(uint32_t grads) {
  flp_spec spec = stage_spec(grads);
  spec.listed = 1;
  return spec;
}

/* ---- specs and options ---- */

Test(listed, specs) {
  flp_spec spec = listed_spec(3), out;
  cr_assert_eq(flp_spec_resolve(&spec, &out), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(out.listed, 1);
  spec.listed = -1;
  expect_refused(resolve_spec(spec), "spec.listed is -1 (accepted: 0 to 1)");
}

Test(listed, plans_have_one_mode) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(FLP_GRAD_HIDDEN);
  flp_plan *plan;
  for (int mode = FLP_MODE_RECOMPUTE_VOCAB; mode <= FLP_MODE_DIRECTION; mode++) {
    flp_options options = FLP_OPTIONS_INIT;
    options.mode = (flp_mode)mode;
    char sentence[200];
    snprintf(sentence, sizeof sentence,
             "options.mode is %d, %s, but spec.listed is 1 (accepted: 0; plans of listed columns have one mode)", mode,
             flp_mode_name((flp_mode)mode));
    expect_refused(flp_plan_create(&spec, &options, &plan), sentence);
  }
}

/* No kernel of lists has tile configurations, and no architecture is said to. */
Test(listed, plans_have_no_tile_configurations) {
  stage s;
  stage_open(&s, "capability=9.0");
  flp_spec spec = listed_spec(FLP_GRAD_HIDDEN);
  flp_options options = FLP_OPTIONS_INIT;
  options.tune = "forward:stages=4";
  flp_plan *plan;
  expect_refused(flp_plan_create(&spec, &options, &plan),
                 "options.tune is \"forward:stages=4\", but on Fake H200 kernels of bf16 V=1000 D=64 "
                 "grads=hidden listed have one tile configuration (accepted: NULL, \"\")");
}

/* ---- arguments ---- */

static flp_spec good_spec(void) {
  return listed_spec(7);
}

static flp_args good_args(flp_pass pass) {
  flp_spec spec = listed_spec(7);
  flp_args a = stage_args(&spec, pass, 10);
  a.list_offsets = AT(1);
  a.list_ids = AT(2);
  a.list_count = 50;
  if (pass == FLP_PASS_COMBINE) {
    a.partial = AT(3);
    a.shard_count = 2;
    a.vocab_total = 2000;
  }
  return a;
}

Test(listed, arguments_that_are_taken) {
  ACCEPT(FORWARD, (void)0);
  ACCEPT(BACKWARD, (void)0);
  ACCEPT(FORWARD, (args.list_count = 0, args.list_ids = NULL));
  ACCEPT(BACKWARD, (args.list_count = 0, args.list_ids = NULL));
  ACCEPT(FORWARD, args.list_count = INT32_MAX);
  ACCEPT(FORWARD, (args.n = 0, args.list_offsets = NULL));
  ACCEPT(FORWARD, (args.rows = AT(4), args.row_count = 3));
  ACCEPT(FORWARD, (spec.target_dtype = FLP_DTYPE_INT32, args.list_ids = (char *)AT(2) + 4));
  /* A combine leaves lists alone, whatever they are. */
  ACCEPT(COMBINE, (void)0);
  ACCEPT(COMBINE, (args.list_count = -1, args.list_offsets = NULL, args.list_ids = NULL));
}

Test(listed, lists_that_are_refused) {
  REFUSE(FORWARD, args.list_count = -1, "args.list_count is -1 (accepted: 0 to 2147483647)");
  REFUSE(BACKWARD, args.list_count = (int64_t)1 << 31, "args.list_count is 2147483648 (accepted: 0 to 2147483647)");
  REFUSE(FORWARD, args.list_offsets = NULL, "args.list_offsets is NULL, but spec.listed is 1");
  REFUSE(BACKWARD, (args.list_offsets = NULL, args.list_count = 0), "args.list_offsets is NULL, but spec.listed is 1");
  REFUSE(FORWARD, args.list_offsets = (void *)0x10004, "args.list_offsets is 0x10004 (accepted: multiples of 8 bytes)");
  REFUSE(FORWARD, args.list_ids = NULL, "args.list_ids is NULL, but args.list_count is not 0");
  REFUSE(BACKWARD, (args.n = 0, args.list_ids = NULL), "args.list_ids is NULL, but args.list_count is not 0");
  REFUSE(FORWARD, args.list_ids = (void *)0x20004, "args.list_ids is 0x20004 (accepted: multiples of 8 bytes)");
  REFUSE(FORWARD, (spec.target_dtype = FLP_DTYPE_INT32, args.list_ids = (void *)0x20002),
         "args.list_ids is 0x20002 (accepted: multiples of 4 bytes)");
}

Test(listed, what_lists_do_not_go_with) {
  REFUSE(FORWARD, args.saved = AT(5), "args.saved is given, but spec.keep and spec.tail are 0");
  REFUSE(BACKWARD, args.saved = AT(5), "args.saved is given, but spec.keep and spec.tail are 0");
  REFUSE(FORWARD, args.old_lse = AT(5), "args.old_lse is given, but spec.listed is 1");
}

Test(listed, other_plans_take_no_lists) {
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_BACKWARD; pass++) {
    flp_spec spec = stage_spec(7);
    flp_args a = good_args((flp_pass)pass);
    expect_refused(resolve_args(spec, &a), "args.list_offsets is given, but spec.listed is 0");
    a.list_offsets = NULL;
    expect_refused(resolve_args(spec, &a), "args.list_ids is given, but spec.listed is 0");
    a.list_ids = NULL;
    expect_refused(resolve_args(spec, &a), "args.list_count is 50, but spec.listed is 0 (accepted: 0)");
    a.list_count = 0;
    cr_expect_eq(resolve_args(spec, &a), FLP_OK, "%s", flp_error_detail());
  }
}

/* ---- queries ---- */

Test(listed, layouts_are_asked_for_with_the_ids) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(3);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_layout layout = FLP_LAYOUT_INIT;
  size_t bytes = 1;
  expect_refused(flp_plan_layout(plan, FLP_PASS_FORWARD, 1, 0, &layout),
                 "pass is FORWARD, but spec.listed is 1 (accepted: COMBINE 2; flp_plan_layout_listed takes FORWARD 1 "
                 "and BACKWARD 3)");
  expect_refused(flp_plan_workspace(plan, FLP_PASS_BACKWARD, 1, 0, &bytes),
                 "pass is BACKWARD, but spec.listed is 1 (accepted: COMBINE 2; flp_plan_layout_listed takes FORWARD 1 "
                 "and BACKWARD 3)");
  cr_expect_eq(bytes, 0);
  cr_expect_eq(flp_plan_layout(plan, FLP_PASS_COMBINE, 10, 0, &layout), FLP_OK);
  cr_expect_gt(stage_workspace(plan, FLP_PASS_COMBINE, 10, 0), 0);
  cr_assert_eq(flp_plan_layout_listed(plan, FLP_PASS_BACKWARD, 10, 300, 0, &layout), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(layout.mode, FLP_MODE_LISTED);
  cr_expect_eq(layout.chunks, 1);
  cr_expect_eq(layout.products, 0);
  cr_expect_eq(layout.chunk_rows, 10);
  cr_expect_eq(layout.chunk_vocab, 1000);
  cr_expect_eq(layout.smallest_bytes, layout.bytes);
  cr_expect_eq(layout.saved_bytes, 0);
  cr_assert_eq(flp_plan_saved(plan, 10, 0, &bytes), FLP_OK);
  cr_expect_eq(bytes, 0);
  flp_plan_destroy(plan);
}

Test(listed, queries_that_are_refused) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(0), dense = stage_spec(3);
  flp_plan *plan = stage_plan(&spec, NULL), *other = stage_plan(&dense, NULL);
  flp_layout layout = FLP_LAYOUT_INIT;
  expect_refused(flp_plan_layout_listed(NULL, FLP_PASS_FORWARD, 1, 1, 0, &layout),
                 "plan is NULL (accepted: a plan of flp_plan_create)");
  expect_refused(flp_plan_layout_listed(other, FLP_PASS_FORWARD, 1, 1, 0, &layout),
                 "the plan's spec.listed is 0 (accepted: 1; flp_plan_layout serves other plans)");
  expect_refused(flp_plan_layout_listed(plan, FLP_PASS_COMBINE, 1, 1, 0, &layout),
                 "pass is COMBINE (accepted: FORWARD 1, BACKWARD 3; flp_plan_layout takes COMBINE)");
  expect_refused(flp_plan_layout_listed(plan, FLP_PASS_STEP, 1, 1, 0, &layout),
                 "pass is STEP, but spec.loss is NULL (accepted: a loss program)");
  expect_refused(flp_plan_layout_listed(plan, FLP_PASS_BACKWARD, 1, 1, 0, &layout),
                 "pass is FLP_PASS_BACKWARD, but spec.grads is 0 (accepted: FLP_GRAD_* bits)");
  expect_refused(flp_plan_layout_listed(plan, FLP_PASS_FORWARD, -1, 1, 0, &layout),
                 "n is -1 (accepted: 0 to 1073741824)");
  expect_refused(flp_plan_layout_listed(plan, FLP_PASS_FORWARD, 1, -1, 0, &layout),
                 "list_count is -1 (accepted: 0 to 2147483647)");
  expect_refused(flp_plan_layout_listed(plan, FLP_PASS_FORWARD, 1, (int64_t)1 << 31, 0, &layout),
                 "list_count is 2147483648 (accepted: 0 to 2147483647)");
  expect_refused(flp_plan_layout_listed(plan, FLP_PASS_FORWARD, 1, 1, 0, NULL),
                 "layout is NULL (accepted: a flp_layout)");
  layout.struct_bytes = 1;
  cr_expect_eq(flp_plan_layout_listed(plan, FLP_PASS_FORWARD, 1, 1, 0, &layout), FLP_ERROR_ARGUMENT);
  layout.struct_bytes = sizeof layout;
  cr_expect_eq(flp_plan_layout_listed(plan, FLP_PASS_FORWARD, 1, 1, 5, &layout), FLP_ERROR_BUDGET);
  flp_args a = good_args(FLP_PASS_FORWARD);
  expect_refused(flp_step(plan, &a), "the plan's spec.loss is NULL (accepted: a loss program, for flp_step)");
  flp_plan_destroy(plan);
  flp_plan_destroy(other);
}

Test(listed, budgets_are_the_plans_or_the_calls) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(0);
  flp_options options = FLP_OPTIONS_INIT;
  options.budget_bytes = 1 << 20;
  flp_plan *plan = stage_plan(&spec, &options);
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_expect_eq(flp_plan_layout_listed(plan, FLP_PASS_FORWARD, 100, 1 << 20, 0, &layout), FLP_ERROR_BUDGET);
  cr_expect_not_null(strstr(flp_error_detail(), "budget: 1048576 bytes are too few"), "%s", flp_error_detail());
  cr_expect_eq(flp_plan_layout_listed(plan, FLP_PASS_FORWARD, 100, 1 << 20, 1 << 30, &layout), FLP_OK);
  flp_plan_destroy(plan);
}

/* ---- what a plan says of itself ---- */

Test(listed, description_and_id) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(3), dense = stage_spec(3);
  flp_plan *plan = stage_plan(&spec, NULL), *other = stage_plan(&dense, NULL);
  char text[4096], id[17], other_id[17];
  cr_assert_eq(flp_plan_describe(plan, text, sizeof text), FLP_OK);
  cr_expect_not_null(strstr(text,
                            "kernels rows, listed, listed_weight for sm_80; spec bf16 V=1000 D=64 "
                            "grads=hidden,weight listed;"),
                     "%s", text);
  cr_assert_eq(flp_plan_get_id(plan, id), FLP_OK);
  cr_assert_eq(flp_plan_get_id(other, other_id), FLP_OK);
  cr_expect_str_neq(id, other_id);
  flp_plan_destroy(plan);
  flp_plan_destroy(other);
}

Test(listed, the_id_of_the_eager_rung_differs_too) {
  stage s;
  stage_open(&s, "");
  flp_options options = FLP_OPTIONS_INIT;
  options.device = FLP_DEVICE_HOST;
  flp_spec spec = listed_spec(3), dense = stage_spec(3);
  flp_plan *plan = stage_plan(&spec, &options), *other = stage_plan(&dense, &options);
  cr_expect_str_neq(plan->id, other->id);
  flp_plan_destroy(plan);
  flp_plan_destroy(other);
}

/* From caches, packs and generic kernels a listed plan takes its kernels as any other does. */
Test(listed, every_rung_has_its_kernels) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(7), resolved;
  cr_assert_eq(flp_spec_resolve(&spec, &resolved), FLP_OK);
  stage_fill_generic(s.generic, &resolved);
  s.provider_script("fail=10;error=none");
  flp_plan *plan = stage_plan(&spec, NULL);
  cr_expect_eq(flp_plan_get_rung(plan), FLP_RUNG_GENERIC);
  flp_plan_destroy(plan);
  s.provider_script("");
  stage_fill_cache(s.cache, &resolved, "");
  plan = stage_plan(&spec, NULL);
  cr_expect_eq(flp_plan_get_rung(plan), FLP_RUNG_HEURISTIC);
  flp_plan_destroy(plan);
}

Test(listed, the_command_that_names_the_spec) {
  char text[FLP_SPEC_OPTIONS_BYTES];
  flp_spec spec = listed_spec(FLP_GRAD_HIDDEN);
  flp_plan_spec_options(&spec, text);
  cr_expect_str_eq(text, "--vocab 1000 --hidden 64 --dtype bf16 --grad hidden --keep-set 1");
}
