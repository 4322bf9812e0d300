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

/* ---- the verb ---- */

static char record_path[400];

static void open_stage(stage *s, const char *script) {
  stage_open(s, script);
  snprintf(record_path, sizeof record_path, "%s/record.json", s->root);
  setenv("FLP_CUBLASLT_LIBRARY", FLP_TEST_FAKE_CUBLASLT, 1);
  setenv("FAKE_CUBLASLT", "", 1);
  setenv("TMPDIR", s->root, 1);
}

/* Runs the verb with short bursts and these words; stdout and stderr go to files. Returns the exit code. */
static int run(const stage *s, const char *words) {
  char line[1024], json[450], *argv[64] = {"flpgen bench", "--burst-ms=1", "--rounds=3", "-q"};
  int argc = 4;
  snprintf(json, sizeof json, "--json=%s", record_path);
  if (!strstr(words, "--write-rows")) argv[argc++] = json; /* which leaves no record */
  snprintf(line, sizeof line, "%s", words);
  for (char *rest = line; (argv[argc] = strtok_r(rest, " ", &rest));) argc++;
  char path[400];
  for (int fd = 1; fd <= 2; fd++) {
    snprintf(path, sizeof path, "%s/%d", s->root, fd);
    cr_assert_not_null(freopen(path, "w", fd == 1 ? stdout : stderr));
  }
  int code = cli_bench(argc, argv);
  fflush(NULL);
  return code;
}

static const char *printed(const stage *s, int fd) {
  static char text[16384];
  char path[400];
  snprintf(path, sizeof path, "%s/%d", s->root, fd);
  int file = open(path, O_RDONLY);
  ssize_t length = read(file, text, sizeof text - 1);
  text[length > 0 ? length : 0] = 0;
  close(file);
  return text;
}

static json_t *read_record(void) {
  json_error_t error;
  json_t *record = json_load_file(record_path, 0, &error);
  cr_assert_not_null(record, "%s", error.text);
  return record;
}

static double number(json_t *object, const char *key) {
  json_t *value = json_object_get(object, key);
  cr_assert(json_is_number(value), "%s", key);
  return json_number_value(value);
}

static const char *text(json_t *object, const char *key) {
  const char *value = json_string_value(json_object_get(object, key));
  cr_assert_not_null(value, "%s", key);
  return value;
}

static int launches_of(const stage *s, const char *entry) {
  int count = 0;
  for (size_t i = 0; i < s->launch_count(); i++) count += strcmp(s->launch_at(i)->entry, entry) == 0;
  return count;
}

static void expect_row(json_t *rows, size_t i, const char *which, int n, int gemms, const char *mode) {
  json_t *row = json_array_get(rows, i);
  cr_expect_str_eq(text(row, "case"), which);
  cr_expect(number(row, "N") == n && number(row, "D") == 64 && number(row, "V") == 1000);
  cr_expect_eq(number(row, "gemms"), gemms, "%s", which);
  cr_expect_str_eq(text(row, "mode"), mode);
  cr_expect_str_eq(text(row, "dtype"), "bf16");
  cr_expect_str_eq(text(row, "entropy"), "backward");
  cr_expect_str_eq(text(row, "rung"), "jit", "made for the test, as its cache is empty");
  double ms = number(row, "ms"), baseline = number(row, "bare_ms");
  cr_expect(ms > 0 && number(row, "ms_low") <= ms && number(row, "ms_high") >= ms && baseline > 0);
  cr_expect_float_eq(number(row, "ratio"), ms / baseline, 1e-4 * ms / baseline);
  cr_expect_float_eq(number(row, "first_ratio"), ms / number(row, "first_ms"), 1e-4 * ms / baseline);
  cr_expect_float_eq(number(row, "tflops"), gemms * 2.0 * n * 64 * 1000 / ms * 1e-9, 1e-4);
  cr_expect(number(row, "extra_bytes") > 0 && number(row, "extra_bytes") <= number(row, "budget_bytes"));
}

