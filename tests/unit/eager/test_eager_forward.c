/* test_eager_forward.c: logprob and entropy of the eager rung against long double. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/unit/support/eager_case.h"

static flp_spec make_spec(flp_dtype dtype, int64_t vocab, int64_t hidden) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.dtype = dtype;
  spec.vocab = vocab;
  spec.hidden = hidden;
  spec.entropy = FLP_ENTROPY_FORWARD;
  return spec;
}

static void check(const flp_spec *spec, int64_t n, double tolerance) {
  eager_case c;
  eager_case_create(&c, spec, n, 1);
  eager_case_forward(&c);
  eager_case_check_forward(&c, tolerance);
  cr_assert_eq(c.bad_rows, 0);
  eager_case_destroy(&c);
}

Test(eager_forward, every_dtype_and_ragged_shape_matches_long_double) {
  const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32};
  const int64_t shapes[][3] = {{1, 2, 8}, {3, 37, 16}, {65, 129, 24}, {70, 700, 40}, {5, 1300, 8}};
  for (int d = 0; d < 3; d++)
    for (int s = 0; s < 5; s++) {
      flp_spec spec = make_spec(dtypes[d], shapes[s][1], shapes[s][2]);
      check(&spec, shapes[s][0], 4e-7);
    }
}

Test(eager_forward, bias_and_int32_targets) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 200, 32);
  spec.has_bias = 1;
  spec.target_dtype = FLP_DTYPE_INT32;
  check(&spec, 9, 4e-7);
}

Test(eager_forward, softcap_scale_and_scalar_temperature) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 150, 16);
  spec.softcap = 2.5f;
  spec.has_bias = 1;
  eager_case c;
  eager_case_create(&c, &spec, 6, 3);
  c.args.scale = -1.5f;
  c.args.temperature = 0.75f;
  c.reference.scale = -1.5L;
  for (int i = 0; i < 6; i++) c.reference.temperature[i] = 0.75L;
  eager_case_forward(&c);
  eager_case_check_forward(&c, 5e-7);
  eager_case_destroy(&c);
}

Test(eager_forward, per_row_temperature_from_a_thousandth_to_a_thousand) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 300, 16);
  spec.per_row_temperature = 1;
  eager_case c;
  eager_case_create(&c, &spec, 7, 4);
  const double temperatures[7] = {1e-3, 1e-2, 0.1, 1, 10, 100, 1000};
  for (int i = 0; i < 7; i++) eager_case_set_temperature(&c, i, temperatures[i]);
  eager_case_forward(&c);
  /* The fp32 product's own error, about 1e-7, is divided by T. */
  for (int i = 0; i < 7; i++) {
    long double logprob, entropy;
    long_forward(&c.reference, i, &logprob, &entropy);
    double allowed = 4e-7 * fmax(1, fabs((double)logprob)) + 2e-7 / temperatures[i];
    cr_assert_float_eq(c.logprob[i], (double)logprob, allowed);
    cr_assert_float_eq(c.entropy[i], (double)entropy, allowed * 4);
  }
  eager_case_destroy(&c);
}

Test(eager_forward, scores_beyond_what_fp32_distinguishes_by_one) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 300, 16);
  spec.per_row_temperature = 1;
  eager_case c;
  eager_case_create(&c, &spec, 7, 4);
  const double temperatures[7] = {1e-5, 1e-6, 1e-7, 1e-8, 2e-8, 5e-8, 2e-7};
  for (int i = 0; i < 7; i++) eager_case_set_temperature(&c, i, temperatures[i]);
  eager_case_forward(&c);
  for (int i = 0; i < 7; i++) {
    long double logprob, entropy;
    long_forward(&c.reference, i, &logprob, &entropy);
    cr_assert_float_eq(c.logprob[i], (double)logprob, 4e-7 * fabs((double)logprob) + 2e-7 / temperatures[i]);
    cr_assert_lt(c.logprob[i], 0.0f);
    cr_assert_float_eq(c.entropy[i], 0.0, 1e-6); /* the two largest scores are far apart */
  }
  cr_assert_eq(c.bad_rows, 0);
  eager_case_destroy(&c);
}

