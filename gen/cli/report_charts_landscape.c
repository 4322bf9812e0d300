/* report_charts_landscape.c: the time of every timed candidate by the value of each tunable. */
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "report_svg.h"

enum { DOTS_MAX = 1500, VALUES_MAX = 24, ROW = 24, HEAD = 28, TOP = 8, FOOT = 48, TABLE_MAX = 400 };
enum { TIMED = 0, CHOSEN = 1 }; /* series */

/* Columns of a drawing: names of values, plot, the best time of a value. */
static const struct {
  double names, best;
  int ticks;
} columns[REPORT_WIDTHS] = {{130, 90, 8}, {92, 52, 5}};

/* ---- tunables ---- */

static int64_t get_schedule(const report_candidate *c) {
  return c->cut.schedule;
}
static int64_t get_tile(const report_candidate *c) {
  return (int64_t)c->cut.rows << 32 | c->cut.columns;
}
static int64_t get_stages(const report_candidate *c) {
  return c->cut.stages;
}
static int64_t get_cluster(const report_candidate *c) {
  return c->cut.cluster;
}
static int64_t get_raster(const report_candidate *c) {
  return c->cut.raster;
}
static int64_t get_chunk_rows(const report_candidate *c) {
  return c->chunk_rows;
}
static int64_t get_chunk_vocab(const report_candidate *c) {
  return c->chunk_vocab;
}

static void put_number(int64_t value, char out[32]) {
  snprintf(out, 32, "%lld", (long long)value);
}
static void put_schedule(int64_t value, char out[32]) {
  snprintf(out, 32, "%s", value == FLP_SCHEDULE_PING_PONG ? "ping-pong" : "cooperative");
}
static void put_tile(int64_t value, char out[32]) {
  snprintf(out, 32, "%lld\u00d7%lld", (long long)(value >> 32), (long long)(value & 0xffffffff));
}

static const struct tunable {
  const char *name;
  int64_t (*get)(const report_candidate *); /* 0: left to the template or planner */
  void (*put)(int64_t, char[32]);
} tunables[] = {
    {"schedule", get_schedule, put_schedule},
    {"tile (rows \u00d7 columns)", get_tile, put_tile},
    {"stages", get_stages, put_number},
    {"cluster (CTAs)", get_cluster, put_number},
    {"raster (bands)", get_raster, put_number},
    {"chunk of rows", get_chunk_rows, put_number},
    {"chunk of vocab (columns)", get_chunk_vocab, put_number},
};
enum { TUNABLES = sizeof tunables / sizeof tunables[0] };

/* ---- one landscape: a kind of kernel of a spec ---- */

typedef struct section {
  int64_t value[VALUES_MAX]; /* ascending */
  int count, is_cut;         /* more values than these */
} section;

typedef struct landscape {
  const report_candidate **dots; /* timed, fastest first */
  int count, all;                /* drawn, timed */
  const report_candidate *best;
  int64_t most_rounds;
  double bare_ms, high_ms;
  section of[TUNABLES];
} landscape;

static int compare_dots(const void *left, const void *right) {
  const report_candidate *a = *(const report_candidate *const *)left, *b = *(const report_candidate *const *)right;
  if (a->ms != b->ms) return a->ms < b->ms ? -1 : 1;
  return a->order < b->order ? -1 : a->order > b->order;
}

static void add_value(section *s, int64_t value) {
  int at = 0;
  while (at < s->count && s->value[at] < value) at++;
  if (at < s->count && s->value[at] == value) return;
  if (s->count == VALUES_MAX) {
    s->is_cut = 1;
    return;
  }
  memmove(s->value + at + 1, s->value + at, (size_t)(s->count - at) * sizeof *s->value);
  s->value[at] = value;
  s->count++;
}

/* Keeps the timed candidates of a kind; 0 if there are none, or no memory. */
static int collect(const report_data *data, int spec, const char *kind, landscape *out) {
  int first, end, best = report_data_best(data, spec, kind);
  report_data_range(data, spec, &first, &end);
  memset(out, 0, sizeof *out);
  if (best < 0) return 0;
  out->dots = calloc((size_t)(end - first), sizeof *out->dots);
  if (!out->dots) return 0;
  for (int i = first; i < end; i++) {
    const report_candidate *c = &data->candidates[i];
    if (strcmp(c->kind, kind) == 0 && c->status >= REPORT_TIMED && c->ms > 0) out->dots[out->all++] = c;
  }
  qsort(out->dots, (size_t)out->all, sizeof *out->dots, compare_dots);
  out->count = out->all < DOTS_MAX ? out->all : DOTS_MAX;
  out->best = &data->candidates[best];
  out->bare_ms = report_data_bare_ms(data, spec, kind);
  for (int i = 0; i < out->count; i++) {
    if (out->dots[i]->rounds > out->most_rounds) out->most_rounds = out->dots[i]->rounds;
    for (int t = 0; t < TUNABLES; t++) add_value(&out->of[t], tunables[t].get(out->dots[i]));
  }
  out->high_ms = out->count ? out->dots[out->count - 1]->ms : 0;
  return out->count > 0;
}

