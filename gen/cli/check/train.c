/* train.c: what a training step of `flpgen check` reads and should give: an old policy near this one, and the
 * inputs, values and derivatives of its loss.
 *
 * Invariant: rows that are left out hold NaN in every input of the loss, so that a row that is not shows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/metrics.h"
#include "gen/cli/call/normal.h"
#include "gen/cli/check/problem.h"
#include "gen/cli/shared/losses.h"

/* Above this many multiplications the oracle does not look at every row. unit: rows x columns x depth */
static const double WHOLE_ROWS = 2e11;

/* Uniform in (-1, 1). */
static double uniform(uint64_t *state) {
  return ((double)(cli_hash((*state)++) >> 11) + 0.5) * 0x1p-52 - 1.0;
}

/* ---- the oracle's results for every row ---- */

/* Rows by id; inactive ones hold zeros. error: MEMORY */
static flp_status evaluate_rows(const check_problem *problem, oracle_row **out) {
  int64_t n = problem->c.n, count = 0;
  int64_t *ids = malloc(((size_t)n + 1) * sizeof *ids);
  oracle_row *rows = calloc((size_t)n + 1, sizeof *rows), *listed = malloc(((size_t)n + 1) * sizeof *listed);
  for (int64_t row = 0; ids && row < n; row++)
    if (problem->forward_class[row] == CHECK_ACTIVE) ids[count++] = row;
  flp_status status = flp_fail(FLP_ERROR_MEMORY, "out of host memory for the rows of a step");
  if (ids && rows && listed) status = oracle_forward(&problem->oracle, ids, count, listed);
  for (int64_t i = 0; i < count && status == FLP_OK; i++) rows[ids[i]] = listed[i];
  free(ids);
  free(listed);
  *out = rows;
  return status;
}

/* The same where nothing has been computed: scores of a spread of 3 over a flat vocabulary. */
static flp_status guess_rows(const check_problem *problem, oracle_row **out) {
  *out = calloc((size_t)problem->c.n + 1, sizeof **out);
  if (!*out) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the rows of a step");
  double log_vocab = log((double)problem->c.spec.vocab);
  for (int64_t row = 0; row < problem->c.n; row++)
    (*out)[row] = (oracle_row){.logprob = -log_vocab, .entropy = log_vocab, .log_sum = log_vocab};
  return FLP_OK;
}

/* ---- inputs ---- */

static flp_status draw_old_lse(check_problem *problem, const oracle_row *truth, uint64_t seed) {
  const check_case *c = &problem->c;
  problem->old_lse = malloc(((size_t)c->n + 1) * sizeof *problem->old_lse);
  if (!problem->old_lse) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the rows of a step");
  for (int64_t row = 0; row < c->n; row++) {
    double lse = truth[row].maximum + truth[row].log_sum, off = 3 * uniform(&seed);
    if (c->old == CHECK_OLD_FAR) off = row % 7 == 3 ? NAN : row % 2 ? 200 : -200;
    problem->old_lse[row] = (float)((isfinite(lse) ? lse : 0) + off);
  }
  return FLP_OK;
}

static int is_zero(double value) {
  return value >= 0 && value <= 0;
}

static double draw_input(const check_problem *problem, int input, int64_t row, double logprob, uint64_t *state) {
  double value = uniform(state);
  if (!isfinite(logprob)) logprob = -3;
  switch (input) {
    case FLP_LOSS_OLD_LOGPROB:
      return fmin(logprob + 0.4 * value, 0);
    case FLP_LOSS_REF_LOGPROB:
      return fmin(logprob + 0.7 * value, 0);
    case FLP_LOSS_WEIGHT: /* rows that would have no upstream gradient have none */
      return is_zero(problem->g[row]) ? 0 : 0.75 + 0.5 * value;
    default:
      return 1.5 * value;
  }
}

/* Half of the problems leave to the loss what it has a default for: they are on policy, or of weight 1. */
static int is_default(const check_problem *problem, int input) {
  const check_case *c = &problem->c;
  int has_inactive = c->rows == CHECK_ROWS_INACTIVE || c->rows == CHECK_ROWS_NAN_INACTIVE;
  if (input == FLP_LOSS_WEIGHT) return c->seed % 4 == 1 && !has_inactive;
  return input == FLP_LOSS_OLD_LOGPROB && c->seed % 4 == 2;
}

static flp_status draw_inputs(check_problem *problem, const oracle_row *truth, uint64_t seed) {
  uint32_t read = flp_loss_inputs(problem->loss);
  for (int i = FLP_LOSS_OLD_LOGPROB; i < FLP_LOSS_INPUTS_MAX; i++) {
    if (!(read >> i & 1) || is_default(problem, i)) continue;
    float *values = problem->loss_input[i] = malloc(((size_t)problem->c.n + 1) * sizeof *values);
    if (!values) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the rows of a step");
    for (int64_t row = 0; row < problem->c.n; row++) {
      double value = draw_input(problem, i, row, truth[row].logprob, &seed);
      values[row] = problem->forward_class[row] == CHECK_LEFT_OUT ? NAN : (float)value;
    }
  }
  return FLP_OK;
}

