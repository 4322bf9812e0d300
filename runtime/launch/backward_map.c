/* backward_map.c: dz and the products of a chunk where operands come through tensor maps.
 *
 * Invariants: the maps hold the chunk's rows and columns and nothing beyond; the gathered rows are those of the chunk
 * where each chunk of rows gathers its own (recompute-rows, stream), else all of them. Kernels leave the counter of units at 0, so
 * that one gather serves all launches after it. */
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/kernel/kernel.h"
#include "runtime/launch/backward.h"

/* The four matrices of a chunk, for the caller to give boxes. */
typedef struct matrices {
  flp_matrix hidden, gathered, weight, dz;
} matrices;

static matrices matrices_of(const flp_call *call, const backward_chunk *c) {
  int64_t rows = backward_rows(c), columns = backward_columns(c);
  return (matrices){.hidden = flp_matrix_hidden(call, c->rows),
                    .gathered = flp_matrix_gathered(call, c->rows.begin - c->gathered_from, rows),
                    .weight = flp_matrix_weight(call, c->columns),
                    .dz = {.name = "dz", .start = c->dz, .rows = rows, .columns = columns, .stride = c->dz_stride}};
}

static void set_box(flp_matrix *m, uint32_t columns, uint32_t rows) {
  m->box_columns = columns;
  m->box_rows = rows;
}

FLP_GIVEN_BEGINS(dz_lora_map, dz_map, FLP_PARAMS_dz_map)

static flp_status encode_for_dz(const flp_call *call, const backward_chunk *c, flp_dz_lora_map_given *p) {
  const flp_kernel_desc *desc = backward_dz_desc(call);
  matrices m = matrices_of(call, c);
  set_box(&m.dz, flp_box_columns(call), FLP_DZ_BOX_ROWS);
  FLP_TRY(flp_map_encode_rows(call, desc, desc->tile_rows, m.hidden, &p->hidden_map));
  FLP_TRY(flp_map_encode_rows(call, desc, desc->tile_rows, m.gathered, &p->gathered_map));
  FLP_TRY(flp_map_encode_columns(call, desc, m.weight, &p->weight_map));
  FLP_TRY(flp_map_encode(call, &m.dz, &p->dz_map));
  if (!call->plan->spec.lora_rank) return FLP_OK;
  FLP_TRY(flp_map_encode_rows(call, desc, desc->tile_rows, flp_matrix_lora_u(call, c->rows), &p->lora_u_map));
  return flp_map_encode_columns(call, desc, flp_matrix_lora_b(call, c->columns), &p->lora_b_map);
}

flp_status backward_launch_dz_map(const flp_call *call, const backward_chunk *c) {
  const flp_planner *planner = &call->plan->planner;
  flp_dz_lora_map_given p = {
      .count = c->count,
      .depth = (int32_t)flp_call_depth(call),
      .n = (int32_t)call->args->n,
      FLP_GIVE_ROWS(c->rows),
      FLP_GIVE_COLUMNS(c->columns),
      .bias_part = c->bias_part,
  };
  FLP_TRY(encode_for_dz(call, c, &p));
  int64_t tiles = flp_ceil_div(backward_columns(c), planner->dz_columns);
  int64_t units = flp_ceil_div(backward_rows(c), planner->dz_unit_rows) * flp_ceil_div(tiles, planner->dz_unit_tiles);
  return flp_launch_clusters(call, call->plan->spec.lora_rank ? FLP_ENTRY_dz_lora_map : FLP_ENTRY_dz_map, &p, units);
}

static flp_status encode_for_products(const flp_call *call, matrices m, flp_products_map_given *p) {
  flp_matrix *const each[] = {&m.dz, &m.weight, &m.hidden, &m.gathered};
  flp_abi_map *const maps[] = {&p->dz_map, &p->weight_map, &p->hidden_map, &p->gathered_map};
  for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
    if (each[i] != &m.dz) each[i]->columns = p->depth; /* of two terms the first */
    set_box(each[i], flp_box_columns(call), flp_box_columns(call));
    FLP_TRY(flp_map_encode(call, each[i], maps[i]));
  }
  return FLP_OK;
}

