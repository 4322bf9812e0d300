/* long_oracle.h: the operation of flp.h in long double, as plainly as it can be written, for tests of the CPU code.
 *
 * Gradients are central differences of the loss, so they share no formula with what they test. */
#ifndef FLP_TEST_LONG_ORACLE_H
#define FLP_TEST_LONG_ORACLE_H

#include <stdint.h>

typedef struct long_problem {
  int n, vocab, depth, targets, rank;       /* rank 0: no adapter */
  long double *hidden;                      /* (n, depth) */
  long double *weight;                      /* (vocab, depth) */
  long double *bias;                        /* (vocab), zeros for none */
  long double *lora_a, *lora_b;             /* (rank, depth), (vocab, rank) */
  int *target;                              /* (n, targets), -1 for one that is not in the loss */
  uint8_t *left_out;                        /* (n) 1: the row is not in the loss */
  uint8_t *listed;                          /* (n, vocab) 1: the column counts in the row; NULL: all do */
  long double *temperature;                 /* (n) */
  long double scale, softcap, lora_scale;   /* softcap 0: none */
  long double *grad_logprob;                /* (n, targets) weights of the loss */
  long double *grad_entropy, *grad_lse, *grad_mean; /* (n) */
} long_problem;

/* A row's scores t in nats, of the columns that count. */
typedef struct long_row {
  long double maximum, lse, mean, entropy;
} long_row;

/* All arrays zeroed; targets 1 and rank 0 for the plain operation; temperature and scale 1. */
void long_problem_create(long_problem *problem, int n, int vocab, int depth, int targets, int rank);
void long_problem_destroy(long_problem *problem);

/* Score of one row and column before softcap, scale and temperature; and t, in nats. */
long double long_raw_score(const long_problem *problem, int row, int column);
long double long_score(const long_problem *problem, int row, int column);
/* All scores of a row. t: (vocab), -inf of columns that do not count */
long_row long_read(const long_problem *problem, int row, long double *t);
/* logprob of the row's first target, and its entropy. */
void long_forward(const long_problem *problem, int row, long double *logprob, long double *entropy);

/* d(loss)/d(parameter) by a central difference, where loss is the sum of grad_*·value over all rows; parameter points
 * into hidden, weight, bias, lora_a or lora_b of the problem. */
long double long_derivative(long_problem *problem, long double *parameter);

#endif
