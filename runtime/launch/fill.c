/* fill.c: gradients that no product reaches: of rows that are left out or bad, and of padding rows of the head. */
#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/launch/launch.h"

static flp_status launch_fill(const flp_call *call) {
  const flp_args *a = call->args;
  flp_fill_given p = {
      FLP_GIVE_GRAD_HIDDEN(a),
      .out_is_f32 = call->plan->spec.grad_hidden_dtype == FLP_DTYPE_FP32,
  };
  return flp_launch_over(call, FLP_ENTRY_fill, &p, a->n, 32);
}

flp_status flp_launch_zero_head(const flp_call *call, int64_t first) {
  const flp_spec *spec = &call->plan->spec;
  const flp_args *a = call->args;
  flp_gradient weight = {a->grad_weight, spec->grad_weight_dtype, a->grad_weight_stride, spec->vocab, spec->hidden};
  flp_gradient bias = {a->grad_bias, spec->grad_bias_dtype, 1, spec->vocab, 1};
  FLP_TRY(flp_launch_zero_lora(call, first));
  if ((spec->grads & FLP_GRAD_WEIGHT) && !spec->accumulate_grad_weight) FLP_TRY(flp_launch_zero(call, weight, first));
  return spec->grads & FLP_GRAD_BIAS ? flp_launch_zero(call, bias, first) : FLP_OK;
}

flp_status flp_launch_fill(const flp_call *call) {
  if (call->plan->spec.grads & FLP_GRAD_HIDDEN) FLP_TRY(launch_fill(call));
  return flp_launch_zero_head(call, call->args->vocab_valid);
}
