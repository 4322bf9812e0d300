/* svg.c: scales, text and axes in inline SVG. */
#include "gen/cli/report/parts/svg.h"

#include <math.h>
#include <string.h>

#include "gen/cli/report/parts/parts.h"

/* Widths of the content: 960 less paddings on a desktop, 390 less paddings on a phone. */
const double REPORT_WIDTH[REPORT_WIDTHS] = {880, 350};
static const char *const classes[REPORT_WIDTHS] = {"wide", "narrow"};

/* ---- scales ---- */

/* 1, 2 or 5 times a power of ten, at least size. */
static double step_from(double size) {
  double power = pow(10, floor(log10(size)));
  double digit = size / power;
  return power * (digit <= 1 + 1e-9 ? 1 : digit <= 2 + 1e-9 ? 2 : digit <= 5 + 1e-9 ? 5 : 10);
}

static double linear_step(double low, double high, int most) {
  double step = step_from((high - low) / (most > 2 ? most - 1 : 1));
  while (floor(high / step + 1e-9) - ceil(low / step - 1e-9) + 1 > most) step = step_from(step * 1.5);
  return step;
}

/* Below this ratio of its ends a logarithmic scale has steps of equal size. */
static const double least_ratio = 4;

static int has_equal_steps(const report_scale *s) {
  return !s->is_log || s->high / s->low < least_ratio;
}

/* The candidates of a logarithmic scale: eight a decade (stride -1), 1-2-5 (0), powers of ten (1), and every second,
 * third ... of these. Returns more than most where they are too many. */
static int log_ticks(const report_scale *s, int stride, int most, double *out) {
  static const double coarse[] = {1, 2, 5}, fine[] = {1, 1.5, 2, 3, 4, 5, 6, 8};
  const double *digits = stride < 0 ? fine : coarse;
  int digit_count = stride < 0 ? 8 : stride == 0 ? 3 : 1;
  int count = 0, first = (int)floor(log10(s->low) + 1e-9), last = (int)ceil(log10(s->high) - 1e-9);
  for (int e = first; e <= last; e++)
    for (int d = 0; d < digit_count; d++) {
      double value = digits[d] * pow(10, e);
      if (stride > 1 && (e - first) % stride != 0) continue;
      if (value < s->low * (1 - 1e-9) || value > s->high * (1 + 1e-9)) continue;
      if (count == most) return most + 1;
      out[count++] = value;
    }
  return count;
}

int report_scale_ticks(const report_scale *s, int most, double out[REPORT_TICKS_MAX]) {
  if (most > REPORT_TICKS_MAX) most = REPORT_TICKS_MAX;
  if (most < 2) most = 2;
  if (!has_equal_steps(s)) {
    for (int stride = -1; stride < 700; stride++) {
      int count = log_ticks(s, stride, most, out);
      if (count <= most) return count;
    }
    return 0;
  }
  double step = linear_step(s->low, s->high, most);
  int count = 0;
  for (double i = ceil(s->low / step - 1e-9); i * step <= s->high + step * 1e-9 && count < most; i++)
    out[count++] = i == 0 ? 0 : i * step;
  return count;
}

/* The nearest tick below (or above) a value: 1-2-5, or eight a decade. */
static double log_end(double value, int above, int is_fine) {
  static const double coarse[] = {1, 2, 5, 10}, fine[] = {1, 1.5, 2, 3, 4, 5, 6, 8, 10};
  double power = pow(10, floor(log10(value) + 1e-12)), digit = value / power, best = above ? 10 : 1;
  const double *digits = is_fine ? fine : coarse;
  int count = is_fine ? 9 : 4;
  for (int i = 0; i < count; i++) {
    int d = above ? count - 1 - i : i;
    if (above ? digits[d] >= digit * (1 - 1e-9) : digits[d] <= digit * (1 + 1e-9)) best = digits[d];
  }
  return best * power;
}

report_scale report_scale_make(double low, double high, int is_log, int most, double from, double to) {
  if (!isfinite(low) || !isfinite(high)) low = high = 1;
  if (high < low) low = high;
  if (is_log && low < 1e-30) low = 1e-30;
  if (is_log && high > 1e30) high = 1e30;
  if (is_log && high < low) high = low;
  if (high - low < 1e-12 * fabs(high) || high == low) {
    double margin = high == 0 ? 1 : fabs(high) * 0.1;
    low -= margin;
    high += margin;
  }
  report_scale s = {low, high, from, to, is_log};
  if (!has_equal_steps(&s)) {
    int is_fine = high / low < 20;
    s.low = log_end(low, 0, is_fine);
    s.high = log_end(high, 1, is_fine);
    return s;
  }
  double step = linear_step(low, high, 2 * (most > 2 ? most : 2));
  double start = floor(low / step + 1e-9) * step;
  s.low = is_log && start <= 0 ? low : start;
  s.high = ceil(high / step - 1e-9) * step;
  return s;
}

double report_scale_at(const report_scale *s, double value) {
  if (!(value > s->low)) value = s->low;
  if (value > s->high) value = s->high;
  double part = s->is_log ? log(value / s->low) / log(s->high / s->low) : (value - s->low) / (s->high - s->low);
  return s->from + part * (s->to - s->from);
}

/* ---- text ---- */

