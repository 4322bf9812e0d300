/* scores.c: scores of a chunk of rows, folded where they are made: forward or a sibling of it, portable or through tensor
 * maps, then combine. */
#include "runtime/base/operands.h"
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/launch/launch.h"

/* What forward is given are the first fields of what its siblings are. */
typedef union given {
  flp_forward_given forward;
  flp_forward_keep_given keep;
  flp_forward_emit_given emit;
  flp_forward_targets_given targets;
  flp_forward_top_given top;
  flp_forward_columns_given columns;
  flp_forward_lora_given lora;
} given;
typedef union given_map {
  flp_forward_map_given forward;
  flp_forward_keep_map_given keep;
  flp_forward_emit_map_given emit;
  flp_forward_targets_map_given targets;
  flp_forward_top_map_given top;
  flp_forward_columns_map_given columns;
  flp_forward_lora_map_given lora;
} given_map;
#define SAME(name, of, other) \
  _Static_assert(offsetof(flp_##of##_given, name) == offsetof(flp_##other##_given, name), #name)
#define SAME_PLACE(kind, name)                                                             \
  FLP_GIVEN_##kind(SAME(name, forward, forward_keep); SAME(name, forward, forward_emit);   \
                   SAME(name, forward, forward_targets); SAME(name, forward, forward_top); \
                   SAME(name, forward, forward_columns); SAME(name, forward, forward_lora);)
FLP_FORWARD_PARAMS(SAME_PLACE)
#undef SAME_PLACE
#define SAME_PLACE(kind, name)                                                                             \
  FLP_GIVEN_##kind(SAME(name, forward_map, forward_keep_map); SAME(name, forward_map, forward_emit_map);   \
                   SAME(name, forward_map, forward_targets_map); SAME(name, forward_map, forward_top_map); \
                   SAME(name, forward_map, forward_columns_map); SAME(name, forward_map, forward_lora_map);)
FLP_FORWARD_MAP_PARAMS(SAME_PLACE)
#undef SAME_PLACE
#undef SAME

/* What a launch makes beside partials; NULL: nothing. */
typedef struct sinks {
  const flp_keep_sink *keep;
  const flp_emit_sink *emit;
  const flp_top_sink *top;
} sinks;

static flp_kernel_kind kind_for(const flp_call *call, const sinks *to) {
  if (flp_call_has_targets(call)) return FLP_KERNEL_FORWARD_TARGETS;
  if (flp_weight_is_sliced(&call->plan->spec)) return FLP_KERNEL_FORWARD_COLUMNS;
  if (call->plan->spec.lora_rank) return FLP_KERNEL_FORWARD_LORA;
  return to->keep   ? FLP_KERNEL_KEEP
         : to->emit ? FLP_KERNEL_EMIT
         : to->top  ? FLP_KERNEL_FORWARD_TOP
                    : FLP_KERNEL_FORWARD;
}

static flp_status encode_maps(const flp_call *call, flp_row_range rows, flp_column_range columns,
                              const flp_kernel_desc *desc, flp_forward_map_given *p) {
  flp_matrix hidden = flp_matrix_hidden(call, 0, call->args->n);
  flp_matrix gathered = flp_matrix_gathered(call, 0, rows.end - rows.begin);
  flp_matrix weight = flp_matrix_weight(call, columns.begin, columns.end);
  hidden.box_columns = gathered.box_columns = weight.box_columns = desc->tile_depth;
  hidden.box_rows = gathered.box_rows = desc->tile_rows;
  weight.box_rows = desc->tile_columns / (uint32_t)flp_max(desc->cluster, 1);
  FLP_TRY(flp_map_encode(call, &hidden, &p->hidden_map));
  FLP_TRY(flp_map_encode(call, &gathered, &p->gathered_map));
  return flp_map_encode(call, &weight, &p->weight_map);
}

static flp_status encode_lora(const flp_call *call, flp_row_range rows, flp_column_range columns,
                              const flp_kernel_desc *desc, flp_forward_lora_map_given *p) {
  flp_matrix u = flp_matrix_lora_u(call, rows.begin, rows.end);
  flp_matrix b = flp_matrix_lora_b(call, columns.begin, columns.end);
  u.box_columns = b.box_columns = desc->tile_depth;
  u.box_rows = desc->tile_rows;
  b.box_rows = desc->tile_columns / (uint32_t)flp_max(desc->cluster, 1);
  p->rank = call->plan->spec.lora_rank;
  FLP_TRY(flp_map_encode(call, &u, &p->lora_u_map));
  return flp_map_encode(call, &b, &p->lora_b_map);
}

static flp_status encode_kept(const flp_call *call, flp_row_range rows, flp_column_range columns,
                              const flp_keep_sink *keep, flp_abi_map *out) {
  flp_matrix kept = {.name = "saved exponentials",
                     .start = keep->kept,
                     .rows = rows.end - rows.begin,
                     .columns = columns.end - columns.begin,
                     .stride = keep->stride,
                     .box_columns = flp_box_columns(call),
                     .box_rows = FLP_DZ_BOX_ROWS};
  return flp_map_encode(call, &kept, out);
}

