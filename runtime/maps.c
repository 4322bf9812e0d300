/* maps.c: matrices as the copy engine reads and writes them (CUtensorMap), and the rows put together for it.
 *
 * Invariants: elements have 16 bits; what a box has beyond a matrix is read as zeros and never written. */
#include <stdio.h>

#include "launch.h"
#include "status.h"

flp_status flp_map_encode(const flp_call *call, const flp_matrix *m, flp_abi_map *out) {
  enum { FLOAT16 = 6, BFLOAT16 = 9, NO_INTERLEAVE = 0, SWIZZLE_128B = 3, PROMOTE_256B = 3, FILL_ZEROS = 0 };
  int type = call->plan->spec.dtype == FLP_DTYPE_FP16 ? FLOAT16 : BFLOAT16;
  const uint64_t extent[] = {(uint64_t)m->columns, (uint64_t)m->rows}, stride[] = {(uint64_t)m->stride * 2};
  const uint32_t box[] = {m->box_columns, m->box_rows}, step[] = {1, 1};
  const flp_driver *driver = call->plan->driver;
  CUresult result = driver->cuTensorMapEncodeTiled(out, type, 2, (void *)(uintptr_t)m->start, extent, stride, box, step,
                                                   NO_INTERLEAVE, SWIZZLE_128B, PROMOTE_256B, FILL_ZEROS);
  if (result == 0) return FLP_OK;
  char what[FLP_SPEC_TEXT_BYTES + 64];
  snprintf(what, sizeof what, "cuTensorMapEncodeTiled(%s) for %s", m->name, call->plan->spec_text);
  return flp_driver_status(driver, result, what);
}

static flp_matrix rows_of(const char *name, CUdeviceptr start, int64_t stride, int64_t begin, int64_t end) {
  return (flp_matrix){
      .name = name, .start = start + (CUdeviceptr)(begin * stride) * 2, .rows = end - begin, .stride = stride};
}

flp_matrix flp_matrix_hidden(const flp_call *call, int64_t begin, int64_t end) {
  const flp_args *a = call->args;
  flp_matrix m = rows_of("hidden", flp_call_pointer(a->hidden), a->hidden_stride, begin, end);
  m.columns = call->plan->spec.hidden;
  return m;
}

flp_matrix flp_matrix_gathered(const flp_call *call, int64_t first, int64_t rows) {
  int64_t depth = call->plan->spec.hidden;
  flp_matrix m = rows_of("gathered hidden", flp_call_region(call, FLP_REGION_GATHER), flp_planner_gather_stride(depth),
                         first, first + rows);
  m.columns = depth;
  return m;
}

flp_matrix flp_matrix_weight(const flp_call *call, int64_t begin, int64_t end) {
  const flp_args *a = call->args;
  flp_matrix m = rows_of("weight", flp_call_pointer(a->weight), a->weight_stride, begin, end);
  m.columns = call->plan->spec.hidden;
  return m;
}

flp_status flp_launch_gather(const flp_call *call, int64_t begin, int64_t end) {
  const flp_args *a = call->args;
  flp_gather_params p = {
      .hidden = flp_call_pointer(a->hidden),
      .hidden_stride = a->hidden_stride,
      .index = flp_call_region(call, FLP_REGION_INDEX),
      .count = flp_call_region(call, FLP_REGION_COUNT),
      .n = (int32_t)a->n,
      .row_begin = (int32_t)begin,
      .row_end = (int32_t)end,
      .depth = (int32_t)call->plan->spec.hidden,
      .out = flp_call_region(call, FLP_REGION_GATHER),
      .out_stride = flp_planner_gather_stride(call->plan->spec.hidden),
      .turn = flp_call_region(call, FLP_REGION_TURN),
  };
  return flp_launch_over(call, FLP_ENTRY_gather, &p, end - begin, 32);
}
