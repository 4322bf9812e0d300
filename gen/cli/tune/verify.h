/* verify.h: numbers before times. */
#ifndef FLPGEN_CLI_TUNE_VERIFY_H
#define FLPGEN_CLI_TUNE_VERIFY_H

#include "gen/cli/call/call.h"
#include "gen/cli/check/compare.h"
#include "gen/cli/tune/heads.h"

/* What is run at a time: one flp_execute or flp_step, or two where forward keeps something for backward. */
typedef enum tune_call {
  TUNE_FORWARD,
  TUNE_BACKWARD,
  TUNE_KEEPING, /* forward that keeps exponentials or directions */
  TUNE_SAVED,   /* that, and backward from them, which may use them up */
  TUNE_STEP     /* in stream mode */
} tune_call;

/* A small problem on the very kernels that are to be timed: the plan's vocabulary with few valid columns. */
typedef struct tune_check {
  check_problem problem;
  check_truth truth, sample; /* sample: of some rows and columns, for every candidate */
  call_result reference;     /* of the untuned kernels in score and recompute modes, compared with the oracle */
  call_result trained;       /* the same in save, direction or stream mode */
  call_buffers operands;
  const call_buffers *head; /* where gradients of the head go, of V columns; borrowed */
} tune_check;

/* loss_parameters: of the target's loss, borrowed. error: MEMORY, DRIVER */
flp_status tune_check_create(const tune_head *target, const double *loss_parameters, const call_buffers *head,
                             tune_check *out);
void tune_check_clear(tune_check *check);
/* Runs the untuned kernels and holds them to the oracle: TUNE_BACKWARD first, score and recompute modes; then a save,
 * direction or stream call, if any.
 * error: INTERNAL with what is wrong; DRIVER */
flp_status tune_check_reference(tune_check *check, flp_plan *plan, tune_call call);
/* Relative L2, and how far gradients in a dtype may be from the untuned kernels': two roundings to it, and sums in
 * another order of chunks. */
double tune_distance(const float *got, const float *wanted, size_t count);
double tune_distance_allowed(flp_dtype dtype);
/* Runs a plan some of whose kernels have other tilings: logprob, entropy and stats to the same bits in every mode,
 * gradients, which TUNE_KEEPING makes too, within the check's bounds of the oracle.
 * *error: of the gradients, relative; reason: "" if all is right. error: DRIVER */
flp_status tune_check_plan(tune_check *check, flp_plan *plan, tune_call call, double *error,
                           char reason[SEARCH_REASON_BYTES]);

#endif
