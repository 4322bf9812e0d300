/* diverge.c: the launch of a divergence of scores that exist already. */
#include "runtime/launch/launch.h"

_Static_assert((int)FLP_DIVERGE_WORDS == (int)FLP_DIVERGE_STATE, "words of a row's state");

flp_status flp_launch_diverge(const flp_call *call, const flp_diverge_args *a) {
  if (a->n == 0) return FLP_OK;
  flp_diverge_given p = {.scores = flp_call_pointer(a->scores),
                         .scores_stride = a->scores_stride,
                         .teacher = flp_call_pointer(a->teacher),
                         .teacher_stride = a->teacher_stride,
                         .vocab = (int32_t)call->plan->spec.vocab,
                         .scale = a->scale,
                         .scale_rows = flp_call_pointer(a->scale_rows),
                         .teacher_scale = a->teacher_scale,
                         .teacher_scale_rows = flp_call_pointer(a->teacher_scale_rows),
                         .upstream = flp_call_pointer(a->upstream),
                         .values = flp_call_pointer(a->values),
                         .grad_scores = flp_call_pointer(a->grad_scores),
                         .grad_scores_stride = a->grad_scores_stride,
                         .target = flp_call_pointer(a->target),
                         .grad_logprob = flp_call_pointer(a->grad_logprob),
                         .grad_entropy = flp_call_pointer(a->grad_entropy),
                         .state = flp_call_pointer(a->state),
                         .resumes = (int32_t)a->resumes,
                         .partial = flp_call_pointer(a->partial),
                         .teacher_partial = flp_call_pointer(a->teacher_partial),
                         .error_word = call->plan->error_word};
  double *const each[] = {&p.parameter0, &p.parameter1, &p.parameter2, &p.parameter3,
                          &p.parameter4, &p.parameter5, &p.parameter6, &p.parameter7};
  for (uint32_t i = 0; i < call->plan->loss.parameter_count; i++) *each[i] = a->loss_parameters[i];
  return flp_launch(call, FLP_ENTRY_diverge, &p, a->n);
}
