/* test_launch_tail.c: tail mode on a device: which launches follow each other in forward, backward and step, what
 * passes from one to the other, what the rows that are recomputed get, and where nothing is left out. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/driver/driver.h"
#include "runtime/kernel/abi.h"
#include "runtime/loss/loss.h"
#include "runtime/plan/plan.h"
#include "tests/unit/support/launch_case.h"

enum { V = 1000, CAPACITY = 1024, N = 300, ENTRIES = 320 * N + 1024 };

static flp_spec tail_spec(uint32_t grads) {
  flp_spec wanted = stage_spec(grads);
  wanted.tail = 0x1p-9f;
  return wanted;
}

TestSuite(launch_tail, .fini = close_plan);

static uint64_t up(uint64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

/* With the workspace of the pass, and the memory at 60 that passes from forward to backward. */
static flp_args tail_args(flp_pass pass) {
  flp_args a = stage_saved_args(plan, &spec, pass, N);
  a.workspace_bytes =
      stage_workspace(plan, pass == FLP_PASS_FORWARD ? FLP_PASS_FORWARD_SAVED : FLP_PASS_BACKWARD_SAVED, N, 0);
  return a;
}

#define PARAMS(entry) STAGE_PARAMS(flp_##entry##_params, stage_launch(&s, #entry, 0))
#define PARAMS_OF(entry, which) STAGE_PARAMS(flp_##entry##_params, stage_launch(&s, #entry, which))

static unsigned grid_of(const char *entry) {
  return stage_launch(&s, entry, 0)->grid;
}

static const char *find_set(uint64_t start, int value, unsigned long bytes) {
  char expected[200];
  snprintf(expected, sizeof expected, "cuMemsetD8Async start=0x%lx value=%d bytes=%lu stream=0x7\n",
           (unsigned long)start, value, bytes);
  return strstr(s.log(), expected);
}

/* ---- forward ---- */

Test(launch_tail, forward_lists_what_is_above_a_floor_from_the_target) {
  flp_spec wanted = tail_spec(3);
  wanted.softcap = 30;
  open_plan("", wanted, 0, (flp_mode)0);
  cr_expect_eq(saved_bytes(N), up(16 * N) + 2 * up(4 * N) + up(4 * N * FLP_EMIT_BINS) + 2 * up(4 * N * CAPACITY));
  flp_args a = tail_args(FLP_PASS_FORWARD);
  a.scale = 3;
  a.old_logprob = STAGE_AT(20); /* of steps */
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_FORWARD_SAVED, N, 0, &layout), FLP_OK);
  cr_expect_eq(layout.mode, FLP_MODE_TAIL);
  cr_expect_eq(layout.products, 1);
  cr_expect_eq(layout.saved_bytes, a.saved_bytes);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare tail_target emit_floor forward_emit combine combine");
  cr_expect_eq(s.launch_count(), (size_t)layout.launches);
  stage_expect_capturable(&s);
  flp_tail_target_params target = PARAMS(tail_target);
  cr_expect_eq(grid_of("tail_target"), 38); /* 8 warps a CTA */
  cr_expect_eq(target.hidden, stage_address(STAGE_AT(1)));
  cr_expect_eq(target.weight, stage_address(STAGE_AT(2)));
  cr_expect_eq(target.row_begin, 0);
  cr_expect_eq(target.row_end, N);
  flp_emit_floor_params floor = PARAMS(emit_floor);
  cr_expect_eq(grid_of("emit_floor"), 2);
  cr_expect_eq(floor.part, 0, "the whole head has the target");
  cr_expect_eq(floor.old_lse, 0);
  cr_expect_eq(floor.old_logprob, 0);
  cr_expect_eq(floor.zy, target.zy);
  cr_expect_eq(floor.log2_threshold, -18.75f);
  cr_expect_eq(floor.capped, 1);
  cr_expect_eq(floor.cap_in, 0.1f);
  uint64_t saved = stage_address(STAGE_AT(60));
  cr_expect_eq(floor.floor, saved + up(16 * N));
  cr_expect_eq(floor.emit_gate, floor.floor + up(4 * N));
  cr_expect_eq(floor.emit_count, floor.emit_gate + up(4 * N));
  flp_forward_emit_params emit = PARAMS(forward_emit);
  cr_expect_eq(emit.floor, floor.floor);
  cr_expect_eq(emit.emit_gate, floor.emit_gate);
  cr_expect_eq(emit.log2_threshold, -18.75f);
  cr_expect_eq(emit.emit_count, floor.emit_count);
  cr_expect_eq(emit.emit_entry, floor.emit_count + up(4 * N * FLP_EMIT_BINS));
  cr_expect_eq(emit.emit_capacity, CAPACITY);
  cr_expect_eq(emit.vocab_valid, V);
  flp_combine_params outputs = PARAMS(combine), kept = PARAMS_OF(combine, 1);
  cr_expect_eq(outputs.logprob, stage_address(STAGE_AT(6)));
  cr_expect_eq(outputs.partial, 0);
  cr_expect_eq(kept.partial, saved);
  cr_expect_eq(kept.logprob, 0);
}

