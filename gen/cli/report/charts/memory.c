/* memory.c: workspace against the number of rows, of every mode and of the naive form, by the planner on
 * an assumed H200. */
#include <stdlib.h>
#include <string.h>

#include "gen/cli/explain/explain.h"
#include "gen/cli/report/charts/charts.h"
#include "gen/cli/report/parts/svg.h"
#include "runtime/api/validate.h"
#include "runtime/base/quantity.h"
#include "runtime/base/status.h"

enum { ROWS_LEAST = 8, ROWS_MOST = 17, COUNTS = ROWS_MOST - ROWS_LEAST + 1 }; /* powers of two */
enum { HEIGHT = 420, HEIGHT_NARROW = 360 };

static const char title[] = "Memory beyond inputs and outputs against the number of rows";
static const double card_bytes = 141e9; /* of an H200 */

typedef struct plot {
  flp_spec spec;
  int64_t rows[COUNTS];
  explain_alternative alternative[COUNTS][EXPLAIN_ALTERNATIVES_MAX];
  int alternatives;
} plot;

/* ---- the shape ---- */

static void set_shape(flp_spec *spec, int64_t vocab, int64_t hidden, const char *dtype) {
  *spec = (flp_spec)FLP_SPEC_INIT;
  spec->vocab = vocab;
  spec->hidden = hidden;
  for (const cli_choice *choice = CLI_DTYPES; choice->name; choice++)
    if (strcmp(choice->name, dtype) == 0) spec->dtype = (flp_dtype)choice->value;
}

/* As asked for, else of the first spec, else of the first benchmark. 0 if there is none. */
static int pick_shape(const report_data *data, const report_options *options, flp_spec *out) {
  if (options->spec.spec.vocab)
    *out = options->spec.spec;
  else if (data->spec_count)
    set_shape(out, data->specs[0].vocab, data->specs[0].hidden, data->specs[0].dtype);
  else if (data->bench_count)
    set_shape(out, data->benches[0].vocab, data->benches[0].hidden, data->benches[0].dtype);
  else
    return 0;
  if (!out->grads) out->grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  return 1;
}

/* error: as flp_spec_resolve and explain_assume */
static flp_status compute(plot *p) {
  explain_args args = {.spec = CLI_SPEC_ARGS_INIT, .options = FLP_OPTIONS_INIT, .multiprocessors = 132, .major = 9};
  explain_assumed assumed;
  flp_planner planner;
  FLP_TRY(flp_spec_resolve(&p->spec, &args.spec.spec));
  p->spec = args.spec.spec;
  flp_options resolved;
  FLP_TRY(flp_options_resolve(&args.options, &resolved));
  args.options = resolved;
  FLP_TRY(explain_assume(&args, &assumed, &planner));
  for (int i = 0; i < COUNTS; i++) {
    p->rows[i] = (int64_t)1 << (ROWS_LEAST + i);
    p->alternatives = explain_alternatives(&planner, 0, p->rows[i], flp_pass_budget(0, FLP_PASS_FORWARD),
                                           flp_pass_budget(0, FLP_PASS_BACKWARD), p->alternative[i]);
  }
  return FLP_OK;
}

/* ---- drawing ---- */

/* Scoring, which every head has, gets flp's own mark, and the naive way, which stands before it, the next. */
static int series_of(int alternative) {
  return alternative < 2 ? 1 - alternative : alternative;
}

/* "256", "1k", "128k" rows: powers of two. */
static const char *format_rows(double value, char buffer[32]) {
  if (value >= 1024)
    snprintf(buffer, 32, "%.0fk", value / 1024);
  else
    snprintf(buffer, 32, "%.0f", value);
  return buffer;
}

static void draw_axis_rows(FILE *out, const plot *p, const report_scale *x, double top, double bottom, int stride) {
  for (int i = 0; i < COUNTS; i += stride) {
    char text[32];
    double at = report_scale_at(x, (double)p->rows[i]);
    report_svg_line(out, at, top, at, bottom, "grid");
    report_svg_text(out, at, bottom + 17, REPORT_MIDDLE, "tick", 60, format_rows((double)p->rows[i], text));
  }
  report_svg_line(out, x->from, bottom, x->to, bottom, "axis");
  report_svg_text(out, (x->from + x->to) / 2, bottom + 36, REPORT_MIDDLE, "title", x->to - x->from,
                  "rows N (tokens, 1k = 1024)");
}

static void draw_alternative(FILE *out, const plot *p, int w, const report_scale *x, const report_scale *y) {
  char class[REPORT_CLASS_BYTES];
  fprintf(out, "<polyline class=\"%s\" points=\"", report_series_class("curve", series_of(w), class));
  for (int i = 0; i < COUNTS; i++)
    fprintf(out, "%s%.1f,%.1f", i ? " " : "", report_scale_at(x, (double)p->rows[i]),
            report_scale_at(y, p->alternative[i][w].workspace));
  fputs("\"/>\n", out);
  for (int i = 0; i < COUNTS; i++) {
    const explain_alternative *alternative = &p->alternative[i][w];
    char tip[128], bytes[CLI_TEXT_BYTES];
    snprintf(tip, sizeof tip, "%s, N %lld: %s%s", alternative->name, (long long)p->rows[i],
             cli_format_bytes(alternative->workspace, bytes),
             alternative->fit == EXPLAIN_FITS ? "" : ", beyond the budget");
    report_svg_mark(out, report_scale_at(x, (double)p->rows[i]), report_scale_at(y, alternative->workspace), 4,
                    series_of(w), alternative->fit != EXPLAIN_FITS, tip);
  }
}

