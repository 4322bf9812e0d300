/* step.c: one training step: stream mode, where each chunk of rows passes through forward, loss and both products
 * before the next begins; or forward, the losses of all rows and backward in recompute or tail mode.
 *
 * Invariants: in stream mode rows are prepared once, so one numbering of active rows holds from scores to gradients;
 * rows without an upstream gradient have factor 0. In recompute mode backward prepares them again and leaves those out;
 * what passes from one pass to the other is by row, but lists of tail mode, whose backward pass has forward's active rows.
 * Either way a bad row counts once. */
#include "runtime/base/operands.h"
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/launch/keep.h"
#include "runtime/launch/launch.h"

static CUdeviceptr after(const flp_call *call, uint64_t bytes) {
  return flp_call_pointer(call->args->workspace) + bytes;
}

static float *device_floats(CUdeviceptr address) {
  return (float *)(uintptr_t)address;
}

/* What one part of the step hands to the next: the caller's arrays, or the workspace's. */
static void set_arrays(const flp_call *call, flp_args *a) {
  const flp_planner *planner = &call->plan->planner;
  if (!a->logprob) a->logprob = device_floats(flp_call_region(call, FLP_REGION_logprob));
  if (!a->entropy && planner->spec.entropy) a->entropy = device_floats(flp_call_region(call, FLP_REGION_entropy));
  a->stats = device_floats(flp_call_region(call, FLP_REGION_stats));
  a->grad_logprob = device_floats(flp_call_region(call, FLP_REGION_grad_logprob));
  a->grad_entropy = device_floats(flp_call_region(call, FLP_REGION_grad_entropy));
}

static double parameter(const flp_call *call, uint32_t i) {
  const flp_loss *loss = &call->plan->loss;
  if (i >= loss->parameter_count) return 0;
  return call->args->loss_parameters ? call->args->loss_parameters[i] : loss->parameters[i].fallback;
}

/* What losses of one target and those over targets have in common: what they read by row, and their derivatives. */
#define SET_INPUTS(call, p)                                                                           \
  do {                                                                                                \
    const flp_args *a_ = (call)->args;                                                                \
    flp_abi_ptr *const vectors_[] = {&(p)->vector0, &(p)->vector1, &(p)->vector2, &(p)->vector3,      \
                                     &(p)->vector4, &(p)->vector5, &(p)->vector6, &(p)->vector7};     \
    double *const each_[] = {&(p)->parameter0, &(p)->parameter1, &(p)->parameter2, &(p)->parameter3,  \
                             &(p)->parameter4, &(p)->parameter5, &(p)->parameter6, &(p)->parameter7}; \
    for (uint32_t i_ = 0; i_ < 8; i_++) {                                                             \
      *vectors_[i_] = flp_call_pointer(a_->vectors[i_]);                                              \
      *each_[i_] = parameter(call, i_);                                                               \
    }                                                                                                 \
    (p)->weight = flp_call_pointer(a_->row_weight);                                                   \
    (p)->grad_logprob = flp_call_pointer(a_->grad_logprob);                                           \
    (p)->grad_entropy = flp_call_pointer(a_->grad_entropy);                                           \
  } while (0)

/* And which rows: active ones of a range; NULL: all inactive ones, whose derivatives nobody asks for. */
#define SET_ROWS(call, rows, p)                                       \
  do {                                                                \
    SET_INPUTS(call, p);                                              \
    if (!(rows)) {                                                    \
      (p)->row_class = flp_call_region(call, FLP_REGION_row_class);   \
      (p)->grad_logprob = (p)->grad_entropy = 0;                      \
      break;                                                          \
    }                                                                 \
    (p)->index = flp_call_region(call, FLP_REGION_index);             \
    (p)->count = flp_call_region(call, FLP_REGION_count);             \
    (p)->row_begin = (int32_t)(rows)->begin;                          \
    (p)->row_end = (int32_t)(rows)->end;                              \
  } while (0)

