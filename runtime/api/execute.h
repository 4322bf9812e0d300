/* execute.h: what flp_execute, flp_step and flp_select share. */
#ifndef FLP_EXECUTE_H
#define FLP_EXECUTE_H

#include "runtime/launch/launch.h"

/* Enqueues with the plan's context current and, in strict mode, synchronises and checks. */
typedef flp_status (*flp_enqueue_fn)(flp_call *call, const void *args);
flp_status flp_call_run(flp_call *call, flp_enqueue_fn enqueue, const void *args);

/* Counts rows of host memory that a call found bad, for flp_plan_check; the first since the last check are logged.
 * error: DATA in strict mode, if there are any */
flp_status flp_plan_count_bad(flp_plan *plan, uint64_t bad);

/* Whether a plan's backward pass may be given the gradient of raw scores; and the bytes of its sums. error: ARGUMENT */
flp_status flp_plan_check_given(const flp_plan *plan);
uint64_t flp_plan_sums_bytes(const flp_plan *plan);

#endif
