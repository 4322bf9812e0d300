/* progress.h: a bar on stderr while something long runs; silent unless stderr is a terminal. */
#ifndef FLPGEN_CLI_PROGRESS_H
#define FLPGEN_CLI_PROGRESS_H

#include <stdint.h>

typedef struct cli_progress {
  const char *label; /* borrowed */
  int shown;         /* stderr is a terminal and quiet was not asked for */
  double start, last_drawn;
} cli_progress;

/* Starts a bar. quiet: 1 to show nothing whatever stderr is */
void cli_progress_start(cli_progress *progress, const char *label, int quiet);
/* Draws done of total, at most ten times a second. */
void cli_progress_update(cli_progress *progress, int64_t done, int64_t total);
/* Wipes the bar, so that what follows starts on a clean line. */
void cli_progress_end(cli_progress *progress);

#endif