static flp_status launch_loss(const flp_call *call, const flp_row_range *rows) {
  const flp_score_values *scores = call->scores;
  int64_t count = rows ? rows->end - rows->begin : call->args->n;
  if (flp_kernel_spec_has_targets_loss(&call->plan->spec)) {
    flp_loss_targets_given p = {.target_logprob = flp_call_pointer(call->args->logprob)};
    SET_ROWS(call, rows, &p);
    return flp_launch_over(call, FLP_ENTRY_loss_targets, &p, count, 32);
  }
  flp_loss_scores_given p = {.program = call->plan->program};
  SET_ROWS(call, rows, &p);
  if (!scores) return flp_launch_over(call, FLP_ENTRY_loss_rows, &p, count, 1);
  p.lse = scores->lse;
  p.mean_score = scores->mean;
  if (rows) {
    p.grad_lse = scores->grad_lse;
    p.grad_mean = scores->grad_mean;
    p.grad_any = scores->any;
  }
  return flp_launch_over(call, FLP_ENTRY_loss_scores, &p, count, 1);
}

flp_status flp_launch_loss(const flp_call *call) {
  flp_loss_rows_given p = {.program = call->plan->program};
  SET_INPUTS(call, &p);
  return call->args->n ? flp_launch_over(call, FLP_ENTRY_loss_rows, &p, call->args->n, 1) : FLP_OK;
}

static flp_status launch_inactive_loss(const flp_call *call) {
  return call->args->loss || call->args->metrics ? launch_loss(call, NULL) : FLP_OK;
}

/* What products add of a loss's mean score stands in the layout of the pass that has them. values: the call's from here on */
static flp_status place_added(flp_call *call, flp_score_values *values) {
  if (!call->scores) return FLP_OK;
  *values = *call->scores;
  call->scores = values;
  return flp_launch_score_added(call, values);
}

/* ---- stream mode ---- */

static flp_keep_sink chunk_sink(const flp_call *call) {
  return (flp_keep_sink){.reference = flp_call_region(call, FLP_REGION_reference),
                         .kept = flp_call_region(call, FLP_REGION_dz),
                         .stride = flp_planner_dz_stride(call->plan->spec.vocab),
                         .expands = call->plan->planner.step_expands};
}

/* Of the order for flat rows the other one has prepared them, and counted bad ones. */
static flp_status launch_prepare(const flp_call *step, flp_own_call *own) {
  if (step->is_flat) own->call.error_word += sizeof(int32_t);
  FLP_TRY(flp_launch_prepare(&own->call, !step->is_flat));
  own->call.error_word = step->error_word;
  return FLP_OK;
}

static flp_status stream(const flp_call *step) {
  flp_score_values scores;
  int64_t n = step->args->n, chunk = step->scheme.chunk_rows;
  flp_own_call own;
  const flp_call *call = &own.call;
  FLP_TRY(flp_launch_operands(step, &own));
  flp_keep_sink keep = chunk_sink(call);
  FLP_TRY(launch_prepare(step, &own));
  FLP_TRY(flp_launch_score_means(call));
  FLP_TRY(place_added(&own.call, &scores));
  FLP_TRY(flp_launch_score_nothing(call));
  FLP_TRY(flp_launch_lora_project(call));
  FLP_TRY(flp_launch_targets_gradients(call));
  for (int64_t begin = 0; begin < n; begin += chunk) {
    flp_row_range rows = {begin, flp_min(begin + chunk, n)};
    FLP_TRY(flp_launch_gather(call, rows));
    FLP_TRY(flp_launch_keep(call, rows, &keep));
    FLP_TRY(flp_launch_outputs(call, rows));
    if (call->scores) FLP_TRY(flp_launch_score_rows(call, rows));
    FLP_TRY(launch_loss(call, &rows));
    FLP_TRY(flp_launch_targets_sums(call));
    FLP_TRY(flp_launch_kept(call, rows, &keep, begin == 0, rows.end == n));
  }
  FLP_TRY(flp_launch_lora_gradients(call));
  FLP_TRY(flp_launch_score_gradients(call));
  if (call->is_flat) return FLP_OK; /* other rows are done */
  FLP_TRY(launch_inactive_loss(call));
  FLP_TRY(flp_launch_top_others(call));
  return flp_launch_fill(call);
}

/* ---- recompute and tail modes ---- */

