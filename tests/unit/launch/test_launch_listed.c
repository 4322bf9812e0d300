/* test_launch_listed.c: passes over listed columns: which launches follow each other, with which grids and parameters,
 * for masks of gradients, shards and empty lists; and what is refused or fails on the way. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/driver/driver.h"
#include "runtime/kernel/abi.h"
#include "runtime/launch/launch.h"
#include "tests/unit/support/stage.h"

static flp_spec listed_spec(uint32_t grads) {
  flp_spec spec = stage_spec(grads);
  spec.listed = 1;
  return spec;
}

static uint64_t workspace(const flp_plan *plan, flp_pass pass, int64_t n, int64_t list_count) {
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout_listed(plan, pass, n, list_count, 0, &layout), FLP_OK, "%s", flp_error_detail());
  return layout.bytes;
}

/* stage_args with lists, whose offsets are at 20 and ids at 21. */
static flp_args args_of(const flp_plan *plan, const flp_spec *spec, flp_pass pass, int64_t n, int64_t list_count) {
  flp_args a = stage_args(spec, pass, n);
  a.list_offsets = STAGE_AT(20);
  a.list_ids = STAGE_AT(21);
  a.list_count = list_count;
  a.workspace_bytes = workspace(plan, pass, n, list_count);
  return a;
}

/* The launch of that entry, which happens once. */
#define PARAMS(entry) STAGE_PARAMS(flp_##entry##_params, stage_launch(&s, #entry, 0))

static unsigned grid_of(const stage *s, const char *entry) {
  return stage_launch(s, entry, 0)->grid;
}

static void expect_set(stage *s, uint64_t start, int value, unsigned long bytes) {
  char expected[200];
  snprintf(expected, sizeof expected, "cuMemsetD8Async start=0x%lx value=%d bytes=%lu stream=0x7\n",
           (unsigned long)start, value, bytes);
  cr_expect_not_null(strstr(s->log(), expected), "no %s in %s", expected, s->log());
}

/* ---- forward ---- */

Test(launch_listed, forward) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(0);
  spec.softcap = 30;
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = args_of(plan, &spec, FLP_PASS_FORWARD, 300, 5000);
  a.hidden_stride = 72;
  a.weight_stride = 80;
  a.scale = 3;
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare list_check list_sort list_scores list_reduce combine");
  stage_expect_capturable(&s);
  flp_list_check_params check = PARAMS(list_check);
  cr_expect_eq(check.offsets, stage_address(STAGE_AT(20)));
  cr_expect_eq(check.n, 300);
  cr_expect_eq(check.list_count, 5000);
  cr_expect_eq(grid_of(&s, "list_check"), 2);
  flp_list_sort_params sort = PARAMS(list_sort);
  cr_expect_eq(grid_of(&s, "list_sort"), 300);
  cr_expect_eq(sort.ids, stage_address(STAGE_AT(21)));
  cr_expect_eq(sort.offsets, check.offsets);
  cr_expect_eq(sort.vocab_offset, 0);
  cr_expect_eq(sort.vocab_valid, 1000);
  cr_expect_eq(sort.vocab_total, 1000);
  cr_expect_eq(sort.list_row, 0, "the backward pass needs it");
  cr_expect_eq(sort.error_word, PARAMS(prepare).error_word);
  expect_set(&s, sort.list_state, 0, 4);
  expect_set(&s, sort.list_column, 255, 20000);
  flp_list_scores_params scores = PARAMS(list_scores);
  cr_expect_eq(grid_of(&s, "list_scores"), 300);
  cr_expect_eq(scores.hidden, stage_address(STAGE_AT(1)));
  cr_expect_eq(scores.hidden_stride, 72);
  cr_expect_eq(scores.weight, stage_address(STAGE_AT(2)));
  cr_expect_eq(scores.weight_stride, 80);
  cr_expect_eq(scores.bias, 0);
  cr_expect_eq(scores.cap_in, 0.1f);
  cr_expect_eq(scores.capped, 1);
  cr_expect_eq(scores.depth, 64);
  cr_expect_eq(scores.list_column, sort.list_column);
  flp_list_reduce_params reduce = PARAMS(list_reduce);
  cr_expect_eq(grid_of(&s, "list_reduce"), 38); /* 8 warps a CTA */
  cr_expect_eq(reduce.capacity, 300);
  cr_expect_eq(reduce.list_score, scores.list_score);
  flp_combine_params combine = PARAMS(combine);
  cr_expect_eq(combine.parts, 1);
  cr_expect_eq(combine.fold, 1);
  cr_expect_eq(combine.capacity, 300);
  cr_expect_eq(combine.row_begin, 0);
  cr_expect_eq(combine.row_end, 300);
  cr_expect_eq(combine.part, reduce.part);
  cr_expect_eq(combine.zy, scores.zy);
  cr_expect_eq(combine.logprob, stage_address(STAGE_AT(6)));
  cr_expect_eq(combine.partial, 0);
  flp_plan_destroy(plan);
}

