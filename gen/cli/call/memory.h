/* memory.h: host memory that is let go of together.
 *
 *     cli_memory memory = {0};
 *     double *a = cli_memory_take(&memory, n * sizeof *a), *b = cli_memory_take(&memory, n * sizeof *b);
 *     flp_status status = cli_memory_status(&memory, "two rows");
 *     ...
 *     cli_memory_free(&memory); */
#ifndef FLPGEN_CLI_MEMORY_H
#define FLPGEN_CLI_MEMORY_H

#include <stddef.h>

#include "runtime/flp.h"

typedef struct cli_memory {
  struct cli_block *last;
  int is_short; /* something was not there to be taken */
} cli_memory;

/* So many bytes and a few behind them; NULL where there are none. */
void *cli_memory_take(cli_memory *memory, size_t bytes);
/* The same, of zeros. */
void *cli_memory_take_zeros(cli_memory *memory, size_t bytes);
/* error: MEMORY naming what, if something was not there */
flp_status cli_memory_status(const cli_memory *memory, const char *what);
void cli_memory_free(cli_memory *memory);

#endif
