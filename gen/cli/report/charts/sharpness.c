/* sharpness.c: time of whole training passes against how sharp the softmax rows are, one line a library or mode.
 *
 * Times are in products of hidden and the whole weight, measured in the same record. A shape is drawn if some record
 * has sharp rows of it, with everyone who was timed on some; without any there is no section.
 * Invariant: every timed row of who is drawn has a mark and a row of the table. */
#include <stdlib.h>
#include <string.h>

#include "gen/cli/report/charts/charts.h"
#include "gen/cli/report/parts/svg.h"

enum { NAMES_MAX = REPORT_SERIES, NAME_BYTES = 48, HEIGHT = 420, HEIGHT_NARROW = 380, TICKS = 12 };

static const char title[] = "Time against sharpness of the rows";

/* From sharp to flat. */
static const cli_data kinds[] = {CLI_DATA_POLICY, CLI_DATA_TEXT, CLI_DATA_BASE, CLI_DATA_RANDOM};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

typedef struct point {
  const report_bench *row;
  int kind;   /* index of kinds */
  int series; /* index of the names */
  double products;
} point;

/* One shape. */
typedef struct plot {
  const report_data *data;
  point *points;
  int count;
  char names[NAMES_MAX][NAME_BYTES];
  int name_count;
  int column[KINDS], column_count; /* of a kind, -1 for none */
  double entropy[KINDS];           /* median of the rows of a kind, NaN where unknown */
} plot;

/* ---- what is drawn ---- */

/* Index in kinds, -1 for a kind that is not known. Older records have random rows and do not say so. */
static int kind_of(const report_bench *row) {
  const char *name = row->data[0] ? row->data : CLI_DATA[CLI_DATA_RANDOM].name;
  for (int i = 0; i < KINDS; i++)
    if (strcmp(name, CLI_DATA[kinds[i]].name) == 0) return i;
  return -1;
}

static int is_sharp(const report_bench *row) {
  int kind = kind_of(row);
  return kind >= 0 && kinds[kind] != CLI_DATA_RANDOM;
}

static int is_drawable(const report_bench *row) {
  int has_gradients = strcmp(row->which, "forward+backward") == 0 || strcmp(row->which, "step") == 0;
  return has_gradients && row->grads[0] && row->ms > 0 && row->product_ms > 0 && kind_of(row) >= 0;
}

/* Modes that keep something between the passes are contenders of their own; recompute mode is flp. */
static void name_of(const report_bench *row, char out[NAME_BYTES]) {
  static const char *const kept[] = {"save", "stream", "direction"};
  snprintf(out, NAME_BYTES, "%.40s", row->peer[0] ? row->peer : "flp");
  for (size_t i = 0; strcmp(out, "flp") == 0 && i < sizeof kept / sizeof kept[0]; i++)
    if (strcmp(row->mode, kept[i]) == 0) snprintf(out, NAME_BYTES, "flp, %s", kept[i]);
}

static int series_of(plot *p, const char *name) {
  for (int i = 0; i < p->name_count; i++)
    if (strcmp(p->names[i], name) == 0) return i;
  if (p->name_count == NAMES_MAX) return NAMES_MAX - 1;
  snprintf(p->names[p->name_count], sizeof p->names[0], "%s", name);
  return p->name_count++;
}

static void add(plot *p, const report_bench *row) {
  char name[NAME_BYTES];
  point *out = &p->points[p->count++];
  name_of(row, name);
  *out = (point){row, kind_of(row), series_of(p, name), row->ms / row->product_ms};
  p->column[out->kind] = 0;
  if (isnan(p->entropy[out->kind])) p->entropy[out->kind] = row->median_entropy;
}

static int compare_points(const void *left, const void *right) {
  const point *a = left, *b = right;
  int order = a->kind - b->kind;
  if (order == 0) order = (a->products > b->products) - (a->products < b->products);
  return order ? order : a->row < b->row ? -1 : a->row > b->row;
}

static int was_timed_on_sharp_rows(const report_bench *const *rows, int first, int end, const report_bench *who) {
  char name[NAME_BYTES], other[NAME_BYTES];
  name_of(who, name);
  for (int i = first; i < end; i++) {
    name_of(rows[i], other);
    if (is_sharp(rows[i]) && strcmp(name, other) == 0) return 1;
  }
  return 0;
}

