/* tail.c: tail mode (abi.h): forward lists the columns of each row that carry its mass, backward reads those and leaves
 * the others out, and recomputes rows whose tail counts.
 *
 * Forward, by chunk of rows: tail_target, emit_floor, forward with part emit; behind the caller's outputs
 * combine for the partial that backward reads. Backward: record, emit_sort, tail_rows, tail_choose, tail_entries; then a
 * whole backward pass in recompute mode, for which only rows that lists do not serve have an upstream gradient, writes every
 * gradient (backward.c); then tail_mean, the lists' rows of grad_hidden are written, and what lists add to grad_weight and
 * grad_bias is added.
 * Invariants: what is kept is the caller's (args.saved) or the step's, by forward's active rows; which rows are
 * recomputed only the device knows; a bad row counts once. */
#include <math.h>

#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/launch/backward.h"

/* Columns are kept from a probability of tail·2^-9.5 on. A lower one costs lists more entries than it saves rows from being
 * recomputed (one such row costs what some 1700 entries do). They are listed from a little below that of the bound of the
 * row's LSE on; where the bound is below the LSE, bins give away what is listed too low. */
static const float listed_below_tail = 9.75f, kept_below_tail = 9.5f;

static float log2_below_tail(const flp_call *call, float below) {
  return log2f(call->plan->spec.tail) - below;
}

/* ---- what passes from forward to backward ---- */

static flp_emit_sink lists_of(const flp_call *call) {
  const flp_args *a = call->args;
  const flp_spec *spec = &call->plan->spec;
  flp_tail_saved at = flp_planner_tail_saved(spec, a->n);
  CUdeviceptr start = flp_call_pointer(a->saved);
  return (flp_emit_sink){.floor = start + at.floor,
                         .gate = start + at.gate,
                         .count = start + at.count,
                         .entry = start + at.entry,
                         .capacity = flp_planner_tail_columns(spec),
                         .log2_threshold = log2_below_tail(call, listed_below_tail)};
}

static CUdeviceptr partials_of(const flp_call *call) {
  const flp_args *a = call->args;
  return flp_call_pointer(a->saved) + flp_planner_tail_saved(&call->plan->spec, a->n).partial;
}

/* ---- forward ---- */

/* A shard may lack the target: then nothing bounds its rows from below but a policy near this one, or scores. */
static flp_status launch_floor(const flp_call *call, flp_row_range rows, const flp_emit_sink *lists) {
  const flp_args *a = call->args;
  int needs_scores = !flp_args_are_whole(a) && !a->old_lse;
  flp_column_range columns = {0, flp_min(a->vocab_valid, FLP_LEAF_COLUMNS)};
  if (needs_scores) {
    flp_own_call own;
    FLP_TRY(flp_launch_slice(call, 0, columns.begin, columns.end, &own));
    own.call.ahead = (flp_ahead){.rows = 0};
    FLP_TRY(flp_launch_scores(&own.call, rows, columns, (flp_sinks){0}));
  }
  /* behind those scores, which write the target's place too */
  FLP_TRY(flp_launch_own_scores(call, FLP_ENTRY_tail_target, rows));
  flp_emit_floor_given p = {
      .part = needs_scores ? flp_call_region(call, FLP_REGION_part) : 0,
      .capacity = call->scheme.chunk_rows,
      .zy = flp_call_region(call, FLP_REGION_zy),
      .old_logprob = a->pass == FLP_PASS_STEP ? flp_call_pointer(a->old_logprob) : 0,
      FLP_GIVE_ROWS(rows),
      .log2_threshold = lists->log2_threshold,
      .floor = lists->floor,
      .emit_gate = lists->gate,
      .emit_count = lists->count,
  };
  return flp_launch_over(call, FLP_ENTRY_emit_floor, &p, rows.end - rows.begin, 1);
}

flp_status flp_launch_tail(const flp_call *call, flp_row_range rows) {
  flp_emit_sink lists = lists_of(call);
  if (!call->flat) FLP_TRY(launch_floor(call, rows, &lists));
  return flp_launch_columns(call, rows, (flp_sinks){.emit = &lists});
}

flp_status flp_launch_tail_kept(const flp_call *call, flp_row_range rows) {
  return flp_launch_fold(call, rows, partials_of(call));
}

/* ---- which order a step takes ---- */

/* A row is flat where more than four times the tail of its mass seems to be in columns that are as the first ones:
 * lists would leave out more than they may. */
static const float log2_flat = 2.0f;

static flp_status launch_flat_rows(const flp_call *call, flp_row_range rows, const flp_emit_sink *lists) {
  flp_column_range sample = {0, FLP_REFERENCE_COLUMNS};
  float log2_part = log2f((float)call->args->vocab_valid / FLP_REFERENCE_COLUMNS);
  flp_flat_rows_given p = {
      .capacity = call->scheme.chunk_rows,
      .floor = lists->floor,
      .above = log2_below_tail(call, -log2_flat) - lists->log2_threshold - log2_part,
      FLP_GIVE_ROWS(rows),
      .flat = call->flat,
  };
  FLP_TRY(flp_launch_scores(call, rows, sample, (flp_sinks){0}));
  return flp_launch_over(call, FLP_ENTRY_flat_rows, &p, rows.end - rows.begin, 1);
}

flp_status flp_launch_flat_gate(const flp_call *call, int decides) {
  flp_flat_gate_given p = {.flat = call->flat,
                           .wants = call->is_flat,
                           .decides = decides,
                           .report = call->is_flat ? flp_call_pointer(call->args->tail_report) : 0};
  return flp_launch(call, FLP_ENTRY_flat_gate, &p, 1);
}

