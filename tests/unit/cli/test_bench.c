/* test_bench.c: parts of `flpgen bench`: the products beside its cases, masks, data. test_bench_verb.c has the verb. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/bench/bench.h"
#include "gen/cli/call/normal.h"
#include "tests/unit/support/stage.h"

/* ---- pure parts ---- */

/* Lists and a tail are beside the scores once. */
Test(bench, cases_are_compared_with_the_products_that_they_need) {
  enum { HIDDEN = FLP_GRAD_HIDDEN, BOTH = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT, COLUMNS = FLP_GRAD_WEIGHT | FLP_GRAD_BIAS };
  static const struct {
    bench_case which;
    flp_mode mode;
    uint32_t grads;
    int listed, tail, count[GEMM_PRODUCTS];
  } rows[] = {
      {BENCH_FORWARD, FLP_MODE_SCORE, BOTH, 0, 0, {1, 0, 0}},
      {BENCH_BACKWARD, FLP_MODE_RECOMPUTE_ROWS, BOTH, 0, 0, {1, 1, 1}},
      {BENCH_BOTH, FLP_MODE_RECOMPUTE_ROWS, BOTH, 0, 0, {2, 1, 1}},
      {BENCH_BACKWARD, FLP_MODE_RECOMPUTE_VOCAB, HIDDEN, 0, 0, {1, 1, 0}},
      {BENCH_BOTH, FLP_MODE_RECOMPUTE_SPLIT, HIDDEN, 0, 0, {2, 1, 0}},
      {BENCH_BOTH, FLP_MODE_RECOMPUTE_VOCAB, COLUMNS, 0, 0, {2, 0, 1}},
      {BENCH_BOTH, FLP_MODE_SAVE, BOTH, 0, 0, {1, 1, 1}},
      {BENCH_BOTH, FLP_MODE_SAVE, HIDDEN, 0, 0, {1, 1, 0}},
      {BENCH_FORWARD, FLP_MODE_DIRECTION, HIDDEN, 0, 0, {1, 1, 0}},
      {BENCH_BOTH, FLP_MODE_DIRECTION, HIDDEN, 0, 0, {1, 1, 0}},
      {BENCH_STEP, FLP_MODE_STREAM, BOTH, 0, 0, {1, 1, 1}},
      {BENCH_STEP, FLP_MODE_STREAM, HIDDEN, 0, 0, {1, 1, 0}},
      {BENCH_STEP, FLP_MODE_RECOMPUTE_ROWS, BOTH, 0, 0, {2, 1, 1}},
      {BENCH_STEP, FLP_MODE_SCORE, 0, 0, 0, {1, 0, 0}},
      {BENCH_FORWARD, FLP_MODE_LISTED, BOTH, 1, 0, {1, 0, 0}},
      {BENCH_BACKWARD, FLP_MODE_LISTED, BOTH, 1, 0, {1, 0, 0}},
      {BENCH_BOTH, FLP_MODE_LISTED, BOTH, 1, 0, {1, 0, 0}},
      {BENCH_FORWARD, FLP_MODE_TAIL, BOTH, 0, 1, {1, 0, 0}},
      {BENCH_BACKWARD, FLP_MODE_TAIL, BOTH, 0, 1, {1, 0, 0}},
      {BENCH_BOTH, FLP_MODE_TAIL, BOTH, 0, 1, {1, 0, 0}},
      {BENCH_STEP, FLP_MODE_TAIL, BOTH, 0, 1, {1, 0, 0}},
      {BENCH_BOTH, FLP_MODE_RECOMPUTE_ROWS, BOTH, 0, 1, {2, 1, 1}}, /* of a spec with a tail, without it */
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    flp_spec spec = stage_spec(rows[i].grads);
    int count[GEMM_PRODUCTS] = {7, 7, 7}, sum = 0;
    spec.listed = (uint8_t)rows[i].listed;
    spec.tail = rows[i].tail ? 0x1p-9f : 0;
    for (int p = 0; p < GEMM_PRODUCTS; p++) sum += rows[i].count[p];
    cr_expect_eq(bench_case_products(rows[i].which, rows[i].mode, &spec, count), sum, "row %zu", i);
    cr_expect_arr_eq(count, rows[i].count, sizeof count, "row %zu", i);
  }
}

static void expect_cases(const flp_spec *spec, int forward, int backward, int both, int step) {
  cr_expect_eq(bench_case_exists(BENCH_FORWARD, spec), forward);
  cr_expect_eq(bench_case_exists(BENCH_BACKWARD, spec), backward);
  cr_expect_eq(bench_case_exists(BENCH_BOTH, spec), both);
  cr_expect_eq(bench_case_exists(BENCH_STEP, spec), step);
}

