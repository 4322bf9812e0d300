/* candidates.h: the tile configurations of a kernel, and the layouts, that a search tries. */
#ifndef FLPGEN_CLI_TUNE_CANDIDATES_H
#define FLPGEN_CLI_TUNE_CANDIDATES_H

#include "autotune/space.h"
#include "gen/cli/tune/heads.h"
#include "runtime/planner/planner.h"

typedef struct tune_list {
  search_candidate *items; /* owned; the first is the untuned default */
  int count;
} tune_list;

/* What a kernel is launched over: rows in launches of chunk_rows, and columns in launches of chunk_vocab; 0: all. */
typedef struct tune_work {
  int64_t rows, chunk_rows, chunk_vocab;
} tune_work;

/* The candidates of a kind on an architecture, with predictions. included: to be timed to the end, every field set; or
 * all 0. error: MEMORY */
flp_status tune_list_kernels(flp_kernel_kind kind, const tune_head *target, const char *arch, const tune_work *work,
                             const flp_device *device, const flp_tunables *included, tune_list *out);
/* Layouts that fit the budget: of the backward pass chunk sizes of each mode, of a step chunks of rows in stream mode.
 * The first is the planner's. planner: of the kernels that run; error: MEMORY, BUDGET */
flp_status tune_list_layouts(const flp_planner *planner, int64_t rows, uint64_t budget_bytes, tune_list *out);
flp_status tune_list_streams(const flp_planner *planner, int64_t rows, uint64_t budget_bytes, tune_list *out);
void tune_list_clear(tune_list *list);

#endif
