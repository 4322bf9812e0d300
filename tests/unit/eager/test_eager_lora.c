/* test_eager_lora.c: an adapter on the head on the eager rung, against long double on the merged weight W + s·B·A. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/half.h"
#include "tests/unit/support/eager_case.h"

/* A case with an adapter. The oracle's weight is merged, in long double. */
typedef struct lora_case {
  eager_case c;
  int64_t rank;
  void *a, *b, *grad_a, *grad_b; /* dense */
  long double *wide_a, *wide_b, *plain; /* as stored; weight without the adapter */
} lora_case;

static flp_spec make_spec(flp_dtype dtype, int64_t vocab, int64_t hidden, int rank, uint32_t grads) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.dtype = dtype;
  spec.vocab = vocab;
  spec.hidden = hidden;
  spec.lora_rank = rank;
  spec.grads = grads;
  return spec;
}

static void merge(lora_case *l) {
  int64_t depth = l->c.spec.hidden;
  for (int64_t v = 0; v < l->c.spec.vocab; v++)
    for (int64_t d = 0; d < depth; d++) {
      long double sum = 0;
      for (int64_t k = 0; k < l->rank; k++) sum += l->wide_b[v * l->rank + k] * l->wide_a[k * depth + d];
      l->c.reference.weight[v * depth + d] = l->plain[v * depth + d] + (long double)l->c.args.lora_scale * sum;
    }
}

static void *operand(flp_dtype dtype, int64_t count, double spread, uint32_t *state, long double **wide) {
  char *out = calloc((size_t)count + 1, 4);
  *wide = calloc((size_t)count, sizeof **wide);
  for (int64_t i = 0; i < count; i++) {
    float value = (float)(spread * eager_case_random(state)), kept;
    flp_half_narrow(dtype, &value, 1, out + i * flp_half_bytes(dtype));
    flp_half_widen(dtype, out + i * flp_half_bytes(dtype), 1, &kept);
    (*wide)[i] = (long double)kept;
  }
  return out;
}

static void create(lora_case *l, const flp_spec *spec, int64_t n, float scale, uint32_t seed) {
  uint32_t state = seed + 77;
  int64_t rank = l->rank = spec->lora_rank;
  eager_case_create(&l->c, spec, n, seed);
  size_t bytes = (size_t)(spec->vocab * spec->hidden) * sizeof *l->plain;
  l->plain = malloc(bytes);
  memcpy(l->plain, l->c.reference.weight, bytes);
  l->a = operand(spec->dtype, rank * spec->hidden, 0.5, &state, &l->wide_a);
  l->b = operand(spec->dtype, spec->vocab * rank, 0.5, &state, &l->wide_b);
  l->grad_a = calloc((size_t)(rank * spec->hidden), 4);
  l->grad_b = calloc((size_t)(spec->vocab * rank), 4);
  flp_args *args = &l->c.args;
  args->lora_a = l->a, args->lora_b = l->b, args->lora_scale = scale;
  if (spec->grads & FLP_GRAD_LORA_A) args->grad_lora_a = l->grad_a;
  if (spec->grads & FLP_GRAD_LORA_B) args->grad_lora_b = l->grad_b;
  merge(l);
}

static void destroy(lora_case *l) {
  eager_case_destroy(&l->c);
  free(l->a), free(l->b), free(l->grad_a), free(l->grad_b), free(l->wide_a), free(l->wide_b), free(l->plain);
}

static double read(flp_dtype dtype, const void *base, int64_t at) {
  float value;
  flp_half_widen(dtype, (const char *)base + at * flp_half_bytes(dtype), 1, &value);
  return (double)value;
}

/* d(loss)/d(an element of A or B) by a central difference over the merged weight. */
static double derivative(lora_case *l, long double *element) {
  const long double step = 1e-4L, value = *element;
  *element = value + step;
  merge(l);
  long double above = long_loss(&l->c.reference);
  *element = value - step;
  merge(l);
  long double below = long_loss(&l->c.reference);
  *element = value;
  merge(l);
  return (double)((above - below) / (2 * step));
}

/* Some forty elements of a gradient of the adapter, which cost two merged heads each. */
static void expect_gradient(lora_case *l, const char *name, const void *made, long double *of, int64_t count,
                            double tolerance) {
  flp_dtype dtype = l->c.spec.grad_lora_dtype;
  for (int64_t i = 0; i < count; i += 1 + count / 40)
    cr_assert_float_eq(read(dtype, made, i), derivative(l, &of[i]), tolerance, "%s[%ld]: %g, not %g", name, (long)i,
                       read(dtype, made, i), derivative(l, &of[i]));
}

