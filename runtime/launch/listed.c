/* listed.c: listed columns (abi.h): each row reads the rows of weight that its list names, and nothing else of it.
 *
 * Forward: list_check, list_sort, list_scores, and list_reduce makes one partial a row, which combine takes. Backward
 * makes the same lists and scores again, then dz of each entry and the gradient of hidden; for those of the head
 * entries go into the order of columns, a digit at a time. Each pass counts bad lists.
 * Invariant: every grid follows from n, list_count, the spec and the device; how long a list is, and how many entries
 * another mode has made, only the device knows. */
#include "runtime/base/status.h"
#include "runtime/launch/backward.h"

/* ---- lists and their scores ---- */

flp_status flp_launch_list_scores(const flp_call *call, CUdeviceptr offsets) {
  flp_list_scores_given p = {FLP_GIVE_WHOLE_WEIGHT(call), .offsets = offsets};
  return flp_launch(call, FLP_ENTRY_list_scores, &p, call->args->n);
}

static flp_status launch_lists(const flp_call *call) {
  const flp_args *a = call->args;
  uint64_t word = sizeof(int32_t);
  FLP_TRY(flp_launch_set_bytes(call, flp_call_region(call, FLP_REGION_list_state), word, 0));
  FLP_TRY(
      flp_launch_set_bytes(call, flp_call_region(call, FLP_REGION_list_column), (uint64_t)a->list_count * word, 0xff));
  FLP_TRY(flp_launch_over(call, FLP_ENTRY_list_check, NULL, a->n, 1));
  FLP_TRY(flp_launch(call, FLP_ENTRY_list_sort, NULL, a->n));
  FLP_TRY(flp_launch_lora_project(call));
  return flp_launch_list_scores(call, flp_call_pointer(a->list_offsets));
}

/* ---- forward ---- */

flp_status flp_launch_listed(const flp_call *call) {
  flp_list_reduce_given p = {.capacity = call->scheme.chunk_rows};
  FLP_TRY(launch_lists(call));
  return flp_launch_over(call, FLP_ENTRY_list_reduce, &p, call->args->n, 32);
}

/* ---- backward: dz and hidden ---- */

/* list_adapter is given the same. */
FLP_GIVEN_BEGINS(list_adapter, list_hidden, FLP_PARAMS_list_hidden)

flp_status flp_launch_listed_hidden(const flp_call *call, CUdeviceptr offsets) {
  const flp_spec *spec = &call->plan->spec;
  const flp_args *a = call->args;
  flp_list_adapter_given p = {.offsets = offsets};
  p.out = flp_call_region(call, FLP_REGION_lora_sum);
  if (p.out) { /* G, and what follows from it, which is added to below */
    p.weight = flp_lora_b(call, 0);
    p.weight_stride = a->lora_b_stride;
    p.depth = spec->lora_rank;
    p.out_stride = spec->lora_rank;
    p.out_is_f32 = p.of_b = 1;
    FLP_TRY(flp_launch(call, FLP_ENTRY_list_adapter, &p, a->n));
    FLP_TRY(flp_launch_lora_gradients(call));
  }
  if (!(spec->grads & FLP_GRAD_HIDDEN)) return FLP_OK;
  p.weight = flp_call_pointer(a->weight);
  p.weight_stride = a->weight_stride;
  p.depth = (int32_t)spec->hidden;
  p.out = flp_call_pointer(a->grad_hidden);
  p.out_stride = a->grad_hidden_stride;
  p.out_is_f32 = spec->grad_hidden_dtype == FLP_DTYPE_FP32;
  p.of_b = 0;
  return flp_launch(call, spec->lora_rank ? FLP_ENTRY_list_adapter : FLP_ENTRY_list_hidden, &p, a->n);
}

/* ---- backward: the head ---- */

/* list_digits is given the same. */
FLP_GIVEN_BEGINS(list_place, list_digits, FLP_PARAMS_list_digits)