/* Lists have room for no more than kernels sort, and for no more columns than there are. */
Test(launch_tail, lists_have_room_for_so_many_columns) {
  static const struct { int64_t vocab, columns; } cases[] = {{6, 32}, {961, 992}, {151936, 1024}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    flp_spec wanted = tail_spec(3);
    wanted.vocab = cases[i].vocab;
    open_plan("", wanted, 0, (flp_mode)0);
    cr_expect_eq(saved_bytes(64), 1024 + 2 * 256 + up(256 * FLP_EMIT_BINS) + 2 * up(256 * (uint64_t)cases[i].columns));
    close_plan();
    plan = NULL;
  }
}

Test(launch_tail, forward_of_a_shard_begins_with_its_first_columns) {
  open_plan("", tail_spec(3), 0, (flp_mode)0);
  flp_args a = tail_args(FLP_PASS_FORWARD);
  a.logprob = a.stats = NULL;
  a.partial = STAGE_AT(12);
  a.vocab_offset = 5000;
  a.vocab_valid = 900;
  a.vocab_total = 10000;
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare forward tail_target emit_floor forward_emit combine combine");
  cr_expect_eq(PARAMS(forward).vocab_valid, FLP_LEAF_COLUMNS);
  cr_expect_eq(PARAMS(emit_floor).part, PARAMS(forward).part);
  cr_expect_eq(PARAMS(emit_floor).capacity, PARAMS(forward).capacity);
  cr_expect_eq(PARAMS(forward_emit).vocab_valid, 900);
  cr_expect_eq(PARAMS_OF(combine, 0).partial, stage_address(STAGE_AT(12)));
  cr_expect_eq(PARAMS_OF(combine, 1).partial, stage_address(STAGE_AT(60)));
  /* The LSE of a policy near this one spares them. */
  a.old_lse = STAGE_AT(13);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare tail_target emit_floor forward_emit combine combine");
  cr_expect_eq(PARAMS(emit_floor).old_lse, stage_address(STAGE_AT(13)));
  cr_expect_eq(PARAMS(emit_floor).part, 0);
}

Test(launch_tail, forward_on_hopper_lists_through_tensor_maps) {
  open_plan("capability=9.0", tail_spec(3), 0, (flp_mode)0);
  flp_args a = tail_args(FLP_PASS_FORWARD);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare gather tail_target emit_floor forward_emit_map combine combine");
  flp_forward_emit_map_params emit;
  memcpy(&emit, stage_launch(&s, "forward_emit_map", 0)->params, sizeof emit);
  cr_expect_eq(emit.floor, PARAMS(emit_floor).floor);
  cr_expect_eq(emit.emit_capacity, CAPACITY);
  cr_expect_eq(emit.n, N);
  cr_expect_eq(stage_read_map(&emit.weight_map).rows, V);
}

