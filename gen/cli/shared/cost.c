/* cost.c: what the operation costs where the scores are materialised. */
#include "gen/cli/shared/cost.h"

#include "runtime/kernel/kernel.h"
#include "runtime/base/operands.h"

cli_naive cli_naive_of(const flp_spec *spec, int64_t n) {
  double scores = 4.0 * (double)n * (double)spec->vocab;
  return (cli_naive){.scores = scores, .forward = 2.0 * scores, .backward = spec->grads ? 3.0 * scores : 0.0};
}

double cli_product_flops(const flp_spec *spec, int64_t n) {
  return 2.0 * (double)n * (double)spec->hidden * (double)spec->vocab;
}

double cli_input_bytes(const flp_spec *spec, int64_t n) {
  double hidden = (double)flp_dtype_bytes(flp_hidden_dtype(spec)), rows = (double)n;
  double weight = (double)flp_dtype_bytes(flp_weight_dtype(spec));
  double bytes = (double)spec->hidden * (hidden * rows + weight * (double)spec->vocab);
  if (spec->has_bias) bytes += (double)flp_dtype_bytes(flp_bias_dtype(spec)) * (double)spec->vocab;
  bytes += (double)flp_dtype_bytes(spec->target_dtype) * rows;
  if (spec->per_row_temperature) bytes += 4.0 * rows;
  if (spec->grads) bytes += 4.0 * rows;
  if (spec->grads && spec->entropy == FLP_ENTROPY_BACKWARD) bytes += 4.0 * rows;
  return bytes;
}

double cli_output_bytes(const flp_spec *spec, int64_t n) {
  double rows = (double)n, bytes = 4.0 * rows;
  if (spec->entropy != FLP_ENTROPY_NONE) bytes += 4.0 * rows;
  if (spec->grads) bytes += 16.0 * rows; /* stats */
  if (spec->grads & FLP_GRAD_HIDDEN)
    bytes += (double)flp_dtype_bytes(spec->grad_hidden_dtype) * rows * (double)spec->hidden;
  if (spec->grads & FLP_GRAD_WEIGHT)
    bytes += (double)flp_dtype_bytes(spec->grad_weight_dtype) * (double)spec->vocab * (double)spec->hidden;
  if (spec->grads & FLP_GRAD_BIAS) bytes += (double)flp_dtype_bytes(spec->grad_bias_dtype) * (double)spec->vocab;
  return bytes;
}
