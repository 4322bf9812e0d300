/* test_eager_options.c: ignore index, row lists, bad rows, vocab shards, workspace and the plain products. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/eager/core.h"
#include "tests/unit/support/eager_case.h"

static flp_spec make_spec(flp_dtype dtype, int64_t vocab, int64_t hidden) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.dtype = dtype;
  spec.vocab = vocab;
  spec.hidden = hidden;
  spec.entropy = FLP_ENTROPY_BACKWARD;
  spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  return spec;
}

Test(eager_options, ignored_rows_are_zero_everywhere) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 50, 8);
  eager_case c;
  eager_case_create(&c, &spec, 5, 31);
  eager_case_set_target(&c, 1, -100);
  eager_case_set_target(&c, 4, -100);
  eager_case_set_hidden(&c, 1, 0, NAN); /* never read */
  eager_case_forward(&c);
  eager_case_backward(&c);
  for (int i = 1; i < 5; i += 3) {
    cr_assert(c.logprob[i] == 0 && c.entropy[i] == 0 && c.stats[4 * i] == 0 && c.stats[4 * i + 3] == 0);
    for (int d = 0; d < 8; d++) cr_assert_eq(eager_case_grad_hidden(&c, i, d), 0.0);
  }
  eager_case_check_forward(&c, 4e-7);
  eager_case_check_backward(&c, 0x1.1p-8);
  cr_assert_eq(c.bad_rows, 0);
  eager_case_destroy(&c);
}

Test(eager_options, another_ignore_index_frees_minus_one_hundred_to_be_bad) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 50, 8);
  eager_case c;
  eager_case_create(&c, &spec, 3, 32);
  c.args.ignore_index = 7;
  eager_case_set_target(&c, 0, 7);
  eager_case_set_target(&c, 1, -100);
  eager_case_forward(&c);
  cr_assert_eq(c.logprob[0], 0.0f);
  cr_assert(isnan(c.logprob[1]));
  cr_assert_eq(c.bad_rows, 1);
  eager_case_destroy(&c);
}

Test(eager_options, bad_rows_are_nan_and_counted_and_touch_nothing_else) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 50, 8);
  spec.per_row_temperature = 1;
  spec.target_dtype = FLP_DTYPE_INT32;
  eager_case c;
  eager_case_create(&c, &spec, 8, 33);
  eager_case_set_target(&c, 0, 50);
  eager_case_set_target(&c, 2, -1);
  eager_case_set_temperature(&c, 3, 0);
  eager_case_set_temperature(&c, 5, INFINITY);
  eager_case_set_temperature(&c, 6, NAN);
  for (int i = 3; i < 7; i++)
    if (i != 4) c.reference.target[i] = -1;
  eager_case_forward(&c);
  cr_assert_eq(c.bad_rows, 5);
  eager_case_backward(&c);
  cr_assert_eq(c.bad_rows, 10);
  const int bad[8] = {1, 0, 1, 1, 0, 1, 1, 0};
  for (int i = 0; i < 8; i++) {
    cr_assert_eq(!!isnan(c.logprob[i]), bad[i]);
    cr_assert_eq(!!isnan(c.entropy[i]), bad[i]);
    for (int d = 0; d < 8; d++) cr_assert_eq(!!isnan(eager_case_grad_hidden(&c, i, d)), bad[i]);
  }
  eager_case_check_forward(&c, 4e-7);
  eager_case_check_backward(&c, 3e-6);
  eager_case_destroy(&c);
}

