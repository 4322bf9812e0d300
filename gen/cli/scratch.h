/* scratch.h: a temporary directory of the command, for kernels that it makes only to try or to time them. */
#ifndef FLPGEN_CLI_SCRATCH_H
#define FLPGEN_CLI_SCRATCH_H

#include "../../runtime/flp.h"

typedef struct cli_scratch {
  char root[256];    /* "": none */
  char kernels[272]; /* a kernel cache in it, not made yet */
} cli_scratch;

/* What main was called with, so that cli_scratch_open can start the command anew. */
void cli_scratch_set_command(char **argv);

/* Makes the directory, and in it a cache of machine code for the driver alone.
 *
 * Where that lies the driver reads from the environment (CUDA_CACHE_PATH), which a process with threads must not
 * change. So the command starts itself anew, once, in an environment that names it: this does not return then, and is
 * to be called before anything is printed or opened. Without a command that was set the driver's cache stays shared.
 * verb: "bench". error: IO; ARGUMENT */
flp_status cli_scratch_open(const char *verb, cli_scratch *out);

/* Removes the directory and all that is in it. */
void cli_scratch_close(cli_scratch *scratch);

#endif
