/* draw.h: random draws of the drivers. Every try has a state of its own, from seed and number, so that it can be
 * repeated alone. */
#ifndef FLP_TEST_DRAW_H
#define FLP_TEST_DRAW_H

#include <stdint.h>

typedef struct draw {
  uint64_t state;
} draw;

/* splitmix64. */
static inline uint64_t draw_bits(draw *d) {
  uint64_t x = d->state += UINT64_C(0x9E3779B97F4A7C15);
  x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
  return x ^ (x >> 31);
}

static inline draw draw_start(uint64_t seed, uint64_t number) {
  draw d = {seed * UINT64_C(0xD1342543DE82EF95) + number};
  draw_bits(&d);
  return d;
}

/* 0 to count - 1. */
static inline int draw_below(draw *d, int count) {
  return (int)(draw_bits(d) % (uint64_t)count);
}

/* 1 in `odds` of the draws. */
static inline int draw_one_in(draw *d, int odds) {
  return draw_below(d, odds) == 0;
}

/* -1 to 1. */
static inline double draw_real(draw *d) {
  return (double)(int64_t)(draw_bits(d) >> 11) * 0x1p-52 - 1;
}

#define DRAW_OF(d, ...) ((__VA_ARGS__)[draw_below(d, (int)(sizeof(__VA_ARGS__) / sizeof(__VA_ARGS__)[0]))])

#endif