/* A tunable that every candidate leaves alone is not shown. */
static int is_shown(const landscape *in, int t) {
  return in->of[t].count > 1 || in->of[t].value[0] != 0;
}

/* ---- drawing ---- */

/* Pixels up or down, the same for a candidate in every row. */
static double jitter_of(const report_candidate *c) {
  uint32_t x = (uint32_t)c->order * 2654435761u;
  return ((x >> 24) % 15 - 7.0) * 0.9;
}

static int is_early(const landscape *in, const report_candidate *c) {
  return c->rounds < in->most_rounds && c != in->best;
}

static void draw_dot(FILE *out, const landscape *in, const report_candidate *c, const report_scale *x, double y) {
  char tip[256], ms[REPORT_NUMBER_BYTES];
  snprintf(tip, sizeof tip, "%.160s: %s ms, %lld rounds", c->tune[0] ? c->tune : "own", report_number(c->ms, 5, ms),
           (long long)c->rounds);
  int best = c == in->best;
  report_svg_mark(out, report_scale_at(x, c->ms), best ? y : y + jitter_of(c), best ? 5.4 : 2.6, best ? CHOSEN : TIMED,
                  is_early(in, c), tip);
}

static void draw_row(FILE *out, const landscape *in, int i, int t, int64_t value, const report_scale *x, double y) {
  char text[32] = "template's own", ms[REPORT_NUMBER_BYTES + 4];
  if (value) tunables[t].put(value, text);
  report_svg_text(out, columns[i].names - 6, y + 4, REPORT_END, "", columns[i].names - 8, text);
  report_svg_line(out, x->from, y, x->to, y, "row");
  double least = NAN;
  int has_best = 0;
  fputs("<g class=\"soft\">", out);
  for (int d = in->count - 1; d >= 0; d--) {
    const report_candidate *c = in->dots[d];
    if (tunables[t].get(c) != value) continue;
    least = c->ms;
    if (c == in->best)
      has_best = 1;
    else
      draw_dot(out, in, c, x, y);
  }
  fputs("</g>\n", out);
  double at = report_scale_at(x, least);
  report_svg_line(out, at, y - 9, at, y + 9, "tickmark");
  if (has_best) draw_dot(out, in, in->best, x, y);
  report_places(least, least < 10 ? 3 : least < 100 ? 2 : 1, ms);
  if (i == 0) strcat(ms, " ms");
  report_svg_text(out, REPORT_WIDTH[i] - 2, y + 4, REPORT_END, has_best ? "head" : "", columns[i].best - 6, ms);
}

static double height_of(const landscape *in) {
  double height = TOP + FOOT;
  for (int t = 0; t < TUNABLES; t++)
    if (is_shown(in, t)) height += HEAD + ROW * in->of[t].count;
  return height;
}

static void draw(FILE *out, const landscape *in, int i, const char *label) {
  double height = height_of(in), bottom = height - FOOT, y = TOP, low = in->dots[0]->ms, high = in->high_ms;
  if (in->bare_ms < low) low = in->bare_ms;
  if (in->bare_ms > high) high = in->bare_ms;
  report_scale x = report_scale_make(low, high, high / low > 4, columns[i].ticks, columns[i].names + 8,
                                     REPORT_WIDTH[i] - columns[i].best - 4);
  report_svg_start(out, i, height, label);
  report_svg_axis_x(out, &x, TOP, bottom, "time (ms, less is faster)", columns[i].ticks, report_format_number);
  if (in->bare_ms > 0)
    report_svg_line(out, report_scale_at(&x, in->bare_ms), TOP, report_scale_at(&x, in->bare_ms), bottom, "base");
  for (int t = 0; t < TUNABLES; t++) {
    if (!is_shown(in, t)) continue;
    fprintf(out, "<rect x=\"0\" y=\"%.1f\" width=\"%g\" height=\"%d\" class=\"band\"/>\n", y + 3, REPORT_WIDTH[i],
            HEAD - 8);
    report_svg_text(out, 4, y + HEAD / 2.0 + 3, REPORT_START, "head", 200, tunables[t].name);
    if (i == 0)
      report_svg_text(out, REPORT_WIDTH[i] - 4, y + HEAD / 2.0 + 3, REPORT_END, "dim", 150, "best of the value");
    y += HEAD;
    for (int v = 0; v < in->of[t].count; v++, y += ROW) draw_row(out, in, i, t, in->of[t].value[v], &x, y + ROW / 2.0);
  }
  report_svg_finish(out);
}