/* A row's temperature is held to what is accepted of a scalar: it and what kernels make of it are normal numbers. */
Test(eager_options, temperatures_beyond_fp32_are_bad) {
  static const float given[8] = {1e-45f, 1e-40f, 1.2e-38f, 4e-38f, 1e-30f, 1e38f, 2e38f, 3.4e38f};
  static const struct {
    float scale, softcap;
    int bad[8];
  } cases[] = {{1, 0, {1, 1, 0, 0, 0, 0, 1, 1}},      {-1, 0, {1, 1, 0, 0, 0, 0, 1, 1}},
               {1e-10f, 0, {1, 1, 0, 0, 0, 1, 1, 1}}, {30, 0, {1, 1, 1, 1, 0, 0, 0, 0}},
               {0, 0, {1, 1, 0, 0, 0, 0, 0, 0}},      {1, 30, {1, 1, 1, 1, 0, 0, 0, 0}},
               {0, 1e-10f, {1, 1, 0, 0, 0, 1, 1, 1}}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    flp_spec spec = make_spec(FLP_DTYPE_FP32, 50, 8);
    spec.per_row_temperature = 1;
    spec.softcap = cases[i].softcap;
    eager_case c;
    eager_case_create(&c, &spec, 8, 35);
    c.args.scale = cases[i].scale;
    for (int row = 0; row < 8; row++) c.temperature[row] = given[row];
    eager_case_forward(&c);
    uint64_t bad = 0;
    for (int row = 0; row < 8; row++) {
      double unit = c.args.scale == 0 ? 0 : fabs((double)(spec.softcap > 0 ? spec.softcap : c.args.scale));
      int is_nan = cases[i].bad[row] || unit / (double)given[row] > 1e12; /* scores beyond the limit */
      bad += (uint64_t)is_nan;
      cr_expect_eq(!!isnan(c.logprob[row]), is_nan, "case %zu, T %g", i, (double)given[row]);
    }
    cr_expect_eq(c.bad_rows, bad);
    eager_case_destroy(&c);
  }
}

Test(eager_options, a_row_list_is_a_set) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 50, 8);
  eager_case c;
  eager_case_create(&c, &spec, 6, 34);
  const int32_t rows[] = {4, 1, 4, -1, 6, 1};
  c.args.rows = rows;
  c.args.row_count = 6;
  for (int i = 0; i < 6; i++)
    if (i != 1 && i != 4) c.reference.target[i] = -1;
  eager_case_set_hidden(&c, 0, 0, NAN);
  eager_case_forward(&c);
  cr_assert_eq(c.bad_rows, 2); /* -1 and 6 */
  eager_case_backward(&c);
  eager_case_check_forward(&c, 4e-7);
  eager_case_check_backward(&c, 3e-6);
  for (int i = 0; i < 6; i++)
    if (i != 1 && i != 4) cr_assert(c.logprob[i] == 0 && eager_case_grad_hidden(&c, i, 3) == 0);
  eager_case_destroy(&c);
}

Test(eager_options, an_empty_row_list_computes_no_row) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 50, 8);
  eager_case c;
  eager_case_create(&c, &spec, 3, 35);
  const int32_t none = 0;
  c.args.rows = &none;
  eager_case_forward(&c);
  eager_case_backward(&c);
  for (int i = 0; i < 3; i++) cr_assert_eq(c.logprob[i], 0.0f);
  for (int d = 0; d < 8; d++) cr_assert_eq(eager_case_grad_weight(&c, 10, d), 0.0);
  eager_case_destroy(&c);
}

/* Points a call at columns [offset, offset + valid) of the case; spec.vocab may be more than valid. */
static flp_args shard_args(const eager_case *c, flp_pass pass, int64_t offset, int64_t valid) {
  flp_args args = c->args;
  args.pass = pass;
  args.weight = (const char *)c->weight + offset * c->args.weight_stride * 4;
  args.bias = (const char *)c->bias + offset * 4;
  args.vocab_offset = offset;
  args.vocab_valid = valid;
  args.vocab_total = c->reference.vocab;
  return args;
}

enum { SHARDS = 3, SHARD_ROWS = 7, VOCAB = 310 };
static const int64_t offsets[SHARDS + 1] = {0, 130, 140, VOCAB};

