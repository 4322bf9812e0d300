/* statistics.c: what a row's scores are as a whole, against the oracle.
 *
 * lse, log Σ p²: as logprob is judged, the latter of twice the scores. mean: of scores as large as the row's largest.
 * is_best: a target that others are above by more than rounding is not, and one that no other is as near to is. */
#include <math.h>
#include <string.h>

#include "gen/cli/check/compare.h"
#include "runtime/base/status.h"

enum { LSE, MEAN, SQUARES, BEST, VALUES };
static const char *const names[VALUES] = {"lse", "mean_score", "log_squares", "is_best"};

typedef struct judge {
  const compare_state *state;
  check_numbers of[BEST]; /* (n) each */
  const char **note;      /* (n) what is wrong with is_best */
} judge;

static void set(const judge *j, int value, int64_t row, double wanted, double size, double allowed) {
  double unit = check_ulp(fmax(isfinite(size) ? fabs(size) : 1, 1));
  float got = j->state->result->statistics[VALUES * row + value];
  check_numbers_set(&j->of[value], row, (double)got, wanted, unit, allowed < 0 ? 0 : 4 * unit + allowed);
}

static void judge_idle_row(const judge *j, int64_t row, double wanted) {
  for (int value = 0; value < BEST; value++) set(j, value, row, wanted, 1, -1);
  if (j->state->result->statistics[VALUES * row + BEST] != 0) j->note[row] = "a row without work has a best target";
}

static void judge_best(const judge *j, int64_t row, const oracle_row *truth, const double *t) {
  const check_problem *p = j->state->problem;
  int must = 0, may = 0, is_best = j->state->result->statistics[VALUES * row + BEST] == 1;
  for (int64_t k = 0; k < p->targets; k++) {
    int64_t target = p->target_id[row * p->targets + k];
    if (target == CHECK_IGNORE_INDEX) continue;
    check_above of_target = check_above_of(p, truth, t, target);
    must |= of_target.possible == 0;
    may |= of_target.certain == 0;
  }
  if (is_best && !may) j->note[row] = "a column is above each target";
  if (!is_best && must) j->note[row] = "no column is above a target";
}

static void judge_row(void *context, int64_t index, const double *t) {
  const judge *j = context;
  const check_problem *p = j->state->problem;
  const oracle_row *truth = &j->state->truth->row_truth[index];
  int64_t row = j->state->truth->rows[index];
  double lse = truth->maximum + truth->log_sum, allowance = check_score_allowance(truth), squares = 0;
  if (isnan(truth->log_sum)) {
    judge_idle_row(j, row, NAN);
    return;
  }
  for (int64_t v = 0; v < p->c.spec.vocab; v++) squares += exp(2 * (t[v] - truth->maximum));
  double renyi = log(squares) - 2 * truth->log_sum;
  set(j, LSE, row, lse, fmax(fabs(truth->maximum), fabs(lse)), allowance);
  set(j, MEAN, row, truth->mean, truth->largest, allowance);
  set(j, SQUARES, row, renyi, fmax(2 * truth->log_sum, fabs(renyi)), 2 * allowance);
  judge_best(j, row, truth, t);
}

static flp_status judge_all(judge *j) {
  const check_problem *p = j->state->problem;
  const check_truth *truth = j->state->truth;
  for (int64_t row = 0; row < p->c.n; row++)
    if (p->forward_class[row] != CHECK_ACTIVE) judge_idle_row(j, row, p->forward_class[row] == CHECK_BAD ? NAN : 0);
  FLP_TRY(oracle_visit(&p->oracle, truth->rows, truth->row_count, judge_row, j));
  for (int value = 0; value < BEST; value++)
    check_compare_add(j->state, names[value], check_numbers_judge(&j->of[value]), NULL);
  const char *note = NULL;
  for (int64_t row = 0; row < p->c.n && !note; row++) note = j->note[row];
  check_metric metric = {.share = note ? INFINITY : 0, .max_ulp = -1, .cosine = 1, .pass = !note};
  check_compare_add(j->state, names[BEST], metric, note);
  return FLP_OK;
}

flp_status check_compare_statistics(const compare_state *s) {
  int64_t n = s->problem->c.n;
  if (!s->result->statistics) return FLP_OK;
  cli_memory memory = {0};
  judge j = {.state = s, .note = cli_memory_take_zeros(&memory, (size_t)n * sizeof(char *))};
  for (int value = 0; value < BEST; value++) j.of[value] = check_numbers_of(&memory, n);
  flp_status status = cli_memory_status(&memory, "statistics");
  if (status == FLP_OK) status = judge_all(&j);
  cli_memory_free(&memory);
  return status;
}
