/* panel.c: operands widened to fp32 and padded to whole tiles, so that every product has one shape. */
#include <string.h>

#include "runtime/base/half.h"
#include "runtime/base/operands.h"
#include "runtime/base/util.h"
#include "runtime/eager/core.h"

void eager_rows_carve(eager_block *block, int64_t n, eager_rows *out) {
  out->row_class = eager_block_take(block, (uint64_t)n, sizeof *out->row_class);
  out->index = eager_block_take(block, (uint64_t)n, sizeof *out->index);
  out->count = 0;
}

static const char *row_at(const void *base, int64_t row, int64_t stride, flp_dtype dtype) {
  return (const char *)base + row * stride * flp_half_bytes(dtype);
}

static void zero_rows(float *rows, int64_t count, int64_t depth) {
  if (count > 0) memset(rows, 0, (size_t)count * (size_t)depth * sizeof *rows);
}

/* Elements of an operand as products take them: of another dtype than spec.dtype, the sum of its terms, which is exact. */
static void widen(const flp_spec *spec, flp_dtype stored, const void *source, int64_t count, float *out) {
  enum { AT_ONCE = 256 };
  flp_half_widen(stored, source, count, out);
  if (stored == spec->dtype) return;
  for (int64_t begin = 0; begin < count; begin += AT_ONCE) {
    int64_t some = flp_min(count - begin, AT_ONCE);
    uint16_t bits[AT_ONCE];
    float first[AT_ONCE], rest[AT_ONCE], *x = out + begin;
    flp_half_narrow(spec->dtype, x, some, bits);
    flp_half_widen(spec->dtype, bits, some, first);
    for (int64_t i = 0; i < some; i++) rest[i] = x[i] - first[i];
    memcpy(x, first, (size_t)some * sizeof *x);
    if (flp_operand_terms(spec) == 1) continue;
    flp_half_narrow(spec->dtype, rest, some, bits);
    flp_half_widen(spec->dtype, bits, some, rest);
    for (int64_t i = 0; i < some; i++) x[i] = first[i] + rest[i];
  }
}

void eager_widen_hidden(const flp_spec *spec, const flp_args *args, const eager_rows *rows, int64_t first,
                        int64_t count, float *out) {
  for (int64_t i = 0; i < count; i++) {
    const char *source = row_at(args->hidden, rows->index[first + i], args->hidden_stride, spec->hidden_dtype);
    widen(spec, spec->hidden_dtype, source, spec->hidden, out + i * spec->hidden);
  }
  zero_rows(out + count * spec->hidden, EAGER_TILE_ROWS - count, spec->hidden);
}

void eager_widen_part(const flp_spec *spec, flp_dtype stored, const void *operand, int64_t at, int64_t count,
                      float *out) {
  widen(spec, stored, row_at(operand, at, 1, stored), count, out);
}

void eager_widen_weight(const flp_spec *spec, const flp_args *args, int64_t first, float *out, float *bias) {
  int64_t count = flp_min(args->vocab_valid - first, EAGER_TILE_COLUMNS);
  for (int64_t i = 0; i < count; i++) {
    const char *source = row_at(args->weight, first + i, args->weight_stride, spec->weight_dtype);
    widen(spec, spec->weight_dtype, source, spec->hidden, out + i * spec->hidden);
  }
  zero_rows(out + count * spec->hidden, EAGER_TILE_COLUMNS - count, spec->hidden);
  memset(bias, 0, EAGER_TILE_COLUMNS * sizeof *bias);
  if (spec->has_bias) widen(spec, spec->bias_dtype, row_at(args->bias, first, 1, spec->bias_dtype), count, bias);
}

enum { LANES = 8 }; /* D is a multiple of it */

/* Products of two fp32 numbers are exact in double. */
double eager_dot(const float *a, const float *b, int64_t count) {
  double sums[LANES] = {0};
  for (int64_t d = 0; d < count; d += LANES)
    for (int j = 0; j < LANES; j++) sums[j] += (double)a[d + j] * (double)b[d + j];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}
