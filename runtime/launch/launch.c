/* launch.c: the launch of one kernel. */
#include "runtime/launch/launch.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/status.h"
#include "runtime/base/util.h"

CUdeviceptr flp_call_pointer(const void *pointer) {
  return (CUdeviceptr)(uintptr_t)pointer;
}

CUdeviceptr flp_call_region(const flp_call *call, flp_region region) {
  if (!call->scheme.size[region]) return 0;
  return flp_call_pointer(call->args->workspace) + call->scheme.offset[region];
}

void flp_call_copy(const flp_call *call, flp_own_call *out) {
  out->call = *call;
  out->args = *call->args;
  out->call.args = &out->args;
}

int flp_call_has_targets(const flp_call *call) {
  return flp_planner_has_targets(&call->plan->spec);
}

CUdeviceptr flp_targets_scores(const flp_call *call) {
  CUdeviceptr given = flp_call_pointer(call->args->partial_targets);
  return given ? given : flp_call_region(call, FLP_REGION_target_score);
}

int32_t flp_call_best(const flp_call *call) {
  const flp_args *a = call->args;
  int is_wanted = flp_args_want_outputs(a) && (a->top_ids || a->top_logprob || a->top_rest);
  return is_wanted ? call->plan->spec.topk : 0;
}

int flp_call_wants_top(const flp_call *call) {
  const flp_args *a = call->args;
  return flp_call_best(call) || (flp_args_want_outputs(a) && a->rank);
}

CUdeviceptr flp_call_stats(const flp_call *call) {
  const flp_args *a = call->args;
  return !a->stats && (flp_call_wants_top(call) || a->statistics) ? flp_call_region(call, FLP_REGION_stats)
                                                                  : flp_call_pointer(a->stats);
}

const flp_kernel_desc *flp_call_desc(const flp_call *call, flp_kernel_kind kind) {
  const flp_modules *modules = &call->plan->modules;
  for (int i = 0; i < modules->count; i++)
    if (modules->desc[i].key.kind == kind) return &modules->desc[i];
  return NULL;
}

flp_status flp_call_status(const flp_call *call, CUresult result, const char *what) {
  char text[FLP_SPEC_TEXT_BYTES + 96];
  snprintf(text, sizeof text, "%s for %s", what, call->plan->spec_text);
  return flp_driver_status(call->plan->driver, result, text);
}

static flp_call_values call_values(const flp_call *call) {
  const flp_args *a = call->args;
  const flp_spec *spec = &call->plan->spec;
  if (!a) return (flp_call_values){0}; /* of operations without a head, whose launches give everything */
  return (flp_call_values){.offsets = flp_call_pointer(a->list_offsets),
                           .ids = flp_call_pointer(a->list_ids),
                           .error_word = call->error_word,
                           .depth = (int32_t)spec->hidden,
                           .rank = spec->lora_rank,
                           .targets = (int32_t)flp_spec_targets(spec),
                           .vocab_valid = (int32_t)a->vocab_valid,
                           .best = flp_call_best(call),
                           .top_places = flp_planner_top_places(spec),
                           .block_words = (int32_t)flp_planner_target_words(spec->vocab),
                           .cap_in = call->cap_in,
                           .capped = call->capped};
}

/* What the driver is pointed at: what the launch gives, the call's arguments and values, and addresses of regions. */
typedef struct values {
  flp_call_values call;
  CUdeviceptr region[FLP_ABI_PARAMS_MAX];
  void *at[FLP_ABI_PARAMS_MAX];
} values;

/* error: INTERNAL if the layout lacks a region that must be there */
static flp_status bind(const flp_call *call, const flp_abi_entry *entry, const void *given, values *out) {
  const void *const fields_of[] = {[FLP_ABI_GIVEN] = given, [FLP_ABI_ARG] = call->args, [FLP_ABI_CALL] = &out->call};
  int i = 0;
  out->call = call_values(call);
  for (const flp_abi_param *param = flp_abi_first(entry); param; param = flp_abi_next(entry, param), i++) {
    if (param->source < FLP_ABI_REGION) {
      out->at[i] = (char *)(uintptr_t)fields_of[param->source] + param->place; /* the driver only reads */
      continue;
    }
    out->region[i] = flp_call_region(call, (flp_region)param->place);
    out->at[i] = &out->region[i];
    if (!out->region[i] && param->source == FLP_ABI_REGION)
      return flp_fail(FLP_ERROR_INTERNAL, "flp_%s for %s: the layout of the pass has no array '%s'", entry->name,
                      call->plan->spec_text, param->name);
  }
  return FLP_OK;
}

