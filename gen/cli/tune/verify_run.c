/* verify_run.c: the small problem of verify.c on a plan's kernels: forward and backward, with or without kept
 * exponentials, or a step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/tune/tune.h"
#include "runtime/base/half.h"

enum { LOGPROB, ENTROPY, STATS, GRAD_HIDDEN, LOSS, SAVED, WORKSPACE, BUFFERS };

typedef struct check_call {
  tune_check *check;
  flp_plan *plan;
  tune_call call;
  cli_buffer buffer[BUFFERS];
} check_call;

static flp_status create(check_call *run, int which, size_t bytes) {
  cli_buffer_destroy(&run->buffer[which]);
  FLP_TRY(cli_buffer_create(run->check->device, bytes, &run->buffer[which]));
  return bytes ? cli_buffer_fill(&run->buffer[which], 0xff) : FLP_OK;
}

static flp_status create_outputs(check_call *run) {
  const check_problem *p = &run->check->problem;
  const flp_spec *spec = &p->c.spec;
  size_t n = (size_t)p->c.n, saved = 0;
  int steps = run->call == TUNE_STEP;
  FLP_TRY(create(run, LOGPROB, n * 4));
  FLP_TRY(create(run, ENTROPY, spec->entropy != FLP_ENTROPY_NONE ? n * 4 : 0));
  FLP_TRY(create(run, STATS, steps ? 0 : n * 16));
  FLP_TRY(create(run, LOSS, steps ? n * 4 : 0));
  if (spec->grads & FLP_GRAD_HIDDEN)
    FLP_TRY(create(run, GRAD_HIDDEN, n * (size_t)(p->stride * flp_half_bytes(spec->grad_hidden_dtype))));
  if (run->call == TUNE_SAVED) FLP_TRY(flp_plan_saved(run->plan, p->c.n, UINT64_MAX, &saved));
  return create(run, SAVED, saved);
}

static flp_args args_of(const check_call *run, flp_pass pass) {
  const tune_check *check = run->check;
  const check_problem *p = &check->problem;
  flp_args args = FLP_ARGS_INIT;
  args.pass = pass;
  args.n = p->c.n;
  args.hidden = check->hidden.data;
  args.weight = check->weight.data;
  args.bias = check->bias.data;
  args.target = check->target.data;
  args.temperature_rows = check->temperature.data;
  args.temperature = (float)p->c.temperature;
  args.scale = (float)p->c.scale;
  args.vocab_valid = args.vocab_total = p->c.spec.vocab;
  args.stats = run->buffer[STATS].data;
  args.saved = run->buffer[SAVED].data;
  args.saved_bytes = run->buffer[SAVED].bytes;
  args.stream = check->device->stream;
  return args;
}

static flp_status execute(check_call *run, flp_args *args) {
  size_t bytes = 0;
  flp_pass pass = args->pass;
  if (args->saved) pass = pass == FLP_PASS_FORWARD ? FLP_PASS_FORWARD_SAVED : FLP_PASS_BACKWARD_SAVED;
  FLP_TRY(flp_plan_workspace(run->plan, pass, args->n, args->saved ? UINT64_MAX : 0, &bytes));
  FLP_TRY(create(run, WORKSPACE, bytes));
  args->workspace = run->buffer[WORKSPACE].data;
  args->workspace_bytes = bytes;
  FLP_TRY(pass == FLP_PASS_STEP ? flp_step(run->plan, args) : flp_execute(run->plan, args));
  return cli_device_synchronise(run->check->device);
}

static flp_status run_forward(check_call *run) {
  flp_args args = args_of(run, FLP_PASS_FORWARD);
  args.logprob = run->buffer[LOGPROB].data;
  args.entropy = run->buffer[ENTROPY].data;
  return execute(run, &args);
}

/* Where gradients go, and what those of the head start from. */
static flp_status set_gradients(check_call *run, flp_args *args) {
  const tune_check *check = run->check;
  const check_problem *p = &check->problem;
  const flp_spec *spec = &p->c.spec;
  size_t base = (size_t)(spec->vocab * p->stride) * sizeof(float);
  args->grad_hidden = run->buffer[GRAD_HIDDEN].data;
  if (spec->grads & FLP_GRAD_WEIGHT) args->grad_weight = check->grad_weight->data;
  if (spec->grads & FLP_GRAD_BIAS) args->grad_bias = check->grad_bias->data;
  if (args->grad_weight) FLP_TRY(cli_buffer_fill(check->grad_weight, 0xff));
  return p->weight_base && args->grad_weight ? cli_buffer_upload(check->grad_weight, 0, p->weight_base, base) : FLP_OK;
}

static flp_status run_backward(check_call *run) {
  flp_args args = args_of(run, FLP_PASS_BACKWARD);
  args.grad_logprob = run->check->grad_logprob.data;
  args.grad_entropy = run->check->grad_entropy.data;
  FLP_TRY(set_gradients(run, &args));
  return execute(run, &args);
}

