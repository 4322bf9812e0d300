/* test_eager_backward.c: gradients of the eager rung against central differences in long double. */
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
  return spec;
}

static void check(const flp_spec *spec, int64_t n, double tolerance) {
  eager_case c;
  eager_case_create(&c, spec, n, 21);
  eager_case_forward(&c);
  eager_case_backward(&c);
  eager_case_check_backward(&c, tolerance);
  eager_case_destroy(&c);
}

/* Half of a unit in the last place of the gradient's dtype, with room for sums near a tie. */
static double tolerance_of(flp_dtype dtype) {
  return dtype == FLP_DTYPE_BF16 ? 0x1.1p-8 : dtype == FLP_DTYPE_FP16 ? 0x1.1p-11 : 2e-6;
}

Test(eager_backward, every_dtype_matches_central_differences) {
  const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32};
  for (int d = 0; d < 3; d++) {
    flp_spec spec = make_spec(dtypes[d], 37, 16);
    check(&spec, 5, tolerance_of(dtypes[d]));
  }
}

Test(eager_backward, several_tiles_of_rows_and_columns) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 300, 8);
  check(&spec, 70, 3e-6);
}

Test(eager_backward, without_entropy) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 40, 8);
  spec.entropy = FLP_ENTROPY_NONE;
  check(&spec, 4, 2e-6);
}

Test(eager_backward, softcap_scale_and_temperatures_of_each_row) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 40, 8);
  spec.softcap = 1.5f;
  spec.per_row_temperature = 1;
  eager_case c;
  eager_case_create(&c, &spec, 5, 22);
  c.args.scale = 1.25f;
  c.reference.scale = 1.25L;
  eager_case_forward(&c);
  eager_case_backward(&c);
  eager_case_check_backward(&c, 3e-6);
  eager_case_destroy(&c);
}

/* A row of one certain column: d logprob / d hidden is (weight of the target - weight of that column) / T. */
Test(eager_backward, a_temperature_next_to_zero) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 40, 8);
  spec.entropy = FLP_ENTROPY_NONE;
  eager_case c;
  eager_case_create(&c, &spec, 5, 22);
  c.args.temperature = 1e-8f;
  eager_case_forward(&c);
  eager_case_backward(&c);
  for (int i = 0; i < 5; i++) {
    int64_t target = eager_case_get_target(&c, i), top = 0;
    for (int v = 1; v < 40; v++)
      if (long_raw_score(&c.reference, i, v) > long_raw_score(&c.reference, i, (int)top)) top = v;
    for (int d = 0; d < 8; d++) {
      long double difference = c.reference.weight[target * 8 + d] - c.reference.weight[top * 8 + d];
      double right = (double)(c.reference.grad_logprob[i] * difference) / (double)c.args.temperature;
      cr_assert_float_eq(eager_case_grad_hidden(&c, i, d), right, 5e4); /* of gradients of 1e7 to 1e8 */
    }
  }
  eager_case_destroy(&c);
}

Test(eager_backward, each_mask_computes_the_same_bits) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 200, 24);
  eager_case all, one;
  eager_case_create(&all, &spec, 66, 23);
  eager_case_forward(&all);
  eager_case_backward(&all);
  size_t width = 2 * (size_t)all.args.grad_hidden_stride;
  for (uint32_t mask = 1; mask < ALL_GRADS; mask++) {
    spec.grads = mask;
    eager_case_create(&one, &spec, 66, 23);
    eager_case_forward(&one);
    eager_case_backward(&one);
    if (mask & FLP_GRAD_HIDDEN) cr_assert_arr_eq(one.grad_hidden, all.grad_hidden, 66 * width);
    if (mask & FLP_GRAD_WEIGHT) cr_assert_arr_eq(one.grad_weight, all.grad_weight, 200 * width);
    if (mask & FLP_GRAD_BIAS) cr_assert_arr_eq(one.grad_bias, all.grad_bias, 400);
    eager_case_destroy(&one);
  }
  eager_case_destroy(&all);
}