static void write_table(FILE *out, const landscape *in) {
  static const char *const names[] = {"cut",      "#chunk rows", "#chunk vocab",  "#ms",    "#least ms",
                                      "#most ms", "#rounds",     "#predicted ms", "#error", "status"};
  enum { COLUMNS = sizeof names / sizeof names[0] };
  int rows = in->count < TABLE_MAX ? in->count : TABLE_MAX;
  report_table_start(out, rows < in->all ? "the fastest candidates" : "timed candidates, the fastest first", rows,
                     names, COLUMNS);
  for (int i = 0; i < rows; i++) {
    const report_candidate *c = in->dots[i];
    char n[8][REPORT_NUMBER_BYTES];
    const char *const cells[COLUMNS] = {c->tune[0] ? c->tune : "own",
                                        c->chunk_rows ? report_number((double)c->chunk_rows, 9, n[0]) : "",
                                        c->chunk_vocab ? report_number((double)c->chunk_vocab, 9, n[1]) : "",
                                        report_places(c->ms, 3, n[2]),
                                        report_places(c->ms_low, 3, n[3]),
                                        report_places(c->ms_high, 3, n[4]),
                                        report_number((double)c->rounds, 9, n[5]),
                                        report_places(c->predicted_ms, 3, n[6]),
                                        report_number(c->error, 3, n[7]),
                                        c == in->best     ? "best"
                                        : is_early(in, c) ? "left early"
                                                          : "timed"};
    report_table_row(out, names, COLUMNS, cells);
  }
  report_table_finish(out);
}

static void write_figure(FILE *out, const landscape *in, const report_spec *spec, const char *kind) {
  char shape[REPORT_SHAPE_BYTES], title[REPORT_SHAPE_BYTES + 80];
  snprintf(title, sizeof title, "Time of every candidate by tunable: %s, %s", kind, report_data_shape(spec, shape));
  report_figure_start(out, "landscape", title,
                      "Each candidate stands once under every tunable; a bar marks the fastest of each value.");
  report_legend_start(out);
  report_legend_mark(out, CHOSEN, 0, "best");
  report_legend_mark(out, TIMED, 0, "timed to the end");
  report_legend_mark(out, TIMED, 1, "left early (fewer rounds)");
  report_legend_line(out, "tickmark", "fastest of a value");
  if (in->bare_ms > 0) report_legend_line(out, "base", "bare products");
  report_legend_finish(out);
  for (int i = 0; i < REPORT_WIDTHS; i++) draw(out, in, i, title);
  for (int t = 0; t < TUNABLES; t++)
    if (in->of[t].is_cut)
      report_note(out, "A tunable has more than 24 values; those of slower candidates are not drawn.");
  if (in->count < in->all) report_note(out, "Only the 1500 fastest candidates are drawn.");
  write_table(out, in);
  report_figure_finish(out);
}

/* The landscapes of one spec, at most `room`; those behind the first spec's are folded away. Returns their number. */
static int64_t write_spec(FILE *out, const report_data *data, int spec, int is_folded, int64_t room) {
  char shape[REPORT_SHAPE_BYTES];
  int64_t drawn = 0;
  for (int k = 0; REPORT_KINDS[k] && drawn < room; k++) {
    landscape in;
    if (collect(data, spec, REPORT_KINDS[k], &in)) {
      if (is_folded && drawn == 0) {
        fputs("<details class=\"more\"><summary>", out);
        report_escape(out, report_data_shape(&data->specs[spec], shape));
        fputs("</summary>\n", out);
      }
      write_figure(out, &in, &data->specs[spec], REPORT_KINDS[k]);
      drawn++;
    }
    free(in.dots);
  }
  if (is_folded && drawn) fputs("</details>\n", out);
  return drawn;
}

static int64_t count_all(const report_data *data) {
  int64_t count = 0;
  for (int s = 0; s < data->spec_count; s++)
    for (int k = 0; REPORT_KINDS[k]; k++) count += report_data_best(data, s, REPORT_KINDS[k]) >= 0;
  return count;
}

void report_chart_landscape(FILE *out, const report_data *data, int64_t most) {
  int64_t drawn = 0, found = count_all(data);
  for (int s = 0; s < data->spec_count && drawn < most; s++) drawn += write_spec(out, data, s, drawn > 0, most - drawn);
  if (found == 0)
    report_figure_missing(out, "landscape", "Time of every candidate by tunable",
                          "No candidate was timed: give the records that flpgen tune wrote.");
  if (found > drawn) {
    char text[128];
    snprintf(text, sizeof text, "%lld of %lld landscapes are drawn; --landscapes sets how many.", (long long)drawn,
             (long long)found);
    report_note(out, text);
  }
}