/* A coefficient whose default is 0 would leave its term untested. */
static void set_parameters(check_problem *problem) {
  for (uint32_t i = 0; i < problem->loss->parameter_count; i++) {
    const flp_loss_parameter *p = &problem->loss->parameters[i];
    int is_off = p->fallback >= 0 && p->fallback <= 0 && p->high > 0.25;
    double share = strcmp(p->name, "z_loss") == 0 ? 1e-4 : 0.25; /* as trained with; lse² is 1e8 of shifted scores */
    problem->loss_parameters[i] = is_off ? share : p->fallback;
    if (problem->c.loss_parameters) problem->loss_parameters[i] = problem->c.loss_parameters[i];
  }
}

/* ---- outputs ---- */

/* lse_off, mean_off: added to the oracle's */
static flp_loss_row loss_at(const check_problem *problem, int64_t row, double logprob, double entropy, double lse_off,
                            double mean_off) {
  double inputs[FLP_LOSS_ALL_INPUTS] = {[FLP_LOSS_LOGPROB] = logprob,
                                        [FLP_LOSS_ENTROPY] = entropy,
                                        [FLP_LOSS_OLD_LOGPROB] = logprob,
                                        [FLP_LOSS_WEIGHT] = 1};
  for (int i = FLP_LOSS_OLD_LOGPROB; i < FLP_LOSS_INPUTS_MAX; i++)
    if (problem->loss_input[i]) inputs[i] = (double)problem->loss_input[i][row];
  if (problem->scores) {
    inputs[FLP_LOSS_LSE] = problem->scores[row].lse + lse_off;
    inputs[FLP_LOSS_MEAN_SCORE] = problem->scores[row].mean + mean_off;
  }
  flp_loss_row out;
  flp_loss_evaluate_row(problem->loss, inputs, problem->loss_parameters, &out);
  return out;
}

flp_loss_row check_problem_loss(const check_problem *problem, int64_t row, double logprob, double entropy) {
  return loss_at(problem, row, logprob, entropy, 0, 0);
}

double check_problem_loss_slack(const check_problem *problem, int64_t row, double logprob, double entropy, int metric) {
  if (!problem->scores) return 0;
  double at[3], off = problem->scores[row].slack;
  for (int i = 0; i < 3; i++) {
    flp_loss_row value = loss_at(problem, row, logprob, entropy, i == 1 ? off : 0, i == 2 ? off : 0);
    at[i] = metric < 0 ? value.loss : value.metrics[metric];
  }
  double slack = fabs(at[1] - at[0]) + fabs(at[2] - at[0]);
  return isfinite(slack) ? slack : 0;
}

static void set_row(check_problem *problem, int64_t row, double logprob, double entropy) {
  flp_loss_row value = {0};
  if (problem->forward_class[row] == CHECK_ACTIVE) value = check_problem_loss(problem, row, logprob, entropy);
  problem->g[row] = value.grad_logprob;
  problem->e[row] = value.grad_entropy;
  if (problem->scores) {
    problem->by_lse[row] = value.grad_lse;
    problem->by_mean[row] = value.grad_mean;
  }
  problem->grad_logprob[row] = (float)value.grad_logprob;
  problem->grad_entropy[row] = (float)value.grad_entropy;
}

/* A row whose loss has no gradient has work in forward alone. */
static void set_upstream(check_problem *problem, const oracle_row *truth) {
  for (int64_t row = 0; row < problem->c.n; row++) {
    set_row(problem, row, truth[row].logprob, truth[row].entropy);
    problem->backward_class[row] = problem->forward_class[row];
    int has_none = is_zero(problem->g[row]) && is_zero(problem->e[row]);
    if (problem->scores) has_none = has_none && is_zero(problem->by_lse[row]) && is_zero(problem->by_mean[row]);
    if (problem->forward_class[row] == CHECK_ACTIVE && has_none) problem->backward_class[row] = CHECK_LEFT_OUT;
  }
}

void check_problem_follow(check_problem *problem, const call_result *result) {
  for (int64_t row = 0; problem->loss && row < problem->c.n; row++)
    set_row(problem, row, (double)result->logprob[row], result->entropy ? (double)result->entropy[row] : 0);
}

