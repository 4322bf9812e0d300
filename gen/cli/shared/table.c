/* table.c: left-aligned columns for people, within the width that there is. */
#include "gen/cli/shared/table.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/shared/text.h"
#include "runtime/base/printable.h"

enum { GAP = 2, INDENT = 4, REFITS = 3, SPAN_LEAST = 24 };

/* ---- cells ---- */

static char *copy(cli_table *table, const char *text) {
  char *made = strdup(text);
  if (made) flp_make_printable(made);
  if (!made) table->incomplete = 1;
  return made;
}

static void add_cell(cli_table *table, cli_table_row *row, const char *text) {
  if (row && row->cells < table->columns) row->cell[row->cells++] = copy(table, text);
}

/* NULL without memory for it. */
static cli_table_row *new_row(cli_table *table) {
  if (table->row_count == table->capacity) {
    size_t capacity = table->capacity ? 2 * table->capacity : 16;
    cli_table_row *grown = realloc(table->rows, capacity * sizeof *grown);
    if (!grown) {
      table->incomplete = 1;
      return NULL;
    }
    table->rows = grown;
    table->capacity = capacity;
  }
  cli_table_row *row = &table->rows[table->row_count++];
  *row = (cli_table_row){.cells = 0};
  return row;
}

static void add_row(cli_table *table, const char *first, va_list list) {
  cli_table_row *row = new_row(table);
  for (const char *cell = first; cell; cell = va_arg(list, const char *)) add_cell(table, row, cell);
}

void cli_table_start(cli_table *table, const char *first, ...) {
  *table = (cli_table){.columns = 1};
  va_list list, same;
  va_start(list, first);
  va_copy(same, list);
  while (table->columns < CLI_TABLE_COLUMNS_MAX && va_arg(same, const char *)) table->columns++;
  va_end(same);
  add_row(table, first, list);
  va_end(list);
}

void cli_table_may_move(cli_table *table, int column, const char *label) {
  table->movable[table->movable_count].column = column;
  table->movable[table->movable_count++].label = label;
}

void cli_table_add(cli_table *table, const char *first, ...) {
  va_list list;
  va_start(list, first);
  add_row(table, first, list);
  va_end(list);
}

void cli_table_addf(cli_table *table, const char *format, ...) {
  enum { FORMAT_BYTES = 256 };
  static const char DIVIDER[] = "\x1f"; /* which, unlike a tab, no cell has */
  char divided[FORMAT_BYTES], *text = NULL;
  va_list list;
  snprintf(divided, sizeof divided, "%s", format);
  for (char *at = divided; (at = strchr(at, '\t'));) *at = DIVIDER[0];
  va_start(list, format);
  int length = vasprintf(&text, divided, list);
  va_end(list);
  table->incomplete |= length < 0;
  if (length < 0) return;
  cli_table_row *row = new_row(table);
  for (char *rest = text, *cell; (cell = strsep(&rest, DIVIDER));) add_cell(table, row, cell);
  free(text);
}

void cli_table_note(cli_table *table, const char *format, ...) {
  if (table->incomplete) return; /* its row may be the one that is missing */
  va_list list;
  va_start(list, format);
  if (vasprintf(&table->rows[table->row_count - 1].note, format, list) < 0) table->incomplete = 1;
  va_end(list);
}

static const char *cell_of(const cli_table_row *row, int column) {
  return column < row->cells && row->cell[column] ? row->cell[column] : "";
}

/* Whether the cell is the last of a short row: what reaches to the right edge. */
static int spans(const cli_table *table, const cli_table_row *row, int column) {
  return row->cells < table->columns && column == row->cells - 1;
}

/* ---- layout ---- */

typedef struct layout {
  int is_below[CLI_TABLE_COLUMNS_MAX];
  size_t width[CLI_TABLE_COLUMNS_MAX];
  size_t total; /* that there is */
} layout;

typedef size_t measure(const char *text);