/* backward: launches of it, or 0 where there is none */
static void expect_host(json_t *record, int forward, int backward) {
  json_t *host = json_object_get(record, "host");
  cr_expect_eq(number(host, "rows"), number(record, "host_rows"));
  double us = number(host, "forward_us");
  cr_expect(us > 0 && number(host, "forward_us_low") <= us && us <= number(host, "forward_us_high"));
  cr_expect_float_eq(us, number(record, "host_us"), 1e-4 * us);
  cr_expect_eq(number(host, "forward_launches"), forward);
  if (!backward) {
    static const char *const absent[] = {"backward_us", "backward_us_low", "backward_us_high", "backward_launches",
                                         "backward_us_per_launch"};
    for (int i = 0; i < 5; i++) cr_expect(json_is_null(json_object_get(host, absent[i])), "%s", absent[i]);
    return;
  }
  us = number(host, "backward_us");
  cr_expect(us > 0 && number(host, "backward_us_low") <= us && us <= number(host, "backward_us_high"));
  cr_expect_eq(number(host, "backward_launches"), backward);
  cr_expect_float_eq(number(host, "backward_us_per_launch"), us / backward, 1e-4 * us);
}

Test(bench_verb, every_case_and_size_is_in_the_record) {
  stage s;
  open_stage(&s, "");
  int code = run(&s, "--vocab 1000 --hidden 64 --bias --entropy backward --grad hidden,weight,bias --rows 40,300");
  cr_assert_eq(code, 0, "%s", printed(&s, 2));
  json_t *record = read_record(), *rows = json_object_get(record, "rows");
  cr_expect_str_eq(text(record, "gpu"), "Fake H200");
  cr_expect_eq(strlen(text(record, "sources_hash")), 64);
  cr_expect_not_null(strstr(text(record, "command"), "flpgen bench --burst-ms=1"));
  cr_expect_not_null(strstr(text(record, "cublaslt"), "version 130002"));
  cr_expect(strlen(text(record, "driver")) && strlen(text(record, "date")) && strlen(text(record, "plan_id")) == 16);
  cr_expect(number(record, "host_us") > 0 && number(record, "host_rows") == 40);
  /* prepare, forward, combine; prepare, record, dz, both products, bias_reduce, fill */
  expect_host(record, 3, 7);
  cr_expect(number(record, "plan_cold_ms") > 0 && number(record, "plan_warm_ms") > 0);
  cr_assert_eq(json_array_size(rows), 6);
  for (size_t i = 0; i < 2; i++) {
    int n = i ? 300 : 40;
    expect_row(rows, 3 * i, "forward", n, 1, "score");
    expect_row(rows, 3 * i + 1, "backward", n, 3, "recompute-vocab");
    expect_row(rows, 3 * i + 2, "forward+backward", n, 4, "recompute-vocab");
  }
  json_t *baseline = json_object_get(record, "bare");
  cr_assert_eq(json_array_size(baseline), 6);
  cr_expect_str_eq(text(json_array_get(baseline, 2), "product"), "grad_weight");
  cr_expect_eq(number(json_array_get(baseline, 2), "measured_vocab"), 1000);
  for (size_t i = 0; i < 6; i++) {
    json_t *product = json_array_get(baseline, i);
    double first_ms = number(product, "first_ms");
    cr_expect(number(product, "first") == 0 && first_ms > 0);
    if (number(product, "algorithm") == 0) cr_expect_eq(first_ms, number(product, "ms"));
  }
  double first = number(json_array_get(baseline, 3), "first_ms");
  cr_expect_float_eq(number(json_array_get(rows, 3), "first_ms"), first, 1e-4 * first, "of 300 rows' scores");
  json_decref(record);
  cr_expect(launches_of(&s, "forward") > 12 && launches_of(&s, "dz") > 12 && launches_of(&s, "grad_weight") > 12);
  cr_expect_not_null(strstr(printed(&s, 1), "forward+backward"));
}

/* Scores are computed once; what is kept between the passes counts. */
Test(bench_verb, save_mode_is_in_the_record) {
  stage s;
  open_stage(&s, "");
  cr_assert_eq(run(&s, "--vocab 1000 --hidden 64 --grad hidden,weight --keep --rows 40"), 0, "%s", printed(&s, 2));
  json_t *record = read_record(), *rows = json_object_get(record, "rows"), *both = json_array_get(rows, 1);
  cr_expect_eq(json_array_size(rows), 2, "backward alone would read what it has used up");
  cr_expect_str_eq(text(both, "case"), "forward+backward");
  cr_expect_str_eq(text(both, "mode"), "save");
  cr_expect_eq(number(both, "gemms"), 3);
  cr_expect_geq(number(both, "extra_bytes"), 2 * 40 * 1000);
  cr_expect_float_eq(number(both, "ratio"), number(both, "ms") / number(both, "bare_ms"), 1e-3);
  cr_expect(launches_of(&s, "forward_keep") > 0 && launches_of(&s, "keep_finish") > 0);
  json_decref(record);
}

