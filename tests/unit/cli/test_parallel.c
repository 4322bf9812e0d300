/* test_parallel.c: every job is done once, and the first failure is reported, whichever thread comes to its failure
 * first. */
#include <criterion/criterion.h>
#include <unistd.h>

#include "gen/cli/kernels/parallel.h"

enum { JOBS = 400 };

typedef struct tally {
  unsigned done[JOBS];
  size_t slow, bad; /* jobs from bad on fail, the slow one late */
} tally;

static flp_status job(void *context, size_t i) {
  tally *t = context;
  t->done[i]++;
  if (i == t->slow) usleep(20000);
  return i < t->bad ? FLP_OK : flp_fail(FLP_ERROR_IO, "job %zu of %d", i, (int)JOBS);
}

Test(parallel, every_job_is_done_once) {
  tally t = {.slow = 3, .bad = JOBS};
  cr_assert_eq(cli_parallel(job, &t, JOBS, NULL), FLP_OK);
  for (int i = 0; i < JOBS; i++) cr_assert_eq(t.done[i], 1, "%d", i);
  cr_assert_eq(cli_parallel(job, &t, 0, NULL), FLP_OK);
}

Test(parallel, the_first_failure_is_reported_though_it_comes_late) {
  tally t = {.slow = 7, .bad = 7};
  cr_assert_eq(cli_parallel(job, &t, JOBS, "working"), FLP_ERROR_IO);
  cr_assert_str_eq(flp_error_detail(), "job 7 of 400");
  cr_assert_eq(t.done[JOBS - 1], 0, "work goes on after a failure");
}
