/* table.c: left-aligned columns as wide as their widest cell, for people. */
#include "gen/cli/shared/table.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Columns on a terminal: characters, not bytes, of UTF-8 text. */
static size_t text_width(const char *text) {
  size_t width = 0;
  for (; *text; text++) width += ((unsigned char)*text & 0xc0) != 0x80;
  return width;
}

static void add_row(cli_table *table, const char *first, va_list list) {
  if (table->rows == table->capacity) {
    size_t capacity = table->capacity ? 2 * table->capacity : 16;
    char **grown = realloc(table->cells, capacity * (size_t)table->columns * sizeof *grown);
    if (!grown) {
      table->incomplete = 1;
      return;
    }
    table->cells = grown;
    table->capacity = capacity;
  }
  char **row = table->cells + table->rows * (size_t)table->columns;
  const char *cell = first;
  for (int i = 0; i < table->columns; i++) {
    row[i] = strdup(cell ? cell : "");
    if (!row[i]) table->incomplete = 1;
    if (cell) cell = va_arg(list, const char *);
  }
  table->rows++;
}

void cli_table_start(cli_table *table, const char *first, ...) {
  *table = (cli_table){.columns = 1};
  va_list list, copy;
  va_start(list, first);
  va_copy(copy, list);
  while (table->columns < CLI_TABLE_COLUMNS_MAX && va_arg(copy, const char *)) table->columns++;
  va_end(copy);
  add_row(table, first, list);
  va_end(list);
}

void cli_table_add(cli_table *table, const char *first, ...) {
  va_list list;
  va_start(list, first);
  add_row(table, first, list);
  va_end(list);
}

static void print_row(const cli_table *table, char *const *row, const size_t *widths) {
  int last = table->columns - 1;
  while (last > 0 && (!row[last] || row[last][0] == 0)) last--;
  for (int i = 0; i <= last; i++) {
    const char *cell = row[i] ? row[i] : "";
    int pad = i < last ? (int)(widths[i] - text_width(cell)) + 2 : 0;
    printf("%s%*s", cell, pad, "");
  }
  putchar('\n');
}

void cli_table_finish(cli_table *table) {
  size_t widths[CLI_TABLE_COLUMNS_MAX] = {0};
  size_t columns = (size_t)table->columns;
  for (size_t i = 0; i < table->rows * columns; i++) {
    size_t width = table->cells[i] ? text_width(table->cells[i]) : 0;
    if (width > widths[i % columns]) widths[i % columns] = width;
  }
  for (size_t i = 0; i < table->rows; i++) print_row(table, table->cells + i * columns, widths);
  if (table->incomplete) puts("(out of memory: the table is not complete)");
  for (size_t i = 0; i < table->rows * columns; i++) free(table->cells[i]);
  free(table->cells);
  *table = (cli_table){0};
}