/* Runs both passes with upstream gradients times 2^shift. */
static void run_shifted(eager_case *c, const flp_spec *spec, int shift) {
  eager_case_create(c, spec, 5, 24);
  for (int row = 0; row < 5; row++) {
    c->grad_logprob[row] = ldexpf(c->grad_logprob[row], shift);
    c->grad_entropy[row] = ldexpf(c->grad_entropy[row], shift);
  }
  eager_case_forward(c);
  eager_case_backward(c);
}

/* Far outside of fp16: a factor that comes later finds every bit. */
Test(eager_backward, fp32_gradients_of_fp16_operands_have_the_range_of_fp32) {
  flp_spec spec = make_spec(FLP_DTYPE_FP16, 130, 16);
  spec.grad_hidden_dtype = spec.grad_weight_dtype = spec.grad_bias_dtype = FLP_DTYPE_FP32;
  eager_case plain, moved;
  run_shifted(&plain, &spec, 0);
  eager_case_check_backward(&plain, tolerance_of(FLP_DTYPE_FP32));
  for (int shift = -60; shift <= 60; shift += 40) {
    run_shifted(&moved, &spec, shift);
    for (int i = 0; i < 130 * 16; i++) {
      int64_t v = i / 16, d = i % 16;
      cr_assert_eq(eager_case_grad_weight(&moved, v, d), ldexp(eager_case_grad_weight(&plain, v, d), shift));
      cr_assert_eq(eager_case_grad_bias(&moved, v), ldexp(eager_case_grad_bias(&plain, v), shift));
      if (v < 5) cr_assert_eq(eager_case_grad_hidden(&moved, v, d), ldexp(eager_case_grad_hidden(&plain, v, d), shift));
    }
    eager_case_destroy(&moved);
  }
  eager_case_destroy(&plain);
}

Test(eager_backward, fp32_weight_gradient_is_added_to) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 130, 16);
  spec.grads = FLP_GRAD_WEIGHT;
  spec.grad_weight_dtype = FLP_DTYPE_FP32;
  eager_case plain, added;
  eager_case_create(&plain, &spec, 5, 24);
  spec.accumulate_grad_weight = 1;
  eager_case_create(&added, &spec, 5, 24);
  float *sum = added.grad_weight;
  for (int64_t i = 0; i < 130 * added.args.grad_weight_stride; i++) sum[i] = 0.25f;
  eager_case_forward(&plain);
  eager_case_backward(&plain);
  eager_case_forward(&added);
  eager_case_backward(&added);
  for (int v = 0; v < 130; v++)
    for (int d = 0; d < 16; d++)
      cr_assert_eq((float)eager_case_grad_weight(&added, v, d), 0.25f + (float)eager_case_grad_weight(&plain, v, d));
  for (int v = 0; v < 130; v++) /* between rows nothing is written */
    cr_assert_eq(sum[v * added.args.grad_weight_stride + 16], 0.25f);
  eager_case_check_backward(&plain, 3e-6);
  eager_case_destroy(&plain);
  eager_case_destroy(&added);
}

Test(eager_backward, bits_do_not_depend_on_threads_or_budget) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 700, 520);
  eager_case c, other;
  eager_case_create(&c, &spec, 150, 25);
  c.budget = UINT64_C(1) << 30;
  eager_case_forward(&c);
  eager_case_backward(&c);
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_eager_layout(&c.spec, FLP_PASS_BACKWARD, 150, UINT64_C(1) << 30, 1, &layout), FLP_OK);
  cr_assert_eq(layout.mode, FLP_MODE_RECOMPUTE_VOCAB);
  const struct {
    int threads;
    uint64_t budget;
  } runs[] = {{3, UINT64_C(1) << 30}, {2, layout.smallest_bytes}, {1, (layout.smallest_bytes + layout.bytes) / 2}};
  cr_assert_eq(flp_eager_layout(&c.spec, FLP_PASS_BACKWARD, 150, layout.smallest_bytes, 1, &layout), FLP_OK);
  cr_assert_eq(layout.mode, FLP_MODE_RECOMPUTE_SPLIT);
  cr_assert_eq(layout.products, 4);
  for (int i = 0; i < 3; i++) {
    eager_case_create(&other, &spec, 150, 25);
    eager_case_forward(&other);
    other.threads = runs[i].threads;
    other.budget = runs[i].budget;
    eager_case_backward(&other);
    cr_assert_arr_eq(other.grad_hidden, c.grad_hidden, 150 * 2 * (size_t)c.args.grad_hidden_stride);
    cr_assert_arr_eq(other.grad_weight, c.grad_weight, 700 * 2 * (size_t)c.args.grad_weight_stride);
    cr_assert_arr_eq(other.grad_bias, c.grad_bias, 1400);
    eager_case_destroy(&other);
  }
  eager_case_destroy(&c);
}