static void expect_backward(lora_case *l, double tolerance) {
  const flp_spec *spec = &l->c.spec;
  eager_case_check_backward(&l->c, tolerance);
  if (spec->grads & FLP_GRAD_LORA_A)
    expect_gradient(l, "grad_lora_a", l->grad_a, l->wide_a, l->rank * spec->hidden, tolerance);
  if (spec->grads & FLP_GRAD_LORA_B)
    expect_gradient(l, "grad_lora_b", l->grad_b, l->wide_b, spec->vocab * l->rank, tolerance);
}

enum { ALL = FLP_GRAD_HIDDEN | FLP_GRAD_LORA_A | FLP_GRAD_LORA_B };

Test(eager_lora, fp32_matches_the_merged_head_in_long_double) {
  const int64_t shapes[][4] = {{1, 2, 8, 8}, {5, 37, 16, 8}, {3, 140, 24, 136}};
  for (int s = 0; s < 3; s++) {
    flp_spec spec = make_spec(FLP_DTYPE_FP32, shapes[s][1], shapes[s][2], (int)shapes[s][3], ALL);
    spec.entropy = FLP_ENTROPY_BACKWARD;
    if (s == 1) spec.has_bias = 1, spec.grads |= FLP_GRAD_BIAS;
    if (s == 2) spec.softcap = 5;
    lora_case l;
    create(&l, &spec, shapes[s][0], s ? -0.75f : 2.0f, 1 + (uint32_t)s);
    eager_case_forward(&l.c);
    eager_case_check_forward(&l.c, 2e-5);
    eager_case_backward(&l.c);
    expect_backward(&l, 1e-4);
    destroy(&l);
  }
}

Test(eager_lora, sixteen_bits_match_but_for_the_rounding_of_u) {
  const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16};
  for (int d = 0; d < 2; d++) {
    flp_spec spec = make_spec(dtypes[d], 90, 32, 16, ALL);
    spec.grad_hidden_dtype = spec.grad_lora_dtype = d ? FLP_DTYPE_FP32 : (flp_dtype)0;
    lora_case l;
    create(&l, &spec, 7, 0.5f, 9);
    double unit = d ? 0x1p-10 : 0x1p-7;
    eager_case_forward(&l.c);
    eager_case_check_forward(&l.c, 8 * unit);
    eager_case_backward(&l.c);
    expect_backward(&l, 16 * unit);
    destroy(&l);
  }
}

/* Gradients of each mask alone have the bits that they have with all others, in a budget that sweeps rows and columns
 * apart too. */
Test(eager_lora, each_gradient_has_the_same_bits_whatever_stands_beside_it) {
  const uint32_t masks[] = {ALL, FLP_GRAD_LORA_A, FLP_GRAD_LORA_B, FLP_GRAD_HIDDEN, FLP_GRAD_HIDDEN | FLP_GRAD_LORA_A};
  lora_case all;
  for (int m = 0; m < 6; m++) {
    flp_spec spec = make_spec(FLP_DTYPE_BF16, 300, 40, 24, masks[m % 5]);
    lora_case l;
    create(&l, &spec, 150, 1.5f, 4);
    if (m == 5) {
      flp_layout least, layout;
      cr_assert_eq(flp_eager_layout(&l.c.spec, FLP_PASS_BACKWARD, 150, UINT64_MAX, 1, &least), FLP_OK);
      l.c.threads = 1;
      l.c.budget = least.smallest_bytes;
      cr_assert_eq(flp_eager_layout(&l.c.spec, FLP_PASS_BACKWARD, 150, l.c.budget, 1, &layout), FLP_OK);
      cr_assert_eq(layout.mode, FLP_MODE_RECOMPUTE_SPLIT);
    }
    flp_args forward = l.c.args;
    forward.pass = FLP_PASS_FORWARD, forward.logprob = l.c.logprob, forward.stats = l.c.stats;
    uint64_t budget = l.c.budget;
    l.c.budget = 1 << 28;
    cr_assert_eq(eager_case_run(&l.c, &forward), FLP_OK, "%s", flp_error_detail());
    l.c.budget = budget ? budget : 1 << 28;
    eager_case_backward(&l.c);
    if (m == 0) {
      all = l;
      continue;
    }
    if (masks[m % 5] & FLP_GRAD_LORA_A) cr_expect_arr_eq(l.grad_a, all.grad_a, (size_t)(24 * 40 * 2), "mask %d", m);
    if (masks[m % 5] & FLP_GRAD_LORA_B) cr_expect_arr_eq(l.grad_b, all.grad_b, (size_t)(300 * 24 * 2), "mask %d", m);
    for (int64_t i = 0; (masks[m % 5] & FLP_GRAD_HIDDEN) && i < 150 * 40; i++)
      cr_assert_eq(eager_case_grad_hidden(&l.c, i / 40, i % 40), eager_case_grad_hidden(&all.c, i / 40, i % 40));
    destroy(&l);
  }
  destroy(&all);
}

