/* operands.c: operands of another dtype than products take: terms of them in the workspace, which calls take in their place
 * (abi.h, operands of two dtypes).
 *
 * Invariant: a slice of the weight is overwritten by the next one, in stream order. */
#include "runtime/base/operands.h"

#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/launch/launch.h"

int64_t flp_call_depth(const flp_call *call) {
  return call->plan->spec.hidden * flp_operand_terms(&call->plan->spec);
}

/* A matrix of operands. */
typedef struct operand {
  CUdeviceptr start;
  int64_t stride, rows, depth, last_depth;
  flp_dtype dtype;
} operand;

static flp_status launch_terms(const flp_call *call, const operand *from, int terms, CUdeviceptr out) {
  flp_operand_terms_given p = {
      .source = from->start,
      .source_stride = from->stride,
      .is_wide = from->dtype != call->plan->spec.dtype,
      .out = out,
      .out_stride = from->depth * terms,
      .rows = (int32_t)from->rows,
      .depth = (int32_t)from->depth,
      .last_depth = (int32_t)from->last_depth,
      .terms = terms,
  };
  return flp_launch_over(call, FLP_ENTRY_operand_terms, &p, from->rows, 32);
}

static void *device_address(CUdeviceptr address) {
  return (void *)(uintptr_t)address;
}

flp_status flp_launch_operands(const flp_call *call, flp_own_call *own) {
  enum { BIAS_DEPTH = 256 }; /* of the rows in which a bias is taken */
  const flp_spec *spec = &call->plan->spec;
  CUdeviceptr hidden = flp_call_region(call, FLP_REGION_operand_hidden);
  CUdeviceptr bias = flp_call_region(call, FLP_REGION_operand_bias);
  flp_args *args = &own->args;
  flp_call_copy(call, own);
  if (hidden) {
    operand from = {.start = flp_call_pointer(args->hidden),
                    .stride = args->hidden_stride,
                    .rows = args->n,
                    .depth = spec->hidden,
                    .last_depth = spec->hidden,
                    .dtype = spec->hidden_dtype};
    FLP_TRY(launch_terms(call, &from, flp_operand_terms(spec), hidden));
    args->hidden = device_address(hidden);
    args->hidden_stride = flp_call_depth(call);
  }
  if (!bias) return FLP_OK;
  int64_t rows = flp_ceil_div(args->vocab_valid, BIAS_DEPTH);
  operand from = {.start = flp_call_pointer(args->bias),
                  .stride = BIAS_DEPTH,
                  .rows = rows,
                  .depth = BIAS_DEPTH,
                  .last_depth = args->vocab_valid - (rows - 1) * BIAS_DEPTH,
                  .dtype = spec->bias_dtype};
  args->bias = device_address(bias);
  return launch_terms(call, &from, 1, bias);
}

static CUdeviceptr weight_at(const flp_call *call, int64_t column) {
  const flp_args *a = call->args;
  return flp_call_pointer(a->weight) +
         (CUdeviceptr)(column * a->weight_stride) * flp_dtype_bytes(call->plan->spec.weight_dtype);
}

/* Where columns from `begin` on are taken from: the slice's first row stands at `start`, so row 0 of the weight would stand
 * that far before. */
static void take_slice(const flp_call *call, int64_t begin, CUdeviceptr start, flp_own_call *own) {
  flp_args *args = &own->args;
  flp_call_copy(call, own);
  own->call.head = call->args;
  args->weight_stride = flp_call_depth(call);
  args->weight =
      device_address(start - (CUdeviceptr)(begin * args->weight_stride) * flp_dtype_bytes(call->plan->spec.dtype));
}

static flp_status make_slice(const flp_call *call, int64_t begin, int64_t end, CUdeviceptr start) {
  const flp_spec *spec = &call->plan->spec;
  operand from = {.start = weight_at(call, begin),
                  .stride = call->args->weight_stride,
                  .rows = end - begin,
                  .depth = spec->hidden,
                  .last_depth = spec->hidden,
                  .dtype = spec->weight_dtype};
  return launch_terms(call, &from, flp_operand_terms(spec), start);
}

/* Of the two that stand side by side, the one that slice `number` is in. */
static CUdeviceptr half_of(const flp_call *call, int64_t number) {
  uint64_t bytes = call->scheme.size[FLP_REGION_operand_weight] / 2;
  return flp_call_region(call, FLP_REGION_operand_weight) + (call->scheme.ahead && number % 2 ? bytes : 0);
}

flp_status flp_launch_slice(const flp_call *call, int64_t number, int64_t begin, int64_t end, flp_own_call *own) {
  flp_call_copy(call, own);
  if (!call->scheme.slice) return FLP_OK;
  take_slice(call, begin, half_of(call, number), own);
  if (number == 0 || !call->scheme.ahead) FLP_TRY(make_slice(call, begin, end, half_of(call, number)));
  if (!call->scheme.ahead) return FLP_OK;
  int64_t next = flp_min(flp_planner_slice_end(&call->scheme, end), call->args->vocab_valid);
  own->call.ahead = (flp_ahead){.source = weight_at(call, end),
                                .out = half_of(call, number + 1),
                                .stride = call->args->weight_stride,
                                .rows = next - end};
  return FLP_OK;
}
