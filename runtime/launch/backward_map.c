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
  int64_t rows = c->row_end - c->row_begin, columns = c->column_end - c->column_begin;
  return (matrices){.hidden = flp_matrix_hidden(call, c->row_begin, c->row_end),
                    .gathered = flp_matrix_gathered(call, c->row_begin - c->gathered_from, rows),
                    .weight = flp_matrix_weight(call, c->column_begin, c->column_end),
                    .dz = {.name = "dz", .start = c->dz, .rows = rows, .columns = columns, .stride = c->dz_stride}};
}

static void set_box(flp_matrix *m, uint32_t columns, uint32_t rows) {
  m->box_columns = columns;
  m->box_rows = rows;
}

static flp_status encode_for_dz(const flp_call *call, const backward_chunk *c, flp_dz_map_given *p) {
  const flp_kernel_desc *desc = flp_call_desc(call, FLP_KERNEL_DZ);
  matrices m = matrices_of(call, c);
  set_box(&m.hidden, desc->tile_depth, desc->tile_rows);
  set_box(&m.gathered, desc->tile_depth, desc->tile_rows);
  set_box(&m.weight, desc->tile_depth, desc->tile_columns / (uint32_t)flp_max(desc->cluster, 1));
  set_box(&m.dz, flp_box_columns(call), FLP_DZ_BOX_ROWS);
  FLP_TRY(flp_map_encode(call, &m.hidden, &p->hidden_map));
  FLP_TRY(flp_map_encode(call, &m.gathered, &p->gathered_map));
  FLP_TRY(flp_map_encode(call, &m.weight, &p->weight_map));
  return flp_map_encode(call, &m.dz, &p->dz_map);
}

flp_status backward_launch_dz_map(const flp_call *call, const backward_chunk *c) {
  const flp_args *a = call->args;
  const flp_planner *planner = &call->plan->planner;
  flp_dz_map_given p = {
      .bias = flp_call_pointer(a->bias),
      .count = c->count,
      .cap_in = call->cap_in,
      .depth = (int32_t)flp_call_depth(call),
      .n = (int32_t)a->n,
      .row_begin = (int32_t)c->row_begin,
      .row_end = (int32_t)c->row_end,
      .column_begin = (int32_t)c->column_begin,
      .column_end = (int32_t)c->column_end,
      .bias_part = c->bias_part,
  };
  FLP_TRY(encode_for_dz(call, c, &p));
  int64_t tiles = flp_ceil_div(c->column_end - c->column_begin, planner->dz_columns);
  int64_t units =
      flp_ceil_div(c->row_end - c->row_begin, planner->dz_unit_rows) * flp_ceil_div(tiles, planner->dz_unit_tiles);
  return flp_launch_clusters(call, FLP_ENTRY_dz_map, &p, units);
}

static flp_status encode_for_products(const flp_call *call, const backward_chunk *c, flp_products_map_given *p) {
  matrices m = matrices_of(call, c);
  if (c->factor) m.hidden = m.gathered;
  flp_matrix *const each[] = {&m.dz, &m.weight, &m.hidden, &m.gathered};
  flp_abi_map *const maps[] = {&p->dz_map, &p->weight_map, &p->hidden_map, &p->gathered_map};
  for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
    if (each[i] != &m.dz) each[i]->columns = call->plan->spec.hidden; /* of two terms the first */
    set_box(each[i], flp_box_columns(call), flp_box_columns(call));
    FLP_TRY(flp_map_encode(call, each[i], maps[i]));
  }
  return FLP_OK;
}

/* to: NULL if the product is not wanted */
static int32_t flags_of(const backward_sink *to, flp_dtype dtype) {
  if (!to) return 0;
  return FLP_PRODUCT_WANTED | (to->read_acc ? FLP_PRODUCT_READ_ACC : 0) | (to->write_acc ? FLP_PRODUCT_WRITE_ACC : 0) |
         (to->write_out ? FLP_PRODUCT_WRITE_OUT : 0) | (dtype == FLP_DTYPE_FP32 ? FLP_PRODUCT_OUT_F32 : 0);
}

flp_status backward_launch_products_map(const flp_call *call, const backward_chunk *c, const backward_sink *hidden,
                                        const backward_sink *weight) {
  static const backward_sink nowhere;
  const flp_spec *spec = &call->plan->spec;
  const flp_planner *planner = &call->plan->planner;
  const backward_sink *h = hidden ? hidden : &nowhere, *w = weight ? weight : &nowhere;
  flp_products_map_given p = {
      .factor = c->factor,
      .depth = (int32_t)spec->hidden,
      .n = (int32_t)call->args->n,
      .row_begin = (int32_t)c->row_begin,
      .row_end = (int32_t)c->row_end,
      .column_begin = (int32_t)c->column_begin,
      .column_end = (int32_t)c->column_end,
      .hidden_acc = h->acc,
      .hidden_acc_stride = h->acc_stride,
      .hidden_out = h->out,
      .hidden_out_stride = h->out_stride,
      .hidden_flags = flags_of(hidden, spec->grad_hidden_dtype),
      .weight_acc = w->acc,
      .weight_acc_stride = w->acc_stride,
      .weight_out = w->out,
      .weight_out_stride = w->out_stride,
      .weight_flags = flags_of(weight, spec->grad_weight_dtype),
  };
  FLP_TRY(encode_for_products(call, c, &p));
  int64_t panels = hidden ? flp_ceil_div(c->row_end - c->row_begin, planner->hidden_rows) : 0;
  if (weight) panels += flp_ceil_div(c->column_end - c->column_begin, planner->weight_rows);
  return flp_launch_clusters(call, FLP_ENTRY_products_map, &p,
                             panels * flp_ceil_div(spec->hidden, planner->hidden_columns));
}