static flp_status run_step(check_call *run) {
  const float *inputs[FLP_LOSS_INPUTS_MAX];
  flp_args args = args_of(run, FLP_PASS_STEP);
  for (int i = 0; i < FLP_LOSS_INPUTS_MAX; i++) inputs[i] = run->check->loss_input[i].data;
  args.logprob = run->buffer[LOGPROB].data;
  args.entropy = run->buffer[ENTROPY].data;
  args.loss = run->buffer[LOSS].data;
  args.old_logprob = inputs[FLP_LOSS_OLD_LOGPROB];
  args.ref_logprob = inputs[FLP_LOSS_REF_LOGPROB];
  args.advantage = inputs[FLP_LOSS_ADVANTAGE];
  args.row_weight = inputs[FLP_LOSS_WEIGHT];
  memcpy(args.vectors, inputs + FLP_LOSS_FIRST_VECTOR, sizeof args.vectors);
  args.loss_parameters = run->check->problem.loss_parameters;
  FLP_TRY(set_gradients(run, &args));
  return execute(run, &args);
}

/* ---- results ---- */

static flp_status download(const cli_buffer *buffer, size_t bytes, void **out) {
  if (!buffer || !buffer->data || bytes == 0) return FLP_OK;
  *out = malloc(bytes);
  if (!*out) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the result");
  return cli_buffer_download(buffer, 0, *out, bytes);
}

static flp_status download_rows(check_call *run, call_result *out) {
  static const int slots[] = {LOGPROB, ENTROPY, STATS, LOSS};
  void *rows[4] = {NULL, NULL, NULL, NULL};
  flp_status status = FLP_OK;
  for (int i = 0; i < 4 && status == FLP_OK; i++)
    status = download(&run->buffer[slots[i]], run->buffer[slots[i]].bytes, &rows[i]);
  out->logprob = rows[0];
  out->entropy = rows[1];
  out->stats = rows[2];
  out->loss = rows[3];
  return status;
}

static flp_status download_gradients(check_call *run, call_result *out) {
  const check_problem *p = &run->check->problem;
  const flp_spec *spec = &p->c.spec;
  size_t width = (size_t)(p->stride * flp_half_bytes(spec->grad_weight_dtype)), valid = (size_t)spec->vocab;
  FLP_TRY(download(&run->buffer[GRAD_HIDDEN], run->buffer[GRAD_HIDDEN].bytes, &out->grad_hidden));
  if (spec->grads & FLP_GRAD_WEIGHT) FLP_TRY(download(run->check->grad_weight, valid * width, &out->grad_weight));
  if (!(spec->grads & FLP_GRAD_BIAS)) return FLP_OK;
  return download(run->check->grad_bias, valid * (size_t)flp_half_bytes(spec->dtype), &out->grad_bias);
}

/* Upstream gradients are those of the loss at what forward has given. */
static flp_status follow_loss(check_call *run, const call_result *forward) {
  tune_check *check = run->check;
  size_t bytes = (size_t)check->problem.c.n * sizeof(float);
  if (!check->problem.loss) return FLP_OK;
  check_problem_follow(&check->problem, forward);
  FLP_TRY(cli_buffer_upload(&check->grad_logprob, 0, check->problem.grad_logprob, bytes));
  if (!check->grad_entropy.data) return FLP_OK;
  return cli_buffer_upload(&check->grad_entropy, 0, check->problem.grad_entropy, bytes);
}

static flp_status run_all(check_call *run, call_result *out) {
  int has_gradients = run->call != TUNE_FORWARD && run->check->problem.c.spec.grads;
  FLP_TRY(create_outputs(run));
  FLP_TRY(run->call == TUNE_STEP ? run_step(run) : run_forward(run));
  FLP_TRY(download_rows(run, out));
  if (run->call == TUNE_BACKWARD && has_gradients) FLP_TRY(follow_loss(run, out));
  if (run->call != TUNE_STEP && has_gradients) FLP_TRY(run_backward(run));
  flp_status data = flp_plan_check(run->plan, run->check->device->stream);
  if (data != FLP_OK && data != FLP_ERROR_DATA) return data;
  out->data_error = data == FLP_ERROR_DATA;
  return has_gradients ? download_gradients(run, out) : FLP_OK;
}

flp_status tune_check_run(tune_check *check, flp_plan *plan, tune_call call, call_result *out) {
  /* What a forward pass keeps shows in gradients alone. */
  check_call run = {.check = check, .plan = plan, .call = call == TUNE_KEEPING ? TUNE_SAVED : call};
  *out = (call_result){0};
  flp_status status = run_all(&run, out);
  flp_failure held = flp_failure_hold(status);
  for (int i = 0; i < BUFFERS; i++) cli_buffer_destroy(&run.buffer[i]);
  if (status != FLP_OK) call_result_clear(out);
  return flp_failure_restore(&held);
}