static size_t least_of_words(const char *text) {
  return cli_text_least(text, 0);
}

static size_t least_in_words(const char *text) {
  return cli_text_least(text, 1);
}

/* The widest cell of each column, by one measure for the header and one for the other rows. */
static void measure_columns(const cli_table *table, measure *header, measure *cell, size_t out[]) {
  for (int i = 0; i < table->columns; i++) {
    out[i] = header(cell_of(&table->rows[0], i));
    for (size_t r = 1; r < table->row_count; r++) {
      if (spans(table, &table->rows[r], i)) continue;
      size_t width = cell(cell_of(&table->rows[r], i));
      if (width > out[i]) out[i] = width;
    }
  }
}

static size_t sum(const cli_table *table, const layout *l, const size_t widths[]) {
  size_t total = 0, count = 0;
  for (int i = 0; i < table->columns; i++)
    if (!l->is_below[i]) total += widths[i] + (count++ ? GAP : 0);
  return total;
}

/* Raises widths towards `most`, the least ones first, as far as the total allows. */
static void widen(const cli_table *table, layout *l, const size_t most[]) {
  size_t spare = l->total - sum(table, l, l->width);
  while (spare) {
    int lowest = -1;
    for (int i = 0; i < table->columns; i++)
      if (!l->is_below[i] && l->width[i] < most[i] && (lowest < 0 || l->width[i] < l->width[lowest])) lowest = i;
    if (lowest < 0) return;
    l->width[lowest]++;
    spare--;
  }
}

/* The widest line that the column has when its cells are wrapped at its width. */
static size_t used_width(const cli_table *table, const layout *l, int column) {
  size_t used = 0;
  for (size_t r = 0; r < table->row_count; r++) {
    const char *text = cell_of(&table->rows[r], column);
    cli_text_line line;
    if (spans(table, &table->rows[r], column)) continue;
    while (cli_text_next(&text, l->width[column], &line))
      if (line.columns > used) used = line.columns;
  }
  return used;
}

/* Widths between the least and the most; what wrapping leaves unused goes to the other columns. */
static void fit(const cli_table *table, layout *l, const size_t least[], const size_t most[]) {
  memcpy(l->width, least, sizeof l->width);
  widen(table, l, most);
  for (int times = 0; times < REFITS; times++) {
    for (int i = 0; i < table->columns; i++)
      if (!l->is_below[i]) l->width[i] = used_width(table, l, i);
    widen(table, l, most);
  }
  for (int i = 0; i < table->columns; i++)
    if (!l->is_below[i]) l->width[i] = used_width(table, l, i);
}

/* Chooses what stands where. Returns 0 if the table does not fit in any way. */
static int choose(const cli_table *table, layout *l) {
  size_t whole[CLI_TABLE_COLUMNS_MAX] = {0}, cells[CLI_TABLE_COLUMNS_MAX] = {0}, least[CLI_TABLE_COLUMNS_MAX] = {0};
  measure_columns(table, cli_text_columns, cli_text_columns, whole);
  measure_columns(table, least_of_words, cli_text_columns, cells);
  for (int moved = 0;; moved++) {
    if (sum(table, l, cells) <= l->total) {
      fit(table, l, cells, whole);
      return 1;
    }
    if (moved == table->movable_count) break;
    l->is_below[table->movable[moved].column] = 1;
  }
  for (int in_words = 0; in_words <= 1; in_words++) {
    measure_columns(table, least_of_words, in_words ? least_in_words : least_of_words, least);
    if (sum(table, l, least) > l->total) continue;
    fit(table, l, least, cells);
    return 1;
  }
  return 0;
}

/* ---- printing ---- */

/* The columns up to the right edge that a cell has. */
static size_t room(const cli_table *table, const layout *l, const cli_table_row *row, int column, size_t at) {
  return spans(table, row, column) ? l->total - at : l->width[column];
}

