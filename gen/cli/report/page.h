/* page.h: the page around the charts. */
#ifndef FLPGEN_CLI_REPORT_PAGE_H
#define FLPGEN_CLI_REPORT_PAGE_H

#include "gen/cli/report/charts/charts.h"

/* The whole page. error: MEMORY; then the page is not whole */
flp_status report_page(FILE *out, const report_data *data, const report_options *options);

#endif
