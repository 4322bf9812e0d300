/* tune.h: the parts of `flpgen tune`, divided by the file that implements them.
 *
 * A target is one specialisation. Its kernels are searched one kind after the other (forward, dz, forward_keep where
 * modes S or P are asked for, products), each in the call that a user would make, with what was chosen before it; then
 * the layout of the backward pass, or of a step. */
#ifndef FLPGEN_CLI_TUNE_H
#define FLPGEN_CLI_TUNE_H

#include <jansson.h>
#include <signal.h>

#include "autotune/model.h"
#include "autotune/records.h"
#include "autotune/space.h"
#include "gen/cli/bench/bench.h"
#include "gen/cli/check/check.h"
#include "gen/cli/shared/compilers.h"
#include "gen/cli/shared/progress.h"
#include "runtime/planner/planner.h"
#include "runtime/store/store.h"

enum { TUNE_STEPS = 5, TUNE_TEXT_BYTES = 320 }; /* forward, dz, forward_keep, products, layout */

typedef struct tune_args {
  cli_spec_args spec;
  flp_options options; /* device, workspace budget, mode: 0, or P for steps that would run in mode R */
  int64_t rows, seed;
  double budget_s; /* of one target; < 0: the effort's own */
  double burst_ms; /* <= 0 until the effort is known */
  search_effort effort;
  const char *preset, *preset_file, *shapes; /* or NULL */
  const char *record, *out;                  /* or NULL: in the cache */
  const char *list;                          /* or NULL */
  const char *include;                       /* cuts that are timed to the end; or NULL */
  flp_tuning included;                       /* the same, parsed */
  int resume, dry_run, no_bare, quiet, json;
} tune_args;

/* ---- targets.c ---- */

typedef struct tune_target {
  flp_spec spec; /* resolved */
  double scale;
  char model[64]; /* name of the preset, file of the model, or "" */
  char text[TUNE_TEXT_BYTES];
} tune_target;

typedef struct tune_targets {
  tune_target *items; /* owned */
  int count;
} tune_targets;

/* The specialisations that the arguments name. error: ARGUMENT, IO, CORRUPT */
flp_status tune_targets_create(const tune_args *args, tune_targets *out);
void tune_targets_clear(tune_targets *targets);

/* The presets as their file has them. path: NULL for the ones built in. error: IO, CORRUPT naming entry and field */
flp_status tune_presets_read(const char *path, json_t **out);

/* The file autotune/presets/presets.json, NUL-terminated. */
extern const unsigned char tune_presets_text[];

/* ---- candidates.c ---- */

typedef struct tune_list {
  search_candidate *items; /* owned; the first is the untuned default */
  int count;
} tune_list;

/* 1 if plans of the spec have a kernel of that kind that can be tuned. */
static inline int tune_has_kind(const flp_spec *spec, flp_kernel_kind kind) {
  return flp_kernel_tunable_kinds(spec) >> kind & 1;
}

/* What a kernel is launched over: rows in launches of chunk_rows, and columns in launches of chunk_vocab; 0: all. */
typedef struct tune_work {
  int64_t rows, chunk_rows, chunk_vocab;
} tune_work;

/* The candidates of a kind, with predictions. included: to be timed to the end, every field set; or all 0
 * error: MEMORY */
flp_status tune_list_kernels(flp_kernel_kind kind, const tune_target *target, const tune_work *work,
                             const flp_device *device, const flp_tunables *included, tune_list *out);
/* Layouts that fit the budget: of the backward pass chunk sizes of each mode, of a step chunks of rows in mode P. The
 * first is the planner's. planner: of the kernels that run; error: MEMORY, BUDGET */
flp_status tune_list_layouts(const flp_planner *planner, int64_t rows, uint64_t budget_bytes, tune_list *out);
flp_status tune_list_streams(const flp_planner *planner, int64_t rows, uint64_t budget_bytes, tune_list *out);
void tune_list_clear(tune_list *list);

/* What is run at a time: one flp_execute or flp_step, or what mode S makes of two. */
typedef enum tune_call {
  TUNE_FORWARD,
  TUNE_BACKWARD,
  TUNE_KEEPING, /* forward that keeps exponentials */
  TUNE_SAVED,   /* that, and backward from them, which may use them up */
  TUNE_STEP     /* in mode P */
} tune_call;

