/* op.h: the operations, one row each: what a spec of it has, and which kernels plans of it need. How it is checked and
 * called is in runtime/api/op.h. */
#ifndef FLP_OP_H
#define FLP_OP_H

#include "runtime/base/names.h"
#include "runtime/kernel/kind.h"

/* A kernel, and whether a resolved spec wants it on an architecture; NULL: always. */
typedef struct flp_op_kernel {
  flp_kernel_kind kind;
  int (*is_wanted)(const flp_spec *spec, const char *arch);
} flp_op_kernel;

typedef struct flp_op_row {
  const char *symbol; /* "FLP_OP_SELECT", for messages */
  int has_head; /* 1: scores are the product of hidden states and a head; else spec.hidden, grads and more are 0 */
  int kernel_count;
  const flp_op_kernel *kernels; /* in the order in which plans have them */
} flp_op_row;

/* The row of an operation that flp.h has. */
const flp_op_row *flp_op_of(flp_op op);

#endif
