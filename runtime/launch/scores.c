/* scores.c: scores of a chunk of rows, folded where they are made: forward with the parts that the launch wants, a row
 * each, by pointers or through tensor maps; then combine. */
#include "runtime/base/operands.h"
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/launch/launch.h"

/* What forward with all parts is given, in either form: it takes what its parameters (abi.h) name. */
typedef struct values {
  uint64_t weight, bias, lora_b, floor, emit_gate, emit_count, emit_entry, row_of, score, raw_rows, raw_scores;
  uint64_t reference, kept, ahead_source, ahead_out;
  int64_t weight_stride, lora_b_stride, kept_stride, ahead_stride, capacity;
  int32_t depth, vocab_valid, n, row_begin, row_end, bands, groups, column_begin, top_from, columns, emit_capacity,
      ahead_rows, ahead_depth, box_rows;
  float slope, log2_threshold;
  flp_abi_map hidden_map, gathered_map, weight_map, lora_u_map, lora_b_map, kept_map;
} values;

/* One launch: of which rows and columns, by which kernel, to where. */
typedef struct job {
  const flp_call *call;
  flp_row_range rows;
  flp_column_range columns;
  const flp_kernel_desc *desc;
  flp_sinks to;
  uint32_t box_rows; /* of tensor maps of rows */
} job;

/* ---- what parts are given ---- */

static flp_status fill_keep(const job *j, values *v) {
  const flp_keep_sink *keep = j->to.keep;
  v->reference = keep->reference;
  v->slope = keep->expands ? 0 : 1;
  v->kept = keep->kept;
  v->kept_stride = keep->stride;
  if (!j->call->plan->planner.is_mapped) return FLP_OK;
  flp_matrix kept = {.name = "saved exponentials",
                     .start = keep->kept,
                     .rows = j->rows.end - j->rows.begin,
                     .columns = j->columns.end - j->columns.begin,
                     .stride = keep->stride,
                     .box_columns = flp_box_columns(j->call),
                     .box_rows = FLP_DZ_BOX_ROWS};
  return flp_map_encode(j->call, &kept, &v->kept_map);
}

static flp_status fill_emit(const job *j, values *v) {
  const flp_emit_sink *emit = j->to.emit;
  v->floor = emit->floor;
  v->emit_gate = emit->gate;
  v->emit_count = emit->count;
  v->emit_entry = emit->entry;
  v->emit_capacity = emit->capacity;
  v->log2_threshold = emit->log2_threshold;
  v->columns = (int32_t)j->call->args->vocab_valid;
  return FLP_OK;
}

static flp_status fill_targets(const job *j, values *v) {
  v->row_of = flp_call_region(j->call, FLP_REGION_index);
  v->score = flp_targets_scores(j->call);
  return FLP_OK;
}

static flp_status fill_top(const job *j, values *v) {
  v->top_from = (int32_t)j->to.top_from;
  return FLP_OK;
}

static flp_status fill_columns(const job *j, values *v) {
  const flp_ahead *ahead = &j->call->ahead;
  v->ahead_source = ahead->source;
  v->ahead_stride = ahead->stride;
  v->ahead_out = ahead->out;
  v->ahead_rows = (int32_t)ahead->rows;
  v->ahead_depth = (int32_t)j->call->plan->spec.hidden;
  return FLP_OK;
}

static flp_status fill_raw(const job *j, values *v) {
  CUdeviceptr out = flp_call_pointer(j->call->args->raw_scores);
  v->raw_rows = flp_call_region(j->call, FLP_REGION_index);
  v->raw_scores = out ? out + (uint64_t)j->columns.begin * sizeof(float) : 0;
  return FLP_OK;
}

static flp_status fill_lora(const job *j, values *v) {
  const flp_call *call = j->call;
  v->lora_b = flp_lora_b(call, j->columns.begin);
  v->lora_b_stride = call->args->lora_b_stride;
  if (!call->plan->planner.is_mapped) return FLP_OK;
  FLP_TRY(flp_map_encode_rows(call, j->desc, j->box_rows, flp_matrix_lora_u(call, j->rows), &v->lora_u_map));
  return flp_map_encode_columns(call, j->desc, flp_matrix_lora_b(call, j->columns), &v->lora_b_map);
}

static flp_status fill_short(const job *j, values *v) {
  v->box_rows = (int32_t)j->box_rows;
  return FLP_OK;
}

static flp_status (*const fills[FLP_PART_BITS])(const job *j, values *v) = {
    [FLP_PART_BIT_KEEP] = fill_keep, [FLP_PART_BIT_EMIT] = fill_emit,       [FLP_PART_BIT_TARGETS] = fill_targets,
    [FLP_PART_BIT_TOP] = fill_top,   [FLP_PART_BIT_COLUMNS] = fill_columns, [FLP_PART_BIT_RAW] = fill_raw,
    [FLP_PART_BIT_LORA] = fill_lora, [FLP_PART_BIT_SHORT] = fill_short};

/* ---- what all have ---- */

static unsigned parts_for(const flp_call *call, const flp_sinks *to) {
  return flp_kernel_spec_parts(&call->plan->spec) | (to->keep ? FLP_PART_KEEP : 0u) | (to->emit ? FLP_PART_EMIT : 0u) |
         (to->top ? FLP_PART_TOP : 0u);
}

static flp_status encode_maps(const job *j, values *v) {
  const flp_call *call = j->call;
  flp_row_range all = {0, call->args->n};
  flp_matrix gathered = flp_matrix_gathered(call, 0, j->rows.end - j->rows.begin);
  FLP_TRY(flp_map_encode_rows(call, j->desc, j->box_rows, flp_matrix_hidden(call, all), &v->hidden_map));
  FLP_TRY(flp_map_encode_rows(call, j->desc, j->box_rows, gathered, &v->gathered_map));
  return flp_map_encode_columns(call, j->desc, flp_matrix_weight(call, j->columns), &v->weight_map);
}