static void expect_products_of(json_t *row, const char *which, int gemms, const char *mode) {
  cr_expect_str_eq(text(row, "case"), which);
  cr_expect_str_eq(text(row, "mode"), mode);
  cr_expect_eq(number(row, "gemms"), gemms, "%s", which);
  cr_expect_float_eq(number(row, "ratio"), number(row, "ms") / number(row, "bare_ms"), 1e-3);
}

/* Every case is beside one product, which the record names; the workspace is that of the lists. */
Test(bench_verb, listed_columns_are_in_the_record) {
  stage s;
  open_stage(&s, "");
  cr_assert_eq(run(&s, "--vocab 1000 --hidden 64 --grad hidden,weight --keep-set 6.5 --rows 40"), 0, "%s",
               printed(&s, 2));
  json_t *record = read_record(), *rows = json_object_get(record, "rows");
  static const char *const cases[] = {"forward", "backward", "forward+backward"};
  cr_assert_eq(json_array_size(rows), 3);
  cr_assert_eq(json_array_size(json_object_get(record, "bare")), 1);
  cr_expect_not_null(strstr(text(record, "command"), "--keep-set 6.5"));
  for (size_t i = 0; i < 3; i++) {
    json_t *row = json_array_get(rows, i);
    double ids = number(row, "list_ids"), products[] = {1, 3, 4};
    expect_products_of(row, cases[i], 1, "listed");
    cr_expect(number(row, "listed") == 1 && number(row, "kept") == 6.5);
    cr_expect(ids >= 4 * 40 && ids <= 10 * 40, "%g", ids);
    cr_expect_str_eq(text(row, "bare"), "scores");
    cr_expect_float_eq(number(row, "tflops"), 2 * products[i] * ids * 64 / number(row, "ms") * 1e-9, 1e-6);
    cr_expect_geq(number(row, "extra_bytes"), (i ? 24 : 8) * ids);
  }
  cr_expect(launches_of(&s, "list_scores") > 0 && launches_of(&s, "list_weight") > 0 &&
            launches_of(&s, "forward") == 0);
  cr_expect_not_null(strstr(printed(&s, 1), "lists: 6.5 ids a row on average"));
  json_decref(record);
}

/* Beside one product, and the same without a tail beside all of its own; what was left out stands where something was. */
Test(bench_verb, tail_mode_is_in_the_record_and_the_exact_mode_beside_it) {
  stage s;
  open_stage(&s, "");
  cr_assert_eq(run(&s, "--vocab 1000 --hidden 64 --grad hidden,weight --tail 1/512 --rows 40"), 0, "%s",
               printed(&s, 2));
  json_t *record = read_record(), *rows = json_object_get(record, "rows");
  cr_assert_eq(json_array_size(rows), 4);
  cr_assert_eq(json_array_size(json_object_get(record, "bare")), 3, "those of the exact mode");
  json_t *forward = json_array_get(rows, 0), *both = json_array_get(rows, 1), *exact = json_array_get(rows, 3);
  expect_products_of(forward, "forward", 1, "tail");
  expect_products_of(json_array_get(rows, 2), "forward", 1, "score");
  expect_products_of(both, "forward+backward", 1, "tail");
  expect_products_of(exact, "forward+backward", 4, "recompute-vocab");
  cr_expect_float_eq(number(both, "tail"), 0x1p-9, 1e-8);
  cr_expect(number(forward, "tail") == number(both, "tail") && number(exact, "tail") == 0);
  cr_expect(number(forward, "of_plain") > 0 && number(both, "of_plain") > 0 && !json_object_get(exact, "of_plain"));
  cr_expect(number(both, "of_plain_low") <= number(both, "of_plain") &&
            number(both, "of_plain") <= number(both, "of_plain_high") && number(both, "of_plain_pairs") >= 10);
  cr_expect_str_eq(text(both, "bare"), "scores");
  cr_expect_eq(number(both, "bare_ms"), number(forward, "bare_ms"));
  cr_expect_gt(number(exact, "bare_ms"), number(both, "bare_ms"));
  cr_expect(!json_object_get(forward, "tail_report") && !json_object_get(exact, "tail_report"));
  json_t *report = json_object_get(both, "tail_report");
  cr_expect_float_eq(number(report, "bound"), 0x1p-9 * number(report, "sum"), 1e-5 * number(report, "bound"));
  cr_expect_leq(number(report, "left"), number(report, "bound"));
  cr_expect(number(report, "dense_rows") >= 0 && number(report, "columns") >= 0);
  cr_expect_geq(number(both, "extra_bytes"), 40 * 8 * 16, "what forward keeps, too");
  cr_expect(launches_of(&s, "forward_emit") > 0 && launches_of(&s, "tail_choose") > 0 &&
            launches_of(&s, "list_weight") > 0);
  cr_expect(launches_of(&s, "forward") > 0 && launches_of(&s, "dz") > 0);
  cr_expect_not_null(strstr(printed(&s, 1), "tail: at most 2^-9 of the gradient"));
  cr_expect_not_null(strstr(printed(&s, 1), "dense rows"));
  json_decref(record);
}

