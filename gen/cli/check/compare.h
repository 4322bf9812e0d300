/* compare.h: a result against the oracle. */
#ifndef FLPGEN_CLI_CHECK_COMPARE_H
#define FLPGEN_CLI_CHECK_COMPARE_H

#include "gen/cli/check/problem.h"
#include "gen/cli/check/report.h"

/* The oracle's results for a problem, made once for all rungs. */
typedef struct check_truth {
  int64_t *rows, *columns; /* sampled: active rows in forward, columns */
  int64_t row_count, column_count;
  oracle_row *row_truth; /* of rows */
  double *logprob;       /* (row_count, targets) of rows */
  int64_t *work;         /* rows active in backward */
  int64_t work_count;
  oracle_row *work_truth; /* of work; NULL if too many: then taken from the stats under test */
  cli_memory memory;      /* of all these */
} check_truth;

/* whole: the same problem's, whose rows are not evaluated again; or NULL. error: MEMORY */
flp_status check_truth_create(const check_problem *problem, const check_truth *whole, check_truth *out);
void check_truth_clear(check_truth *truth);

/* Compares every output of a result; adds findings.
 * plain: NULL, or the same problem's in score and recompute modes: bits of logprob and entropy are equal, and gradients
 * may be as much worse than its as they may be than the yardstick's. error: MEMORY */
flp_status check_compare(const check_problem *problem, const check_truth *truth, const call_result *result,
                         const call_result *plain, flp_rung rung, check_report *report);

/* ---- what findings have in common ---- */

typedef struct compare_state {
  const check_problem *problem;
  const check_truth *truth;
  const call_result *result, *plain; /* plain: of score and recompute modes, or NULL */
  flp_rung rung;
  check_report *report;
} compare_state;

int check_is_certain(const check_problem *problem, int64_t row);
void check_compare_add(const compare_state *s, const char *output, check_metric metric, const char *note);

/* What the rounding of scores may make of a number beside its own, in nats. */
double check_score_allowance(const oracle_row *row);
/* Two scores of a row that are nearer than this may change places. */
double check_slack(const oracle_row *row);
/* Columns of a row above the target by more than rounding, and those that may be: where every product is exact none of
 * the target's very score. t: (vocab) */
typedef struct check_above {
  int64_t certain, possible;
} check_above;
check_above check_above_of(const check_problem *problem, const oracle_row *row, const double *t, int64_t target);
/* And of a gradient where probabilities are near 1, relative to its size. */
double check_sum_rounding(const compare_state *s);

/* gradients.c: of every operand that has one; adds findings. error: MEMORY */
flp_status check_compare_gradients(const compare_state *s);

/* top.c: best columns and ranks. Columns whose scores are nearer than rounding tells apart may stand in any order, and one
 * for another at the end. error: MEMORY */
flp_status check_compare_top(const compare_state *s);

/* Bit identity of one output of two results. */
check_metric check_result_bits(const check_problem *problem, flp_array_id id, const call_result *a,
                               const call_result *b);

#endif