/* The bias of the first of these columns. */
static CUdeviceptr bias_of(const flp_call *call, flp_column_range columns) {
  CUdeviceptr bias = flp_call_pointer(call->args->bias);
  return bias ? bias + (uint64_t)columns.begin * flp_dtype_bytes(call->plan->spec.dtype) : 0;
}

static flp_status launch_mapped(const flp_call *call, flp_row_range rows, flp_column_range columns, const sinks *to) {
  const flp_args *a = call->args;
  const flp_kernel_desc *desc = flp_call_desc(call, kind_for(call, to));
  given_map p = {.forward = {
                     .bias = bias_of(call, columns),
                     .cap_in = call->cap_in,
                     .depth = (int32_t)flp_call_depth(call),
                     .vocab_valid = (int32_t)(columns.end - columns.begin),
                     .n = (int32_t)a->n,
                     .row_begin = (int32_t)rows.begin,
                     .row_end = (int32_t)rows.end,
                     .capacity = call->scheme.chunk_rows,
                 }};
  FLP_TRY(encode_maps(call, rows, columns, desc, &p.forward));
  int64_t panel_rows = (int64_t)desc->tile_rows * flp_max(desc->cluster, 1);
  int64_t leaves =
      flp_ceil_div(rows.end - rows.begin, panel_rows) * flp_ceil_div(columns.end - columns.begin, FLP_LEAF_COLUMNS);
  if (call->plan->spec.lora_rank) {
    FLP_TRY(encode_lora(call, rows, columns, desc, &p.lora));
    return flp_launch_clusters(call, FLP_ENTRY_forward_lora_map, &p.lora, leaves);
  }
  if (to->emit) {
    p.emit.floor = to->emit->floor;
    p.emit.emit_gate = to->emit->gate;
    p.emit.emit_count = to->emit->count;
    p.emit.emit_entry = to->emit->entry;
    p.emit.emit_capacity = to->emit->capacity;
    p.emit.log2_threshold = to->emit->log2_threshold;
    return flp_launch_clusters(call, FLP_ENTRY_forward_emit_map, &p.emit, leaves);
  }
  if (flp_call_has_targets(call)) {
    p.targets.row_of = flp_call_region(call, FLP_REGION_index);
    p.targets.score = flp_targets_scores(call);
    p.targets.targets = call->plan->spec.targets;
    p.targets.block_words = (int32_t)flp_planner_target_words(call->plan->spec.vocab);
    return flp_launch_clusters(call, FLP_ENTRY_forward_targets_map, &p.targets, leaves);
  }
  if (to->top) {
    p.top.column_begin = (int32_t)columns.begin;
    p.top.top_from = (int32_t)to->top->from;
    p.top.top_places = flp_planner_top_places(&call->plan->spec);
    return flp_launch_clusters(call, FLP_ENTRY_forward_top_map, &p.top, leaves);
  }
  if (desc->key.kind == FLP_KERNEL_FORWARD_COLUMNS) {
    p.columns.column_begin = (int32_t)columns.begin;
    p.columns.ahead_source = call->ahead.source;
    p.columns.ahead_stride = call->ahead.stride;
    p.columns.ahead_out = call->ahead.out;
    p.columns.ahead_rows = (int32_t)call->ahead.rows;
    p.columns.ahead_depth = (int32_t)call->plan->spec.hidden;
    return flp_launch_clusters(call, FLP_ENTRY_forward_columns_map, &p.columns, leaves);
  }
  if (!to->keep) return flp_launch_clusters(call, FLP_ENTRY_forward_map, &p.forward, leaves);
  p.keep.column_begin = (int32_t)columns.begin;
  p.keep.reference = to->keep->reference;
  p.keep.slope = to->keep->expands ? 0 : 1;
  FLP_TRY(encode_kept(call, rows, columns, to->keep, &p.keep.kept_map));
  return flp_launch_clusters(call, FLP_ENTRY_forward_keep_map, &p.keep, leaves);
}

