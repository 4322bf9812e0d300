/* half.h: conversions between the 16-bit floats, bf16 and fp16, and fp32.
 *
 * Widening is exact, subnormals included, whatever flush mode the host's floating-point unit is in. Narrowing rounds
 * to nearest, ties to even; what is too large becomes an infinity, a NaN stays a (quiet) NaN of the same sign. */
#ifndef FLP_HALF_H
#define FLP_HALF_H

#include "runtime/flp.h"

float flp_half_from_bf16(uint16_t bits);
float flp_half_from_fp16(uint16_t bits);
uint16_t flp_half_to_bf16(float value);
uint16_t flp_half_to_fp16(float value);

/* Widens count elements of dtype (BF16, FP16 or FP32) to fp32. */
void flp_half_widen(flp_dtype dtype, const void *source, int64_t count, float *target);

/* Rounds count fp32 values to dtype (BF16, FP16 or FP32). */
void flp_half_narrow(flp_dtype dtype, const float *source, int64_t count, void *target);

/* Bytes of one element of dtype (BF16, FP16 or FP32). */
static inline int64_t flp_half_bytes(flp_dtype dtype) {
  return dtype == FLP_DTYPE_FP32 ? 4 : 2;
}

#endif
