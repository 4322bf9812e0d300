/* plans.h: the plans that XLA's calls run, found by what they are made for. */
#ifndef FLP_JAX_PLANS_H
#define FLP_JAX_PLANS_H

#include "runtime/flp.h"

/* The plan of a spec on a device, a CUDA ordinal or FLP_DEVICE_HOST; made when it is first asked for, and kept for the
 * life of the process, as nothing reports when the last program that may ask for it is gone.
 * error:  that of flp_plan_create; the next call tries again
 * thread: safe; two specs may be compiled at the same time, and one only once */
flp_status jax_plan_get(const flp_spec *spec, int32_t device, flp_plan **out);

/* How many there are. */
int jax_plan_count(void);

#endif
