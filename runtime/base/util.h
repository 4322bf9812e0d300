/* util.h: arithmetic that every folder needs. */
#ifndef FLP_UTIL_H
#define FLP_UTIL_H

#include <stdint.h>

static inline int64_t flp_min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static inline int64_t flp_max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static inline uint64_t flp_max_u64(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

/* ceil(a / b) for a >= 0, b > 0. */
static inline int64_t flp_ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

/* The greatest common divisor of two numbers >= 0 that are not both 0. */
static inline int64_t flp_gcd(int64_t a, int64_t b) {
  while (b) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* The smallest multiple of unit > 0 that is not below value >= 0. */
static inline int64_t flp_round_up(int64_t value, int64_t unit) {
  return flp_ceil_div(value, unit) * unit;
}

static inline uint64_t flp_round_up_u64(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

#endif