/* The rows of one shape: first..end-1 of those that can be drawn. */
static void collect(plot *p, const report_bench *const *rows, int first, int end) {
  p->count = p->name_count = p->column_count = 0;
  for (int k = 0; k < KINDS; k++) {
    p->column[k] = -1;
    p->entropy[k] = NAN;
  }
  series_of(p, "flp");
  for (int i = first; i < end; i++)
    if (was_timed_on_sharp_rows(rows, first, end, rows[i])) add(p, rows[i]);
  qsort(p->points, (size_t)p->count, sizeof *p->points, compare_points);
  for (int k = 0; k < KINDS; k++)
    if (p->column[k] == 0) p->column[k] = p->column_count++;
}

/* ---- drawing ---- */

typedef struct places {
  double left, right, top, bottom, column, apart; /* apart: series of one column */
  report_scale y;
} places;

static places places_of(const plot *p, int i) {
  enum { APART_MOST = 9 };
  places at = {.left = 46, .right = REPORT_WIDTH[i] - 8, .top = 34, .bottom = (i ? HEIGHT_NARROW : HEIGHT) - 64};
  double low = 0.9, high = 1; /* one product is above the axis */
  for (int n = 0; n < p->count; n++) {
    low = fmin(low, p->points[n].products);
    high = fmax(high, p->points[n].products);
  }
  at.column = (at.right - at.left) / p->column_count;
  at.apart = fmin(APART_MOST, 0.8 * at.column / p->name_count);
  at.y = report_scale_make(low, high, high / low > 6, TICKS, at.bottom, at.top);
  return at;
}

/* Series stand side by side in a column, so that none covers another. */
static double x_of(const plot *p, const places *at, const point *q) {
  return at->left + at->column * (p->column[q->kind] + 0.5) + at->apart * (q->series - 0.5 * (p->name_count - 1));
}

static void draw_columns(FILE *out, const plot *p, const places *at) {
  for (int k = 0; k < KINDS; k++) {
    if (p->column[k] < 0) continue;
    double middle = at->left + at->column * (p->column[k] + 0.5);
    char text[64];
    report_svg_text(out, middle, at->bottom + 17, REPORT_MIDDLE, "tick", at->column, CLI_DATA[kinds[k]].name);
    if (isnan(p->entropy[k])) continue;
    snprintf(text, sizeof text, "%.2g nats", p->entropy[k]);
    report_svg_text(out, middle, at->bottom + 33, REPORT_MIDDLE, "tick", at->column, text);
  }
  report_svg_line(out, at->left, at->bottom, at->right, at->bottom, "axis");
  report_svg_text(out, (at->left + at->right) / 2, at->bottom + 54, REPORT_MIDDLE, "title", at->right - at->left,
                  "rows, from sharp to flat (entropy, median)");
}

/* The fastest point of a series in a kind, NULL without one; points are sorted so. */
static const point *first_of(const plot *p, int series, int kind) {
  for (int n = 0; n < p->count; n++)
    if (p->points[n].series == series && p->points[n].kind == kind) return &p->points[n];
  return NULL;
}

static void draw_curve(FILE *out, const plot *p, const places *at, int series) {
  const point *before = NULL;
  char class[REPORT_CLASS_BYTES];
  report_series_class("curve", series, class);
  for (int k = 0; k < KINDS; k++) {
    const point *q = first_of(p, series, k);
    if (before && q)
      report_svg_line(out, x_of(p, at, before), report_scale_at(&at->y, before->products), x_of(p, at, q),
                      report_scale_at(&at->y, q->products), class);
    if (q) before = q;
  }
}

static void draw_marks(FILE *out, const plot *p, const places *at) {
  for (int n = 0; n < p->count; n++) {
    const point *q = &p->points[n];
    char tip[256], products[REPORT_NUMBER_BYTES], ms[REPORT_NUMBER_BYTES];
    snprintf(tip, sizeof tip, "%s, %s rows: %s products, %s ms (%.80s)", p->names[q->series],
             CLI_DATA[kinds[q->kind]].name, report_places(q->products, 2, products), report_number(q->row->ms, 5, ms),
             p->data->sources[q->row->source].file);
    report_svg_mark(out, x_of(p, at, q), report_scale_at(&at->y, q->products), 4.6, q->series, 0, tip);
  }
}

