/* long_oracle.c: the operation of flp.h in long double; see the header. */
#include "tests/unit/support/long_oracle.h"

#include <math.h>
#include <stdlib.h>

static long double *zeros(int count) {
  return calloc((size_t)count + 1, sizeof(long double));
}

void long_problem_create(long_problem *problem, int n, int vocab, int depth) {
  *problem = (long_problem){.n = n, .vocab = vocab, .depth = depth, .scale = 1};
  problem->hidden = zeros(n * depth);
  problem->weight = zeros(vocab * depth);
  problem->bias = zeros(vocab);
  problem->target = calloc((size_t)n + 1, sizeof(int));
  problem->temperature = zeros(n);
  problem->grad_logprob = zeros(n);
  problem->grad_entropy = zeros(n);
  for (int i = 0; i < n; i++) problem->temperature[i] = 1;
}

void long_problem_destroy(long_problem *problem) {
  free(problem->hidden);
  free(problem->weight);
  free(problem->bias);
  free(problem->target);
  free(problem->temperature);
  free(problem->grad_logprob);
  free(problem->grad_entropy);
  free(problem->listed);
}

long double long_raw_score(const long_problem *problem, int row, int column) {
  long double sum = problem->bias[column];
  for (int d = 0; d < problem->depth; d++)
    sum += problem->hidden[row * problem->depth + d] * problem->weight[column * problem->depth + d];
  return sum;
}

long double long_score(const long_problem *problem, int row, int column) {
  long double z = problem->scale * long_raw_score(problem, row, column);
  if (problem->softcap > 0) z = problem->softcap * tanhl(z / problem->softcap);
  return z / problem->temperature[row];
}

static int counts(const long_problem *problem, int row, int column) {
  return !problem->listed || problem->listed[row * problem->vocab + column];
}

void long_forward(const long_problem *problem, int row, long double *logprob, long double *entropy) {
  long double maximum = -INFINITY, sum = 0, weighted = 0;
  for (int v = 0; v < problem->vocab; v++)
    if (counts(problem, row, v)) maximum = fmaxl(maximum, long_score(problem, row, v));
  for (int v = 0; v < problem->vocab; v++) {
    if (!counts(problem, row, v)) continue;
    long double u = long_score(problem, row, v) - maximum;
    if (u == -INFINITY) continue;
    sum += expl(u);
    weighted += expl(u) * u;
  }
  *logprob = (long_score(problem, row, problem->target[row]) - maximum) - logl(sum);
  *entropy = logl(sum) - weighted / sum;
}

long double long_row_loss(const long_problem *problem, int row) {
  long double logprob, entropy;
  if (problem->target[row] < 0) return 0;
  long_forward(problem, row, &logprob, &entropy);
  return problem->grad_logprob[row] * logprob + problem->grad_entropy[row] * entropy;
}

long double long_loss(const long_problem *problem) {
  long double loss = 0;
  for (int row = 0; row < problem->n; row++) loss += long_row_loss(problem, row);
  return loss;
}

/* Step 1e-5: the cubic error is near 1e-10 and rounding near 1e-14 of the loss. */
long double long_derivative(long_problem *problem, long double *parameter) {
  const long double step = 1e-5L, value = *parameter;
  *parameter = value + step;
  long double above = long_loss(problem);
  *parameter = value - step;
  long double below = long_loss(problem);
  *parameter = value;
  return (above - below) / (2 * step);
}
