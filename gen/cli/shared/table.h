/* table.h: left-aligned columns for people, within the width that there is.
 *
 * Where a table is too wide, headers are wrapped first; then columns that were marked for it move below their rows;
 * then cells are wrapped. A table too wide for that is printed as a block of labelled lines for each row. */
#ifndef FLPGEN_CLI_TABLE_H
#define FLPGEN_CLI_TABLE_H

#include <stddef.h>

enum { CLI_TABLE_COLUMNS_MAX = 12 };

typedef struct cli_table_row {
  char *cell[CLI_TABLE_COLUMNS_MAX]; /* owned */
  char *note;                        /* owned; NULL without one */
  int cells;
} cli_table_row;

typedef struct cli_table {
  int columns;
  size_t row_count, capacity;
  cli_table_row *rows; /* the first is the header */
  struct {
    int column;
    const char *label; /* borrowed */
  } movable[CLI_TABLE_COLUMNS_MAX];
  int movable_count;
  int incomplete; /* memory ran out: a row is missing */
} cli_table;

/* Starts a table with its header cells, which end with NULL. */
void cli_table_start(cli_table *table, const char *first, ...) __attribute__((sentinel));
/* Lets a column move below its row where the table is too wide, there on a line of its own after its label; without a
 * label, "", on one line with others. The first column that is marked moves first. Cells that are empty or "-" are left
 * out below. */
void cli_table_may_move(cli_table *table, int column, const char *label);
/* Adds a row. One with fewer cells than the header ends in a cell that reaches to the right edge and widens no column:
 * the place for a sentence. */
void cli_table_add(cli_table *table, const char *first, ...) __attribute__((sentinel));
/* The same of cells that a format gives; tabs of the format divide them. */
void cli_table_addf(cli_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Puts a sentence below the row that was added last. */
void cli_table_note(cli_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints to stdout and frees. */
void cli_table_finish(cli_table *table);

#endif
