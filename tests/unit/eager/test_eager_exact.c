/* test_eager_exact.c: what the table of test_eager_cases.c cannot say: limits of a temperature, the same bits of two
 * problems, and rows that only a hand-written call makes. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/support/eager_case.h"
#include "tests/unit/support/words.h"

static flp_spec spec_of(flp_dtype dtype, const char *words) {
  flp_spec spec = words_spec(words);
  spec.dtype = dtype;
  spec.entropy = FLP_ENTROPY_BACKWARD;
  return spec;
}

static void run(eager_case *c) {
  eager_case_forward(c);
  if (c->spec.grads) eager_case_backward(c);
}

/* Outputs of forward and of the gradients in grads, of two cases of one spec. */
static void expect_same(const eager_case *a, const eager_case *b, uint32_t grads, const char *what) {
  char *bits = eager_case_snapshot(a);
  eager_case_expect_bits(b, bits, grads, what);
  free(bits);
}

/* ---- values ---- */

/* A row's temperature is held to what is accepted of a scalar: it and what kernels make of it are normal numbers. */
Test(eager_exact, temperatures_beyond_fp32_are_bad) {
  static const float given[8] = {1e-45f, 1e-40f, 1.2e-38f, 4e-38f, 1e-30f, 1e38f, 2e38f, 3.4e38f};
  static const struct {
    float scale, softcap;
    int bad[8];
  } cases[] = {{1, 0, {1, 1, 0, 0, 0, 0, 1, 1}},      {-1, 0, {1, 1, 0, 0, 0, 0, 1, 1}},
               {1e-10f, 0, {1, 1, 0, 0, 0, 1, 1, 1}}, {30, 0, {1, 1, 1, 1, 0, 0, 0, 0}},
               {0, 0, {1, 1, 0, 0, 0, 0, 0, 0}},      {1, 30, {1, 1, 1, 1, 0, 0, 0, 0}},
               {0, 1e-10f, {1, 1, 0, 0, 0, 1, 1, 1}}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    flp_spec spec = spec_of(FLP_DTYPE_FP32, "V=50 D=8");
    spec.per_row_temperature = 1;
    spec.softcap = cases[i].softcap;
    eager_case c;
    eager_case_create(&c, &spec, 8, 35);
    c.args.scale = cases[i].scale;
    memcpy(c.temperature, given, sizeof given);
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

/* What split promises, of one element: 1 + 2^-12 + 2^-20 keeps its second term, and rounded operands lose it. */
Test(eager_exact, the_second_term_of_a_split_operand_counts) {
  for (int mixed = FLP_MIXED_ROUND; mixed <= FLP_MIXED_SPLIT; mixed++) {
    flp_spec spec = spec_of(FLP_DTYPE_BF16, "V=2 D=8");
    spec.mixed = (flp_mixed)mixed;
    spec.weight_dtype = FLP_DTYPE_FP32;
    eager_case c;
    eager_case_create(&c, &spec, 1, 3);
    for (int64_t d = 0; d < 8; d++) {
      eager_case_set_hidden(&c, 0, d, d ? 0 : 256);
      for (int64_t v = 0; v < 2; v++) eager_case_set_weight(&c, v, d, d || v ? 0 : 0x1p-3 + 0x1p-15 + 0x1p-23);
    }
    eager_case_set_target(&c, 0, 0, 1);
    eager_case_forward(&c);
    double exact = -log1p(exp(256 * (0x1p-3 + 0x1p-15 + 0x1p-23)));
    double error = fabs((double)c.logprob[0] - exact);
    cr_assert(mixed == FLP_MIXED_ROUND ? error > 0x1p-8 : error < 0x1p-14, "mixed %d is off by %g", mixed, error);
    eager_case_destroy(&c);
  }
}

/* ---- the same bits ---- */

/* Far outside of fp16: a factor that comes later finds every bit. */
Test(eager_exact, fp32_gradients_of_fp16_operands_have_the_range_of_fp32) {
  flp_spec spec = spec_of(FLP_DTYPE_FP16, "V=130 D=16 grads=hidden,weight,bias bias");
  spec.grad_hidden_dtype = spec.grad_weight_dtype = spec.grad_bias_dtype = FLP_DTYPE_FP32;
  eager_case plain, moved;
  eager_case_create(&plain, &spec, 5, 24);
  run(&plain);
  for (int shift = -60; shift <= 60; shift += 40) {
    eager_case_create(&moved, &spec, 5, 24);
    for (int row = 0; row < 5; row++) {
      moved.grad_logprob[row] = ldexpf(moved.grad_logprob[row], shift);
      moved.grad_entropy[row] = ldexpf(moved.grad_entropy[row], shift);
    }
    run(&moved);
    for (uint32_t grad = FLP_GRAD_HIDDEN; grad <= FLP_GRAD_BIAS; grad *= 2)
      for (int64_t at = 0, width = eager_case_output(&plain, grad)->stride; at < 130 * 16; at++) {
        int64_t row = at / 16, d = at % 16;
        if (row < eager_case_output(&plain, grad)->rows && d < width)
          cr_assert_eq(eager_case_grad(&moved, grad, row, d), ldexp(eager_case_grad(&plain, grad, row, d), shift));
      }
    eager_case_destroy(&moved);
  }
  eager_case_destroy(&plain);
}

/* The case stores what it draws rounded to the dtype of its operand: here once before, there within the call. */
static void expect_rounded_bits(const flp_spec *mixed) {
  flp_spec narrow = *mixed;
  narrow.hidden_dtype = narrow.weight_dtype = narrow.bias_dtype = (flp_dtype)0;
  narrow.mixed = FLP_MIXED_NONE;
  eager_case a, b;
  eager_case_create_listed(&a, mixed, 70, 20, 5);
  eager_case_create_listed(&b, &narrow, 70, 20, 5);
  run(&a);
  run(&b);
  expect_same(&a, &b, ALL, "operands rounded before");
  cr_assert_leq(a.logprob[0], 0.0f);
  eager_case_destroy(&a);
  eager_case_destroy(&b);
}

Test(eager_exact, a_rounded_operand_has_the_bits_of_one_rounded_before) {
  for (flp_dtype dtype = FLP_DTYPE_BF16; dtype <= FLP_DTYPE_FP16; dtype++) {
    flp_spec spec = spec_of(dtype, "V=300 D=24 grads=hidden,weight,bias bias");
    spec.grad_hidden_dtype = spec.grad_weight_dtype = spec.grad_bias_dtype = FLP_DTYPE_FP32;
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

/* Where B is 0, or s, every bit is that of a head without an adapter; the gradient of B is not 0 for B = 0. */
Test(eager_exact, nothing_in_b_or_scale_0_gives_the_bits_of_the_plain_pass) {
  for (int i = 0; i < 6; i++) {
    flp_dtype dtype = (flp_dtype)(FLP_DTYPE_BF16 + i % 3);
    flp_spec plain = spec_of(dtype, "V=700 D=600 grads=hidden");
    flp_spec spec = spec_of(dtype, "V=700 D=600 grads=hidden,lora_a,lora_b lora=64");
    eager_case l, p;
    eager_case_create(&l, &spec, 70, 3);
    eager_case_create(&p, &plain, 70, 3);
    l.args.lora_scale = i < 3 ? 2 : 0;
    if (i < 3) memset(l.lora_b, 0, 700 * 64 * (size_t)(dtype == FLP_DTYPE_FP32 ? 4 : 2));
    run(&l);
    run(&p);
    for (int at = 0; at < EAGER_OUTPUTS; at++)
      if (p.outputs[at].data) cr_expect_arr_eq(l.outputs[at].data, p.outputs[at].data, p.outputs[at].bytes);
    double a = 0, b = 0;
    for (int64_t at = 0; at < 64 * 600; at++) a += fabs(eager_case_grad(&l, FLP_GRAD_LORA_A, 0, at));
    for (int64_t at = 0; at < 64 * 700; at++) b += fabs(eager_case_grad(&l, FLP_GRAD_LORA_B, 0, at));
    cr_expect_eq(a, 0);
    cr_expect(i < 3 ? b > 1 : b == 0, "%g", b);
    eager_case_destroy(&l);
    eager_case_destroy(&p);
  }
}

/* Values of several targets are the bits of calls of one; one that is asked for by number is one. */
Test(eager_exact, targets_have_the_bits_of_calls_of_one_target) {
  static const int counts[] = {1, 2, 3, 7, 20, 64};
  for (int i = 0; i < 6; i++) {
    int count = counts[i];
    flp_spec spec = spec_of(FLP_DTYPE_FP32, "V=300 D=24 grads=hidden,weight,bias bias"), usual = spec;
    spec.targets = count;
    eager_case c, one;
    eager_case_create(&c, &spec, 70, 81);
    eager_case_create(&one, &usual, 70, 81);
    run(&c);
    for (int64_t k = 0; k < count; k++) {
      for (int64_t row = 0; row < 70; row++) eager_case_set_target(&one, row, 0, eager_case_get_target(&c, row, k));
      run(&one);
      for (int64_t row = 0; row < 70; row++) {
        cr_assert_eq(c.logprob[row * count + k], one.logprob[row], "row %ld, target %ld", (long)row, (long)k);
        if (eager_case_get_target(&one, row, 0) < 0) continue;
        for (int j = 0; j < 4; j++)
          cr_assert(j == 2 ? c.stats[4 * row + j] >= one.logprob[row] : c.stats[4 * row + j] == one.stats[4 * row + j]);
        cr_assert_eq(c.entropy[row], one.entropy[row]);
      }
    }
    if (count == 1) expect_same(&c, &one, ALL, "one target by number");
    eager_case_destroy(&c);
    eager_case_destroy(&one);
  }
}

Test(eager_exact, the_order_of_a_list_and_ids_that_stand_twice_change_no_bit) {
  flp_spec spec = spec_of(FLP_DTYPE_FP32, "V=80 D=24 grads=hidden,weight,bias bias");
  spec.listed = 1;
  int64_t some[2 * 20] = {0}, twice[2 * 41] = {0};
  for (int i = 0; i < 40; i++) some[i] = (i < 20 ? 3 : 1) * (i % 20) + 1;
  for (int row = 0; row < 2; row++)
    for (int i = 0; i < 41; i++) twice[row * 41 + i] = some[row * 20 + (7 * i + 3) % 20];
  eager_case a, b;
  eager_case_create(&a, &spec, 2, 58);
  eager_case_create(&b, &spec, 2, 58);
  for (int row = 0; row < 2; row++) {
    eager_case_set_target(&a, row, 0, some[row * 20 + 11]);
    eager_case_set_target(&b, row, 0, some[row * 20 + 11]);
  }
  eager_case_set_lists(&a, some, (const int64_t[]){20, 20});
  eager_case_set_lists(&b, twice, (const int64_t[]){41, 41});
  run(&a);
  run(&b);
  expect_same(&a, &b, ALL, "another order");
  eager_case_destroy(&a);
  eager_case_destroy(&b);
}

/* ---- rows of lists ---- */

static flp_spec listed_spec(void) {
  return spec_of(FLP_DTYPE_FP32, "V=50 D=8 grads=hidden,weight,bias bias listed");
}

Test(eager_exact, offsets_that_do_not_ascend_within_the_lists_make_every_row_bad) {
  static const struct {
    int at;
    int64_t value;
  } wrong[] = {{0, -1}, {4, 13}, {1, 8}, {2, -1}, {0, INT64_MIN}, {4, INT64_MAX}, {3, 2}, {1, INT64_MAX}};
  int64_t ids[12];
  for (int e = 0; e < 12; e++) ids[e] = 5 + e % 3;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    flp_spec spec = listed_spec();
    eager_case c;
    eager_case_create(&c, &spec, 4, 73);
    for (int row = 0; row < 4; row++) eager_case_set_target(&c, row, 0, row == 2 ? -100 : 6);
    eager_case_set_lists(&c, ids, (const int64_t[]){3, 3, 3, 3});
    c.list_offsets[wrong[i].at] = wrong[i].value;
    run(&c);
    eager_case_check_forward(&c, 1.5e-7);
    eager_case_check_backward(&c, 1e-6);
    for (int row = 0; row < 4; row++) cr_expect_eq(c.kind[row], row == 2 ? EAGER_ROW_LEFT_OUT : EAGER_ROW_BAD_LIST);
    cr_expect_eq(c.bad_rows, 2 * 3);
    eager_case_destroy(&c);
  }
}

/* What stats hold of a row decides, not why: here a caller wrote it. */
Test(eager_exact, a_listed_row_with_nan_in_its_stats_adds_nothing_to_the_head) {
  flp_spec spec = listed_spec();
  for (int word = 0; word < 4; word++) {
    eager_case c;
    eager_case_create_listed(&c, &spec, 5, 9, 75);
    eager_case_forward(&c);
    c.stats[4 * 3 + word] = NAN;
    eager_case_backward(&c);
    for (int d = 0; d < 8; d++) {
      cr_expect(isnan(eager_case_grad(&c, FLP_GRAD_HIDDEN, 3, d)));
      eager_case_set_hidden(&c, 3, d, NAN); /* to the oracle */
    }
    cr_expect_eq(c.bad_rows, 0);
    eager_case_check_backward(&c, 1e-6);
    eager_case_destroy(&c);
  }
}

Test(eager_exact, the_list_of_a_row_without_upstream_gradient_is_not_looked_at) {
  flp_spec spec = listed_spec();
  eager_case c;
  eager_case_create_listed(&c, &spec, 5, 9, 79);
  eager_case_forward(&c);
  c.grad_logprob[3] = c.grad_entropy[3] = 0;
  ((int64_t *)c.list_ids)[c.list_offsets[3]] = -1;
  eager_case_backward(&c);
  cr_expect_eq(c.bad_rows, 0);
  eager_case_check_backward(&c, 1e-6);
  for (int d = 0; d < 8; d++) cr_expect_eq(eager_case_grad(&c, FLP_GRAD_HIDDEN, 3, d), 0.0);
  eager_case_destroy(&c);
}
