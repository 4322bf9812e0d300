/* run.h: a problem executed on one rung, which gives a result. */
#ifndef FLPGEN_CLI_CHECK_RUN_H
#define FLPGEN_CLI_CHECK_RUN_H

#include "gen/cli/check/precompile.h"
#include "gen/cli/check/problem.h"

typedef struct check_how {
  flp_options options; /* device: the eager rung runs on the host; mode and chunks are those of cases */
  double limit_s;      /* check_concurrent: of a wait for the device; 0: the default */
  const char *tuned_arch;       /* the architecture that options.tune is for; NULL without */
  check_precompile *precompile; /* borrowed, or NULL */
} check_how;

/* Those of plans that are made beside the cases: without budget and tune. */
flp_options check_how_options(const check_how *how);
/* The plan of a problem, or of each of its shards. error: any of flp_plan_create */
flp_status check_how_plan(const check_how *how, const check_problem *problem, flp_plan **out);
/* Makes what forward keeps for backward, if that is asked for; the eager rung serves tail mode with exact gradients.
 * error: UNAVAILABLE if the rung keeps nothing */
flp_status check_make_saved(call_buffers *buffers, const call_problem *call, const flp_plan *plan);
/* 1 for a failure that every case would meet: of memory, or of a --tune that is refused. */
int check_how_ends(const check_how *how, flp_status status);
/* Uploads, poisons outputs and workspace, runs forward (or shards and combine) and backward, or a step, downloads.
 * error: UNAVAILABLE if this rung, or what forward keeps on it, is not offered here; any of flp_plan_create,
 * flp_execute, flp_step */
flp_status check_run(const check_problem *problem, const check_how *how, call_result *out);
/* The same for check_problem_plain. */
flp_status check_run_plain(const check_problem *problem, const check_how *how, call_result *out);

#endif
