/* test_eager_mixed.c: operands of two dtypes on the eager rung: rounded ones have the bits of a call whose operands were
 * rounded before; split ones are near the oracle, which has what stands in memory. */
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
  spec.grad_hidden_dtype = spec.grad_weight_dtype = spec.grad_bias_dtype = FLP_DTYPE_FP32;
  return spec;
}

static void run(eager_case *c) {
  eager_case_forward(c);
  eager_case_backward(c);
}

static void expect_bits(const char *what, const void *a, const void *b, size_t bytes) {
  cr_assert_eq(memcmp(a, b, bytes), 0, "%s differs from that of rounded operands", what);
}

/* The case stores what it draws rounded to the dtype of its operand: here once before, there within the call. */
static void expect_rounded_bits(const flp_spec *mixed) {
  flp_spec narrow = *mixed;
  narrow.hidden_dtype = narrow.weight_dtype = narrow.bias_dtype = (flp_dtype)0;
  narrow.mixed = FLP_MIXED_NONE;
  eager_case a, b;
  eager_case_create(&a, mixed, 70, 5);
  eager_case_create(&b, &narrow, 70, 5);
  if (mixed->listed) {
    eager_case_random_lists(&a, 20, 7);
    eager_case_random_lists(&b, 20, 7);
  }
  run(&a);
  run(&b);
  size_t n = 70, width = 4 * (size_t)(a.spec.hidden + a.padding), vocab = (size_t)a.spec.vocab;
  expect_bits("logprob", a.logprob, b.logprob, n * 4);
  expect_bits("entropy", a.entropy, b.entropy, n * 4);
  expect_bits("stats", a.stats, b.stats, n * 16);
  expect_bits("grad_hidden", a.grad_hidden, b.grad_hidden, n * width);
  expect_bits("grad_weight", a.grad_weight, b.grad_weight, vocab * width);
  expect_bits("grad_bias", a.grad_bias, b.grad_bias, vocab * 4);
  cr_assert_leq(a.logprob[0], 0.0f);
  eager_case_destroy(&a);
  eager_case_destroy(&b);
}

Test(eager_mixed, a_rounded_operand_has_the_bits_of_one_rounded_before) {
  for (flp_dtype dtype = FLP_DTYPE_BF16; dtype <= FLP_DTYPE_FP16; dtype++) {
    flp_spec spec = make_spec(dtype, 300, 24);
    spec.mixed = FLP_MIXED_ROUND;
    spec.weight_dtype = FLP_DTYPE_FP32;
    expect_rounded_bits(&spec);
    spec.bias_dtype = dtype;
    expect_rounded_bits(&spec);
    spec.weight_dtype = (flp_dtype)0;
    spec.hidden_dtype = FLP_DTYPE_FP32;
    expect_rounded_bits(&spec);
    spec.bias_dtype = FLP_DTYPE_FP32;
    spec.softcap = 2;
    expect_rounded_bits(&spec);
    spec.listed = 1;
    expect_rounded_bits(&spec);
  }
}

static void expect_near_oracle(const flp_spec *spec, double tolerance) {
  eager_case c;
  eager_case_create(&c, spec, 5, 21);
  run(&c);
  eager_case_check_forward(&c, tolerance);
  eager_case_check_backward(&c, tolerance);
  eager_case_destroy(&c);
}

/* Of 16 elements along K, |h| up to 2 and |w| up to 1/2: scores are off by at most 16·2^-17 (bf16), rounded by 16·2^-9. */
Test(eager_mixed, split_operands_are_near_the_oracle) {
  for (int of_hidden = 0; of_hidden < 2; of_hidden++)
    for (flp_dtype dtype = FLP_DTYPE_BF16; dtype <= FLP_DTYPE_FP16; dtype++) {
      flp_spec spec = make_spec(dtype, 37, 16);
      spec.mixed = FLP_MIXED_SPLIT;
      *(of_hidden ? &spec.hidden_dtype : &spec.weight_dtype) = FLP_DTYPE_FP32;
      expect_near_oracle(&spec, dtype == FLP_DTYPE_BF16 ? 5e-5 : 4e-6);
    }
}

/* What split promises, of one element: 1 + 2^-12 + 2^-20 keeps its second term, and rounded operands lose it. */
Test(eager_mixed, the_second_term_counts) {
  for (int mixed = FLP_MIXED_ROUND; mixed <= FLP_MIXED_SPLIT; mixed++) {
    flp_spec spec = make_spec(FLP_DTYPE_BF16, 2, 8);
    spec.mixed = (flp_mixed)mixed;
    spec.weight_dtype = FLP_DTYPE_FP32;
    spec.has_bias = 0;
    spec.grads = 0;
    spec.entropy = FLP_ENTROPY_NONE;
    eager_case c;
    eager_case_create(&c, &spec, 1, 3);
    for (int64_t d = 0; d < 8; d++) {
      eager_case_set_hidden(&c, 0, d, d ? 0 : 256);
      for (int64_t v = 0; v < 2; v++) eager_case_set_weight(&c, v, d, d || v ? 0 : 0x1p-3 + 0x1p-15 + 0x1p-23);
    }
    eager_case_set_target(&c, 0, 1);
    eager_case_forward(&c);
    double exact = -log1p(exp(256 * (0x1p-3 + 0x1p-15 + 0x1p-23)));
    double error = fabs((double)c.logprob[0] - exact);
    cr_assert(mixed == FLP_MIXED_ROUND ? error > 0x1p-8 : error < 0x1p-14, "mixed %d is off by %g", mixed, error);
    eager_case_destroy(&c);
  }
}