/* All outputs are asked for: what gives best columns and ranks is timed. */
Test(bench_verb, best_columns_are_made_and_stand_beside_the_same_without) {
  stage s;
  open_stage(&s, "");
  cr_assert_eq(run(&s, "--vocab 3000 --hidden 64 --topk 20 --rank --rows 40"), 0, "%s", printed(&s, 2));
  json_t *record = read_record(), *rows = json_object_get(record, "rows");
  cr_assert_eq(json_array_size(rows), 2);
  cr_expect_gt(number(json_array_get(rows, 0), "of_plain"), 0);
  static const char *const entries[] = {"top_target", "top_begin", "forward_top", "top_floor", "top_redo", "top_finish",
                                        "top_others"};
  for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
    cr_expect_gt(launches_of(&s, entries[i]), 10, "%s", entries[i]);
  flp_top_finish_params finish = STAGE_PARAMS(flp_top_finish_params, stage_launch(&s, "top_finish", 0));
  cr_expect(finish.top_ids && finish.top_logprob && finish.top_rest && finish.rank);
  json_decref(record);
}

/* Gradients of hidden, A and B beside that of hidden alone, in the same mode. */
Test(bench_verb, an_adapter_stands_beside_the_same_without) {
  stage s;
  open_stage(&s, "");
  cr_assert_eq(run(&s, "--vocab 1000 --hidden 64 --grad hidden,lora_a,lora_b --lora-rank 16 --rows 40"), 0, "%s",
               printed(&s, 2));
  json_t *record = read_record(), *rows = json_object_get(record, "rows");
  cr_assert_eq(json_array_size(rows), 5);
  expect_products_of(json_array_get(rows, 2), "forward+backward", 3, "recompute-vocab");
  expect_products_of(json_array_get(rows, 4), "forward+backward", 3, "recompute-vocab");
  for (size_t i = 0; i < 5; i++) {
    json_t *row = json_array_get(rows, i), *grads = json_object_get(row, "grads");
    int is_plain = i >= 3, is_backward = i == 1 || i == 2 || i == 4;
    cr_expect_eq(number(row, "lora_rank"), is_plain ? 0 : 16);
    cr_expect_eq(json_array_size(grads), is_backward ? (is_plain ? 1 : 3) : 0);
    if (i == 0 || i == 2)
      cr_expect_gt(number(row, "of_plain"), 0);
    else
      cr_expect_null(json_object_get(row, "of_plain"));
  }
  cr_expect(launches_of(&s, "forward_lora") > 12 && launches_of(&s, "lora_columns") > 12);
  cr_expect(launches_of(&s, "forward") > 12 && launches_of(&s, "dz") > 12);
  cr_expect_not_null(strstr(printed(&s, 1), "in turn with the same without an adapter"));
  cr_expect_not_null(strstr(printed(&s, 1), "forward+backward, no adapter"));
  json_decref(record);
}

