/* test_eager_listed.c: listed columns on the eager rung: values and gradients against long double restricted to the lists,
 * and against dense passes. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/unit/support/eager_case.h"

enum { ALL_GRADS = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS };

static flp_spec make_spec(flp_dtype dtype, int64_t vocab, int64_t hidden) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.dtype = dtype;
  spec.vocab = vocab;
  spec.hidden = hidden;
  spec.has_bias = 1;
  spec.entropy = FLP_ENTROPY_BACKWARD;
  spec.grads = ALL_GRADS;
  spec.listed = 1;
  return spec;
}

static void run(eager_case *c) {
  eager_case_forward(c);
  eager_case_backward(c);
}

/* Half of a unit in the last place of the gradient's dtype, with room for sums near a tie. */
static double tolerance_of(flp_dtype dtype) {
  return dtype == FLP_DTYPE_BF16 ? 0x1.1p-8 : dtype == FLP_DTYPE_FP16 ? 0x1.1p-11 : 1e-6;
}

static void check(const flp_spec *spec, int64_t n, int64_t longest) {
  eager_case c;
  eager_case_create(&c, spec, n, 51);
  eager_case_random_lists(&c, longest, 52);
  run(&c);
  eager_case_check_forward(&c, 1.5e-7);
  eager_case_check_backward(&c, tolerance_of(c.spec.grad_hidden_dtype));
  cr_assert_eq(c.bad_rows, 0);
  eager_case_destroy(&c);
}

Test(eager_listed, every_dtype_and_ragged_shape_matches_long_double) {
  const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32};
  const int64_t shapes[][4] = {{1, 2, 8, 2}, {3, 37, 16, 12}, {65, 129, 24, 5}, {5, 1300, 8, 200}, {3, 30, 1040, 9}};
  for (int d = 0; d < 3; d++)
    for (int s = 0; s < 5; s++) {
      flp_spec spec = make_spec(dtypes[d], shapes[s][1], shapes[s][2]);
      check(&spec, shapes[s][0], shapes[s][3]);
    }
}

Test(eager_listed, int32_ids_and_no_entropy_and_no_bias) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 60, 16);
  spec.target_dtype = FLP_DTYPE_INT32;
  spec.entropy = FLP_ENTROPY_NONE;
  spec.has_bias = 0;
  spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  check(&spec, 9, 20);
}

Test(eager_listed, fp32_gradients_of_16_bit_operands) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 60, 16);
  spec.grad_hidden_dtype = spec.grad_weight_dtype = spec.grad_bias_dtype = FLP_DTYPE_FP32;
  check(&spec, 9, 20);
}

Test(eager_listed, softcap_scale_and_temperatures_of_each_row) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 40, 8);
  spec.softcap = 1.5f;
  spec.per_row_temperature = 1;
  eager_case c;
  eager_case_create(&c, &spec, 7, 53);
  eager_case_random_lists(&c, 15, 54);
  c.args.scale = -1.25f;
  c.reference.scale = -1.25L;
  run(&c);
  eager_case_check_forward(&c, 1.5e-7);
  eager_case_check_backward(&c, 2e-6);
  eager_case_destroy(&c);
}

Test(eager_listed, a_list_of_the_target_alone_is_certain) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 40, 24);
  eager_case c;
  eager_case_create(&c, &spec, 6, 55);
  eager_case_random_lists(&c, 1, 56);
  run(&c);
  for (int i = 0; i < 6; i++) {
    cr_expect(c.logprob[i] == 0 && c.entropy[i] == 0, "row %d: %g, %g", i, c.logprob[i], c.entropy[i]);
    for (int d = 0; d < 24; d++) cr_expect_float_eq(eager_case_grad_hidden(&c, i, d), 0.0, 1e-12);
  }
  eager_case_destroy(&c);
}

/* ---- beside dense passes ---- */

static void expect_same_rows(const eager_case *a, const eager_case *b) {
  for (int64_t i = 0; i < a->args.n; i++) {
    cr_expect_float_eq(a->logprob[i], b->logprob[i], 2e-6);
    cr_expect_float_eq(a->entropy[i], b->entropy[i], 2e-6);
    cr_expect_float_eq(a->stats[4 * i] + a->stats[4 * i + 1], b->stats[4 * i] + b->stats[4 * i + 1], 3e-6);
    for (int64_t d = 0; d < a->spec.hidden; d++)
      cr_expect_float_eq(eager_case_grad_hidden(a, i, d), eager_case_grad_hidden(b, i, d), 2e-6);
  }
}

/* Column v of a is column at of b. */
static void expect_same_column(const eager_case *a, int64_t v, const eager_case *b, int64_t at) {
  cr_expect_float_eq(eager_case_grad_bias(a, v), eager_case_grad_bias(b, at), 3e-6);
  for (int64_t d = 0; d < a->spec.hidden; d++)
    cr_expect_float_eq(eager_case_grad_weight(a, v, d), eager_case_grad_weight(b, at, d), 3e-6);
}

