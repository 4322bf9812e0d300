/* run.h: a problem executed on one rung, which gives a result; and kernels made before they are needed. */
#ifndef FLPGEN_CLI_CHECK_RUN_H
#define FLPGEN_CLI_CHECK_RUN_H

#include "gen/cli/call/device.h"
#include "gen/cli/check/cases/case.h"
#include "gen/cli/check/problem.h"

/* ---- kernels made before they are needed: precompile.c ---- */

typedef struct check_precompile check_precompile;

/* What is to be made. */
typedef struct check_precompile_wish {
  const cli_device *device;
  int jobs;                /* threads; 1: nothing is precompiled */
  int jit, generic;        /* kernels of these rungs */
  const char *tune, *arch; /* of flp_options, or NULL */
  const char *tuned_arch;  /* as check_how has it */
  const check_list *list;  /* cases in the order in which they will run */
} check_precompile_wish;

/* Starts to make the kernels of cases on threads of its own. *out is NULL if there is nothing to be made.
 * wish: device and losses of the list outlive *out. error: MEMORY, DRIVER */
flp_status check_precompile_start(const check_precompile_wish *wish, check_precompile **out);
/* As flp_plan_create of check_precompile_arch, with the kernels that were precompiled, for which it waits. ahead: NULL
 * for none */
flp_status check_precompile_plan(check_precompile *precompile, const flp_spec *spec, const flp_options *options,
                                 flp_plan **out);
/* The architecture that was asked for, or NULL where it has no kernels of a case, whose operands may be aligned to less
 * than it needs: the plan's own is taken there. */
const char *check_precompile_arch(const char *asked, const flp_spec *spec);
/* 1 if tile configurations for an architecture, NULL for none, are for a case's kernels: others, of operands that it
 * does not take, have another choice or none. */
int check_precompile_tunes(const char *arch, const flp_spec *spec);
/* Waits until all are made, and lets go of the threads' contexts. NULL is fine, as below. */
void check_precompile_finish(check_precompile *precompile);
/* Waits for kernels that were begun, begins no other, and forgets all. */
void check_precompile_stop(check_precompile *precompile);

/* ---- a problem on one rung: run.c ---- */

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
