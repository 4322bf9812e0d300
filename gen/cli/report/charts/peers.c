/* peers.c: whole passes beside GEMM baselines and other implementations, from benchmark records.
 *
 * Invariants: rows of one group differ in nothing but who ran, how and when, and no two of their labels are alike; a
 * name has a mark where it was timed at all, and is else named once, below the chart. */
#include <stdlib.h>
#include <string.h>

#include "gen/cli/report/charts/charts.h"
#include "gen/cli/report/parts/lines.h"
#include "gen/cli/report/parts/svg.h"

enum { LINES_MAX = 400, NAMES_MAX = REPORT_SERIES, REASONS_BYTES = 1024 };

static const char title[] = "Whole passes against the GEMM baselines and peers";

/* ---- order: passes, then shapes, then kinds of rows, then files ---- */

/* Random rows, as older records have them without saying so. */
static const char *kind_of(const report_bench *row) {
  return strcmp(row->data, CLI_DATA[CLI_DATA_RANDOM].name) == 0 ? "" : row->data;
}

/* 0 for rows of one group. */
static int compare_groups(const report_bench *a, const report_bench *b) {
  int order = report_bench_compare(a, b);
  return order ? order : strcmp(kind_of(a), kind_of(b));
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

static int is_timed(const report_bench *row) {
  return row->ms > 0;
}

/* Index of a name in the order of their first appearance; added if it is new and there is room. */
static int series_of(const char *names[NAMES_MAX], int *count, const char *name) {
  for (int i = 0; i < *count; i++)
    if (strcmp(names[i], name) == 0) return i;
  if (*count == NAMES_MAX) return NAMES_MAX - 1;
  names[*count] = name;
  return (*count)++;
}

/* What a label says of the file: its name up to a dot. */
enum { STEM_BYTES = 41 };
static const char *stem_of(const report_data *data, const report_bench *row, char out[STEM_BYTES]) {
  const char *file = data->sources[row->source].file;
  size_t length = strcspn(file, ".");
  snprintf(out, STEM_BYTES, "%.*s", (int)(length < STEM_BYTES ? length : STEM_BYTES - 1), file);
  return out;
}

/* Parts of a label, each there where rows of the group that are alike in those before it differ in it. */
typedef enum label_part { PART_NAME, PART_FILE, PART_VARIANT, PART_RUN, PARTS } label_part;

static int differ_in(const report_data *data, const report_bench *a, const report_bench *b, label_part part) {
  char stems[2][STEM_BYTES];
  switch (part) {
    case PART_NAME:
      return strcmp(name_of(a), name_of(b)) != 0;
    case PART_FILE:
      return strcmp(stem_of(data, a, stems[0]), stem_of(data, b, stems[1])) != 0;
    case PART_VARIANT:
      return strcmp(a->variant, b->variant) != 0;
    default:
      return a->run != b->run;
  }
}

static int are_alike(const report_data *data, const report_bench *a, const report_bench *b, label_part before) {
  int alike = is_timed(a) && is_timed(b);
  for (label_part part = PART_NAME; alike && part < before; part++) alike = !differ_in(data, a, b, part);
  return alike;
}

/* A row among those of its group: first..end-1. */
typedef struct place {
  const report_data *data;
  report_bench *const *rows;
  int first, end, at;
} place;

static int needs_part(const place *p, label_part part) {
  const report_bench *row = p->rows[p->at];
  for (int j = p->first; j < p->end; j++)
    if (are_alike(p->data, row, p->rows[j], part) && differ_in(p->data, row, p->rows[j], part)) return 1;
  return 0;
}

/* The how-manieth row that no part tells from the others; 0 where there is none. */
static int ordinal_of(const place *p) {
  int before = 0, all = 0;
  for (int j = p->first; j < p->end; j++) {
    int alike = are_alike(p->data, p->rows[p->at], p->rows[j], PARTS);
    all += alike;
    before += alike && j < p->at;
  }
  return all > 1 ? before + 1 : 0;
}

/* Tunables, with blanks where a line may break. */
static void append_variant(char *out, size_t capacity, const char *variant) {
  if (!variant[0]) return;
  report_append(out, capacity, "%.1s", variant);
  for (size_t used = strlen(out); *++variant && used + 2 < capacity; out[used] = 0) {
    out[used++] = *variant;
    if (*variant == ',') out[used++] = ' ';
  }
}

static void label_of(const report_data *data, report_bench *const *rows, int count, int i, char out[REPORT_WHO_BYTES]) {
  const report_bench *row = rows[i];
  place p = {.data = data, .rows = rows, .first = i, .end = i + 1, .at = i};
  while (p.first > 0 && compare_groups(rows[p.first - 1], row) == 0) p.first--;
  while (p.end < count && compare_groups(rows[p.end], row) == 0) p.end++;
  char stem[STEM_BYTES];
  snprintf(out, REPORT_WHO_BYTES, "%.40s", name_of(row));
  if (needs_part(&p, PART_FILE)) report_append(out, REPORT_WHO_BYTES, "%s", stem_of(data, row, stem));
  if (needs_part(&p, PART_VARIANT)) append_variant(out, REPORT_WHO_BYTES - 32, row->variant);
  if (row->run && needs_part(&p, PART_RUN)) report_append(out, REPORT_WHO_BYTES, "run %lld", (long long)row->run);
  int ordinal = ordinal_of(&p);
  if (ordinal) report_append(out, REPORT_WHO_BYTES, "row %d", ordinal);
}

static void group_text(const report_bench *row, char out[REPORT_SHAPE_BYTES]) {
  report_bench_text(row, out);
  if (kind_of(row)[0]) report_append(out, REPORT_SHAPE_BYTES, "%.20s rows", row->data);
}

static void fill_line(const report_data *data, report_bench *const *rows, int count, int i, report_line *out) {
  const report_bench *row = rows[i];
  char ms[REPORT_NUMBER_BYTES];
  memset(out, 0, sizeof *out);
  group_text(row, out->group);
  label_of(data, rows, count, i, out->who);
  snprintf(out->tip, sizeof out->tip, "%.60s: %s ms (%.80s)", name_of(row), report_number(row->ms, 5, ms),
           data->sources[row->source].file);
  out->ms = row->ms;
  out->ratio = row->ms / row->baseline_ms;
  out->low = row->ms_low / row->baseline_ms;
  out->high = row->ms_high / row->baseline_ms;
  out->reason = is_timed(row) ? "" : row->reason;
}

/* ---- names that were not timed ---- */

/* The names that were timed at all. */
typedef struct timed_names {
  const char *of[NAMES_MAX];
  int count;
} timed_names;

static void collect_timed(const report_data *data, timed_names *out) {
  out->count = 0;
  for (int i = 0; i < data->bench_count; i++)
    if (is_timed(&data->benches[i])) series_of(out->of, &out->count, name_of(&data->benches[i]));
}

/* 1 as well for a name that the list has no room for. */
static int is_ever_timed(const timed_names *timed, const char *name) {
  for (int i = 0; i < timed->count; i++)
    if (strcmp(timed->of[i], name) == 0) return 1;
  return timed->count == NAMES_MAX;
}

/* The different reasons of a name, one behind the other. */
static void reasons_of(const report_data *data, const char *name, char out[REASONS_BYTES]) {
  out[0] = 0;
  for (int i = 0; i < data->bench_count; i++) {
    const report_bench *row = &data->benches[i];
    size_t used = strlen(out);
    if (strcmp(name_of(row), name) == 0 && !strstr(out, row->reason))
      snprintf(out + used, REASONS_BYTES - used, "%s%.300s", used ? "; " : "", row->reason);
  }
}

/* Names that were timed nowhere, those of the same reasons together. */
static void write_untimed(FILE *out, const report_data *data, const timed_names *timed) {
  const char *names[NAMES_MAX];
  char done[NAMES_MAX] = "", reasons[REASONS_BYTES], other[REASONS_BYTES];
  int count = 0, any = 0;
  for (int i = 0; i < data->bench_count; i++)
    if (!is_ever_timed(timed, name_of(&data->benches[i]))) series_of(names, &count, name_of(&data->benches[i]));
  for (int i = 0; i < count; i++) {
    if (done[i]) continue;
    fputs(any++ ? "" : "<div class=\"untimed\"><p>Not timed:</p><ul>\n", out);
    reasons_of(data, names[i], reasons);
    fputs("<li><b>", out);
    report_escape(out, names[i]);
    for (int j = i + 1; j < count; j++) {
      reasons_of(data, names[j], other);
      if (strcmp(reasons, other) != 0) continue;
      done[j] = 1;
      fputs(", ", out);
      report_escape(out, names[j]);
    }
    fputs("</b> ", out);
    report_escape(out, reasons);
    fputs("</li>\n", out);
  }
  if (any) fputs("</ul></div>\n", out);
}

/* ---- the figure ---- */

static void write_table(FILE *out, const report_data *data, report_bench *const *rows, int count) {
  static const char *const columns[] = {"pass",     "who",    "#N",        "#D",         "#V",     "dtype",
                                        "entropy",  "grads",  "loss",      "#ms",        "#least", "#most",
                                        "#GEMM ms", "#ratio", "#of first", "#workspace", "file",   "not timed because"};
  enum { COLUMNS = sizeof columns / sizeof columns[0] };
  report_table_start(out, "every row of the benchmark records", count, columns, COLUMNS);
  for (int i = 0; i < count; i++) {
    const report_bench *r = rows[i];
    char n[9][REPORT_NUMBER_BYTES], bytes[CLI_TEXT_BYTES];
    const char *const cells[COLUMNS] = {r->which,
                                        name_of(r),
                                        report_number((double)r->rows, 9, n[0]),
                                        report_number((double)r->hidden, 9, n[1]),
                                        report_number((double)r->vocab, 9, n[2]),
                                        r->dtype,
                                        r->entropy,
                                        r->grads,
                                        r->loss,
                                        report_places(r->ms, 3, n[3]),
                                        report_places(r->ms_low, 3, n[4]),
                                        report_places(r->ms_high, 3, n[5]),
                                        report_places(r->baseline_ms, 3, n[6]),
                                        report_places(r->ms / r->baseline_ms, 3, n[7]),
                                        report_places(r->ms / r->first_ms, 3, n[8]),
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
  int count, name_count, is_truncated;
  timed_names timed;
} drawing;

/* 1 if a list of names holds the name. */
static int is_listed(const char *list, const char *name) {
  size_t length = strlen(name);
  for (const char *at = list; (at = strstr(at, name)); at += length)
    if ((at == list || at[-1] == ' ') && (at[length] == 0 || at[length] == ',')) return 1;
  return 0;
}

/* Adds a name to the line of the group that gives this reason; 0 if there is none. */
static int join_line(drawing *d, const char *group, const report_bench *row) {
  for (int i = d->count - 1; i >= 0 && strcmp(d->lines[i].group, group) == 0; i--) {
    report_line *line = &d->lines[i];
    if (!line->reason[0] || strcmp(line->reason, row->reason) != 0) continue;
    size_t used = strlen(line->who);
    if (!is_listed(line->who, name_of(row)))
      snprintf(line->who + used, sizeof line->who - used, ", %.40s", name_of(row));
    return 1;
  }
  return 0;
}

static void add_line(const report_data *data, report_bench *const *rows, int count, int i, drawing *d) {
  char group[REPORT_SHAPE_BYTES];
  group_text(rows[i], group);
  if (!is_timed(rows[i]) && join_line(d, group, rows[i])) return;
  if (d->count == LINES_MAX) {
    d->is_truncated = 1;
    return;
  }
  report_line *line = &d->lines[d->count++];
  fill_line(data, rows, count, i, line);
  if (is_timed(rows[i])) line->series = series_of(d->names, &d->name_count, name_of(rows[i]));
}

static void fill_group(const report_data *data, report_bench *const *rows, int count, int first, int end, drawing *d) {
  for (int i = first; i < end; i++)
    if (is_timed(rows[i])) add_line(data, rows, count, i, d);
  for (int i = first; i < end; i++)
    if (!is_timed(rows[i]) && is_ever_timed(&d->timed, name_of(rows[i]))) add_line(data, rows, count, i, d);
}

/* Fills in the groups in which others stand beside flp, or those in which none does. */
static void fill(const report_data *data, report_bench *const *rows, int with_others, drawing *d) {
  int count = data->bench_count;
  memset(d, 0, sizeof *d);
  collect_timed(data, &d->timed);
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
  for (int i = 0; i < d->name_count; i++) report_legend_series(out, "stem", i, d->names[i]);
  report_legend_line(out, "base", "dashed line", "GEMM baselines (1\u00d7)");
  report_legend_finish(out);
  report_lines_draw(out, d->lines, d->count, name, "time / GEMM time (\u00d7, less is faster)");
  if (d->is_truncated) report_note(out, "Only the first 160 lines are drawn; the table has all.");
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
  write_untimed(out, data, &d->timed);
  write_table(out, data, rows, data->bench_count);
  report_figure_finish(out);
  if (!with_others) return;
  fill(data, rows, 0, d);
  if (!d->count) return;
  fprintf(out, "<details class=\"more\"><summary>Benchmarks of flp alone (%d)</summary>\n", d->count);
  draw(out, d, "Whole passes of flp alone against the GEMM baselines", about);
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
