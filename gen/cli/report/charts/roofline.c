/* roofline.c: throughput against arithmetic intensity, one series a hidden size, under the card's limits.
 *
 * Intensity counts what any implementation must move: inputs and outputs, each once. So recomputed products raise
 * neither flop nor bytes of the naive count: flop are those of the products that a pass stands for. */
#include <stdlib.h>
#include <string.h>

#include "gen/cli/report/charts/charts.h"
#include "gen/cli/report/parts/svg.h"
#include "gen/cli/shared/cost.h"
#include "runtime/api/validate.h"

enum { POINTS_MAX = 1000, HEIGHT = 400, HEIGHT_NARROW = 340 };
enum { HIDDEN_MAX = 14 };

static const char title[] = "Roofline: throughput of 16-bit passes against arithmetic intensity, by hidden size D";

/* Data sheets: dense bf16 with fp32 accumulation at the boost clock, and device memory. */
static const struct card {
  const char *word; /* in the GPU's name */
  double tflops, bytes_per_s;
} cards[] = {{"H200", 989.4, 4.8e12},
             {"H100 PCIe", 756.0, 2.0e12},
             {"H100", 989.4, 3.35e12},
             {"A100", 312.0, 2.039e12},
             {"L40", 362.1, 0.864e12}};

typedef struct point {
  double intensity, tflops;
  int64_t hidden;
  int is_training;
  char name[REPORT_SHAPE_BYTES];
} point;

typedef struct plot {
  point points[POINTS_MAX];
  int count, left_out;
  int64_t hidden[HIDDEN_MAX]; /* ascending; the last stands for all that find no room */
  int hidden_count;
  double baseline_tflops; /* the best of the GEMM baselines */
  const char *gpu;
  const struct card *card;
} plot;

static const struct card *card_of(const char *gpu) {
  for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++)
    if (strstr(gpu, cards[i].word)) return &cards[i];
  return NULL;
}

/* ---- points ---- */

/* Bytes of inputs and outputs, NaN for a shape that is none. */
static double bytes_of(const report_bench *row) {
  int is_training = strcmp(row->which, "forward") != 0;
  flp_spec spec = FLP_SPEC_INIT, resolved;
  spec.vocab = row->vocab;
  spec.hidden = row->hidden;
  spec.dtype = strcmp(row->dtype, "fp16") == 0 ? FLP_DTYPE_FP16 : FLP_DTYPE_BF16;
  spec.entropy = strcmp(row->entropy, "none") == 0 ? FLP_ENTROPY_NONE : FLP_ENTROPY_FORWARD;
  if (is_training && strstr(row->grads, "hidden")) spec.grads |= FLP_GRAD_HIDDEN;
  if (is_training && strstr(row->grads, "weight")) spec.grads |= FLP_GRAD_WEIGHT;
  if (flp_spec_resolve(&spec, &resolved) != FLP_OK) return NAN;
  return cli_input_bytes(&resolved, row->active) + cli_output_bytes(&resolved, row->active);
}

static double flops_of(const report_bench *row) {
  return 2.0 * (double)row->gemms * (double)row->active * (double)row->hidden * (double)row->vocab;
}

static void add_hidden(plot *p, int64_t hidden) {
  int at = 0;
  while (at < p->hidden_count && p->hidden[at] < hidden) at++;
  if ((at < p->hidden_count && p->hidden[at] == hidden) || p->hidden_count == HIDDEN_MAX) return;
  memmove(p->hidden + at + 1, p->hidden + at, (size_t)(p->hidden_count - at) * sizeof *p->hidden);
  p->hidden[at] = hidden;
  p->hidden_count++;
}

static int series_of(const plot *p, int64_t hidden) {
  int i = 0;
  while (i + 1 < p->hidden_count && p->hidden[i] != hidden) i++;
  return i;
}

