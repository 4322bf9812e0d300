/* lanes.c: one problem on one plan, executed on several streams, each with outputs and workspace of its own. */
#include "gen/cli/check/concurrent.h"
#include "runtime/base/half.h"

/* CU_STREAM_NON_BLOCKING; CU_STREAM_CAPTURE_MODE_GLOBAL, which forbids every call that might synchronise. */
enum { NON_BLOCKING = 1, CAPTURE_GLOBAL = 0 };

static flp_status check(const lanes *all, CUresult result, const char *what) {
  return flp_driver_status(all->device->driver, result, what);
}

/* ---- making ---- */

static flp_status make_plan(const check_how *how, lanes *all) {
  const check_case *c = &all->problem->c;
  flp_options options = FLP_OPTIONS_INIT;
  options.device = all->device->ordinal;
  options.rung = how->rung;
  options.chunk_rows = c->chunk_rows;
  options.chunk_vocab = c->chunk_vocab;
  options.mode = c->mode == FLP_MODE_SAVE ? (flp_mode)0 : c->mode;
  options.tune = check_how_tune(how, &c->spec);
  FLP_TRY(check_ahead_plan(how->ahead, &c->spec, &options, &all->plan));
  size_t *bytes = all->workspace_bytes;
  if (c->spec.loss) return flp_plan_workspace(all->plan, FLP_PASS_STEP, c->n, 0, &bytes[FLP_PASS_STEP]);
  FLP_TRY(flp_plan_workspace(all->plan, FLP_PASS_FORWARD, c->n, 0, &bytes[FLP_PASS_FORWARD]));
  if (!c->spec.grads) return FLP_OK;
  if (!c->spec.keep) return flp_plan_workspace(all->plan, FLP_PASS_BACKWARD, c->n, 0, &bytes[FLP_PASS_BACKWARD]);
  FLP_TRY(flp_plan_saved(all->plan, c->n, UINT64_MAX, &all->saved_bytes));
  if (all->saved_bytes == 0) return flp_fail(FLP_ERROR_UNAVAILABLE, "this rung keeps no exponentials");
  return flp_plan_workspace(all->plan, FLP_PASS_BACKWARD_SAVED, c->n, UINT64_MAX, &bytes[FLP_PASS_BACKWARD]);
}

static flp_status upload(lanes *all, lanes_operand which, const void *source, size_t bytes) {
  FLP_TRY(cli_buffer_create(all->device, bytes, &all->operand[which]));
  return cli_buffer_upload(&all->operand[which], 0, source, bytes);
}

static flp_status upload_operands(lanes *all) {
  const check_problem *p = all->problem;
  const flp_spec *spec = &p->c.spec;
  size_t n = (size_t)p->c.n, row = (size_t)(p->stride * flp_half_bytes(spec->dtype));
  FLP_TRY(upload(all, LANES_HIDDEN, p->hidden, n * row));
  FLP_TRY(upload(all, LANES_WEIGHT, p->weight, (size_t)spec->vocab * row));
  FLP_TRY(upload(all, LANES_TARGET, p->target, n * (spec->target_dtype == FLP_DTYPE_INT32 ? 4 : 8)));
  for (int i = 0; i < FLP_LOSS_INPUTS_MAX; i++)
    if (p->loss_input[i]) FLP_TRY(upload(all, (lanes_operand)(LANES_LOSS_INPUT + i), p->loss_input[i], n * 4));
  if (!spec->grads) return FLP_OK;
  FLP_TRY(upload(all, LANES_UPSTREAM_LOGPROB, p->grad_logprob, n * 4));
  return spec->entropy == FLP_ENTROPY_BACKWARD ? upload(all, LANES_UPSTREAM_ENTROPY, p->grad_entropy, n * 4) : FLP_OK;
}

