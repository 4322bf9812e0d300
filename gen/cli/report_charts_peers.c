/* report_charts_peers.c: whole passes beside bare matrix products and other implementations, from benchmark records. */
#include <stdlib.h>
#include <string.h>

#include "report_lines.h"
#include "report_svg.h"

enum { LINES_MAX = 160, NAMES_MAX = 64 };

static const char title[] = "Whole passes against the bare matrix products and peers";

/* ---- order: passes, then shapes, then files ---- */

static int rank_of(const char *which) {
  static const char *const order[] = {"forward", "forward+backward", "backward"};
  int i = 0;
  while (i < 3 && strcmp(order[i], which) != 0) i++;
  return i;
}

static int compare_numbers(int64_t a, int64_t b) {
  return a < b ? -1 : a > b;
}

/* 0 for rows of one group. */
static int compare_groups(const report_bench *a, const report_bench *b) {
  const int64_t numbers[][2] = {{rank_of(a->which), rank_of(b->which)},
                                {a->hidden, b->hidden},
                                {a->vocab, b->vocab},
                                {a->rows, b->rows},
                                {b->active, a->active}};
  int order = 0;
  for (size_t i = 0; order == 0 && i < sizeof numbers / sizeof numbers[0]; i++)
    order = compare_numbers(numbers[i][0], numbers[i][1]);
  if (order == 0) order = strcmp(a->which, b->which);
  if (order == 0) order = strcmp(a->dtype, b->dtype);
  if (order == 0) order = strcmp(a->grads, b->grads);
  return order ? order : strcmp(a->entropy, b->entropy);
}

static int compare_rows(const void *left, const void *right) {
  const report_bench *a = *(const report_bench *const *)left, *b = *(const report_bench *const *)right;
  int order = compare_groups(a, b);
  return order ? order : a < b ? -1 : a > b;
}

/* ---- names ---- */

static const char *name_of(const report_bench *row) {
  return row->peer[0] ? row->peer : "flp";
}

/* Index of a name in the order of their first appearance; added if it is new and there is room. */
static int series_of(const char *names[NAMES_MAX], int *count, const char *name) {
  for (int i = 0; i < *count; i++)
    if (strcmp(names[i], name) == 0) return i;
  if (*count == NAMES_MAX) return NAMES_MAX - 1;
  names[*count] = name;
  return (*count)++;
}

/* 1 if another row of the group has the same name. */
static int is_ambiguous(report_bench *const *rows, int count, int i) {
  for (int step = -1; step <= 1; step += 2)
    for (int j = i + step; j >= 0 && j < count && compare_groups(rows[i], rows[j]) == 0; j += step)
      if (strcmp(name_of(rows[i]), name_of(rows[j])) == 0) return 1;
  return 0;
}

static void group_text(const report_bench *row, char out[REPORT_SHAPE_BYTES]) {
  char masked[48] = "";
  if (row->active < row->rows)
    snprintf(masked, sizeof masked, " \u00b7 %.0f%% masked", 100.0 * (1 - (double)row->active / (double)row->rows));
  snprintf(out, REPORT_SHAPE_BYTES, "%.40s%s \u00b7 N %lld \u00b7 D %lld \u00b7 V %lld \u00b7 %.12s%s%.20s%s%.40s",
           row->which, masked, (long long)row->rows, (long long)row->hidden, (long long)row->vocab, row->dtype,
           row->entropy[0] ? " \u00b7 entropy " : "", row->entropy, row->grads[0] ? " \u00b7 grads " : "", row->grads);
}

