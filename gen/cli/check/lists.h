/* lists.h: the lists of a problem with listed columns. */
#ifndef FLPGEN_CLI_CHECK_LISTS_H
#define FLPGEN_CLI_CHECK_LISTS_H

#include "gen/cli/check/problem.h"

/* Draws the lists of a problem whose targets are known, as the rung takes them and for the oracle, and says which rows
 * they make bad. error: MEMORY */
flp_status check_lists_create(check_problem *problem, uint64_t seed);
/* Row i gets the list of row order[i], for i < n. error: MEMORY */
flp_status check_lists_permute(check_problem *problem, const int64_t *order, int64_t n);
/* The ids of every list in the opposite order. */
void check_lists_reverse(check_problem *problem);
void check_lists_clear(check_problem *problem);

#endif