static void forward_shards(eager_case *c, float *partials, float *logprob, float *stats) {
  int64_t vocab = c->spec.vocab;
  for (int s = 0; s < SHARDS; s++) {
    flp_args args = shard_args(c, FLP_PASS_FORWARD, offsets[s], offsets[s + 1] - offsets[s]);
    args.partial = partials + 4 * SHARD_ROWS * s;
    c->spec.vocab = offsets[s + 1] - offsets[s];
    cr_assert_eq(eager_case_run(c, &args), FLP_OK, "%s", flp_error_detail());
  }
  flp_args combine = c->args;
  combine.pass = FLP_PASS_COMBINE;
  combine.partial = partials;
  combine.shard_count = SHARDS;
  combine.vocab_total = vocab;
  combine.logprob = logprob;
  combine.entropy = c->entropy;
  combine.stats = stats;
  cr_assert_eq(eager_case_run(c, &combine), FLP_OK, "%s", flp_error_detail());
  c->spec.vocab = vocab;
}

static flp_spec shard_spec(void) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, VOCAB, 16);
  spec.has_bias = 1;
  spec.softcap = 4;
  spec.alignment = 4;
  return spec;
}

Test(eager_options, partials_of_shards_combine_to_the_whole) {
  flp_spec spec = shard_spec();
  eager_case c;
  eager_case_create(&c, &spec, SHARD_ROWS, 36);
  float partials[SHARDS * SHARD_ROWS * 4], logprob[SHARD_ROWS], stats[SHARD_ROWS * 4];
  eager_case_set_target(&c, 0, 135); /* in the small shard */
  forward_shards(&c, partials, logprob, stats);
  eager_case_forward(&c);
  eager_case_check_forward(&c, 4e-7);
  for (int i = 0; i < SHARD_ROWS; i++) {
    cr_assert_float_eq(logprob[i], c.logprob[i], 2e-6);
    cr_assert_float_eq(stats[4 * i] + stats[4 * i + 1], c.stats[4 * i] + c.stats[4 * i + 1], 2e-6);
    for (int s = 0; s < SHARDS; s++) {
      int64_t target = eager_case_get_target(&c, i);
      int here = target >= offsets[s] && target < offsets[s + 1];
      float raw = partials[4 * (s * SHARD_ROWS + i) + 3];
      if (here)
        cr_assert_float_eq(raw, (double)long_raw_score(&c.reference, i, (int)target), 1e-6);
      else
        cr_assert_eq(raw, -INFINITY);
    }
  }
  eager_case_destroy(&c);
}

Test(eager_options, partials_of_a_temperature_next_to_zero_combine) {
  flp_spec spec = shard_spec();
  eager_case c;
  eager_case_create(&c, &spec, SHARD_ROWS, 36);
  c.args.temperature = 1e-8f;
  float partials[SHARDS * SHARD_ROWS * 4], logprob[SHARD_ROWS], stats[SHARD_ROWS * 4];
  forward_shards(&c, partials, logprob, stats);
  eager_case_forward(&c);
  for (int i = 0; i < SHARD_ROWS; i++) {
    cr_assert_lt(c.logprob[i], -1e6f);
    cr_assert_float_eq(logprob[i], c.logprob[i], 100); /* scores of 1e8 in fp32 */
  }
  eager_case_destroy(&c);
}