static flp_status launch_portable(const flp_call *call, flp_row_range rows, flp_column_range columns, const sinks *to) {
  const flp_args *a = call->args;
  const flp_kernel_desc *desc = flp_call_desc(call, kind_for(call, to));
  int64_t panels = flp_ceil_div(rows.end - rows.begin, desc->tile_rows);
  int64_t groups = flp_ceil_div(columns.end - columns.begin, desc->unit_columns);
  given p = {.forward = {
                 .hidden = flp_call_pointer(a->hidden),
                 .hidden_stride = a->hidden_stride,
                 .weight = flp_call_pointer(a->weight) +
                           (uint64_t)(columns.begin * a->weight_stride) * flp_dtype_bytes(call->plan->spec.dtype),
                 .weight_stride = a->weight_stride,
                 .bias = bias_of(call, columns),
                 .cap_in = call->cap_in,
                 .depth = (int32_t)flp_call_depth(call),
                 .vocab_valid = (int32_t)(columns.end - columns.begin),
                 .row_begin = (int32_t)rows.begin,
                 .row_end = (int32_t)rows.end,
                 .bands = (int32_t)panels,
                 .groups = (int32_t)groups,
                 .capacity = call->scheme.chunk_rows,
             }};
  if (call->plan->spec.lora_rank) {
    p.lora.lora_b = flp_lora_b(call, columns.begin);
    p.lora.lora_b_stride = a->lora_b_stride;
    p.lora.rank = call->plan->spec.lora_rank;
    return flp_launch(call, FLP_ENTRY_forward_lora, &p.lora, panels * groups);
  }
  if (to->emit) {
    p.emit.floor = to->emit->floor;
    p.emit.emit_gate = to->emit->gate;
    p.emit.emit_count = to->emit->count;
    p.emit.emit_entry = to->emit->entry;
    p.emit.emit_capacity = to->emit->capacity;
    p.emit.log2_threshold = to->emit->log2_threshold;
    return flp_launch(call, FLP_ENTRY_forward_emit, &p.emit, panels * groups);
  }
  if (flp_call_has_targets(call)) {
    p.targets.row_of = flp_call_region(call, FLP_REGION_index);
    p.targets.score = flp_targets_scores(call);
    p.targets.targets = call->plan->spec.targets;
    p.targets.block_words = (int32_t)flp_planner_target_words(call->plan->spec.vocab);
    return flp_launch(call, FLP_ENTRY_forward_targets, &p.targets, panels * groups);
  }
  if (to->top) {
    p.top.column_begin = (int32_t)columns.begin;
    p.top.top_from = (int32_t)to->top->from;
    p.top.top_places = flp_planner_top_places(&call->plan->spec);
    return flp_launch(call, FLP_ENTRY_forward_top, &p.top, panels * groups);
  }
  if (desc->key.kind == FLP_KERNEL_FORWARD_COLUMNS) {
    p.columns.column_begin = (int32_t)columns.begin;
    return flp_launch(call, FLP_ENTRY_forward_columns, &p.columns, panels * groups);
  }
  if (!to->keep) return flp_launch(call, FLP_ENTRY_forward, &p.forward, panels * groups);
  p.keep.column_begin = (int32_t)columns.begin;
  p.keep.reference = to->keep->reference;
  p.keep.slope = to->keep->expands ? 0 : 1;
  p.keep.kept = to->keep->kept;
  p.keep.kept_stride = to->keep->stride;
  return flp_launch(call, FLP_ENTRY_forward_keep, &p.keep, panels * groups);
}

/* top_target is given the same. */
#define SAME(kind, name) \
  FLP_GIVEN_##kind(      \
      _Static_assert(offsetof(flp_tail_target_given, name) == offsetof(flp_top_target_given, name), #name);)
FLP_TAIL_TARGET_PARAMS(SAME)
#undef SAME

flp_status flp_launch_own_scores(const flp_call *call, flp_entry_id entry, flp_row_range rows, int64_t rows_of_a_warp) {
  const flp_args *a = call->args;
  flp_tail_target_given p = {
      .hidden = flp_call_pointer(a->hidden),
      .hidden_stride = a->hidden_stride,
      .weight = flp_call_pointer(a->weight),
      .weight_stride = a->weight_stride,
      .bias = flp_call_pointer(a->bias),
      .depth = (int32_t)call->plan->spec.hidden,
      .row_begin = (int32_t)rows.begin,
      .row_end = (int32_t)rows.end,
  };
  return flp_launch_over(call, entry, &p, flp_ceil_div(rows.end - rows.begin, rows_of_a_warp), 32);
}

static flp_status launch_to(const flp_call *call, flp_row_range rows, flp_column_range columns, sinks to) {
  return call->plan->planner.is_mapped ? launch_mapped(call, rows, columns, &to)
                                       : launch_portable(call, rows, columns, &to);
}

flp_status flp_launch_scores(const flp_call *call, flp_row_range rows, flp_column_range columns,
                             const flp_keep_sink *keep) {
  return launch_to(call, rows, columns, (sinks){.keep = keep});
}

flp_status flp_launch_emit(const flp_call *call, flp_row_range rows, const flp_emit_sink *emit) {
  return launch_to(call, rows, (flp_column_range){0, call->args->vocab_valid}, (sinks){.emit = emit});
}

flp_status flp_launch_contenders(const flp_call *call, flp_row_range rows, flp_column_range columns,
                                 const flp_top_sink *top) {
  return launch_to(call, rows, columns, (sinks){.top = top});
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
      .row_begin = (int32_t)rows.begin,
      .row_end = (int32_t)rows.end,
      .cap_in = call->cap_in,
      .capped = call->capped,
      .logprob = partial ? 0 : flp_call_pointer(a->logprob),
      .entropy = partial ? 0 : flp_call_pointer(a->entropy),
      .stats = partial ? 0 : flp_call_stats(call),
      .partial = partial,
      .error_word = call->error_word,
  };
  return flp_launch_over(call, FLP_ENTRY_combine, &p, rows.end - rows.begin, FLP_COMBINE_LANES);
}
