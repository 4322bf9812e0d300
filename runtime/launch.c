/* launch.c: flp_execute, and the launch of one kernel. */
#include "launch.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "eager.h"
#include "process.h"
#include "status.h"
#include "validate.h"

CUdeviceptr flp_call_pointer(const void *pointer) {
  return (CUdeviceptr)(uintptr_t)pointer;
}

CUdeviceptr flp_call_region(const flp_call *call, flp_region region) {
  if (!call->scheme.size[region]) return 0;
  return flp_call_pointer(call->args->workspace) + call->scheme.offset[region];
}

const flp_kernel_desc *flp_call_desc(const flp_call *call, flp_kernel_kind kind) {
  const flp_modules *modules = &call->plan->modules;
  for (int i = 0; i < modules->count; i++)
    if (modules->desc[i].key.kind == kind) return &modules->desc[i];
  return NULL;
}

static flp_status call_failed(const flp_call *call, CUresult result, const char *what) {
  char text[FLP_SPEC_TEXT_BYTES + 96];
  snprintf(text, sizeof text, "%s for %s", what, call->plan->spec_text);
  return flp_driver_status(call->plan->driver, result, text);
}

static void point_at_fields(const flp_function *function, const void *params, void *fields[FLP_ABI_PARAMS_MAX]) {
  for (uint32_t i = 0; i < function->abi->param_count; i++)
    fields[i] = (char *)(uintptr_t)params + function->abi->params[i].offset; /* the driver only reads */
}

static flp_status launched(const flp_call *call, CUresult result, const char *how, const flp_function *function) {
  if (result == 0) return FLP_OK;
  char what[64];
  snprintf(what, sizeof what, "%s(flp_%s)", how, function->abi->name);
  return call_failed(call, result, what);
}

flp_status flp_launch(const flp_call *call, flp_entry_id entry, const void *params, int64_t ctas) {
  const flp_function *function = &call->plan->modules.function[entry];
  void *fields[FLP_ABI_PARAMS_MAX];
  point_at_fields(function, params, fields);
  CUresult result = call->plan->driver->cuLaunchKernel(function->handle, (unsigned)ctas, 1, 1, function->threads, 1, 1,
                                                       function->shared_bytes, call->stream, fields, NULL);
  return launched(call, result, "cuLaunchKernel", function);
}

flp_status flp_launch_clusters(const flp_call *call, flp_entry_id entry, const void *params, int64_t clusters) {
  const flp_function *function = &call->plan->modules.function[entry];
  unsigned most = function->clusters_max;
  unsigned count = clusters < most ? (unsigned)clusters : most;
  flp_launch_attribute attribute = {.id = FLP_LAUNCH_CLUSTER_DIMENSION, .value = {function->cluster, 1, 1}};
  flp_launch_config config = {.grid = {count * function->cluster, 1, 1},
                              .block = {function->threads, 1, 1},
                              .shared_bytes = function->shared_bytes,
                              .stream = call->stream,
                              .attributes = &attribute,
                              .attribute_count = 1};
  void *fields[FLP_ABI_PARAMS_MAX];
  point_at_fields(function, params, fields);
  CUresult result = call->plan->driver->cuLaunchKernelEx(&config, function->handle, fields, NULL);
  return launched(call, result, "cuLaunchKernelEx", function);
}

flp_status flp_launch_over(const flp_call *call, flp_entry_id entry, const void *params, int64_t items, int lanes) {
  int64_t threads = call->plan->modules.function[entry].threads;
  return flp_launch(call, entry, params, flp_ceil_div(items, threads / lanes));
}

flp_status flp_launch_set(const flp_call *call, flp_byte_matrix m, unsigned char value) {
  const flp_driver *driver = call->plan->driver;
  size_t rows = (size_t)m.rows;
  if (rows == 0) return FLP_OK;
  if (m.pitch_bytes == m.width_bytes)
    return call_failed(call, driver->cuMemsetD8Async(m.start, value, m.width_bytes * rows, call->stream),
                       "cuMemsetD8Async");
  return call_failed(call, driver->cuMemsetD2D8Async(m.start, m.pitch_bytes, value, m.width_bytes, rows, call->stream),
                     "cuMemsetD2D8Async");
}

flp_status flp_launch_prepare(const flp_call *call, int outputs) {
  const flp_args *a = call->args;
  /* What forward saved is of forward's active rows, whatever the upstream gradients. */
  int backward = a->pass == FLP_PASS_BACKWARD && call->scheme.mode != FLP_MODE_S;
  flp_prepare_params p = {
      .target = flp_call_pointer(a->target),
      .temperature = flp_call_pointer(a->temperature_rows),
      .row_scale = call->row_scale,
      .unit = call->unit,
      .rows = flp_call_pointer(a->rows),
      .row_count = a->row_count,
      .n = a->n,
      .ignore_index = a->ignore_index,
      .vocab_offset = a->vocab_offset,
      .vocab_valid = a->vocab_valid,
      .vocab_total = a->vocab_total,
      .grad_logprob = backward ? flp_call_pointer(a->grad_logprob) : 0,
      .grad_entropy = backward ? flp_call_pointer(a->grad_entropy) : 0,
      .logprob = outputs ? flp_call_pointer(a->logprob) : 0,
      .entropy = outputs ? flp_call_pointer(a->entropy) : 0,
      .stats = outputs ? flp_call_pointer(a->stats) : 0,
      .partial = a->pass == FLP_PASS_FORWARD ? flp_call_pointer(a->partial) : 0,
      .row_class = flp_call_region(call, FLP_REGION_ROW_CLASS),
      .index = flp_call_region(call, FLP_REGION_INDEX),
      .local_target = flp_call_region(call, FLP_REGION_LOCAL_TARGET),
      .scale = flp_call_region(call, FLP_REGION_SCALE),
      .count = flp_call_region(call, FLP_REGION_COUNT),
      .error_word = call->error_word,
  };
  return flp_launch(call, FLP_ENTRY_prepare, &p, 1);
}