/* An fp32 weight beside a narrow one: the plain plan reads operands that are no terms. */
Test(bench_verb, operands_of_two_dtypes_stand_beside_those_of_one) {
  stage s;
  open_stage(&s, "");
  cr_assert_eq(run(&s, "--vocab 1000 --hidden 64 --weight-dtype fp32 --mixed round --rows 40"), 0, "%s", printed(&s, 2));
  json_t *record = read_record(), *rows = json_object_get(record, "rows");
  cr_assert_eq(json_array_size(rows), 2);
  json_t *mixed = json_array_get(rows, 0), *plain = json_array_get(rows, 1);
  cr_expect_str_eq(text(mixed, "mixed"), "round");
  cr_expect_str_eq(text(mixed, "weight_dtype"), "fp32");
  cr_expect_gt(number(mixed, "of_plain"), 0);
  cr_expect_str_eq(text(plain, "mixed"), "none");
  cr_expect_str_eq(text(plain, "weight_dtype"), "bf16");
  cr_expect_null(json_object_get(plain, "of_plain"));
  cr_expect_gt(launches_of(&s, "forward"), 10);
  cr_expect_gt(launches_of(&s, "operand_terms"), 10);
  flp_operand_terms_params terms = STAGE_PARAMS(flp_operand_terms_params, stage_launch(&s, "operand_terms", 0));
  flp_forward_params forward = STAGE_PARAMS(flp_forward_params, stage_launch(&s, "forward", 0));
  cr_expect_neq(forward.weight, terms.source);
  cr_expect_not_null(strstr(printed(&s, 1), "forward, one dtype"));
  cr_expect_not_null(strstr(printed(&s, 1), "in turn with the same of operands of one dtype"));
  json_decref(record);
}

/* Gradients of A and B alone: without an adapter there is no backward. */
Test(bench_verb, gradients_of_an_adapter_alone_have_nothing_beside_them_but_forward) {
  stage s;
  open_stage(&s, "");
  cr_assert_eq(run(&s, "--vocab 1000 --hidden 64 --grad lora_a,lora_b --lora-rank 8 --rows 40"), 0, "%s",
               printed(&s, 2));
  json_t *record = read_record(), *rows = json_object_get(record, "rows");
  cr_assert_eq(json_array_size(rows), 4);
  cr_expect_gt(number(json_array_get(rows, 0), "of_plain"), 0);
  cr_expect_null(json_object_get(json_array_get(rows, 2), "of_plain"));
  cr_expect_str_eq(text(json_array_get(rows, 3), "case"), "forward");
  json_decref(record);
}

Test(bench_verb, steps_with_a_tail_stand_beside_exact_ones) {
  stage s;
  open_stage(&s, "");
  cr_assert_eq(run(&s, "--vocab 1000 --hidden 64 --grad hidden,weight --tail 2^-9 --loss grpo+k3 --rows 40"), 0, "%s",
               printed(&s, 2));
  json_t *record = read_record(), *rows = json_object_get(record, "rows");
  cr_assert_eq(json_array_size(rows), 2);
  expect_products_of(json_array_get(rows, 0), "step", 1, "tail");
  cr_expect_str_eq(text(json_array_get(rows, 1), "case"), "step");
  cr_expect_neq(number(json_array_get(rows, 1), "gemms"), 1);
  cr_expect(json_object_get(json_array_get(rows, 0), "tail_report") &&
            !json_object_get(json_array_get(rows, 1), "tail_report"));
  json_decref(record);
}

/* Forward has both products and its chunks; what is kept counts, within the budget. */
Test(bench_verb, direction_mode_is_in_the_record) {
  stage s;
  open_stage(&s, "");
  cr_assert_eq(run(&s, "--vocab 7000 --hidden 64 --grad hidden --keep --rows 300 --chunk-vocab 3072"), 0, "%s",
               printed(&s, 2));
  json_t *record = read_record(), *rows = json_object_get(record, "rows");
  cr_assert_eq(json_array_size(rows), 2);
  for (size_t i = 0; i < 2; i++) {
    json_t *row = json_array_get(rows, i);
    expect_products_of(row, i ? "forward+backward" : "forward", 2, "direction");
    cr_expect_eq(number(row, "chunks"), 3);
    cr_expect_geq(number(row, "extra_bytes"), 4 * 300 * 64 + 2 * 300 * 3072);
    cr_expect_eq(number(row, "budget_bytes"), 1 << 30);
  }
  cr_expect_gt(number(json_object_get(record, "host"), "forward_launches"), 10);
  cr_expect_eq(number(json_object_get(record, "host"), "backward_launches"), 4);
  cr_expect(launches_of(&s, "direction_strike") > 0 && launches_of(&s, "direction_rows") > 0);
  cr_expect_eq(launches_of(&s, "keep_finish"), 0);
  json_decref(record);
}

