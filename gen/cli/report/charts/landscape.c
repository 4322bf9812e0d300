/* landscape.c: the time of every timed candidate by the value of each tunable.
 *
 * Invariants: clocks move between bursts, so candidates are compared by their ratio to what was timed beside them, the
 * untuned default; records without ratios are compared by time, over that of the best. */
#include <stdlib.h>
#include <string.h>

#include "gen/cli/report/charts/charts.h"
#include "gen/cli/report/parts/svg.h"

enum { DOTS_MAX = 1500, VALUES_MAX = 24, ROW = 24, HEAD = 28, TOP = 8, FOOT = 48, TABLE_MAX = 400 };
enum { TIMED = 0, CHOSEN = 1 }; /* series */

/* What is drawn ends here, in multiples of the best, where that leaves out any: the slowest would squash the rest. */
static const double far = 1.2, all_until = 1.3;

/* Columns of a drawing: names of values, plot, how many lie beyond it, the best of a value. */
static const struct {
  double names, beyond, best;
  int ticks;
} columns[REPORT_WIDTHS] = {{130, 40, 134, 8}, {84, 42, 56, 4}};

/* ---- tunables ---- */

static int64_t get_schedule(const report_candidate *c) {
  return c->tiling.schedule;
}
static int64_t get_tile(const report_candidate *c) {
  return (int64_t)c->tiling.rows << 32 | c->tiling.columns;
}
static int64_t get_stages(const report_candidate *c) {
  return c->tiling.stages;
}
static int64_t get_cluster(const report_candidate *c) {
  return c->tiling.cluster;
}
static int64_t get_raster(const report_candidate *c) {
  return c->tiling.raster;
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
    {"raster (row panels)", get_raster, put_number},
    {"chunk of rows", get_chunk_rows, put_number},
    {"chunk of vocab (columns)", get_chunk_vocab, put_number},
};
enum { TUNABLES = sizeof tunables / sizeof tunables[0] };

/* ---- one landscape: a kind of kernel of a spec ---- */

typedef struct dot {
  const report_candidate *c;
  double ratio;
} dot;

typedef struct section {
  int64_t value[VALUES_MAX];   /* ascending */
  const dot *best[VALUES_MAX]; /* the fastest of those of the value that were timed longest */
  int count, is_truncated;     /* more values than these */
} section;

typedef struct landscape {
  dot *dots;      /* timed, fastest first */
  int count, all; /* drawn, timed */
  const dot *best;
  int64_t most_rounds;
  int has_ratios;         /* to the default; else to the best */
  double baseline, low, high; /* ratios: of the GEMM baselines, ends of the plot */
  section of[TUNABLES];
} landscape;

static int compare_dots(const void *left, const void *right) {
  const dot *a = left, *b = right;
  if (a->ratio != b->ratio) return a->ratio < b->ratio ? -1 : 1;
  return a->c->order < b->c->order ? -1 : a->c->order > b->c->order;
}

/* Dots come fastest first, so the first of the most rounds stays. */
static void add_value(section *s, int64_t value, const dot *d) {
  int at = 0;
  while (at < s->count && s->value[at] < value) at++;
  if (at < s->count && s->value[at] == value) {
    if (d->c->rounds > s->best[at]->c->rounds) s->best[at] = d;
    return;
  }
  if (s->count == VALUES_MAX) {
    s->is_truncated = 1;
    return;
  }
  memmove(s->value + at + 1, s->value + at, (size_t)(s->count - at) * sizeof *s->value);
  memmove(s->best + at + 1, s->best + at, (size_t)(s->count - at) * sizeof *s->best);
  s->value[at] = value;
  s->best[at] = d;
  s->count++;
}

/* Keeps the timed candidates of a kind. error: returns 0 if there are none, or no memory */
static int take_dots(const report_data *data, int spec, const char *kind, landscape *out) {
  int first, end, best = report_data_best(data, spec, kind);
  report_data_range(data, spec, &first, &end);
  memset(out, 0, sizeof *out);
  if (best < 0 || !(data->candidates[best].ms > 0)) return 0;
  out->dots = calloc((size_t)(end - first), sizeof *out->dots);
  if (!out->dots) return 0;
  out->has_ratios = 1;
  for (int i = first; i < end; i++) {
    const report_candidate *c = &data->candidates[i];
    if (strcmp(c->kind, kind) != 0 || c->status < REPORT_TIMED || !(c->ms > 0)) continue;
    if (!(c->ratio > 0)) out->has_ratios = 0;
    out->dots[out->all++].c = c;
  }
  for (int i = 0; i < out->all; i++) {
    const report_candidate *c = out->dots[i].c;
    out->dots[i].ratio = out->has_ratios ? c->ratio : c->ms / data->candidates[best].ms;
  }
  qsort(out->dots, (size_t)out->all, sizeof *out->dots, compare_dots);
  out->count = out->all < DOTS_MAX ? out->all : DOTS_MAX;
  for (int i = 0; i < out->all; i++)
    if (out->dots[i].c == &data->candidates[best]) out->best = &out->dots[i];
  return 1;
}

