/* golden.h: files of golden traces (tests/golden/launch, tests/golden/planner; replay.h has their form). Commands:
 *
 *   > device WORDS     settings of the stand-in driver (fake_cuda.h); without it those of an sm_80
 *   > provider WORDS   settings of the stand-in generator (fake_provider.c)
 *   > spec WORDS       the plan that what follows is for; > options WORDS behind it: its options (words.h)
 *   > forward WORDS    a call (words_call), or combine, backward, step; "uncounted=N": it makes N launches that the
 *                      layout does not count, or where it asks for less than what is counted fewer, N < 0
 *   > layout PASS n=N budget=SIZE     what the planner picks */
#ifndef FLP_TEST_GOLDEN_H
#define FLP_TEST_GOLDEN_H

#include <stdio.h>

#include "runtime/plan/plan.h"
#include "tests/unit/support/stage.h"

typedef struct golden golden;
/* A call that a file has made, once more: what is asked of every one. */
typedef void (*golden_call_fn)(golden *g, const flp_args *args);

/* Where a file's commands have led. */
struct golden {
  stage s;
  char device[256];
  flp_spec spec;
  flp_options options;
  flp_plan *plan; /* NULL until the first call of a spec */
  golden_call_fn each;
  FILE *out;
};

/* Compares every file of a folder of tests/golden with what its commands give; or, if `each` is not NULL, calls it after
 * each call that succeeds. Expects at least that many files. */
void golden_check(const char *folder, int least, golden_call_fn each);

/* flp_step or flp_execute. */
flp_status golden_run(golden *g, const flp_args *args);

#endif
