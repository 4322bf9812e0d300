/* outcome.h: one target tuned, and what is said about it. */
#ifndef FLPGEN_CLI_TUNE_OUTCOME_H
#define FLPGEN_CLI_TUNE_OUTCOME_H

#include <jansson.h>

#include "gen/cli/tune/session.h"

typedef struct tune_step {
  const char *kind;
  search_candidate chosen, untuned, included; /* included: kind 0 if there is none */
  search_result result;
  int candidates, legal;
  double beginning, seconds; /* before the search, and of it, of which so many went into candidates: */
  tune_spent spent;
} tune_step;

typedef struct tune_outcome {
  const tune_head *target;
  const char *arch; /* whose kernels were tuned */
  tune_step step[TUNE_STEPS];
  int steps;
  flp_mode mode;   /* save, direction or stream, that forward_keep was timed in; or 0 */
  int done_before; /* found in the record, nothing was done */
  int stopped;
  char plan_id[17];
  struct {
    gemm_product product;
    measure_summary ms;
    int algorithm;
  } baseline[GEMM_PRODUCTS];
  int baseline_count;
  double seconds, opening; /* opening: data, GEMM baselines and oracle, before the first step */
} tune_outcome;

/* Tunes one target. error: as its parts */
flp_status tune_head_run(const tune_args *args, const tune_head *target, cli_device *device,
                           const cublaslt *library, records *file, const records_run *run,
                           tune_compile_pool *compile_pool, tune_outcome *out);

json_t *tune_outcome_json(const tune_outcome *outcome);
/* What was found as options of `flpgen pack build`, which makes the kernels from them again: the specialisation's own,
 * --tune where a choice is not the template's, --chunks or --step-rows where the layout is not the planner's,
 * --arch for portable kernels, --tuned-for. loss: as it was given, or NULL; device: as keys name it */
enum { TUNE_LINE_BYTES = 8192 };
void tune_outcome_line(const tune_outcome *outcome, int64_t rows, const char *loss, const char *device,
                       char out[TUNE_LINE_BYTES]);
void tune_outcome_print(const tune_outcome *outcome);
/* What would be tried, without a GPU. error: MEMORY, IO */
flp_status tune_dry_run(const tune_args *args, const tune_heads *targets, const flp_device *device);

#endif
