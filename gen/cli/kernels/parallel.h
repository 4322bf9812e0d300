/* parallel.h: independent jobs on every CPU, behind a progress bar. */
#ifndef FLPGEN_CLI_PARALLEL_H
#define FLPGEN_CLI_PARALLEL_H

#include <stddef.h>

#include "gen/cli/shared/common.h"

/* Does job i of a context that all threads share; a failure has its detail sentence. */
typedef flp_status (*cli_job_fn)(void *context, size_t i);

/* Does jobs 0 to count - 1, which are begun in that order; none is begun after one has failed.
 * label: of the progress bar, or NULL for none. error: that of the first job that fails, whatever the number of
 * threads */
flp_status cli_parallel(cli_job_fn job, void *context, size_t count, const char *label);

#endif