Test(eager_backward, a_nan_row_reaches_its_own_gradient_and_the_weight_only) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 20, 8);
  eager_case c;
  eager_case_create(&c, &spec, 4, 26);
  eager_case_set_hidden(&c, 1, 2, NAN);
  eager_case_forward(&c);
  eager_case_backward(&c);
  for (int d = 0; d < 8; d++) {
    cr_assert(isnan(eager_case_grad_hidden(&c, 1, d)));
    cr_assert(isfinite(eager_case_grad_hidden(&c, 0, d)));
    cr_assert(isfinite(eager_case_grad_hidden(&c, 2, d)));
    cr_assert(isnan(eager_case_grad_weight(&c, 7, d)));
  }
  eager_case_destroy(&c);
}

Test(eager_backward, columns_of_minus_infinity_get_no_gradient) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 150, 8);
  eager_case c;
  eager_case_create(&c, &spec, 3, 27);
  for (int v = 0; v < 130; v++) eager_case_set_bias(&c, v, -INFINITY);
  for (int i = 0; i < 3; i++) eager_case_set_target(&c, i, 140);
  eager_case_forward(&c);
  eager_case_backward(&c);
  for (int d = 0; d < 8; d++) {
    cr_assert_eq(eager_case_grad_weight(&c, 5, d), 0.0);
    cr_assert(isfinite(eager_case_grad_weight(&c, 140, d)) && eager_case_grad_weight(&c, 140, d) != 0);
    cr_assert_float_eq(eager_case_grad_hidden(&c, 0, d), (double)long_derivative(&c.reference, c.reference.hidden + d),
                       3e-6);
  }
  eager_case_destroy(&c);
}

Test(eager_backward, rows_without_upstream_gradient_cost_and_change_nothing) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 60, 8);
  eager_case c;
  eager_case_create(&c, &spec, 6, 28);
  c.grad_logprob[2] = c.grad_entropy[2] = 0;
  c.grad_logprob[4] = 0; /* its entropy still counts */
  for (int i = 0; i < 6; i++) c.reference.grad_logprob[i] = c.grad_logprob[i];
  c.reference.grad_entropy[2] = 0;
  eager_case_set_hidden(&c, 2, 0, 1);
  eager_case_forward(&c);
  for (int i = 0; i < 4; i++) c.stats[8 + i] = NAN; /* would spread if row 2 were touched */
  eager_case_backward(&c);
  eager_case_check_backward(&c, 3e-6);
  for (int d = 0; d < 8; d++) cr_assert_eq(eager_case_grad_hidden(&c, 2, d), 0.0);
  eager_case_destroy(&c);
}

Test(eager_backward, no_rows_give_a_weight_gradient_of_zero) {
  flp_spec spec = make_spec(FLP_DTYPE_BF16, 20, 8);
  eager_case c;
  eager_case_create(&c, &spec, 0, 29);
  eager_case_backward(&c);
  for (int v = 0; v < 20; v++) {
    cr_assert_eq(eager_case_grad_bias(&c, v), 0.0);
    for (int d = 0; d < 8; d++) cr_assert_eq(eager_case_grad_weight(&c, v, d), 0.0);
  }
  eager_case_destroy(&c);
}