Test(launch_listed, a_shard_takes_its_own_of_the_whole_lists) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(0);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = args_of(plan, &spec, FLP_PASS_FORWARD, 10, 77);
  a.logprob = a.stats = NULL;
  a.partial = STAGE_AT(12);
  a.vocab_offset = 10000;
  a.vocab_valid = 700;
  a.vocab_total = 13000;
  a.rows = STAGE_AT(13);
  a.row_count = 7;
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare list_check list_sort list_scores list_reduce combine");
  flp_list_sort_params sort = PARAMS(list_sort);
  cr_expect_eq(sort.vocab_offset, 10000);
  cr_expect_eq(sort.vocab_valid, 700);
  cr_expect_eq(sort.vocab_total, 13000);
  cr_expect_eq(PARAMS(prepare).rows, stage_address(STAGE_AT(13)));
  cr_expect_eq(PARAMS(combine).partial, stage_address(STAGE_AT(12)));
  cr_expect_eq(PARAMS(combine).parts, 1);
  /* A whole head that wants both takes two launches. */
  a.vocab_offset = a.vocab_valid = a.vocab_total = 0;
  a.logprob = STAGE_AT(6);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare list_check list_sort list_scores list_reduce combine combine");
  cr_expect_eq(STAGE_PARAMS(flp_combine_params, s.launch_at(5)).partial, stage_address(STAGE_AT(12)));
  cr_expect_eq(STAGE_PARAMS(flp_combine_params, s.launch_at(6)).logprob, stage_address(STAGE_AT(6)));
  flp_plan_destroy(plan);
}

Test(launch_listed, combine_is_that_of_any_plan) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(0);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = stage_args(&spec, FLP_PASS_COMBINE, 1000);
  a.partial = STAGE_AT(12);
  a.shard_count = 4;
  a.vocab_total = 4000;
  a.list_count = 9; /* left from forward */
  a.workspace_bytes = stage_workspace(plan, FLP_PASS_COMBINE, 1000, 0);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare merge");
  flp_plan_destroy(plan);
}

/* ---- backward ---- */

#define LISTS "prepare record list_check list_sort list_scores list_dz"
#define DIGIT " list_digits list_scan list_place"
#define HEAD DIGIT DIGIT " list_starts list_weight list_weight_wide"

Test(launch_listed, backward_of_every_mask) {
  static const char *const sequences[] = {[FLP_GRAD_HIDDEN] = LISTS " list_hidden fill", [FLP_GRAD_WEIGHT] = LISTS HEAD,
                                          [3] = LISTS " list_hidden" HEAD " fill",       [FLP_GRAD_BIAS] = LISTS HEAD,
                                          [5] = LISTS " list_hidden" HEAD " fill",       [6] = LISTS HEAD,
                                          [7] = LISTS " list_hidden" HEAD " fill"};
  for (uint32_t grads = 1; grads < 8; grads++) {
    stage s;
    stage_open(&s, "");
    flp_spec spec = listed_spec(grads);
    flp_plan *plan = stage_plan(&spec, NULL);
    flp_args a = args_of(plan, &spec, FLP_PASS_BACKWARD, 300, 5000);
    flp_layout layout = FLP_LAYOUT_INIT;
    cr_assert_eq(flp_plan_layout_listed(plan, FLP_PASS_BACKWARD, 300, 5000, 0, &layout), FLP_OK);
    stage_execute(&s, plan, &a);
    stage_expect_sequence(&s, sequences[grads]);
    stage_expect_capturable(&s);
    cr_expect_eq(layout.launches, (int)s.launch_count());
    flp_list_sort_params sort = PARAMS(list_sort);
    cr_expect_eq(sort.error_word, PARAMS(prepare).error_word, "each pass counts its bad rows");
    cr_expect_eq(sort.list_row != 0, grads != FLP_GRAD_HIDDEN);
    cr_expect_eq(s.calls("cuMemsetD8Async"), 2, "list_state and list_column");
    flp_plan_destroy(plan);
  }
}

