/* test_launch_keep.c: modes S and P on a device: what is launched in which order, that what forward saves is what
 * backward reads, that chunks of a step cover every row once, and what the rungs say of a loss. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "loss.h"
#include "stage.h"

static const char hopper[] = "capability=9.0";
enum { VOCAB = 1000, STRIDE = 1024 };

static flp_spec keep_spec(uint32_t grads, flp_entropy entropy) {
  flp_spec spec = stage_spec(grads);
  spec.keep = 1;
  spec.entropy = entropy;
  return spec;
}

static uint8_t program[FLP_LOSS_BYTES_MAX];

static flp_spec step_spec(uint32_t grads, const char *loss, flp_entropy entropy) {
  flp_spec spec = stage_spec(grads);
  spec.entropy = entropy;
  spec.loss = program;
  cr_assert_eq(flp_loss_builtin_bytes(loss, program, sizeof program, &spec.loss_bytes), FLP_OK);
  return spec;
}

static flp_options options_of(int64_t chunk_rows, flp_mode mode) {
  flp_options options = FLP_OPTIONS_INIT;
  options.rung = FLP_RUNG_JIT;
  options.chunk_rows = chunk_rows;
  options.mode = mode;
  return options;
}

static size_t saved_bytes(const flp_plan *plan, int64_t n) {
  size_t bytes;
  cr_assert_eq(flp_plan_saved(plan, n, 0, &bytes), FLP_OK, "%s", flp_error_detail());
  return bytes;
}

static flp_args saved_args(const flp_plan *plan, const flp_spec *spec, flp_pass pass, int64_t n) {
  flp_args a = stage_args(spec, pass, n);
  a.saved = STAGE_AT(60);
  a.saved_bytes = saved_bytes(plan, n);
  a.workspace_bytes = stage_workspace(plan, pass == FLP_PASS_BACKWARD ? FLP_PASS_BACKWARD_SAVED : pass, n, 0);
  return a;
}

static const fake_launch *launch_of(const stage *s, const char *entry, int which) {
  for (size_t i = 0; i < s->launch_count(); i++)
    if (strcmp(s->launch_at(i)->entry, entry) == 0 && which-- == 0) return s->launch_at(i);
  cr_assert_fail("no launch of %s", entry);
  return NULL;
}

/* ---- mode S ---- */

Test(launch_keep, forward_keeps_references_and_then_exponentials) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = keep_spec(3, FLP_ENTROPY_FORWARD);
  flp_options options = options_of(0, (flp_mode)0);
  flp_plan *plan = stage_plan(&spec, &options);
  int64_t n = 1500;
  cr_assert_eq(saved_bytes(plan, n), 6144 + n * STRIDE * 2, "references, up to 256 bytes, then rows");
  flp_args a = saved_args(plan, &spec, FLP_PASS_FORWARD, n);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare forward keep_reference forward_keep combine");
  flp_forward_params first = STAGE_PARAMS(flp_forward_params, launch_of(&s, "forward", 0));
  cr_expect_eq(first.vocab_valid, FLP_LEAF_COLUMNS);
  cr_expect_eq(first.groups, 1);
  flp_forward_keep_params keep = STAGE_PARAMS(flp_forward_keep_params, launch_of(&s, "forward_keep", 0));
  cr_expect_eq(keep.vocab_valid, VOCAB);
  cr_expect_eq(keep.reference, stage_address(a.saved));
  cr_expect_eq(keep.kept, stage_address(a.saved) + 6144);
  cr_expect_eq(keep.kept_stride, STRIDE);
  cr_expect_eq(keep.part, first.part);
  stage_expect_capturable(&s);
  flp_plan_destroy(plan);
}

