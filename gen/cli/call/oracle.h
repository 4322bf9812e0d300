/* oracle.h: the operation of flp.h in fp64 on the very operands that a rung gets, and beside it the yardstick: the same
 * operation as an ordinary fp32-accumulating matrix pipeline would round it.
 *
 * The yardstick's roundings: scores summed one product after another in fp32 and, of 16-bit operands, off by what a sum
 * of tensor cores is too (not by the worse of the two: truncation moves large scores of a row alike, which is farther
 * than rounding moves them and changes no probability); scale, softcap, probabilities and score gradients in fp32; score
 * gradients rounded to the operands' dtype; for fp32 operands the gradient products summed in fp32 too, else in fp64.
 * Rounding to the output's dtype is the caller's, who knows what is added to.
 *
 * Squares give what independent errors add up to. Let every probability but the target's, and every score gradient, be
 * off by a relative error of its own, of mean square 1 and so small that its effect is linear: the squared error of a
 * row or column of a gradient then has this mean. The entropy and log Σ e^t of a row are taken as exact.
 *
 * Lists restrict a row to columns of its own, as if the others were not there: they have no score, and no gradient of
 * or from that row.
 *
 * Of several targets a row's gradient is the sum of theirs; a target below 0 is ignored, which not all of a row's are.
 *
 * Rows and columns are asked for by id, so that a large problem can be sampled. Not for rows that are masked or bad. */
#ifndef FLPGEN_CLI_ORACLE_H
#define FLPGEN_CLI_ORACLE_H

#include <stdint.h>

#include "runtime/flp.h"

typedef struct oracle_problem {
  flp_dtype dtype;
  flp_dtype hidden_dtype, weight_dtype,
      bias_dtype;                     /* in memory; 0: dtype. What differs is taken as its terms of dtype */
  int terms;                          /* of these: 1 or 2; 0: 1 */
  int64_t n, vocab, depth;            /* vocab: real columns only; depth: of the whole sums */
  const void *hidden, *weight, *bias; /* dtype; bias NULL for none */
  int64_t hidden_stride, weight_stride;
  int64_t more;                              /* of depth, the last elements, which lie here: (n, more), (vocab, more) dtype */
  const void *hidden_more, *weight_more;     /* an adapter's u and B; more is 0 without one */
  int64_t targets;                           /* of a row; 0: 1 */
  const int64_t *target;                     /* (n, targets) */
  const double *temperature;                 /* (n) */
  double scale, softcap;                     /* softcap 0 for none */
  const double *grad_logprob, *grad_entropy; /* (n, targets) and (n); zeros where absent */
  const double *score_error; /* (n) what every score may be off beside the yardstick's error, before scale; NULL: nothing */
  const double *grad_lse, *grad_mean;        /* (n) of a loss that reads lse or mean_score; NULL: zeros */
  /* (n + 1) where the lists of rows begin, NULL for none; columns, of each row ascending and each once, with its target */
  const int64_t *list_offsets, *list_columns;
  int threads;
} oracle_problem;

/* All in nats. */
typedef struct oracle_row {
  double maximum, log_sum; /* of t, log Σ e^(t - maximum) */
  double logprob, entropy; /* logprob: of the first target that is not ignored */
  double mean;             /* of t over all columns, or those that the row lists */
  double largest;          /* max |t| over finite scores; with softcap, c/T, what tanh is computed relative to */
  double spread;           /* Σ p·|log p + H|, how far a unit of error in each score can move the entropy */
  double
      product_error; /* max of either sum's error in h·W (+ b), as it reaches t, over all columns: the worst of the few that
                           a row may list is a matter of luck */
  double yardstick_reference, yardstick_entropy; /* log Σ e^t and H from the yardstick's scores */
  int is_beyond; /* the largest score is beyond FLP_SCORE_LIMIT: a bad row, whose numbers are NaN */
} oracle_row;

/* Evaluates rows. out: (count). error: MEMORY */
flp_status oracle_forward(const oracle_problem *problem, const int64_t *rows, int64_t count, oracle_row *out);

/* Logprobs of all targets of rows, (count, targets), 0 for ignored ones. stats: of these rows. error: MEMORY */
flp_status oracle_targets(const oracle_problem *problem, const int64_t *rows, const oracle_row *stats, int64_t count,
                          double *out);

/* Means of the scores t of rows over all columns, exact, without their scores: not with a softcap or lists. out: (count).
 * error: MEMORY */
flp_status oracle_means(const oracle_problem *problem, const int64_t *rows, int64_t count, double *out);

/* Hands over the scores t of row rows[index], exact and in nats, of all columns in order, -inf of those that it does
 * not list. From several threads at once. */
typedef void (*oracle_visit_fn)(void *context, int64_t index, const double *t);
/* error: MEMORY */
flp_status oracle_visit(const oracle_problem *problem, const int64_t *rows, int64_t count, oracle_visit_fn visit,
                        void *context);

/* Gradients of rows of hidden, (count, D) each, exact and by the yardstick, and their squares (count).
 * stats: of these rows. error: MEMORY */
flp_status oracle_grad_hidden(const oracle_problem *problem, const int64_t *rows, const oracle_row *stats,
                              int64_t count, double *exact, double *yardstick, double *squares);

/* Gradients of columns: of weight (count, D) and of bias (count), exact and by the yardstick; squares (count) of each.
 * rows: all that have work, with their stats. error: MEMORY */
typedef struct oracle_columns {
  double *weight, *weight_yardstick, *weight_squares, *bias, *bias_yardstick, *bias_squares;
} oracle_columns;
flp_status oracle_grad_columns(const oracle_problem *problem, const int64_t *rows, const oracle_row *stats,
                               int64_t row_count, const int64_t *columns, int64_t count, const oracle_columns *out);

/* An adapter: u = s·(h·Aᵀ), rounded once, to dtype. A sum in fp32 may round to the other neighbour where u lies next to the
 * middle of two; score_error is the most that this makes of a score. a: (rank, D), b: (vocab, rank) */
typedef struct oracle_lora {
  flp_dtype dtype, hidden_dtype; /* of hidden in memory; 0: dtype */
  int terms;                     /* that are taken of one that differs; u may be of the first alone */
  int64_t n, vocab, depth, rank;
  const void *hidden, *a, *b;
  int64_t hidden_stride, a_stride;
  double scale;
  int is_bounded; /* 1: score_error is a bound, of the largest element of each of B's columns, as (vocab) steps a row
                     would take long */
} oracle_lora;
/* u: (n, rank) dtype; score_error: (n). error: MEMORY */
flp_status oracle_lora_project(const oracle_lora *lora, void *u, double *score_error);

/* One value as products of a dtype take it, in so many terms (0: 1) where it is stored in another (0: the same). */
double oracle_in_terms(flp_dtype dtype, flp_dtype stored, int terms, double value);
/* One value as an fp32 or 16-bit tensor would hold it. */
double oracle_round(flp_dtype dtype, double value);

#endif
