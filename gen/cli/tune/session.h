/* session.h: what measures. */
#ifndef FLPGEN_CLI_TUNE_SESSION_H
#define FLPGEN_CLI_TUNE_SESSION_H

#include "autotune/model.h"
#include "autotune/records.h"
#include "gen/cli/bench/bench.h"
#include "gen/cli/shared/progress.h"
#include "gen/cli/tune/compile.h"
#include "gen/cli/tune/verify.h"

enum { TUNE_SAMPLE_ROWS = 16, TUNE_CALL_PASSES = 2 };

/* Seconds of a search: compiling its candidates, verifying and timing them. */
typedef struct tune_spent {
  double compiling, verifying, timing;
} tune_spent;

typedef struct tune_session {
  const tune_args *args;
  const tune_head *target;
  const char *arch; /* whose kernels are tuned */
  records *file; /* or NULL */
  records_spec *record;
  cli_device *device;              /* borrowed */
  tune_compile_pool *compile_pool; /* borrowed */
  const cublaslt *library;         /* borrowed; NULL without GEMM baselines */
  measure_clock clock;
  bench_args bench; /* for the data */
  bench_data data;
  tune_check check;
  bench_products baseline;
  measure_summary baseline_ms[GEMM_PRODUCTS]; /* of the last group; median 0: none */
  size_t saved_bytes;                         /* that forward keeps; 0: it is not asked for */
  flp_mode keeps;                             /* the mode that it does so in */
  int streams;                                /* steps run in stream mode */
  /* of the search that runs */
  flp_kernel_kind kind; /* 0: layouts */
  tune_call call;
  flp_tuning chosen; /* kinds that were searched before it */
  flp_mode mode;     /* layout that was chosen */
  int64_t chunk_rows, chunk_vocab;
  flp_plan *reference;
  flp_layout layout[TUNE_CALL_PASSES]; /* of the reference, by pass of the call */
  call_result row_reference;           /* logprob, entropy, stats of the untuned kernels */
  float *grad_reference;               /* sampled rows of the gradients; owned */
  double call_s;                       /* that a call of the reference takes */
  tune_spent spent;                    /* of the search that runs */
  double timed_at;                     /* when the last group was done, on cli_seconds_now's clock; 0: none was */
  cli_progress progress;
  double progress_from, progress_part;
} tune_session;

/* Makes data, GEMM baselines and the check of a target. error: DRIVER, MEMORY; UNAVAILABLE, also if nothing can be
 * kept */
flp_status tune_session_open(tune_session *session);
void tune_session_close(tune_session *session);
/* Starts on a kind: the reference plan with what was chosen. error: of flp_plan_create, flp_execute */
flp_status tune_session_begin(tune_session *session, flp_kernel_kind kind);
search_device tune_session_device(tune_session *session);
/* The keys of the kernels that a plan of the target takes first, with these tilings; their number. */
int tune_session_keys(const tune_session *session, const flp_tuning *tuning, flp_kernel_key keys[FLP_SPEC_KERNELS_MAX]);

#endif
