/* call.h: a problem on a plan: its buffers, the arguments of its passes, what they wrote.
 *
 * A problem says what its arrays (runtime/base/args.h) hold, buffers say where they lie, and the two give the arguments of
 * a pass:
 *
 *     call_problem problem = {.spec = spec, .n = n, .operand = {[FLP_ARRAY_hidden] = hidden, ...}, ...};
 *     call_buffers buffers = {.device = &device};
 *     call_upload(&buffers, &problem);
 *     call_make_outputs(&buffers, &problem);
 *     call_forward(&buffers, &problem, plan);
 *     call_backward(&buffers, &problem, plan);
 *     call_download(&buffers, &problem, &result);
 *     call_clear(&buffers);
 *
 * What is timed or captured is enqueued with call_args and call_execute instead: call_forward and call_backward make
 * a workspace for each pass and wait for it. */
#ifndef FLPGEN_CLI_CALL_H
#define FLPGEN_CLI_CALL_H

#include "gen/cli/call/device.h"
#include "runtime/base/args.h"
#include "runtime/base/names.h"
#include "runtime/loss/loss.h"

/* The array of a loss's input, from FLP_LOSS_OLD_LOGPROB to the last vector. */
static inline flp_array_id call_loss_input(int input) {
  return (flp_array_id)(FLP_ARRAY_old_logprob + input - FLP_LOSS_OLD_LOGPROB);
}
_Static_assert(FLP_ARRAY_vectors - FLP_ARRAY_old_logprob == FLP_LOSS_FIRST_VECTOR - FLP_LOSS_OLD_LOGPROB,
               "inputs of a loss stand side by side");

typedef struct call_problem {
  flp_spec spec;        /* resolved; vocab: that of all shards together */
  const flp_loss *loss; /* of spec.loss: a step is run; or NULL */
  int64_t n;
  int64_t stride;            /* elements between rows of every matrix of operands and gradients */
  int shards;                /* 1: the whole head in one call */
  int64_t shard_vocab;       /* rows of one shard's weight; of the last one some may be padding */
  double temperature, scale; /* temperature: unless it is given by row */
  double lora_scale;
  int64_t ignore_index, row_count;
  int64_t list_count; /* of spec.listed: ids of all rows' lists */
  const double *loss_parameters;
  int gives_stats, gives_metrics;  /* whether forward, or a step, writes them */
  const void *operand[FLP_ARRAYS]; /* host; NULL if absent */
  const float *weight_base;        /* host: what grad_weight is added to; or NULL */
} call_problem;

/* The whole head over dense rows that lie nowhere yet; temperature and scale 1. spec: resolved */
call_problem call_problem_of(const flp_spec *spec, int64_t n);
/* Whether a problem of the whole head is run by that pass: forward, and backward for gradients; or a step. */
int call_has_pass(const call_problem *problem, flp_pass pass);

/* ---- buffers.c: where arrays lie ---- */

enum { CALL_GUARD = 256, CALL_POISON = 0xff };

/* Memory that holds one array. A guarded one is filled with poison when it is made and has a guard behind the array: a
 * byte that is written outside of it shows. */
typedef struct call_buffer {
  cli_buffer buffer;
  size_t shift, bytes; /* of the array: from the start of the buffer, and its size */
  int guarded, borrowed;
} call_buffer;

/* What *out held is released first. error: as cli_buffer_create */
flp_status call_buffer_make(cli_device *device, size_t bytes, size_t shift, int guarded, call_buffer *out);
/* Where the array, or a byte of it, lies; NULL without a buffer. */
void *call_buffer_at(const call_buffer *buffer, size_t offset);
/* Copies the array's first bytes to *out, malloc'ed; the memory itself is handed over where it is the host's and not
 * guarded. *out stays NULL without a buffer. *overrun: 1 if a guard was written. error: MEMORY, DRIVER */
flp_status call_buffer_take(call_buffer *buffer, size_t bytes, void **out, int *overrun);
/* error: DRIVER */
flp_status call_buffer_guard(const call_buffer *buffer, int *overrun);
/* Whether every row of a matrix, so many bytes apart, still has poison behind what is used of it. */
int call_has_gaps(const void *matrix, size_t rows, size_t used, size_t width);
void call_buffer_clear(call_buffer *buffer);

typedef struct call_buffers {
  cli_device *device; /* borrowed */
  CUstream stream;    /* of the calls; NULL: the device's */
  size_t shift;       /* bytes from a 256-byte boundary to every array of spec.dtype and of gradients */
  int guarded;
  call_buffer at[FLP_ARRAYS];
} call_buffers;

