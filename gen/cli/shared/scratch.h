/* scratch.h: a temporary directory of the command, for kernels that it makes only to try or to time them. */
#ifndef FLPGEN_CLI_SCRATCH_H
#define FLPGEN_CLI_SCRATCH_H

#include "runtime/flp.h"

typedef struct cli_scratch {
  char root[256];    /* "": none */
  char kernels[272]; /* a kernel cache in it, not made yet */
} cli_scratch;

/* Makes the directory, and names a cache of machine code in it to the driver (CUDA_CACHE_PATH), which reads the
 * environment when it is opened. The environment of a process with threads must not be changed, so this comes before
 * any is started; else the driver's cache stays shared, with a warning. verb: "bench". error: IO; ARGUMENT */
flp_status cli_scratch_open(const char *verb, cli_scratch *out);

/* Removes the directory and all that is in it. */
void cli_scratch_close(cli_scratch *scratch);

#endif