/* Whether the derivatives of a row's loss depend on what the row gives; as the first rows show. */
static int is_linear(const check_problem *problem) {
  if (problem->scores && problem->c.spec.softcap > 0) return 0; /* the mean is one of all scores then */
  for (int64_t row = 0; row < problem->c.n && row < 4; row++) {
    flp_loss_row near = check_problem_loss(problem, row, -1, 1), far = check_problem_loss(problem, row, -9, 7);
    if (near.grad_logprob < far.grad_logprob || near.grad_logprob > far.grad_logprob) return 0;
    if (near.grad_entropy < far.grad_entropy || near.grad_entropy > far.grad_entropy) return 0;
  }
  return 1;
}

/* An error of each score moves both as far at most; and each is rounded to fp32, lse with the 4 ulp of a logprob. */
static double scores_slack(const oracle_row *row) {
  return 2 * row->product_error + 0x1p-21 * (1 + row->largest) + 4 * check_ulp(fmax(fabs(row->log_sum), 1));
}

static check_scores scores_of(const oracle_row *row) {
  return (check_scores){.lse = row->maximum + row->log_sum, .mean = row->mean, .slack = scores_slack(row)};
}

static flp_status set_scores(check_problem *problem, const oracle_row *truth) {
  size_t n = (size_t)problem->c.n + 1;
  if (!flp_loss_is_of_scores(problem->loss)) return FLP_OK;
  problem->scores = calloc(n, sizeof *problem->scores);
  problem->by_lse = calloc(n, sizeof *problem->by_lse);
  problem->by_mean = calloc(n, sizeof *problem->by_mean);
  problem->oracle.grad_lse = problem->by_lse;
  problem->oracle.grad_mean = problem->by_mean;
  if (!problem->scores || !problem->by_lse || !problem->by_mean)
    return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the rows of a step");
  for (int64_t row = 0; row < problem->c.n; row++) problem->scores[row] = scores_of(&truth[row]);
  return FLP_OK;
}

/* Means of rows where nothing else of their scores is known. */
static flp_status set_means(check_problem *problem) {
  int64_t n = problem->c.n;
  if (!problem->scores || problem->c.spec.softcap > 0) return FLP_OK;
  int64_t *rows = malloc(((size_t)n + 1) * sizeof *rows);
  double *means = malloc(((size_t)n + 1) * sizeof *means);
  flp_status status = flp_fail(FLP_ERROR_MEMORY, "out of host memory for the rows of a step");
  for (int64_t row = 0; rows && row < n; row++) rows[row] = row;
  if (rows && means) status = oracle_means(&problem->oracle, rows, n, means);
  for (int64_t row = 0; status == FLP_OK && row < n; row++) problem->scores[row].mean = means[row];
  free(rows);
  free(means);
  return status;
}

/* Rows that nobody has seen are as far off as the worst of those that were. */
void check_problem_follow_scores(check_problem *problem, const int64_t *rows, const oracle_row *truth, int64_t count,
                                 const call_result *result, const call_result *plain) {
  double slack = 0;
  if (!problem->scores || !problem->is_guessed || !plain->stats) return;
  for (int64_t i = 0; i < count; i++) slack = fmax(slack, scores_of(&truth[i]).slack);
  for (int64_t row = 0; row < problem->c.n; row++) {
    const float *stats = plain->stats + 4 * row;
    if (problem->forward_class[row] != CHECK_ACTIVE) continue;
    problem->scores[row].lse = M_LN2 * ((double)stats[0] + (double)stats[1]);
    problem->scores[row].slack = slack;
  }
  for (int64_t i = 0; i < count; i++) problem->scores[rows[i]] = scores_of(&truth[i]);
  check_problem_follow(problem, result);
}

static flp_status train(check_problem *problem, const oracle_row *truth) {
  uint64_t seed = cli_hash(problem->c.seed + 0x10055);
  if (problem->c.old != CHECK_OLD_NONE) FLP_TRY(draw_old_lse(problem, truth, seed));
  if (!problem->loss) return FLP_OK;
  FLP_TRY(set_scores(problem, truth));
  if (problem->is_guessed) FLP_TRY(set_means(problem));
  set_parameters(problem);
  FLP_TRY(draw_inputs(problem, truth, cli_hash(seed)));
  if (problem->is_guessed && !is_linear(problem))
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "--rows: %lld are not accepted with this loss at this shape, whose reference would take hours; "
                    "fewer are",
                    (long long)problem->c.n);
  set_upstream(problem, truth);
  return FLP_OK;
}

flp_status check_problem_train(check_problem *problem) {
  const check_case *c = &problem->c;
  problem->loss = cli_loss_of(&c->spec);
  if (!problem->loss && c->old == CHECK_OLD_NONE) return FLP_OK;
  problem->is_guessed = c->sampled || (double)c->n * (double)c->spec.vocab * (double)c->spec.hidden > WHOLE_ROWS;
  oracle_row *truth = NULL;
  flp_status status = problem->is_guessed ? guess_rows(problem, &truth) : evaluate_rows(problem, &truth);
  if (status == FLP_OK) status = train(problem, truth);
  free(truth);
  return status;
}