enum { ROWS = 11, VOCAB = 150, DEPTH = 24, KEPT = 7 };
static const int64_t kept[KEPT] = {140, 3, 77, 128, 4, 90, 149};

/* A listed case whose rows all list the same columns, which hold the targets. */
static void create_kept(eager_case *c) {
  int64_t ids[ROWS * KEPT], count[ROWS];
  flp_spec spec = make_spec(FLP_DTYPE_FP32, VOCAB, DEPTH);
  eager_case_create(c, &spec, ROWS, 57);
  for (int i = 0; i < ROWS; i++) {
    eager_case_set_target(c, i, kept[i % KEPT]);
    count[i] = KEPT;
    memcpy(ids + i * KEPT, kept, sizeof kept);
  }
  eager_case_set_lists(c, ids, count);
  run(c);
}

Test(eager_listed, all_columns_listed_are_the_dense_pass) {
  static int64_t ids[ROWS * VOCAB], count[ROWS];
  flp_spec spec = make_spec(FLP_DTYPE_FP32, VOCAB, DEPTH);
  eager_case c, dense;
  eager_case_create(&c, &spec, ROWS, 57);
  for (int i = 0; i < ROWS; i++) count[i] = VOCAB;
  for (int e = 0; e < ROWS * VOCAB; e++) ids[e] = (7 * e + 5) % VOCAB; /* 7 and 150 have no common factor */
  eager_case_set_lists(&c, ids, count);
  run(&c);
  spec.listed = 0;
  eager_case_create(&dense, &spec, ROWS, 57);
  run(&dense);
  expect_same_rows(&c, &dense);
  for (int v = 0; v < VOCAB; v++) expect_same_column(&c, v, &dense, v);
  eager_case_destroy(&dense);
  eager_case_destroy(&c);
}

Test(eager_listed, a_list_is_a_dense_pass_whose_other_columns_have_no_probability) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, VOCAB, DEPTH);
  eager_case c, dense;
  create_kept(&c);
  spec.listed = 0;
  eager_case_create(&dense, &spec, ROWS, 57);
  for (int i = 0; i < ROWS; i++) eager_case_set_target(&dense, i, kept[i % KEPT]);
  for (int v = 0; v < VOCAB; v++)
    if (!c.reference.listed[v]) eager_case_set_bias(&dense, v, -INFINITY);
  run(&dense);
  expect_same_rows(&c, &dense);
  for (int v = 0; v < VOCAB; v++) expect_same_column(&c, v, &dense, v);
  for (int d = 0; d < DEPTH; d++) cr_expect_eq(eager_case_grad_weight(&c, 5, d), 0.0);
  eager_case_destroy(&dense);
  eager_case_destroy(&c);
}

Test(eager_listed, a_list_is_a_dense_pass_over_the_weight_of_its_columns) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, KEPT, DEPTH);
  eager_case c, dense;
  create_kept(&c);
  spec.listed = 0;
  eager_case_create(&dense, &spec, ROWS, 57); /* the same hidden states: they are drawn first */
  for (int i = 0; i < ROWS; i++) {
    eager_case_set_target(&dense, i, i % KEPT);
    dense.grad_logprob[i] = c.grad_logprob[i];
    dense.grad_entropy[i] = c.grad_entropy[i];
  }
  for (int at = 0; at < KEPT; at++) {
    eager_case_set_bias(&dense, at, (double)c.reference.bias[kept[at]]);
    for (int d = 0; d < DEPTH; d++)
      eager_case_set_weight(&dense, at, d, (double)c.reference.weight[kept[at] * DEPTH + d]);
  }
  run(&dense);
  expect_same_rows(&c, &dense);
  for (int at = 0; at < KEPT; at++) expect_same_column(&c, kept[at], &dense, at);
  eager_case_destroy(&dense);
  eager_case_destroy(&c);
}

/* ---- bits ---- */

static void expect_same_bits(const eager_case *a, const eager_case *b) {
  size_t n = (size_t)a->args.n, element = a->spec.dtype == FLP_DTYPE_FP32 ? 4 : 2;
  size_t width = element * (size_t)a->args.grad_hidden_stride, vocab = (size_t)a->spec.vocab;
  cr_expect_arr_eq(a->logprob, b->logprob, 4 * n);
  cr_expect_arr_eq(a->stats, b->stats, 16 * n);
  cr_expect_arr_eq(a->grad_hidden, b->grad_hidden, n * width);
  cr_expect_arr_eq(a->grad_weight, b->grad_weight, vocab * width);
  cr_expect_arr_eq(a->grad_bias, b->grad_bias, vocab * element);
}