flp_status flp_launch_flat(const flp_call *call) {
  flp_emit_sink lists = lists_of(call);
  int64_t n = call->args->n, chunk = call->scheme.chunk_rows;
  FLP_TRY(flp_launch_set_bytes(call, call->flat, 2 * sizeof(int32_t), 0));
  for (int64_t begin = 0; begin < n; begin += chunk) {
    flp_row_range rows = {begin, flp_min(begin + chunk, n)};
    FLP_TRY(flp_launch_gather(call, rows));
    FLP_TRY(launch_floor(call, rows, &lists));
    FLP_TRY(launch_flat_rows(call, rows, &lists));
  }
  return flp_launch_flat_gate(call, 1);
}

/* ---- backward: which rows lists serve, and their entries ---- */

/* tail_entries is given the same. */
FLP_GIVEN_BEGINS(tail_entries, tail_rows, FLP_TAIL_LIST_PARAMS)

/* Into the workspace: what forward kept may be read by other calls at the same time. */
static flp_status launch_sort(const flp_call *call) {
  flp_emit_sink lists = lists_of(call);
  flp_emit_sort_given p = {
      .partial = partials_of(call),
      .log2_threshold = lists.log2_threshold,
      .floor = lists.floor,
      .emit_count = lists.count,
      .emit_entry = lists.entry,
      .emit_capacity = lists.capacity,
  };
  return flp_launch(call, FLP_ENTRY_emit_sort, &p, call->args->n);
}

static flp_tail_rows_given list_params(const flp_call *call) {
  return (flp_tail_rows_given){
      .emit_capacity = flp_planner_tail_columns(&call->plan->spec),
      .log2_threshold = log2_below_tail(call, kept_below_tail),
      .partial = partials_of(call),
  };
}

/* NaN in rows that tail_choose leaves alone: bad ones have an upstream gradient then, and are bad when rows are
 * recomputed, too. */
static flp_status unset_upstream(const flp_call *call) {
  uint64_t bytes = (uint64_t)call->args->n * sizeof(float);
  FLP_TRY(flp_launch_set_bytes(call, flp_call_region(call, FLP_REGION_tail_logprob), bytes, 0xff));
  return flp_launch_set_bytes(call, flp_call_region(call, FLP_REGION_tail_entropy), bytes, 0xff);
}

static flp_status launch_choose(const flp_call *call) {
  const flp_args *a = call->args;
  flp_tail_choose_given p = {
      .tail = call->plan->spec.tail,
      .list_capacity = flp_planner_tail_entries(a->n),
      .report = flp_call_pointer(a->tail_report),
  };
  FLP_TRY(unset_upstream(call));
  return flp_launch(call, FLP_ENTRY_tail_choose, &p, 1);
}

flp_status flp_launch_tail_lists(const flp_call *call) {
  int64_t n = call->args->n;
  flp_tail_rows_given p = list_params(call);
  FLP_TRY(backward_launch_record(call, (flp_row_range){0, n}));
  FLP_TRY(launch_sort(call));
  FLP_TRY(flp_launch_over(call, FLP_ENTRY_tail_rows, &p, n, 32));
  FLP_TRY(launch_choose(call));
  return flp_launch_over(call, FLP_ENTRY_tail_entries, &p, n, 32);
}

/* ---- backward: rows that are recomputed, and the sums of lists ---- */

static const float *upstream(const flp_call *call, const float *given, flp_region region) {
  return given ? (const float *)(uintptr_t)flp_call_region(call, region) : NULL;
}

flp_status flp_tail_dense(const flp_call *call, flp_own_call *dense) {
  flp_args *args = &dense->args;
  flp_call_copy(call, dense);
  args->workspace = (void *)(uintptr_t)(flp_call_pointer(args->workspace) + call->scheme.passes);
  args->workspace_bytes -= call->scheme.passes;
  args->grad_logprob = upstream(call, args->grad_logprob, FLP_REGION_tail_logprob);
  args->grad_entropy = upstream(call, args->grad_entropy, FLP_REGION_tail_entropy);
  args->saved = NULL;
  args->saved_bytes = 0;
  args->tail_report = NULL;
  dense->call.lora_a_acc = flp_call_region(call, FLP_REGION_lora_a_acc);
  dense->call.error_word = call->plan->error_word + sizeof(int32_t); /* bad rows have been counted */
  return flp_call_pick(&dense->call, FLP_PASS_DENSE);
}

/* What rows of the weight have in common, for list_hidden. */
static flp_status launch_mean(const flp_call *call) {
  const flp_spec *spec = &call->plan->spec;
  int64_t vector = spec->alignment >= 16 ? 16 / (int64_t)flp_dtype_bytes(spec->dtype) : 1;
  return flp_launch(call, FLP_ENTRY_tail_mean, NULL, flp_ceil_div(spec->hidden, vector * FLP_TAIL_VECTORS));
}

flp_status flp_launch_tail_sums(const flp_call *call) {
  FLP_TRY(flp_launch_lora_project(call));
  if (call->plan->spec.grads & FLP_GRAD_HIDDEN) FLP_TRY(launch_mean(call));
  FLP_TRY(flp_launch_listed_hidden(call, flp_call_region(call, FLP_REGION_tail_offsets)));
  if (!flp_planner_orders_lists(&call->plan->spec, 1)) return FLP_OK;
  CUdeviceptr total = flp_call_region(call, FLP_REGION_tail_total);
  return flp_launch_listed_head(call, (flp_entries){flp_planner_tail_entries(call->args->n), total}, 1);
}

flp_status flp_launch_exact_report(const flp_call *call) {
  return flp_launch_set_bytes(call, flp_call_pointer(call->args->tail_report), FLP_TAIL_REPORT_BYTES, 0);
}
