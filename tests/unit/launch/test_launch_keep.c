/* test_launch_keep.c: save mode on a device: what is launched in which order, and that what forward saves is what
 * backward reads. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/driver/driver.h"
#include "runtime/planner/planner.h"
#include "tests/unit/support/launch_case.h"

static const char hopper[] = "capability=9.0";
enum { VOCAB = 1000, STRIDE = 1024 };

static flp_spec keep_spec(uint32_t grads, flp_entropy entropy) {
  flp_spec spec = stage_spec(grads);
  spec.keep = 1;
  spec.entropy = entropy;
  return spec;
}

TestSuite(launch_keep, .fini = close_plan);

static flp_args saved_args(flp_pass pass, int64_t n) {
  flp_args a = stage_saved_args(plan, &spec, pass, n);
  a.workspace_bytes = stage_workspace(plan, pass == FLP_PASS_BACKWARD ? FLP_PASS_BACKWARD_SAVED : pass, n, 0);
  return a;
}

/* ---- save mode ---- */

Test(launch_keep, forward_keeps_references_and_then_exponentials) {
  open_plan("", keep_spec(3, FLP_ENTROPY_FORWARD), 0, (flp_mode)0);
  int64_t n = 1500;
  cr_assert_eq(saved_bytes(n), 6144 + n * STRIDE * 2, "references, up to 256 bytes, then rows");
  flp_args a = saved_args(FLP_PASS_FORWARD, n);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare forward keep_reference forward_keep combine");
  flp_forward_params first = STAGE_PARAMS(flp_forward_params, stage_launch(&s, "forward", 0));
  cr_expect_eq(first.vocab_valid, FLP_REFERENCE_COLUMNS);
  cr_expect_eq(first.groups, 1);
  flp_forward_keep_params keep = STAGE_PARAMS(flp_forward_keep_params, stage_launch(&s, "forward_keep", 0));
  cr_expect_eq(keep.vocab_valid, VOCAB);
  cr_expect_eq(keep.reference, stage_address(a.saved));
  cr_expect_eq(keep.kept, stage_address(a.saved) + 6144);
  cr_expect_eq(keep.kept_stride, STRIDE);
  cr_expect_eq(keep.part, first.part);
  stage_expect_capturable(&s);
}

Test(launch_keep, saved_backward_scales_rows_of_what_forward_saved) {
  open_plan("", keep_spec(3, FLP_ENTROPY_FORWARD), 0, (flp_mode)0);
  flp_args a = saved_args(FLP_PASS_BACKWARD, 1500);
  uint64_t reference = stage_address(a.saved), kept = reference + 6144;
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare record keep_finish dz dz keep_gather grad_hidden grad_weight fill");
  flp_prepare_params prepare = STAGE_PARAMS(flp_prepare_params, stage_launch(&s, "prepare", 0));
  cr_expect_eq(prepare.grad_logprob, 0, "active rows are those of forward");
  flp_keep_finish_params finish = STAGE_PARAMS(flp_keep_finish_params, stage_launch(&s, "keep_finish", 0));
  cr_expect_eq(finish.kept, kept);
  cr_expect_eq(finish.reference, reference);
  cr_expect_eq(finish.plain, 1);
  cr_expect_eq(stage_launch(&s, "keep_finish", 0)->grid, 2, "a CTA a block of 1024 rows");
  flp_dz_params redo = STAGE_PARAMS(flp_dz_params, stage_launch(&s, "dz", 1));
  cr_expect_eq(redo.count, finish.redo + 4);
  cr_expect_eq(redo.row_begin, 1024);
  cr_expect_eq(redo.row_end, 1500);
  cr_expect_eq(redo.dz, kept + 1024 * STRIDE * 2);
  cr_expect_eq(redo.dz_stride, STRIDE);
  flp_grad_hidden_params hidden = STAGE_PARAMS(flp_grad_hidden_params, stage_launch(&s, "grad_hidden", 0));
  cr_expect_eq(hidden.factor, finish.factor);
  cr_expect_neq(hidden.index, 0);
  flp_keep_gather_params gather = STAGE_PARAMS(flp_keep_gather_params, stage_launch(&s, "keep_gather", 0));
  flp_grad_weight_params weight = STAGE_PARAMS(flp_grad_weight_params, stage_launch(&s, "grad_weight", 0));
  cr_expect_eq(weight.operand, gather.out);
  cr_expect_eq(weight.operand_stride, gather.out_stride);
  cr_expect_eq(weight.index, 0);
  cr_expect_eq(weight.factor, 0);
  cr_expect_eq(weight.dz, kept);
  stage_expect_capturable(&s);
}

