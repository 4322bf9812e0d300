/* test_half.c: every 16-bit pattern, and rounding to nearest even against an independent definition. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "runtime/base/half.h"

/* The value of a pattern with `exponent_bits`, from the definition of the format. */
static double define(uint32_t bits, int exponent_bits) {
  int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  uint32_t mantissa = bits & ((1u << mantissa_bits) - 1),
           exponent = (bits >> mantissa_bits) & ((1u << exponent_bits) - 1);
  double sign = bits & 0x8000u ? -1 : 1;
  if (exponent == (1u << exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * ldexp(mantissa + (1u << mantissa_bits), (int)exponent - bias - mantissa_bits);
}

static const struct {
  flp_dtype dtype;
  int exponent_bits;
  float (*from)(uint16_t);
  uint16_t (*to)(float);
} formats[] = {{FLP_DTYPE_BF16, 8, flp_half_from_bf16, flp_half_to_bf16},
               {FLP_DTYPE_FP16, 5, flp_half_from_fp16, flp_half_to_fp16}};

Test(half, every_pattern_widens_exactly_and_comes_back) {
  for (int f = 0; f < 2; f++)
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
      double wanted = define(bits, formats[f].exponent_bits);
      float got = formats[f].from((uint16_t)bits);
      if (isnan(wanted)) {
        cr_assert(isnan(got));
        uint16_t back = formats[f].to(got);
        cr_assert(isnan(formats[f].from(back)) && (back & 0x8000u) == (bits & 0x8000u));
        continue;
      }
      cr_assert_eq((double)got, wanted, "pattern %04x gives %g, not %g", bits, (double)got, wanted);
      cr_assert_eq(!!signbit(got), bits >> 15);
      cr_assert_eq(formats[f].to(got), bits);
    }
}

/* Between neighbours a < b: below the middle goes to a, above it to b, the middle to the even one. */
Test(half, everything_between_two_neighbours_rounds_to_nearest_even) {
  for (int f = 0; f < 2; f++) {
    uint32_t largest = f == 0 ? 0x7f7f : 0x7bff; /* its upper neighbour is the infinity */
    for (uint32_t bits = 0; bits < largest; bits++) {
      float low = formats[f].from((uint16_t)bits), high = formats[f].from((uint16_t)(bits + 1));
      float middle = (float)(((double)low + (double)high) / 2);
      uint32_t even = bits & 1 ? bits + 1 : bits;
      cr_assert_eq(formats[f].to(middle), even, "the middle above %04x", bits);
      cr_assert_eq(formats[f].to(-middle), even | 0x8000u);
      cr_assert_eq(formats[f].to(nextafterf(middle, -INFINITY)), bits);
      cr_assert_eq(formats[f].to(nextafterf(middle, INFINITY)), bits + 1);
    }
  }
}

Test(half, what_is_too_large_becomes_an_infinity) {
  cr_assert_eq(flp_half_to_fp16(65504.0f), 0x7bff);
  cr_assert_eq(flp_half_to_fp16(nextafterf(65520.0f, 0)), 0x7bff);
  cr_assert_eq(flp_half_to_fp16(65520.0f), 0x7c00);
  cr_assert_eq(flp_half_to_fp16(-1e30f), 0xfc00);
  cr_assert_eq(flp_half_to_bf16(0x1.fffffep127f), 0x7f80);
  cr_assert_eq(flp_half_to_bf16(INFINITY), 0x7f80);
  cr_assert_eq(flp_half_to_fp16(-INFINITY), 0xfc00);
}

Test(half, a_nan_whose_payload_would_be_cut_stays_a_nan) {
  uint32_t bits = 0x7f800001u;
  float value;
  memcpy(&value, &bits, sizeof value);
  cr_assert(isnan(flp_half_from_bf16(flp_half_to_bf16(value))));
  cr_assert(isnan(flp_half_from_fp16(flp_half_to_fp16(value))));
}

Test(half, arrays_are_the_scalars_one_by_one) {
  static uint16_t patterns[0x10000], back[0x10000];
  static float wide[0x10000];
  for (uint32_t i = 0; i < 0x10000; i++) patterns[i] = (uint16_t)i;
  for (int f = 0; f < 2; f++) {
    flp_half_widen(formats[f].dtype, patterns, 0x10000, wide);
    flp_half_narrow(formats[f].dtype, wide, 0x10000, back);
    for (uint32_t i = 0; i < 0x10000; i++) {
      float one = formats[f].from((uint16_t)i);
      cr_assert_eq(memcmp(&one, &wide[i], sizeof one), 0, "pattern %04x", i);
      cr_assert_eq(back[i], formats[f].to(wide[i]));
    }
  }
  flp_half_narrow(FLP_DTYPE_FP32, wide, 8, back);
  cr_assert_eq(memcmp(wide, back, 32), 0);
}