Test(launch_listed, gradients_of_scores_and_hidden) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(FLP_GRAD_HIDDEN);
  spec.grad_hidden_dtype = FLP_DTYPE_FP32;
  spec.entropy = FLP_ENTROPY_BACKWARD;
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = args_of(plan, &spec, FLP_PASS_BACKWARD, 300, 5000);
  a.grad_entropy = STAGE_AT(14);
  a.grad_hidden_stride = 96;
  stage_execute(&s, plan, &a);
  flp_record_params record = PARAMS(record);
  cr_expect_eq(record.grad_entropy, stage_address(STAGE_AT(14)));
  cr_expect_eq(record.row_end, 300);
  flp_list_dz_params dz = PARAMS(list_dz);
  cr_expect_eq(grid_of(&s, "list_dz"), 38);
  cr_expect_eq(dz.stats, stage_address(STAGE_AT(5)));
  cr_expect_eq(dz.offsets, stage_address(STAGE_AT(20)));
  cr_expect_eq(dz.record, record.record);
  cr_expect_eq(dz.capped, 0);
  flp_list_hidden_params hidden = PARAMS(list_hidden);
  cr_expect_eq(grid_of(&s, "list_hidden"), 300);
  cr_expect_eq(hidden.stats, dz.stats);
  cr_expect_eq(hidden.list_dz, dz.list_dz);
  cr_expect_eq(hidden.weight, stage_address(STAGE_AT(2)));
  cr_expect_eq(hidden.depth, 64);
  cr_expect_eq(hidden.out, stage_address(STAGE_AT(8)));
  cr_expect_eq(hidden.out_stride, 96);
  cr_expect_eq(hidden.out_is_f32, 1);
  cr_expect_eq(hidden.add, 0);
  flp_plan_destroy(plan);
}

Test(launch_listed, gradients_of_the_head) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(6);
  spec.hidden = 520;
  spec.grad_weight_dtype = FLP_DTYPE_FP32;
  spec.accumulate_grad_weight = 1;
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = args_of(plan, &spec, FLP_PASS_BACKWARD, 300, 5000);
  a.vocab_valid = 700;
  a.grad_weight_stride = 528;
  stage_execute(&s, plan, &a);
  flp_list_starts_params starts = PARAMS(list_starts);
  cr_expect_eq(grid_of(&s, "list_starts"), 3); /* 701 threads */
  cr_expect_eq(starts.vocab_valid, 700);
  cr_expect_eq(starts.list_count, 5000);
  cr_expect_eq(starts.list_total, 0);
  flp_list_weight_params weight = PARAMS(list_weight);
  cr_expect_eq(grid_of(&s, "list_weight"), 88); /* 8 warps a CTA */
  cr_expect_eq(weight.order, starts.order);
  cr_expect_eq(weight.vocab_valid, 700);
  cr_expect_eq(weight.list_count, 5000);
  cr_expect_eq(weight.list_total, 0);
  cr_expect_eq(weight.hidden, stage_address(STAGE_AT(1)));
  cr_expect_eq(weight.hidden_stride, 520);
  cr_expect_eq(weight.depth, 520);
  cr_expect_eq(weight.weight_out, stage_address(STAGE_AT(9)));
  cr_expect_eq(weight.weight_out_stride, 528);
  cr_expect_eq(weight.weight_out_is_f32, 1);
  cr_expect_eq(weight.bias_out, stage_address(STAGE_AT(10)));
  cr_expect_eq(weight.bias_out_is_f32, 0);
  cr_expect_eq(weight.add, 1);
  cr_expect_eq(weight.add_bias, 0);
  flp_list_weight_wide_params wide = PARAMS(list_weight_wide);
  cr_expect_eq(memcmp(&wide, &weight, offsetof(flp_list_weight_wide_params, list_column)), 0);
  cr_expect_eq(grid_of(&s, "list_weight_wide"), 79 * 3); /* places of 64 entries, slices of 256 columns of D */
  cr_expect_eq(wide.list_column, PARAMS(list_sort).list_column);
  expect_set(&s, stage_address(STAGE_AT(10)) + 700 * 2, 0, 600); /* padding of the bias; what is added to stays */
  cr_expect_eq(s.calls("cuMemsetD8Async"), 3);
  flp_plan_destroy(plan);
}