/* Widths in hundredths of 12 pixels' em, of the widest of the page's fonts. */
static double glyph_width(unsigned char byte) {
  if ((byte & 0xc0) == 0x80) return 0; /* the rest of a sequence */
  if (byte >= 0xe0) return 12;
  if (strchr("ijl.,:;|!'()[] /ft", byte) && byte) return 4.8;
  if (strchr("mwMW@%", byte) && byte) return 12;
  return byte >= 'A' && byte <= 'Z' ? 8.6 : 7.7;
}

double report_svg_text_width(const char *text) {
  double width = 0;
  for (const char *at = text; *at; at++) width += glyph_width((unsigned char)*at);
  return width;
}

/* Bytes of the text that fit, ending between characters. */
static size_t fitting_bytes(const char *text, double most) {
  double width = 0;
  size_t end = 0;
  for (size_t i = 0; text[i]; i++) {
    if (((unsigned char)text[i] & 0xc0) != 0x80) end = i;
    width += glyph_width((unsigned char)text[i]);
    if (width > most) return end;
  }
  return strlen(text);
}

void report_svg_text(FILE *out, double x, double y, report_anchor anchor, const char *class, double most,
                     const char *text) {
  static const char *const anchors[] = {"start", "middle", "end"};
  fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"", x, y, anchors[anchor]);
  if (class[0]) fprintf(out, " class=\"%s\"", class);
  fputc('>', out);
  if (report_svg_text_width(text) <= most) {
    report_escape(out, text);
  } else {
    char shortened[256];
    size_t bytes = fitting_bytes(text, most - 12);
    if (bytes > sizeof shortened - 1) bytes = sizeof shortened - 1;
    snprintf(shortened, sizeof shortened, "%.*s", (int)bytes, text);
    report_escape(out, shortened);
    fputs("\xe2\x80\xa6<title>", out);
    report_escape(out, text);
    fputs("</title>", out);
  }
  fputs("</text>\n", out);
}

/* Bytes of the first line, up to a blank if there is one. */
static size_t line_bytes(const char *text, double most) {
  size_t bytes = fitting_bytes(text, most);
  if (!text[bytes]) return bytes;
  size_t blank = bytes;
  while (blank > 0 && text[blank] != ' ') blank--;
  return blank ? blank : bytes ? bytes : 1;
}

int report_svg_line_count(const char *text, double most, int lines) {
  int count = 1;
  while (count < lines && text[line_bytes(text, most)]) {
    text += line_bytes(text, most);
    while (*text == ' ') text++;
    count++;
  }
  return count;
}

void report_svg_lines(FILE *out, double x, double y, const char *class, double most, int lines, const char *text) {
  for (; lines > 1; lines--, y += REPORT_LINE) {
    char line[256];
    size_t bytes = line_bytes(text, most);
    if (!text[bytes]) break;
    snprintf(line, sizeof line, "%.*s", (int)bytes, text);
    report_svg_text(out, x, y, REPORT_START, class, most, line);
    text += bytes;
    while (*text == ' ') text++;
  }
  report_svg_text(out, x, y, REPORT_START, class, most, text);
}

/* ---- drawing ---- */

void report_svg_start(FILE *out, int i, double height, const char *label) {
  fprintf(out, "<svg class=\"%s\" viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\" role=\"img\" aria-label=\"",
          classes[i], REPORT_WIDTH[i], height, REPORT_WIDTH[i], height);
  report_escape(out, label);
  fputs("\">\n", out);
}

void report_svg_finish(FILE *out) {
  fputs("</svg>\n", out);
}

void report_svg_line(FILE *out, double x1, double y1, double x2, double y2, const char *class) {
  fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1, x2, y2, class);
}

/* ---- axes ---- */

const char *report_format_number(double value, char buffer[32]) {
  return report_number(value, 6, buffer);
}

const char *report_format_bytes(double value, char buffer[32]) {
  static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  int unit = 0;
  while (unit < 5 && value >= 999.5) {
    value /= 1000;
    unit++;
  }
  snprintf(buffer, 32, "%.3g %s", value, units[unit]);
  return buffer;
}

void report_svg_axis_x(FILE *out, const report_scale *x, double top, double bottom, const char *title, int most,
                       report_format format) {
  double ticks[REPORT_TICKS_MAX];
  int count = report_scale_ticks(x, most, ticks);
  for (int i = 0; i < count; i++) {
    char text[32];
    double at = report_scale_at(x, ticks[i]);
    report_svg_line(out, at, top, at, bottom, "grid");
    report_svg_text(out, at, bottom + 17, REPORT_MIDDLE, "tick", 90, format(ticks[i], text));
  }
  report_svg_line(out, x->from, bottom, x->to, bottom, "axis");
  report_svg_text(out, (x->from + x->to) / 2, bottom + 36, REPORT_MIDDLE, "title", 2 * (x->to - x->from), title);
}

void report_svg_axis_y(FILE *out, const report_scale *y, double left, double right, const char *title, int most,
                       report_format format) {
  double ticks[REPORT_TICKS_MAX];
  int count = report_scale_ticks(y, most, ticks);
  for (int i = 0; i < count; i++) {
    char text[32];
    double at = report_scale_at(y, ticks[i]);
    report_svg_line(out, left, at, right, at, "grid");
    report_svg_text(out, left - 7, at + 4, REPORT_END, "tick", left - 8, format(ticks[i], text));
  }
  report_svg_line(out, left, y->from, left, y->to, "axis");
  report_svg_text(out, 2, y->to - 14, REPORT_START, "title", right, title);
}
