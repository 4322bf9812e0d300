/* check_case.h: a case of `flpgen check` with what the oracle has and what the CPU's rung gives, for tests to plant faults
 * in.
 *
 * Functions are static inline because every executable links the same helper objects, with and without the command. */
#ifndef FLP_TEST_CHECK_CASE_H
#define FLP_TEST_CHECK_CASE_H

#include <criterion/criterion.h>
#include <string.h>

#include "gen/cli/check/compare.h"
#include "gen/cli/check/run.h"
#include "gen/cli/shared/losses.h"

typedef struct check_fixture {
  check_problem problem;
  check_truth truth;
  call_result result, plain; /* plain: of score and recompute modes, or nothing */
  check_report report;       /* of the last comparison */
} check_fixture;

/* error: of creating the problem, which has to be possible */
static inline check_problem check_fixture_problem(const check_case *c) {
  check_problem problem;
  cr_assert_eq(check_problem_create(c, &problem), FLP_OK, "%s", flp_error_detail());
  return problem;
}

static inline check_how check_fixture_how(void) {
  return (check_how){.options = {.struct_bytes = sizeof(flp_options), .rung = FLP_RUNG_EAGER, .threads = 2}};
}

/* Runs the problem once more. */
static inline void check_fixture_run(check_fixture *f) {
  const check_how how = check_fixture_how();
  call_result_clear(&f->result);
  cr_assert_eq(check_run(&f->problem, &how, &f->result), FLP_OK, "%s", flp_error_detail());
  check_problem_follow(&f->problem, &f->result);
}

static inline void check_fixture_open(check_fixture *f, const check_case *c, int has_plain) {
  const check_how how = check_fixture_how();
  *f = (check_fixture){.problem = check_fixture_problem(c)};
  cr_assert_eq(check_truth_create(&f->problem, NULL, &f->truth), FLP_OK, "%s", flp_error_detail());
  check_fixture_run(f);
  if (has_plain) cr_assert_eq(check_run_plain(&f->problem, &how, &f->plain), FLP_OK, "%s", flp_error_detail());
}

static inline void check_fixture_close(check_fixture *f) {
  check_report_clear(&f->report);
  call_result_clear(&f->result);
  call_result_clear(&f->plain);
  check_truth_clear(&f->truth);
  check_problem_clear(&f->problem);
}

/* Compares. Returns the outputs of the findings joined by '+': all, several in a row of one once, or those that failed. */
static inline const char *check_fixture_outputs(check_fixture *f, int all) {
  static char names[400];
  check_report_clear(&f->report);
  f->report = (check_report){0};
  cr_assert_eq(check_compare(&f->problem, &f->truth, &f->result, f->plain.logprob ? &f->plain : NULL, FLP_RUNG_EAGER,
                             &f->report),
               FLP_OK, "%s", flp_error_detail());
  names[0] = 0;
  for (int64_t i = 0; i < f->report.count; i++) {
    const check_finding *x = &f->report.findings[i];
    if ((!all && x->metric.pass) || (all && i && strcmp(x->output, x[-1].output) == 0)) continue;
    if (*names) strcat(names, "+");
    strcat(names, x->output);
  }
  return names;
}

/* The one that fails, or several joined by '+', or "". */
#define EXPECT_FAILING(f, outputs) cr_expect_str_eq(check_fixture_outputs(f, 0), outputs)

/* The note of the last finding that failed. */
static inline const char *check_fixture_note(const check_fixture *f) {
  for (int64_t i = f->report.count - 1; i >= 0; i--)
    if (!f->report.findings[i].metric.pass) return f->report.findings[i].note;
  return "";
}

#endif