static void draw(FILE *out, const plot *p, int i) {
  double height = i ? HEIGHT_NARROW : HEIGHT, left = 62, top = 34, bottom = height - 48, low = 1e30, high = card_bytes;
  for (int n = 0; n < COUNTS; n++)
    for (int w = 0; w < p->alternatives; w++) {
      if (p->alternative[n][w].workspace > high) high = p->alternative[n][w].workspace;
      if (p->alternative[n][w].workspace > 0 && p->alternative[n][w].workspace < low)
        low = p->alternative[n][w].workspace;
    }
  report_scale x = {(double)p->rows[0], (double)p->rows[COUNTS - 1], left, REPORT_WIDTH[i] - 16, 1};
  report_scale y = report_scale_make(low, high, 1, 8, bottom, top);
  report_svg_start(out, i, height, title);
  draw_axis_rows(out, p, &x, top, bottom, i ? 2 : 1);
  report_svg_axis_y(out, &y, left, x.to, "workspace (bytes)", 8, report_format_bytes);
  double at = report_scale_at(&y, (double)flp_pass_budget(0, FLP_PASS_BACKWARD));
  report_svg_line(out, x.from, at, x.to, at, "budget");
  at = report_scale_at(&y, (double)flp_pass_budget(0, FLP_PASS_FORWARD));
  report_svg_line(out, x.from, at, x.to, at, "budget");
  at = report_scale_at(&y, card_bytes);
  report_svg_line(out, x.from, at, x.to, at, "base");
  for (int w = 0; w < p->alternatives; w++) draw_alternative(out, p, w, &x, &y);
  report_svg_finish(out);
}

static void write_table(FILE *out, const plot *p) {
  const char *columns[1 + EXPLAIN_ALTERNATIVES_MAX] = {"#N"}, *cells[1 + EXPLAIN_ALTERNATIVES_MAX];
  char names[EXPLAIN_ALTERNATIVES_MAX][64], text[1 + EXPLAIN_ALTERNATIVES_MAX][64];
  for (int w = 0; w < p->alternatives; w++) {
    snprintf(names[w], sizeof names[w], "#%s", p->alternative[0][w].name);
    columns[1 + w] = names[w];
  }
  report_table_start(out, "workspace", COUNTS, columns, 1 + p->alternatives);
  for (int i = 0; i < COUNTS; i++) {
    snprintf(text[0], sizeof text[0], "%lld", (long long)p->rows[i]);
    cells[0] = text[0];
    for (int w = 0; w < p->alternatives; w++) {
      char bytes[CLI_TEXT_BYTES];
      snprintf(text[1 + w], sizeof text[1 + w], "%s%s", cli_format_bytes(p->alternative[i][w].workspace, bytes),
               p->alternative[i][w].fit == EXPLAIN_FITS ? "" : " (beyond)");
      cells[1 + w] = text[1 + w];
    }
    report_table_row(out, columns, 1 + p->alternatives, cells);
  }
  report_table_finish(out);
}

static void write_figure(FILE *out, const plot *p) {
  char about[320];
  snprintf(
      about, sizeof about,
      "V %lld \u00b7 D %lld \u00b7 %s, by the planner on an assumed H200 within the default budgets. Modes of flp stay "
      "level where they split the work into chunks; the naive form holds fp32 scores.",
      (long long)p->spec.vocab, (long long)p->spec.hidden, flp_dtype_name(p->spec.dtype));
  report_figure_start(out, "memory", title, about);
  report_legend_start(out);
  for (int w = 0; w < p->alternatives; w++) report_legend_series(out, "curve", series_of(w), p->alternative[0][w].name);
  report_legend_mark(out, REPORT_NEUTRAL, 1, "hollow: beyond the budget, the least that would do");
  report_legend_line(out, "budget", "dotted line", "default budgets: 256 MiB forward, 1 GiB training");
  report_legend_line(out, "base", "dashed line", "memory of the card: 141 GB");
  report_legend_finish(out);
  for (int i = 0; i < REPORT_WIDTHS; i++) draw(out, p, i);
  write_table(out, p);
  report_figure_finish(out);
}

flp_status report_chart_memory(FILE *out, const report_data *data, const report_options *options) {
  plot *p = calloc(1, sizeof *p);
  if (!p) return flp_fail(FLP_ERROR_MEMORY, "out of memory for the page");
  flp_status status = FLP_OK;
  if (!pick_shape(data, options, &p->spec)) {
    report_figure_missing(out, "memory", title,
                          "No shape was given: name one with --vocab and --hidden, or give records.");
  } else {
    status = compute(p);
    if (status == FLP_OK)
      write_figure(out, p);
    else if (status != FLP_ERROR_MEMORY)
      report_figure_missing(out, "memory", title, flp_error_detail());
  }
  free(p);
  return status == FLP_ERROR_MEMORY ? status : FLP_OK;
}