Test(eager_listed, bits_do_not_depend_on_the_order_of_a_list_or_on_an_id_that_stands_twice) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 80, 24);
  int64_t some[2 * 20] = {0}, twice[2 * 41] = {0};
  const int64_t some_count[2] = {20, 20}, twice_count[2] = {41, 41};
  for (int i = 0; i < 40; i++) some[i] = (i < 20 ? 3 : 1) * (i % 20) + 1;
  for (int row = 0; row < 2; row++)
    for (int i = 0; i < 41; i++) twice[row * 41 + i] = some[row * 20 + (7 * i + 3) % 20];
  eager_case a, b;
  eager_case_create(&a, &spec, 2, 58);
  eager_case_create(&b, &spec, 2, 58);
  for (int row = 0; row < 2; row++) {
    eager_case_set_target(&a, row, some[row * 20 + 11]);
    eager_case_set_target(&b, row, some[row * 20 + 11]);
  }
  eager_case_set_lists(&a, some, some_count);
  eager_case_set_lists(&b, twice, twice_count);
  run(&a);
  run(&b);
  expect_same_bits(&a, &b);
  eager_case_destroy(&a);
  eager_case_destroy(&b);
}

Test(eager_listed, bits_do_not_depend_on_threads_budget_or_other_rows) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 300, 520);
  eager_case c, other;
  eager_case_create(&c, &spec, 90, 59);
  eager_case_random_lists(&c, 60, 60);
  c.threads = 1;
  run(&c);
  for (int threads = 2; threads < 6; threads++) {
    eager_case_create(&other, &spec, 90, 59);
    eager_case_random_lists(&other, 60, 60);
    other.threads = threads;
    run(&other);
    expect_same_bits(&c, &other);
    eager_case_destroy(&other);
  }
  /* The last rows alone: their offsets do not begin with 0. */
  float *whole = c.logprob + 77, last[13];
  memcpy(last, whole, sizeof last);
  c.args.n = 13;
  c.args.hidden = (char *)c.hidden + 77 * c.args.hidden_stride * 2;
  c.args.target = (int64_t *)c.target + 77;
  c.args.list_offsets = c.list_offsets + 77;
  eager_case_forward(&c);
  cr_expect_arr_eq(c.logprob, last, sizeof last);
  eager_case_destroy(&c);
}

Test(eager_listed, each_mask_computes_the_same_bits) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 200, 24);
  eager_case all, one;
  eager_case_create(&all, &spec, 66, 61);
  eager_case_random_lists(&all, 9, 62);
  run(&all);
  size_t width = 2 * (size_t)all.args.grad_hidden_stride;
  for (uint32_t mask = 1; mask < ALL_GRADS; mask++) {
    spec.grads = mask;
    eager_case_create(&one, &spec, 66, 61);
    eager_case_random_lists(&one, 9, 62);
    run(&one);
    if (mask & FLP_GRAD_HIDDEN) cr_assert_arr_eq(one.grad_hidden, all.grad_hidden, 66 * width);
    if (mask & FLP_GRAD_WEIGHT) cr_assert_arr_eq(one.grad_weight, all.grad_weight, 200 * width);
    if (mask & FLP_GRAD_BIAS) cr_assert_arr_eq(one.grad_bias, all.grad_bias, 400);
    eager_case_destroy(&one);
  }
  eager_case_destroy(&all);
}

/* -0 + 0 is 0: a column that is added to would lose its sign. */
Test(eager_listed, accumulation_adds_to_listed_columns_and_leaves_others_alone) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 130, 16);
  spec.grads = FLP_GRAD_WEIGHT;
  spec.grad_weight_dtype = FLP_DTYPE_FP32;
  eager_case plain, added;
  eager_case_create(&plain, &spec, 5, 63);
  spec.accumulate_grad_weight = 1;
  eager_case_create(&added, &spec, 5, 63);
  eager_case_random_lists(&plain, 9, 64);
  eager_case_random_lists(&added, 9, 64);
  float *sum = added.grad_weight;
  int64_t stride = added.args.grad_weight_stride, listed = 0;
  for (int64_t v = 0; v < 130; v++) {
    int is_listed = 0;
    for (int i = 0; i < 5; i++) is_listed |= plain.reference.listed[130 * i + v];
    for (int64_t d = 0; d < stride; d++) sum[v * stride + d] = is_listed ? 0.25f : -0.0f;
  }
  run(&plain);
  run(&added);
  for (int64_t v = 0; v < 130; v++)
    for (int64_t d = 0; d < 16; d++) {
      float got = sum[v * stride + d], alone = (float)eager_case_grad_weight(&plain, v, d);
      listed += alone != 0;
      cr_expect(alone != 0 ? got == 0.25f + alone : got == 0 && signbit(got), "%d, %d: %g", (int)v, (int)d, got);
    }
  cr_expect_gt(listed, 100);
  eager_case_destroy(&plain);
  eager_case_destroy(&added);
}
