/* call.h: what one call of XLA asks for, read from its frame. */
#ifndef FLP_JAX_CALL_H
#define FLP_JAX_CALL_H

#include "runtime/flp.h"
#include "runtime/jax/xla.h"

enum { JAX_DETAIL_BYTES = 256 };

typedef struct jax_call {
  flp_spec spec;                 /* whose loss is the frame's */
  flp_args args;                 /* without stream */
  flp_diverge_args diverge;      /* of flp_diverge, where it has scores; without stream */
  int64_t metrics, parameters;   /* of the loss */
  int64_t numbers;               /* of args.loss_parameters */
  char detail[JAX_DETAIL_BYTES]; /* of a failure */
} jax_call;

/* Reads attributes and buffers. An attribute sets the field of flp_spec or flp_args that has its name, an array
 * spec.loss or args.loss_parameters; `operands` and `results` name the buffers in order, divided by spaces, as flp_args
 * or flp_diverge_args does, which share n and loss_parameters. Each must have the shape and the type that the fields
 * give it, and stand on the side that its pass reads or writes.
 * error: ARGUMENT with call->detail
 * thread: any */
flp_status jax_call_read(const xla_call_frame *frame, jax_call *call);

#endif
