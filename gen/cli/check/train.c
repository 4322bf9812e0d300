/* train.c: what a training step of `flpgen check` reads and should give: an old policy near this one, and the
 * inputs, values and derivatives of its loss.
 *
 * Invariant: rows that are left out hold NaN in every input of the loss, so that a row that is not shows. */
#include <math.h>
#include <string.h>

#include "gen/cli/call/metrics.h"
#include "gen/cli/call/normal.h"
#include "gen/cli/check/problem.h"
#include "gen/cli/shared/losses.h"

/* Above this many multiplications the oracle does not look at every row. unit: rows x columns x depth */
static const double WHOLE_ROWS = 2e11;

/* Uniform in (-1, 1). */
static double uniform(uint64_t *state) {
  return cli_uniform(cli_hash((*state)++));
}

/* ---- the oracle's results for every row ---- */

/* Rows by id, and logprobs of their targets. */
typedef struct all_rows {
  oracle_row *row;
  double *logprob; /* (n, targets) */
} all_rows;

static void *take(check_problem *problem, int64_t count, size_t bytes) {
  return cli_memory_take_zeros(&problem->memory, (size_t)count * bytes);
}

static flp_status status_of(const check_problem *problem) {
  return cli_memory_status(&problem->memory, "the rows of a step");
}

/* ids: (count); row, logprob: room for as many rows. error: MEMORY */
static flp_status evaluate_listed(const check_problem *problem, const int64_t *ids, int64_t count, oracle_row *row,
                                  double *logprob, all_rows *out) {
  size_t targets = (size_t)problem->targets;
  FLP_TRY(oracle_forward(&problem->oracle, ids, count, row));
  FLP_TRY(oracle_targets(&problem->oracle, ids, row, count, logprob));
  for (int64_t i = 0; i < count; i++) {
    out->row[ids[i]] = row[i];
    memcpy(out->logprob + (size_t)ids[i] * targets, logprob + (size_t)i * targets, targets * sizeof *logprob);
  }
  return FLP_OK;
}

/* Inactive ones hold zeros. error: MEMORY */
static flp_status evaluate_rows(check_problem *problem, all_rows *out) {
  int64_t n = problem->c.n, count = 0, *ids = take(problem, n, sizeof *ids);
  oracle_row *row = take(problem, n, sizeof *row);
  double *logprob = take(problem, n * problem->targets, sizeof *logprob);
  FLP_TRY(status_of(problem));
  for (int64_t at = 0; at < n; at++)
    if (problem->forward_class[at] == CHECK_ACTIVE) ids[count++] = at;
  return evaluate_listed(problem, ids, count, row, logprob, out);
}

/* The same where nothing has been computed: scores of a spread of 3 over a flat vocabulary. */
static void guess_rows(const check_problem *problem, all_rows *out) {
  double log_vocab = log((double)problem->c.spec.vocab);
  for (int64_t row = 0; row < problem->c.n; row++)
    out->row[row] = (oracle_row){.logprob = -log_vocab, .entropy = log_vocab, .log_sum = log_vocab};
  for (int64_t at = 0; at < problem->c.n * problem->targets; at++) out->logprob[at] = -log_vocab;
}

/* ---- inputs ---- */

static int has_rank_of_shards(const check_case *c) {
  return c->spec.rank && c->shards > 1;
}

static flp_status set_target_score(check_problem *problem, const oracle_row *truth) {
  int64_t n = problem->c.n;
  problem->target_score = take(problem, n, sizeof *problem->target_score);
  FLP_TRY(status_of(problem));
  for (int64_t row = 0; row < n; row++)
    problem->target_score[row] = (float)((truth[row].logprob + truth[row].maximum + truth[row].log_sum) / M_LN2);
  return FLP_OK;
}

static flp_status draw_old_lse(check_problem *problem, const oracle_row *truth, uint64_t seed) {
  const check_case *c = &problem->c;
  problem->old_lse = take(problem, c->n, sizeof *problem->old_lse);
  FLP_TRY(status_of(problem));
  for (int64_t row = 0; row < c->n; row++) {
    double lse = truth[row].maximum + truth[row].log_sum, off = 3 * uniform(&seed);
    if (c->old == CHECK_OLD_FAR) off = row % 7 == 3 ? NAN : row % 2 ? 200 : -200;
    problem->old_lse[row] = (float)((isfinite(lse) ? lse : 0) + off);
  }
  return FLP_OK;
}

static double draw_input(const check_problem *problem, int input, int64_t row, double logprob, uint64_t *state) {
  double value = uniform(state);
  if (!isfinite(logprob)) logprob = -3;
  switch (input) {
    case FLP_LOSS_OLD_LOGPROB: /* away from where losses clip, as rounding moves logprobs */
      value = copysign(fabs(value) < 0.5 ? 0.25 : 0.875, value);
      return fmin(logprob + 0.4 * value, 0);
    case FLP_LOSS_REF_LOGPROB: /* below 0: of a certain row nothing hangs on the last bit of its logprob */
      return fmin(logprob + 0.7 * value, -0x1p-10);
    case FLP_LOSS_WEIGHT: /* rows that would have no upstream gradient have none */
      return check_targets_see(problem, row).has_gradient ? 0.75 + 0.5 * value : 0;
    default:
      return 1.5 * value;
  }
}

