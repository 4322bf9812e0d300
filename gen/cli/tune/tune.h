/* tune.h: what `flpgen tune` is asked for.
 *
 * A target is one specialisation. Its kernels are searched one kind after the other, each in the call that a user would
 * make, with what was chosen before it; then the layout of the backward pass, or of a step. */
#ifndef FLPGEN_CLI_TUNE_H
#define FLPGEN_CLI_TUNE_H

#include <signal.h>

#include "autotune/search.h"
#include "gen/cli/shared/spec_args.h"

enum { TUNE_STEPS = 7, TUNE_TEXT_BYTES = 320 };

/* The searches, in their order. A target needs those of the kinds that it has on the architecture, forward_keep where
 * save, direction or stream mode is asked for. */
typedef struct tune_search {
  flp_kernel_kind kind; /* 0: layout */
  double share;         /* of the budget; what one leaves over goes to the next */
} tune_search;
extern const tune_search tune_searches[TUNE_STEPS];

typedef struct tune_args {
  cli_spec_args spec;
  flp_options options; /* device, workspace budget, mode: 0, or stream for steps that would recompute */
  int64_t rows, seed;
  double budget_s; /* of one target; < 0: the effort's own */
  double burst_ms; /* <= 0 until the effort is known */
  search_effort effort;
  const char *preset, *preset_file, *shapes; /* or NULL */
  const char *record, *out;                  /* or NULL: in the cache */
  const char *list;                          /* or NULL */
  const char *include;                       /* tilings that are timed to the end; or NULL */
  flp_tuning included;                       /* the same, parsed */
  int resume, dry_run, no_baseline, quiet, json;
} tune_args;

/* Set by Ctrl-C. */
extern volatile sig_atomic_t tune_interrupted;

#endif