Test(launch_keep, saved_backward_scales_rows_of_what_forward_saved) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = keep_spec(3, FLP_ENTROPY_FORWARD);
  flp_options options = options_of(0, (flp_mode)0);
  flp_plan *plan = stage_plan(&spec, &options);
  flp_args a = saved_args(plan, &spec, FLP_PASS_BACKWARD, 1500);
  uint64_t reference = stage_address(a.saved), kept = reference + 6144;
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare record keep_finish dz dz keep_gather grad_hidden grad_weight fill");
  flp_prepare_params prepare = STAGE_PARAMS(flp_prepare_params, launch_of(&s, "prepare", 0));
  cr_expect_eq(prepare.grad_logprob, 0, "active rows are those of forward");
  flp_keep_finish_params finish = STAGE_PARAMS(flp_keep_finish_params, launch_of(&s, "keep_finish", 0));
  cr_expect_eq(finish.kept, kept);
  cr_expect_eq(finish.reference, reference);
  cr_expect_eq(finish.plain, 1);
  cr_expect_eq(launch_of(&s, "keep_finish", 0)->grid, 2, "a CTA a block of 1024 rows");
  flp_dz_params redo = STAGE_PARAMS(flp_dz_params, launch_of(&s, "dz", 1));
  cr_expect_eq(redo.count, finish.redo + 4);
  cr_expect_eq(redo.row_begin, 1024);
  cr_expect_eq(redo.row_end, 1500);
  cr_expect_eq(redo.dz, kept + 1024 * STRIDE * 2);
  cr_expect_eq(redo.dz_stride, STRIDE);
  flp_grad_hidden_params hidden = STAGE_PARAMS(flp_grad_hidden_params, launch_of(&s, "grad_hidden", 0));
  cr_expect_eq(hidden.factor, finish.factor);
  cr_expect_neq(hidden.index, 0);
  flp_keep_gather_params gather = STAGE_PARAMS(flp_keep_gather_params, launch_of(&s, "keep_gather", 0));
  flp_grad_weight_params weight = STAGE_PARAMS(flp_grad_weight_params, launch_of(&s, "grad_weight", 0));
  cr_expect_eq(weight.operand, gather.out);
  cr_expect_eq(weight.operand_stride, gather.out_stride);
  cr_expect_eq(weight.index, 0);
  cr_expect_eq(weight.factor, 0);
  cr_expect_eq(weight.dz, kept);
  stage_expect_capturable(&s);
  flp_plan_destroy(plan);
}

Test(launch_keep, an_entropy_gradient_or_a_bias_expands_in_place) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = keep_spec(7, FLP_ENTROPY_NONE);
  flp_options options = options_of(0, (flp_mode)0);
  flp_plan *plan = stage_plan(&spec, &options);
  flp_args a = saved_args(plan, &spec, FLP_PASS_BACKWARD, 1500);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare record keep_finish dz dz keep_expand grad_hidden grad_weight bias_reduce fill");
  flp_keep_expand_params expand = STAGE_PARAMS(flp_keep_expand_params, launch_of(&s, "keep_expand", 0));
  flp_dz_params redo = STAGE_PARAMS(flp_dz_params, launch_of(&s, "dz", 1));
  flp_bias_reduce_params reduce = STAGE_PARAMS(flp_bias_reduce_params, launch_of(&s, "bias_reduce", 0));
  cr_expect_eq(expand.tile_rows, 128);
  cr_expect_eq(expand.bias_part, reduce.bias_part);
  cr_expect_eq(redo.bias_part, reduce.bias_part + 8 * VOCAB * 4, "of the block's tiles: 1024 rows are 8");
  cr_expect_eq(launch_of(&s, "keep_expand", 0)->grid, 12 * 1);
  cr_expect_eq(STAGE_PARAMS(flp_grad_hidden_params, launch_of(&s, "grad_hidden", 0)).factor, 0);
  cr_expect_neq(STAGE_PARAMS(flp_grad_weight_params, launch_of(&s, "grad_weight", 0)).index, 0);
  flp_plan_destroy(plan);
  spec = keep_spec(1, FLP_ENTROPY_BACKWARD);
  plan = stage_plan(&spec, &options);
  a = saved_args(plan, &spec, FLP_PASS_BACKWARD, 100);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare record keep_finish dz keep_expand grad_hidden fill");
  flp_plan_destroy(plan);
}

