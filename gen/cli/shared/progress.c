/* progress.c: a bar on stderr while something long runs. */
#include "gen/cli/shared/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "gen/cli/shared/common.h"

enum { BAR_WIDTH = 40 };

void cli_progress_start(cli_progress *progress, const char *label, int quiet) {
  *progress = (cli_progress){.label = label, .shown = !quiet && isatty(STDERR_FILENO), .start = cli_seconds_now()};
  if (progress->shown) fprintf(stderr, "%s ...", label);
}

void cli_progress_update(cli_progress *progress, int64_t done, int64_t total) {
  double now = cli_seconds_now();
  if (!progress->shown || total <= 0 || (done < total && now - progress->last_drawn < 0.1)) return;
  progress->last_drawn = now;
  double fraction = (double)done / (double)total;
  int filled = (int)(fraction * BAR_WIDTH);
  double left = done > 0 ? (now - progress->start) * (1.0 - fraction) / fraction : 0.0;
  fprintf(stderr, "\r\033[K%s [", progress->label);
  for (int i = 0; i < BAR_WIDTH; i++) fputc(i < filled ? '#' : '.', stderr);
  fprintf(stderr, "] %3d%%  %.0f s left", (int)(100.0 * fraction), left);
}

void cli_progress_end(cli_progress *progress) {
  if (progress->shown) fprintf(stderr, "\r\033[K");
  progress->shown = 0;
}
