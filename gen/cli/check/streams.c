/* streams.c: one problem on one plan, executed on several streams, each with outputs and workspace of its own; and waits for
 * streams with a limit, so that a deadlock is reported and not suffered. */
#include <time.h>

#include "gen/cli/check/concurrent.h"
#include "gen/cli/shared/common.h"
#include "runtime/base/status.h"

/* CU_STREAM_NON_BLOCKING; CU_STREAM_CAPTURE_MODE_GLOBAL, which forbids every call that might synchronise. */
enum { NON_BLOCKING = 1, CAPTURE_GLOBAL = 0 };

static flp_status check(const check_streams *all, CUresult result, const char *what) {
  return flp_driver_status(all->device->driver, result, what);
}

/* ---- making ---- */

static flp_status make_workspace(check_streams *all, call_buffers *b) {
  size_t most = 0;
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_STEP; pass++) {
    flp_layout layout;
    if (!call_has_pass(&all->call, (flp_pass)pass)) continue;
    FLP_TRY(call_layout(b, &all->call, all->plan, (flp_pass)pass, all->call.n, &layout));
    all->workspace_bytes[pass] = (size_t)layout.bytes;
    if (layout.bytes > most) most = (size_t)layout.bytes;
  }
  return call_make(b, FLP_ARRAY_workspace, most);
}

static flp_status make_stream(check_streams *all, check_stream *l) {
  call_buffers *b = &l->buffers;
  b->device = all->device;
  FLP_TRY(check(all, all->device->driver->cuStreamCreate(&b->stream, NON_BLOCKING), "cuStreamCreate"));
  for (int id = 0; id < FLP_ARRAYS; id++)
    if (FLP_ARRAY[id].way == FLP_WAY_IN) call_borrow(b, &all->operands, (flp_array_id)id);
  FLP_TRY(call_make_outputs(b, &all->call));
  FLP_TRY(check_make_saved(b, &all->call, all->plan));
  return make_workspace(all, b);
}

flp_status check_streams_create(const check_problem *problem, const check_how *how, cli_device *device,
                                check_timeout *timeout, check_streams *out) {
  *out = (check_streams){.problem = problem, .device = device, .timeout = timeout, .call = check_problem_call(problem)};
  out->operands.device = device;
  out->call.gives_stats = problem->c.spec.grads && !problem->loss;
  out->call.gives_metrics = 0;
  FLP_TRY(check_how_plan(how, problem, &out->plan));
  FLP_TRY(call_upload(&out->operands, &out->call));
  for (int i = 0; i < CHECK_STREAMS; i++) FLP_TRY(make_stream(out, &out->stream[i]));
  return FLP_OK;
}

void check_streams_clear(check_streams *all) {
  for (int i = 0; i < CHECK_STREAMS; i++) {
    check_stream *l = &all->stream[i];
    check_streams_forget(all, i);
    call_clear(&l->buffers);
    if (l->buffers.stream) all->device->driver->cuStreamDestroy_v2(l->buffers.stream);
  }
  call_clear(&all->operands);
  flp_plan_destroy(all->plan);
  *all = (check_streams){0};
}

const flp_array_id check_stream_outputs[STREAM_OUTPUTS] = {
    FLP_ARRAY_logprob,     FLP_ARRAY_entropy, FLP_ARRAY_stats,       FLP_ARRAY_grad_hidden,
    FLP_ARRAY_grad_weight, FLP_ARRAY_loss,    FLP_ARRAY_grad_lora_a, FLP_ARRAY_grad_lora_b,
    FLP_ARRAY_top_ids,     FLP_ARRAY_top_logprob, FLP_ARRAY_rank, FLP_ARRAY_statistics,  FLP_ARRAY_raw_scores};

const cli_buffer *check_stream_output(const check_streams *all, int i, int output) {
  return &all->stream[i].buffers.at[check_stream_outputs[output]].buffer;
}

/* ---- running ---- */

flp_status check_streams_poison(check_streams *all, int count, int value) {
  for (int i = 0; i < count; i++) FLP_TRY(call_poison(&all->stream[i].buffers, (uint8_t)value));
  return check_streams_wait(all, count);
}

