/* test_bench.c: `flpgen bench` on the stand-ins for libcuda, libflpgen and cuBLASLt: cases, data, launches, records. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gen/cli/bench/bench.h"
#include "gen/cli/call/normal.h"
#include "gen/cli/tensors/safetensors.h"
#include "gen/cli/verbs.h"
#include "runtime/base/half.h"
#include "tests/unit/support/stage.h"

/* ---- pure parts ---- */

static void expect_products(bench_case which, flp_mode mode, uint32_t grads, int scores, int hidden, int weight) {
  flp_spec spec = stage_spec(grads);
  int count[GEMM_PRODUCTS];
  int sum = bench_case_products(which, mode, &spec, count);
  cr_expect(count[GEMM_SCORES] == scores && count[GEMM_GRAD_HIDDEN] == hidden && count[GEMM_GRAD_WEIGHT] == weight,
            "%s, grads %u: %d %d %d", bench_case_name(which), grads, count[0], count[1], count[2]);
  cr_expect_eq(sum, scores + hidden + weight);
}

Test(bench, cases_are_compared_with_the_products_that_they_need) {
  expect_products(BENCH_FORWARD, FLP_MODE_SCORE, 3, 1, 0, 0);
  expect_products(BENCH_BACKWARD, FLP_MODE_RECOMPUTE_ROWS, 3, 1, 1, 1);
  expect_products(BENCH_BOTH, FLP_MODE_RECOMPUTE_ROWS, 3, 2, 1, 1);
  expect_products(BENCH_BACKWARD, FLP_MODE_RECOMPUTE_VOCAB, FLP_GRAD_HIDDEN, 1, 1, 0);
  expect_products(BENCH_BOTH, FLP_MODE_RECOMPUTE_SPLIT, FLP_GRAD_HIDDEN, 2, 1, 0);
  expect_products(BENCH_BOTH, FLP_MODE_RECOMPUTE_VOCAB, FLP_GRAD_WEIGHT | FLP_GRAD_BIAS, 2, 0, 1);
  expect_products(BENCH_BOTH, FLP_MODE_SAVE, 3, 1, 1, 1);
  expect_products(BENCH_BOTH, FLP_MODE_SAVE, FLP_GRAD_HIDDEN, 1, 1, 0);
  expect_products(BENCH_FORWARD, FLP_MODE_DIRECTION, FLP_GRAD_HIDDEN, 1, 1, 0);
  expect_products(BENCH_BOTH, FLP_MODE_DIRECTION, FLP_GRAD_HIDDEN, 1, 1, 0);
  expect_products(BENCH_STEP, FLP_MODE_STREAM, 3, 1, 1, 1);
  expect_products(BENCH_STEP, FLP_MODE_STREAM, FLP_GRAD_HIDDEN, 1, 1, 0);
  expect_products(BENCH_STEP, FLP_MODE_RECOMPUTE_ROWS, 3, 2, 1, 1);
  expect_products(BENCH_STEP, FLP_MODE_SCORE, 0, 1, 0, 0);
}

Test(bench, lists_are_compared_with_the_scores_once) {
  for (int which = BENCH_FORWARD; which <= BENCH_BOTH; which++) {
    flp_spec spec = stage_spec(FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT);
    int count[GEMM_PRODUCTS] = {7, 7, 7};
    spec.listed = 1;
    cr_expect_eq(bench_case_products((bench_case)which, FLP_MODE_LISTED, &spec, count), 1);
    cr_expect(count[GEMM_SCORES] == 1 && count[GEMM_GRAD_HIDDEN] == 0 && count[GEMM_GRAD_WEIGHT] == 0);
  }
}

