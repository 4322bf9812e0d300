/* panel.c: operands widened to fp32 and padded to whole tiles, so that every product has one shape. */
#include <string.h>

#include "runtime/base/half.h"
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

void eager_widen_hidden(const flp_spec *spec, const flp_args *args, const eager_rows *rows, int64_t first,
                        int64_t count, float *out) {
  for (int64_t i = 0; i < count; i++) {
    const char *source = row_at(args->hidden, rows->index[first + i], args->hidden_stride, spec->dtype);
    flp_half_widen(spec->dtype, source, spec->hidden, out + i * spec->hidden);
  }
  zero_rows(out + count * spec->hidden, EAGER_TILE_ROWS - count, spec->hidden);
}

void eager_widen_part(const flp_spec *spec, const void *operand, int64_t at, int64_t count, float *out) {
  flp_half_widen(spec->dtype, row_at(operand, at, 1, spec->dtype), count, out);
}

void eager_widen_weight(const flp_spec *spec, const flp_args *args, int64_t first, float *out, float *bias) {
  int64_t count = flp_min(args->vocab_valid - first, EAGER_TILE_COLUMNS);
  for (int64_t i = 0; i < count; i++) {
    const char *source = row_at(args->weight, first + i, args->weight_stride, spec->dtype);
    flp_half_widen(spec->dtype, source, spec->hidden, out + i * spec->hidden);
  }
  zero_rows(out + count * spec->hidden, EAGER_TILE_COLUMNS - count, spec->hidden);
  memset(bias, 0, EAGER_TILE_COLUMNS * sizeof *bias);
  if (spec->has_bias) flp_half_widen(spec->dtype, row_at(args->bias, first, 1, spec->dtype), count, bias);
}