Test(launch_listed, padding_rows_of_the_head_are_zeroed) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(FLP_GRAD_WEIGHT);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = args_of(plan, &spec, FLP_PASS_BACKWARD, 300, 5000);
  a.vocab_valid = 700;
  stage_execute(&s, plan, &a);
  cr_expect_eq(PARAMS(list_weight).add, 0);
  expect_set(&s, stage_address(STAGE_AT(9)) + 700 * 128, 0, 300 * 128);
  flp_plan_destroy(plan);
}

/* From nothing to the last order, each pass from where the one before it went. */
static void follow_digits(int64_t vocab, int passes) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(FLP_GRAD_WEIGHT);
  spec.vocab = vocab;
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = args_of(plan, &spec, FLP_PASS_BACKWARD, 3, 9000);
  stage_execute(&s, plan, &a);
  uint64_t from = 0;
  for (int pass = 0; pass < passes; pass++) {
    const fake_launch *l = stage_launch(&s, "list_digits", pass);
    flp_list_digits_params digits = STAGE_PARAMS(flp_list_digits_params, l);
    flp_list_scan_params scan = STAGE_PARAMS(flp_list_scan_params, stage_launch(&s, "list_scan", pass));
    flp_list_place_params place = STAGE_PARAMS(flp_list_place_params, stage_launch(&s, "list_place", pass));
    cr_expect_eq(l->grid, 3, "blocks of 4096 entries");
    cr_expect_eq(stage_launch(&s, "list_place", pass)->grid, 3);
    cr_expect_eq(stage_launch(&s, "list_scan", pass)->grid, 1);
    cr_expect_eq(digits.from, from);
    cr_expect_eq(place.from, from);
    cr_expect_eq(digits.shift, 9 * pass);
    cr_expect_eq(place.shift, 9 * pass);
    cr_expect_eq(digits.list_count, 9000);
    cr_expect_eq(place.list_count, 9000);
    cr_expect_eq(scan.list_count, 9000);
    cr_expect(digits.list_total == 0 && scan.list_total == 0 && place.list_total == 0, "as many as there may be");
    cr_expect_eq(scan.list_digit, digits.list_digit);
    cr_expect(place.to != 0 && place.to != from);
    from = place.to;
  }
  cr_expect_eq(PARAMS(list_starts).order, from, "V=%ld", (long)vocab);
  cr_expect_eq(PARAMS(list_weight).order, from);
  flp_plan_destroy(plan);
}

Test(launch_listed, digits_pass_from_order_to_order) {
  follow_digits(511, 1);
  follow_digits(151936, 2);
  follow_digits(262144, 3);
  follow_digits(1 << 27, 4);
}

/* ---- entries that another mode has made ---- */

/* A call in the layout of a backward pass over lists, whose arrays hold other entries; its context is current. */
static flp_call call_of(flp_plan *plan, flp_args *a) {
  a->vocab_valid = 700;
  a->hidden_stride = a->grad_hidden_stride = a->weight_stride = a->grad_weight_stride = 64;
  flp_call call = {.plan = plan, .args = a};
  cr_assert_eq(flp_call_pick(&call, FLP_PASS_BACKWARD), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(plan->driver->cuCtxPushCurrent_v2(plan->context), 0);
  return call;
}

Test(launch_listed, as_many_entries_as_the_device_says) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(6);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = args_of(plan, &spec, FLP_PASS_BACKWARD, 300, 90000);
  flp_call call = call_of(plan, &a);
  const uint64_t total = stage_address(STAGE_AT(30));
  for (int add = 0; add <= 1; add++) {
    s.reset();
    cr_assert_eq(flp_launch_listed_head(&call, 9000, total, add), FLP_OK, "%s", flp_error_detail());
    stage_expect_sequence(&s, &HEAD[1]);
    cr_expect_eq(s.calls("cuMemsetD8Async"), 0, "padding is left alone");
    for (int pass = 0; pass < 2; pass++) {
      const fake_launch *l = stage_launch(&s, "list_digits", pass);
      flp_list_digits_params digits = STAGE_PARAMS(flp_list_digits_params, l);
      flp_list_scan_params scan = STAGE_PARAMS(flp_list_scan_params, stage_launch(&s, "list_scan", pass));
      flp_list_place_params place = STAGE_PARAMS(flp_list_place_params, stage_launch(&s, "list_place", pass));
      cr_expect_eq(l->grid, 3, "blocks of 4096 entries");
      cr_expect_eq(stage_launch(&s, "list_place", pass)->grid, 3);
      cr_expect(digits.list_count == 9000 && scan.list_count == 9000 && place.list_count == 9000);
      cr_expect(digits.list_total == total && scan.list_total == total && place.list_total == total);
    }
    flp_list_starts_params starts = PARAMS(list_starts);
    flp_list_weight_params weight = PARAMS(list_weight);
    flp_list_weight_wide_params wide = PARAMS(list_weight_wide);
    cr_expect(starts.list_count == 9000 && starts.list_total == total);
    cr_expect(weight.list_count == 9000 && weight.list_total == total);
    cr_expect(weight.add == add && weight.add_bias == add);
    cr_expect_eq(memcmp(&wide, &weight, offsetof(flp_list_weight_wide_params, list_column)), 0);
    cr_expect_eq(grid_of(&s, "list_weight_wide"), 141);
  }
  flp_plan_destroy(plan);
}