/* Half of the problems leave to the loss what it has a default for: they are on policy, or of weight 1. */
static int is_default(const check_problem *problem, int input) {
  const check_case *c = &problem->c;
  int has_inactive =
      c->rows == CHECK_ROWS_INACTIVE || c->rows == CHECK_ROWS_NAN_INACTIVE || c->rows == CHECK_ROWS_BEYOND;
  if (input == FLP_LOSS_WEIGHT) return c->seed % 4 == 1 && !has_inactive;
  return input == FLP_LOSS_OLD_LOGPROB && c->seed % 4 == 2;
}

static flp_status draw_inputs(check_problem *problem, const oracle_row *truth, uint64_t seed) {
  uint32_t read = flp_loss_inputs(problem->loss);
  for (int i = FLP_LOSS_OLD_LOGPROB; i < FLP_LOSS_INPUTS_MAX; i++) {
    if (!(read >> i & 1) || is_default(problem, i)) continue;
    float *values = problem->loss_input[i] = take(problem, problem->c.n, sizeof *values);
    FLP_TRY(status_of(problem));
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
static flp_loss_row loss_at(const check_problem *problem, int64_t row, const double *logprob, double entropy,
                            double lse_off, double mean_off, float *grad) {
  int of_one = problem->targets == 1;
  double inputs[FLP_LOSS_ALL_INPUTS] = {[FLP_LOSS_LOGPROB] = of_one ? logprob[0] : 0,
                                        [FLP_LOSS_ENTROPY] = entropy,
                                        [FLP_LOSS_OLD_LOGPROB] = of_one ? logprob[0] : 0,
                                        [FLP_LOSS_WEIGHT] = 1};
  for (int i = FLP_LOSS_OLD_LOGPROB; i < FLP_LOSS_INPUTS_MAX; i++)
    if (problem->loss_input[i]) inputs[i] = (double)problem->loss_input[i][row];
  if (problem->scores) {
    inputs[FLP_LOSS_LSE] = problem->scores[row].lse + lse_off;
    inputs[FLP_LOSS_MEAN_SCORE] = problem->scores[row].mean + mean_off;
  }
  flp_loss_row out;
  if (of_one)
    flp_loss_evaluate_row(problem->loss, inputs, problem->loss_parameters, &out);
  else
    check_teacher_loss(problem, row, logprob, inputs, &out, grad);
  return out;
}

flp_loss_row check_problem_loss(const check_problem *problem, int64_t row, const double *logprob, double entropy,
                                float *grad) {
  return loss_at(problem, row, logprob, entropy, 0, 0, grad);
}

double check_problem_loss_slack(const check_problem *problem, int64_t row, const double *logprob, double entropy,
                                int metric) {
  if (!problem->scores) return 0;
  double at[3], off = problem->scores[row].slack;
  for (int i = 0; i < 3; i++) {
    flp_loss_row value = loss_at(problem, row, logprob, entropy, i == 1 ? off : 0, i == 2 ? off : 0, NULL);
    at[i] = metric < 0 ? value.loss : value.metrics[metric];
  }
  double slack = fabs(at[1] - at[0]) + fabs(at[2] - at[0]);
  return isfinite(slack) ? slack : 0;
}

void check_problem_logprobs(const check_problem *problem, const call_result *result, int64_t row, double *out) {
  for (int64_t k = 0; k < problem->targets; k++) out[k] = (double)result->logprob[row * problem->targets + k];
}

/* What each target of a row is asked for; one that is ignored, NaN. */
static void set_targets(check_problem *problem, int64_t row, const float *grad) {
  for (int64_t k = 0; k < problem->targets; k++) {
    int64_t at = row * problem->targets + k;
    problem->g[at] = (double)grad[k];
    problem->grad_logprob[at] = problem->target_id[at] == CHECK_IGNORE_INDEX ? NAN : grad[k];
  }
}

static void set_row(check_problem *problem, int64_t row, const double *logprob, double entropy) {
  flp_loss_row value = {0};
  float grad[FLP_TARGETS_MAX] = {0};
  if (problem->forward_class[row] == CHECK_ACTIVE) value = check_problem_loss(problem, row, logprob, entropy, grad);
  problem->e[row] = value.grad_entropy;
  problem->grad_entropy[row] = (float)value.grad_entropy;
  if (problem->scores) {
    problem->by_lse[row] = value.grad_lse;
    problem->by_mean[row] = value.grad_mean;
  }
  if (problem->targets > 1) {
    set_targets(problem, row, grad);
    return;
  }
  problem->g[row] = value.grad_logprob;
  problem->grad_logprob[row] = (float)value.grad_logprob;
}

/* Whether the loss of a row has no gradient. */
static int is_idle(const check_problem *problem, int64_t row) {
  int is_any = !check_is_zero(problem->e[row]);
  for (int64_t k = 0; k < problem->targets; k++) is_any |= !check_is_zero(problem->g[row * problem->targets + k]);
  if (problem->scores) is_any |= !check_is_zero(problem->by_lse[row]) || !check_is_zero(problem->by_mean[row]);
  return !is_any;
}

/* A row whose loss has no gradient has work in forward alone. */
static void set_upstream(check_problem *problem, const all_rows *truth) {
  for (int64_t row = 0; row < problem->c.n; row++) {
    set_row(problem, row, truth->logprob + row * problem->targets, truth->row[row].entropy);
    problem->backward_class[row] = problem->forward_class[row];
    if (problem->forward_class[row] == CHECK_ACTIVE && is_idle(problem, row))
      problem->backward_class[row] = CHECK_LEFT_OUT;
  }
}

void check_problem_follow(check_problem *problem, const call_result *result) {
  double logprob[FLP_TARGETS_MAX];
  for (int64_t row = 0; problem->loss && row < problem->c.n; row++) {
    check_problem_logprobs(problem, result, row, logprob);
    set_row(problem, row, logprob, result->entropy ? (double)result->entropy[row] : 0);
  }
}

static int differ(double a, double b) {
  return a < b || a > b;
}

/* Whether the mean of a row's scores takes each of them, and no sum of the weight's rows gives it. */
static int is_of_each(const check_problem *problem) {
  return problem->c.spec.softcap > 0 || problem->c.spec.listed;
}

/* Whether the derivatives of a row's loss depend on what the row gives; as the first rows show. */
static int is_linear(const check_problem *problem) {
  double here[FLP_TARGETS_MAX], there[FLP_TARGETS_MAX];
  float by_here[FLP_TARGETS_MAX] = {0}, by_there[FLP_TARGETS_MAX] = {0};
  if (problem->scores && is_of_each(problem)) return 0;
  for (int64_t k = 0; k < problem->targets; k++) {
    here[k] = -1;
    there[k] = -9;
  }
  for (int64_t row = 0; row < problem->c.n && row < 4; row++) {
    flp_loss_row near = check_problem_loss(problem, row, here, 1, by_here),
                 far = check_problem_loss(problem, row, there, 7, by_there);
    if (differ(near.grad_logprob, far.grad_logprob) || differ(near.grad_entropy, far.grad_entropy)) return 0;
    for (int64_t k = 0; k < problem->targets; k++)
      if (differ((double)by_here[k], (double)by_there[k])) return 0;
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
  int64_t n = problem->c.n;
  if (!flp_loss_is_of_scores(problem->loss)) return FLP_OK;
  problem->scores = take(problem, n, sizeof *problem->scores);
  problem->by_lse = take(problem, n, sizeof *problem->by_lse);
  problem->by_mean = take(problem, n, sizeof *problem->by_mean);
  problem->oracle.grad_lse = problem->by_lse;
  problem->oracle.grad_mean = problem->by_mean;
  FLP_TRY(status_of(problem));
  for (int64_t row = 0; row < problem->c.n; row++) problem->scores[row] = scores_of(&truth[row]);
  return FLP_OK;
}

/* Means of rows where nothing else of their scores is known. */
static flp_status set_means(check_problem *problem) {
  int64_t n = problem->c.n;
  if (!problem->scores || is_of_each(problem)) return FLP_OK;
  int64_t *rows = take(problem, n, sizeof *rows);
  double *means = take(problem, n, sizeof *means);
  FLP_TRY(status_of(problem));
  for (int64_t row = 0; row < n; row++) rows[row] = row;
  FLP_TRY(oracle_means(&problem->oracle, rows, n, means));
  for (int64_t row = 0; row < n; row++) problem->scores[row].mean = means[row];
  return FLP_OK;
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

static flp_status train(check_problem *problem, const all_rows *truth) {
  uint64_t seed = cli_hash(problem->c.seed + 0x10055);
  if (has_rank_of_shards(&problem->c)) FLP_TRY(set_target_score(problem, truth->row));
  if (problem->c.old != CHECK_OLD_NONE) FLP_TRY(draw_old_lse(problem, truth->row, seed));
  if (!problem->loss) return FLP_OK;
  FLP_TRY(set_scores(problem, truth->row));
  if (problem->is_guessed) FLP_TRY(set_means(problem));
  set_parameters(problem);
  FLP_TRY(draw_inputs(problem, truth->row, cli_hash(seed)));
  FLP_TRY(check_teacher_draw(problem, cli_hash(seed + 1)));
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
  if (!problem->loss && c->old == CHECK_OLD_NONE && !has_rank_of_shards(c)) return FLP_OK;
  problem->is_guessed = c->sampled || (double)c->n * (double)c->spec.vocab * (double)c->spec.hidden > WHOLE_ROWS;
  all_rows truth = {take(problem, c->n, sizeof *truth.row),
                    take(problem, c->n * problem->targets, sizeof *truth.logprob)};
  FLP_TRY(status_of(problem));
  if (problem->is_guessed)
    guess_rows(problem, &truth);
  else
    FLP_TRY(evaluate_rows(problem, &truth));
  return train(problem, &truth);
}