static size_t output_bytes(const check_problem *p, lanes_output which) {
  const flp_spec *spec = &p->c.spec;
  size_t n = (size_t)p->c.n, stride = (size_t)p->stride;
  switch (which) {
    case LANES_LOGPROB:
      return n * 4;
    case LANES_ENTROPY:
      return spec->entropy != FLP_ENTROPY_NONE ? n * 4 : 0;
    case LANES_STATS:
      return spec->grads && !spec->loss ? n * 16 : 0;
    case LANES_LOSS:
      return spec->loss ? n * 4 : 0;
    case LANES_GRAD_HIDDEN:
      return spec->grads & FLP_GRAD_HIDDEN ? n * stride * (size_t)flp_half_bytes(spec->grad_hidden_dtype) : 0;
    default:
      if (!(spec->grads & FLP_GRAD_WEIGHT)) return 0;
      return (size_t)spec->vocab * stride * (size_t)flp_half_bytes(spec->grad_weight_dtype);
  }
}

static flp_status make_lane(lanes *all, lane *l) {
  size_t most = 0;
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_STEP; pass++)
    if (all->workspace_bytes[pass] > most) most = all->workspace_bytes[pass];
  FLP_TRY(check(all, all->device->driver->cuStreamCreate(&l->stream, NON_BLOCKING), "cuStreamCreate"));
  for (int i = 0; i < LANES_OUTPUTS; i++)
    FLP_TRY(cli_buffer_create(all->device, output_bytes(all->problem, (lanes_output)i), &l->output[i]));
  FLP_TRY(cli_buffer_create(all->device, all->saved_bytes, &l->saved));
  return cli_buffer_create(all->device, most, &l->workspace);
}

flp_status lanes_create(const check_problem *problem, const check_how *how, cli_device *device, check_watch *watch,
                        lanes *out) {
  *out = (lanes){.problem = problem, .device = device, .watch = watch};
  FLP_TRY(make_plan(how, out));
  FLP_TRY(upload_operands(out));
  for (int i = 0; i < CHECK_LANES; i++) FLP_TRY(make_lane(out, &out->lane[i]));
  return FLP_OK;
}

void lanes_clear(lanes *all) {
  for (int i = 0; i < CHECK_LANES; i++) {
    lane *l = &all->lane[i];
    lanes_forget(all, i);
    for (int o = 0; o < LANES_OUTPUTS; o++) cli_buffer_destroy(&l->output[o]);
    cli_buffer_destroy(&l->workspace);
    cli_buffer_destroy(&l->saved);
    if (l->stream) all->device->driver->cuStreamDestroy_v2(l->stream);
  }
  for (int i = 0; i < LANES_OPERANDS; i++) cli_buffer_destroy(&all->operand[i]);
  flp_plan_destroy(all->plan);
  *all = (lanes){0};
}

/* ---- running ---- */

static flp_status poison(const lanes *all, const lane *l, const cli_buffer *buffer, int value) {
  if (!buffer->bytes) return FLP_OK;
  CUdeviceptr start = (CUdeviceptr)(uintptr_t)buffer->data;
  return check(all, all->device->driver->cuMemsetD8Async(start, (unsigned char)value, buffer->bytes, l->stream),
               "cuMemsetD8Async");
}

flp_status lanes_poison(lanes *all, int count, int value) {
  for (int i = 0; i < count; i++) {
    const lane *l = &all->lane[i];
    for (int o = 0; o < LANES_OUTPUTS; o++) FLP_TRY(poison(all, l, &l->output[o], value));
    FLP_TRY(poison(all, l, &l->workspace, value));
    FLP_TRY(poison(all, l, &l->saved, value));
  }
  return lanes_wait(all, count);
}

