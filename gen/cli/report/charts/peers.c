/* peers.c: whole passes beside bare matrix products and other implementations, from benchmark records. */
#include <stdlib.h>
#include <string.h>

#include "gen/cli/report/lines.h"
#include "gen/cli/report/svg.h"

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
  if (is_ambiguous(rows, count, i) && row->ms > 0)
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

/* The lines that stand for rows: peers of a group that were not timed for the same reason share one, at its end. */
typedef struct drawing {
  report_line lines[LINES_MAX];
  const char *names[NAMES_MAX];
  int count, name_count, is_cut;
} drawing;

/* Adds a name to the line of the group that gives this reason; 0 if there is none. */
static int join_line(drawing *d, const char *group, const report_bench *row) {
  for (int i = d->count - 1; i >= 0 && strcmp(d->lines[i].group, group) == 0; i--) {
    report_line *line = &d->lines[i];
    if (!line->reason[0] || strcmp(line->reason, row->reason) != 0) continue;
    size_t used = strlen(line->who);
    snprintf(line->who + used, sizeof line->who - used, ", %.40s", name_of(row));
    return 1;
  }
  return 0;
}

static void add_line(const report_data *data, report_bench *const *rows, int count, int i, drawing *d) {
  char group[REPORT_SHAPE_BYTES];
  group_text(rows[i], group);
  int series = series_of(d->names, &d->name_count, name_of(rows[i]));
  if (!(rows[i]->ms > 0) && join_line(d, group, rows[i])) return;
  if (d->count == LINES_MAX) {
    d->is_cut = 1;
    return;
  }
  fill_line(data, rows, count, i, &d->lines[d->count]);
  d->lines[d->count++].series = series;
}

static void fill_group(const report_data *data, report_bench *const *rows, int count, int first, int end, drawing *d) {
  for (int i = first; i < end; i++)
    if (rows[i]->ms > 0) add_line(data, rows, count, i, d);
  for (int i = first; i < end; i++)
    if (!(rows[i]->ms > 0)) add_line(data, rows, count, i, d);
}

/* Fills in the groups in which others stand beside flp, or those in which none does. */
static void fill(const report_data *data, report_bench *const *rows, int with_others, drawing *d) {
  int count = data->bench_count;
  memset(d, 0, sizeof *d);
  series_of(d->names, &d->name_count, "flp");
  for (int first = 0, end; first < count; first = end) {
    int has_others = 0;
    for (end = first; end < count && compare_groups(rows[first], rows[end]) == 0; end++)
      has_others |= strcmp(name_of(rows[end]), "flp") != 0;
    if (has_others == with_others) fill_group(data, rows, count, first, end, d);
  }
}

static void draw(FILE *out, const drawing *d, const char *name, const char *about) {
  report_figure_start(out, "peers", name, about);
  report_legend_start(out);
  for (int i = 0; i < d->name_count; i++) report_legend_mark(out, i, 0, d->names[i]);
  report_legend_line(out, "base", "bare products (1\u00d7)");
  report_legend_finish(out);
  report_lines_draw(out, d->lines, d->count, name, "time / bare time (\u00d7, less is faster)");
  if (d->is_cut) report_note(out, "Only the first 160 lines are drawn; the table has all.");
}

/* Peers in sight; what flp alone was timed on folded away behind them, unless there is nothing else. */
static void write_figures(FILE *out, const report_data *data, report_bench *const *rows, drawing *d) {
  static const char about[] =
      "From benchmark records. Left of the dashed line is faster than the matrix products alone, which compute all "
      "rows, masked ones too. Marks are medians, whiskers the least and the most; an arrow stands for a time beyond "
      "the axis.";
  fill(data, rows, 1, d);
  int with_others = d->count > 0;
  if (!with_others) fill(data, rows, 0, d);
  draw(out, d, title, about);
  write_table(out, data, rows, data->bench_count);
  report_figure_finish(out);
  if (!with_others) return;
  fill(data, rows, 0, d);
  if (!d->count) return;
  fprintf(out, "<details class=\"more\"><summary>Benchmarks of flp alone (%d)</summary>\n", d->count);
  draw(out, d, "Whole passes of flp alone against the bare matrix products", about);
  report_figure_finish(out);
  fputs("</details>\n", out);
}

void report_chart_peers(FILE *out, const report_data *data) {
  size_t count = (size_t)data->bench_count;
  report_bench **rows = count ? calloc(count, sizeof *rows) : NULL;
  drawing *d = rows ? calloc(1, sizeof *d) : NULL;
  if (d) {
    for (size_t i = 0; i < count; i++) rows[i] = &data->benches[i];
    qsort(rows, count, sizeof *rows, compare_rows);
    write_figures(out, data, rows, d);
  } else {
    report_figure_missing(out, "peers", title,
                          "No benchmark was given: name records of flpgen bench --json or python -m flp.bench --json.");
  }
  free(d);
  free(rows);
}
