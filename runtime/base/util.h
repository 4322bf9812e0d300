/* util.h: arithmetic that every folder needs. */
#ifndef FLP_UTIL_H
#define FLP_UTIL_H

#include <stdint.h>

/* ceil(a / b) for a >= 0, b > 0. */
static inline int64_t flp_ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

#endif
