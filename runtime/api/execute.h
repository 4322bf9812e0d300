/* execute.h: what flp_execute, flp_step and flp_select share. */
#ifndef FLP_EXECUTE_H
#define FLP_EXECUTE_H

#include "runtime/launch/launch.h"

/* Enqueues with the plan's context current and, in strict mode, synchronises and checks. */
typedef flp_status (*flp_enqueue_fn)(flp_call *call, const void *args);
flp_status flp_call_run(flp_call *call, flp_enqueue_fn enqueue, const void *args);

#endif
