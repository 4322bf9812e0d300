/* eager_case.h: a random problem on the host, ready for the eager rung and for the long double oracle.
 *
 * Invariants: outputs and workspace are poisoned with 0xff bytes before every pass; the oracle's operands are exactly
 * the values that the case holds in its dtype. */
#ifndef FLP_TEST_EAGER_CASE_H
#define FLP_TEST_EAGER_CASE_H

#include "runtime/eager/eager.h"
#include "runtime/flp.h"
#include "tests/unit/support/long_oracle.h"

typedef struct eager_case {
  flp_spec spec; /* resolved */
  flp_args args; /* of both passes; strides are D + padding */
  int64_t padding;
  int threads;
  uint64_t budget;                            /* of the workspace */
  uint64_t bad_rows;                          /* that passes have counted */
  float *logprob, *entropy, *stats, *partial; /* outputs, (n) or (n,4); logprob (n, targets) */
  float *grad_logprob, *grad_entropy;         /* (n); grad_logprob (n, targets) */
  void *hidden, *weight, *bias, *target;
  float *temperature;
  void *grad_hidden, *grad_weight, *grad_bias;
  int64_t *list_offsets; /* (n + 1) of spec.listed; else NULL */
  void *list_ids;
  long_problem reference;
} eager_case;

/* Random operands, targets and upstream gradients; every gradient of spec->grads has an output. */
void eager_case_create(eager_case *c, const flp_spec *spec, int64_t n, uint32_t seed);
void eager_case_destroy(eager_case *c);

/* Uniform in (-1, 1); the same sequence everywhere. */
double eager_case_random(uint32_t *state);

/* Writes a value in the case's dtype and in the oracle. */
void eager_case_set_hidden(eager_case *c, int64_t row, int64_t d, double value);
void eager_case_set_weight(eager_case *c, int64_t column, int64_t d, double value);
void eager_case_set_bias(eager_case *c, int64_t column, double value);
/* target: also outside the vocabulary or the ignore index; those rows leave the oracle's loss */
void eager_case_set_target(eager_case *c, int64_t row, int64_t target);
void eager_case_set_temperature(eager_case *c, int64_t row, double value);
/* Sets the lists of spec.listed: count[i] ids of row i, row after row. The oracle restricts itself to those that are
 * columns. */
void eager_case_set_lists(eager_case *c, const int64_t *ids, const int64_t *count);
/* Sets lists of 1 to `longest` random ids, in no order, some twice, the row's target among them if it is a column. */
void eager_case_random_lists(eager_case *c, int64_t longest, uint32_t seed);
int64_t eager_case_get_target(const eager_case *c, int64_t row);
/* The same of one of several targets (spec.targets), of which the oracle knows nothing. */
void eager_case_set_targets(eager_case *c, int64_t row, int64_t k, int64_t target);

/* Poisons, validates, lays out and runs; fails the test if any of it fails. */
void eager_case_forward(eager_case *c);
void eager_case_backward(eager_case *c);
/* The same but for poison, with other args; the workspace is made and freed inside. */
flp_status eager_case_run(eager_case *c, const flp_args *args);

/* Elements of the gradients, widened. */
double eager_case_grad_hidden(const eager_case *c, int64_t row, int64_t d);
double eager_case_grad_weight(const eager_case *c, int64_t column, int64_t d);
double eager_case_grad_bias(const eager_case *c, int64_t column);

/* Compares logprob and entropy, or all gradients, with the oracle; rows outside the loss are not looked at. */
void eager_case_check_forward(const eager_case *c, double tolerance);
void eager_case_check_backward(eager_case *c, double tolerance);

#endif
