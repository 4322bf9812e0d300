/* half.c: conversions between the 16-bit floats, bf16 and fp16, and fp32.
 *
 * Written on bit patterns without branches where it matters, so that the loops over rows become vector code. */
#include "runtime/base/half.h"

#include <string.h>

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float value_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline float widen_bf16(uint16_t bits) {
  return value_of((uint32_t)bits << 16);
}

/* A subnormal m·2^-24 is built as (2^-14 + m·2^-24) - 2^-14, which never passes through an fp32 subnormal and so
 * survives a host that flushes them. */
static inline float widen_fp16(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
  uint32_t magnitude = (uint32_t)(bits & 0x7fffu) << 13;
  uint32_t exponent = magnitude & 0x0f800000u;
  uint32_t normal = magnitude + (112u << 23); /* 127 - 15 */
  uint32_t special = magnitude | 0x7f800000u;
  uint32_t tiny = bits_of(value_of((113u << 23) + magnitude) - value_of(113u << 23));
  uint32_t result = exponent == 0x0f800000u ? special : normal;
  return value_of((exponent == 0 ? tiny : result) | sign);
}

static inline uint16_t narrow_bf16(float value) {
  uint32_t bits = bits_of(value);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  uint32_t quiet = (bits >> 16) | 0x40u;
  return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/* Rounds the bits of a magnitude under 2^-14 to a multiple of 2^-24, by integers. */
static uint32_t narrow_fp16_tiny(uint32_t magnitude) {
  uint32_t exponent = magnitude >> 23;
  if (exponent < 102) return 0; /* under 2^-25, the tie that goes to zero */
  uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  uint32_t shift = 126u - exponent; /* 2^(exponent-150) in units of 2^-24 */
  uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u), half = 1u << (shift - 1u);
  return kept + (rest > half || (rest == half && (kept & 1u)) ? 1u : 0u);
}

static inline uint16_t narrow_fp16(float value) {
  uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520, halfway past the largest, and up */
  if (magnitude < 0x38800000u) return (uint16_t)(sign | narrow_fp16_tiny(magnitude));
  uint32_t shifted = magnitude - (112u << 23);
  return (uint16_t)(sign | ((shifted + 0xfffu + ((shifted >> 13) & 1u)) >> 13));
}

float flp_half_from_bf16(uint16_t bits) {
  return widen_bf16(bits);
}

float flp_half_from_fp16(uint16_t bits) {
  return widen_fp16(bits);
}

uint16_t flp_half_to_bf16(float value) {
  return narrow_bf16(value);
}

uint16_t flp_half_to_fp16(float value) {
  return narrow_fp16(value);
}

void flp_half_widen(flp_dtype dtype, const void *source, int64_t count, float *target) {
  const uint16_t *bits = source;
  if (dtype == FLP_DTYPE_FP32)
    memcpy(target, source, (size_t)count * sizeof *target);
  else if (dtype == FLP_DTYPE_BF16)
    for (int64_t i = 0; i < count; i++) target[i] = widen_bf16(bits[i]);
  else
    for (int64_t i = 0; i < count; i++) target[i] = widen_fp16(bits[i]);
}

void flp_half_narrow(flp_dtype dtype, const float *source, int64_t count, void *target) {
  uint16_t *bits = target;
  if (dtype == FLP_DTYPE_FP32)
    memcpy(target, source, (size_t)count * sizeof *source);
  else if (dtype == FLP_DTYPE_BF16)
    for (int64_t i = 0; i < count; i++) bits[i] = narrow_bf16(source[i]);
  else
    for (int64_t i = 0; i < count; i++) bits[i] = narrow_fp16(source[i]);
}
