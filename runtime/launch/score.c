/* score.c: values of all scores of a row, which a step's loss reads: lse and mean_score (abi.h, templates/common/mean.lua).
 *
 * Stream mode: mean_sums and mean_fold of the weight before all chunks; score_rows behind each chunk's combine, score_record in
 * record's place, score_target behind keep_finish; behind the last record sums of hidden. Products add what follows to
 * gradients of 16 bits, score_head to the column sums of the last chunk; behind all products score_hidden and score_head to
 * gradients in fp32.
 * Recompute mode: the same around its passes. Where the mean takes a pass: mean.c.
 * Listed columns: score_record in record's place, and score_list behind their dz.
 * Invariant: arrays are the step's; where they are indexed by active row, it is the numbering of the backward pass. */
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/launch/launch.h"

flp_score_values flp_score_values_of(const flp_call *step) {
  const flp_planner *planner = &step->plan->planner;
  int is_plain = step->scheme.mode == FLP_MODE_STREAM && !planner->step_expands;
  return (flp_score_values){.lse = flp_call_region(step, FLP_REGION_score_lse),
                            .mean = flp_call_region(step, FLP_REGION_score_mean),
                            .grad_lse = flp_call_region(step, FLP_REGION_score_grad_lse),
                            .grad_mean = flp_call_region(step, FLP_REGION_score_grad_mean),
                            .any = flp_call_region(step, FLP_REGION_score_any),
                            .each = flp_call_region(step, FLP_REGION_score_each),
                            .stats = is_plain ? flp_call_region(step, FLP_REGION_score_stats) : 0,
                            .part = flp_call_region(step, FLP_REGION_mean_part),
                            .weight = flp_call_region(step, FLP_REGION_mean_weight),
                            .record = flp_call_region(step, FLP_REGION_mean_record),
                            .scale = flp_call_region(step, FLP_REGION_mean_scale),
                            .partial = flp_call_region(step, FLP_REGION_mean_partial)};
}

/* ---- sums over rows ---- */

static flp_status launch_sums(const flp_call *call, flp_mean_sums_given *sums, CUdeviceptr out) {
  const flp_spec *spec = &call->plan->spec;
  int64_t vector = spec->alignment >= 16 ? 16 / (int64_t)flp_dtype_bytes(spec->dtype) : 1, width = spec->hidden + 1;
  int64_t slab_rows = flp_planner_slab_rows(sums->rows), slabs = flp_ceil_div(sums->rows, slab_rows);
  sums->slab_rows = (int32_t)slab_rows;
  flp_mean_fold_given fold = {.part = sums->part, .parts = (int32_t)slabs, .width = (int32_t)width, .sums = out};
  FLP_TRY(flp_launch(call, FLP_ENTRY_mean_sums, sums, slabs * flp_ceil_div(spec->hidden, 256 * vector)));
  return flp_launch(call, FLP_ENTRY_mean_fold, &fold, flp_ceil_div(width, FLP_MEAN_FOLD_COLUMNS));
}

flp_status flp_launch_score_weight(const flp_call *call) {
  const flp_args *a = call->args;
  if (!call->scores || !call->scores->weight) return FLP_OK;
  flp_mean_sums_given p = {
      .matrix = flp_call_pointer(a->weight),
      .stride = a->weight_stride,
      .bias = flp_call_pointer(a->bias),
      .rows = (int32_t)a->vocab_valid,
      .part = call->scores->part,
  };
  return launch_sums(call, &p, call->scores->weight);
}

flp_status flp_launch_score_added(const flp_call *call, flp_score_values *values) {
  int64_t width = call->plan->spec.hidden + 1;
  uint64_t part = flp_planner_added_bytes(&call->plan->planner);
  if (!values->weight || !call->plan->spec.grads) return FLP_OK;
  values->added_hidden = flp_call_region(call, FLP_REGION_scale_pair) + FLP_MEAN_ADDED * sizeof(float);
  values->added_weight = values->added_hidden + part;
  values->each = values->added_weight + part;
  flp_mean_fold_given copy = {
      .part = values->weight, .parts = 1, .width = (int32_t)width, .sums = values->added_weight};
  return flp_launch(call, FLP_ENTRY_mean_fold, &copy, flp_ceil_div(width, FLP_MEAN_FOLD_COLUMNS));
}

/* ---- values ---- */

flp_status flp_launch_score_rows(const flp_call *call, flp_row_range rows) {
  flp_score_rows_given p = {
      .sums = call->scores->weight,
      FLP_GIVE_ROWS(rows),
      .partial = call->scores->partial,
      .lse = call->scores->lse,
      .mean_score = call->scores->mean,
  };
  return flp_launch_over(call, FLP_ENTRY_score_rows, &p, rows.end - rows.begin, 32);
}