/* A head of one hidden number, 1, and two columns, whose scores thus are the weights over T. */
static eager_case two_columns(const double *temperatures, int64_t n, double first, double second) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 2, 8);
  spec.per_row_temperature = 1;
  eager_case c;
  eager_case_create(&c, &spec, n, 4);
  for (int64_t i = 0; i < n; i++) {
    for (int64_t d = 0; d < 8; d++) eager_case_set_hidden(&c, i, d, d == 0);
    eager_case_set_temperature(&c, i, temperatures[i]);
    eager_case_set_target(&c, i, 0);
  }
  eager_case_set_weight(&c, 0, 0, first);
  eager_case_set_weight(&c, 1, 0, second);
  return c;
}

Test(eager_forward, a_largest_score_beyond_the_limit_is_a_bad_row) {
  /* T = log2(e) makes a weight its score in log2 units */
  const double t = 1.4426950408889634, temperatures[4] = {t, t / 2, t, t / 4};
  const double limit = 1 << 30;
  eager_case c = two_columns(temperatures, 4, limit * 0.999, limit * 0.75);
  eager_case_forward(&c);
  for (int i = 0; i < 4; i++) cr_expect_eq(isnan(c.logprob[i]), temperatures[i] < 1, "row %d: %g", i, c.logprob[i]);
  for (int i = 0; i < 4; i++) cr_expect_eq(isnan(c.stats[4 * i]), temperatures[i] < 1, "row %d", i);
  cr_expect_eq(c.logprob[0], 0.0f);
  cr_expect_eq(c.bad_rows, 2);
  eager_case_destroy(&c);

  c = two_columns(temperatures, 4, -limit * 0.75, -limit * 0.999);
  eager_case_forward(&c);
  cr_expect(c.logprob[0] == 0 && isnan(c.logprob[1]) && c.logprob[2] == 0 && isnan(c.logprob[3]));
  cr_expect_eq(c.bad_rows, 2);
  eager_case_destroy(&c);
}

Test(eager_forward, a_score_far_below_the_largest_may_be_as_low_as_it_likes) {
  const double temperatures[2] = {1, 1e-9};
  eager_case c = two_columns(temperatures, 2, -1e20, 0.5);
  eager_case_forward(&c);
  cr_expect_float_eq(c.logprob[0] / -1e20, 1.0, 1e-6, "%g", c.logprob[0]);
  cr_expect_float_eq(c.logprob[1] / -1e29, 1.0, 1e-6, "%g", c.logprob[1]);
  cr_expect(c.entropy[0] == 0 && c.entropy[1] == 0 && c.bad_rows == 0);
  eager_case_destroy(&c);
}

Test(eager_forward, a_common_shift_of_ten_thousand_costs_no_digits) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 140, 8);
  spec.has_bias = 1;
  eager_case c;
  eager_case_create(&c, &spec, 4, 5);
  /* Small multiples of 1/64 beside 10^4: every product and sum is exact in fp32. */
  uint32_t state = 9;
  for (int i = 0; i < 4 * 8; i++) eager_case_set_hidden(&c, i / 8, i % 8, round(8 * eager_case_random(&state)) / 8);
  for (int i = 0; i < 140 * 8; i++) eager_case_set_weight(&c, i / 8, i % 8, round(8 * eager_case_random(&state)) / 8);
  for (int v = 0; v < 140; v++) eager_case_set_bias(&c, v, 10000);
  eager_case_forward(&c);
  eager_case_check_forward(&c, 1.2e-7);
  eager_case_destroy(&c);
}

Test(eager_forward, a_certain_row_has_logprob_zero_and_its_rivals_do_not) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 50, 8);
  eager_case c;
  eager_case_create(&c, &spec, 2, 6);
  for (int i = 0; i < 2 * 8; i++) eager_case_set_hidden(&c, i / 8, i % 8, i % 8 == 0 ? 1 : 0);
  for (int v = 0; v < 50; v++) eager_case_set_weight(&c, v, 0, v == 17 ? 200 : -200);
  eager_case_set_target(&c, 0, 17);
  eager_case_set_target(&c, 1, 18);
  eager_case_forward(&c);
  cr_assert(c.logprob[0] == 0 && !signbit(-c.logprob[0]) == !!signbit(c.logprob[0]));
  cr_assert_eq(c.entropy[0], 0.0f);
  cr_assert_float_eq(c.logprob[1], -400.0f, 1e-4);
  eager_case_destroy(&c);
}

