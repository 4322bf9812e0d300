/* marks.c: what tells series apart: a shape, a colour and a dash each, and the legend that says whose they are.
 *
 * Invariants: the first series, of flp, shares neither shape nor colour with another; of the others shapes are used
 * up after 13, colours after 6 and dashes after 4, so that no two of 78 are alike in all, and neighbours in none. */
#include <string.h>

#include "gen/cli/report/parts/parts.h"
#include "gen/cli/report/parts/svg.h"

/* Paths around 0,0 with radius 1; areas are about the same. What looks most alike stands far apart. */
static const struct {
  const char *name, *path;
} shapes[] = {
    {"circle", "M-1 0A1 1 0 1 0 1 0A1 1 0 1 0 -1 0Z"},
    {"diamond", "M0 -1.3L1.3 0L0 1.3L-1.3 0Z"},
    {"square", "M-.89 -.89H.89V.89H-.89Z"},
    {"triangle", "M0 -1.25L1.2 .9H-1.2Z"},
    {"cross", "M-1.2 -.7L-.7 -1.2L0 -.5L.7 -1.2L1.2 -.7L.5 0L1.2 .7L.7 1.2L0 .5L-.7 1.2L-1.2 .7L-.5 0Z"},
    {"bar", "M-.5 -1.4H.5V1.4H-.5Z"},
    {"triangle pointing down", "M0 1.25L1.2 -.9H-1.2Z"},
    {"star", "M0 -1.4L.35 -.48L1.33 -.43L.57 .19L.82 1.13L0 .6L-.82 1.13L-.57 .19L-1.33 -.43L-.35 -.48Z"},
    {"plus", "M-.4 -1.2H.4V-.4H1.2V.4H.4V1.2H-.4V.4H-1.2V-.4H-.4Z"},
    {"triangle pointing left", "M-1.25 0L.9 -1.2V1.2Z"},
    {"hourglass", "M-1.1 -1.1H1.1L-1.1 1.1H1.1Z"},
    {"triangle pointing right", "M1.25 0L-.9 -1.2V1.2Z"},
    {"flat bar", "M-1.4 -.5H1.4V.5H-1.4Z"},
    {"bow tie", "M-1.1 -1.1V1.1L1.1 -1.1V1.1Z"},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* As style.c has them. */
static const char *const colours[REPORT_COLOURS] = {"blue", "orange", "green", "pink", "olive", "grey", "purple"};
static const char *const dashes[] = {"solid", "dashed", "dotted", "dash-dotted"};
enum { DASHES = sizeof dashes / sizeof dashes[0] };

_Static_assert(REPORT_SERIES == 1 + (SHAPES - 1) * (REPORT_COLOURS - 1),
               "every pair of a shape and a colour but flp's");

report_series report_series_of(int index) {
  if (index <= 0) return (report_series){0, 0, 0};
  int other = (index - 1) % (REPORT_SERIES - 1);
  return (report_series){1 + other % (SHAPES - 1), 1 + other % (REPORT_COLOURS - 1), (1 + other) % DASHES};
}

const char *report_series_class(const char *class, int index, char buffer[REPORT_CLASS_BYTES]) {
  report_series series = report_series_of(index);
  if (index == REPORT_NEUTRAL)
    snprintf(buffer, REPORT_CLASS_BYTES, "%.24s sn", class);
  else
    snprintf(buffer, REPORT_CLASS_BYTES, "%.24s s%d d%d", class, series.colour, series.dash);
  return buffer;
}

void report_svg_mark(FILE *out, double x, double y, double radius, int index, int hollow, const char *tip) {
  char class[REPORT_CLASS_BYTES];
  fprintf(out, "<path transform=\"translate(%.1f %.1f) scale(%g)\" d=\"%s\" class=\"%s%s\"", x, y, radius,
          shapes[report_series_of(index).shape].path, report_series_class("mark", index, class),
          hollow ? " hollow" : "");
  if (!tip) {
    fputs("/>\n", out);
    return;
  }
  fputs("><title>", out);
  report_escape(out, tip);
  fputs("</title></path>\n", out);
}

void report_svg_arrow(FILE *out, double x, double y, int index, const char *tip) {
  char class[REPORT_CLASS_BYTES];
  fprintf(out, "<path transform=\"translate(%.1f %.1f)\" d=\"M-10 -5L-3 0L-10 5M-5 -5L2 0L-5 5\" class=\"%s\"><title>",
          x, y, report_series_class("arrow", index, class));
  report_escape(out, tip);
  fputs("</title></path>\n", out);
}

/* ---- legends ---- */

enum { LEGEND_HEIGHT = 16, LEGEND_MARK = 16, LEGEND_LINE = 34 };

void report_legend_start(FILE *out) {
  fputs("<ul class=\"legend\" aria-label=\"Legend\">\n", out);
}

static void start_item(FILE *out, int width, const char *label) {
  fprintf(out, "<li><svg width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", width,
          LEGEND_HEIGHT, width, LEGEND_HEIGHT);
  report_escape(out, label);
  fputs("\">", out);
}

static void finish_item(FILE *out, const char *text) {
  fputs("</svg>", out);
  report_escape(out, text);
  fputs("</li>\n", out);
}

void report_legend_mark(FILE *out, int index, int hollow, const char *text) {
  char label[64];
  report_series series = report_series_of(index);
  snprintf(label, sizeof label, "%s%s %s", hollow ? "hollow " : "",
           index == REPORT_NEUTRAL ? "grey" : colours[series.colour], shapes[series.shape].name);
  start_item(out, LEGEND_MARK, label);
  report_svg_mark(out, LEGEND_MARK / 2.0, LEGEND_HEIGHT / 2.0, 4.6, index, hollow, NULL);
  finish_item(out, text);
}

void report_legend_series(FILE *out, const char *class, int index, const char *text) {
  char label[96], classes[REPORT_CLASS_BYTES];
  report_series series = report_series_of(index);
  snprintf(label, sizeof label, "%s %s on a %s line", colours[series.colour], shapes[series.shape].name,
           dashes[series.dash]);
  start_item(out, LEGEND_LINE, label);
  report_svg_line(out, 1, LEGEND_HEIGHT / 2.0, LEGEND_LINE - 1, LEGEND_HEIGHT / 2.0,
                  report_series_class(class, index, classes));
  report_svg_mark(out, LEGEND_LINE / 2.0, LEGEND_HEIGHT / 2.0, 4.6, index, 0, NULL);
  finish_item(out, text);
}

void report_legend_line(FILE *out, const char *class, const char *label, const char *text) {
  start_item(out, LEGEND_LINE, label);
  report_svg_line(out, 1, LEGEND_HEIGHT / 2.0, LEGEND_LINE - 1, LEGEND_HEIGHT / 2.0, class);
  finish_item(out, text);
}

void report_legend_swatch(FILE *out, const char *class, const char *label, const char *text) {
  start_item(out, LEGEND_MARK, label);
  fprintf(out, "<rect x=\"1\" y=\"3\" width=\"14\" height=\"10\" class=\"%s\"/>", class);
  finish_item(out, text);
}

void report_legend_finish(FILE *out) {
  fputs("</ul>\n", out);
}