/* ---- verify.c: numbers before times ---- */

/* A small problem on the very kernels that are to be timed: the plan's vocabulary with few valid columns. */
typedef struct tune_check {
  check_problem problem;
  check_truth truth, sample; /* sample: of some rows and columns, for every candidate */
  call_result reference;     /* of the untuned kernels in modes F and R, compared with the oracle */
  call_result trained;       /* the same in mode S or P */
  call_buffers operands;
  const call_buffers *head; /* where gradients of the head go, of V columns; borrowed */
} tune_check;

/* loss_parameters: of the target's loss, borrowed. error: MEMORY, DRIVER */
flp_status tune_check_create(const tune_target *target, const double *loss_parameters, const call_buffers *head,
                             tune_check *out);
void tune_check_clear(tune_check *check);
/* Runs the untuned kernels and holds them to the oracle: TUNE_BACKWARD first, modes F and R; then a call of S or P, if
 * any.
 * error: INTERNAL with what is wrong; DRIVER */
flp_status tune_check_reference(tune_check *check, flp_plan *plan, tune_call call);
/* Relative L2, and how far gradients in a dtype may be from the untuned kernels': two roundings to it, and sums in
 * another order of chunks. */
double tune_distance(const float *got, const float *wanted, size_t count);
double tune_distance_allowed(flp_dtype dtype);
/* Runs a plan some of whose kernels are cut otherwise: logprob, entropy and stats to the same bits in every mode,
 * gradients, which TUNE_KEEPING makes too, within the check's bounds of the oracle.
 * *error: of the gradients, relative; reason: "" if all is right. error: DRIVER */
flp_status tune_check_plan(tune_check *check, flp_plan *plan, tune_call call, double *error,
                           char reason[SEARCH_REASON_BYTES]);

/* ---- compile.c ---- */

enum { TUNE_COMPILERS_MAX = 8 };

/* Where kernels are made. */
typedef struct tune_workshop {
  const char *directory; /* of those that are tried */
  cli_compilers compilers;
} tune_workshop;

/* As flp_jit_generate, of a spec's kernel. */
flp_status tune_generate(const flp_spec *spec, const flp_kernel_key *key, flp_kernel_image *image);
/* Generates and compiles kernels of a spec, all at once, so that plans find them made. What fails here fails again, and
 * is told, when a plan asks for it. error: IO */
flp_status tune_compile(tune_workshop *workshop, const flp_spec *spec, const flp_kernel_key *keys, int count);

/* ---- device.c: what measures ---- */

enum { TUNE_SAMPLE_ROWS = 16, TUNE_CALL_PASSES = 2 };

/* Seconds of a search: compiling its candidates, verifying and timing them. */
typedef struct tune_spent {
  double compiling, verifying, timing;
} tune_spent;