Test(launch_listed, an_accumulated_weight_is_added_to_whatever_the_bias) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(6);
  spec.grad_weight_dtype = FLP_DTYPE_FP32;
  spec.accumulate_grad_weight = 1;
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = args_of(plan, &spec, FLP_PASS_BACKWARD, 300, 5000);
  flp_call call = call_of(plan, &a);
  for (int add = 0; add <= 1; add++) {
    s.reset();
    cr_assert_eq(flp_launch_listed_head(&call, 5000, 0, add), FLP_OK);
    cr_expect_eq(PARAMS(list_weight).list_total, 0);
    cr_expect_eq(PARAMS(list_weight).add, 1);
    cr_expect_eq(PARAMS(list_weight).add_bias, add);
  }
  flp_plan_destroy(plan);
}

Test(launch_listed, hidden_of_entries_that_stand_elsewhere) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(FLP_GRAD_HIDDEN);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = args_of(plan, &spec, FLP_PASS_BACKWARD, 300, 5000);
  flp_call call = call_of(plan, &a);
  s.reset();
  cr_assert_eq(flp_launch_listed_hidden(&call, stage_address(STAGE_AT(31))), FLP_OK);
  stage_expect_sequence(&s, "list_hidden");
  cr_expect_eq(PARAMS(list_hidden).offsets, stage_address(STAGE_AT(31)));
  cr_expect_eq(PARAMS(list_hidden).list_dz, flp_call_region(&call, FLP_REGION_list_dz));
  cr_expect_eq(grid_of(&s, "list_hidden"), 300);
  flp_plan_destroy(plan);
}

/* ---- nothing to do ---- */

Test(launch_listed, empty_lists) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(7);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = args_of(plan, &spec, FLP_PASS_FORWARD, 10, 0);
  a.list_ids = NULL;
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, "prepare list_check list_sort list_scores list_reduce combine");
  cr_expect_eq(s.calls("cuMemsetD8Async"), 1, "list_state alone");
  a = args_of(plan, &spec, FLP_PASS_BACKWARD, 10, 0);
  stage_execute(&s, plan, &a);
  stage_expect_sequence(&s, LISTS " list_hidden fill");
  expect_set(&s, stage_address(STAGE_AT(9)), 0, 128000);
  expect_set(&s, stage_address(STAGE_AT(10)), 0, 2000);
  flp_plan_destroy(plan);
}

Test(launch_listed, no_rows) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(7);
  flp_plan *plan = stage_plan(&spec, NULL);
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_BACKWARD; pass += 2) {
    cr_expect_eq(workspace(plan, (flp_pass)pass, 0, 5), 0);
    flp_args a = args_of(plan, &spec, (flp_pass)pass, 0, 5);
    a.list_offsets = NULL;
    a.workspace = NULL;
    stage_execute(&s, plan, &a);
    cr_expect_eq(s.launch_count(), 0);
    cr_expect_eq(s.calls("cuMemsetD8Async"), pass == FLP_PASS_BACKWARD ? 2 : 0);
  }
  flp_plan_destroy(plan);
}