Test(bench, a_tail_is_compared_with_the_scores_once_and_without_it_with_all) {
  for (int which = BENCH_FORWARD; which < BENCH_CASES; which++) {
    flp_spec spec = stage_spec(FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT);
    int count[GEMM_PRODUCTS] = {7, 7, 7};
    spec.tail = 0x1p-9f;
    cr_expect_eq(bench_case_products((bench_case)which, FLP_MODE_TAIL, &spec, count), 1);
    cr_expect(count[GEMM_SCORES] == 1 && count[GEMM_GRAD_HIDDEN] == 0 && count[GEMM_GRAD_WEIGHT] == 0);
    cr_expect_eq(bench_case_products(BENCH_BOTH, FLP_MODE_RECOMPUTE_ROWS, &spec, count), 4);
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

/* Makes the data of some rows on the stand-in and reads the targets back. */
static void expect_targets(flp_dtype dtype) {
  enum { ROWS = 200 };
  bench_args args = {.spec = CLI_SPEC_ARGS_INIT, .seed = 1, .masked = 0.25};
  cli_device device;
  args.spec.spec = stage_spec(0);
  args.spec.spec.target_dtype = dtype;
  bench_data data = {.args = &args, .buffers = {.device = &device}};
  int64_t wide[ROWS], different = 0;
  int32_t narrow[ROWS];
  cr_assert_eq(cli_device_open(0, &device), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(bench_data_rows(&data, ROWS), FLP_OK, "%s", flp_error_detail());
  int is_narrow = dtype == FLP_DTYPE_INT32;
  void *out = is_narrow ? (void *)narrow : (void *)wide;
  size_t bytes = is_narrow ? sizeof narrow : sizeof wide;
  cr_assert_eq(data.buffers.at[FLP_ARRAY_target].bytes, bytes);
  cr_assert_eq(cli_buffer_download(&data.buffers.at[FLP_ARRAY_target].buffer, 0, out, bytes), FLP_OK);
  int64_t ignore = bench_data_args(&data, FLP_PASS_FORWARD, &(flp_layout){.bytes = 0}).ignore_index, masked = 0;
  for (int i = 0; i < ROWS; i++) {
    int64_t id = is_narrow ? narrow[i] : wide[i];
    masked += id == ignore;
    cr_expect(id == ignore || (id >= 0 && id < 1000), "row %d: %ld", i, (long)id);
    different += i > 0 && id != (is_narrow ? narrow[i - 1] : wide[i - 1]);
  }
  cr_expect_eq(masked, ROWS / 4);
  cr_expect_gt(different, ROWS * 9 / 10);
  bench_data_clear(&data);
  cli_device_close(&device);
}

Test(bench, targets_are_random_ids_or_masked) {
  stage s;
  stage_open(&s, "");
  expect_targets(FLP_DTYPE_INT64);
  expect_targets(FLP_DTYPE_INT32);
}

/* Each row's targets differ, and a teacher's have less than the whole mass; the same for the same seed. */
Test(bench, a_loss_over_several_targets_has_a_teacher) {
  enum { ROWS = 120, TARGETS = 16 };
  static float teacher[2][ROWS * TARGETS];
  static int64_t target[ROWS * TARGETS];
  stage s;
  stage_open(&s, "");
  bench_args args = {.spec = CLI_SPEC_ARGS_INIT, .seed = 1, .masked = 0.25};
  args.spec.spec = stage_spec(FLP_GRAD_HIDDEN);
  args.spec.spec.targets = TARGETS;
  cr_assert_eq(cli_loss_keep("forward_kl", &args.spec.spec), FLP_OK, "%s", flp_error_detail());
  for (int i = 0; i < 2; i++) {
    cli_device device;
    bench_data data = {.args = &args, .buffers = {.device = &device}};
    cr_assert_eq(cli_device_open(0, &device), FLP_OK, "%s", flp_error_detail());
    cr_assert_eq(bench_data_rows(&data, ROWS), FLP_OK, "%s", flp_error_detail());
    flp_args step = bench_data_args(&data, FLP_PASS_STEP, &(flp_layout){.bytes = 0});
    cr_assert_not_null(step.teacher_logprob);
    cr_assert_eq(data.buffers.at[FLP_ARRAY_teacher_logprob].bytes, sizeof teacher[i]);
    cr_assert_eq(
        cli_buffer_download(&data.buffers.at[FLP_ARRAY_teacher_logprob].buffer, 0, teacher[i], sizeof teacher[i]),
        FLP_OK);
    cr_assert_eq(cli_buffer_download(&data.buffers.at[FLP_ARRAY_target].buffer, 0, target, sizeof target), FLP_OK);
    bench_data_clear(&data);
    cli_device_close(&device);
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
  stage s;
  stage_open(&s, "capability=9.0");
  bench_args args = {.spec = CLI_SPEC_ARGS_INIT, .seed = 1, .masked = 0.25};
  cli_device device;
  args.spec.spec = stage_spec(0);
  args.spec.spec.listed = 1;
  args.spec.spec.target_dtype = FLP_DTYPE_INT32;
  args.spec.kept = 8;
  bench_data data = {.args = &args, .buffers = {.device = &device}};
  static int64_t offsets[ROWS + 1];
  static int32_t target[ROWS], ids[IDS], rows_of[1000];
  cr_assert_eq(cli_device_open(0, &device), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(bench_data_rows(&data, ROWS), FLP_OK, "%s", flp_error_detail());
  flp_args call = bench_data_args(&data, FLP_PASS_FORWARD, &(flp_layout){.bytes = 0});
  cr_assert(call.list_count > 7 * ROWS && call.list_count < 9 * ROWS, "%ld", (long)call.list_count);
  const call_buffer *at = data.buffers.at;
  cr_assert_eq(cli_buffer_download(&at[FLP_ARRAY_list_offsets].buffer, 0, offsets, sizeof offsets), FLP_OK);
  cr_assert_eq(cli_buffer_download(&at[FLP_ARRAY_list_ids].buffer, 0, ids, (size_t)call.list_count * 4), FLP_OK);
  cr_assert_eq(cli_buffer_download(&at[FLP_ARRAY_target].buffer, 0, target, sizeof target), FLP_OK);
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
  bench_data_clear(&data);
  cli_device_close(&device);
}

Test(bench, batches_of_calls_leave_the_launch_queue_room) {
  cr_expect_eq(bench_host_calls(3, 256), 85);
  cr_expect_eq(bench_host_calls(255, 256), 1);
  cr_expect_eq(bench_host_calls(100, 256), 2);
  cr_expect_eq(bench_host_calls(5000, 256), 1, "a call is never split");
  cr_expect_eq(bench_host_calls(0, 256), 1);
}
