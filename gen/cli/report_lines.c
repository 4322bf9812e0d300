/* report_lines.c: draws times as multiples of a reference: a mark with its spread on a line, lines in groups. */
#include "report_lines.h"

#include <string.h>

#include "report_svg.h"

enum { ROW = 23, HEAD = 30, TOP = 6, FOOT = 48 };

/* Columns of a drawing: names, plot, values. */
static const struct {
  double names, values;
  int ticks;
} columns[REPORT_WIDTHS] = {{200, 150, 10}, {112, 62, 4}};

static int begins_group(const report_line *lines, int i) {
  return i == 0 || strcmp(lines[i].group, lines[i - 1].group) != 0;
}

static double height_of(const report_line *lines, int count) {
  double height = TOP + FOOT;
  for (int i = 0; i < count; i++) height += ROW + (begins_group(lines, i) ? HEAD : 0);
  return height;
}

/* Around 1 and all marks with their spreads; logarithmic where some are many times others. */
static report_scale scale_of(const report_line *lines, int count, int ticks, double from, double to) {
  double low = 1, high = 1;
  for (int i = 0; i < count; i++) {
    if (!(lines[i].ratio > 0)) continue;
    double least = lines[i].low > 0 ? lines[i].low : lines[i].ratio;
    double most = lines[i].high > 0 ? lines[i].high : lines[i].ratio;
    if (least < low) low = least;
    if (most > high) high = most;
  }
  return report_scale_make(low, high, high / low > 4, ticks, from, to);
}

static void draw_value(FILE *out, const report_line *line, int i, double y) {
  char text[96], ms[REPORT_NUMBER_BYTES];
  report_number(line->ms, 4, ms);
  if (line->ratio > 0 && i == 0)
    snprintf(text, sizeof text, "%.2f\u00d7 \u00b7 %s ms", line->ratio, ms);
  else if (line->ratio > 0)
    snprintf(text, sizeof text, "%.2f\u00d7", line->ratio);
  else
    snprintf(text, sizeof text, "%s ms", ms);
  report_svg_text(out, REPORT_WIDTH[i] - 2, y + 4, REPORT_END, "", columns[i].values - 8, text);
}

static void draw_line(FILE *out, const report_line *line, int i, const report_scale *x, double y) {
  char class[32];
  report_svg_text(out, 12, y + 4, REPORT_START, "", columns[i].names - 20, line->who);
  if (line->reason[0]) {
    char text[300];
    snprintf(text, sizeof text, "not timed: %s", line->reason);
    report_svg_text(out, x->from + 4, y + 4, REPORT_START, "dim", REPORT_WIDTH[i] - x->from - 8, text);
    return;
  }
  draw_value(out, line, i, y);
  if (!(line->ratio > 0)) return;
  double at = report_scale_at(x, line->ratio);
  snprintf(class, sizeof class, "stem s%d", line->series % REPORT_SERIES);
  report_svg_line(out, report_scale_at(x, 1), y, at, y, class);
  snprintf(class, sizeof class, "spread s%d", line->series % REPORT_SERIES);
  if (line->low > 0 && line->high > 0) {
    double low = report_scale_at(x, line->low), high = report_scale_at(x, line->high);
    report_svg_line(out, low, y, high, y, class);
    report_svg_line(out, low, y - 4, low, y + 4, class);
    report_svg_line(out, high, y - 4, high, y + 4, class);
  }
  report_svg_mark(out, at, y, 4.6, line->series, 0, line->tip);
}

static void draw(FILE *out, const report_line *lines, int count, int i, const char *label, const char *axis) {
  double height = height_of(lines, count), y = TOP, bottom = height - FOOT;
  report_scale x =
      scale_of(lines, count, columns[i].ticks, columns[i].names + 6, REPORT_WIDTH[i] - columns[i].values - 6);
  report_svg_start(out, i, height, label);
  report_svg_axis_x(out, &x, TOP, bottom, axis, columns[i].ticks, report_format_number);
  report_svg_line(out, report_scale_at(&x, 1), TOP, report_scale_at(&x, 1), bottom, "base");
  for (int l = 0; l < count; l++) {
    if (begins_group(lines, l)) {
      fprintf(out, "<rect x=\"0\" y=\"%.1f\" width=\"%g\" height=\"%d\" class=\"band\"/>\n", y + 4, REPORT_WIDTH[i],
              HEAD - 8);
      report_svg_text(out, 4, y + HEAD / 2.0 + 4, REPORT_START, "head", REPORT_WIDTH[i] - 8, lines[l].group);
      y += HEAD;
    }
    draw_line(out, &lines[l], i, &x, y + ROW / 2.0);
    y += ROW;
  }
  report_svg_finish(out);
}

void report_lines_draw(FILE *out, const report_line *lines, int count, const char *label, const char *axis) {
  for (int i = 0; i < REPORT_WIDTHS; i++) draw(out, lines, count, i, label, axis);
}
