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
  double *logprob;       /* (row_count, targets) of rows with several targets; else NULL */
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

/* ---- judge.c: what is judged alike ---- */

typedef struct compare_state {
  const check_problem *problem;
  const check_truth *truth;
  const call_result *result, *plain; /* plain: of score and recompute modes, or NULL */
  flp_rung rung;
  check_report *report;
} compare_state;

/* A gradient in parts, whose roundings are their own: rows of hidden, or columns. */
typedef struct gradient {
  int64_t parts, width;                    /* elements of a part */
  flp_dtype dtype;                         /* in which it is stored */
  double *exact, *yardstick, *got, *plain; /* (parts, width); plain: recompute mode's, where that ran */
  double *squares;                         /* (parts) of the oracle */
} gradient;

gradient check_gradient_of(cli_memory *memory, int64_t parts, int64_t width, flp_dtype dtype);
/* Adds a finding: beside the yardstick's error and, if there is one, recompute mode's own. id: the operand that a score's
 * gradient is multiplied by, or FLP_ARRAY_bias; note: what is wrong beside the numbers, or NULL */
void check_gradient_add(const compare_state *s, const char *output, const gradient *x, flp_array_id id,
                        const char *note);
/* Sets got and plain of rows of hidden. */
void check_gradient_take_hidden(const compare_state *s, const int64_t *rows, gradient *x);
double check_element(flp_dtype dtype, const void *base, int64_t index);
int check_has_plain(const compare_state *s);
int check_is_certain(const check_problem *problem, int64_t row);
/* What is wrong with gradients of rows that are left out or bad; NULL if nothing is. */
const char *check_inactive_rows(const compare_state *s);
/* Stats of all rows with work: the oracle's, or, where there are too many, those under test. */
oracle_row *check_work_stats(cli_memory *memory, const compare_state *s);
void check_compare_add(const compare_state *s, const char *output, check_metric metric, const char *note);
void check_compare_bias(const compare_state *s, const gradient *x);

/* Calls `compare` with the rows that the oracle has evaluated and that have work in backward. error: that of the call */
typedef flp_status (*check_hidden_fn)(const compare_state *s, const int64_t *rows, const oracle_row *truth,
                                      int64_t count);
flp_status check_each_hidden(const compare_state *s, check_hidden_fn compare);

/* lora.c: gradients of hidden, A, B and bias of a head with an adapter; adds findings. error: MEMORY */
flp_status check_compare_lora(const compare_state *state);

/* What the rounding of scores may make of a number beside its own, in nats. */
double check_score_allowance(const oracle_row *row);

/* top.c: best columns and ranks. Columns whose scores are nearer than rounding tells apart may stand in any order, and one
 * for another at the end. error: MEMORY */
flp_status check_compare_top(const check_problem *problem, const check_truth *truth, const call_result *result,
                             flp_rung rung, check_report *report);

/* Bit identity of one output of two results. */
check_metric check_result_bits(const check_problem *problem, flp_array_id id, const call_result *a,
                               const call_result *b);

#endif
