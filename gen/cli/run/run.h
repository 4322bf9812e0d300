/* run.h: the parts of `flpgen run`, divided by the file that implements them.
 *
 * A problem is host memory and the values of one call; executing it gives a result, host memory again. */
#ifndef FLPGEN_CLI_RUN_H
#define FLPGEN_CLI_RUN_H

#include "gen/cli/call/call.h"
#include "gen/cli/shared/common.h"
#include "gen/cli/shared/losses.h"
#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/reasons.h"
#include "gen/cli/tensors/safetensors.h"
#include "runtime/base/fields.h"

/* ---- run.c: the arguments ---- */

enum { RUN_FILES_MAX = CLI_TEXTS_MAX };

typedef struct run_args {
  cli_texts files;                /* --input */
  const char *source[FLP_ARRAYS]; /* "FILE:TENSOR" or "FILE"; temperature_rows: or a number; NULL if not given */
  const char *output, *model, *tune;
  flp_options options;
  flp_spec spec;  /* what options say of it */
  uint32_t given; /* a bit for each flp_field_id that one says */
  int has_scale, has_lora_scale;
  double scale;
  int64_t ignore_index;
  cli_loss_args loss;
  double lora_scale;
  int json, quiet, demo;
  /* demo */
  char demo_option[CLI_TEXT_BYTES]; /* one of its options that was given, or "" */
  int64_t rows, seed;
  double kept; /* 0 if not given */
} run_args;

/* Whether an option says a field. */
static inline int run_given(const run_args *args, flp_field_id field) {
  return (int)(args->given >> field & 1);
}

/* ---- inputs.c, demo.c: problems ---- */

typedef struct run_problem {
  flp_spec spec; /* resolved */
  int64_t n;
  const void *operand[FLP_ARRAYS]; /* host; NULL if absent */
  const flp_loss *loss;            /* of spec.loss, or NULL */
  double temperature, scale;
  int64_t ignore_index, list_count;
  int rank; /* of the target, whose shape the outputs share; with several targets, by row, but for its last dimension */
  int64_t shape[CLI_TENSOR_RANK_MAX];

  cli_safetensors *files[RUN_FILES_MAX + FLP_ARRAYS]; /* owned, as is what memory[] points at */
  int file_count;
  void *memory[FLP_ARRAYS];
} run_problem;

/* Opens the files and checks that what they hold fits together. error: ARGUMENT, IO, CORRUPT */
flp_status run_problem_load(run_args *args, run_problem *out);
/* Makes deterministic random data at real size, a third of the rows masked. error: ARGUMENT, MEMORY */
flp_status run_problem_demo(run_args *args, run_problem *out);
void run_problem_clear(run_problem *problem);
/* Sets the targets and the loss of the spec, whose inputs are to be found. error: as cli_loss_args_resolve; ARGUMENT
 * for what the loss does not read */
flp_status run_problem_loss(run_args *args, run_problem *problem);
/* The option that names an operand's tensor, without dashes; NULL of one that has none. */
const char *run_operand_option(flp_array_id id);
/* Which input of a loss an operand is; -1 for none. */
int run_loss_input(flp_array_id id);
/* The spec's fields that the arguments, not the data, decide; then checks the whole. error: ARGUMENT */
flp_status run_problem_resolve(const run_args *args, run_problem *problem);
/* A target, whatever its dtype: of a row the first is row * flp_spec_targets(&problem->spec). */
int64_t run_problem_target(const run_problem *problem, int64_t at);
/* The first of a row's targets that is not masked; -1 where all are. */
int64_t run_problem_first(const run_problem *problem, int64_t row);

/* ---- exec.c: execution ---- */

typedef struct run_result {
  call_result output;
  flp_rung rung;
  char description[CLI_REASONS_BYTES], reasons[CLI_REASONS_BYTES], device[128], plan_id[17];
  flp_layout forward, backward, step;
  double forward_seconds, backward_seconds, step_seconds, plan_seconds;
  uint64_t peak_bytes, workspace_bytes; /* buffers of this run; the larger workspace */
  flp_status data;                      /* FLP_OK, or DATA if rows held bad values */
  char data_detail[256];
} run_result;

/* Plans, runs forward and, if the spec has gradients, backward; or a step of its loss.
 * error: any of flp_plan_create, flp_execute and flp_step */
flp_status run_execute(const run_args *args, const run_problem *problem, run_result *out);
void run_result_clear(run_result *result);

/* ---- report.c: output ---- */

/* Writes the outputs to a safetensors file. error: IO */
flp_status run_write(const char *path, const run_problem *problem, const run_result *result);
/* Prints the summary, as a table or a JSON document. error: IO, MEMORY */
flp_status run_report(const run_args *args, const run_problem *problem, const run_result *result);

#endif