Test(eager_options, a_shard_of_minus_infinities_reports_it_and_combines) {
  flp_spec spec = shard_spec();
  spec.softcap = 0;
  eager_case c;
  eager_case_create(&c, &spec, SHARD_ROWS, 37);
  for (int v = 130; v < 140; v++) eager_case_set_bias(&c, v, -INFINITY);
  for (int i = 0; i < SHARD_ROWS; i++) eager_case_set_target(&c, i, 20 * i);
  eager_case_set_target(&c, 6, -100);
  eager_case_set_target(&c, 5, VOCAB);
  float partials[SHARDS * SHARD_ROWS * 4], logprob[SHARD_ROWS], stats[SHARD_ROWS * 4];
  forward_shards(&c, partials, logprob, stats);
  memcpy(c.logprob, logprob, sizeof logprob);
  eager_case_check_forward(&c, 5e-7);
  const float *empty = partials + 4 * SHARD_ROWS;
  cr_assert(empty[0] == -FLP_SCORE_LIMIT && empty[1] == 0 && empty[2] == 0 && empty[3] == -INFINITY);
  cr_assert(logprob[6] == 0 && partials[4 * 6] == -FLP_SCORE_LIMIT);
  cr_assert(isnan(logprob[5]) && isnan(partials[4 * 5]));
  cr_assert_eq(c.bad_rows, SHARDS + 1);
  eager_case_destroy(&c);
}

Test(eager_options, gradients_of_shards_add_up_and_padding_gets_zeros) {
  flp_spec spec = shard_spec();
  spec.grads |= FLP_GRAD_BIAS;
  eager_case c;
  eager_case_create(&c, &spec, SHARD_ROWS, 38);
  eager_case_forward(&c);
  double sum[SHARD_ROWS][16] = {{0}};
  for (int s = 0; s < SHARDS; s++) {
    /* The last shard is short of its padded size by two columns... of another tensor: only valid ones may be read. */
    int64_t valid = offsets[s + 1] - offsets[s];
    flp_args args = shard_args(&c, FLP_PASS_BACKWARD, offsets[s], valid);
    args.stats = c.stats;
    args.grad_logprob = c.grad_logprob;
    args.grad_entropy = c.grad_entropy;
    args.grad_hidden = c.grad_hidden;
    args.grad_weight = c.grad_weight;
    args.grad_bias = c.grad_bias;
    memset(c.grad_weight, 0xff, (size_t)(VOCAB * args.grad_weight_stride) * 4);
    c.spec.vocab = valid + 2;
    cr_assert_eq(eager_case_run(&c, &args), FLP_OK, "%s", flp_error_detail());
    for (int d = 0; d < 16; d++) {
      long double *parameter = c.reference.weight + (offsets[s] + 1) * 16 + d;
      cr_assert_float_eq(eager_case_grad_weight(&c, 1, d), (double)long_derivative(&c.reference, parameter), 3e-6);
      cr_assert_eq(eager_case_grad_weight(&c, valid + 1, d), 0.0);
      for (int i = 0; i < SHARD_ROWS; i++) sum[i][d] += eager_case_grad_hidden(&c, i, d);
    }
    cr_assert_eq(eager_case_grad_bias(&c, valid), 0.0);
  }
  for (int i = 0; i < SHARD_ROWS; i++)
    for (int d = 0; d < 16; d++)
      cr_assert_float_eq(sum[i][d], (double)long_derivative(&c.reference, c.reference.hidden + 16 * i + d), 3e-6);
  eager_case_destroy(&c);
}

Test(eager_options, too_small_a_budget_names_the_smallest) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 5000, 64);
  flp_layout layout = FLP_LAYOUT_INIT;
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_BACKWARD; pass++) {
    cr_assert_eq(flp_eager_layout(&spec, (flp_pass)pass, 1000, UINT64_C(1) << 30, 2, &layout), FLP_OK);
    uint64_t least = layout.smallest_bytes;
    cr_assert_leq(least, layout.bytes);
    cr_assert_eq(flp_eager_layout(&spec, (flp_pass)pass, 1000, least, 2, &layout), FLP_OK);
    cr_assert_eq(layout.bytes, least);
    if (least == 0) continue;
    cr_assert_eq(flp_eager_layout(&spec, (flp_pass)pass, 1000, least - 1, 2, &layout), FLP_ERROR_BUDGET);
    char text[64];
    snprintf(text, sizeof text, "%llu bytes or more", (unsigned long long)least);
    cr_assert(strstr(flp_error_detail(), text), "%s", flp_error_detail());
  }
}

