/* op.h: how each operation is checked and called. Its kernels are in runtime/kernel/op.h. */
#ifndef FLP_API_OP_H
#define FLP_API_OP_H

#include "runtime/plan/plan.h"

typedef struct flp_op_calls {
  const char *call; /* the function that runs a plan: "flp_select" */
  unsigned passes;  /* 1 << flp_pass that there are */
  /* Checks what a spec of the operation may and may not have; what all have in common is checked by others. */
  flp_status (*check_spec)(const flp_spec *spec);
  /* The layout of a pass that was checked. */
  flp_status (*layout)(const flp_plan *plan, flp_pass pass, int64_t n, uint64_t budget_bytes, flp_layout *out);
} flp_op_calls;

const flp_op_calls *flp_op_calls_of(flp_op op);

/* error: ARGUMENT unless there is a plan, and it is of that operation */
flp_status flp_op_check_plan(const flp_plan *plan, flp_op op);
/* error: ARGUMENT unless the operation of the plan has the pass */
flp_status flp_op_check_pass(const flp_plan *plan, flp_pass pass);

/* ---- one file an operation ---- */

#define FLP_OP_DECLARE(value, word) flp_status flp_##word##_check_spec(const flp_spec *spec);
FLP_OPS(FLP_OP_DECLARE)
#undef FLP_OP_DECLARE
flp_status flp_head_layout(const flp_plan *plan, flp_pass pass, int64_t n, uint64_t budget_bytes, flp_layout *out);

#endif
