/* boundary.c: rows at the limits of what training produces, for the check of a loss: every combination of a few values
 * of each input that the loss reads. Vectors take theirs together. */
#include <math.h>

#include "gen/cli/loss/loss.h"

enum { VALUES_MAX = 6, VECTORS = FLP_LOSS_FIRST_VECTOR, LSE, MEAN_SCORE, AXES };

/* Differences of the logprobs are about 0, 1e-7, 10, 20 (what trainers clamp to), 30, 70, 80 (beside an advantage of
 * 1e4 the end of float32), 100 and 1e4. */
static const struct {
  int count;
  double values[VALUES_MAX];
} axes[AXES] = {
    [FLP_LOSS_LOGPROB] = {6, {0, -1e-7, -20, -30, -100, -1e4}},
    [FLP_LOSS_ENTROPY] = {2, {0, 12}}, /* log V, V = 160 thousand */
    [FLP_LOSS_OLD_LOGPROB] = {6, {0, -1e-7, -20, -30, -100, -1e4}},
    [FLP_LOSS_REF_LOGPROB] = {6, {0, -1e-7, -20, -30, -100, -1e4}},
    [FLP_LOSS_ADVANTAGE] = {5, {1, 0, -1, 1e4, -1e4}},
    [FLP_LOSS_WEIGHT] = {2, {1, 0}},
    [VECTORS] = {4, {1, 0, 64, -64}}, /* of any scale; exp of it is a number */
    [LSE] = {4, {12, 0, -100, 1e4}},
    [MEAN_SCORE] = {4, {0, -30, 100, -1e4}},
};

static int is_read(uint32_t inputs, int axis) {
  if (axis == LSE) return inputs >> FLP_LOSS_LSE & 1;
  if (axis == MEAN_SCORE) return inputs >> FLP_LOSS_MEAN_SCORE & 1;
  return (axis == VECTORS ? (inputs & ((1u << FLP_LOSS_INPUTS_MAX) - 1)) >> VECTORS : inputs >> axis & 1) != 0;
}

int cli_loss_boundary_rows(const flp_loss *loss) {
  uint32_t inputs = flp_loss_inputs(loss);
  int rows = 1;
  for (int axis = 0; axis < AXES; axis++) rows *= is_read(inputs, axis) ? axes[axis].count : 1;
  return rows;
}

void cli_loss_boundary_draw(const flp_loss *loss, int i, double inputs[FLP_LOSS_ALL_INPUTS]) {
  uint32_t read = flp_loss_inputs(loss);
  double values[AXES];
  for (int axis = 0; axis < AXES; axis++) {
    int count = is_read(read, axis) ? axes[axis].count : 1;
    values[axis] = (double)(float)axes[axis].values[i % count];
    i /= count;
  }
  for (int j = 0; j < FLP_LOSS_INPUTS_MAX; j++) inputs[j] = values[j < VECTORS ? j : VECTORS];
  inputs[FLP_LOSS_LSE] = values[LSE];
  inputs[FLP_LOSS_MEAN_SCORE] = values[MEAN_SCORE];
}

double cli_loss_difference(const flp_loss *loss, const double inputs[FLP_LOSS_ALL_INPUTS]) {
  static const int logprobs[] = {FLP_LOSS_LOGPROB, FLP_LOSS_OLD_LOGPROB, FLP_LOSS_REF_LOGPROB};
  uint32_t read = flp_loss_inputs(loss);
  double low = INFINITY, high = -INFINITY;
  for (int i = 0; i < 3; i++) {
    if (!(read >> logprobs[i] & 1)) continue;
    low = fmin(low, inputs[logprobs[i]]);
    high = fmax(high, inputs[logprobs[i]]);
  }
  return high > low ? high - low : 0;
}