Test(bench_verb, save_mode_of_a_frozen_head_is_measured_where_it_is_asked_for) {
  stage s;
  open_stage(&s, "");
  cr_assert_eq(run(&s, "--vocab 1000 --hidden 64 --grad hidden --mode save --rows 40"), 0, "%s", printed(&s, 2));
  json_t *record = read_record(), *rows = json_object_get(record, "rows");
  expect_products_of(json_array_get(rows, 0), "forward", 1, "score");
  expect_products_of(json_array_get(rows, 1), "forward+backward", 2, "save");
  cr_expect(launches_of(&s, "keep_finish") > 0 && launches_of(&s, "direction_rows") == 0);
  json_decref(record);
}

Test(bench_verb, a_budget_that_holds_no_directions_is_told) {
  stage s;
  open_stage(&s, "");
  cr_expect_eq(run(&s, "--vocab 1000 --hidden 64 --grad hidden --mode direction --rows 300 --budget 70000"), 3);
  cr_expect_not_null(strstr(printed(&s, 2),
                            "--keep: nothing is kept of 300 rows: rung jit has no kernels for it, or the "
                            "budget of 70.0 kB, which --budget sets, is too small"),
                     "%s", printed(&s, 2));
}

Test(bench_verb, steps_of_stream_mode_are_in_the_record) {
  stage s;
  open_stage(&s, "");
  cr_assert_eq(run(&s, "--vocab 1000 --hidden 64 --grad hidden --mode P --loss grpo+k3 --rows 40"), 0, "%s",
               printed(&s, 2));
  json_t *record = read_record(), *rows = json_object_get(record, "rows"), *step = json_array_get(rows, 0);
  json_t *host = json_object_get(record, "host");
  cr_expect_eq(json_array_size(rows), 1);
  cr_expect_str_eq(text(step, "case"), "step");
  cr_expect_str_eq(text(step, "mode"), "stream");
  cr_expect_str_eq(text(step, "loss"), "grpo+k3");
  cr_expect_eq(number(step, "gemms"), 2);
  cr_expect(number(step, "extra_bytes") > 0 && number(step, "extra_bytes") <= number(step, "budget_bytes"));
  cr_expect(number(host, "step_us") > 0 && number(host, "step_launches") > 0 && number(record, "host_us") > 0);
  cr_expect(launches_of(&s, "loss_rows") > 0 && launches_of(&s, "forward_keep") > 0);
  json_decref(record);
}

Test(bench_verb, nothing_is_left_behind) {
  stage s;
  open_stage(&s, "");
  setenv("FLP_CACHE_PATH", "/kept", 1);
  cr_assert_eq(run(&s, "--vocab 1000 --hidden 64 --rows 8"), 0, "%s", printed(&s, 2));
  size_t bytes;
  int modules, contexts;
  s.held(&bytes, &modules, &contexts);
  cr_expect(bytes == 0 && modules == 0 && contexts == 0);
  cr_expect_str_eq(getenv("FLP_CACHE_DIR"), s.cache);
  cr_expect_str_eq(getenv("FLP_CACHE_PATH"), "/kept");
  char command[600];
  snprintf(command, sizeof command, "test -z \"$(ls -d '%s'/flpgen-bench-* 2>/dev/null)\"", s.root);
  cr_expect_eq(system(command), 0, "the temporary caches are removed");
}

/* Scoring alone has one case and one product; without GEMM baselines their fields are null. */
Test(bench_verb, scoring_without_gemm_baseline) {
  stage s;
  open_stage(&s, "");
  setenv("FLP_CUBLASLT_LIBRARY", "/nonexistent/lt.so", 1);
  cr_assert_eq(run(&s, "--vocab 1000 --hidden 64 --rows 8 --no-baseline"), 0, "%s", printed(&s, 2));
  json_t *record = read_record(), *rows = json_object_get(record, "rows"), *row = json_array_get(rows, 0);
  cr_expect_eq(json_array_size(rows), 1);
  static const char *const absent[] = {"bare_ms", "ratio", "first_ms", "first_ratio"};
  for (int i = 0; i < 4; i++) cr_expect(json_is_null(json_object_get(row, absent[i])), "%s", absent[i]);
  cr_expect(json_is_null(json_object_get(record, "cublaslt")));
  cr_expect_eq(json_array_size(json_object_get(record, "bare")), 0);
  cr_expect_eq(launches_of(&s, "dz"), 0);
  expect_host(record, 3, 0);
  json_decref(record);
  cr_expect_null(strstr(printed(&s, 1), "backward"));
}