/* Prints one line of a row; returns 0 once no cell has any left. rest: of each cell */
static int print_line(const cli_table *table, const layout *l, const cli_table_row *row, const char *rest[]) {
  size_t at = 0, written = 0, printed = 0;
  for (int i = 0; i < row->cells; i++) {
    cli_text_line line;
    if (l->is_below[i]) continue;
    if (cli_text_next(&rest[i], room(table, l, row, i, at), &line)) {
      printf("%*s%.*s", (int)(at - written), "", (int)line.bytes, line.text);
      written = at + line.columns;
      printed = 1;
    }
    at += l->width[i] + GAP;
  }
  if (printed) putchar('\n');
  return (int)printed;
}

static int is_blank(const char *cell) {
  return cell[0] == 0 || strcmp(cell, "-") == 0;
}

static void print_below(const char *label, const char *text) {
  if (!is_blank(text)) cli_print(INDENT + 2, "%*s%s%s", INDENT, "", label, text);
}

/* Cells that have moved: those without a label together. */
static void print_moved(const cli_table *table, const layout *l, const cli_table_row *row) {
  char line[1024] = "";
  for (int m = 0; m < table->movable_count; m++) {
    const char *label = table->movable[m].label, *cell = cell_of(row, table->movable[m].column);
    if (!l->is_below[table->movable[m].column] || is_blank(cell)) continue;
    size_t used = strlen(line);
    if (label[0])
      print_below(label, cell);
    else if (used + strlen(cell) + GAP < sizeof line)
      snprintf(line + used, sizeof line - used, "%*s%s", used ? GAP : 0, "", cell);
    else
      print_below("", cell);
  }
  print_below("", line);
}

/* Where the last cell of a short row has hardly any room, it stands below. Returns its text then, or "". */
static const char *take_span(const cli_table *table, const layout *l, const cli_table_row *row, const char *rest[]) {
  int last = row->cells - 1;
  if (last < 1 || !spans(table, row, last) || l->is_below[last]) return "";
  size_t at = 0;
  for (int i = 0; i < last; i++)
    if (!l->is_below[i]) at += l->width[i] + GAP;
  const char *text = rest[last];
  if (at + SPAN_LEAST <= l->total || at + cli_text_columns(text) <= l->total) return "";
  rest[last] = "";
  return text;
}

static void print_row(const cli_table *table, const layout *l, const cli_table_row *row) {
  const char *rest[CLI_TABLE_COLUMNS_MAX];
  for (int i = 0; i < row->cells; i++) rest[i] = cell_of(row, i);
  const char *sentence = take_span(table, l, row, rest);
  while (print_line(table, l, row, rest)) continue;
  print_below("", sentence);
  if (row != table->rows) print_moved(table, l, row);
  if (row->note) print_below("", row->note);
}

/* Each cell on a line of its own, after its header. */
static void print_block(const cli_table *table, const cli_table_row *row) {
  for (int i = 0; i < row->cells; i++) {
    const char *header = cell_of(&table->rows[0], i), *cell = cell_of(row, i);
    if (!is_blank(cell)) cli_print(INDENT, "%s%s%s", header, header[0] ? ": " : "", cell);
  }
  if (row->note) print_below("", row->note);
  if (row + 1 < table->rows + table->row_count) putchar('\n');
}

void cli_table_finish(cli_table *table) {
  layout l = {.total = cli_text_width()};
  int fits = choose(table, &l);
  for (size_t r = fits ? 0 : 1; r < table->row_count; r++)
    fits ? print_row(table, &l, &table->rows[r]) : print_block(table, &table->rows[r]);
  if (table->incomplete) puts("(out of memory: the table is not complete)");
  for (size_t r = 0; r < table->row_count; r++) {
    for (int i = 0; i < table->rows[r].cells; i++) free(table->rows[r].cell[i]);
    free(table->rows[r].note);
  }
  free(table->rows);
  *table = (cli_table){0};
}
