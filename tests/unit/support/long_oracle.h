/* long_oracle.h: the operation of flp.h in long double, as plainly as it can be written, for tests of the CPU code.
 *
 * Gradients are central differences of the loss, so they share no formula with what they test. */
#ifndef FLP_TEST_LONG_ORACLE_H
#define FLP_TEST_LONG_ORACLE_H

#include <stdint.h>

typedef struct long_problem {
  int n, vocab, depth;
  long double *hidden;                      /* (n, depth) */
  long double *weight;                      /* (vocab, depth) */
  long double *bias;                        /* (vocab), zeros for none */
  int *target;                              /* (n), -1 for a row that is not in the loss */
  long double *temperature;                 /* (n) */
  long double scale, softcap;               /* softcap 0: none */
  long double *grad_logprob, *grad_entropy; /* (n) weights of the loss */
  uint8_t *listed; /* (n, vocab) 1: the column counts in the row; NULL: all do. Freed with the rest */
} long_problem;

/* All arrays in one allocation each, zeroed; temperature and scale 1. */
void long_problem_create(long_problem *problem, int n, int vocab, int depth);
void long_problem_destroy(long_problem *problem);

/* Score of one row and column before softcap, scale and temperature. */
long double long_raw_score(const long_problem *problem, int row, int column);
/* t of one row and column, in nats. */
long double long_score(const long_problem *problem, int row, int column);
void long_forward(const long_problem *problem, int row, long double *logprob, long double *entropy);

/* Σ grad_logprob·logprob + grad_entropy·entropy over one row, or over all. */
long double long_row_loss(const long_problem *problem, int row);
long double long_loss(const long_problem *problem);

/* d(loss)/d(parameter) by a central difference; parameter points into hidden, weight or bias of the problem. */
long double long_derivative(long_problem *problem, long double *parameter);

#endif