/* One pass over a digit. from: 0 for entries as they stand */
static flp_status launch_digit(const flp_call *call, flp_entries e, CUdeviceptr from, CUdeviceptr to, int shift) {
  int64_t blocks = flp_planner_list_blocks(e.count);
  flp_list_scan_given scan = {.list_count = e.count, .list_total = e.total};
  flp_list_place_given place = {.from = from, .list_count = e.count, .list_total = e.total, .shift = shift, .to = to};
  FLP_TRY(flp_launch(call, FLP_ENTRY_list_digits, &place, blocks));
  FLP_TRY(flp_launch(call, FLP_ENTRY_list_scan, &scan, 1));
  return flp_launch(call, FLP_ENTRY_list_place, &place, blocks);
}

/* From one order to the other and back, so that the last pass ends in list_order. */
flp_status flp_launch_list_order(const flp_call *call, flp_entries e) {
  const flp_args *a = call->args;
  int passes = flp_planner_list_passes(call->plan->spec.vocab);
  CUdeviceptr order = flp_call_region(call, FLP_REGION_list_order), from = 0;
  CUdeviceptr other = flp_call_region(call, FLP_REGION_list_other);
  for (int pass = 0; pass < passes; pass++) {
    CUdeviceptr to = (passes - pass) % 2 ? order : other;
    FLP_TRY(launch_digit(call, e, from, to, pass * FLP_LIST_DIGIT_BITS));
    from = to;
  }
  flp_list_starts_given starts = {.order = order, .list_count = e.count, .list_total = e.total};
  return flp_launch_over(call, FLP_ENTRY_list_starts, &starts, a->vocab_valid + 1, 1);
}

/* list_weight_wide is given the same. */
FLP_GIVEN_BEGINS(list_weight_wide, list_weight, FLP_PARAMS_list_weight)

flp_status flp_launch_listed_head(const flp_call *call, flp_entries e, int add) {
  const flp_spec *spec = &call->plan->spec;
  const flp_args *a = call->args;
  flp_list_weight_wide_given p = {
      .order = flp_call_region(call, FLP_REGION_list_order),
      .list_count = e.count,
      .list_total = e.total,
      .hidden = flp_call_pointer(a->hidden),
      .hidden_stride = a->hidden_stride,
      .depth = (int32_t)spec->hidden,
      .weight_out = flp_call_pointer(a->grad_weight),
      .weight_out_stride = a->grad_weight_stride,
      .weight_out_is_f32 = spec->grad_weight_dtype == FLP_DTYPE_FP32,
      .bias_out = flp_call_pointer(a->grad_bias),
      .bias_out_is_f32 = spec->grad_bias_dtype == FLP_DTYPE_FP32,
      .add = add || spec->accumulate_grad_weight,
      .add_bias = add,
  };
  if (spec->lora_rank) {
    p.hidden = flp_lora_u(call, 0);
    p.hidden_stride = p.depth = spec->lora_rank;
    p.weight_out = flp_call_pointer(a->grad_lora_b);
    p.weight_out_stride = a->grad_lora_b_stride;
    p.weight_out_is_f32 = spec->grad_lora_dtype == FLP_DTYPE_FP32;
  }
  FLP_TRY(flp_launch_list_order(call, e));
  FLP_TRY(flp_launch_over(call, FLP_ENTRY_list_weight, &p, a->vocab_valid, 32));
  return flp_launch(call, FLP_ENTRY_list_weight_wide, &p, flp_planner_list_wide(&call->plan->planner, e.count));
}

flp_status flp_launch_listed_gradients(const flp_call *call) {
  const flp_args *a = call->args;
  const flp_spec *spec = &call->plan->spec;
  FLP_TRY(launch_lists(call));
  FLP_TRY(backward_launch_record(call, (flp_row_range){0, a->n}));
  FLP_TRY(flp_launch_over(call, FLP_ENTRY_list_dz, NULL, a->n, 32));
  FLP_TRY(flp_launch_score_list(call));
  FLP_TRY(flp_launch_listed_hidden(call, flp_call_pointer(a->list_offsets)));
  if (!flp_planner_orders_lists(spec, a->list_count)) return flp_launch_zero_head(call, 0);
  return flp_launch_listed_head(call, (flp_entries){(int32_t)a->list_count, 0}, 0);
}