Test(launch_keep, only_what_is_not_expanded_has_the_slope_of_a_softcap) {
  flp_spec wanted = keep_spec(3, FLP_ENTROPY_FORWARD);
  wanted.softcap = 30;
  open_plan("", wanted, 0, (flp_mode)0);
  flp_args a = saved_args(FLP_PASS_FORWARD, 100);
  stage_execute(&s, plan, &a);
  cr_expect_eq(STAGE_PARAMS(flp_forward_keep_params, stage_launch(&s, "forward_keep", 0)).slope, 1.0f);
  a = saved_args(FLP_PASS_BACKWARD, 100);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare record keep_finish dz keep_gather grad_hidden grad_weight fill");
  flp_keep_finish_params finish = STAGE_PARAMS(flp_keep_finish_params, stage_launch(&s, "keep_finish", 0));
  cr_expect(finish.plain == 1 && finish.capped == 1);
  cr_expect_eq(finish.scale, STAGE_PARAMS(flp_prepare_params, stage_launch(&s, "prepare", 0)).scale);
  wanted.entropy = FLP_ENTROPY_BACKWARD;
  flp_options options = stage_options(0, (flp_mode)0);
  use_plan(wanted, &options);
  a = saved_args(FLP_PASS_FORWARD, 100);
  stage_execute(&s, plan, &a);
  cr_expect_eq(STAGE_PARAMS(flp_forward_keep_params, stage_launch(&s, "forward_keep", 0)).slope, 0.0f);
}

Test(launch_keep, an_entropy_gradient_or_a_bias_expands_in_place) {
  open_plan("", keep_spec(7, FLP_ENTROPY_NONE), 0, (flp_mode)0);
  flp_args a = saved_args(FLP_PASS_BACKWARD, 1500);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(
      &s, "prepare record keep_finish dz dz keep_expand keep_gather grad_hidden grad_weight bias_reduce fill");
  flp_keep_expand_params expand = STAGE_PARAMS(flp_keep_expand_params, stage_launch(&s, "keep_expand", 0));
  flp_dz_params redo = STAGE_PARAMS(flp_dz_params, stage_launch(&s, "dz", 1));
  flp_bias_reduce_params reduce = STAGE_PARAMS(flp_bias_reduce_params, stage_launch(&s, "bias_reduce", 0));
  cr_expect_eq(expand.tile_rows, 128);
  cr_expect_eq(expand.bias_part, reduce.bias_part);
  cr_expect_eq(redo.bias_part, reduce.bias_part + 8 * VOCAB * 4, "of the block's tiles: 1024 rows are 8");
  cr_expect_eq(stage_launch(&s, "keep_expand", 0)->grid, 12 * 1);
  flp_keep_finish_params finish = STAGE_PARAMS(flp_keep_finish_params, stage_launch(&s, "keep_finish", 0));
  cr_expect_eq(finish.plain, 0);
  cr_expect_eq(STAGE_PARAMS(flp_grad_hidden_params, stage_launch(&s, "grad_hidden", 0)).factor, finish.factor);
  flp_keep_gather_params gather = STAGE_PARAMS(flp_keep_gather_params, stage_launch(&s, "keep_gather", 0));
  cr_expect_eq(STAGE_PARAMS(flp_grad_weight_params, stage_launch(&s, "grad_weight", 0)).operand, gather.out);
  flp_options options = stage_options(0, (flp_mode)0);
  use_plan(keep_spec(1, FLP_ENTROPY_BACKWARD), &options);
  a = saved_args(FLP_PASS_BACKWARD, 100);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare record keep_finish dz keep_expand grad_hidden fill");
}

