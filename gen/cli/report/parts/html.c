/* html.c: text, tables and figures of the page. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "gen/cli/report/parts/parts.h"

/* Bytes of the UTF-8 sequence at text, 0 if it is none: overlong, a surrogate, beyond U+10FFFF or truncated. */
static int sequence_bytes(const unsigned char *text) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  if (text[0] < 0x80) return 1;
  int count = text[0] >= 0xf0 && text[0] < 0xf5 ? 4 : text[0] >= 0xe0 && text[0] < 0xf0 ? 3 : text[0] >= 0xc2 ? 2 : 0;
  if (count == 0 || text[0] >= 0xf5) return 0;
  uint32_t value = text[0] & (0xffu >> (count + 1));
  for (int i = 1; i < count; i++) {
    if ((text[i] & 0xc0) != 0x80) return 0;
    value = value << 6 | (text[i] & 0x3f);
  }
  /* C1 controls and the directional ones would change how the rest reads. */
  int hidden = value < 0xa0 || (value >= 0x202a && value <= 0x202e) || (value >= 0x2066 && value <= 0x2069);
  return value < least[count] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000) || hidden || value == 0xfffe ||
                 value == 0xffff
             ? 0
             : count;
}

static const char *entity_of(unsigned char byte) {
  switch (byte) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    case '\n':
    case '\t':
      return " ";
    default:
      return byte < 0x20 || byte == 0x7f ? "\xef\xbf\xbd" : NULL;
  }
}

void report_escape(FILE *out, const char *text) {
  for (const unsigned char *at = (const unsigned char *)text; *at;) {
    int bytes = sequence_bytes(at);
    const char *entity = bytes == 1 ? entity_of(*at) : bytes == 0 ? "\xef\xbf\xbd" : NULL;
    if (entity)
      fputs(entity, out);
    else
      fwrite(at, 1, (size_t)bytes, out);
    at += bytes ? bytes : 1;
  }
}

const char *report_number(double value, int digits, char buffer[REPORT_NUMBER_BYTES]) {
  if (!isfinite(value)) return strcpy(buffer, "\xe2\x80\x93");
  double size = fabs(value);
  if (size != 0 && (size < 1e-3 || size >= 1e9)) {
    snprintf(buffer, REPORT_NUMBER_BYTES, "%.*g", digits, value);
    return buffer;
  }
  int whole = size >= 1 ? (int)floor(log10(size)) + 1 : 1;
  int places = digits > whole ? digits - whole : 0;
  snprintf(buffer, REPORT_NUMBER_BYTES, "%.*f", places, value);
  if (!strchr(buffer, '.')) return buffer;
  size_t length = strlen(buffer);
  while (buffer[length - 1] == '0') buffer[--length] = 0;
  if (buffer[length - 1] == '.') buffer[length - 1] = 0;
  return buffer;
}

const char *report_places(double value, int places, char buffer[REPORT_NUMBER_BYTES]) {
  if (!isfinite(value) || fabs(value) >= 1e15 || (value != 0 && fabs(value) < 1e-3))
    return report_number(value, 4, buffer);
  snprintf(buffer, REPORT_NUMBER_BYTES, "%.*f", places, value);
  return buffer;
}

/* ---- tables ---- */

void report_table_start(FILE *out, const char *caption, int rows, const char *const *columns, int count) {
  fputs("<details><summary>Table: ", out);
  report_escape(out, caption);
  fprintf(out, " (%d %s)</summary>\n<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>", rows,
          rows == 1 ? "row" : "rows");
  for (int i = 0; i < count; i++) {
    int number = columns[i][0] == '#';
    fputs(number ? "<th scope=\"col\" class=\"n\">" : "<th scope=\"col\">", out);
    report_escape(out, columns[i] + number);
    fputs("</th>", out);
  }
  fputs("</tr></thead><tbody>\n", out);
}

void report_table_row(FILE *out, const char *const *columns, int count, const char *const *cells) {
  fputs("<tr>", out);
  for (int i = 0; i < count; i++) {
    fputs(columns[i][0] == '#' ? "<td class=\"n\">" : "<td>", out);
    report_escape(out, cells[i]);
    fputs("</td>", out);
  }
  fputs("</tr>\n", out);
}

void report_table_finish(FILE *out) {
  fputs("</tbody></table></div></details>\n", out);
}

/* ---- figures ---- */

void report_figure_start(FILE *out, const char *name, const char *title, const char *about) {
  fputs("<figure class=\"", out);
  report_escape(out, name);
  fputs("\"><figcaption><h3>", out);
  report_escape(out, title);
  fputs("</h3><p>", out);
  report_escape(out, about);
  fputs("</p></figcaption>\n", out);
}

void report_figure_finish(FILE *out) {
  fputs("</figure>\n", out);
}

void report_figure_missing(FILE *out, const char *name, const char *title, const char *why) {
  fputs("<figure class=\"missing ", out);
  report_escape(out, name);
  fputs("\"><figcaption><h3>", out);
  report_escape(out, title);
  fputs("</h3></figcaption><p><strong>Not drawn.</strong> ", out);
  report_escape(out, why);
  fputs("</p></figure>\n", out);
}

void report_note(FILE *out, const char *text) {
  fputs("<p class=\"note\">", out);
  report_escape(out, text);
  fputs("</p>\n", out);
}