/* The array of a id: rows of so many elements from one to the next, of so many bytes each. wanted: of an output, 1 if
 * the problem asks for it */
typedef struct call_array {
  int wanted;
  size_t rows, stride, element;
} call_array;
/* A size of the problem; of V that of all shards, of D the stride. */
int64_t call_size(const call_problem *problem, flp_size size);
call_array call_array_of(const call_problem *problem, flp_array_id id);
size_t call_bytes(const call_problem *problem, flp_array_id id);

/* Makes a buffer for a id, or makes it anew. error: as cli_buffer_create */
flp_status call_make(call_buffers *buffers, flp_array_id id, size_t bytes);
/* Makes the operands that the problem has; on the host those that are not guarded stay where they are. */
flp_status call_upload(call_buffers *buffers, const call_problem *problem);
/* Makes the outputs that the problem asks for; those that are borrowed are filled as if they had been made. */
flp_status call_make_outputs(call_buffers *buffers, const call_problem *problem);
/* Has a id in common with another set of buffers, which outlives this one. */
void call_borrow(call_buffers *buffers, const call_buffers *from, flp_array_id id);
/* Sets every byte that a call writes, in order on the stream. error: DRIVER */
flp_status call_poison(const call_buffers *buffers, uint8_t value);
void call_clear(call_buffers *buffers);

/* ---- args.c: the arguments of a pass ---- */

/* The arguments of a pass over the whole head or, for FORWARD and BACKWARD, over one shard. The workspace is all that
 * there is. */
flp_args call_args(const call_buffers *buffers, const call_problem *problem, flp_pass pass, int shard);
/* Where a row of a id's array begins; NULL without a buffer. */
void *call_row(const call_buffers *buffers, const call_problem *problem, flp_array_id id, int64_t row);
/* Enqueues flp_step or flp_execute, as the pass says. */
flp_status call_execute(flp_plan *plan, const flp_args *args);

/* ---- run.c: the passes, one after the other, and their results ---- */

/* Whether forward passes of the problem may keep something for backward. */
int call_keeps(const call_problem *problem);
/* Makes FLP_ARRAY_saved if the plan keeps anything of these rows, whatever it takes. error: as flp_plan_saved */
flp_status call_make_saved(call_buffers *buffers, const call_problem *problem, const flp_plan *plan);
/* The layout of a pass over n rows of the problem under the plan's budget, in direction and tail modes too; of a backward
 * pass in save mode, whatever it takes. Of listed columns n rows may have all ids. */
flp_status call_layout(const call_buffers *buffers, const call_problem *problem, const flp_plan *plan, flp_pass pass,
                       int64_t n, flp_layout *out);
/* Forward passes of all shards and combine, or a step; then backward passes, of a step none. Each has a workspace made
 * for it, and is waited for. error: any of flp_plan_layout, flp_execute, flp_step */
flp_status call_forward(call_buffers *buffers, const call_problem *problem, flp_plan *plan);
flp_status call_backward(call_buffers *buffers, const call_problem *problem, flp_plan *plan);

/* Host memory, owned; NULL if not asked for. Arrays are those that flp_args has, with the problem's stride and the padded
 * vocabulary; what each shard writes stands one behind the other. */
typedef struct call_result {
#define CALL_NONE(type, field, ...)
#define CALL_FIELD(type, field, ...) type field;
  FLP_ARGS_FIELDS(CALL_NONE, CALL_FIELD, CALL_FIELD, CALL_NONE)
#undef CALL_FIELD
#undef CALL_NONE
  int data_error;      /* flp_plan_check reported bad rows */
  int64_t bad_rows;    /* of listed columns: so many in forward passes */
  const char *overrun; /* a buffer that was written outside its rows, or NULL */
} call_result;

/* How many rows were bad since the last time, and whether any was. error: DRIVER */
flp_status call_count_bad(flp_plan *plan, CUstream stream, int64_t *bad_rows);
flp_status call_check_data(flp_plan *plan, CUstream stream, int *data_error);
/* The array of an output. */
const void *call_result_at(const call_result *result, flp_array_id id);
/* Adds what one id holds to a result that has it not. */
flp_status call_take(call_buffers *buffers, const call_problem *problem, flp_array_id id, call_result *result);
/* Adds all that is left, and looks at every guard and at the elements between rows. error: MEMORY, DRIVER */
flp_status call_download(call_buffers *buffers, const call_problem *problem, call_result *result);
void call_result_clear(call_result *result);

#endif
