/* select.c: flp_select, one pass over scores that exist already: a single launch, or the eager rung. */
#include "eager.h"
#include "launch.h"
#include "status.h"
#include "validate.h"

static flp_status launch_forward(const flp_call *call, const flp_select_args *a) {
  flp_select_params p = {.scores = flp_call_pointer(a->scores),
                         .scores_stride = a->scores_stride,
                         .target = flp_call_pointer(a->target),
                         .k = (int32_t)a->k,
                         .vocab = (int32_t)call->plan->spec.vocab,
                         .ignore_index = a->ignore_index,
                         .inverse = 1 / a->temperature,
                         .logprob = flp_call_pointer(a->logprob),
                         .entropy = flp_call_pointer(a->entropy),
                         .stats = flp_call_pointer(a->stats),
                         .error_word = call->plan->error_word};
  return flp_launch(call, FLP_ENTRY_select, &p, a->n);
}

static flp_status launch_backward(const flp_call *call, const flp_select_args *a) {
  flp_select_grad_params p = {.scores = flp_call_pointer(a->scores),
                              .scores_stride = a->scores_stride,
                              .target = flp_call_pointer(a->target),
                              .k = (int32_t)a->k,
                              .vocab = (int32_t)call->plan->spec.vocab,
                              .ignore_index = a->ignore_index,
                              .inverse = 1 / a->temperature,
                              .logprob = flp_call_pointer(a->logprob),
                              .stats = flp_call_pointer(a->stats),
                              .grad_logprob = flp_call_pointer(a->grad_logprob),
                              .grad_entropy = flp_call_pointer(a->grad_entropy),
                              .grad_scores = flp_call_pointer(a->grad_scores),
                              .grad_scores_stride = a->grad_scores_stride};
  return flp_launch(call, FLP_ENTRY_select_grad, &p, a->n);
}

static flp_status enqueue(flp_call *call, const void *args) {
  const flp_select_args *a = args;
  if (a->n == 0) return FLP_OK;
  return a->pass == FLP_PASS_FORWARD ? launch_forward(call, a) : launch_backward(call, a);
}

static flp_status run_host(flp_plan *plan, const flp_select_args *args) {
  uint64_t bad_targets = 0;
  flp_eager_select(&plan->spec, args, plan->options.threads, &bad_targets);
  atomic_fetch_add(&plan->bad_rows, bad_targets);
  return plan->options.strict ? flp_plan_check(plan, args->stream) : FLP_OK;
}

flp_status flp_select(flp_plan *plan, const flp_select_args *args) {
  flp_detail_clear();
  if (!plan) return flp_fail(FLP_ERROR_ARGUMENT, "plan is NULL (accepted: a plan of flp_plan_create)");
  if (plan->spec.op != FLP_OP_SELECT)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "the plan's spec.op is FLP_OP_HEAD (accepted: FLP_OP_SELECT; flp_execute runs it)");
  flp_select_args resolved;
  FLP_TRY(flp_select_args_resolve(&plan->spec, args, &resolved));
  if (plan->rung == FLP_RUNG_EAGER) return run_host(plan, &resolved);
  flp_call call = {.plan = plan, .stream = resolved.stream};
  return flp_call_run(&call, enqueue, &resolved);
}