/* The stand-in computes nothing: what entropies it leaves is not looked at, only that there are six of each size. */
Test(bench_verb, the_kind_of_data_is_in_the_record) {
  stage s;
  open_stage(&s, "");
  cr_assert_eq(run(&s, "--vocab 2000 --hidden 64 --rows 40,8 --no-baseline --data policy"), 0, "%s", printed(&s, 2));
  json_t *record = read_record(), *rows = json_object_get(record, "rows");
  for (size_t i = 0; i < 2; i++) {
    json_t *row = json_array_get(rows, i), *entropies = json_object_get(row, "entropies");
    cr_expect_str_eq(text(row, "data"), "policy");
    cr_expect_eq(json_object_size(entropies), 6);
    cr_expect_not_null(json_object_get(entropies, "0.95"));
  }
  json_decref(record);
  cr_expect_not_null(strstr(printed(&s, 1), "data: policy; entropies of 40 rows in nats (quantiles): "));
  cr_expect_not_null(strstr(printed(&s, 1), "data: policy; entropies of 8 rows in nats (quantiles): "));
  cr_assert_eq(run(&s, "--vocab 2000 --hidden 64 --rows 8 --no-baseline --data random"), 0, "%s", printed(&s, 2));
  record = read_record();
  cr_expect_str_eq(text(json_array_get(json_object_get(record, "rows"), 0), "data"), "random");
  cr_expect(json_is_null(json_object_get(json_array_get(json_object_get(record, "rows"), 0), "entropies")));
  json_decref(record);
  cr_expect_null(strstr(printed(&s, 1), "data:"));
}

Test(bench_verb, lists_go_with_every_kind_of_data) {
  stage s;
  open_stage(&s, "");
  cr_assert_eq(run(&s, "--vocab 2000 --hidden 64 --rows 40 --no-baseline --data text --keep-set 12"), 0, "%s",
               printed(&s, 2));
  json_t *record = read_record(), *row = json_array_get(json_object_get(record, "rows"), 0);
  cr_expect(number(row, "kept") == 12 && number(row, "list_ids") > 40);
  cr_expect_str_eq(text(row, "data"), "text");
  json_decref(record);
}

/* The stand-in leaves memory as it is: what is written is what was uploaded. */
Test(bench_verb, rows_are_written_instead_of_measured) {
  stage s;
  open_stage(&s, "");
  const char *path = "rows.safetensors";
  cr_assert_eq(chdir(s.root), 0);
  cr_assert_eq(run(&s, "--vocab 2000 --hidden 64 --rows 40 --data text --bias --write-rows rows.safetensors"), 0, "%s",
               printed(&s, 2));
  cli_safetensors *file = NULL;
  cr_assert_eq(cli_safetensors_open(path, &file), FLP_OK);
  const cli_tensor *hidden = cli_safetensors_find(file, "hidden"), *weight = cli_safetensors_find(file, "weight");
  cr_assert(hidden && weight && cli_safetensors_find(file, "bias") && cli_safetensors_find(file, "target"));
  cr_expect_eq(cli_safetensors_count(file), 4);
  cr_expect(hidden->shape[0] == 40 && hidden->shape[1] == 64 && weight->shape[0] == 2000 && weight->shape[1] == 64);
  cr_expect(weight->dtype == CLI_TENSOR_BF16 && cli_safetensors_find(file, "target")->dtype == CLI_TENSOR_I64);
  cli_safetensors_close(file);
  cr_expect_not_null(strstr(printed(&s, 1), "data: text; entropies of 40 rows in nats (quantiles): "));
  cr_expect_eq(launches_of(&s, "dz"), 0);
}

/* Where operands come through tensor maps there is a gather, and one launch for both products. */
Test(bench_verb, host_time_counts_the_launches_of_the_kernels_that_run) {
  stage s;
  open_stage(&s, "capability=9.0");
  cr_assert_eq(run(&s, "--vocab 1000 --hidden 64 --grad hidden,weight --rows 300 --no-baseline"), 0, "%s",
               printed(&s, 2));
  json_t *record = read_record();
  cr_expect(launches_of(&s, "forward_map") > 0 && launches_of(&s, "products_map") > 0);
  expect_host(record, 4, 6); /* prepare, gather, forward, combine; prepare, record, gather, dz, products, fill */
  json_decref(record);
  cr_expect_not_null(strstr(printed(&s, 1), "us a launch"));
}

