/* fuzz_losslua.c: any bytes as a loss file: refused with a reason that fits its buffer, or traced to a program that is
 * the same when it is traced anew, is read back as written, and is evaluated on rows of every kind.
 *
 * Build: clang -fsanitize=fuzzer,address,undefined, with libflpgen. */
#include <stdint.h>
#include <string.h>

#include "gen/gen.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void evaluate(const flp_loss *loss) {
  static const double logprobs[] = {0, -1e-7, -0.5, -12, -30, -1e4};
  double inputs[FLP_LOSS_ALL_INPUTS], parameters[FLP_LOSS_PARAMETERS_MAX];
  for (uint32_t i = 0; i < loss->parameter_count; i++) parameters[i] = loss->parameters[i].fallback;
  for (int i = 0; i < 36; i++) {
    flp_loss_row row;
    for (int j = 0; j < FLP_LOSS_INPUTS_MAX; j++) inputs[j] = i % 5 - 2;
    inputs[FLP_LOSS_LOGPROB] = logprobs[i % 6];
    inputs[FLP_LOSS_OLD_LOGPROB] = logprobs[i / 6];
    if (!flp_loss_is_over_targets(loss)) {
      flp_loss_evaluate_row(loss, inputs, parameters, &row);
      continue;
    }
    const float values[] = {(float)logprobs[i % 6], (float)logprobs[i / 6]};
    const flp_loss_targets targets = {.count = 2, .logprob = values, .teacher_logprob = values};
    flp_loss_plan plan;
    float grad[2];
    flp_loss_plan_of(loss, &plan);
    flp_loss_evaluate_targets(loss, &plan, &targets, inputs, parameters, &row, grad);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  static flpgen_loss loss, same;
  static flp_loss read;
  char error[256] = "";
  flp_status status = flpgen_loss_trace("f.lua", (const char *)bytes, length, &loss, error, sizeof error);
  if (status != FLP_OK) {
    if (status != FLP_ERROR_COMPILE || !error[0] || !memchr(error, 0, sizeof error)) __builtin_trap();
    return 0;
  }
  uint8_t out[FLP_LOSS_BYTES_MAX], again[FLP_LOSS_BYTES_MAX];
  size_t written = flp_loss_write(&loss.program, out, sizeof out);
  if (!written || flp_loss_read(out, written, &read) != FLP_OK) __builtin_trap();
  if (flpgen_loss_trace("f.lua", (const char *)bytes, length, &same, error, sizeof error) != FLP_OK) __builtin_trap();
  if (flp_loss_write(&same.program, again, sizeof again) != written || memcmp(out, again, written)) __builtin_trap();
  evaluate(&read);
  return 0;
}