Test(eager_forward, columns_of_minus_infinity_have_no_probability) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 290, 16);
  spec.has_bias = 1;
  eager_case c;
  eager_case_create(&c, &spec, 5, 7);
  for (int v = 0; v < 290; v++)
    if (v < 130 || v % 3 == 0) eager_case_set_bias(&c, v, -INFINITY);    /* the whole first tile among them */
  for (int i = 0; i < 4; i++) eager_case_set_target(&c, i, 200 + 3 * i); /* 200 % 3 = 2 */
  eager_case_set_target(&c, 4, 3);
  eager_case_forward(&c);
  c.reference.target[4] = -1;
  eager_case_check_forward(&c, 4e-7);
  cr_assert_eq(c.logprob[4], -INFINITY);
  cr_assert(isfinite(c.entropy[4]));
  eager_case_destroy(&c);
}

Test(eager_forward, a_row_without_a_finite_score_is_nan) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 33, 8);
  spec.has_bias = 1;
  eager_case c;
  eager_case_create(&c, &spec, 2, 8);
  for (int v = 0; v < 33; v++) eager_case_set_bias(&c, v, -INFINITY);
  eager_case_forward(&c);
  for (int i = 0; i < 2; i++) cr_assert(isnan(c.logprob[i]) && isnan(c.entropy[i]));
  eager_case_destroy(&c);
}

Test(eager_forward, a_nan_or_infinite_row_stays_in_its_row) {
  flp_spec spec = make_spec(FLP_DTYPE_FP16, 260, 16);
  eager_case c;
  eager_case_create(&c, &spec, 67, 9);
  eager_case_set_hidden(&c, 3, 5, NAN);
  eager_case_set_hidden(&c, 66, 0, INFINITY);
  eager_case_forward(&c);
  cr_assert(isnan(c.logprob[3]) && isnan(c.entropy[3]));
  cr_assert(isnan(c.logprob[66]) && isnan(c.entropy[66]));
  c.reference.target[3] = c.reference.target[66] = -1;
  eager_case_check_forward(&c, 4e-7);
  eager_case_destroy(&c);
}

Test(eager_forward, stats_hold_maximum_log_sum_logprob_and_entropy) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 90, 8);
  eager_case c;
  eager_case_create(&c, &spec, 3, 10);
  eager_case_forward(&c);
  for (int i = 0; i < 3; i++) {
    long double maximum = -INFINITY, sum = 0;
    for (int v = 0; v < 90; v++) maximum = fmaxl(maximum, long_score(&c.reference, i, v));
    for (int v = 0; v < 90; v++) sum += expl(long_score(&c.reference, i, v) - maximum);
    const float *stats = c.stats + 4 * i;
    cr_assert_float_eq(stats[0], (double)(maximum * M_LOG2E), 1e-6);
    cr_assert_float_eq(stats[1], (double)log2l(sum), 1e-6);
    cr_assert_eq(stats[2], c.logprob[i]);
    cr_assert_eq(stats[3], c.entropy[i]);
  }
  eager_case_destroy(&c);
}

Test(eager_forward, bits_do_not_depend_on_threads_budget_row_count_or_position) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 1500, 264);
  eager_case c;
  eager_case_create(&c, &spec, 150, 11);
  eager_case_forward(&c);
  float whole[150];
  memcpy(whole, c.logprob, sizeof whole);
  flp_layout least = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_eager_layout(&c.spec, FLP_PASS_FORWARD, 150, UINT64_MAX / 2, 1, &least), FLP_OK);
  const struct {
    int threads;
    uint64_t budget;
  } runs[] = {{1, UINT64_C(1) << 28}, {3, UINT64_C(1) << 28}, {2, least.smallest_bytes}};
  for (int i = 0; i < 3; i++) {
    c.threads = runs[i].threads;
    c.budget = runs[i].budget;
    eager_case_forward(&c);
    cr_assert_arr_eq(c.logprob, whole, sizeof whole);
  }
  /* One row alone, and the last rows at the front. */
  c.args.n = 1;
  eager_case_forward(&c);
  cr_assert_arr_eq(c.logprob, whole, sizeof *whole);
  c.args.n = 13;
  c.args.hidden = (char *)c.hidden + 137 * c.args.hidden_stride * 2;
  c.args.target = (int64_t *)c.target + 137;
  eager_case_forward(&c);
  cr_assert_arr_eq(c.logprob, whole + 137, 13 * sizeof *whole);
  eager_case_destroy(&c);
}