Test(bench, a_spec_has_the_cases_that_leave_their_data_as_they_were) {
  flp_spec spec = stage_spec(0);
  expect_cases(&spec, 1, 0, 0, 0);
  spec.grads = FLP_GRAD_HIDDEN;
  expect_cases(&spec, 1, 1, 1, 0);
  spec.keep = 1;
  expect_cases(&spec, 1, 0, 1, 0);
  cr_assert_eq(cli_loss_keep("nll", &spec), FLP_OK);
  expect_cases(&spec, 0, 0, 0, 1);
}

Test(bench, masked_rows_are_as_many_as_given_and_spread) {
  static const double fractions[] = {0, 0.1, 1.0 / 3, 0.5, 0.999};
  for (size_t f = 0; f < sizeof fractions / sizeof fractions[0]; f++) {
    int64_t masked = 0;
    for (int64_t row = 0; row < 1000; row++) {
      masked += bench_row_is_masked(row, fractions[f]);
      cr_assert_eq(bench_active_rows(row + 1, fractions[f]), row + 1 - masked);
    }
    cr_expect(fabs((double)masked - 1000 * fractions[f]) <= 1);
  }
}

Test(bench, scores_are_cut_to_the_memory_that_is_free) {
  flp_spec spec = stage_spec(0);
  spec.vocab = 5000;
  cr_expect_eq(bench_scores_vocab(&spec, 100, 1000000), 5000, "2 bytes a score");
  cr_expect_eq(bench_scores_vocab(&spec, 100, 999999), 4096);
  cr_expect_eq(bench_scores_vocab(&spec, 100, 100 * 2 * 1024), 1024);
  cr_expect_eq(bench_scores_vocab(&spec, 100, 100 * 2 * 1024 - 1), 0);
  spec.dtype = FLP_DTYPE_FP32;
  cr_expect_eq(bench_scores_vocab(&spec, 100, 1000000), 2048);
}

Test(bench, data_are_normal_never_zero_and_the_same_in_any_blocks) {
  enum { COUNT = 40000 };
  static float whole[COUNT], parts[COUNT];
  cli_normal normal;
  cr_assert_eq(cli_normal_create(FLP_DTYPE_FP32, 2.0, 5, &normal), FLP_OK);
  cli_normal_fill(&normal, 0, COUNT, whole);
  for (int i = 0; i < COUNT; i += 400) cli_normal_fill(&normal, i, 400, parts + i);
  cr_expect_eq(memcmp(whole, parts, sizeof whole), 0);
  double sum = 0, squares = 0, tail = 0;
  for (int i = 0; i < COUNT; i++) {
    cr_assert(whole[i] > 0 || whole[i] < 0);
    sum += whole[i];
    squares += whole[i] * whole[i];
    tail += fabs(whole[i]) > 4; /* two sigma: 0.0455 */
  }
  cr_expect_float_eq(sum / COUNT, 0, 0.04);
  cr_expect_float_eq(sqrt(squares / COUNT), 2, 0.03);
  cr_expect_float_eq(tail / COUNT, 0.0455, 0.005);
  cli_normal other;
  cr_assert_eq(cli_normal_create(FLP_DTYPE_FP32, 2.0, 6, &other), FLP_OK);
  cli_normal_fill(&other, 0, COUNT, parts);
  cr_expect_neq(memcmp(whole, parts, sizeof whole), 0);
  cli_normal_destroy(&normal);
  cli_normal_destroy(&other);
}

/* ---- rows on the stand-in ---- */

typedef struct scene {
  stage stage;
  bench_args args;
  cli_device device;
  bench_data data;
} scene;