Test(launch_keep, mapped_rows_are_gathered_and_scaled_in_one_place) {
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = keep_spec(3, FLP_ENTROPY_NONE);
  flp_options options = options_of(0, (flp_mode)0);
  flp_plan *plan = stage_plan(&spec, &options);
  int64_t n = 1500;
  flp_args a = saved_args(plan, &spec, FLP_PASS_FORWARD, n);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare gather forward_map keep_reference forward_keep_map combine");
  flp_forward_keep_map_params keep;
  memcpy(&keep, launch_of(&s, "forward_keep_map", 0)->params, sizeof keep);
  stage_map kept = stage_read_map(&keep.kept_map);
  cr_expect_eq(kept.start, stage_address(a.saved) + 6144);
  cr_expect_eq(kept.rows, n);
  cr_expect_eq(kept.columns, VOCAB);
  cr_expect_eq(kept.stride_bytes, STRIDE * 2);
  cr_expect_eq(kept.box_rows, FLP_DZ_BOX_ROWS);
  a = saved_args(plan, &spec, FLP_PASS_BACKWARD, n);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare gather record keep_finish dz_map dz_map keep_gather products_map fill");
  flp_dz_map_params redo;
  memcpy(&redo, launch_of(&s, "dz_map", 1)->params, sizeof redo);
  flp_keep_gather_params gather = STAGE_PARAMS(flp_keep_gather_params, launch_of(&s, "keep_gather", 0));
  uint64_t row = (uint64_t)gather.out_stride * 2;
  cr_expect_eq(stage_read_map(&redo.gathered_map).start, gather.out + 1024 * row);
  cr_expect_eq(stage_read_map(&redo.hidden_map).start, stage_address(a.hidden) + 1024 * 64 * 2);
  cr_expect_eq(stage_read_map(&redo.dz_map).start, kept.start + 1024 * STRIDE * 2);
  flp_products_map_params products;
  memcpy(&products, launch_of(&s, "products_map", 0)->params, sizeof products);
  cr_expect_eq(stage_read_map(&products.hidden_map).start, gather.out);
  cr_expect_eq(stage_read_map(&products.gathered_map).start, gather.out);
  cr_expect_eq(stage_read_map(&products.dz_map).start, kept.start);
  cr_expect_neq(products.factor, 0);
  flp_plan_destroy(plan);
}

Test(launch_keep, a_workspace_of_backward_holds_what_was_saved_and_a_smaller_one_recomputes) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = keep_spec(3, FLP_ENTROPY_NONE);
  flp_options options = options_of(0, (flp_mode)0);
  flp_plan *plan = stage_plan(&spec, &options);
  flp_args a = saved_args(plan, &spec, FLP_PASS_BACKWARD, 20000);
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_BACKWARD, 20000, 0);
  stage_execute(&s, plan, &a);
  cr_expect_eq(strcmp(s.launch_at(2)->entry, "keep_finish"), 0);
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, 20000, 0, &layout), FLP_OK);
  a.workspace_bytes = layout.smallest_bytes;
  cr_assert_lt(layout.smallest_bytes, stage_workspace(plan, FLP_PASS_BACKWARD_SAVED, 20000, 0));
  stage_execute(&s, plan, &a);
  cr_expect_eq(strcmp(s.launch_at(2)->entry, "dz"), 0);
  flp_plan_destroy(plan);
}

Test(launch_keep, old_lse_takes_the_place_of_the_first_columns) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = keep_spec(3, FLP_ENTROPY_NONE);
  flp_options options = options_of(0, (flp_mode)0);
  flp_plan *plan = stage_plan(&spec, &options);
  flp_args a = saved_args(plan, &spec, FLP_PASS_FORWARD, 100);
  a.old_lse = STAGE_AT(61);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare keep_reference forward_keep combine");
  flp_keep_reference_params p = STAGE_PARAMS(flp_keep_reference_params, launch_of(&s, "keep_reference", 0));
  cr_expect_eq(p.part, 0);
  cr_expect_eq(p.old_lse, stage_address(a.old_lse));
  flp_plan_destroy(plan);
}