/* ---- what the plan remembers ---- */

/* A layout of fewer ids in the same workspace is another one. */
Test(launch_listed, the_last_layout_is_taken_for_as_many_ids_alone) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(FLP_GRAD_WEIGHT);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = args_of(plan, &spec, FLP_PASS_BACKWARD, 10, 5000);
  stage_execute(&s, plan, &a);
  flp_list_place_params many = STAGE_PARAMS(flp_list_place_params, stage_launch(&s, "list_place", 1));
  a.list_count = 100;
  stage_execute(&s, plan, &a);
  flp_list_place_params few = STAGE_PARAMS(flp_list_place_params, stage_launch(&s, "list_place", 1));
  cr_expect_lt(few.to, many.to);
  a.list_count = 6000;
  cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_WORKSPACE);
  flp_plan_destroy(plan);
}

/* ---- failures ---- */

Test(launch_listed, too_little_workspace) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(7);
  flp_plan *plan = stage_plan(&spec, NULL);
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_BACKWARD; pass += 2) {
    flp_args a = args_of(plan, &spec, (flp_pass)pass, 100, 700);
    a.workspace_bytes--;
    s.reset();
    cr_expect_eq(flp_execute(plan, &a), FLP_ERROR_WORKSPACE);
    char expected[200];
    snprintf(expected, sizeof expected,
             "args.workspace_bytes is %zu, but the smallest layout of this pass over 100 rows needs %zu",
             a.workspace_bytes, a.workspace_bytes + 1);
    cr_expect_str_eq(flp_error_detail(), expected);
    cr_expect_eq(s.launch_count(), 0);
  }
  flp_plan_destroy(plan);
}

static void fail_everywhere(stage *s, flp_plan *plan, const flp_args *a) {
  stage_execute(s, plan, a);
  int launches = (int)s->launch_count(), memsets = s->calls("cuMemsetD8Async");
  cr_assert_geq(launches, 6);
  for (int i = 1; i <= launches + memsets; i++) {
    const char *call = i <= launches ? "cuLaunchKernel" : "cuMemsetD8Async";
    int nth = i <= launches ? i : i - launches;
    char script[64];
    snprintf(script, sizeof script, "fail:%s=719@%d", call, nth);
    s->script(script);
    cr_expect_eq(flp_execute(plan, a), FLP_ERROR_DRIVER, "%s", script);
    cr_expect_eq(s->calls(call), nth, "nothing follows a failure: %s", script);
  }
  s->script("");
}

Test(launch_listed, every_call_of_the_driver_may_fail) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = listed_spec(7);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args forward = args_of(plan, &spec, FLP_PASS_FORWARD, 100, 700);
  flp_args backward = args_of(plan, &spec, FLP_PASS_BACKWARD, 100, 700);
  forward.partial = STAGE_AT(12);
  backward.vocab_valid = 990;
  fail_everywhere(&s, plan, &forward);
  fail_everywhere(&s, plan, &backward);
  s.script("fail:cuLaunchKernel=700@3");
  cr_expect_eq(flp_execute(plan, &forward), FLP_ERROR_DRIVER);
  cr_expect_str_eq(
      flp_error_detail(),
      "cuLaunchKernel(flp_list_sort) for bf16 V=1000 D=64 grads=hidden,weight,bias bias listed "
      "failed: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered");
  s.script("");
  flp_plan_destroy(plan);
}

/* ---- values that only the device sees ---- */

Test(launch_listed, bad_lists_are_named_with_the_rest) {
  stage s;
  stage_open(&s, "badrows=3");
  flp_spec spec = listed_spec(0);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_args a = args_of(plan, &spec, FLP_PASS_FORWARD, 10, 70);
  stage_execute(&s, plan, &a);
  cr_expect_eq(flp_plan_check(plan, STAGE_STREAM), FLP_ERROR_DATA);
  cr_expect_str_eq(
      flp_error_detail(),
      "3 rows or row ids were bad since the last check: targets outside [0, vocab_total), temperatures not finite and "
      "> "
      "0, largest scores beyond 2^30 in units of ln 2, row ids outside [0, n), lists without their target or with ids "
      "outside [0, vocab_total), or list_offsets that do not ascend within [0, list_count]");
  flp_plan_destroy(plan);
}