/* Takes a pass of flp on this card. */
static void add(plot *p, const report_bench *row, const char *gpu, const char *who) {
  double bytes = bytes_of(row), flops = flops_of(row), tflops = 1e-9 * flops / row->ms;
  int is_half = strcmp(row->dtype, "bf16") == 0 || strcmp(row->dtype, "fp16") == 0;
  if (!p->gpu[0]) p->gpu = gpu;
  if (!(row->ms > 0) || !is_half || !(bytes > 0) || !(tflops > 0) || strcmp(gpu, p->gpu) != 0 ||
      p->count == POINTS_MAX) {
    p->left_out++;
    return;
  }
  add_hidden(p, row->hidden);
  point *q = &p->points[p->count++];
  *q = (point){flops / bytes, tflops, row->hidden, strcmp(row->which, "forward") != 0, ""};
  snprintf(q->name, sizeof q->name, "%.40s \u00b7 N %lld \u00b7 V %lld \u00b7 %.80s", row->which, (long long)row->rows,
           (long long)row->vocab, who);
  if (row->baseline_ms > 0 && row->active == row->rows && 1e-9 * flops / row->baseline_ms > p->baseline_tflops)
    p->baseline_tflops = 1e-9 * flops / row->baseline_ms;
}

/* The best forward kernels of the tuning records are passes too, but for a few microseconds. */
static void collect(const report_data *data, plot *p) {
  p->gpu = "";
  for (int s = 0; s < data->spec_count; s++) {
    int best = report_data_best(data, s, "forward");
    const report_spec *spec = &data->specs[s];
    if (best < 0 || spec->rows <= 0) continue;
    report_bench row = {.which = "forward", .dtype = spec->dtype, .entropy = spec->entropy, .grads = ""};
    row.rows = row.active = spec->rows;
    row.hidden = spec->hidden;
    row.vocab = spec->vocab;
    row.gemms = 1;
    row.ms = data->candidates[best].ms;
    row.baseline_ms = report_data_baseline_ms(data, s, "forward");
    add(p, &row, data->runs[spec->run].gpu, "tuned");
  }
  for (int i = 0; i < data->bench_count; i++) {
    const report_bench *row = &data->benches[i];
    int is_ours = !row->peer[0] || strcmp(row->peer, "flp") == 0;
    const report_source *source = &data->sources[row->source];
    if (is_ours) add(p, row, source->gpu, source->file);
  }
  p->card = card_of(p->gpu);
}

/* ---- drawing ---- */

/* The lower of both limits, from the left end to the right. */
static void draw_limits(FILE *out, const plot *p, const report_scale *x, const report_scale *y) {
  if (p->card) {
    double ridge = p->card->tflops * 1e12 / p->card->bytes_per_s, foot = y->low * 1e12 / p->card->bytes_per_s;
    double start = foot > x->low ? foot : x->low;
    double from = start * p->card->bytes_per_s * 1e-12;
    report_svg_line(out, report_scale_at(x, start), report_scale_at(y, from), report_scale_at(x, ridge),
                    report_scale_at(y, p->card->tflops), "limit");
    report_svg_line(out, report_scale_at(x, ridge), report_scale_at(y, p->card->tflops), x->to,
                    report_scale_at(y, p->card->tflops), "limit");
  }
  if (p->baseline_tflops > 0)
    report_svg_line(out, x->from, report_scale_at(y, p->baseline_tflops), x->to, report_scale_at(y, p->baseline_tflops),
                    "base");
}

