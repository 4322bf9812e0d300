/* long_oracle.c: the operation of flp.h in long double; see the header. */
#include "tests/unit/support/long_oracle.h"

#include <math.h>
#include <stdlib.h>

enum { RANK_MAX = 512 };

static long double *zeros(int count) {
  return calloc((size_t)count + 1, sizeof(long double));
}

void long_problem_create(long_problem *problem, int n, int vocab, int depth, int targets, int rank) {
  *problem = (long_problem){
      .n = n, .vocab = vocab, .depth = depth, .targets = targets, .rank = rank, .scale = 1, .lora_scale = 1};
  problem->hidden = zeros(n * depth);
  problem->weight = zeros(vocab * depth);
  problem->bias = zeros(vocab);
  problem->lora_a = zeros(rank * depth);
  problem->lora_b = zeros(vocab * rank);
  problem->target = calloc((size_t)(n * targets) + 1, sizeof(int));
  problem->left_out = calloc((size_t)n + 1, 1);
  problem->temperature = zeros(n);
  problem->grad_logprob = zeros(n * targets);
  problem->grad_entropy = zeros(n);
  problem->grad_lse = zeros(n);
  problem->grad_mean = zeros(n);
  for (int i = 0; i < n; i++) problem->temperature[i] = 1;
}

void long_problem_destroy(long_problem *problem) {
  void *const blocks[] = {problem->hidden,      problem->weight,       problem->bias,         problem->lora_a,
                          problem->lora_b,      problem->target,       problem->left_out,     problem->listed,
                          problem->temperature, problem->grad_logprob, problem->grad_entropy, problem->grad_lse,
                          problem->grad_mean};
  for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) free(blocks[i]);
}

static long double dot(const long double *a, const long double *b, int count) {
  long double sum = 0;
  for (int i = 0; i < count; i++) sum += a[i] * b[i];
  return sum;
}

/* u = s·(h Aᵀ) of a row */
static void project(const long_problem *problem, int row, long double u[RANK_MAX]) {
  for (int k = 0; k < problem->rank; k++)
    u[k] = problem->lora_scale *
           dot(problem->hidden + row * problem->depth, problem->lora_a + k * problem->depth, problem->depth);
}

static long double raw(const long_problem *problem, int row, int column, const long double *u) {
  int depth = problem->depth, rank = problem->rank;
  return problem->bias[column] + dot(problem->hidden + row * depth, problem->weight + column * depth, depth) +
         dot(u, problem->lora_b + column * rank, rank);
}

static long double scored(const long_problem *problem, int row, long double x) {
  long double z = problem->scale * x;
  if (problem->softcap > 0) z = problem->softcap * tanhl(z / problem->softcap);
  return z / problem->temperature[row];
}

long double long_raw_score(const long_problem *problem, int row, int column) {
  long double u[RANK_MAX];
  project(problem, row, u);
  return raw(problem, row, column, u);
}

long double long_score(const long_problem *problem, int row, int column) {
  return scored(problem, row, long_raw_score(problem, row, column));
}

long_row long_read(const long_problem *problem, int row, long double *t) {
  long double u[RANK_MAX], sum = 0, weighted = 0;
  long_row out = {.maximum = -INFINITY};
  project(problem, row, u);
  for (int v = 0; v < problem->vocab; v++) {
    int counts = !problem->listed || problem->listed[row * problem->vocab + v];
    t[v] = counts ? scored(problem, row, raw(problem, row, v, u)) : -INFINITY;
    out.maximum = fmaxl(out.maximum, t[v]);
    out.mean += t[v] / problem->vocab;
  }
  for (int v = 0; v < problem->vocab; v++) {
    long double at = t[v] - out.maximum;
    if (at == -INFINITY) continue;
    long double e = expl(at);
    sum += e;
    weighted += e * at;
  }
  out.lse = out.maximum + logl(sum);
  out.entropy = logl(sum) - weighted / sum;
  return out;
}

void long_forward(const long_problem *problem, int row, long double *logprob, long double *entropy) {
  long double *t = zeros(problem->vocab);
  long_row read = long_read(problem, row, t);
  *logprob = t[problem->target[row * problem->targets]] - read.lse;
  *entropy = read.entropy;
  free(t);
}

/* A weight of 0 times what is infinite is 0. */
static long double term(long double weight, long double value) {
  return weight != 0 ? weight * value : 0;
}

static long double row_loss(const long_problem *problem, int row, long double *t) {
  if (problem->left_out[row]) return 0;
  long_row read = long_read(problem, row, t);
  long double loss = term(problem->grad_entropy[row], read.entropy) + term(problem->grad_lse[row], read.lse) +
                     term(problem->grad_mean[row], read.mean);
  for (int at = row * problem->targets; at < (row + 1) * problem->targets; at++)
    if (problem->target[at] >= 0) loss += term(problem->grad_logprob[at], t[problem->target[at]] - read.lse);
  return loss;
}

/* Step 1e-5: the cubic error is near 1e-10 and rounding near 1e-14 of the loss. */
long double long_derivative(long_problem *problem, long double *parameter) {
  const long double step = 1e-5L, value = *parameter;
  long double *t = zeros(problem->vocab), change = 0;
  int64_t at = parameter - problem->hidden; /* other rows do not depend on a row's hidden state */
  int is_hidden = at >= 0 && at < (int64_t)problem->n * problem->depth;
  int first = is_hidden ? (int)at / problem->depth : 0, last = is_hidden ? first + 1 : problem->n;
  for (int row = first; row < last; row++) {
    *parameter = value + step;
    change += row_loss(problem, row, t);
    *parameter = value - step;
    change -= row_loss(problem, row, t);
  }
  *parameter = value;
  free(t);
  return change / (2 * step);
}
