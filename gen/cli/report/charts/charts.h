/* charts.h: the charts of the page; each writes its figures, with tables, or what is missing. */
#ifndef FLPGEN_CLI_REPORT_CHARTS_H
#define FLPGEN_CLI_REPORT_CHARTS_H

#include "gen/cli/report/parts/parts.h"

typedef struct report_options {
  cli_spec_args spec; /* shape of the chart of memory; vocab 0: taken from the data */
  const char *out, *note;
  int64_t landscapes; /* drawn at most */
  int json;
} report_options;

void report_chart_best(FILE *out, const report_data *data);
void report_chart_peers(FILE *out, const report_data *data);
/* With its heading; nothing where no record has rows as sharp as a trained model's. error: MEMORY */
flp_status report_chart_sharpness(FILE *out, const report_data *data);
void report_chart_landscape(FILE *out, const report_data *data, int64_t most);
void report_chart_rejected(FILE *out, const report_data *data);
void report_chart_roofline(FILE *out, const report_data *data);
/* error: MEMORY */
flp_status report_chart_memory(FILE *out, const report_data *data, const report_options *options);

#endif
