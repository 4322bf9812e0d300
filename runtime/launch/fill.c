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

/* A gradient as rows of so many columns, `stride` elements apart. */
typedef struct gradient {
  const void *start;
  flp_dtype dtype;
  int64_t stride, rows, columns;
} gradient;

static flp_status zero_from(const flp_call *call, gradient g, int64_t first) {
  uint64_t element = flp_dtype_bytes(g.dtype), pitch = (uint64_t)g.stride * element;
  uint64_t width = (uint64_t)g.columns * element, rows = (uint64_t)(g.rows - first);
  CUdeviceptr start = flp_call_pointer(g.start) + (uint64_t)first * pitch;
  if (pitch == width || !rows) return flp_launch_set_bytes(call, start, rows * width, 0);
  CUresult result = call->plan->driver->cuMemsetD2D8Async(start, pitch, 0, width, rows, call->stream);
  return flp_call_status(call, result, "cuMemsetD2D8Async");
}

flp_status flp_launch_zero_head(const flp_call *call, int64_t first) {
  const flp_spec *spec = &call->plan->spec;
  const flp_args *a = call->args;
  gradient lora_a = {a->grad_lora_a, spec->grad_lora_dtype, a->grad_lora_a_stride, spec->lora_rank, spec->hidden};
  gradient lora_b = {a->grad_lora_b, spec->grad_lora_dtype, a->grad_lora_b_stride, spec->vocab, spec->lora_rank};
  gradient weight = {a->grad_weight, spec->grad_weight_dtype, a->grad_weight_stride, spec->vocab, spec->hidden};
  gradient bias = {a->grad_bias, spec->grad_bias_dtype, 1, spec->vocab, 1};
  if ((spec->grads & FLP_GRAD_LORA_A) && a->n == 0) FLP_TRY(zero_from(call, lora_a, 0));
  if (spec->grads & FLP_GRAD_LORA_B) FLP_TRY(zero_from(call, lora_b, first));
  if ((spec->grads & FLP_GRAD_WEIGHT) && !spec->accumulate_grad_weight) FLP_TRY(zero_from(call, weight, first));
  return spec->grads & FLP_GRAD_BIAS ? zero_from(call, bias, first) : FLP_OK;
}

flp_status flp_launch_fill(const flp_call *call) {
  if (call->plan->spec.grads & FLP_GRAD_HIDDEN) FLP_TRY(launch_fill(call));
  return flp_launch_zero_head(call, call->args->vocab_valid);
}
