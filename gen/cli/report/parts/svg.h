/* svg.h: what charts are made of: scales, ticks, axes, marks and text in inline SVG.
 *
 * Every chart is drawn twice, for desktops and for phones, and the page's style shows one of them: lengths are CSS
 * pixels in both, so text keeps its size. Nothing has an id. Every drawing has a role and a label for those who do not
 * see it. Colours and dashes are classes of style.c: s0 to s6, sn, d1 to d3. */
#ifndef FLPGEN_CLI_REPORT_SVG_H
#define FLPGEN_CLI_REPORT_SVG_H

#include <stdio.h>

enum { REPORT_TICKS_MAX = 24 };

/* Maps values of low..high to pixels of from..to. */
typedef struct report_scale {
  double low, high, from, to;
  int is_log;
} report_scale;

/* A scale that ends on round numbers around low..high; equal, reversed or bad ends are mended. most: ticks at most */
report_scale report_scale_make(double low, double high, int is_log, int most, double from, double to);
/* Pixels of a value, kept within the scale. */
double report_scale_at(const report_scale *scale, double value);
/* Values to mark, ascending: steps of 1, 2 or 5 times a power of ten. Returns their number, at most `most` and
 * REPORT_TICKS_MAX. */
int report_scale_ticks(const report_scale *scale, int most, double out[REPORT_TICKS_MAX]);

/* Drawings of a figure: i = 0 for desktops, 1 for phones. */
enum { REPORT_WIDTHS = 2 };
extern const double REPORT_WIDTH[REPORT_WIDTHS];

void report_svg_start(FILE *out, int i, double height, const char *label);
void report_svg_finish(FILE *out);

typedef enum report_anchor { REPORT_START, REPORT_MIDDLE, REPORT_END } report_anchor;

/* One line of text; shortened with an ellipsis to that many pixels, then whole as a tooltip. class: "" or names of the
 * style */
void report_svg_text(FILE *out, double x, double y, report_anchor anchor, const char *class, double most,
                     const char *text);
/* Lines that a text takes in that many pixels, broken at blanks; at most `lines`. */
int report_svg_line_count(const char *text, double most, int lines);
/* These lines, one every REPORT_LINE pixels; the last is shortened where the text goes on. y: of the first */
enum { REPORT_LINE = 16 };
void report_svg_lines(FILE *out, double x, double y, const char *class, double most, int lines, const char *text);
/* Pixels that a text may take at most in the fonts of the page. */
double report_svg_text_width(const char *text);
void report_svg_line(FILE *out, double x1, double y1, double x2, double y2, const char *class);

/* Grid lines, labels and title of an axis. format: text of a tick */
typedef const char *(*report_format)(double value, char buffer[32]);
const char *report_format_number(double value, char buffer[32]);
const char *report_format_bytes(double value, char buffer[32]);
void report_svg_axis_x(FILE *out, const report_scale *x, double top, double bottom, const char *title, int most,
                       report_format format);
void report_svg_axis_y(FILE *out, const report_scale *y, double left, double right, const char *title, int most,
                       report_format format);

/* ---- marks.c: what tells series apart ---- */

/* Series 0 is flp's own, and alone in shape and colour; from REPORT_SERIES on they are those from 1 on again.
 * REPORT_NEUTRAL belongs to none: for legends of what filled and hollow marks mean. */
enum { REPORT_SERIES = 79, REPORT_COLOURS = 7, REPORT_NEUTRAL = -1, REPORT_CLASS_BYTES = 48 };

typedef struct report_series {
  int shape, colour, dash;
} report_series;
report_series report_series_of(int index);
/* "stem s3 d1": the classes of something of a series. Returns buffer. */
const char *report_series_class(const char *class, int index, char buffer[REPORT_CLASS_BYTES]);

/* A mark of a series. tip: tooltip or NULL */
void report_svg_mark(FILE *out, double x, double y, double radius, int index, int hollow, const char *tip);

/* What stands for a mark that lies beyond the end of an axis. */
void report_svg_arrow(FILE *out, double x, double y, int index, const char *tip);

/* Legend, in HTML so that it wraps. label: what is seen, for those who do not */
void report_legend_start(FILE *out);
void report_legend_mark(FILE *out, int index, int hollow, const char *text);
/* A mark on its line. class: of the line */
void report_legend_series(FILE *out, const char *class, int index, const char *text);
void report_legend_line(FILE *out, const char *class, const char *label, const char *text);
/* A filled box; class: of the style */
void report_legend_swatch(FILE *out, const char *class, const char *label, const char *text);
void report_legend_finish(FILE *out);

#endif