static void open_scene(scene *s, flp_spec spec, int64_t rows) {
  *s = (scene){.args = {.spec = CLI_SPEC_ARGS_INIT, .seed = 1, .masked = 0.25}};
  stage_open(&s->stage, "capability=9.0");
  s->args.spec.spec = spec;
  s->args.spec.kept = 8;
  s->data = (bench_data){.args = &s->args, .buffers = {.device = &s->device}};
  cr_assert_eq(cli_device_open(0, &s->device), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(bench_data_rows(&s->data, rows), FLP_OK, "%s", flp_error_detail());
}

static void close_scene(scene *s) {
  bench_data_clear(&s->data);
  cli_device_close(&s->device);
}

static flp_args args_of(scene *s, flp_pass pass) {
  return bench_data_args(&s->data, pass, &(flp_layout){.bytes = 0});
}

/* Reads an array back, which has so many bytes. */
static void take(scene *s, flp_array_id id, void *out, size_t bytes) {
  cr_assert_eq(s->data.buffers.at[id].bytes, bytes);
  cr_assert_eq(cli_buffer_download(&s->data.buffers.at[id].buffer, 0, out, bytes), FLP_OK);
}

Test(bench, targets_are_random_ids_or_masked) {
  enum { ROWS = 200 };
  for (int is_narrow = 0; is_narrow < 2; is_narrow++) {
    scene s;
    flp_spec spec = stage_spec(0);
    int64_t wide[ROWS], different = 0, masked = 0;
    int32_t narrow[ROWS];
    spec.target_dtype = is_narrow ? FLP_DTYPE_INT32 : FLP_DTYPE_INT64;
    open_scene(&s, spec, ROWS);
    if (is_narrow) take(&s, FLP_ARRAY_target, narrow, sizeof narrow);
    else take(&s, FLP_ARRAY_target, wide, sizeof wide);
    int64_t ignore = args_of(&s, FLP_PASS_FORWARD).ignore_index;
    for (int i = 0; i < ROWS; i++) {
      if (is_narrow) wide[i] = narrow[i];
      masked += wide[i] == ignore;
      cr_expect(wide[i] == ignore || (wide[i] >= 0 && wide[i] < 1000), "row %d: %ld", i, (long)wide[i]);
      different += i > 0 && wide[i] != wide[i - 1];
    }
    cr_expect_eq(masked, ROWS / 4);
    cr_expect_gt(different, ROWS * 9 / 10);
    close_scene(&s);
  }
}

/* Each row's targets differ, and a teacher's have less than the whole mass; the same for the same seed. */
Test(bench, a_loss_over_several_targets_has_a_teacher) {
  enum { ROWS = 120, TARGETS = 16 };
  static float teacher[2][ROWS * TARGETS];
  static int64_t target[ROWS * TARGETS];
  flp_spec spec = stage_spec(FLP_GRAD_HIDDEN);
  spec.targets = TARGETS;
  cr_assert_eq(cli_loss_keep("forward_kl", &spec), FLP_OK, "%s", flp_error_detail());
  for (int i = 0; i < 2; i++) {
    scene s;
    open_scene(&s, spec, ROWS);
    cr_assert_not_null(args_of(&s, FLP_PASS_STEP).teacher_logprob);
    take(&s, FLP_ARRAY_teacher_logprob, teacher[i], sizeof teacher[i]);
    take(&s, FLP_ARRAY_target, target, sizeof target);
    close_scene(&s);
  }
  cr_expect_arr_eq(teacher[0], teacher[1], sizeof teacher[0]);
  for (int row = 0; row < ROWS; row++) {
    double sum = 0;
    const int64_t *ids = target + row * TARGETS;
    for (int k = 0; k < TARGETS; k++) {
      sum += exp((double)teacher[0][row * TARGETS + k]);
      for (int other = 0; other < k; other++) cr_assert(ids[other] != ids[k] || ids[k] == -100);
    }
    cr_assert(sum > 0.5 && sum < 1, "row %d: %g", row, sum);
  }
  cr_expect_neq(teacher[0][0], teacher[0][TARGETS]);
}

/* Lists as the kernels get them; targets by the same law. */
Test(bench, lists_hold_their_targets_and_frequent_ids) {
  enum { ROWS = 500, IDS = 40 * ROWS };
  static int64_t offsets[ROWS + 1];
  static int32_t target[ROWS], ids[IDS], rows_of[1000];
  scene s;
  flp_spec spec = stage_spec(0);
  spec.listed = 1;
  spec.target_dtype = FLP_DTYPE_INT32;
  open_scene(&s, spec, ROWS);
  flp_args call = args_of(&s, FLP_PASS_FORWARD);
  cr_assert(call.list_count > 7 * ROWS && call.list_count < 9 * ROWS, "%ld", (long)call.list_count);
  take(&s, FLP_ARRAY_list_offsets, offsets, sizeof offsets);
  take(&s, FLP_ARRAY_list_ids, ids, (size_t)call.list_count * sizeof *ids);
  take(&s, FLP_ARRAY_target, target, sizeof target);
  cr_assert(offsets[0] == 0 && offsets[ROWS] == call.list_count);
  int masked = 0, most = 0;
  for (int row = 0; row < ROWS; row++) {
    int found = 0;
    for (int64_t e = offsets[row]; e < offsets[row + 1]; e++) {
      cr_assert(ids[e] >= 0 && ids[e] < 1000);
      found += ids[e] == target[row];
      if (++rows_of[ids[e]] > most) most = rows_of[ids[e]];
    }
    masked += target[row] == call.ignore_index;
    cr_assert_eq(found, target[row] != call.ignore_index);
  }
  cr_expect_eq(masked, ROWS / 4);
  cr_expect_gt(most, ROWS / 4, "the most frequent id: 8 of 1000 would be in %d rows", 8 * ROWS / 1000);
  close_scene(&s);
}

Test(bench, batches_of_calls_leave_the_launch_queue_room) {
  cr_expect_eq(bench_host_calls(3, 256), 85);
  cr_expect_eq(bench_host_calls(255, 256), 1);
  cr_expect_eq(bench_host_calls(100, 256), 2);
  cr_expect_eq(bench_host_calls(5000, 256), 1, "a call is never split");
  cr_expect_eq(bench_host_calls(0, 256), 1);
}