typedef struct tune_session {
  const tune_args *args;
  const tune_target *target;
  records *file; /* or NULL */
  records_spec *record;
  cli_device *device;      /* borrowed */
  tune_workshop *workshop; /* borrowed */
  const cublaslt *library; /* borrowed; NULL without bare products */
  measure_clock clock;
  bench_args bench; /* for the data */
  bench_data data;
  tune_check check;
  bench_products bare;
  measure_summary bare_ms[GEMM_PRODUCTS]; /* of the last group; median 0: none */
  size_t saved_bytes;                     /* that mode S keeps; 0: it is not asked for */
  int streams;                            /* steps run in mode P */
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

/* Set by Ctrl-C. */
extern volatile sig_atomic_t tune_interrupted;

/* Makes data, bare products and the check of a target. error: DRIVER, MEMORY; UNAVAILABLE, also if nothing can be
 * kept */
flp_status tune_session_open(tune_session *session);
void tune_session_close(tune_session *session);
/* Starts on a kind: the reference plan with what was chosen. error: of flp_plan_create, flp_execute */
flp_status tune_session_begin(tune_session *session, flp_kernel_kind kind);
search_device tune_session_device(tune_session *session);
/* The keys of the kernels that a plan of the target takes first, cut so; their number, 0 if the device runs none. */
int tune_session_keys(const tune_session *session, const flp_tuning *tuning, flp_kernel_key keys[FLP_SPEC_KERNELS_MAX]);

/* ---- pass.c: what is timed ---- */

/* The mode of --keep or --loss that is timed, S or P; 0: none */
flp_mode tune_session_mode(const tune_session *session);
/* The call that a kind (0: layouts) is timed in: one of mode S or P where these are asked for and the kind counts. */
tune_call tune_session_call(const tune_session *session, flp_kernel_kind kind);
int tune_call_has_gradients(tune_call call);
/* A plan of session->call, on the jit rung alone, with what was chosen and a candidate, or NULL.
 * error: of flp_plan_create; UNAVAILABLE if another rung or architecture would run */
flp_status tune_pass_plan(const tune_session *session, const search_candidate *candidate, flp_plan **out);
/* Its layouts, by pass of the call; and a workspace that holds each of them. error: BUDGET; DRIVER */
flp_status tune_pass_layouts(const tune_session *session, const flp_plan *plan, flp_layout out[TUNE_CALL_PASSES]);
flp_status tune_pass_reserve(tune_session *session, const flp_layout layout[TUNE_CALL_PASSES]);
/* Enqueues one call. error: of flp_execute, flp_step */
flp_status tune_pass_enqueue(tune_session *session, flp_plan *plan, const flp_layout layout[TUNE_CALL_PASSES]);

/* Numbers of a call on the data that is timed: keeps the reference plan's, compares a plan's with them.
 * reason: "" if they agree; *seconds: that the call took. error: MEMORY, DRIVER */
flp_status tune_pass_open(tune_session *session);
void tune_pass_close(tune_session *session);
flp_status tune_pass_reference(tune_session *session);
flp_status tune_pass_compare(tune_session *session, flp_plan *plan, const flp_layout layout[TUNE_CALL_PASSES],
                             double *seconds, char reason[SEARCH_REASON_BYTES]);

/* ---- store.c ---- */

/* What descriptors say of a layout that is not the planner's own; 0 for no preference. One chunk of everything is the
 * same in either mode, and prefers nothing where the rows are more. */
typedef struct tune_chunks {
  uint32_t rows, vocab; /* of dz */
  uint32_t step;        /* rows, of forward_keep */
} tune_chunks;
tune_chunks tune_chunks_of(const flp_spec *spec, int64_t rows, flp_mode mode, int64_t chunk_rows, int64_t chunk_vocab);

/* Puts the kernels of a target into a cache directory as tuned for the device; those that were not tuned as they are.
 * directory: NULL for the cache of this user.
 * error: IO, CORRUPT */
flp_status tune_store(const tune_session *session, const char *directory);

/* ---- run.c: one target ---- */

typedef struct tune_step {
  const char *kind;
  search_candidate chosen, own, included; /* included: kind 0 if there is none */
  search_result result;
  int candidates, legal;
  double beginning, seconds; /* before the search, and of it, of which so many went into candidates: */
  tune_spent spent;
} tune_step;

typedef struct tune_outcome {
  const tune_target *target;
  tune_step step[TUNE_STEPS];
  int steps;
  flp_mode mode;   /* S or P that forward_keep was timed in, or 0 */
  int done_before; /* found in the record, nothing was done */
  int stopped;
  char plan_id[17];
  struct {
    gemm_product product;
    measure_summary ms;
    int algorithm;
  } bare[GEMM_PRODUCTS];
  int bare_count;
  double seconds, opening; /* opening: data, bare products and oracle, before the first step */
} tune_outcome;

/* Tunes one target. error: as its parts */
flp_status tune_target_run(const tune_args *args, const tune_target *target, cli_device *device,
                           const cublaslt *library, records *file, const records_run *run, tune_workshop *workshop,
                           tune_outcome *out);

/* ---- out.c ---- */

json_t *tune_outcome_json(const tune_outcome *outcome);
/* What was found as options of `flpgen pack build`, which makes the kernels from them again: the specialisation's own,
 * --tune where a choice is not the template's, --chunks or --step-rows where the layout is not the planner's,
 * --tuned-for. loss: as it was given, or NULL; device: as keys name it */
enum { TUNE_LINE_BYTES = 8192 };
void tune_outcome_line(const tune_outcome *outcome, int64_t rows, const char *loss, const char *device,
                       char out[TUNE_LINE_BYTES]);
void tune_outcome_print(const tune_outcome *outcome);
/* What would be tried, without a GPU. error: MEMORY, IO */
flp_status tune_dry_run(const tune_args *args, const tune_targets *targets, const flp_device *device);

#endif