Test(bench_verb, masked_rows_count_for_nothing) {
  stage s;
  open_stage(&s, "");
  cr_assert_eq(run(&s, "--vocab 1000 --hidden 64 --rows 300 --masked 0.25"), 0, "%s", printed(&s, 2));
  json_t *record = read_record(), *row = json_array_get(json_object_get(record, "rows"), 0);
  cr_expect_eq(number(row, "active_rows"), 225);
  cr_expect_float_eq(number(row, "tflops") * number(row, "ms"), 2.0 * 225 * 64 * 1000 * 1e-9, 1e-6);
  json_decref(record);
}

Test(bench_verb, budget_and_mode_reach_the_plan) {
  stage s;
  open_stage(&s, "");
  int code = run(&s, "--vocab 1000 --hidden 64 --grad hidden,weight --rows 300 --mode R_ROWS --budget 600K");
  cr_assert_eq(code, 0, "%s", printed(&s, 2));
  json_t *record = read_record(), *row = json_array_get(json_object_get(record, "rows"), 2);
  cr_expect_str_eq(text(row, "mode"), "recompute-rows");
  cr_expect_eq(number(row, "budget_bytes"), 600 * 1024);
  cr_expect_leq(number(row, "extra_bytes"), 600 * 1024);
  json_decref(record);
}

/* 64 MiB for the workspace of GEMM baselines, 128 MiB left alone: about 14 MB are free for 20 MB of scores. */
Test(bench_verb, scores_that_do_not_fit_are_measured_in_part_and_scaled) {
  stage s;
  open_stage(&s, "memory=241000000");
  int code = run(&s, "--vocab 20000 --hidden 64 --grad hidden,weight --rows 500");
  cr_assert_eq(code, 0, "%s", printed(&s, 2));
  json_t *record = read_record(), *baseline = json_array_get(json_object_get(record, "bare"), 0);
  double vocab = number(baseline, "measured_vocab"), ms = number(baseline, "ms"), tflops = number(baseline, "tflops");
  cr_expect(vocab > 0 && vocab < 20000 && fmod(vocab, 1024) == 0, "%g", vocab);
  cr_expect_float_eq(tflops * ms * 1e9, 2.0 * 500 * 64 * 20000, 1e4, "the time is that of all columns");
  json_decref(record);
  cr_expect_not_null(strstr(printed(&s, 1), "scaled from"));
}

/* ---- failures ---- */

static void expect_failure(const stage *s, const char *words, int code, const char *message) {
  cr_expect_eq(run(s, words), code);
  const char *printed_text = printed(s, 2);
  cr_expect_not_null(strstr(printed_text, message), "'%s' is not in '%s'", message, printed_text);
}

Test(bench_verb, failures_report_what_to_do) {
  stage s;
  open_stage(&s, "");
  const char *small = "--vocab 1000 --hidden 64 --rows 8";
  setenv("FLP_CUDA_LIBRARY", "/nonexistent/libcuda.so", 1);
  expect_failure(&s, small, 3, "flpgen bench: no NVIDIA driver (/nonexistent/libcuda.so: ");
  setenv("FLP_CUDA_LIBRARY", FLP_TEST_FAKE_CUDA, 1);
  setenv("FLP_CUBLASLT_LIBRARY", "/nonexistent/lt.so", 1);
  expect_failure(&s, small, 3,
                 "flpgen bench: cuBLASLt, for GEMM baselines, cannot be opened: /nonexistent/lt.so: cannot open "
                 "shared object file: No such file or directory (tried: /nonexistent/lt.so); set FLP_CUBLASLT_LIBRARY "
                 "to the path of libcublasLt.so.13 or libcublasLt.so.12, or leave the GEMM baselines out with "
                 "--no-baseline\n");
  setenv("FLP_CUBLASLT_LIBRARY", FLP_TEST_FAKE_CUBLASLT, 1);
  setenv("FAKE_CUBLASLT", "cublasLtMatmul=15", 1);
  expect_failure(&s, small, 3, "m=8 n=1000 k=64: every one that its heuristics name was refused\n");
  setenv("FAKE_CUBLASLT", "", 1);
  expect_failure(&s, "--hidden 64", 2, "--vocab is missing");
  expect_failure(&s, "--vocab 1000 --hidden 64 --rows 300 --budget 1K", 2, "budget");
  s.script("fail:cuLaunchKernel=700@4+");
  expect_failure(&s, small, 3, "CUDA_ERROR_ILLEGAL_ADDRESS");
  s.script("badrows=1");
  expect_failure(&s, small, 1, "rows or row ids were bad");
}
