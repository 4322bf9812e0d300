/* eight.h: sums of products of fp32 numbers, eight at a time: two vectors of four, which every machine has registers
 * for (without AVX, compilers keep wider ones in memory).
 *
 * Invariant: element i of a sum is added to number i % 8 of eight partial sums, in rising order, on every machine. */
#ifndef FLPGEN_CLI_BENCH_EIGHT_H
#define FLPGEN_CLI_BENCH_EIGHT_H

#include <stdint.h>

typedef float eight_half __attribute__((vector_size(16), aligned(4), may_alias));

typedef struct eight {
  eight_half low, high;
} eight;

static inline eight eight_load(const float *at) {
  return (eight){*(const eight_half *)at, *(const eight_half *)(at + 4)};
}

static inline void eight_store(float *at, eight value) {
  *(eight_half *)at = value.low;
  *(eight_half *)(at + 4) = value.high;
}

/* sum + a * b */
static inline eight eight_add(eight sum, eight a, eight b) {
  return (eight){sum.low + a.low * b.low, sum.high + a.high * b.high};
}

/* sum + factor * a */
static inline eight eight_add_scaled(eight sum, float factor, eight a) {
  return (eight){sum.low + factor * a.low, sum.high + factor * a.high};
}

static inline double eight_sum(eight value) {
  double sum = 0;
  for (int i = 0; i < 4; i++) sum += (double)value.low[i] + (double)value.high[i];
  return sum;
}

/* count: a multiple of 8 */
static inline double eight_dot(const float *a, const float *b, int64_t count) {
  eight sum = {{0}, {0}};
  for (int64_t i = 0; i < count; i += 8) sum = eight_add(sum, eight_load(a + i), eight_load(b + i));
  return eight_sum(sum);
}

#endif