static void draw(FILE *out, const plot *p, int i) {
  double height = i ? HEIGHT_NARROW : HEIGHT, left = 46, top = 34, bottom = height - 48;
  double least = 1e30, most = 0, low = 100, high = 1000;
  for (int n = 0; n < p->count; n++) {
    if (p->points[n].tflops < least) least = p->points[n].tflops;
    if (p->points[n].tflops > most) most = p->points[n].tflops;
    if (p->points[n].intensity < low) low = p->points[n].intensity;
    if (p->points[n].intensity > high) high = p->points[n].intensity;
  }
  if (p->card && p->card->tflops > most) most = p->card->tflops;
  report_scale x = report_scale_make(low / 1.5, high * 1.2, 1, i ? 4 : 12, left, REPORT_WIDTH[i] - 28);
  report_scale y = report_scale_make(least / 4, most * 1.05, 1, 8, bottom, top);
  report_svg_start(out, i, height, title);
  report_svg_axis_x(out, &x, top, bottom, "arithmetic intensity (flop / byte)", i ? 4 : 12, report_format_number);
  report_svg_axis_y(out, &y, left, x.to, "throughput (TFLOP/s)", 8, report_format_number);
  draw_limits(out, p, &x, &y);
  for (int n = 0; n < p->count; n++) {
    const point *q = &p->points[n];
    char tip[REPORT_SHAPE_BYTES + 96];
    snprintf(tip, sizeof tip, "%s \u00b7 D %lld: %.0f TFLOP/s at %.0f flop/byte", q->name, (long long)q->hidden,
             q->tflops, q->intensity);
    report_svg_mark(out, report_scale_at(&x, q->intensity), report_scale_at(&y, q->tflops), 4.6,
                    series_of(p, q->hidden), q->is_training, tip);
  }
  report_svg_finish(out);
}

static void write_legend(FILE *out, const plot *p) {
  char text[160];
  report_legend_start(out);
  for (int i = 0; i < p->hidden_count; i++) {
    snprintf(text, sizeof text, "D %lld", (long long)p->hidden[i]);
    report_legend_mark(out, i, 0, text);
  }
  report_legend_mark(out, REPORT_NEUTRAL, 0, "filled: forward");
  report_legend_mark(out, REPORT_NEUTRAL, 1, "hollow: with gradients");
  if (p->card) {
    snprintf(text, sizeof text, "limits of the card: %.0f TFLOP/s dense bf16, %.2f TB/s", p->card->tflops,
             1e-12 * p->card->bytes_per_s);
    report_legend_line(out, "limit", "solid line", text);
  }
  if (p->baseline_tflops > 0) {
    snprintf(text, sizeof text, "best GEMM baselines here: %.0f TFLOP/s", p->baseline_tflops);
    report_legend_line(out, "base", "dashed line", text);
  }
  report_legend_finish(out);
}

static void write_table(FILE *out, const plot *p) {
  static const char *const columns[] = {"pass", "#D", "#flop / byte", "#TFLOP/s", "#of the tensor limit"};
  enum { COLUMNS = sizeof columns / sizeof columns[0] };
  report_table_start(out, "points", p->count, columns, COLUMNS);
  for (int i = 0; i < p->count; i++) {
    const point *q = &p->points[i];
    char n[3][REPORT_NUMBER_BYTES], part[16] = "\u2013";
    if (p->card) snprintf(part, sizeof part, "%.1f %%", 100 * q->tflops / p->card->tflops);
    const char *const cells[COLUMNS] = {q->name, report_number((double)q->hidden, 9, n[0]),
                                        report_number(q->intensity, 5, n[1]), report_number(q->tflops, 4, n[2]), part};
    report_table_row(out, columns, COLUMNS, cells);
  }
  report_table_finish(out);
}

void report_chart_roofline(FILE *out, const report_data *data) {
  plot *p = calloc(1, sizeof *p);
  if (p) collect(data, p);
  if (!p || !p->count) {
    report_figure_missing(out, "roofline", title,
                          "No 16-bit pass was timed: give tuning records, or benchmark records.");
    free(p);
    return;
  }
  char about[256];
  snprintf(about, sizeof about,
           "%.80s. Bytes are those of inputs and outputs, each moved once; flop are those of the "
           "products that a pass stands for.",
           p->gpu);
  report_figure_start(out, "roofline", title, about);
  write_legend(out, p);
  for (int i = 0; i < REPORT_WIDTHS; i++) draw(out, p, i);
  if (!p->card) report_note(out, "The limits of this GPU are not known, so no limit is drawn.");
  if (p->left_out) {
    snprintf(about, sizeof about, "%d timings of other dtypes or other GPUs are not drawn.", p->left_out);
    report_note(out, about);
  }
  write_table(out, p);
  report_figure_finish(out);
  free(p);
}
