/* page.c: the page: head, summary, charts in their order, and at the foot where every number came from. */
#include <string.h>

#include "gen/cli/report/charts/charts.h"
#include "gen/cli/report/page.h"

enum { SOURCES_MAX = 200 };

static int count_status(const report_data *data, report_status from, report_status to) {
  int count = 0;
  for (int i = 0; i < data->candidate_count; i++)
    count += data->candidates[i].status >= from && data->candidates[i].status <= to;
  return count;
}

/* Geometric mean of best time over bare time of all kernels; NaN without any. */
static double mean_ratio(const report_data *data) {
  double sum = 0;
  int count = 0;
  for (int s = 0; s < data->spec_count; s++)
    for (int k = 0; REPORT_KINDS[k]; k++) {
      int i = report_data_best(data, s, REPORT_KINDS[k]);
      double baseline = i >= 0 ? report_data_baseline_ms(data, s, REPORT_KINDS[k]) : NAN;
      if (!(baseline > 0) || !(data->candidates[i].ms > 0)) continue;
      sum += log(data->candidates[i].ms / baseline);
      count++;
    }
  return count ? exp(sum / count) : NAN;
}

static void write_tile(FILE *out, const char *value, const char *name) {
  fputs("<li><b>", out);
  report_escape(out, value);
  fputs("</b><span>", out);
  report_escape(out, name);
  fputs("</span></li>\n", out);
}

static void write_count(FILE *out, int count, const char *one, const char *many) {
  char text[16];
  snprintf(text, sizeof text, "%d", count);
  write_tile(out, text, count == 1 ? one : many);
}

/* Databases hold every candidate; exported searches, which name no version, the timed ones alone. */
static int holds_rejected(const report_data *data) {
  for (int i = 0; i < data->run_count; i++)
    if (data->runs[i].flp_version[0]) return 1;
  return 0;
}

/* What the records can know, and nothing else. */
static void write_tiles(FILE *out, const report_data *data) {
  char text[32];
  double ratio = mean_ratio(data);
  if (!data->spec_count && !data->bench_count) return;
  fputs("<ul class=\"tiles\">\n", out);
  if (data->spec_count) {
    write_count(out, data->spec_count, "search", "searches");
    write_count(out, count_status(data, REPORT_TIMED, REPORT_CHOSEN), "candidate timed", "candidates timed");
  }
  if (holds_rejected(data))
    write_count(out, count_status(data, REPORT_ILLEGAL, REPORT_FAILED), "candidate rejected", "candidates rejected");
  if (!isnan(ratio)) {
    snprintf(text, sizeof text, "%.3f\u00d7", ratio);
    write_tile(out, text, "best tuned time / GEMM time (geometric mean)");
  }
  if (data->bench_count) write_count(out, data->bench_count, "benchmark row", "benchmark rows");
  fputs("</ul>\n", out);
}

static const char *title_of(const report_data *data, const report_options *options) {
  if (data->spec_count) return data->bench_count ? "flp: tuning and benchmarks" : "flp: tuning";
  if (data->bench_count) return "flp: benchmarks";
  return options->spec.spec.vocab ? "flp: memory against rows" : "flp: no records";
}

static void write_head(FILE *out, const report_data *data, const report_options *options) {
  const char *gpu = data->source_count ? data->sources[0].gpu : "", *title = title_of(data, options);
  fprintf(out,
          "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n"
          "<title>%s</title>\n<style>\n",
          title);
  fputs(REPORT_STYLE, out);
  fprintf(out, "</style>\n</head>\n<body>\n<header><h1>%s</h1>\n<p class=\"dim\">", title);
  report_escape(out, gpu[0] ? gpu : "no GPU in the records");
  if (data->spec_count || data->bench_count)
    fputs(". Times are milliseconds on the GPU; ratios are to cuBLASLt's matrix products of the same shapes", out);
  fputs(".</p>\n", out);
  if (options->note) report_note(out, options->note);
  fputs("</header>\n<main>\n", out);
  write_tiles(out, data);
}

static void write_pair(FILE *out, const char *name, const char *value, int is_code) {
  if (!value[0]) return;
  fputs("<dt>", out);
  report_escape(out, name);
  fputs(is_code ? "</dt><dd><code>" : "</dt><dd>", out);
  report_escape(out, value);
  fputs(is_code ? "</code></dd>\n" : "</dd>\n", out);
}

static void write_source(FILE *out, const report_source *source) {
  fputs("<dl>\n", out);
  char where[512];
  const char *const parts[] = {source->gpu, source->driver, source->date};
  where[0] = 0;
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    size_t used = strlen(where);
    snprintf(where + used, sizeof where - used, "%s%.120s", i ? " \u00b7 " : "",
             parts[i][0] ? parts[i] : "not recorded");
  }
  write_pair(out, source->what, source->file, 0);
  write_pair(out, "GPU, driver, date", where, 0);
  write_pair(out, "sources", source->sources, 1);
  write_pair(out, "command", source->command, 1);
  fputs("</dl>\n", out);
}

static void write_run(FILE *out, const report_run *run) {
  char text[192], budget[REPORT_NUMBER_BYTES];
  int used = snprintf(text, sizeof text, "seed %lld \u00b7 effort %.32s \u00b7 %s", (long long)run->seed, run->effort,
                      run->finished[0] ? "finished" : "not finished");
  if (run->flp_version[0]) /* exported searches leave these out */
    snprintf(text + used, sizeof text - (size_t)used,
             " \u00b7 budget %s s \u00b7 flp %.32s \u00b7 %lld multiprocessors",
             report_number(run->budget_s, 6, budget), run->flp_version, (long long)run->multiprocessors);
  fputs("<p class=\"dim\">", out);
  report_escape(out, report_data_base(run->file));
  fprintf(out, ", run %lld: ", (long long)run->id);
  report_escape(out, text);
  fputs("</p>\n", out);
}

static void write_foot(FILE *out, const report_data *data) {
  char text[128];
  fputs("</main>\n<footer>\n<h2>Where these numbers come from</h2>\n", out);
  if (!data->source_count) report_note(out, "No records were given.");
  for (int i = 0; i < data->source_count && i < SOURCES_MAX; i++) write_source(out, &data->sources[i]);
  for (int i = 0; i < data->run_count && i < SOURCES_MAX; i++) write_run(out, &data->runs[i]);
  if (data->source_count > SOURCES_MAX) report_note(out, "Only the first 200 records are listed.");
  if (data->left_out) {
    snprintf(text, sizeof text, "%d rows of records name no pass, shape or time and are left out.", data->left_out);
    report_note(out, text);
  }
  fputs("<p class=\"dim\">Drawn by flpgen report ", out);
  report_escape(out, FLP_VERSION_STRING);
  fputs(".</p>\n</footer>\n</body>\n</html>\n", out);
}

static void write_section(FILE *out, const char *name) {
  fputs("<h2>", out);
  report_escape(out, name);
  fputs("</h2>\n", out);
}

flp_status report_page(FILE *out, const report_data *data, const report_options *options) {
  write_head(out, data, options);
  write_section(out, "Best against GEMM baselines and peers");
  report_chart_best(out, data);
  report_chart_peers(out, data);
  FLP_TRY(report_chart_sharpness(out, data));
  write_section(out, "Landscape of the tunables");
  report_chart_landscape(out, data, options->landscapes);
  write_section(out, "Rejected candidates");
  report_chart_rejected(out, data);
  write_section(out, "Roofline");
  report_chart_roofline(out, data);
  write_section(out, "Memory");
  FLP_TRY(report_chart_memory(out, data, options));
  write_foot(out, data);
  return FLP_OK;
}