Test(launch_keep, nothing_is_kept_where_it_cannot_be) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = keep_spec(3, FLP_ENTROPY_NONE);
  flp_options options = options_of(0, FLP_MODE_R_ROWS);
  flp_plan *plan = stage_plan(&spec, &options);
  cr_expect_eq(saved_bytes(plan, 100), 0, "mode R was asked for");
  flp_args a = stage_args(&spec, FLP_PASS_FORWARD, 100);
  a.saved = STAGE_AT(60);
  a.saved_bytes = 1 << 20;
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_FORWARD, 100, 0);
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_ARGUMENT);
  flp_plan_destroy(plan);
  options = options_of(0, (flp_mode)0);
  plan = stage_plan(&spec, &options);
  size_t bytes, all = saved_bytes(plan, 100);
  cr_expect_eq(flp_plan_saved(plan, 100, all + 1000, &bytes), FLP_OK);
  cr_expect_eq(bytes, 0, "they fit the budget, but no workspace beside them");
  a.saved_bytes = all - 1;
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_ARGUMENT);
  a.saved_bytes = all;
  a.vocab_total = 2 * VOCAB;
  a.logprob = a.stats = NULL;
  a.partial = STAGE_AT(11);
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(), "args.saved is given, but the call covers a vocab shard");
  flp_plan_destroy(plan);
}

/* What a caller asks, in this order, and one budget for all of it. */
Test(launch_keep, one_budget_holds_what_is_saved_and_the_workspaces) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = keep_spec(3, FLP_ENTROPY_NONE);
  flp_options options = options_of(0, (flp_mode)0);
  flp_plan *plan = stage_plan(&spec, &options);
  int64_t n = 3000;
  size_t all = saved_bytes(plan, n), most, bytes;
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
    flp_args a = saved_args(plan, &spec, pass == FLP_PASS_FORWARD_SAVED ? FLP_PASS_FORWARD : FLP_PASS_BACKWARD, n);
    a.workspace_bytes = layout.bytes;
    stage_execute(&s, plan, &a);
  }
  cr_expect_eq(flp_plan_layout(plan, FLP_PASS_FORWARD, n, all, &layout), FLP_OK);
  cr_expect_eq(layout.saved_bytes, 0);
  flp_plan_destroy(plan);
}

Test(launch_keep, the_budget_of_the_environment_holds_what_is_saved) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = keep_spec(3, FLP_ENTROPY_NONE);
  flp_options options = options_of(0, (flp_mode)0);
  size_t bytes;
  setenv("FLP_BUDGET", "6M", 1);
  flp_plan *plan = stage_plan(&spec, &options);
  cr_expect_gt(saved_bytes(plan, 2000), 4000000);
  cr_expect_eq(saved_bytes(plan, 4000), 0);
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
  flp_plan_destroy(plan);
}

/* ---- a step ---- */

static flp_args step_args(const flp_plan *plan, const flp_spec *spec, int64_t n) {
  flp_args a = stage_args(spec, FLP_PASS_BACKWARD, n);
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

static void run_step(stage *s, flp_plan *plan, const flp_args *a) {
  s->reset();
  cr_assert_eq(flp_step(plan, a), FLP_OK, "%s", flp_error_detail());
}

#define CHUNK "forward keep_reference forward_keep combine loss_rows record keep_finish dz "

/* Chunk i of three, of 256 rows each but the last. */
static void expect_chunk(stage *s, int i, int64_t n) {
  int64_t begin = 256 * i, end = i < 2 ? begin + 256 : n;
  flp_loss_rows_params loss = STAGE_PARAMS(flp_loss_rows_params, launch_of(s, "loss_rows", i));
  flp_record_params record = STAGE_PARAMS(flp_record_params, launch_of(s, "record", i));
  flp_combine_params combine = STAGE_PARAMS(flp_combine_params, launch_of(s, "combine", i));
  flp_grad_weight_params weight = STAGE_PARAMS(flp_grad_weight_params, launch_of(s, "grad_weight", i));
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

Test(launch_keep, a_step_streams_chunks_of_rows) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = step_spec(3, "grpo+k3", FLP_ENTROPY_NONE);
  flp_options options = options_of(256, FLP_MODE_P);
  flp_plan *plan = stage_plan(&spec, &options);
  flp_layout layout = FLP_LAYOUT_INIT;
  int64_t n = 600;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_STEP, n, 0, &layout), FLP_OK);
  cr_expect_eq(layout.mode, FLP_MODE_P);
  cr_expect_eq(layout.products, 3);
  cr_expect_eq(layout.chunks, 3);
  flp_args a = step_args(plan, &spec, n);
  run_step(&s, plan, &a);
  stage_expect_sequence(&s, "prepare " CHUNK "keep_gather grad_hidden grad_weight " CHUNK
                            "keep_gather grad_hidden grad_weight " CHUNK
                            "keep_gather grad_hidden grad_weight loss_rows fill");
  cr_expect_eq(s.launch_count(), (size_t)layout.launches);
  stage_expect_capturable(&s);
  for (int i = 0; i < 3; i++) expect_chunk(&s, i, n);
  flp_loss_rows_params idle = STAGE_PARAMS(flp_loss_rows_params, launch_of(&s, "loss_rows", 3));
  cr_expect_neq(idle.row_class, 0);
  cr_expect_eq(idle.loss, stage_address(a.loss));
  flp_plan_destroy(plan);
}

