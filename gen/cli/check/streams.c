/* streams.c: one problem on one plan, executed on several streams, each with outputs and workspace of its own. */
#include "gen/cli/check/concurrent.h"
#include "runtime/base/status.h"

/* CU_STREAM_NON_BLOCKING; CU_STREAM_CAPTURE_MODE_GLOBAL, which forbids every call that might synchronise. */
enum { NON_BLOCKING = 1, CAPTURE_GLOBAL = 0 };

static flp_status check(const lanes *all, CUresult result, const char *what) {
  return flp_driver_status(all->device->driver, result, what);
}

/* ---- making ---- */

/* error: UNAVAILABLE if the rung keeps nothing */
static flp_status make_saved(lanes *all, call_buffers *b) {
  const flp_spec *spec = &all->call.spec;
  if (!spec->keep || !spec->grads || all->call.loss) return FLP_OK;
  FLP_TRY(call_make_saved(b, &all->call, all->plan));
  if (b->at[CALL_SAVED].bytes) return FLP_OK;
  return flp_fail(FLP_ERROR_UNAVAILABLE, "this rung keeps no exponentials");
}

static flp_status make_workspace(lanes *all, call_buffers *b) {
  size_t most = 0;
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_STEP; pass++) {
    flp_layout layout;
    if (!call_has_pass(&all->call, (flp_pass)pass)) continue;
    FLP_TRY(call_layout(b, all->plan, (flp_pass)pass, all->call.n, &layout));
    all->workspace_bytes[pass] = (size_t)layout.bytes;
    if (layout.bytes > most) most = (size_t)layout.bytes;
  }
  return call_make(b, CALL_WORKSPACE, most);
}

static flp_status make_lane(lanes *all, lane *l) {
  call_buffers *b = &l->buffers;
  b->device = all->device;
  FLP_TRY(check(all, all->device->driver->cuStreamCreate(&b->stream, NON_BLOCKING), "cuStreamCreate"));
  for (int slot = 0; slot < CALL_OPERANDS; slot++) call_borrow(b, &all->operands, (call_slot)slot);
  FLP_TRY(call_make_outputs(b, &all->call));
  FLP_TRY(make_saved(all, b));
  return make_workspace(all, b);
}

flp_status lanes_create(const check_problem *problem, const check_how *how, cli_device *device, check_watch *watch,
                        lanes *out) {
  *out = (lanes){.problem = problem, .device = device, .watch = watch, .call = check_problem_call(problem)};
  out->operands.device = device;
  out->call.gives_stats = problem->c.spec.grads && !problem->loss;
  out->call.gives_metrics = 0;
  FLP_TRY(check_how_plan(how, problem, &out->plan));
  FLP_TRY(call_upload(&out->operands, &out->call));
  for (int i = 0; i < CHECK_LANES; i++) FLP_TRY(make_lane(out, &out->lane[i]));
  return FLP_OK;
}

void lanes_clear(lanes *all) {
  for (int i = 0; i < CHECK_LANES; i++) {
    lane *l = &all->lane[i];
    lanes_forget(all, i);
    call_clear(&l->buffers);
    if (l->buffers.stream) all->device->driver->cuStreamDestroy_v2(l->buffers.stream);
  }
  call_clear(&all->operands);
  flp_plan_destroy(all->plan);
  *all = (lanes){0};
}

const cli_buffer *lanes_output(const lanes *all, int i, int output) {
  static const call_slot slots[LANES_OUTPUTS] = {CALL_LOGPROB,     CALL_ENTROPY,     CALL_STATS,
                                                 CALL_GRAD_HIDDEN, CALL_GRAD_WEIGHT, CALL_LOSS};
  return &all->lane[i].buffers.at[slots[output]].buffer;
}

/* ---- running ---- */

flp_status lanes_poison(lanes *all, int count, int value) {
  for (int i = 0; i < count; i++) FLP_TRY(call_poison(&all->lane[i].buffers, (uint8_t)value));
  return lanes_wait(all, count);
}

static flp_status execute(lanes *all, const lane *l) {
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_STEP; pass++) {
    if (!call_has_pass(&all->call, (flp_pass)pass)) continue;
    flp_args args = call_args(&l->buffers, &all->call, (flp_pass)pass, 0);
    args.workspace_bytes = all->workspace_bytes[pass];
    FLP_TRY(call_execute(all->plan, &args));
  }
  return FLP_OK;
}

flp_status lanes_submit(lanes *all, int i) {
  const lane *l = &all->lane[i];
  if (!l->graph) return execute(all, l);
  return check(all, all->device->driver->cuGraphLaunch(l->graph, l->buffers.stream), "cuGraphLaunch");
}

flp_status lanes_wait(lanes *all, int count) {
  CUstream streams[CHECK_LANES];
  for (int i = 0; i < count; i++) streams[i] = all->lane[i].buffers.stream;
  return check_watch_wait(all->watch, streams, count, "the checked calls");
}

/* ---- graphs ---- */

/* Ends a capture whatever became of what was to be captured, whose failure counts first. */
static flp_status end_capture(lanes *all, const lane *l, flp_status status, CUgraph *out) {
  if (status == FLP_OK)
    return check(all, all->device->driver->cuStreamEndCapture(l->buffers.stream, out), "cuStreamEndCapture");
  flp_failure held = flp_failure_hold(status);
  all->device->driver->cuStreamEndCapture(l->buffers.stream, out);
  return flp_fail(status, "while a graph was captured: %s", held.detail);
}

flp_status lanes_capture(lanes *all, int i) {
  const flp_driver *driver = all->device->driver;
  lane *l = &all->lane[i];
  CUgraph graph = NULL;
  FLP_TRY(check(all, driver->cuStreamBeginCapture_v2(l->buffers.stream, CAPTURE_GLOBAL), "cuStreamBeginCapture"));
  flp_status status = end_capture(all, l, execute(all, l), &graph);
  if (status == FLP_OK)
    status = check(all, driver->cuGraphInstantiateWithFlags(&l->graph, graph, 0), "cuGraphInstantiate");
  if (status != FLP_OK) l->graph = NULL;
  if (graph) driver->cuGraphDestroy(graph);
  return status;
}

void lanes_forget(lanes *all, int i) {
  if (all->lane[i].graph) all->device->driver->cuGraphExecDestroy(all->lane[i].graph);
  all->lane[i].graph = NULL;
}
