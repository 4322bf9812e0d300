/* sgemm.c: the three products of the eager reference in plain C, for machines without OpenBLAS.
 *
 * Invariants: every element of c has one fixed order of summation, which depends on k alone; m is a multiple of 4,
 * n and, for scores, k multiples of 8 (tiles and D are). Built twice on x86-64, the second time with AVX2 and FMA;
 * one machine always takes the same build. */
#include "runtime/eager/core.h"

typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

/* 4 x 2 elements of scores: eight partial sums each, added up in a fixed order. */
INLINE void multiply_scores_block(const eager_matrices *x, int i, int j) {
  lanes sums[4][2] = {{{0}}};
  for (int k = 0; k < x->k; k += 8) {
    lanes b0 = *(const lanes *)(x->b + j * x->b_stride + k), b1 = *(const lanes *)(x->b + (j + 1) * x->b_stride + k);
    for (int r = 0; r < 4; r++) {
      lanes a = *(const lanes *)(x->a + (i + r) * x->a_stride + k);
      sums[r][0] += a * b0;
      sums[r][1] += a * b1;
    }
  }
  for (int r = 0; r < 4; r++)
    for (int s = 0; s < 2; s++) {
      lanes v = sums[r][s];
      x->c[(i + r) * x->c_stride + j + s] = ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
    }
}

INLINE void multiply_scores(const eager_matrices *x) {
  for (int j = 0; j < x->n; j += 2)
    for (int i = 0; i < x->m; i += 4) multiply_scores_block(x, i, j);
}

/* 4 x 16 (or 4 x 8) elements of a gradient; a(i,k) lies at a[i·a_row + k·a_column]. */
INLINE void add_block(const eager_matrices *x, int64_t a_row, int64_t a_column, int i, int j, int width) {
  lanes sums[4][2] = {{{0}}};
  for (int k = 0; k < x->k; k++) {
    const float *a = x->a + i * a_row + k * a_column, *b = x->b + k * x->b_stride + j;
    for (int r = 0; r < 4; r++)
      for (int s = 0; s < width; s++) sums[r][s] += a[r * a_row] * *(const lanes *)(b + 8 * s);
  }
  for (int r = 0; r < 4; r++)
    for (int s = 0; s < width; s++) *(lanes *)(x->c + (i + r) * x->c_stride + j + 8 * s) += sums[r][s];
}

INLINE void add_product(const eager_matrices *x, int64_t a_row, int64_t a_column) {
  for (int i = 0; i < x->m; i += 4) {
    int j = 0;
    for (; j + 16 <= x->n; j += 16) add_block(x, a_row, a_column, i, j, 2);
    if (j < x->n) add_block(x, a_row, a_column, i, j, 1);
  }
}

INLINE void multiply(eager_product product, const eager_matrices *x) {
  if (product == EAGER_SCORES)
    multiply_scores(x);
  else if (product == EAGER_GRAD_HIDDEN)
    add_product(x, x->a_stride, 1);
  else
    add_product(x, 1, x->a_stride);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void multiply_avx2(eager_product product, const eager_matrices *x) {
  multiply(product, x);
}
#endif

static void multiply_baseline(eager_product product, const eager_matrices *x) {
  multiply(product, x);
}

void eager_multiply_plain(eager_product product, const eager_matrices *x) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    multiply_avx2(product, x);
    return;
  }
#endif
  multiply_baseline(product, x);
}
