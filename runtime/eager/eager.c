/* eager.c: what the eager rung says of itself: the layout of every pass, and what multiplies. */
#include "runtime/eager/eager.h"

#include <stdio.h>

#include "runtime/base/status.h"
#include "runtime/eager/core.h"

flp_status flp_eager_layout(const flp_spec *spec, flp_pass pass, int64_t n, uint64_t budget_bytes, int threads,
                            flp_layout *layout) {
  eager_plan plan;
  if (pass == FLP_PASS_STEP) return eager_step_layout(spec, n, 0, budget_bytes, threads, layout);
  FLP_TRY(eager_plan_pick(spec, pass, n, budget_bytes, eager_thread_count(threads), &plan));
  eager_layout_of(spec, pass, n, &plan, layout);
  return FLP_OK;
}

flp_status flp_eager_layout_listed(const flp_spec *spec, flp_pass pass, int64_t n, int64_t list_count,
                                   uint64_t budget_bytes, int threads, flp_layout *layout) {
  eager_plan plan;
  uint32_t grads = pass == FLP_PASS_FORWARD ? 0 : spec->grads;
  int sums = 1 + ((grads & FLP_GRAD_HIDDEN) != 0) + ((grads & FLP_GRAD_WEIGHT) != 0); /* scores, gradients */
  if (pass == FLP_PASS_STEP) {
    FLP_TRY(eager_step_layout(spec, n, list_count, budget_bytes, threads, layout));
    sums += grads != 0;
  } else {
    FLP_TRY(eager_listed_pick(spec, pass, n, list_count, budget_bytes, eager_thread_count(threads), &plan));
    eager_layout_of(spec, pass, n, &plan, layout);
  }
  layout->chunks = 1;
  layout->flops = 2.0 * (double)list_count * (double)spec->hidden * sums;
  return FLP_OK;
}

const char *flp_eager_describe(void) {
  static _Thread_local char text[FLP_EAGER_TEXT_BYTES];
  const char *reason = eager_blas_reason();
  int threads = eager_thread_count(0);
  snprintf(text, sizeof text, "%s%s%s%s, %d thread%s", eager_blas_name(), reason[0] ? " (" : "", reason,
           reason[0] ? ")" : "", threads, threads == 1 ? "" : "s");
  return text;
}

const char *flp_eager_products(void) {
  return eager_blas_name();
}
