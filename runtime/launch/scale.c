/* scale.c: the launch of gradients times a factor. */
#include "runtime/base/util.h"
#include "runtime/launch/launch.h"

enum { CTAS = 6 }; /* of a multiprocessor, as many as it holds; more would each read a factor of 1 for nothing */

flp_status flp_launch_scale(const flp_call *call, const flp_scale_args *a) {
  if (a->n == 0) return FLP_OK;
  flp_scale_given p = {.values = flp_call_pointer(a->values),
                       .values_stride = a->values_stride,
                       .n = (int32_t)a->n,
                       .columns = (int32_t)call->plan->spec.vocab,
                       .factor = flp_call_pointer(a->factor)};
  return flp_launch(call, FLP_ENTRY_scale, &p, flp_min(a->n, (int64_t)call->plan->planner.multiprocessors * CTAS));
}