/* to: NULL if the product is not wanted */
static int32_t flags_of(const flp_call *call, const backward_sink *to, flp_dtype dtype) {
  if (!to) return 0;
  return (call->is_flat ? FLP_PRODUCT_IF_ANY : FLP_PRODUCT_WANTED) | (to->read_acc ? FLP_PRODUCT_READ_ACC : 0) |
         (to->write_acc ? FLP_PRODUCT_WRITE_ACC : 0) | (to->write_out ? FLP_PRODUCT_WRITE_OUT : 0) |
         (dtype == FLP_DTYPE_FP32 ? FLP_PRODUCT_OUT_F32 : 0);
}

/* first: hidden's, second: weight's; NULL if not wanted */
static flp_products_map_given products_of(const flp_call *call, const backward_chunk *c, int64_t depth,
                                          const backward_sink *first, flp_dtype first_dtype,
                                          const backward_sink *second, flp_dtype second_dtype) {
#define GIVE_SINK(name, to)                                                                \
  .name##_acc = (to)->acc, .name##_acc_stride = (to)->acc_stride, .name##_out = (to)->out, \
  .name##_out_stride = (to)->out_stride
  static const backward_sink nowhere;
  const backward_sink *h = first ? first : &nowhere, *w = second ? second : &nowhere;
  return (flp_products_map_given){
      .depth = (int32_t)depth,
      .n = (int32_t)call->args->n,
      FLP_GIVE_ROWS(c->rows),
      FLP_GIVE_COLUMNS(c->columns),
      GIVE_SINK(hidden, h),
      .hidden_flags = flags_of(call, first, first_dtype),
      GIVE_SINK(weight, w),
      .weight_flags = flags_of(call, second, second_dtype),
  };
#undef GIVE_SINK
}

flp_status backward_launch_products_map(const flp_call *call, const backward_chunk *c, const backward_sink *hidden,
                                        const backward_sink *weight) {
  const flp_spec *spec = &call->plan->spec;
  const flp_planner *planner = &call->plan->planner;
  flp_products_map_given p =
      products_of(call, c, spec->hidden, hidden, spec->grad_hidden_dtype, weight, spec->grad_weight_dtype);
  matrices m = matrices_of(call, c);
  p.factor = c->factor;
  if (c->factor) m.hidden = m.gathered;
  FLP_TRY(encode_for_products(call, m, &p));
  int64_t panels = hidden ? 2 * flp_ceil_div(backward_rows(c), planner->hidden_rows) : 0; /* whose tiles may be halves */
  if (weight) panels += flp_ceil_div(backward_columns(c), planner->weight_rows);
  return flp_launch_clusters(call, FLP_ENTRY_products_map, &p,
                             panels * flp_ceil_div(spec->hidden, planner->hidden_columns));
}

flp_status backward_launch_lora_products_map(const flp_call *call, const backward_chunk *c, CUdeviceptr u,
                                             const backward_sink *sum, const backward_sink *b) {
  const flp_spec *spec = &call->plan->spec;
  const flp_planner *planner = &call->plan->planner;
  flp_products_map_given p = products_of(call, c, spec->lora_rank, sum, FLP_DTYPE_FP32, b, spec->grad_lora_dtype);
  matrices m = matrices_of(call, c);
  m.weight = flp_matrix_lora_b(call, c->columns);
  m.hidden = flp_matrix_lora_u(call, c->rows);
  m.hidden.start = u;
  m.gathered = m.hidden;
  p.factor = c->factor;
  FLP_TRY(encode_for_products(call, m, &p));
  int64_t panels = sum ? flp_ceil_div(backward_rows(c), planner->lora_rows) : 0;
  if (b) panels += flp_ceil_div(backward_columns(c), planner->lora_rows);
  return flp_launch_clusters(call, FLP_ENTRY_lora_products_map, &p,
                             panels * flp_ceil_div(spec->lora_rank, planner->lora_columns));
}