Test(launch_keep, mapped_rows_are_gathered_and_scaled_in_one_place) {
  open_plan(hopper, keep_spec(3, FLP_ENTROPY_NONE), 0, (flp_mode)0);
  int64_t n = 1500;
  flp_args a = saved_args(FLP_PASS_FORWARD, n);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare gather forward_map keep_reference forward_keep_map combine");
  flp_forward_keep_map_params keep;
  memcpy(&keep, stage_launch(&s, "forward_keep_map", 0)->params, sizeof keep);
  stage_map kept = stage_read_map(&keep.kept_map);
  cr_expect_eq(kept.start, stage_address(a.saved) + 6144);
  cr_expect_eq(kept.rows, n);
  cr_expect_eq(kept.columns, VOCAB);
  cr_expect_eq(kept.stride_bytes, STRIDE * 2);
  cr_expect_eq(kept.box_rows, FLP_DZ_BOX_ROWS);
  a = saved_args(FLP_PASS_BACKWARD, n);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare gather record keep_finish dz_map dz_map keep_gather products_map fill");
  flp_dz_map_params redo;
  memcpy(&redo, stage_launch(&s, "dz_map", 1)->params, sizeof redo);
  flp_keep_gather_params gather = STAGE_PARAMS(flp_keep_gather_params, stage_launch(&s, "keep_gather", 0));
  uint64_t row = (uint64_t)gather.out_stride * 2;
  cr_expect_eq(stage_read_map(&redo.gathered_map).start, gather.out + 1024 * row);
  cr_expect_eq(stage_read_map(&redo.hidden_map).start, stage_address(a.hidden) + 1024 * 64 * 2);
  cr_expect_eq(stage_read_map(&redo.dz_map).start, kept.start + 1024 * STRIDE * 2);
  flp_products_map_params products;
  memcpy(&products, stage_launch(&s, "products_map", 0)->params, sizeof products);
  cr_expect_eq(stage_read_map(&products.hidden_map).start, gather.out);
  cr_expect_eq(stage_read_map(&products.gathered_map).start, gather.out);
  cr_expect_eq(stage_read_map(&products.dz_map).start, kept.start);
  cr_expect_neq(products.factor, 0);
}

Test(launch_keep, a_workspace_of_backward_holds_what_was_saved_and_a_smaller_one_recomputes) {
  open_plan("", keep_spec(3, FLP_ENTROPY_NONE), 0, (flp_mode)0);
  flp_args a = saved_args(FLP_PASS_BACKWARD, 20000);
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_BACKWARD, 20000, 0);
  stage_execute(&s, plan, &a);
  cr_expect_eq(strcmp(s.launch_at(2)->entry, "keep_finish"), 0);
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, 20000, 0, &layout), FLP_OK);
  a.workspace_bytes = layout.smallest_bytes;
  cr_assert_lt(layout.smallest_bytes, stage_workspace(plan, FLP_PASS_BACKWARD_SAVED, 20000, 0));
  stage_execute(&s, plan, &a);
  cr_expect_eq(strcmp(s.launch_at(2)->entry, "dz"), 0);
}

Test(launch_keep, old_lse_takes_the_place_of_the_first_columns) {
  open_plan("", keep_spec(3, FLP_ENTROPY_NONE), 0, (flp_mode)0);
  flp_args a = saved_args(FLP_PASS_FORWARD, 100);
  a.old_lse = STAGE_AT(61);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare keep_reference forward_keep combine");
  flp_keep_reference_params p = STAGE_PARAMS(flp_keep_reference_params, stage_launch(&s, "keep_reference", 0));
  cr_expect_eq(p.part, 0);
  cr_expect_eq(p.old_lse, stage_address(a.old_lse));
}

Test(launch_keep, nothing_is_kept_where_it_cannot_be) {
  open_plan("", keep_spec(3, FLP_ENTROPY_NONE), 0, FLP_MODE_RECOMPUTE_ROWS);
  cr_expect_eq(saved_bytes(100), 0, "recompute mode was asked for");
  flp_args a = stage_args(&spec, FLP_PASS_FORWARD, 100);
  a.saved = STAGE_AT(60);
  a.saved_bytes = 1 << 20;
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_FORWARD, 100, 0);
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_ARGUMENT);
  flp_options options = stage_options(0, (flp_mode)0);
  use_plan(spec, &options);
  size_t bytes, all = saved_bytes(100);
  cr_expect_eq(flp_plan_saved(plan, 100, all + 1000, &bytes), FLP_OK);
  cr_expect_eq(bytes, 0, "they fit the budget, but no workspace beside them");
  a.saved_bytes = all - 1;
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_ARGUMENT);
  a.saved_bytes = all;
  a.vocab_total = 2 * VOCAB;
  a.logprob = a.stats = NULL;
  a.partial = STAGE_AT(11);
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(),
                   "args.saved is given, but the call covers a vocab shard (accepted: NULL in mode save)");
}

