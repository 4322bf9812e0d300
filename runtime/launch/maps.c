/* maps.c: matrices as the copy engine reads and writes them (CUtensorMap), and the rows put together for it.
 *
 * Invariants: elements are of the operand dtype; what a box has beyond a matrix is read as zeros and never written. */
#include <stdio.h>

#include "runtime/base/util.h"
#include "runtime/launch/launch.h"

static uint64_t element_bytes(const flp_call *call) {
  return flp_dtype_bytes(call->plan->spec.dtype);
}

uint32_t flp_box_columns(const flp_call *call) {
  enum { SWIZZLE_BYTES = 128 };
  return (uint32_t)(SWIZZLE_BYTES / element_bytes(call));
}

flp_status flp_map_encode(const flp_call *call, const flp_matrix *m, flp_abi_map *out) {
  enum { FLOAT16 = 6, FLOAT32 = 7, BFLOAT16 = 9 };
  enum { NO_INTERLEAVE = 0, SWIZZLE_128B = 3, PROMOTE_256B = 3, FILL_ZEROS = 0 };
  static const int types[] = {[FLP_DTYPE_BF16] = BFLOAT16, [FLP_DTYPE_FP16] = FLOAT16, [FLP_DTYPE_FP32] = FLOAT32};
  int type = types[call->plan->spec.dtype];
  const uint64_t extent[] = {(uint64_t)m->columns, (uint64_t)m->rows};
  const uint64_t stride[] = {(uint64_t)m->stride * element_bytes(call)};
  const uint32_t box[] = {m->box_columns, m->box_rows}, step[] = {1, 1};
  const flp_driver *driver = call->plan->driver;
  CUresult result = driver->cuTensorMapEncodeTiled(out, type, 2, (void *)(uintptr_t)m->start, extent, stride, box, step,
                                                   NO_INTERLEAVE, SWIZZLE_128B, PROMOTE_256B, FILL_ZEROS);
  if (result == 0) return FLP_OK;
  char what[FLP_SPEC_TEXT_BYTES + 64];
  snprintf(what, sizeof what, "cuTensorMapEncodeTiled(%s) for %s", m->name, call->plan->spec_text);
  return flp_driver_status(driver, result, what);
}

flp_status flp_map_encode_rows(const flp_call *call, const flp_kernel_desc *desc, uint32_t box_rows, flp_matrix matrix,
                               flp_abi_map *out) {
  matrix.box_columns = desc->tile_depth;
  matrix.box_rows = box_rows;
  return flp_map_encode(call, &matrix, out);
}

flp_status flp_map_encode_columns(const flp_call *call, const flp_kernel_desc *desc, flp_matrix matrix,
                                  flp_abi_map *out) {
  matrix.box_columns = desc->tile_depth;
  matrix.box_rows = desc->tile_columns / (uint32_t)flp_max(desc->cluster, 1);
  return flp_map_encode(call, &matrix, out);
}

/* Rows [begin, end) of one that has row 0 at `start`. */
static flp_matrix rows_of(const flp_call *call, const char *name, CUdeviceptr start, int64_t stride, int64_t begin,
                          int64_t end) {
  return (flp_matrix){.name = name,
                      .start = start + (CUdeviceptr)(begin * stride) * element_bytes(call),
                      .rows = end - begin,
                      .columns = flp_call_depth(call),
                      .stride = stride};
}

flp_matrix flp_matrix_hidden(const flp_call *call, flp_row_range rows) {
  const flp_args *a = call->args;
  return rows_of(call, "hidden", flp_call_pointer(a->hidden), a->hidden_stride, rows.begin, rows.end);
}

flp_matrix flp_matrix_gathered(const flp_call *call, int64_t first, int64_t rows) {
  return rows_of(call, "gathered hidden", flp_call_region(call, FLP_REGION_gather),
                 flp_planner_gather_stride(flp_call_depth(call)), first, first + rows);
}

flp_matrix flp_matrix_weight(const flp_call *call, flp_column_range columns) {
  const flp_args *a = call->args;
  return rows_of(call, "weight", flp_call_pointer(a->weight), a->weight_stride, columns.begin, columns.end);
}

CUdeviceptr flp_lora_b(const flp_call *call, int64_t column) {
  const flp_args *a = call->args;
  return flp_call_pointer(a->lora_b) + (uint64_t)(column * a->lora_b_stride) * element_bytes(call);
}

CUdeviceptr flp_lora_u(const flp_call *call, int64_t row) {
  uint64_t pitch = (uint64_t)call->plan->spec.lora_rank * element_bytes(call);
  return flp_call_region(call, FLP_REGION_lora_u) + (uint64_t)row * pitch;
}

flp_matrix flp_matrix_lora_u(const flp_call *call, flp_row_range rows) {
  int64_t rank = call->plan->spec.lora_rank;
  flp_matrix u = rows_of(call, "lora_u", flp_lora_u(call, 0), rank, rows.begin, rows.end);
  u.columns = rank;
  return u;
}

flp_matrix flp_matrix_lora_b(const flp_call *call, flp_column_range columns) {
  flp_matrix b = rows_of(call, "lora_b", flp_lora_b(call, 0), call->args->lora_b_stride, columns.begin, columns.end);
  b.columns = call->plan->spec.lora_rank;
  return b;
}

flp_status flp_launch_gather(const flp_call *call, flp_row_range rows) {
  if (!call->plan->planner.is_mapped) return FLP_OK;
  flp_gather_given p = {
      .n = (int32_t)call->args->n,
      FLP_GIVE_ROWS(rows),
      .depth = (int32_t)flp_call_depth(call),
      .out = flp_call_region(call, FLP_REGION_gather),
      .out_stride = flp_planner_gather_stride(flp_call_depth(call)),
  };
  return flp_launch_over(call, FLP_ENTRY_gather, &p, rows.end - rows.begin, 32);
}
