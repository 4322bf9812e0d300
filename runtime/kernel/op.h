/* op.h: the operations, one row each: what a spec of it has, and which kernels plans of it need. How it is checked and
 * called is in runtime/api/op.h. */
#ifndef FLP_OP_H
#define FLP_OP_H

#include "runtime/base/names.h"
#include "runtime/kernel/kind.h"

/* Whether an architecture has one kernel for both products of a chunk. */
typedef enum flp_products { FLP_PRODUCTS_ANY, FLP_PRODUCTS_TOGETHER, FLP_PRODUCTS_APART } flp_products;

/* A kernel, and what a spec and an architecture are like that need it. A kernel has a row for each way to need it, side
 * by side. */
typedef struct flp_op_kernel {
  flp_kernel_kind kind;
  unsigned parts;     /* of forward, beside those that all of the spec's have (kernel.h) */
  uint32_t all, any, none; /* bits of flp_feature: the spec asks for all, for any, for none of these; 0: whatever */
  uint32_t grads;     /* and for any of these gradients; 0: whether or not */
  flp_products products;
  unsigned facts; /* the architecture that makes it has these, FLP_ARCH_... */
  int (*also)(const flp_spec *spec); /* and this holds; NULL: whatever */
} flp_op_kernel;

typedef struct flp_op_row {
  const char *symbol; /* "FLP_OP_SELECT", for messages */
  int has_head; /* 1: scores are the product of hidden states and a head; else spec.hidden, grads and more are 0 */
  uint32_t features; /* that a spec may have: 1 << flp_feature */
  int kernel_count;
  const flp_op_kernel *kernels; /* in the order in which plans have them */
} flp_op_row;

/* The row of an operation that flp.h has. */
const flp_op_row *flp_op_of(flp_op op);
/* Whether a resolved spec needs a kernel on an architecture. */
int flp_op_wants(const flp_op_kernel *kernel, const flp_spec *spec, const char *arch);

#endif
