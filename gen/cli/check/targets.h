/* targets.h: the targets of a problem, one a row or several. */
#ifndef FLPGEN_CLI_CHECK_TARGETS_H
#define FLPGEN_CLI_CHECK_TARGETS_H

#include "gen/cli/check/problem.h"

/* Draws all targets but the first of each row, which is there, as the case's pattern has them, and what each is asked
 * for. error: MEMORY */
flp_status check_targets_draw(check_problem *problem, uint64_t seed);

/* What the targets of a row are: one that is not ignored, one of no column, one with an upstream gradient. */
typedef struct check_targets_seen {
  int has_target, has_foreign, has_gradient;
} check_targets_seen;
check_targets_seen check_targets_see(const check_problem *problem, int64_t row);

/* Writes target and grad_logprob as the rung takes them. */
void check_targets_export(check_problem *problem);

#endif