/* Chunks of rows share lists that are by active row. */
Test(launch_tail, forward_in_chunks) {
  flp_spec wanted = tail_spec(3);
  wanted.vocab = 151936;
  open_plan("", wanted, 0, (flp_mode)0);
  flp_layout layout = FLP_LAYOUT_INIT;
  uint64_t saved = saved_bytes(N);
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_FORWARD_SAVED, N, saved, &layout), FLP_ERROR_BUDGET);
  flp_scheme least;
  cr_expect_eq(flp_planner_pick(&plan->planner, FLP_PASS_FORWARD_SAVED, N, 0, 0, &least), FLP_ERROR_BUDGET);
  flp_args a = tail_args(FLP_PASS_FORWARD);
  a.workspace_bytes = least.smallest_bytes;
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s,
                        "prepare tail_target emit_floor forward_emit combine combine "
                        "tail_target emit_floor forward_emit combine combine "
                        "tail_target emit_floor forward_emit combine combine");
  flp_forward_emit_params first = PARAMS(forward_emit), last = PARAMS_OF(forward_emit, 2);
  cr_expect_eq(first.emit_entry, last.emit_entry);
  cr_expect_eq(first.row_end, 128);
  cr_expect_eq(last.row_begin, 256);
  cr_expect_eq(last.row_end, N);
}

/* ---- backward ---- */

#define CHOOSE "prepare record emit_sort tail_rows tail_choose tail_entries"
#define DIGIT " list_digits list_scan list_place"
#define HEAD DIGIT DIGIT " list_starts list_weight list_weight_wide"

Test(launch_tail, backward_of_every_mask) {
#define DENSE " prepare record dz"
  static const char *const sequences[] = {
      [FLP_GRAD_HIDDEN] = CHOOSE DENSE " grad_hidden fill tail_mean list_hidden",
      [FLP_GRAD_WEIGHT] = CHOOSE DENSE " grad_weight" HEAD,
      [3] = CHOOSE DENSE " grad_hidden grad_weight fill tail_mean list_hidden" HEAD,
      [FLP_GRAD_BIAS] = CHOOSE DENSE " bias_reduce" HEAD,
      [5] = CHOOSE DENSE " grad_hidden bias_reduce fill tail_mean list_hidden" HEAD,
      [6] = CHOOSE DENSE " grad_weight bias_reduce" HEAD,
      [7] = CHOOSE DENSE " grad_hidden grad_weight bias_reduce fill tail_mean list_hidden" HEAD};
  for (uint32_t grads = 1; grads < 8; grads++) {
    open_plan("", tail_spec(grads), 0, (flp_mode)0);
    flp_args a = tail_args(FLP_PASS_BACKWARD);
    flp_layout layout = FLP_LAYOUT_INIT;
    cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD_SAVED, N, 0, &layout), FLP_OK);
    cr_expect_eq(layout.mode, FLP_MODE_TAIL);
    cr_expect_eq(layout.products, 0, "that every call takes");
    stage_execute(&s, plan, &a);
    stage_expect_sequence(&s, sequences[grads]);
    stage_expect_capturable(&s);
    cr_expect_eq(layout.launches, (int)s.launch_count());
    close_plan();
    plan = NULL;
  }
}

