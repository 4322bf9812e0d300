/* select.c: the launch of a pass over scores that exist already. */
#include "runtime/launch/launch.h"

/* What both passes are given. */
#define SAME(call, a)                                                                                            \
  .scores = flp_call_pointer((a)->scores), .scores_stride = (a)->scores_stride,                                  \
  .target = flp_call_pointer((a)->target), .k = (int32_t)(a)->k, .vocab = (int32_t)(call)->plan->spec.vocab,     \
  .ignore_index = (a)->ignore_index, .inverse = 1 / (a)->temperature, .logprob = flp_call_pointer((a)->logprob), \
  .stats = flp_call_pointer((a)->stats)

static flp_status launch_forward(const flp_call *call, const flp_select_args *a) {
  flp_select_given p = {SAME(call, a), .entropy = flp_call_pointer(a->entropy), .error_word = call->plan->error_word};
  return flp_launch(call, FLP_ENTRY_select, &p, a->n);
}

static flp_status launch_backward(const flp_call *call, const flp_select_args *a) {
  flp_select_grad_given p = {SAME(call, a), .grad_logprob = flp_call_pointer(a->grad_logprob),
                             .grad_entropy = flp_call_pointer(a->grad_entropy),
                             .grad_scores = flp_call_pointer(a->grad_scores),
                             .grad_scores_stride = a->grad_scores_stride};
  return flp_launch(call, FLP_ENTRY_select_grad, &p, a->n);
}
#undef SAME

flp_status flp_launch_select(const flp_call *call, const flp_select_args *args) {
  if (args->n == 0) return FLP_OK;
  return args->pass == FLP_PASS_FORWARD ? launch_forward(call, args) : launch_backward(call, args);
}
