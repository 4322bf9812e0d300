/* scale.c: the eager rung of flp_scale: a block of a row at a time, as the kernel has it. */
#include "runtime/eager/scale.h"

#include "runtime/base/half.h"
#include "runtime/base/util.h"

enum { BLOCK = 1024 };

static void scale_row(flp_dtype dtype, char *row, int64_t columns, float factor) {
  float wide[BLOCK];
  for (int64_t at = 0; at < columns; at += BLOCK) {
    int64_t count = flp_min(BLOCK, columns - at);
    char *block = row + at * flp_half_bytes(dtype);
    flp_half_widen(dtype, block, count, wide);
    for (int64_t i = 0; i < count; i++) wide[i] *= factor;
    flp_half_narrow(dtype, wide, count, block);
  }
}

void flp_eager_scale(const flp_spec *spec, const flp_scale_args *args) {
  if (args->n == 0 || *args->factor == 1) return;
  for (int64_t i = 0; i < args->n; i++)
    scale_row(spec->dtype, (char *)args->values + i * args->values_stride * flp_half_bytes(spec->dtype), spec->vocab,
              *args->factor);
}
