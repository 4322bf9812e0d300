/* handler.c: what libflp_jax.so exports: XLA's handlers of flp_execute, flp_step and flp_diverge, and what tracing
 * asks for.
 *
 * A program of XLA names the handler "flp_linear_logprob"; flp.jax registers flp_jax_host for it on the CPU, and
 * flp_jax_cuda as both stages on CUDA: initialize, which runs before a program does and outside of graphs, makes the
 * plan; execute finds it. */
#include <stdio.h>

#include "runtime/jax/call.h"
#include "runtime/jax/plans.h"

enum { WORKSPACE_SLACK = 256 }; /* so that the workspace can be aligned, see call.c */

static const xla_code CODES[] = {
    [FLP_ERROR_ARGUMENT] = XLA_INVALID_ARGUMENT, [FLP_ERROR_UNSUPPORTED] = XLA_UNIMPLEMENTED,
    [FLP_ERROR_MEMORY] = XLA_RESOURCE_EXHAUSTED, [FLP_ERROR_WORKSPACE] = XLA_INTERNAL,
    [FLP_ERROR_BUDGET] = XLA_INVALID_ARGUMENT,   [FLP_ERROR_UNAVAILABLE] = XLA_UNAVAILABLE,
    [FLP_ERROR_DRIVER] = XLA_INTERNAL,           [FLP_ERROR_IO] = XLA_NOT_FOUND,
    [FLP_ERROR_CORRUPT] = XLA_DATA_LOSS,         [FLP_ERROR_COMPILE] = XLA_INTERNAL,
    [FLP_ERROR_DATA] = XLA_INVALID_ARGUMENT,     [FLP_ERROR_INTERNAL] = XLA_INTERNAL,
};

static xla_error *error_of(const xla_api *api, flp_status status, const char *detail) {
  char text[1024];
  snprintf(text, sizeof text, "flp: %s: %s", flp_status_name(status), detail);
  int known = status > FLP_OK && status <= FLP_ERROR_INTERNAL;
  xla_error_create_args args = {sizeof args, NULL, text, (int)(known ? CODES[status] : XLA_INTERNAL)};
  return api->error_create(&args);
}

/* XLA asks once, when a handler is registered. It takes versions up to its own. In strict mode flp_execute
 * synchronises, which a graph cannot hold. */
static xla_error *describe(const xla_call_frame *frame) {
  xla_metadata *metadata = ((xla_metadata_extension *)frame->extension)->metadata;
  int minor = frame->api ? frame->api->version.minor : 1;
  int32_t strict = 1;
  if (flp_options_in_force(NULL, FLP_PASS_FORWARD, NULL, &strict, NULL) != FLP_OK) strict = 1;
  metadata->version = (xla_version){sizeof(xla_version), NULL, XLA_VERSION_MAJOR,
                                    minor < XLA_VERSION_MINOR ? minor : XLA_VERSION_MINOR};
  metadata->traits = strict ? 0 : XLA_TRAIT_COMMAND_BUFFER;
  return NULL;
}

static int is_question(const xla_call_frame *frame) {
  return frame->extension && frame->extension->type == XLA_EXTENSION_METADATA;
}

static flp_status execute(flp_plan *plan, const jax_call *call) {
  if (call->diverge.scores) return flp_diverge(plan, &call->diverge);
  return call->args.pass == FLP_PASS_STEP ? flp_step(plan, &call->args) : flp_execute(plan, &call->args);
}

/* stream: set where the frame has one */
static xla_error *run(const xla_call_frame *frame, int32_t device, void *stream) {
  jax_call call;
  flp_plan *plan;
  flp_status status = jax_call_read(frame, &call);
  if (status != FLP_OK) return error_of(frame->api, status, call.detail);
  call.args.stream = call.diverge.stream = stream;
  status = jax_plan_get(&call.spec, device, &plan);
  if (status == FLP_OK && frame->stage == XLA_STAGE_EXECUTE) status = execute(plan, &call);
  return status == FLP_OK ? NULL : error_of(frame->api, status, flp_error_detail());
}

FLP_API xla_error *flp_jax_host(xla_call_frame *frame);
FLP_API xla_error *flp_jax_host(xla_call_frame *frame) {
  return is_question(frame) ? describe(frame) : run(frame, FLP_DEVICE_HOST, NULL);
}

FLP_API xla_error *flp_jax_cuda(xla_call_frame *frame);
FLP_API xla_error *flp_jax_cuda(xla_call_frame *frame) {
  if (is_question(frame)) return describe(frame);
  const xla_api *api = frame->api;
  if (api->struct_bytes < sizeof *api)
    return error_of(api, FLP_ERROR_UNSUPPORTED, "this XLA does not name the device of a call; jax 0.8.3 does");
  xla_ordinal_args ordinal = {sizeof ordinal, NULL, frame->context, -1};
  xla_stream_args stream = {sizeof stream, NULL, frame->context, NULL};
  xla_error *error = api->ordinal_get(&ordinal);
  if (!error) error = api->stream_get(&stream);
  return error ? error : run(frame, ordinal.ordinal, stream.stream);
}

/* Bytes that a call's buffer `workspace` must have on a device, for tracing; makes the plan.
 * unit:  list_count: ids of all lists, where spec.listed is 1; budget in bytes, 0 for that in force
 * error: those of flp_plan_create and flp_plan_layout */
FLP_API flp_status flp_jax_workspace(const flp_spec *spec, int32_t device, flp_pass pass, int64_t n, int64_t list_count,
                                     uint64_t budget, size_t *out_bytes);
FLP_API flp_status flp_jax_workspace(const flp_spec *spec, int32_t device, flp_pass pass, int64_t n, int64_t list_count,
                                     uint64_t budget, size_t *out_bytes) {
  flp_plan *plan;
  flp_layout layout = FLP_LAYOUT_INIT;
  flp_status status = jax_plan_get(spec, device, &plan);
  if (status == FLP_OK)
    status = spec->listed ? flp_plan_layout_listed(plan, pass, n, list_count, budget, &layout)
                          : flp_plan_layout(plan, pass, n, budget, &layout);
  *out_bytes = layout.bytes ? layout.bytes + WORKSPACE_SLACK : 0;
  return status;
}

/* Plans made so far. */
FLP_API int flp_jax_plan_count(void);
FLP_API int flp_jax_plan_count(void) {
  return jax_plan_count();
}
