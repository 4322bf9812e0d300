/* targets.c: the check of a loss over targets: its derivatives by the logprob of every target and by the entropy against
 * finite differences, on seeded rows of 1 to 12 targets. */
#include <math.h>
#include <stdio.h>

#include "gen/cli/loss/loss.h"

enum { TARGETS_MAX = 12 };

typedef struct target_row {
  const flp_loss *loss;
  const flp_loss_plan *plan;
  flp_loss_targets targets;
  float logprob[TARGETS_MAX], teacher[TARGETS_MAX];
  double inputs[FLP_LOSS_ALL_INPUTS], parameters[FLP_LOSS_PARAMETERS_MAX];
  int varied;                                       /* a target; -1: the entropy */
  double detached[FLP_LOSS_NODES_MAX * TARGETS_MAX]; /* at the row itself */
} target_row;

static double uniform(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (double)(*state >> 11) * 0x1p-53;
}

/* Log-probabilities of some outcomes out of more. */
static void draw_logs(uint64_t *state, int64_t count, float *out) {
  double shares[TARGETS_MAX], sum = 0.05 + uniform(state);
  for (int64_t k = 0; k < count; k++) sum += shares[k] = exp(6 * uniform(state) - 3);
  for (int64_t k = 0; k < count; k++) out[k] = (float)log(shares[k] / sum);
}

static void draw(target_row *row, uint64_t seed, int i, const double *given) {
  uint64_t state = seed * 1000003u + (uint64_t)i * 7919u + 17u;
  for (int j = 0; j < 3; j++) uniform(&state);
  cli_loss_draw(row->loss, seed, i, given, row->inputs, row->parameters);
  row->targets = (flp_loss_targets){.count = 1 + i % TARGETS_MAX, .logprob = row->logprob,
                                    .teacher_logprob = row->teacher, .detached = row->detached};
  draw_logs(&state, row->targets.count, row->logprob);
  draw_logs(&state, row->targets.count, row->teacher);
}

/* Steps of finite differences are below what float32 tells apart. */
static double value_at(double x, const void *context) {
  const target_row *row = context;
  target_row moved = *row;
  double logprob[TARGETS_MAX];
  for (int64_t k = 0; k < row->targets.count; k++) logprob[k] = (double)row->logprob[k];
  if (row->varied < 0)
    moved.inputs[FLP_LOSS_ENTROPY] = x;
  else
    logprob[row->varied] = x;
  moved.targets.exact = logprob;
  flp_loss_row out;
  flp_loss_evaluate_targets(row->loss, row->plan, &moved.targets, moved.inputs, row->parameters, &out, NULL);
  return out.loss;
}

static int check_row(target_row *row, int i, double *worst, char *fault, size_t capacity) {
  float grad[TARGETS_MAX];
  flp_loss_row got;
  flp_loss_evaluate_targets(row->loss, row->plan, &row->targets, row->inputs, row->parameters, &got, grad);
  if (!isfinite((float)got.loss)) {
    snprintf(fault, capacity, "row %d: the loss is %g", i, got.loss);
    return 0;
  }
  for (row->varied = -1; row->varied < row->targets.count; row->varied++) {
    double x = row->varied < 0 ? row->inputs[FLP_LOSS_ENTROPY] : (double)row->logprob[row->varied], nearest;
    double claimed = row->varied < 0 ? got.grad_entropy : (double)grad[row->varied];
    double error = cli_loss_derivative_error(value_at, row, x, claimed, &nearest);
    *worst = fmax(*worst, error);
    if (error <= 1) continue;
    if (row->varied < 0)
      snprintf(fault, capacity, "row %d: d loss/d entropy is %.9g; finite differences give %.9g", i, claimed, nearest);
    else
      snprintf(fault, capacity, "row %d: d loss/d target_logprob of target %d is %.9g; finite differences give %.9g", i,
               row->varied, claimed, nearest);
    return 0;
  }
  return 1;
}

void cli_loss_targets_check(const flp_loss *loss, uint64_t seed, int rows, const double *given, cli_loss_tally *out) {
  flp_loss_plan plan;
  flp_loss_plan_of(loss, &plan);
  for (int i = 0; i < rows; i++) {
    target_row row = {.loss = loss, .plan = &plan};
    char fault[256] = "";
    draw(&row, seed, i, given);
    if (!check_row(&row, i, &out->worst, fault, sizeof fault) && out->failed++ == 0)
      snprintf(out->first, sizeof out->first, "%s", fault);
  }
}