static void set_ends(landscape *l, double baseline_ms) {
  double fastest = l->dots[0].ratio, slowest = l->dots[l->count - 1].ratio, best = l->best->ratio;
  l->baseline = l->best->ratio * baseline_ms / l->best->c->ms;
  l->low = l->baseline < fastest ? l->baseline : fastest;
  l->high = slowest > all_until * best ? far * best : slowest;
  if (l->baseline > l->high) l->high = l->baseline;
}

static int collect(const report_data *data, int spec, const char *kind, landscape *out) {
  if (!take_dots(data, spec, kind, out)) return 0;
  for (int i = 0; i < out->count; i++) {
    const dot *d = &out->dots[i];
    if (d->c->rounds > out->most_rounds) out->most_rounds = d->c->rounds;
    for (int t = 0; t < TUNABLES; t++) add_value(&out->of[t], tunables[t].get(d->c), d);
  }
  set_ends(out, report_data_baseline_ms(data, spec, kind));
  return 1;
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

static int is_early(const landscape *in, const dot *d) {
  return d->c->rounds < in->most_rounds && d != in->best;
}

static void draw_dot(FILE *out, const landscape *in, const dot *d, const report_scale *x, double y) {
  char tip[256], ms[REPORT_NUMBER_BYTES], ratio[REPORT_NUMBER_BYTES];
  snprintf(tip, sizeof tip, "%.160s: %s\u00d7, %s ms, %lld rounds", d->c->tune[0] ? d->c->tune : "own",
           report_places(d->ratio, 3, ratio), report_number(d->c->ms, 5, ms), (long long)d->c->rounds);
  int best = d == in->best;
  report_svg_mark(out, report_scale_at(x, d->ratio), best ? y : y + jitter_of(d->c), best ? 5.4 : 2.6,
                  best ? CHOSEN : TIMED, is_early(in, d), tip);
}

/* The ratios of the least and the most of a candidate's bursts; 0 where it has no spread. */
static int spread_of(const dot *d, double out[2]) {
  out[0] = d->ratio * d->c->ms_low / d->c->ms;
  out[1] = d->ratio * d->c->ms_high / d->c->ms;
  return out[0] > 0 && out[1] > out[0];
}

/* The fastest of a value: a bar, a whisker of its bursts, and its figures. is_chosen: the chosen has this value */
static void draw_best(FILE *out, int i, const dot *d, int is_chosen, const report_scale *x, double y) {
  char text[2 * REPORT_NUMBER_BYTES + 16], ratio[REPORT_NUMBER_BYTES], ms[REPORT_NUMBER_BYTES];
  double at = report_scale_at(x, d->ratio), ends[2];
  if (d->ratio <= x->high) {
    if (spread_of(d, ends))
      report_svg_line(out, report_scale_at(x, ends[0]), y, report_scale_at(x, ends[1]), y, "whisker");
    report_svg_line(out, at, y - 9, at, y + 9, "tickmark");
  }
  report_places(d->ratio, 3, ratio);
  report_places(d->c->ms, d->c->ms < 10 ? 3 : d->c->ms < 100 ? 2 : 1, ms);
  snprintf(text, sizeof text, i ? "%s\u00d7" : "%s\u00d7 \u00b7 %s ms", ratio, ms);
  report_svg_text(out, REPORT_WIDTH[i] - 2, y + 4, REPORT_END, is_chosen ? "head" : "", columns[i].best - 4, text);
}

static void draw_row(FILE *out, const landscape *in, int i, int t, int v, const report_scale *x, double y) {
  char text[32] = "template's default", beyond[16];
  int64_t value = in->of[t].value[v];
  int slower = 0;
  if (value) tunables[t].put(value, text);
  report_svg_text(out, columns[i].names - 6, y + 4, REPORT_END, "", columns[i].names - 8, text);
  report_svg_line(out, x->from, y, x->to, y, "row");
  fputs("<g class=\"soft\">", out);
  for (int k = in->count - 1; k >= 0; k--) {
    const dot *d = &in->dots[k];
    if (tunables[t].get(d->c) != value || d == in->best) continue;
    if (d->ratio > x->high)
      slower++;
    else
      draw_dot(out, in, d, x, y);
  }
  fputs("</g>\n", out);
  if (slower) {
    snprintf(beyond, sizeof beyond, "+%d", slower);
    report_svg_text(out, x->to + 6, y + 4, REPORT_START, "dim", columns[i].beyond - 4, beyond);
  }
  int is_chosen = tunables[t].get(in->best->c) == value;
  draw_best(out, i, in->of[t].best[v], is_chosen, x, y);
  if (is_chosen) draw_dot(out, in, in->best, x, y);
}

/* A bar with the name of a tunable and the cost of its worst value, all others at their best. */
static void draw_head(FILE *out, const landscape *in, int i, int t, double y) {
  const section *s = &in->of[t];
  double least = s->best[0]->ratio, most = least;
  char text[64];
  for (int v = 1; v < s->count; v++) {
    least = fmin(least, s->best[v]->ratio);
    most = fmax(most, s->best[v]->ratio);
  }
  fprintf(out, "<rect x=\"0\" y=\"%.1f\" width=\"%g\" height=\"%d\" class=\"band\"/>\n", y + 3, REPORT_WIDTH[i],
          HEAD - 8);
  report_svg_text(out, 4, y + HEAD / 2.0 + 3, REPORT_START, "head", 200, tunables[t].name);
  if (s->count == 1)
    snprintf(text, sizeof text, "one value tried");
  else
    snprintf(text, sizeof text, i ? "worst: +%.1f %%" : "worst value: +%.1f %%", 100 * (most / least - 1));
  report_svg_text(out, REPORT_WIDTH[i] - 4, y + HEAD / 2.0 + 3, REPORT_END, "dim", 150, text);
}

static double height_of(const landscape *in) {
  double height = TOP + FOOT;
  for (int t = 0; t < TUNABLES; t++)
    if (is_shown(in, t)) height += HEAD + ROW * in->of[t].count;
  return height;
}

/* The spread of the chosen one's bursts, behind everything: differences inside it may be noise. */
static void draw_noise(FILE *out, const landscape *in, const report_scale *x, double bottom) {
  double ends[2];
  if (!spread_of(in->best, ends)) return;
  double left = report_scale_at(x, ends[0]), right = report_scale_at(x, ends[1]);
  fprintf(out, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%.1f\" class=\"noise\"/>\n", left, TOP, right - left,
          bottom - TOP);
}

static void draw(FILE *out, const landscape *in, int i, const char *label) {
  double bottom = height_of(in) - FOOT, y = TOP;
  report_scale x = report_scale_make(in->low, in->high, in->high / in->low > 4, columns[i].ticks, columns[i].names + 8,
                                     REPORT_WIDTH[i] - columns[i].best - columns[i].beyond);
  report_svg_start(out, i, bottom + FOOT, label);
  draw_noise(out, in, &x, bottom);
  report_svg_axis_x(out, &x, TOP, bottom,
                    in->has_ratios ? "time / time of the default (\u00d7, less is faster)"
                                   : "time / time of the chosen (\u00d7, less is faster)",
                    columns[i].ticks, report_format_number);
  if (in->baseline > 0)
    report_svg_line(out, report_scale_at(&x, in->baseline), TOP, report_scale_at(&x, in->baseline), bottom, "base");
  for (int t = 0; t < TUNABLES; t++) {
    if (!is_shown(in, t)) continue;
    draw_head(out, in, i, t, y);
    y += HEAD;
    for (int v = 0; v < in->of[t].count; v++, y += ROW) draw_row(out, in, i, t, v, &x, y + ROW / 2.0);
  }
  report_svg_finish(out);
}

/* ---- the figure ---- */

static void write_table(FILE *out, const landscape *in) {
  static const char *const names[] = {"tiling",   "#chunk rows", "#chunk vocab", "#ratio",        "#ms",    "#least ms",
                                      "#most ms", "#rounds",     "#SM MHz",      "#predicted ms", "#error", "status"};
  enum { COLUMNS = sizeof names / sizeof names[0] };
  int rows = in->count < TABLE_MAX ? in->count : TABLE_MAX;
  report_table_start(out, rows < in->all ? "the fastest candidates" : "timed candidates, the fastest first", rows,
                     names, COLUMNS);
  for (int i = 0; i < rows; i++) {
    const dot *d = &in->dots[i];
    const report_candidate *c = d->c;
    char n[10][REPORT_NUMBER_BYTES];
    const char *const cells[COLUMNS] = {c->tune[0] ? c->tune : "own",
                                        c->chunk_rows ? report_number((double)c->chunk_rows, 9, n[0]) : "",
                                        c->chunk_vocab ? report_number((double)c->chunk_vocab, 9, n[1]) : "",
                                        report_places(d->ratio, 4, n[2]),
                                        report_places(c->ms, 3, n[3]),
                                        report_places(c->ms_low, 3, n[4]),
                                        report_places(c->ms_high, 3, n[5]),
                                        report_number((double)c->rounds, 9, n[6]),
                                        report_number(c->clock_mhz, 4, n[7]),
                                        report_places(c->predicted_ms, 3, n[8]),
                                        report_number(c->error, 3, n[9]),
                                        d == in->best     ? "chosen"
                                        : is_early(in, d) ? "left early"
                                                          : "timed"};
    report_table_row(out, names, COLUMNS, cells);
  }
  report_table_finish(out);
}

static void write_legend(FILE *out, const landscape *in) {
  double ends[2];
  report_legend_start(out);
  report_legend_mark(out, CHOSEN, 0, "chosen");
  report_legend_mark(out, TIMED, 0, "timed to the end");
  report_legend_mark(out, TIMED, 1, "left early (fewer rounds)");
  report_legend_line(out, "tickmark", "thick line", "fastest of a value");
  if (spread_of(in->best, ends)) {
    report_legend_line(out, "whisker", "thin line", "its bursts, least to most");
    report_legend_swatch(out, "noise", "orange ground", "bursts of the chosen, least to most");
  }
  if (in->baseline > 0) report_legend_line(out, "base", "dashed line", "GEMM baselines");
  report_legend_finish(out);
}

static void write_figure(FILE *out, const report_data *data, const landscape *in, int spec, const char *kind) {
  char shape[REPORT_SHAPE_BYTES], title[REPORT_SHAPE_BYTES + 120], about[320], high[REPORT_NUMBER_BYTES];
  char record[REPORT_RECORD_BYTES];
  report_data_record(data, spec, record);
  snprintf(title, sizeof title, "Time of every candidate by tunable: %s, %s%s%.60s", kind,
           report_data_shape(&data->specs[spec], shape), record[0] ? " \u00b7 " : "", record);
  snprintf(about, sizeof about,
           "%d candidates, each once under every tunable; the whole %s is timed. At the right the fastest of each "
           "value, of those timed longest%s%s%s.",
           in->all, report_data_pass(data, spec, kind),
           in->dots[in->count - 1].ratio > in->high ? "; +n counts candidates slower than the plot shows, above " : "",
           in->dots[in->count - 1].ratio > in->high ? report_places(in->high, 2, high) : "",
           in->dots[in->count - 1].ratio > in->high ? "\u00d7" : "");
  report_figure_start(out, "landscape", title, about);
  write_legend(out, in);
  for (int i = 0; i < REPORT_WIDTHS; i++) draw(out, in, i, title);
  for (int t = 0; t < TUNABLES; t++)
    if (in->of[t].is_truncated)
      report_note(out, "A tunable has more than 24 values; those of slower candidates are not drawn.");
  if (in->count < in->all) report_note(out, "Only the 1500 fastest candidates are drawn.");
  write_table(out, in);
  report_figure_finish(out);
}

/* The landscapes of one spec, at most `room`; those behind the first spec's are folded away. Returns their number. */
static int64_t write_spec(FILE *out, const report_data *data, int spec, int is_folded, int64_t room) {
  char shape[REPORT_SHAPE_BYTES], record[REPORT_RECORD_BYTES];
  int64_t drawn = 0;
  for (int k = 0; REPORT_KINDS[k] && drawn < room; k++) {
    landscape in;
    if (collect(data, spec, REPORT_KINDS[k], &in)) {
      if (is_folded && drawn == 0) {
        fputs("<details class=\"more\"><summary>", out);
        report_escape(out, report_data_shape(&data->specs[spec], shape));
        fputs(report_data_record(data, spec, record)[0] ? " \u00b7 " : "", out);
        report_escape(out, record);
        fputs("</summary>\n", out);
      }
      write_figure(out, data, &in, spec, REPORT_KINDS[k]);
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