Test(eager_options, a_plan_for_its_own_bytes_is_the_same_plan) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 5000, 512);
  for (uint64_t budget = UINT64_C(1) << 21; budget < UINT64_C(1) << 30; budget += budget / 3) {
    flp_layout first = FLP_LAYOUT_INIT, second = FLP_LAYOUT_INIT;
    if (flp_eager_layout(&spec, FLP_PASS_BACKWARD, 900, budget, 4, &first) != FLP_OK) continue;
    cr_assert_leq(first.bytes, budget);
    cr_assert_eq(flp_eager_layout(&spec, FLP_PASS_BACKWARD, 900, first.bytes, 4, &second), FLP_OK);
    cr_assert_eq(memcmp(&first, &second, sizeof first), 0);
  }
}

Test(eager_options, too_small_a_workspace_is_refused) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 50, 8);
  eager_case c;
  eager_case_create(&c, &spec, 3, 39);
  char *workspace = NULL;
  cr_assert_eq(posix_memalign((void **)&workspace, 256, 4096), 0);
  flp_args args = c.args;
  args.workspace = workspace;
  args.workspace_bytes = 1024;
  args.logprob = c.logprob;
  args.vocab_valid = args.vocab_total = 50;
  uint64_t bad = 0;
  cr_assert_eq(flp_eager_execute(&c.spec, &args, 1, &bad), FLP_ERROR_WORKSPACE);
  free(workspace);
  eager_case_destroy(&c);
}

/* The plain products against the textbook's triple loop. */
static void check_product(eager_product product, int m, int n, int k) {
  enum { SIDE = 160 };
  static float a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE], before[SIDE * SIDE];
  uint32_t state = 5;
  for (int i = 0; i < SIDE * SIDE; i++) {
    a[i] = (float)eager_case_random(&state);
    b[i] = (float)eager_case_random(&state);
    c[i] = before[i] = (float)eager_case_random(&state);
  }
  eager_matrices x = {m, n, k, a, SIDE, b, SIDE, c, SIDE};
  eager_multiply_plain(product, &x);
  for (int i = 0; i < SIDE * SIDE; i++) {
    int row = i / SIDE, column = i % SIDE;
    double sum = product == EAGER_SCORES ? 0 : (double)before[i];
    if (row >= m || column >= n) {
      cr_assert_eq(c[i], before[i]);
      continue;
    }
    for (int d = 0; d < k; d++)
      sum += (double)(product == EAGER_GRAD_WEIGHT ? a[d * SIDE + row] : a[row * SIDE + d]) *
             (double)(product == EAGER_SCORES ? b[column * SIDE + d] : b[d * SIDE + column]);
    cr_assert_float_eq(c[i], sum, 2e-5);
  }
}

Test(eager_options, plain_products) {
  check_product(EAGER_SCORES, 64, 128, 24);
  check_product(EAGER_SCORES, 64, 128, 8);
  check_product(EAGER_GRAD_HIDDEN, 64, 24, 128);
  check_product(EAGER_GRAD_HIDDEN, 64, 152, 128);
  check_product(EAGER_GRAD_WEIGHT, 128, 40, 64);
}

Test(eager_options, without_a_blas_library_plain_c_computes) {
  setenv("FLP_BLAS_LIBRARY", "/nonexistent/libblas.so", 1);
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 300, 40);
  eager_case c;
  eager_case_create(&c, &spec, 70, 40);
  eager_case_forward(&c);
  eager_case_backward(&c);
  cr_assert(strncmp(flp_eager_describe(), "plain C (/nonexistent/", 22) == 0, "%s", flp_eager_describe());
  eager_case_check_forward(&c, 4e-7);
  eager_case_check_backward(&c, 0x1.1p-8);
  eager_case_destroy(&c);
}