static values values_of(const job *j) {
  const flp_args *a = j->call->args;
  uint64_t element = flp_dtype_bytes(j->call->plan->spec.dtype), first = (uint64_t)j->columns.begin;
  int64_t rows = j->rows.end - j->rows.begin, columns = j->columns.end - j->columns.begin;
  CUdeviceptr bias = flp_call_pointer(a->bias);
  return (values){
      .weight = flp_call_pointer(a->weight) + first * (uint64_t)a->weight_stride * element,
      .weight_stride = a->weight_stride,
      .bias = bias ? bias + first * element : 0,
      .depth = (int32_t)flp_call_depth(j->call),
      .vocab_valid = (int32_t)columns,
      .column_begin = (int32_t)first,
      .n = (int32_t)a->n,
      FLP_GIVE_ROWS(j->rows),
      .bands = (int32_t)flp_ceil_div(rows, j->desc->tile_rows),
      .groups = (int32_t)flp_ceil_div(columns, flp_max(j->desc->unit_columns, 1)),
      .capacity = j->call->scheme.chunk_rows,
  };
}

static const flp_kernel_desc *desc_of(const flp_call *call, unsigned parts) {
  return flp_call_desc(call, (flp_kernel_kind)(FLP_KERNEL_FORWARD + parts));
}

/* Part short where there is such a kernel and the rows are few enough for it. */
static unsigned part_short(const flp_call *call, unsigned parts, int64_t rows) {
  const flp_kernel_desc *desc = desc_of(call, parts | FLP_PART_SHORT);
  return desc && rows <= flp_kernel_panel_rows(desc) ? FLP_PART_SHORT : 0u;
}

static uint32_t box_rows_of(const flp_kernel_desc *desc, int64_t rows) {
  enum { SWIZZLED_ROWS = 8 };
  if (!(flp_kind_parts(desc->key.kind) & FLP_PART_SHORT)) return desc->tile_rows;
  int64_t each = rows <= desc->tile_rows ? rows : flp_ceil_div(rows, flp_max(desc->cluster, 1));
  return (uint32_t)flp_round_up(each, SWIZZLED_ROWS);
}

#define GIVE(kind, name) FLP_GIVEN_##kind(p.name = v->name;)
#define LAUNCH(entry, LIST, how)                                                                           \
  static flp_status launch_##entry(const flp_call *call, unsigned parts, const values *v, int64_t units) { \
    flp_##entry##_given p;                                                                                 \
    LIST(GIVE)                                                                                             \
    return how(call, (flp_entry_id)(FLP_ENTRY_##entry + parts), &p, units);                                \
  }
LAUNCH(forward, FLP_PARAMS_forward, flp_launch)
LAUNCH(forward_map, FLP_PARAMS_forward_map, flp_launch_clusters)
#undef LAUNCH
#undef GIVE

flp_status flp_launch_scores(const flp_call *call, flp_row_range rows, flp_column_range columns, flp_sinks to) {
  unsigned parts = parts_for(call, &to);
  int64_t count = rows.end - rows.begin;
  parts |= part_short(call, parts, count);
  const flp_kernel_desc *desc = desc_of(call, parts);
  job j = {call, rows, columns, desc, to, box_rows_of(desc, count)};
  values v = values_of(&j);
  int64_t leaves = flp_ceil_div(columns.end - columns.begin, FLP_LEAF_COLUMNS);
  for (int bit = 0; bit < FLP_PART_BITS; bit++)
    if (parts >> bit & 1 && fills[bit]) FLP_TRY(fills[bit](&j, &v));
  if (!call->plan->planner.is_mapped) return launch_forward(call, parts, &v, (int64_t)v.bands * v.groups);
  FLP_TRY(encode_maps(&j, &v));
  return launch_forward_map(call, parts, &v, flp_ceil_div(count, flp_kernel_panel_rows(desc)) * leaves);
}

flp_status flp_launch_own_scores(const flp_call *call, flp_entry_id entry, flp_row_range rows) {
  enum { ROWS_OF_A_WARP = 8 };
  flp_tail_target_given p = {FLP_GIVE_WHOLE_WEIGHT(call), FLP_GIVE_ROWS(rows)};
  return flp_launch_over(call, entry, &p, flp_ceil_div(rows.end - rows.begin, ROWS_OF_A_WARP), 32);
}

/* The kernel writes either a shard's partial or the outputs of a whole head. */
flp_status flp_launch_fold(const flp_call *call, flp_row_range rows, CUdeviceptr partial) {
  const flp_args *a = call->args;
  int64_t unit = call->plan->planner.unit_columns;
  int is_listed = call->scheme.mode == FLP_MODE_LISTED; /* one partial a row */
  flp_combine_given p = {
      .capacity = call->scheme.chunk_rows,
      .parts = is_listed ? 1 : (int32_t)flp_ceil_div(a->vocab_valid, unit),
      .fold = !is_listed && unit == FLP_LEAF_COLUMNS ? FLP_GROUP_LEAVES : 1,
      FLP_GIVE_ROWS(rows),
      .logprob = partial ? 0 : flp_call_pointer(a->logprob),
      .entropy = partial ? 0 : flp_call_pointer(a->entropy),
      .stats = partial ? 0 : flp_call_stats(call),
      .partial = partial,
  };
  return flp_launch_over(call, FLP_ENTRY_combine, &p, rows.end - rows.begin, FLP_COMBINE_LANES);
}
