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
  int64_t rows = spec->vocab - first;
  FLP_TRY(flp_launch_zero_lora(call, first));
  if ((spec->grads & FLP_GRAD_WEIGHT) && !spec->accumulate_grad_weight) {
    uint64_t element = flp_dtype_bytes(spec->grad_weight_dtype), pitch = (uint64_t)a->grad_weight_stride * element;
    flp_byte_matrix weight = {flp_call_pointer(a->grad_weight) + (uint64_t)first * pitch, pitch,
                              (uint64_t)spec->hidden * element, rows};
    FLP_TRY(flp_launch_set(call, weight, 0));
  }
  if (!(spec->grads & FLP_GRAD_BIAS)) return FLP_OK;
  uint64_t element = flp_dtype_bytes(spec->grad_bias_dtype);
  CUdeviceptr bias = flp_call_pointer(a->grad_bias) + (uint64_t)first * element;
  return flp_launch_set_bytes(call, bias, (uint64_t)rows * element, 0);
}

flp_status flp_launch_fill(const flp_call *call) {
  if (call->plan->spec.grads & FLP_GRAD_HIDDEN) FLP_TRY(launch_fill(call));
  return flp_launch_zero_head(call, call->args->vocab_valid);
}
