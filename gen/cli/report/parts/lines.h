/* lines.h: a chart of times as multiples of a reference: one line a time, in groups. */
#ifndef FLPGEN_CLI_REPORT_LINES_H
#define FLPGEN_CLI_REPORT_LINES_H

#include "gen/cli/report/parts/parts.h"

enum { REPORT_WHO_BYTES = 192 };

typedef struct report_line {
  char group[REPORT_SHAPE_BYTES]; /* lines of one group follow each other */
  char who[REPORT_WHO_BYTES];     /* one name, or, where there is no time, the names that share the reason */
  char tip[256];
  int series;
  double ratio, low, high, ms; /* NaN where unknown */
  const char *reason;          /* why there is no time; "" otherwise */
} report_line;

/* Times of more multiples than this lie beyond the axis. */
extern const double REPORT_LINES_FAR;
/* Draws the lines for desktops and phones; the axis counts multiples of the reference. */
void report_lines_draw(FILE *out, const report_line *lines, int count, const char *label, const char *axis);

#endif