/* ---- flp_execute ---- */

static void set_scales(flp_call *call) {
  double softcap = (double)call->plan->spec.softcap, scale = (double)call->args->scale;
  double unit = (softcap > 0 ? softcap : scale) * M_LOG2E;
  call->capped = softcap > 0;
  call->cap_in = softcap > 0 ? (float)(scale / softcap) : 0.0f;
  call->unit = (float)unit;
  call->row_scale = call->plan->spec.per_row_temperature ? 0.0f : (float)(unit / (double)call->args->temperature);
}

static flp_status too_small(const flp_args *args, uint64_t smallest) {
  return flp_fail(FLP_ERROR_WORKSPACE,
                  "args.workspace_bytes is %zu, but the smallest layout of this pass over %" PRId64
                  " rows needs %" PRIu64,
                  args->workspace_bytes, args->n, smallest);
}

flp_status flp_call_pick(flp_call *call, flp_pass pass) {
  flp_plan *plan = call->plan;
  const flp_args *args = call->args;
  pthread_mutex_lock(&plan->lock);
  int is_known = plan->last[pass].n == args->n && plan->last[pass].workspace_bytes == args->workspace_bytes;
  if (is_known) call->scheme = plan->last[pass].scheme;
  pthread_mutex_unlock(&plan->lock);
  if (is_known) return FLP_OK;
  FLP_TRY(flp_planner_pick(&plan->planner, pass, args->n, args->workspace_bytes, 0, &call->scheme));
  pthread_mutex_lock(&plan->lock);
  plan->last[pass].n = args->n;
  plan->last[pass].workspace_bytes = args->workspace_bytes;
  plan->last[pass].scheme = call->scheme;
  pthread_mutex_unlock(&plan->lock);
  return FLP_OK;
}

/* Mode S where there is what forward saved, and the workspace for it. */
static flp_status pick_scheme(flp_call *call) {
  flp_pass pass = call->args->pass;
  if (pass != FLP_PASS_BACKWARD || !call->args->saved) return flp_call_pick(call, pass);
  flp_status status = flp_call_pick(call, FLP_PASS_BACKWARD_SAVED);
  if (status != FLP_ERROR_BUDGET && status != FLP_ERROR_UNSUPPORTED) return status;
  flp_detail_clear();
  return flp_call_pick(call, pass);
}

static flp_status enqueue(flp_call *call, const void *context) {
  const flp_args *args = context;
  if (args->n == 0) return args->pass >= FLP_PASS_BACKWARD ? flp_launch_zero_head(call, 0) : FLP_OK;
  flp_status status = pick_scheme(call);
  if (status == FLP_ERROR_BUDGET) return too_small(args, call->scheme.smallest_bytes);
  FLP_TRY(status);
  static flp_status (*const passes[])(const flp_call *) = {[FLP_PASS_FORWARD] = flp_launch_forward,
                                                           [FLP_PASS_COMBINE] = flp_launch_combine,
                                                           [FLP_PASS_BACKWARD] = flp_launch_backward,
                                                           [FLP_PASS_STEP] = flp_launch_step};
  return passes[args->pass](call);
}

flp_status flp_call_run(flp_call *call, flp_enqueue_fn run, const void *context) {
  const flp_driver *driver = call->plan->driver;
  FLP_TRY(flp_process_check("plan", call->plan->process));
  FLP_TRY(call_failed(call, driver->cuCtxPushCurrent_v2(call->plan->context), "cuCtxPushCurrent"));
  flp_status status = run(call, context);
  CUcontext popped;
  CUresult result = driver->cuCtxPopCurrent_v2(&popped);
  if (status == FLP_OK) status = call_failed(call, result, "cuCtxPopCurrent");
  if (status == FLP_OK && call->plan->options.strict) status = flp_plan_check(call->plan, call->stream);
  return status;
}

flp_status flp_call_device(flp_plan *plan, const flp_args *args) {
  flp_call call = {.plan = plan, .args = args, .stream = args->stream, .error_word = plan->error_word};
  set_scales(&call);
  return flp_call_run(&call, enqueue, args);
}

flp_status flp_call_host(flp_plan *plan, const flp_args *args) {
  uint64_t bad_rows = 0;
  int threads = plan->options.threads;
  flp_status status = args->pass == FLP_PASS_STEP ? flp_eager_step(&plan->spec, &plan->loss, args, threads, &bad_rows)
                                                  : flp_eager_execute(&plan->spec, args, threads, &bad_rows);
  atomic_fetch_add(&plan->bad_rows, bad_rows);
  if (status == FLP_OK && plan->options.strict) status = flp_plan_check(plan, args->stream);
  return status;
}

flp_status flp_execute(flp_plan *plan, const flp_args *args) {
  flp_detail_clear();
  if (!plan) return flp_fail(FLP_ERROR_ARGUMENT, "plan is NULL (accepted: a plan of flp_plan_create)");
  if (plan->spec.op != FLP_OP_HEAD)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "the plan's spec.op is FLP_OP_SELECT (accepted: FLP_OP_HEAD; flp_select runs it)");
  flp_args resolved;
  FLP_TRY(flp_args_resolve(&plan->spec, args, &resolved));
  if (resolved.saved && !flp_plan_keeps(plan))
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "args.saved is given, but this plan keeps nothing (accepted: NULL where flp_plan_saved gives 0)");
  return plan->rung == FLP_RUNG_EAGER ? flp_call_host(plan, &resolved) : flp_call_device(plan, &resolved);
}
