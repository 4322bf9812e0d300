/* text.h: text for people: how wide it may be, and where its lines end.
 *
 * What is printed here, and in tables, may hold names and messages of others' files: it reaches the terminal without
 * control characters (runtime/base/printable.h). */
#ifndef FLPGEN_CLI_TEXT_H
#define FLPGEN_CLI_TEXT_H

#include <stddef.h>

/* Columns that a line of standard output may have. A terminal's are what it says it has. Elsewhere COLUMNS counts, and
 * without it lines are as long as they need to be: behind a pipe stands grep, sort or awk, which want a row of a table
 * on one line. So do git, lsblk and systemctl. */
size_t cli_text_width(void);

/* Columns that UTF-8 text takes: characters, not bytes. */
size_t cli_text_columns(const char *text);
/* Columns of the longest piece that no line end may divide. in_words: long words may be divided too, see below */
size_t cli_text_least(const char *text, int in_words);

/* One line of a text. */
typedef struct cli_text_line {
  const char *text;
  size_t bytes, columns;
} cli_text_line;
/* Takes the next line, at most `width` wide, from *text, and moves *text behind it. Returns 0 at the end. Lines end at
 * blanks, never between a number and its unit. A word that is wider than a line is divided behind one of ,;:=/+ and
 * only without one of these anywhere. */
int cli_text_next(const char **text, size_t width, cli_text_line *out);

/* Adds to a text, which ends where its capacity does. separator: between what is added and what is there, if anything
 * is */
void cli_append(char *text, size_t capacity, const char *separator, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Prints "label   text", the text `indent` columns from the left, on its further lines too. */
void cli_print_field(size_t indent, const char *label, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Prints a paragraph; its second and further lines begin `hang` blanks to the right. */
#define cli_print(hang, ...) cli_print_field(hang, "", __VA_ARGS__)
/* Prints "NAME: text" to standard error. */
void cli_complain(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