static flp_status execute(check_streams *all, const check_stream *l) {
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_STEP; pass++) {
    if (!call_has_pass(&all->call, (flp_pass)pass)) continue;
    flp_args args = call_args(&l->buffers, &all->call, (flp_pass)pass, 0);
    args.workspace_bytes = all->workspace_bytes[pass];
    FLP_TRY(call_execute(all->plan, &args));
  }
  return FLP_OK;
}

flp_status check_streams_submit(check_streams *all, int i) {
  const check_stream *l = &all->stream[i];
  if (!l->graph) return execute(all, l);
  return check(all, all->device->driver->cuGraphLaunch(l->graph, l->buffers.stream), "cuGraphLaunch");
}

flp_status check_streams_wait(check_streams *all, int count) {
  CUstream streams[CHECK_STREAMS];
  for (int i = 0; i < count; i++) streams[i] = all->stream[i].buffers.stream;
  return check_timeout_wait(all->timeout, streams, count, "the checked calls");
}

/* ---- graphs ---- */

/* Ends a capture whatever became of what was to be captured, whose failure counts first. */
static flp_status end_capture(check_streams *all, const check_stream *l, flp_status status, CUgraph *out) {
  if (status == FLP_OK)
    return check(all, all->device->driver->cuStreamEndCapture(l->buffers.stream, out), "cuStreamEndCapture");
  flp_failure held = flp_failure_hold(status);
  all->device->driver->cuStreamEndCapture(l->buffers.stream, out);
  return flp_fail(status, "while a graph was captured: %s", held.detail);
}

flp_status check_streams_capture(check_streams *all, int i) {
  const flp_driver *driver = all->device->driver;
  check_stream *l = &all->stream[i];
  CUgraph graph = NULL;
  FLP_TRY(check(all, driver->cuStreamBeginCapture_v2(l->buffers.stream, CAPTURE_GLOBAL), "cuStreamBeginCapture"));
  flp_status status = end_capture(all, l, execute(all, l), &graph);
  if (status == FLP_OK)
    status = check(all, driver->cuGraphInstantiateWithFlags(&l->graph, graph, 0), "cuGraphInstantiate");
  if (status != FLP_OK) l->graph = NULL;
  if (graph) driver->cuGraphDestroy(graph);
  return status;
}

void check_streams_forget(check_streams *all, int i) {
  if (all->stream[i].graph) all->device->driver->cuGraphExecDestroy(all->stream[i].graph);
  all->stream[i].graph = NULL;
}

/* ---- waiting with a limit ---- */

/* cuStreamQuery of a stream with work. */
enum { NOT_READY = 600 };

int check_timeout_is_offered(const flp_driver *driver) {
#define IS_THERE(name, args) &&driver->name
  return 1 FLP_DRIVER_TOOLS(IS_THERE);
#undef IS_THERE
}

flp_status check_timeout_busy(const check_timeout *timeout, CUstream stream, int *busy) {
  CUresult result = timeout->driver->cuStreamQuery(stream);
  *busy = result == NOT_READY;
  return *busy ? FLP_OK : flp_driver_status(timeout->driver, result, "cuStreamQuery");
}

flp_status check_timeout_wait(check_timeout *timeout, const CUstream *streams, int count, const char *what) {
  const struct timespec pause = {.tv_nsec = 50000};
  double start = cli_seconds_now();
  for (int i = 0; i < count; i++) {
    int busy = 1;
    FLP_TRY(check_timeout_busy(timeout, streams[i], &busy));
    while (busy) {
      if (cli_seconds_now() - start > timeout->limit_s) {
        timeout->hung = 1;
        return flp_fail(FLP_ERROR_DRIVER, "deadlock: %s on stream %d of %d still run after %g seconds", what, i + 1,
                        count, timeout->limit_s);
      }
      nanosleep(&pause, NULL);
      FLP_TRY(check_timeout_busy(timeout, streams[i], &busy));
    }
  }
  return FLP_OK;
}
