/* random.h: random numbers of tests. */
#ifndef FLP_TEST_RANDOM_H
#define FLP_TEST_RANDOM_H

#include <stdint.h>

/* Uniform in (-1, 1); the same sequence everywhere. */
static inline double test_random(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return (double)(*state >> 8) * 0x1p-23 - 1.0 + 0x1p-24;
}

#endif