/* Where B is 0, or s, every bit is that of a head without an adapter; the gradient of B is not 0 for B = 0. */
Test(eager_lora, nothing_in_b_or_scale_0_gives_the_bits_of_the_plain_pass) {
  for (int d = 0; d < 6; d++) {
    flp_dtype dtype = (flp_dtype)(FLP_DTYPE_BF16 + d % 3);
    flp_spec spec = make_spec(dtype, 700, 600, 64, ALL), plain = make_spec(dtype, 700, 600, 0, FLP_GRAD_HIDDEN);
    lora_case l;
    eager_case p;
    create(&l, &spec, 70, d < 3 ? 2.0f : 0.0f, 3);
    eager_case_create(&p, &plain, 70, 3);
    if (d < 3) memset(l.b, 0, 700 * 64 * (size_t)flp_half_bytes(dtype));
    eager_case_forward(&l.c);
    eager_case_forward(&p);
    cr_expect_arr_eq(l.c.logprob, p.logprob, 70 * sizeof(float));
    cr_expect_arr_eq(l.c.stats, p.stats, 70 * 4 * sizeof(float));
    eager_case_backward(&l.c);
    eager_case_backward(&p);
    for (int64_t i = 0; i < 70 * 600; i++)
      cr_assert_eq(eager_case_grad_hidden(&l.c, i / 600, i % 600), eager_case_grad_hidden(&p, i / 600, i % 600));
    double a = 0, b = 0;
    for (int64_t i = 0; i < 64 * 600; i++) a += fabs(read(dtype, l.grad_a, i));
    for (int64_t i = 0; i < 64 * 700; i++) b += fabs(read(dtype, l.grad_b, i));
    cr_expect_eq(a, 0);
    cr_expect(d < 3 ? b > 1 : b == 0, "%g", b);
    destroy(&l);
    eager_case_destroy(&p);
  }
}

/* Rows that are left out add nothing; padding rows of B and calls without rows give zeros. */
Test(eager_lora, rows_left_out_and_padding_add_nothing) {
  flp_spec spec = make_spec(FLP_DTYPE_FP32, 20, 8, 8, ALL);
  lora_case l;
  create(&l, &spec, 4, 1.0f, 5);
  eager_case_set_target(&l.c, 1, -100);
  l.c.args.vocab_valid = 17, l.c.args.vocab_total = 17;
  for (int row = 0; row < 4; row++)
    if (row != 1) eager_case_set_target(&l.c, row, row);
  l.c.reference.vocab = 17;
  eager_case_forward(&l.c);
  eager_case_backward(&l.c);
  expect_gradient(&l, "grad_lora_a", l.grad_a, l.wide_a, 64, 1e-4);
  expect_gradient(&l, "grad_lora_b", l.grad_b, l.wide_b, 17 * 8, 1e-4);
  for (int i = 17 * 8; i < 20 * 8; i++) cr_expect_eq(((float *)l.grad_b)[i], 0);
  flp_args args = l.c.args;
  memset(l.grad_a, 0x7f, 64 * 4), memset(l.grad_b, 0x7f, 160 * 4);
  args.pass = FLP_PASS_BACKWARD, args.n = 0, args.stats = l.c.stats, args.grad_hidden = l.c.grad_hidden;
  cr_assert_eq(eager_case_run(&l.c, &args), FLP_OK, "%s", flp_error_detail());
  for (int i = 0; i < 64; i++) cr_expect_eq(((float *)l.grad_a)[i], 0);
  for (int i = 0; i < 160; i++) cr_expect_eq(((float *)l.grad_b)[i], 0);
  destroy(&l);
}
