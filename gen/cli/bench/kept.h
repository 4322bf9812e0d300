/* kept.h: kept sets of rows as sharp as a trained model's; see kept.c. */
#ifndef FLPGEN_CLI_BENCH_KEPT_H
#define FLPGEN_CLI_BENCH_KEPT_H

#include "gen/cli/bench/rows.h"
#include "gen/cli/call/lists.h"

/* Rows that rows_make has made. */
typedef struct bench_kept {
  const rows_request *rows;
  const int64_t *target; /* (n), which every list has where it is of the vocabulary */
  const float *entropy;  /* (n) */
} bench_kept;

/* Lists of the rows, in the lengths of those that were drawn by chance: the longest for the flattest row.
 * error: MEMORY */
flp_status bench_kept_draw(const bench_kept *kept, const cli_lists *drawn, cli_lists *out);

#endif
