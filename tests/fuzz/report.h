/* report.h: draws every chart but the one of memory, which makes kernels, from records that were read; what is drawn is
 * markup without a control character. */
#ifndef FLP_TEST_FUZZ_REPORT_H
#define FLP_TEST_FUZZ_REPORT_H

#include "gen/cli/report/charts/charts.h"
#include "tests/fuzz/fuzz.h"

/* Reads a file of records, and draws what it holds. */
static inline void fuzz_report(flp_status (*read)(const char *, report_data *), const char *path, unsigned refused) {
  report_data data;
  char *page = NULL;
  size_t bytes = 0;
  memset(&data, 0, sizeof data);
  flp_status status = read(path, &data);
  if (status == FLP_OK) {
    FILE *out = open_memstream(&page, &bytes);
    if (!out) abort();
    report_data_sort(&data);
    report_chart_best(out, &data);
    report_chart_peers(out, &data);
    report_chart_landscape(out, &data, 4);
    report_chart_rejected(out, &data);
    report_chart_roofline(out, &data);
    fclose(out);
    for (size_t i = 0; i < bytes; i++)
      FUZZ_PROMISE((unsigned char)page[i] >= ' ' || page[i] == '\n' || page[i] == '\t');
    free(page);
  } else {
    fuzz_expect_refusal(status, refused);
  }
  report_data_clear(&data);
}

#endif
