/* number.h: numbers as kernels get them, in fp32. Where a number decides what is computed, only 0 and normal numbers
 * are accepted: below those a GPU may flush to 0, and 0 often means "none". */
#ifndef FLP_NUMBER_H
#define FLP_NUMBER_H

#include <math.h>

/* Magnitudes of normal numbers, for messages. */
#define FLP_NUMBER_RANGE "1.18e-38 to 3.4e38"

/* 1 if fp32 holds a number as a normal number, or it is 0 itself. */
static inline int flp_number_fits(double value) {
  float held = (float)value;
  return isnormal(held) || fpclassify(value) == FP_ZERO;
}

/* 1 if it holds a number above 0. */
static inline int flp_number_is_positive(double value) {
  return value > 0 && flp_number_fits(value);
}

/* 1 if kernels can use the temperature of a row. factor: what is divided by it, the softcap or the scale */
static inline int flp_number_is_temperature(float temperature, double factor) {
  float unit = (float)(factor * M_LOG2E);
  return flp_number_is_positive((double)temperature) && (fpclassify(unit) == FP_ZERO || isnormal(unit / temperature));
}

#endif
