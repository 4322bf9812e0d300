/* test_cli_text.c: where lines of text end, and what tables do as the width shrinks. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gen/cli/shared/table.h"
#include "gen/cli/shared/text.h"

/* The lines of a text, divided by '|'. */
static const char *lines(const char *text, size_t width) {
  static char out[1024];
  cli_text_line line;
  out[0] = 0;
  while (cli_text_next(&text, width, &line)) {
    cr_assert_leq(line.columns, width);
    snprintf(out + strlen(out), sizeof out - strlen(out), "%s%.*s", out[0] ? "|" : "", (int)line.bytes, line.text);
  }
  return out;
}

Test(cli_text, lines_end_at_blanks) {
  cr_expect_str_eq(lines("one two three", 100), "one two three");
  cr_expect_str_eq(lines("one two three", 9), "one two|three");
  cr_expect_str_eq(lines("one two   three  ", 7), "one two|three");
  cr_expect_str_eq(lines("  indented by two", 12), "  indented|by two");
  cr_expect_str_eq(lines("first\nsecond line", 8), "first|second|line");
  cr_expect_str_eq(lines("", 8), "");
}

Test(cli_text, a_number_stays_with_its_unit) {
  cr_expect_str_eq(lines("takes 12 MB of it", 9), "takes|12 MB of|it");
  cr_expect_str_eq(lines("of 151936 x 4096, bf16", 16), "of|151936 x 4096,|bf16");
  cr_expect_str_eq(lines("12 multiprocessors", 16), "12|multiprocessors");
}

Test(cli_text, long_words_are_divided_at_joints_and_elsewhere_as_a_last_resort) {
  cr_expect_str_eq(lines("at /usr/lib/libcuda.so", 12), "at|/usr/lib/|libcuda.so");
  cr_expect_str_eq(lines("a=1,b=22", 5), "a=1,|b=22");
  cr_expect_str_eq(lines("0123456789", 4), "0123|4567|89");
}

Test(cli_text, columns_are_characters) {
  cr_expect_eq(cli_text_columns("w·A"), 3);
  cr_expect_str_eq(lines("−w·A·x y", 6), "−w·A·x|y");
  cr_expect_eq(cli_text_least("one a/bcd/ef", 0), 8);
  cr_expect_eq(cli_text_least("one a/bcd/ef", 1), 4);
}

/* ---- tables ---- */

typedef void make_table(cli_table *table);

/* What a table prints with this many columns. */
static const char *print(make_table *make, const char *columns) {
  static char out[4096];
  FILE *file = tmpfile();
  cr_assert(file);
  setenv("COLUMNS", columns, 1);
  fflush(stdout);
  int standard = dup(STDOUT_FILENO);
  dup2(fileno(file), STDOUT_FILENO);
  cli_table table;
  make(&table);
  cli_table_finish(&table);
  fflush(stdout);
  dup2(standard, STDOUT_FILENO);
  close(standard);
  rewind(file);
  out[fread(out, 1, sizeof out - 1, file)] = 0;
  fclose(file);
  return out;
}

static void make_modes(cli_table *table) {
  cli_table_start(table, "name of it", "count", "what it is", NULL);
  cli_table_may_move(table, 2, "is: ");
  cli_table_add(table, "first", "1", "a short one", NULL);
  cli_table_add(table, "second", "23456", "one that is much longer", NULL);
  cli_table_add(table, "third", "-", "-", NULL);
}

Test(cli_table, first_headers_wrap_then_columns_move_then_cells_wrap) {
  cr_expect_str_eq(print(make_modes, ""),
                   "name of it  count  what it is\n"
                   "first       1      a short one\n"
                   "second      23456  one that is much longer\n"
                   "third       -      -\n");
  cr_expect_str_eq(print(make_modes, "42"), print(make_modes, ""));
  cr_expect_str_eq(print(make_modes, "41"),
                   "name of  count  what it is\n"
                   "it\n"
                   "first    1      a short one\n"
                   "second   23456  one that is much longer\n"
                   "third    -      -\n");
  cr_expect_str_eq(print(make_modes, "36"),
                   "name of it  count\n"
                   "first       1\n"
                   "    is: a short one\n"
                   "second      23456\n"
                   "    is: one that is much longer\n"
                   "third       -\n");
}

static void make_sentences(cli_table *table) {
  cli_table_start(table, "part", "a", "b", "c", NULL);
  cli_table_add(table, "one", "1", "2", "3", NULL);
  cli_table_add(table, "two", "a sentence that reaches to the right edge of it", NULL);
  cli_table_note(table, "and a note below %d", 2);
}

Test(cli_table, a_sentence_widens_no_column) {
  cr_expect_str_eq(print(make_sentences, "40"),
                   "part  a  b  c\n"
                   "one   1  2  3\n"
                   "two   a sentence that reaches to the\n"
                   "      right edge of it\n"
                   "    and a note below 2\n");
  cr_expect_str_eq(print(make_sentences, "26"),
                   "part  a  b  c\n"
                   "one   1  2  3\n"
                   "two\n"
                   "    a sentence that\n"
                   "      reaches to the right\n"
                   "      edge of it\n"
                   "    and a note below 2\n");
}

static void make_wide(cli_table *table) {
  cli_table_start(table, "indivisible", "inseparable", "c", NULL);
  cli_table_add(table, "12345678", "87654321", "-", NULL);
  cli_table_add(table, "1", "2", "3", NULL);
}

Test(cli_table, what_fits_in_no_way_is_a_block_a_row) {
  cr_expect_str_eq(print(make_wide, "20"),
                   "indivisible:\n12345678\n"
                   "inseparable:\n87654321\n"
                   "\n"
                   "indivisible: 1\n"
                   "inseparable: 2\n"
                   "c: 3\n");
}
