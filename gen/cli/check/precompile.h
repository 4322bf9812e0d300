/* precompile.h: kernels made before they are needed. */
#ifndef FLPGEN_CLI_CHECK_AHEAD_H
#define FLPGEN_CLI_CHECK_AHEAD_H

#include "gen/cli/call/device.h"
#include "gen/cli/check/case.h"

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
/* As flp_plan_create, with the kernels that were precompiled, for which it waits. ahead: NULL for none */
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

#endif