/* What both passes share. */
static flp_args base_args(const lanes *all, const lane *l, flp_pass pass) {
  const check_problem *p = all->problem;
  flp_args args = FLP_ARGS_INIT;
  args.pass = pass;
  args.n = p->c.n;
  args.hidden = all->operand[LANES_HIDDEN].data;
  args.weight = all->operand[LANES_WEIGHT].data;
  args.hidden_stride = args.weight_stride = args.grad_hidden_stride = args.grad_weight_stride = p->stride;
  args.target = all->operand[LANES_TARGET].data;
  args.temperature = (float)p->c.temperature;
  args.scale = (float)p->c.scale;
  args.stats = l->output[LANES_STATS].data;
  args.workspace = l->workspace.data;
  args.workspace_bytes = all->workspace_bytes[pass];
  args.stream = l->stream;
  args.saved = l->saved.data; /* NULL but in mode S */
  args.saved_bytes = l->saved.bytes;
  return args;
}

static flp_status step(lanes *all, const lane *l) {
  flp_args args = base_args(all, l, FLP_PASS_STEP);
  const float *inputs[FLP_LOSS_INPUTS_MAX];
  for (int i = 0; i < FLP_LOSS_INPUTS_MAX; i++) inputs[i] = all->operand[LANES_LOSS_INPUT + i].data;
  args.old_logprob = inputs[FLP_LOSS_OLD_LOGPROB];
  args.ref_logprob = inputs[FLP_LOSS_REF_LOGPROB];
  args.advantage = inputs[FLP_LOSS_ADVANTAGE];
  args.row_weight = inputs[FLP_LOSS_WEIGHT];
  args.loss_parameters = all->problem->loss_parameters;
  args.logprob = l->output[LANES_LOGPROB].data;
  args.entropy = l->output[LANES_ENTROPY].data;
  args.loss = l->output[LANES_LOSS].data;
  args.grad_hidden = l->output[LANES_GRAD_HIDDEN].data;
  args.grad_weight = l->output[LANES_GRAD_WEIGHT].data;
  return flp_step(all->plan, &args);
}

static flp_status execute(lanes *all, const lane *l) {
  if (all->problem->loss) return step(all, l);
  flp_args args = base_args(all, l, FLP_PASS_FORWARD);
  args.logprob = l->output[LANES_LOGPROB].data;
  args.entropy = l->output[LANES_ENTROPY].data;
  FLP_TRY(flp_execute(all->plan, &args));
  if (!all->problem->c.spec.grads) return FLP_OK;
  args = base_args(all, l, FLP_PASS_BACKWARD);
  args.grad_logprob = all->operand[LANES_UPSTREAM_LOGPROB].data;
  args.grad_entropy = all->operand[LANES_UPSTREAM_ENTROPY].data;
  args.grad_hidden = l->output[LANES_GRAD_HIDDEN].data;
  args.grad_weight = l->output[LANES_GRAD_WEIGHT].data;
  return flp_execute(all->plan, &args);
}

flp_status lanes_submit(lanes *all, int i) {
  const lane *l = &all->lane[i];
  if (!l->graph) return execute(all, l);
  return check(all, all->device->driver->cuGraphLaunch(l->graph, l->stream), "cuGraphLaunch");
}

flp_status lanes_wait(lanes *all, int count) {
  CUstream streams[CHECK_LANES];
  for (int i = 0; i < count; i++) streams[i] = all->lane[i].stream;
  return check_watch_wait(all->watch, streams, count, "the checked calls");
}

/* ---- graphs ---- */

/* Ends a capture whatever became of what was to be captured, whose failure counts first. */
static flp_status end_capture(lanes *all, const lane *l, flp_status status, CUgraph *out) {
  if (status == FLP_OK)
    return check(all, all->device->driver->cuStreamEndCapture(l->stream, out), "cuStreamEndCapture");
  flp_failure held = flp_failure_hold(status);
  all->device->driver->cuStreamEndCapture(l->stream, out);
  return flp_fail(status, "while a graph was captured: %s", held.detail);
}

flp_status lanes_capture(lanes *all, int i) {
  const flp_driver *driver = all->device->driver;
  lane *l = &all->lane[i];
  CUgraph graph = NULL;
  FLP_TRY(check(all, driver->cuStreamBeginCapture_v2(l->stream, CAPTURE_GLOBAL), "cuStreamBeginCapture"));
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