static flp_status launched(const flp_call *call, CUresult result, const char *how, const flp_function *function) {
  if (result == 0) return FLP_OK;
  char what[64];
  snprintf(what, sizeof what, "%s(flp_%s)", how, function->abi->name);
  return flp_call_status(call, result, what);
}

flp_status flp_launch(const flp_call *call, flp_entry_id entry, const void *given, int64_t ctas) {
  const flp_function *function = &call->plan->modules.function[entry];
  values v;
  FLP_TRY(bind(call, function->abi, given, &v));
  CUresult result = call->plan->driver->cuLaunchKernel(function->handle, (unsigned)ctas, 1, 1, function->threads, 1, 1,
                                                       function->shared_bytes, call->stream, v.at, NULL);
  return launched(call, result, "cuLaunchKernel", function);
}

flp_status flp_launch_clusters(const flp_call *call, flp_entry_id entry, const void *given, int64_t clusters) {
  const flp_function *function = &call->plan->modules.function[entry];
  unsigned count = (unsigned)flp_min(clusters, function->clusters_max);
  flp_launch_attribute attribute = {.id = FLP_LAUNCH_CLUSTER_DIMENSION, .value = {function->cluster, 1, 1}};
  flp_launch_config config = {.grid = {count * function->cluster, 1, 1},
                              .block = {function->threads, 1, 1},
                              .shared_bytes = function->shared_bytes,
                              .stream = call->stream,
                              .attributes = &attribute,
                              .attribute_count = 1};
  values v;
  FLP_TRY(bind(call, function->abi, given, &v));
  CUresult result = call->plan->driver->cuLaunchKernelEx(&config, function->handle, v.at, NULL);
  return launched(call, result, "cuLaunchKernelEx", function);
}

flp_status flp_launch_over(const flp_call *call, flp_entry_id entry, const void *given, int64_t items, int lanes) {
  int64_t threads = call->plan->modules.function[entry].threads;
  return flp_launch(call, entry, given, flp_ceil_div(items, threads / lanes));
}

flp_status flp_launch_set_bytes(const flp_call *call, CUdeviceptr start, uint64_t bytes, unsigned char value) {
  if (!start || !bytes) return FLP_OK;
  return flp_call_status(call, call->plan->driver->cuMemsetD8Async(start, value, bytes, call->stream),
                         "cuMemsetD8Async");
}

flp_status flp_launch_zero(const flp_call *call, flp_gradient g, int64_t first) {
  uint64_t element = flp_dtype_bytes(g.type), pitch = (uint64_t)g.stride * element;
  uint64_t width = (uint64_t)g.columns * element, rows = (uint64_t)(g.rows - first);
  CUdeviceptr start = flp_call_pointer(g.start) + (uint64_t)first * pitch;
  if (pitch == width || !rows) return flp_launch_set_bytes(call, start, rows * width, 0);
  CUresult result = call->plan->driver->cuMemsetD2D8Async(start, pitch, 0, width, rows, call->stream);
  return flp_call_status(call, result, "cuMemsetD2D8Async");
}

static flp_status pick(const flp_planner *planner, flp_pass pass, const flp_args *args, flp_scheme *out) {
  if (pass == FLP_PASS_DENSE) return flp_planner_pick_dense(planner, args->n, args->workspace_bytes, out);
  if (pass == FLP_PASS_FLAT)
    return flp_planner_pick_flat(planner, args->n, args->workspace_bytes, out)
               ? FLP_OK
               : flp_fail(FLP_ERROR_INTERNAL, "a step has no order for flat rows");
  if (planner->spec.listed && pass != FLP_PASS_COMBINE)
    return flp_planner_pick_listed(planner, pass, args->n, args->list_count, args->workspace_bytes, out);
  return flp_planner_pick(planner, pass, args->n, args->workspace_bytes, 0, out);
}

flp_status flp_call_pick(flp_call *call, flp_pass pass) {
  flp_plan *plan = call->plan;
  const flp_args *args = call->args;
  pthread_mutex_lock(&plan->lock);
  int is_known = plan->last[pass].n == args->n && plan->last[pass].list_count == args->list_count &&
                 plan->last[pass].workspace_bytes == args->workspace_bytes;
  if (is_known) call->scheme = plan->last[pass].scheme;
  pthread_mutex_unlock(&plan->lock);
  if (is_known) return FLP_OK;
  FLP_TRY(pick(&plan->planner, pass, args, &call->scheme));
  pthread_mutex_lock(&plan->lock);
  plan->last[pass].n = args->n;
  plan->last[pass].list_count = args->list_count;
  plan->last[pass].workspace_bytes = args->workspace_bytes;
  plan->last[pass].scheme = call->scheme;
  pthread_mutex_unlock(&plan->lock);
  return FLP_OK;
}