Test(launch_keep, a_step_on_hopper_adds_to_the_callers_own_gradient) {
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = step_spec(3, "grpo+entropy", FLP_ENTROPY_BACKWARD);
  spec.grad_weight_dtype = FLP_DTYPE_FP32;
  spec.accumulate_grad_weight = 1;
  flp_options options = options_of(512, FLP_MODE_P);
  flp_plan *plan = stage_plan(&spec, &options);
  flp_args a = step_args(plan, &spec, 600);
  a.logprob = STAGE_AT(6);
  run_step(&s, plan, &a);
#define MAPPED                                                                                                  \
  "gather forward_map keep_reference forward_keep_map combine loss_rows record keep_finish dz_map keep_expand " \
  "products_map "
  stage_expect_sequence(&s, "prepare " MAPPED MAPPED "loss_rows fill");
  flp_products_map_params products;
  memcpy(&products, launch_of(&s, "products_map", 0)->params, sizeof products);
  cr_expect_eq(products.weight_acc, stage_address(a.grad_weight));
  cr_expect_eq(products.weight_flags & FLP_PRODUCT_READ_ACC, FLP_PRODUCT_READ_ACC);
  cr_expect_eq(products.factor, 0);
  flp_loss_rows_params loss = STAGE_PARAMS(flp_loss_rows_params, launch_of(&s, "loss_rows", 0));
  cr_expect_eq(loss.logprob, stage_address(a.logprob));
  cr_expect_neq(loss.grad_entropy, 0);
  cr_expect_eq(STAGE_PARAMS(flp_record_params, launch_of(&s, "record", 0)).grad_entropy, loss.grad_entropy);
  flp_plan_destroy(plan);
}

Test(launch_keep, a_step_in_mode_R_prepares_its_rows_once) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = step_spec(3, "grpo", FLP_ENTROPY_NONE);
  spec.dtype = FLP_DTYPE_FP16;
  flp_options options = options_of(0, (flp_mode)0);
  flp_plan *plan = stage_plan(&spec, &options);
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_STEP, 300, 0, &layout), FLP_OK);
  cr_expect_eq(layout.products, 4);
  flp_args a = step_args(plan, &spec, 300);
  run_step(&s, plan, &a);
  stage_expect_sequence(&s,
                        "prepare forward combine loss_rows loss_rows record dz_scale dz grad_hidden grad_weight fill");
  cr_expect_eq(s.launch_count(), (size_t)layout.launches);
  flp_prepare_params prepare = STAGE_PARAMS(flp_prepare_params, launch_of(&s, "prepare", 0));
  flp_record_params record = STAGE_PARAMS(flp_record_params, launch_of(&s, "record", 0));
  cr_expect_eq(record.index, prepare.index);
  cr_expect_eq(record.stats, prepare.stats);
  flp_plan_destroy(plan);
}

Test(launch_keep, a_step_without_rows_zeroes_the_head) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = step_spec(3, "grpo", FLP_ENTROPY_NONE);
  flp_options options = options_of(0, (flp_mode)0);
  flp_plan *plan = stage_plan(&spec, &options);
  flp_args a = step_args(plan, &spec, 0);
  run_step(&s, plan, &a);
  cr_expect_eq(s.launch_count(), 0);
  cr_expect_eq(s.calls("cuMemsetD8Async"), 1);
  flp_plan_destroy(plan);
}