Test(launch_tail, backward_reads_what_forward_kept) {
  open_plan("", tail_spec(7), 0, (flp_mode)0);
  flp_args a = tail_args(FLP_PASS_FORWARD);
  stage_execute(&s, plan, &a);
  flp_forward_emit_params emit = PARAMS(forward_emit);
  uint64_t partial = PARAMS_OF(combine, 1).partial;
  a = tail_args(FLP_PASS_BACKWARD);
  a.tail_report = STAGE_AT(30);
  stage_execute(&s, plan, &a);
  flp_prepare_params prepare = PARAMS(prepare);
  cr_expect_eq(prepare.grad_logprob, 0, "forward's active rows");
  flp_tail_rows_params rows = PARAMS(tail_rows);
  flp_tail_entries_params entries = PARAMS(tail_entries);
  cr_expect_eq(grid_of("tail_rows"), 38);
  flp_emit_sort_params sort = PARAMS(emit_sort);
  cr_expect_eq(grid_of("emit_sort"), N);
  cr_expect_eq(sort.floor, emit.floor);
  cr_expect_eq(sort.emit_count, emit.emit_count);
  cr_expect_eq(sort.emit_entry, emit.emit_entry);
  cr_expect_eq(sort.emit_capacity, CAPACITY);
  uint64_t kept_end = stage_address(STAGE_AT(60)) + a.saved_bytes;
  cr_expect(sort.tail_column >= kept_end || sort.tail_column + up(4 * N * CAPACITY) <= stage_address(STAGE_AT(60)),
            "what forward kept is read alone");
  cr_expect_eq(rows.tail_floor, sort.tail_floor);
  cr_expect_eq(rows.tail_found, sort.tail_found);
  cr_expect_eq(rows.tail_column, sort.tail_column);
  cr_expect_eq(rows.tail_score, sort.tail_score);
  cr_expect_eq(rows.emit_capacity, CAPACITY);
  cr_expect_eq(rows.log2_threshold, -18.5f);
  cr_expect_eq(rows.partial, partial);
  cr_expect_eq(rows.stats, stage_address(STAGE_AT(5)));
  cr_expect_eq(rows.record, PARAMS(record).record);
  cr_expect_eq(memcmp(&entries, &rows, offsetof(flp_tail_entries_params, tail_offsets)), 0);
  flp_tail_choose_params choose = PARAMS(tail_choose);
  cr_expect_eq(grid_of("tail_choose"), 1);
  cr_expect_eq(choose.tail, 0x1p-9f);
  cr_expect_eq(choose.list_capacity, ENTRIES);
  cr_expect_eq(choose.grad_logprob, stage_address(STAGE_AT(7)));
  cr_expect_eq(choose.grad_entropy, 0);
  cr_expect_eq(choose.tail_entropy, 0);
  cr_expect_eq(choose.report, stage_address(STAGE_AT(30)));
  const char *unset = find_set(choose.tail_logprob, 255, 4 * N);
  cr_expect(unset && unset < strstr(s.log(), "flp_tail_choose"), "bad rows have an upstream gradient");
  cr_expect_null(find_set(stage_address(STAGE_AT(30)), 0, 16), "the kernel writes the report");
  flp_list_hidden_params hidden = PARAMS(list_hidden);
  cr_expect_eq(hidden.offsets, choose.tail_offsets);
  cr_expect_eq(hidden.add, 0);
  flp_list_weight_params weight = PARAMS(list_weight);
  cr_expect_eq(weight.list_count, ENTRIES);
  cr_expect_eq(weight.list_total, choose.tail_total);
  cr_expect(weight.add == 1 && weight.add_bias == 1, "to what recomputed rows gave");
}

Test(launch_tail, the_rows_that_are_recomputed_have_a_pass_of_their_own_behind) {
  flp_spec wanted = tail_spec(3);
  wanted.entropy = FLP_ENTROPY_BACKWARD;
  wanted.dtype = FLP_DTYPE_FP16;
  open_plan("", wanted, 0, (flp_mode)0);
  flp_args a = tail_args(FLP_PASS_BACKWARD);
  a.grad_entropy = STAGE_AT(14);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, CHOOSE " prepare record dz_scale dz grad_hidden grad_weight fill tail_mean list_hidden" HEAD);
  flp_tail_choose_params choose = PARAMS(tail_choose);
  flp_prepare_params own = PARAMS(prepare), dense = PARAMS_OF(prepare, 1);
  cr_expect_eq(choose.grad_entropy, stage_address(STAGE_AT(14)));
  cr_expect_not_null(find_set(choose.tail_entropy, 255, 4 * N));
  cr_expect_eq(dense.grad_logprob, choose.tail_logprob);
  cr_expect_eq(dense.grad_entropy, choose.tail_entropy);
  cr_expect_eq(dense.error_word, own.error_word + 4, "a bad row counts once");
  cr_expect_eq(PARAMS_OF(record, 1).grad_logprob, choose.tail_logprob);
  flp_scheme scheme;
  cr_assert_eq(flp_planner_pick(&plan->planner, FLP_PASS_BACKWARD_SAVED, N, a.workspace_bytes, 0, &scheme), FLP_OK);
  uint64_t behind = stage_address(STAGE_AT(50)) + scheme.passes;
  cr_expect_eq(dense.row_class, behind);
  cr_expect_geq(PARAMS(dz).dz, behind);
  cr_expect_lt(PARAMS(list_digits).list_digit, behind);
  /* What the caller does not give, they do not get. */
  a.grad_entropy = NULL;
  stage_execute(&s, plan, &a);
  cr_expect_eq(PARAMS_OF(prepare, 1).grad_entropy, 0);
}

