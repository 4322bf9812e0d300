/* table.h: left-aligned columns as wide as their widest cell, for people. */
#ifndef FLPGEN_CLI_TABLE_H
#define FLPGEN_CLI_TABLE_H

#include <stddef.h>

enum { CLI_TABLE_COLUMNS_MAX = 12 };

typedef struct cli_table {
  int columns;
  size_t rows, capacity;
  char **cells;   /* rows x columns, owned */
  int incomplete; /* memory ran out: a row is missing */
} cli_table;

/* Starts a table with its header cells, which end with NULL; all NULL-terminated lists are of the same length. */
void cli_table_start(cli_table *table, const char *first, ...) __attribute__((sentinel));
/* Adds a row; cells that are missing at the end are empty. */
void cli_table_add(cli_table *table, const char *first, ...) __attribute__((sentinel));
/* Prints to stdout and frees. */
void cli_table_finish(cli_table *table);

#endif