/* NaN wherever the loss will not write: bad rows then have an upstream gradient, and are bad in backward too. */
static flp_status unset_upstream(const flp_call *call) {
  const flp_args *a = call->args;
  uint64_t bytes = (uint64_t)a->n * sizeof(float), targets = (uint64_t)flp_spec_targets(&call->plan->spec);
  FLP_TRY(flp_launch_set_bytes(call, flp_call_pointer(a->grad_logprob), bytes * targets, 0xff));
  FLP_TRY(flp_launch_set_bytes(call, flp_call_pointer(a->grad_entropy), bytes, 0xff));
  return flp_launch_set_bytes(call, call->scores ? call->scores->any : 0, bytes, 0xff);
}

/* Both passes have the workspace behind the step's arrays. */
static flp_status pass_by_pass(const flp_call *step, flp_args *args) {
  flp_call call = *step;
  flp_own_call made;
  flp_row_range rows = {0, args->n};
  flp_score_values scores;
  int is_tail = step->scheme.mode == FLP_MODE_TAIL;
  if (is_tail) {
    args->saved = (void *)(uintptr_t)flp_call_region(step, FLP_REGION_tail_saved);
    args->saved_bytes = step->scheme.size[FLP_REGION_tail_saved];
  }
  args->workspace = (void *)(uintptr_t)after(step, step->scheme.passes);
  args->workspace_bytes -= step->scheme.passes;
  call.args = args;
  FLP_TRY(flp_call_pick(&call, is_tail ? FLP_PASS_FORWARD_SAVED : FLP_PASS_FORWARD));
  FLP_TRY(flp_launch_operands(&call, &made));
  FLP_TRY(flp_launch_score_means(&made.call));
  FLP_TRY(flp_launch_forward_made(&made.call));
  if (call.scores) FLP_TRY(flp_launch_score_rows(&made.call, rows));
  FLP_TRY(unset_upstream(&call));
  FLP_TRY(launch_loss(&call, &rows));
  FLP_TRY(launch_inactive_loss(&call));
  if (!call.plan->spec.grads) return FLP_OK;
  args->pass = FLP_PASS_BACKWARD;
  call.error_word += sizeof(int32_t); /* forward has counted them */
  FLP_TRY(flp_call_pick(&call, is_tail ? FLP_PASS_BACKWARD_SAVED : FLP_PASS_BACKWARD));
  FLP_TRY(place_added(&call, &scores));
  FLP_TRY(flp_launch_backward(&call));
  return flp_launch_score_gradients(&call);
}

/* In the place of lists and their passes. */
static flp_status stream_flat(const flp_call *step) {
  flp_own_call own;
  uint64_t begin = flp_planner_flat_begin(&step->scheme);
  flp_call_copy(step, &own);
  own.args.workspace = (void *)(uintptr_t)after(step, begin);
  own.args.workspace_bytes = step->scheme.bytes - begin;
  own.call.is_flat = 1;
  FLP_TRY(flp_call_pick(&own.call, FLP_PASS_FLAT));
  return stream(&own.call);
}

/* The passes have arguments of their own. */
static flp_status with_tail(const flp_call *step) {
  flp_own_call lists;
  flp_call_copy(step, &lists);
  lists.call.flat = flp_call_region(step, FLP_REGION_flat);
  FLP_TRY(pass_by_pass(&lists.call, &lists.args));
  if (!lists.call.flat) return FLP_OK;
  flp_call call = *step;
  call.flat = lists.call.flat;
  return stream_flat(&call);
}

flp_status flp_launch_step(const flp_call *call) {
  flp_own_call own;
  flp_call_copy(call, &own);
  set_arrays(call, &own.args);
  flp_score_values scores;
  if (flp_kernel_spec_has_scores_loss(&call->plan->spec)) {
    scores = flp_score_values_of(call);
    own.call.scores = &scores;
  }
  if (call->scheme.mode == FLP_MODE_STREAM) {
    FLP_TRY(flp_launch_exact_report(call));
    return stream(&own.call);
  }
  return call->scheme.mode == FLP_MODE_TAIL ? with_tail(&own.call) : pass_by_pass(&own.call, &own.args);
}