Test(launch_tail, chunks_are_those_of_the_rows_that_are_recomputed) {
  open_plan("", tail_spec(3), 128, FLP_MODE_TAIL);
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD_SAVED, N, 1, &layout), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(layout.chunk_rows, 128, "beyond the budget");
  cr_expect_eq(layout.chunks, 3);
  flp_args a = stage_args(&spec, FLP_PASS_BACKWARD, N);
  a.saved = STAGE_AT(60);
  a.saved_bytes = flp_planner_saved_bytes(&spec, FLP_MODE_TAIL, N);
  a.workspace_bytes = layout.bytes;
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, CHOOSE
                        " prepare record dz grad_hidden grad_weight dz grad_hidden grad_weight "
                        "dz grad_hidden grad_weight fill tail_mean list_hidden" HEAD);
}

/* ---- where nothing is left out ---- */

static void expect_exact(const flp_args *a) {
  stage_execute(&s, plan, a);
  stage_expect_sequence(&s, "prepare record dz grad_hidden grad_weight fill");
  cr_expect_not_null(find_set(stage_address(a->tail_report), 0, 16));
}

Test(launch_tail, exact_passes_report_zeros) {
  open_plan("", tail_spec(3), 0, (flp_mode)0);
  flp_args a = stage_args(&spec, FLP_PASS_BACKWARD, N);
  a.tail_report = STAGE_AT(30);
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_BACKWARD, N, 0);
  expect_exact(&a);
  /* What was saved does not help in a workspace that is too small for it. */
  flp_scheme least;
  cr_expect_eq(flp_planner_pick(&plan->planner, FLP_PASS_BACKWARD, N, 0, 0, &least), FLP_ERROR_BUDGET);
  a = tail_args(FLP_PASS_BACKWARD);
  a.tail_report = STAGE_AT(30);
  a.workspace_bytes = least.smallest_bytes;
  s.reset();
  cr_assert_eq(flp_execute(plan, &a), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(PARAMS(prepare).grad_logprob, stage_address(STAGE_AT(7)));
  cr_expect_not_null(find_set(stage_address(STAGE_AT(30)), 0, 16));
  a.n = 0;
  stage_execute(&s, plan, &a);
  cr_expect_eq(s.launch_count(), 0);
  cr_expect_not_null(find_set(stage_address(STAGE_AT(30)), 0, 16), "no rows");
}

Test(launch_tail, a_mode_that_recomputes_keeps_nothing) {
  open_plan("", tail_spec(3), 0, FLP_MODE_RECOMPUTE_ROWS);
  cr_expect_eq(saved_bytes(N), 0);
  flp_args a = stage_args(&spec, FLP_PASS_BACKWARD, N);
  a.tail_report = STAGE_AT(30);
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_BACKWARD, N, 0);
  expect_exact(&a);
  a.saved = STAGE_AT(60);
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(),
                   "args.saved is given, but this plan keeps nothing (accepted: NULL where flp_plan_saved gives 0)");
}

/* ---- a step ---- */

static uint8_t program[FLP_LOSS_BYTES_MAX];

static flp_args step_args(void) {
  flp_args a = stage_args(&spec, FLP_PASS_BACKWARD, N);
  a.pass = FLP_PASS_STEP;
  a.stats = NULL;
  a.grad_logprob = NULL;
  a.old_logprob = STAGE_AT(20);
  a.ref_logprob = STAGE_AT(21);
  a.advantage = STAGE_AT(22);
  a.loss = STAGE_AT(23);
  a.tail_report = STAGE_AT(30);
  return a;
}

static flp_spec step_spec(const char *loss, flp_entropy entropy) {
  flp_spec wanted = tail_spec(3);
  wanted.entropy = entropy;
  wanted.loss = program;
  cr_assert_eq(flp_loss_builtin_bytes(loss, program, sizeof program, &wanted.loss_bytes), FLP_OK);
  return wanted;
}

