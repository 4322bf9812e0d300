/* session.h: what `flpgen check` was asked for, and one run of it. */
#ifndef FLPGEN_CLI_CHECK_SESSION_H
#define FLPGEN_CLI_CHECK_SESSION_H

#include "gen/cli/check/report.h"
#include "gen/cli/check/run.h"
#include "gen/cli/shared/spec_args.h"

typedef struct check_args {
  cli_spec_args spec;
  check_case given; /* rows, temperature, scale, seed */
  check_how how;    /* rung: AUTO for all */
  check_set set;
  int jobs;      /* kernels that are made at once; 1: none before a case needs it */
  unsigned used; /* a bit for each option that was given, of those that some sets have no use for */
  int has_set, verbose, quiet;
  const char *json; /* file, or "-" */
} check_args;

/* Runs every case and other check of args->set on every rung that this machine offers; adds findings.
 * error: UNAVAILABLE if the rung that was asked for is not offered; MEMORY, DRIVER; that of a loss that cannot be
 * loaded */
flp_status check_session_run(const check_args *args, check_report *report);

#endif