static void fill_line(const report_data *data, report_bench *const *rows, int count, int i, report_line *out) {
  const report_bench *row = rows[i];
  const char *file = data->sources[row->source].file;
  size_t stem = strcspn(file, ".");
  memset(out, 0, sizeof *out);
  group_text(row, out->group);
  if (is_ambiguous(rows, count, i))
    snprintf(out->who, sizeof out->who, "%.40s \u00b7 %.*s", name_of(row), (int)(stem < 40 ? stem : 40), file);
  else
    snprintf(out->who, sizeof out->who, "%.80s", name_of(row));
  char ms[REPORT_NUMBER_BYTES];
  snprintf(out->tip, sizeof out->tip, "%.60s: %s ms (%.80s)", name_of(row), report_number(row->ms, 5, ms), file);
  out->ms = row->ms;
  out->ratio = row->ms / row->bare_ms;
  out->low = row->ms_low / row->bare_ms;
  out->high = row->ms_high / row->bare_ms;
  out->reason = row->ms > 0 ? "" : row->reason;
}

/* ---- the figure ---- */

static void write_table(FILE *out, const report_data *data, report_bench *const *rows, int count) {
  static const char *const columns[] = {
      "pass", "who",    "#N",    "#D",       "#V",     "dtype",      "entropy", "grads",
      "#ms",  "#least", "#most", "#bare ms", "#ratio", "#workspace", "file",    "not timed because"};
  enum { COLUMNS = sizeof columns / sizeof columns[0] };
  report_table_start(out, "every row of the benchmark records", count, columns, COLUMNS);
  for (int i = 0; i < count; i++) {
    const report_bench *r = rows[i];
    char n[8][REPORT_NUMBER_BYTES], bytes[CLI_TEXT_BYTES];
    const char *const cells[COLUMNS] = {r->which,
                                        name_of(r),
                                        report_number((double)r->rows, 9, n[0]),
                                        report_number((double)r->hidden, 9, n[1]),
                                        report_number((double)r->vocab, 9, n[2]),
                                        r->dtype,
                                        r->entropy,
                                        r->grads,
                                        report_places(r->ms, 3, n[3]),
                                        report_places(r->ms_low, 3, n[4]),
                                        report_places(r->ms_high, 3, n[5]),
                                        report_places(r->bare_ms, 3, n[6]),
                                        report_places(r->ms / r->bare_ms, 3, n[7]),
                                        isnan(r->extra_bytes) ? "\u2013" : cli_format_bytes(r->extra_bytes, bytes),
                                        data->sources[r->source].file,
                                        r->reason};
    report_table_row(out, columns, COLUMNS, cells);
  }
  report_table_finish(out);
}

static void draw(FILE *out, const report_data *data, report_bench *const *rows, report_line *lines) {
  const char *names[NAMES_MAX];
  int count = data->bench_count < LINES_MAX ? data->bench_count : LINES_MAX, name_count = 0;
  series_of(names, &name_count, "flp");
  for (int i = 0; i < count; i++) {
    fill_line(data, rows, data->bench_count, i, &lines[i]);
    lines[i].series = series_of(names, &name_count, name_of(rows[i]));
  }
  report_figure_start(out, "peers", title,
                      "From benchmark records. Left of the dashed line is faster than the matrix products alone, which "
                      "compute all rows, masked ones too. Marks are medians, whiskers the least and the most.");
  report_legend_start(out);
  for (int i = 0; i < name_count; i++) report_legend_mark(out, i, 0, names[i]);
  report_legend_line(out, "base", "bare products (1\u00d7)");
  report_legend_finish(out);
  report_lines_draw(out, lines, count, title, "time / bare time (\u00d7, less is faster)");
  if (count < data->bench_count) report_note(out, "Only the first 160 lines are drawn; the table has all.");
}

void report_chart_peers(FILE *out, const report_data *data) {
  size_t count = (size_t)data->bench_count;
  report_bench **rows = count ? calloc(count, sizeof *rows) : NULL;
  report_line *lines = rows ? calloc(LINES_MAX, sizeof *lines) : NULL;
  if (lines) {
    for (size_t i = 0; i < count; i++) rows[i] = &data->benches[i];
    qsort(rows, count, sizeof *rows, compare_rows);
    draw(out, data, rows, lines);
    write_table(out, data, rows, (int)count);
    report_figure_finish(out);
  } else {
    report_figure_missing(out, "peers", title,
                          "No benchmark was given: name records of flpgen bench --json or python -m flp.bench --json.");
  }
  free(lines);
  free(rows);
}