/* ---- rungs ---- */

/* Without a generator: the kernel that ships for any loss, and the program beside it. */
Test(launch_keep, the_generic_rung_runs_any_loss_as_data) {
  static const char *const losses[] = {"grpo", "ppo+k3"};
  stage s;
  stage_open(&s, "");
  flp_spec spec = step_spec(3, losses[0], FLP_ENTROPY_NONE);
  stage_fill_generic(s.generic, &spec);
  setenv("FLP_JIT_LIBRARY", "/nowhere.so", 1);
  flp_options options = FLP_OPTIONS_INIT;
  char ids[2][17];
  for (int i = 0; i < 2; i++) {
    spec = step_spec(3, losses[i], FLP_ENTROPY_NONE);
    flp_plan *plan = stage_plan(&spec, &options);
    cr_assert_eq(flp_plan_get_rung(plan), FLP_RUNG_GENERIC, "%s", flp_plan_get_reason(plan, FLP_RUNG_GENERIC));
    flp_args a = step_args(plan, &spec, 100);
    run_step(&s, plan, &a);
    flp_loss loss;
    flp_loss_code code;
    cr_assert_eq(flp_loss_find(losses[i], &loss), FLP_OK);
    flp_loss_encode(&loss, &code);
    CUdeviceptr program = STAGE_PARAMS(flp_loss_rows_params, launch_of(&s, "loss_rows", 0)).program;
    cr_assert_neq(program, 0);
    cr_expect_eq(memcmp((const void *)(uintptr_t)program, &code, sizeof code), 0, "%s", losses[i]);
    cr_expect_eq(STAGE_PARAMS(flp_loss_rows_params, launch_of(&s, "loss_rows", 1)).program, program, "idle rows too");
    flp_plan_get_id(plan, ids[i]);
    flp_plan_destroy(plan);
  }
  cr_expect_str_neq(ids[0], ids[1], "one kernel, but another program");
}

Test(launch_keep, a_compiled_loss_has_no_program_beside_it) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = step_spec(1, "grpo", FLP_ENTROPY_NONE);
  flp_options options = options_of(0, (flp_mode)0);
  flp_plan *plan = stage_plan(&spec, &options);
  flp_args a = step_args(plan, &spec, 100);
  run_step(&s, plan, &a);
  cr_expect_eq(STAGE_PARAMS(flp_loss_rows_params, launch_of(&s, "loss_rows", 0)).program, 0);
  flp_plan_destroy(plan);
}

Test(launch_keep, the_cache_holds_each_loss_under_its_own_key) {
  stage s;
  stage_open(&s, "");
  flp_options options = options_of(0, (flp_mode)0);
  flp_spec spec = step_spec(3, "grpo", FLP_ENTROPY_NONE);
  flp_plan *plan = stage_plan(&spec, &options);
  int made = s.provider_calls();
  char first[17], second[17];
  flp_plan_get_id(plan, first);
  flp_plan_destroy(plan);
  plan = stage_plan(&spec, &options);
  cr_expect_eq(s.provider_calls(), made, "all of it is there");
  flp_plan_destroy(plan);
  spec = step_spec(3, "dapo", FLP_ENTROPY_NONE);
  plan = stage_plan(&spec, &options);
  cr_expect_eq(s.provider_calls(), made + 1, "one kernel is new");
  flp_plan_get_id(plan, second);
  cr_expect_str_neq(first, second);
  flp_plan_destroy(plan);
}

Test(launch_keep, tuned_kernels_of_a_head_serve_beside_plain_ones_of_what_is_kept) {
  stage s;
  stage_open(&s, "name=H200");
  flp_spec head = stage_spec(3), spec = keep_spec(3, FLP_ENTROPY_NONE);
  stage_fill_cache(s.cache, &head, "H200/132/13000");
  stage_fill_cache(s.cache, &spec, "");
  flp_plan *plan = stage_plan(&spec, NULL);
  cr_expect_eq(flp_plan_get_rung(plan), FLP_RUNG_TUNED, "%s", flp_plan_get_reason(plan, FLP_RUNG_TUNED));
  cr_expect_gt(saved_bytes(plan, 10), 0);
  flp_plan_destroy(plan);
}
