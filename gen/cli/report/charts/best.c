/* best.c: the best of each tuned kernel beside the GEMM baselines that it stands for. */
#include <stdlib.h>
#include <string.h>

#include "gen/cli/report/charts/charts.h"
#include "gen/cli/report/parts/lines.h"
#include "gen/cli/report/parts/svg.h"

enum { LINES_MAX = 120 };

static const char title[] = "Best kernel of each kind against the GEMM baselines";

static int count_best(const report_data *data) {
  int count = 0;
  for (int s = 0; s < data->spec_count; s++)
    for (int k = 0; REPORT_KINDS[k]; k++) count += report_data_best(data, s, REPORT_KINDS[k]) >= 0;
  return count;
}

static void fill_line(const report_data *data, int spec, int kind, const report_candidate *best, report_line *out) {
  double baseline = report_data_baseline_ms(data, spec, REPORT_KINDS[kind]);
  char ms[REPORT_NUMBER_BYTES];
  memset(out, 0, sizeof *out);
  report_data_shape(&data->specs[spec], out->group);
  char record[REPORT_RECORD_BYTES];
  report_data_record(data, spec, record);
  snprintf(out->who, sizeof out->who, "%s%s%s", REPORT_KINDS[kind], record[0] ? " \u00b7 " : "", record);
  snprintf(out->tip, sizeof out->tip, "%s %.160s: %s ms", REPORT_KINDS[kind], best->tune,
           report_number(best->ms, 5, ms));
  out->series = kind;
  out->ms = best->ms;
  out->ratio = best->ms / baseline;
  out->low = best->ms_low / baseline;
  out->high = best->ms_high / baseline;
  out->reason = "";
}

static void write_table(FILE *out, const report_data *data, int count) {
  static const char *const columns[] = {"shape",    "kernel", "tiling", "#ms",     "#least ms", "#most ms",
                                        "#GEMM ms", "#ratio", "#error", "#SM MHz", "#W",        "#rounds"};
  enum { COLUMNS = sizeof columns / sizeof columns[0] };
  report_table_start(out, "best candidates", count, columns, COLUMNS);
  for (int s = 0; s < data->spec_count; s++)
    for (int k = 0; REPORT_KINDS[k]; k++) {
      int i = report_data_best(data, s, REPORT_KINDS[k]);
      if (i < 0) continue;
      const report_candidate *c = &data->candidates[i];
      double baseline = report_data_baseline_ms(data, s, REPORT_KINDS[k]);
      char shape[REPORT_SHAPE_BYTES], n[9][REPORT_NUMBER_BYTES];
      const char *const cells[COLUMNS] = {report_data_shape(&data->specs[s], shape),
                                          REPORT_KINDS[k],
                                          c->tune,
                                          report_places(c->ms, 3, n[0]),
                                          report_places(c->ms_low, 3, n[1]),
                                          report_places(c->ms_high, 3, n[2]),
                                          report_places(baseline, 3, n[3]),
                                          report_places(c->ms / baseline, 3, n[4]),
                                          report_number(c->error, 3, n[5]),
                                          report_number(c->clock_mhz, 4, n[6]),
                                          report_number(c->power_w, 4, n[7]),
                                          report_number((double)c->rounds, 6, n[8])};
      report_table_row(out, columns, COLUMNS, cells);
    }
  report_table_finish(out);
}

/* Fills at most LINES_MAX; returns their number. */
static int fill_lines(const report_data *data, report_line *lines) {
  int count = 0;
  for (int s = 0; s < data->spec_count; s++)
    for (int k = 0; REPORT_KINDS[k] && count < LINES_MAX; k++) {
      int i = report_data_best(data, s, REPORT_KINDS[k]);
      if (i >= 0) fill_line(data, s, k, &data->candidates[i], &lines[count++]);
    }
  return count;
}

void report_chart_best(FILE *out, const report_data *data) {
  int all = count_best(data);
  report_line *lines = all ? calloc(LINES_MAX, sizeof *lines) : NULL;
  if (!lines) {
    report_figure_missing(out, "best", title, "No candidate was timed: give the records that flpgen tune wrote.");
    return;
  }
  int count = fill_lines(data, lines);
  report_figure_start(
      out, "best", title,
      "Left of the dashed line is faster than cuBLASLt's products of the same shapes alone. Marks are "
      "medians, whiskers the least and the most. For dz, products and layout the whole backward pass is "
      "timed, with that one tuned; for forward_keep and what is tuned beside it, the whole training "
      "step or the streamed step.");
  report_legend_start(out);
  for (int k = 0; REPORT_KINDS[k]; k++) {
    int used = 0;
    for (int i = 0; i < count; i++) used |= lines[i].series == k;
    if (used) report_legend_series(out, "stem", k, REPORT_KINDS[k]);
  }
  report_legend_line(out, "base", "dashed line", "GEMM baselines (1\u00d7)");
  report_legend_finish(out);
  report_lines_draw(out, lines, count, title, "time / GEMM time (\u00d7, less is faster)");
  if (all > count) report_note(out, "Only the first 120 lines are drawn; the table has all.");
  write_table(out, data, all);
  report_figure_finish(out);
  free(lines);
}