Test(launch_tail, a_step_is_three_passes) {
  open_plan("", step_spec("grpo+entropy", FLP_ENTROPY_BACKWARD), 0, (flp_mode)0);
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_STEP, N, 0, &layout), FLP_OK);
  cr_expect_eq(layout.mode, FLP_MODE_TAIL);
  cr_expect_eq(layout.products, 1);
  cr_expect_eq(layout.saved_bytes, 0, "the workspace has it");
  flp_args a = step_args();
  a.workspace_bytes = layout.bytes;
  s.reset();
  cr_assert_eq(flp_step(plan, &a), FLP_OK, "%s", flp_error_detail());
  stage_expect_sequence(
      &s, "prepare tail_target emit_floor forward_emit combine combine loss_rows loss_rows " CHOOSE
          " prepare record dz grad_hidden grad_weight fill tail_mean list_hidden" HEAD);
  cr_expect_eq(s.launch_count(), (size_t)layout.launches);
  stage_expect_capturable(&s);
  flp_scheme scheme;
  cr_assert_eq(flp_planner_pick(&plan->planner, FLP_PASS_STEP, N, layout.bytes, 0, &scheme), FLP_OK);
  uint64_t workspace = stage_address(STAGE_AT(50));
  cr_expect_eq(PARAMS_OF(combine, 1).partial, workspace + scheme.offset[FLP_REGION_tail_saved]);
  cr_expect_leq(PARAMS(forward_emit).emit_entry + 8 * N * CAPACITY, workspace + scheme.passes);
  cr_expect_eq(PARAMS(prepare).row_class, workspace + scheme.passes);
  cr_expect_eq(PARAMS(emit_floor).old_logprob, stage_address(STAGE_AT(20)));
  cr_expect_eq(PARAMS(emit_sort).emit_entry, PARAMS(forward_emit).emit_entry);
  flp_tail_choose_params choose = PARAMS(tail_choose);
  flp_loss_rows_params loss = PARAMS(loss_rows);
  cr_expect_eq(choose.grad_logprob, loss.grad_logprob);
  cr_expect_eq(choose.grad_entropy, loss.grad_entropy);
  cr_expect_eq(choose.report, stage_address(STAGE_AT(30)));
  uint64_t counted = PARAMS(prepare).error_word;
  for (int pass = 1; pass < 3; pass++)
    cr_expect_eq(STAGE_PARAMS(flp_prepare_params, stage_launch(&s, "prepare", pass)).error_word, counted + 4);
}

Test(launch_tail, a_step_that_has_no_room_is_exact) {
  open_plan("", step_spec("grpo", FLP_ENTROPY_NONE), 0, (flp_mode)0);
  flp_args a = step_args();
  flp_scheme least;
  cr_expect_eq(flp_planner_pick(&plan->planner, FLP_PASS_STEP, N, 0, 0, &least), FLP_ERROR_BUDGET);
  a.workspace_bytes = least.smallest_bytes;
  s.reset();
  cr_assert_eq(flp_step(plan, &a), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(strcmp(s.launch_at(1)->entry, "forward"), 0);
  cr_expect_not_null(find_set(stage_address(STAGE_AT(30)), 0, 16));
}

/* ---- the rung below ---- */

Test(launch_tail, generic_kernels_serve_every_tail) {
  flp_options options = FLP_OPTIONS_INIT;
  stage_open(&s, "");
  spec = tail_spec(7);
  stage_fill_generic(s.generic, &spec);
  setenv("FLP_JIT_LIBRARY", "/nowhere.so", 1);
  spec.tail = 0x1p-20f;
  use_plan(spec, &options);
  cr_assert_eq(flp_plan_get_rung(plan), FLP_RUNG_GENERIC, "%s", flp_plan_get_reason(plan, FLP_RUNG_GENERIC));
  flp_args a = tail_args(FLP_PASS_FORWARD);
  stage_execute(&s, plan, &a);
  cr_expect_eq(PARAMS(emit_floor).log2_threshold, -29.75f);
}
