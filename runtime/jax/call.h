/* call.h: what one call of XLA asks for, read from its frame. */
#ifndef FLP_JAX_CALL_H
#define FLP_JAX_CALL_H

#include "runtime/flp.h"
#include "runtime/jax/xla.h"

enum { JAX_DETAIL_BYTES = 256 };

typedef struct jax_call {
  flp_spec spec;
  flp_args args;                 /* without stream */
  char detail[JAX_DETAIL_BYTES]; /* of a failure */
} jax_call;

/* Reads buffers and attributes. The attributes `operands` and `results` name the buffers in order, divided by spaces; a
 * buffer's own dimensions and type give vocab, hidden, N and dtypes, and must agree with each other. What a spec is
 * for follows from the names: a result grad_weight asks for that gradient, an operand bias says that there is one.
 * error: ARGUMENT with call->detail
 * thread: any */
flp_status jax_call_read(const xla_call_frame *frame, jax_call *call);

#endif