/* ---- gradients ---- */

flp_status flp_launch_score_record(const flp_call *call, flp_row_range rows) {
  flp_score_record_given p = {
      .grad_lse = call->scores->grad_lse,
      .grad_mean = call->scores->grad_mean,
      FLP_GIVE_ROWS(rows),
      .each = call->scores->each,
      .each_record = call->scores->record,
      .each_scale = call->scores->scale,
      .kept_stats = call->scores->stats,
  };
  return flp_launch_over(call, FLP_ENTRY_score_record, &p, rows.end - rows.begin, 1);
}

flp_status flp_launch_score_target(const flp_call *call, flp_row_range rows, const flp_keep_sink *keep) {
  if (!call->scores->stats) return FLP_OK;
  flp_score_target_given p = {
      FLP_GIVE_ROWS(rows),
      .kept = keep->kept,
      .kept_stride = keep->stride,
  };
  return flp_launch_over(call, FLP_ENTRY_score_target, &p, rows.end - rows.begin, 1);
}

flp_status flp_launch_score_list(const flp_call *call) {
  if (!call->scores || !call->scores->partial) return FLP_OK;
  flp_score_list_given p = {.each = call->scores->each};
  return flp_launch_over(call, FLP_ENTRY_score_list, &p, call->args->n, 32);
}

flp_status flp_launch_score_nothing(const flp_call *call) {
  CUdeviceptr pair = flp_call_region(call, FLP_REGION_scale_pair);
  int is_added = call->scores && call->scores->weight;
  if (is_added || !call->plan->planner.step_scores) return FLP_OK;
  return flp_launch_set_bytes(call, pair, call->scheme.size[FLP_REGION_scale_pair], 0);
}

flp_status flp_launch_score_hidden_sums(const flp_call *call) {
  const flp_args *a = call->args;
  if (!call->scores || !call->scores->weight) return FLP_OK;
  if (!(call->plan->spec.grads & (FLP_GRAD_WEIGHT | FLP_GRAD_BIAS))) return FLP_OK;
  flp_mean_sums_given sums = {
      .matrix = flp_call_pointer(a->hidden),
      .stride = a->hidden_stride,
      .index = flp_call_region(call, FLP_REGION_index),
      .count = flp_call_region(call, FLP_REGION_count),
      .factor = call->scores->each,
      .rows = (int32_t)a->n,
      .part = call->scores->part,
  };
  return launch_sums(call, &sums, call->scores->added_hidden);
}

flp_status flp_launch_score_bias(const flp_call *call, CUdeviceptr bias_part, int64_t columns) {
  if (!call->scores || !call->scores->weight) return FLP_OK;
  flp_score_head_given p = {
      .sums = call->scores->added_hidden,
      .vocab_valid = (int32_t)columns,
      .bias = bias_part,
  };
  return flp_launch(call, FLP_ENTRY_score_head, &p, flp_ceil_div(columns, FLP_MEAN_HEAD_ROWS));
}

static flp_status add_to_hidden(const flp_call *call) {
  flp_score_hidden_given p = {
      .each = call->scores->each,
      .sums = call->scores->weight,
      FLP_GIVE_GRAD_HIDDEN(call->args),
  };
  return flp_launch_over(call, FLP_ENTRY_score_hidden, &p, call->args->n, 32);
}

static flp_status add_to_weight(const flp_call *call) {
  const flp_args *a = call->args;
  flp_score_head_given p = {
      .sums = call->scores->added_hidden,
      .vocab_valid = (int32_t)a->vocab_valid,
      .weight = flp_call_pointer(a->grad_weight),
      .weight_stride = a->grad_weight_stride,
  };
  return flp_launch(call, FLP_ENTRY_score_head, &p, flp_ceil_div(a->vocab_valid, FLP_MEAN_HEAD_ROWS));
}

flp_status flp_launch_score_gradients(const flp_call *call) {
  const flp_spec *spec = &call->plan->spec;
  if (!call->scores || !call->scores->weight) return FLP_OK;
  if ((spec->grads & FLP_GRAD_HIDDEN) && spec->grad_hidden_dtype == FLP_DTYPE_FP32) FLP_TRY(add_to_hidden(call));
  return (spec->grads & FLP_GRAD_WEIGHT) && spec->grad_weight_dtype == FLP_DTYPE_FP32 ? add_to_weight(call) : FLP_OK;
}
