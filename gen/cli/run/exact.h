/* exact.h: logprob and entropy of a few rows of a problem in fp64, to measure how far a result is off. */
#ifndef FLPGEN_CLI_RUN_EXACT_H
#define FLPGEN_CLI_RUN_EXACT_H

#include "gen/cli/run/run.h"

enum { RUN_SAMPLES_MAX = 8 };

typedef struct run_exact {
  int count;
  int64_t row[RUN_SAMPLES_MAX];
  int64_t target[RUN_SAMPLES_MAX]; /* place of the target that logprob is of */
  double logprob[RUN_SAMPLES_MAX], entropy[RUN_SAMPLES_MAX];
  double score_error; /* largest error of a score in an ordinary fp32-accumulating product, over these rows */
} run_exact;

/* Evaluates up to RUN_SAMPLES_MAX rows, spread over those that are neither masked nor bad. Operands must be aligned to
 * their elements. error: MEMORY */
flp_status run_exact_sample(const run_args *args, const run_problem *problem, run_exact *out);

#endif
