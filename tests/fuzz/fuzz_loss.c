/* fuzz_loss.c: any bytes as a loss program: refused with a reason, or read, written back as the same bytes, evaluated,
 * and added to itself.
 *
 * tests/unit/store/test_mutation.c runs the same function over mutations of samples. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "runtime/loss/loss.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  flp_loss loss, sum;
  flp_status status = flp_loss_read(bytes, length, &loss);
  if (status != FLP_OK) {
    if (status != FLP_ERROR_CORRUPT || !*flp_error_detail()) __builtin_trap();
    return 0;
  }
  uint8_t again[FLP_LOSS_BYTES_MAX];
  if (flp_loss_write(&loss, again, sizeof again) != length || memcmp(again, bytes, length) != 0) __builtin_trap();
  double inputs[FLP_LOSS_ALL_INPUTS] = {-1, 2, -1.5, -0.5, 1, 0.5}, parameters[FLP_LOSS_PARAMETERS_MAX];
  flp_loss_row row;
  for (uint32_t i = 0; i < loss.parameter_count; i++) parameters[i] = loss.parameters[i].fallback;
  if (flp_loss_is_over_targets(&loss)) {
    static const float logprob[] = {-1, -2.5f, 0}, teacher[] = {-1.5f, -2, -40};
    const flp_loss_targets targets = {.count = 3, .logprob = logprob, .teacher_logprob = teacher};
    float grad[3];
    flp_loss_plan plan;
    flp_loss_plan_of(&loss, &plan);
    flp_loss_evaluate_targets(&loss, &plan, &targets, inputs, parameters, &row, grad);
  } else {
    flp_loss_evaluate_row(&loss, inputs, parameters, &row);
  }
  sum = loss;
  status = flp_loss_add(&sum, &loss);
  if (status != FLP_OK && (status != FLP_ERROR_ARGUMENT || !*flp_error_detail())) __builtin_trap();
  return 0;
}