/* What a caller asks, in this order, and one budget for all of it. */
Test(launch_keep, one_budget_holds_what_is_saved_and_the_workspaces) {
  open_plan("", keep_spec(3, FLP_ENTROPY_NONE), 0, (flp_mode)0);
  int64_t n = 3000;
  size_t all = saved_bytes(n), most, bytes;
  flp_layout forward = FLP_LAYOUT_INIT, backward = FLP_LAYOUT_INIT, layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD_SAVED, n, 0, &backward), FLP_OK);
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_FORWARD_SAVED, n, 0, &forward), FLP_OK);
  cr_expect_eq(backward.saved_bytes, all);
  cr_expect_eq(forward.saved_bytes, all);
  uint64_t least = forward.smallest_bytes > backward.bytes ? forward.smallest_bytes : backward.bytes;
  for (uint64_t budget = all + least - 1; budget <= all + least; budget++) {
    cr_assert_eq(flp_plan_saved(plan, n, budget, &bytes), FLP_OK);
    cr_expect_eq(bytes, budget < all + least ? 0 : all);
  }
  cr_assert_eq(flp_spec_saved(&spec, n, all, &most), FLP_OK);
  cr_expect_eq(most, all);
  cr_assert_eq(flp_spec_saved(&spec, n, all - 1, &most), FLP_OK);
  cr_expect_eq(most, 0);
  for (int pass = FLP_PASS_BACKWARD_SAVED; pass <= FLP_PASS_FORWARD_SAVED; pass++) {
    cr_expect_eq(flp_plan_layout(plan, (flp_pass)pass, n, all, &layout), FLP_ERROR_BUDGET);
    cr_assert_eq(flp_plan_layout(plan, (flp_pass)pass, n, all + least, &layout), FLP_OK, "%s", flp_error_detail());
    flp_args a = saved_args(pass == FLP_PASS_FORWARD_SAVED ? FLP_PASS_FORWARD : FLP_PASS_BACKWARD, n);
    a.workspace_bytes = layout.bytes;
    stage_execute(&s, plan, &a);
  }
  cr_expect_eq(flp_plan_layout(plan, FLP_PASS_FORWARD, n, all, &layout), FLP_OK);
  cr_expect_eq(layout.saved_bytes, 0);
}

Test(launch_keep, the_budget_of_the_environment_holds_what_is_saved) {
  flp_options options = stage_options(0, (flp_mode)0);
  size_t bytes;
  stage_open(&s, "");
  setenv("FLP_BUDGET", "6M", 1);
  use_plan(keep_spec(3, FLP_ENTROPY_NONE), &options);
  cr_expect_gt(saved_bytes(2000), 4000000);
  cr_expect_eq(saved_bytes(4000), 0);
  cr_assert_eq(flp_spec_saved(&spec, 2000, 0, &bytes), FLP_OK);
  cr_expect_gt(bytes, 4000000);
  cr_assert_eq(flp_spec_saved(&spec, 4000, 0, &bytes), FLP_OK);
  cr_expect_eq(bytes, 0);
  setenv("FLP_BUDGET", "6MB", 1);
  cr_expect_eq(flp_spec_saved(&spec, 2000, 0, &bytes), FLP_ERROR_ARGUMENT);
  cr_expect_not_null(strstr(flp_error_detail(), "FLP_BUDGET is \"6MB\""));
  unsetenv("FLP_BUDGET");
  spec.dtype = FLP_DTYPE_FP32;
  cr_expect_eq(flp_spec_saved(&spec, 2000, 0, &bytes), FLP_ERROR_ARGUMENT);
  spec = stage_spec(3);
  cr_expect_eq(flp_spec_saved(&spec, 2000, 0, &bytes), FLP_OK);
  cr_expect_eq(bytes, 0, "a plan that keeps nothing");
  cr_expect_eq(flp_spec_saved(&spec, -1, 0, &bytes), FLP_ERROR_ARGUMENT);
  cr_expect_eq(flp_spec_saved(&spec, 2000, 0, NULL), FLP_ERROR_ARGUMENT);
}

/* ---- rungs ---- */

Test(launch_keep, tuned_kernels_of_a_head_serve_beside_plain_ones_of_what_is_kept) {
  stage_open(&s, "name=H200");
  flp_spec head = stage_spec(3), kept = keep_spec(3, FLP_ENTROPY_NONE);
  stage_fill_cache(s.cache, &head, "H200/132/13000");
  stage_fill_cache(s.cache, &kept, "");
  use_plan(kept, NULL);
  cr_expect_eq(flp_plan_get_rung(plan), FLP_RUNG_TUNED, "%s", flp_plan_get_reason(plan, FLP_RUNG_TUNED));
  cr_expect_gt(saved_bytes(10), 0);
}
