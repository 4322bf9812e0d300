/* report.h: findings: what comparing a result with the oracle has shown. */
#ifndef FLPGEN_CLI_CHECK_REPORT_H
#define FLPGEN_CLI_CHECK_REPORT_H

#include "gen/cli/call/metrics.h"
#include "gen/cli/check/cases/case.h"

typedef struct check_finding {
  char name[48], shape[48], options[160], output[48];
  const char *rung, *dtype; /* borrowed, static */
  check_metric metric;
  char note[240]; /* why it failed, where a number does not show it */
} check_finding;

typedef struct check_report {
  check_finding *findings; /* owned */
  int64_t count, capacity, failed;
  int incomplete;
  int hung; /* the device still works on what was checked: nothing that belongs to it can be released */
  char device[128];
  int driver_version;
  char offered[1024]; /* why rungs that did not run did not; "" where all did */
} check_report;

void check_report_add(check_report *report, const check_case *c, flp_rung rung, const char *output, check_metric metric,
                      const char *note);
/* Prints the worst share of the allowed error of every output, and findings: each, or only failures. */
void check_report_print(const check_report *report, int every);
/* Writes the record. path: "-" for stdout. error: IO, MEMORY */
flp_status check_report_write(const check_report *report, const char *path, const char *command);
void check_report_clear(check_report *report);

#endif