static void draw(FILE *out, const plot *p, int i, const char *name) {
  places at = places_of(p, i);
  report_svg_start(out, i, i ? HEIGHT_NARROW : HEIGHT, name);
  report_svg_axis_y(out, &at.y, at.left, at.right, "time / one product's (\u00d7, less is faster)", TICKS,
                    report_format_number);
  double one = report_scale_at(&at.y, 1);
  report_svg_line(out, at.left, one, at.right, one, "base");
  draw_columns(out, p, &at);
  for (int s = p->name_count - 1; s >= 0; s--) draw_curve(out, p, &at, s); /* flp's above the others */
  draw_marks(out, p, &at);
  report_svg_finish(out);
}

static void write_legend(FILE *out, const plot *p) {
  report_legend_start(out);
  for (int s = 0; s < p->name_count; s++)
    for (int k = 0; k < KINDS; k++)
      if (first_of(p, s, k)) {
        report_legend_series(out, "curve", s, p->names[s]);
        break;
      }
  report_legend_line(out, "base", "dashed line", "one product of hidden and weight (1\u00d7)");
  report_legend_finish(out);
}

static void write_table(FILE *out, const plot *p) {
  static const char *const columns[] = {"rows", "#median entropy", "who",       "mode",
                                        "#ms",  "#product ms",     "#products", "file"};
  enum { COLUMNS = sizeof columns / sizeof columns[0] };
  report_table_start(out, "times in products", p->count, columns, COLUMNS);
  for (int n = 0; n < p->count; n++) {
    const point *q = &p->points[n];
    char text[4][REPORT_NUMBER_BYTES];
    const char *const cells[COLUMNS] = {CLI_DATA[kinds[q->kind]].name,
                                        report_number(q->row->median_entropy, 3, text[0]),
                                        p->names[q->series],
                                        q->row->mode,
                                        report_places(q->row->ms, 3, text[1]),
                                        report_places(q->row->product_ms, 3, text[2]),
                                        report_places(q->products, 3, text[3]),
                                        p->data->sources[q->row->source].file};
    report_table_row(out, columns, COLUMNS, cells);
  }
  report_table_finish(out);
}

static void write_figure(FILE *out, const plot *p) {
  char shape[REPORT_SHAPE_BYTES], about[REPORT_SHAPE_BYTES + 256];
  report_bench_text(p->points[0].row, shape);
  snprintf(about, sizeof about,
           "%s. Times are medians, in products of hidden and the whole weight by the fastest algorithm in the same "
           "record. Who computes every element takes the same on any rows.",
           shape);
  report_figure_start(out, "sharpness", title, about);
  write_legend(out, p);
  for (int i = 0; i < REPORT_WIDTHS; i++) draw(out, p, i, title);
  write_table(out, p);
  report_figure_finish(out);
}

/* ---- the section ---- */

static int compare_rows(const void *left, const void *right) {
  const report_bench *a = *(const report_bench *const *)left, *b = *(const report_bench *const *)right;
  int order = report_bench_compare(a, b);
  return order ? order : a < b ? -1 : a > b;
}

/* Shapes of which some rows are sharp. */
static void write_shapes(FILE *out, plot *p, const report_bench **rows, int count) {
  int figures = 0;
  qsort(rows, (size_t)count, sizeof *rows, compare_rows);
  for (int first = 0, end; first < count; first = end) {
    int has_sharp = 0;
    for (end = first; end < count && report_bench_compare(rows[first], rows[end]) == 0; end++)
      has_sharp |= is_sharp(rows[end]);
    if (!has_sharp) continue;
    if (!figures++) fputs("<h2>Sharpness of the rows</h2>\n", out);
    collect(p, rows, first, end);
    write_figure(out, p);
  }
}

flp_status report_chart_sharpness(FILE *out, const report_data *data) {
  size_t most = (size_t)data->bench_count;
  const report_bench **rows = calloc(most + 1, sizeof *rows);
  plot *p = calloc(1, sizeof *p);
  point *points = calloc(most + 1, sizeof *points);
  flp_status status = FLP_OK;
  int count = 0;
  if (rows && p && points) {
    p->data = data;
    p->points = points;
    for (size_t i = 0; i < most; i++)
      if (is_drawable(&data->benches[i])) rows[count++] = &data->benches[i];
    write_shapes(out, p, rows, count);
  } else {
    status = flp_fail(FLP_ERROR_MEMORY, "out of memory for the chart of sharpness");
  }
  free(points);
  free(p);
  free(rows);
  return status;
}
