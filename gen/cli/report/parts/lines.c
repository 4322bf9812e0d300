/* lines.c: draws times as multiples of a reference: a mark with its spread on a line, lines in groups. */
#include "gen/cli/report/parts/lines.h"

#include <string.h>

#include "gen/cli/report/parts/svg.h"

enum { HEAD = 14, TOP = 6, FOOT = 48, GROUP_LINES_MAX = 3, WHO_LINES_MAX = 3, REASON_LINES_MAX = 4 };

/* Places in a drawing: on a desktop names, plot and values stand side by side, on a phone the plot is below both. */
static const struct {
  double row, text, plot; /* height of a line whose name takes one; of it, where its text and its marks are */
  double names, values;   /* pixels that they take */
  double left, right;     /* of the plot */
  int is_below, ticks;    /* the plot is below the text */
} places[REPORT_WIDTHS] = {{23, 15.5, 11.5, 250, 150, 272, 724, 0, 9}, {38, 14, 26, 212, 122, 14, 334, 1, 6}};

static int begins_group(const report_line *lines, int i) {
  return i == 0 || strcmp(lines[i].group, lines[i - 1].group) != 0;
}

static int group_lines(const report_line *line, int i) {
  return report_svg_line_count(line->group, REPORT_WIDTH[i] - 8, GROUP_LINES_MAX);
}

static double reason_width(int i) {
  return REPORT_WIDTH[i] - 16;
}

/* What stands for a line without a time. */
enum { REASON_BYTES = REPORT_WHO_BYTES + 256 };
static const char *reason_text(const report_line *line, char out[REASON_BYTES]) {
  snprintf(out, REASON_BYTES, "not timed: %s: %.240s", line->who, line->reason);
  return out;
}

static int text_lines(const report_line *line, int i) {
  char text[REASON_BYTES];
  if (line->reason[0]) return report_svg_line_count(reason_text(line, text), reason_width(i), REASON_LINES_MAX);
  return report_svg_line_count(line->who, places[i].names, WHO_LINES_MAX);
}

static double line_height(const report_line *line, int i) {
  double one = line->reason[0] ? places[0].row : places[i].row;
  return one + REPORT_LINE * (text_lines(line, i) - 1);
}

static double height_of(const report_line *lines, int count, int i) {
  double height = TOP + FOOT;
  for (int l = 0; l < count; l++)
    height += line_height(&lines[l], i) + (begins_group(lines, l) ? HEAD + REPORT_LINE * group_lines(&lines[l], i) : 0);
  return height;
}

/* The slowest would squash the rest: what is slower ends in an arrow. */
const double REPORT_LINES_FAR = 3.5;

/* Around 1 and all marks with their spreads, as far as REPORT_LINES_FAR; logarithmic where some are many times
 * others. */
static report_scale scale_of(const report_line *lines, int count, int ticks, double from, double to) {
  double low = 1, high = 1;
  for (int i = 0; i < count; i++) {
    if (!(lines[i].ratio > 0)) continue;
    double least = lines[i].low > 0 ? lines[i].low : lines[i].ratio;
    double most = lines[i].high > 0 ? lines[i].high : lines[i].ratio;
    if (least < low) low = least;
    if (most > high) high = most;
  }
  if (high > REPORT_LINES_FAR) high = REPORT_LINES_FAR;
  return report_scale_make(low, high, high / low > 10, ticks, from, to);
}

static void draw_value(FILE *out, const report_line *line, int i, double y) {
  char text[96], ms[REPORT_NUMBER_BYTES];
  report_places(line->ms, line->ms < 10 ? 3 : line->ms < 100 ? 2 : 1, ms);
  if (line->ratio > 0)
    snprintf(text, sizeof text, "%.*f\u00d7 \u00b7 %s ms", line->ratio < 2 ? 3 : 2, line->ratio, ms);
  else
    snprintf(text, sizeof text, "%s ms", ms);
  report_svg_text(out, REPORT_WIDTH[i] - 2, y + places[i].text, REPORT_END, "", places[i].values, text);
}

static void draw_reason(FILE *out, const report_line *line, int i, double y) {
  char text[REASON_BYTES];
  report_svg_lines(out, 12, y + places[i].text, "dim", reason_width(i), text_lines(line, i), reason_text(line, text));
}

/* y: of its marks */
static void draw_marks(FILE *out, const report_line *line, const report_scale *x, double y) {
  char class[REPORT_CLASS_BYTES];
  double at = report_scale_at(x, line->ratio);
  report_svg_line(out, report_scale_at(x, 1), y, at, y, report_series_class("stem", line->series, class));
  if (line->ratio > x->high) {
    report_svg_arrow(out, at, y, line->series, line->tip);
    return;
  }
  report_series_class("spread", line->series, class);
  if (line->low > 0 && line->high > 0) {
    double low = report_scale_at(x, line->low), high = report_scale_at(x, line->high);
    report_svg_line(out, low, y, high, y, class);
    report_svg_line(out, low, y - 4, low, y + 4, class);
    report_svg_line(out, high, y - 4, high, y + 4, class);
  }
  report_svg_mark(out, at, y, 4.6, line->series, 0, line->tip);
}

/* y: its top. The reference is drawn where there are marks, so that it runs through no text. */
static void draw_line(FILE *out, const report_line *line, int i, const report_scale *x, double y) {
  if (line->reason[0]) {
    draw_reason(out, line, i, y);
    return;
  }
  double more = REPORT_LINE * (text_lines(line, i) - 1),
         plot = y + places[i].plot + (places[i].is_below ? more : more / 2);
  double bottom = y + places[i].row + more, top = places[i].is_below ? plot - 6 : y;
  report_svg_line(out, report_scale_at(x, 1), top, report_scale_at(x, 1), bottom, "base");
  report_svg_lines(out, 12, y + places[i].text, "", places[i].names, text_lines(line, i), line->who);
  draw_value(out, line, i, y + (places[i].is_below ? 0 : more / 2));
  if (line->ratio > 0) draw_marks(out, line, x, plot);
}

/* A bar with the name of the group that a line begins; returns its height. */
static double draw_group(FILE *out, const report_line *line, int i, double y) {
  int lines = group_lines(line, i);
  double height = HEAD + REPORT_LINE * lines;
  fprintf(out, "<rect x=\"0\" y=\"%.1f\" width=\"%g\" height=\"%g\" class=\"band\"/>\n", y + 4, REPORT_WIDTH[i],
          height - 8);
  report_svg_lines(out, 4, y + 19, "head", REPORT_WIDTH[i] - 8, lines, line->group);
  return height;
}

static void draw(FILE *out, const report_line *lines, int count, int i, const char *label, const char *axis) {
  double height = height_of(lines, count, i), y = TOP, bottom = height - FOOT;
  report_scale x = scale_of(lines, count, places[i].ticks, places[i].left, places[i].right);
  report_svg_start(out, i, height, label);
  report_svg_axis_x(out, &x, TOP, bottom, axis, places[i].ticks, report_format_number);
  for (int l = 0; l < count; l++) {
    if (begins_group(lines, l)) y += draw_group(out, &lines[l], i, y);
    draw_line(out, &lines[l], i, &x, y);
    y += line_height(&lines[l], i);
  }
  report_svg_finish(out);
}

void report_lines_draw(FILE *out, const report_line *lines, int count, const char *label, const char *axis) {
  for (int i = 0; i < REPORT_WIDTHS; i++) draw(out, lines, count, i, label, axis);
}
