/* text.c: text for people: how wide it may be, and where its lines end. */
#include "gen/cli/shared/text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "runtime/base/printable.h"

enum { COLUMNS_MAX = 100000, LEAST_COLUMNS = 20 };

size_t cli_text_width(void) {
  struct winsize size;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return size.ws_col < LEAST_COLUMNS ? LEAST_COLUMNS : size.ws_col;
  const char *text = getenv("COLUMNS");
  char *end = NULL;
  long columns = text ? strtol(text, &end, 10) : 0;
  if (!text || end == text || *end || columns <= 0 || columns > COLUMNS_MAX) return SIZE_MAX / 4;
  return columns < LEAST_COLUMNS ? LEAST_COLUMNS : (size_t)columns;
}

/* ---- words ---- */

static int is_start(char byte) {
  return ((unsigned char)byte & 0xc0) != 0x80;
}

static size_t count_columns(const char *text, size_t bytes) {
  size_t columns = 0;
  for (size_t i = 0; i < bytes; i++) columns += is_start(text[i]) ? 1 : 0;
  return columns;
}

size_t cli_text_columns(const char *text) {
  return count_columns(text, strlen(text));
}

/* Whether the word that begins here is one of those that belong to the number beside them. */
static int is_unit(const char *word) {
  static const char *const units[] = {"B",  "kB",   "MB",    "GB",    "TB",    "PB",    "EB",    "%", "s",
                                      "ms", "FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "x", "us"};
  size_t length = strcspn(word, " \n,;:)/");
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
    if (strlen(units[i]) == length && memcmp(units[i], word, length) == 0) return 1;
  return 0;
}

/* Whether a line may not end at this blank: "12 MB", "151936 x 4096". */
static int is_glue(const char *text, const char *blank) {
  if (blank == text) return 0;
  char before = blank[-1], after = blank[1];
  if (isdigit((unsigned char)before)) return is_unit(blank + 1);
  int follows_x = before == 'x' && blank - text >= 3 && blank[-2] == ' ' && isdigit((unsigned char)blank[-3]);
  return follows_x && isdigit((unsigned char)after);
}

/* Bytes up to the next place where a line may end: a blank, a line feed or the end. */
static size_t word_bytes(const char *text, const char *from) {
  size_t i = 0;
  while (from[i] && from[i] != '\n' && (from[i] != ' ' || is_glue(text, from + i))) i++;
  return i;
}

/* Whether a line may end behind character i of a word: in lists, paths and sums, and between the parts of
 * "recompute-rows", but not of "--rows" or "-1". */
static int is_joint(const char *word, size_t i) {
  static const char marks[] = ",;:=/+";
  char mark = word[i], next = word[i + 1];
  if (mark == '-') return i > 0 && isalpha((unsigned char)word[i - 1]) && isalpha((unsigned char)next);
  return mark && strchr(marks, mark) && next && !strchr(marks, next);
}

size_t cli_text_least(const char *text, int in_words) {
  size_t least = 0;
  for (const char *at = text; *at;) {
    size_t bytes = word_bytes(text, at), from = 0;
    for (size_t i = 0; i < bytes; i++) {
      if (i + 1 < bytes && !(in_words && is_joint(at, i))) continue;
      size_t columns = count_columns(at + from, i + 1 - from);
      if (columns > least) least = columns;
      from = i + 1;
    }
    at += bytes;
    at += *at != 0;
  }
  return least;
}

/* ---- lines ---- */

/* The part of a word that is wider than a line. */
static size_t divide(const char *word, size_t bytes, size_t width) {
  size_t columns = 0, joint = 0, i = 0;
  for (; i < bytes; i++) {
    if (is_start(word[i]) && columns++ == width) break;
    if (columns <= width && is_joint(word, i)) joint = i + 1;
  }
  return joint ? joint : i;
}

int cli_text_next(const char **text, size_t width, cli_text_line *out) {
  const char *start = *text;
  if (!*start) return 0;
  size_t used = 0, columns = 0;
  for (const char *at = start;;) {
    size_t blanks = strspn(at, " "), bytes = word_bytes(start, at + blanks);
    size_t wanted = count_columns(at, blanks + bytes);
    if (columns + wanted > width && used == 0) bytes = divide(at + blanks, bytes, width > blanks ? width - blanks : 1);
    if (columns + wanted > width && used > 0) break;
    if (bytes == 0) break; /* blanks at the end are left out */
    used = (size_t)(at - start) + blanks + bytes;
    columns += wanted;
    at = start + used;
    if (*at != ' ' || columns >= width) break;
  }
  *out = (cli_text_line){start, used, count_columns(start, used)};
  const char *next = start + used;
  if (*next == ' ') next += strspn(next, " ");
  *text = next + (*next == '\n');
  return 1;
}

/* The first line begins with the label. text: freed here; NULL if there was no memory for it */
static void print_paragraph(size_t hang, const char *label, char *text) {
  if (!text) {
    puts("(out of memory: a line is missing)");
    return;
  }
  flp_make_printable(text);
  size_t width = cli_text_width(), indent = hang + LEAST_COLUMNS > width ? 0 : hang;
  size_t used = label[0] ? (size_t)printf("%-*s ", (int)hang - 1, label) : 0;
  const char *at = text;
  cli_text_line line;
  if (!*at) putchar('\n');
  while (cli_text_next(&at, used < width ? width - used : 1, &line)) {
    printf("%.*s\n", (int)line.bytes, line.text);
    used = *at ? (size_t)printf("%*s", (int)indent, "") : 0;
  }
  free(text);
}

void cli_append(char *text, size_t capacity, const char *separator, const char *format, ...) {
  size_t used = strlen(text);
  va_list list;
  if (used && used < capacity) used += (size_t)snprintf(text + used, capacity - used, "%s", separator);
  if (used >= capacity) return;
  va_start(list, format);
  vsnprintf(text + used, capacity - used, format, list);
  va_end(list);
}

void cli_print_field(size_t indent, const char *label, const char *format, ...) {
  char *text = NULL;
  va_list list;
  va_start(list, format);
  int length = vasprintf(&text, format, list);
  va_end(list);
  print_paragraph(indent, label, length < 0 ? NULL : text);
}

void cli_complain(const char *name, const char *format, ...) {
  char *text = NULL;
  va_list list;
  va_start(list, format);
  int length = vasprintf(&text, format, list);
  va_end(list);
  if (length < 0) text = NULL;
  if (text) flp_make_printable(text);
  fprintf(stderr, "%s: %s\n", name, text ? text : "out of memory");
  free(text);
}
