/* fill.c: gradients that no sum reaches: inactive rows, columns of padding. */
#include <string.h>

#include "runtime/base/half.h"
#include "runtime/eager/core.h"

static void fill_hidden(const flp_spec *spec, const flp_args *args, const uint8_t *row_class) {
  int64_t bytes = flp_half_bytes(spec->grad_hidden_dtype);
  for (int64_t row = 0; row < args->n; row++) {
    char *out = (char *)args->grad_hidden + row * args->grad_hidden_stride * bytes;
    if (row_class[row] == FLP_ROW_LEFT_OUT) memset(out, 0, (size_t)(spec->hidden * bytes));
    float bad = NAN;
    for (int64_t d = 0; row_class[row] == FLP_ROW_BAD && d < spec->hidden; d++)
      flp_half_narrow(spec->grad_hidden_dtype, &bad, 1, out + d * bytes);
  }
}

/* Padding has no gradient; with no active row, neither has any column. */
static void fill_weight(const flp_spec *spec, const flp_args *args, int64_t first) {
  int64_t bytes = flp_half_bytes(spec->grad_weight_dtype);
  if (spec->accumulate_grad_weight) return;
  for (int64_t column = first; column < spec->vocab; column++)
    memset((char *)args->grad_weight + column * args->grad_weight_stride * bytes, 0, (size_t)(spec->hidden * bytes));
}

void eager_backward_fill(const flp_spec *spec, const flp_args *args, const uint8_t *row_class) {
  int64_t first = args->n > 0 ? args->vocab_valid : 0;
  if (spec->grads & FLP_GRAD_HIDDEN) fill_hidden(spec, args, row_class);
  if (spec->grads & FLP_GRAD_WEIGHT) fill_weight(spec, args, first);
  eager_lora_fill(spec, args, first);
  if (spec->grads & FLP_GRAD_BIAS)
    memset((char *)args->grad_bias + first * flp_half_bytes(spec->grad_bias_dtype), 0,
           (size_t)((spec->vocab - first) * flp_half_bytes(spec->grad_bias_dtype)));
}
