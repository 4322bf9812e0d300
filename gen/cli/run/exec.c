/* exec.c: a problem on a plan: buffers, forward by blocks of rows on the eager rung, backward. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/run/run.h"
#include "gen/cli/shared/progress.h"
#include "runtime/kernel/kernel.h"

/* Rows of one call on the eager rung: enough for its products to be efficient, few enough for a bar to move. */
enum { EAGER_ROWS = 128 };

/* What one execution holds; everything is released by run_close. */
typedef struct run_state {
  const run_args *args;
  const run_problem *problem;
  run_result *result;
  flp_plan *plan;
  cli_device device;
  cli_buffer operand[RUN_OPERANDS], output[RUN_OUTPUTS], workspace;
} run_state;

static const flp_options *options_of(const run_state *state) {
  return &state->args->options;
}

/* Plans. The eager rung reads mapped files in place, so there the data's own alignment is enough. */
static flp_status open_plan(run_state *state) {
  flp_spec spec = state->problem->spec;
  double start = cli_seconds_now();
  FLP_TRY(flp_plan_create(&spec, options_of(state), &state->plan));
  run_result *result = state->result;
  result->rung = flp_plan_get_rung(state->plan);
  if (result->rung == FLP_RUNG_EAGER) {
    flp_plan_destroy(state->plan);
    spec.alignment = (uint32_t)flp_dtype_bytes(spec.dtype);
    FLP_TRY(flp_plan_create(&spec, options_of(state), &state->plan));
  }
  result->plan_seconds = cli_seconds_now() - start;
  FLP_TRY(flp_plan_describe(state->plan, result->description, sizeof result->description));
  cli_reasons_text(state->plan, result->reasons, sizeof result->reasons);
  return flp_plan_get_id(state->plan, result->plan_id);
}

static flp_status open_device(run_state *state) {
  int host = state->result->rung == FLP_RUNG_EAGER;
  FLP_TRY(cli_device_open(host ? FLP_DEVICE_HOST : options_of(state)->device, &state->device));
  snprintf(state->result->device, sizeof state->result->device, "%s", host ? "CPU" : state->device.info.name);
  return FLP_OK;
}

static flp_status upload(run_state *state) {
  const run_problem *problem = state->problem;
  for (int i = 0; i < RUN_OPERANDS; i++) {
    if (!problem->operand[i]) continue;
    size_t element = i == RUN_TARGET                                       ? flp_dtype_bytes(problem->spec.target_dtype)
                     : i == RUN_HIDDEN || i == RUN_WEIGHT || i == RUN_BIAS ? flp_dtype_bytes(problem->spec.dtype)
                                                                           : sizeof(float);
    FLP_TRY(
        cli_buffer_create_from(&state->device, problem->operand[i], problem->bytes[i], element, &state->operand[i]));
  }
  return FLP_OK;
}

/* Bytes of each output that the spec asks for, else 0. */
static void size_outputs(const flp_spec *spec, const flp_loss *loss, int64_t n, size_t bytes[RUN_OUTPUTS]) {
  size_t rows = (size_t)n, columns = (size_t)spec->hidden, vocab = (size_t)spec->vocab;
  memset(bytes, 0, RUN_OUTPUTS * sizeof *bytes);
  bytes[RUN_OUT_LOGPROB] = rows * sizeof(float);
  if (spec->entropy != FLP_ENTROPY_NONE) bytes[RUN_OUT_ENTROPY] = rows * sizeof(float);
  if (spec->grads && !loss) bytes[RUN_OUT_STATS] = rows * 4 * sizeof(float);
  if (loss) bytes[RUN_OUT_LOSS] = rows * sizeof(float);
  if (loss) bytes[RUN_OUT_METRICS] = loss->metric_count * rows * sizeof(float);
  if (spec->grads & FLP_GRAD_HIDDEN)
    bytes[RUN_OUT_GRAD_HIDDEN] = rows * columns * flp_dtype_bytes(spec->grad_hidden_dtype);
  if (spec->grads & FLP_GRAD_WEIGHT)
    bytes[RUN_OUT_GRAD_WEIGHT] = vocab * columns * flp_dtype_bytes(spec->grad_weight_dtype);
  if (spec->grads & FLP_GRAD_BIAS) bytes[RUN_OUT_GRAD_BIAS] = vocab * flp_dtype_bytes(spec->dtype);
}

static flp_status create_outputs(run_state *state) {
  size_t bytes[RUN_OUTPUTS];
  size_outputs(&state->problem->spec, state->problem->loss, state->problem->n, bytes);
  for (int i = 0; i < RUN_OUTPUTS; i++)
    if (bytes[i]) FLP_TRY(cli_buffer_create(&state->device, bytes[i], &state->output[i]));
  return FLP_OK;
}

static void set_step(const run_state *state, flp_args *args) {
  args->old_logprob = state->operand[RUN_OLD_LOGPROB].data;
  args->ref_logprob = state->operand[RUN_REF_LOGPROB].data;
  args->advantage = state->operand[RUN_ADVANTAGE].data;
  args->row_weight = state->operand[RUN_ROW_WEIGHT].data;
  for (int i = 0; i < FLP_LOSS_VECTORS_MAX; i++) args->vectors[i] = state->operand[RUN_VECTOR + i].data;
  args->loss_parameters = state->args->loss.parameters;
  args->loss = state->output[RUN_OUT_LOSS].data;
  args->metrics = state->output[RUN_OUT_METRICS].data;
}

/* The arguments of a pass over rows [begin, begin + n). */
static flp_args args_of(const run_state *state, flp_pass pass, int64_t begin, int64_t n) {
  const run_problem *problem = state->problem;
  const flp_spec *spec = &problem->spec;
  size_t row = (size_t)begin, element = flp_dtype_bytes(spec->dtype);
  const char *hidden = state->operand[RUN_HIDDEN].data, *target = state->operand[RUN_TARGET].data;
  const float *rows = state->operand[RUN_TEMPERATURE].data;
  float *logprob = state->output[RUN_OUT_LOGPROB].data, *entropy = state->output[RUN_OUT_ENTROPY].data;
  float *stats = state->output[RUN_OUT_STATS].data;
  flp_args args = FLP_ARGS_INIT;
  args.pass = pass;
  args.n = n;
  args.hidden = hidden ? hidden + row * (size_t)spec->hidden * element : NULL;
  args.weight = state->operand[RUN_WEIGHT].data;
  args.bias = state->operand[RUN_BIAS].data;
  args.target = target ? target + row * flp_dtype_bytes(spec->target_dtype) : NULL;
  args.temperature_rows = rows ? rows + row : NULL;
  args.temperature = (float)problem->temperature;
  args.scale = (float)problem->scale;
  args.ignore_index = problem->ignore_index;
  args.stats = stats ? stats + 4 * row : NULL;
  args.stream = state->device.stream;
  if (pass != FLP_PASS_BACKWARD) {
    args.logprob = logprob ? logprob + row : NULL;
    args.entropy = entropy ? entropy + row : NULL;
  } else {
    args.grad_logprob = state->operand[RUN_GRAD_LOGPROB].data;
    args.grad_entropy = state->operand[RUN_GRAD_ENTROPY].data;
  }
  if (pass == FLP_PASS_FORWARD) return args;
  if (pass == FLP_PASS_STEP) set_step(state, &args);
  args.grad_hidden = state->output[RUN_OUT_GRAD_HIDDEN].data;
  args.grad_weight = state->output[RUN_OUT_GRAD_WEIGHT].data;
  args.grad_bias = state->output[RUN_OUT_GRAD_BIAS].data;
  return args;
}

/* Makes the workspace of a pass over n rows; an explicit budget was merged into the plan. */
static flp_status open_workspace(run_state *state, flp_pass pass, int64_t n, flp_layout *layout) {
  *layout = (flp_layout)FLP_LAYOUT_INIT;
  FLP_TRY(flp_plan_layout(state->plan, pass, n, 0, layout));
  if (layout->bytes > state->result->workspace_bytes) state->result->workspace_bytes = layout->bytes;
  return cli_buffer_create(&state->device, (size_t)layout->bytes, &state->workspace);
}

static flp_status execute(run_state *state, flp_args *args) {
  args->workspace = state->workspace.data;
  args->workspace_bytes = state->workspace.bytes;
  return args->pass == FLP_PASS_STEP ? flp_step(state->plan, args) : flp_execute(state->plan, args);
}

static flp_status run_blocks(run_state *state, int64_t block) {
  int64_t n = state->problem->n, begin = 0;
  cli_progress progress;
  cli_progress_start(&progress, "forward", state->args->quiet || block >= n);
  flp_status status = FLP_OK;
  do {
    int64_t rows = n - begin < block ? n - begin : block;
    flp_args args = args_of(state, FLP_PASS_FORWARD, begin, rows);
    status = execute(state, &args);
    begin += rows;
    cli_progress_update(&progress, begin, n);
  } while (status == FLP_OK && begin < n);
  cli_progress_end(&progress);
  return status;
}

static flp_status run_forward(run_state *state) {
  int64_t n = state->problem->n;
  int64_t block = state->result->rung == FLP_RUNG_EAGER && n > EAGER_ROWS ? EAGER_ROWS : n;
  FLP_TRY(open_workspace(state, FLP_PASS_FORWARD, block, &state->result->forward));
  FLP_TRY(cli_device_timer_start(&state->device));
  FLP_TRY(run_blocks(state, block));
  FLP_TRY(cli_device_timer_stop(&state->device, &state->result->forward_seconds));
  cli_buffer_destroy(&state->workspace);
  return FLP_OK;
}

/* A pass over all rows at once. */
static flp_status run_whole(run_state *state, flp_pass pass, flp_layout *layout, double *seconds) {
  FLP_TRY(open_workspace(state, pass, state->problem->n, layout));
  flp_args args = args_of(state, pass, 0, state->problem->n);
  FLP_TRY(cli_device_timer_start(&state->device));
  FLP_TRY(execute(state, &args));
  FLP_TRY(cli_device_timer_stop(&state->device, seconds));
  cli_buffer_destroy(&state->workspace);
  return FLP_OK;
}

/* Rows that held bad ids or temperatures are told, not failed: their outputs are NaN, the others stand. Backward meets
 * the same rows as forward, whose count is the one that is told. */
static flp_status check_data(run_state *state) {
  flp_status status = flp_plan_check(state->plan, state->device.stream);
  if (status != FLP_ERROR_DATA) return status;
  if (state->result->data != FLP_OK) return FLP_OK;
  state->result->data = status;
  snprintf(state->result->data_detail, sizeof state->result->data_detail, "%s", flp_error_detail());
  return FLP_OK;
}

static flp_status run_passes(run_state *state) {
  run_result *result = state->result;
  if (state->problem->loss) return run_whole(state, FLP_PASS_STEP, &result->step, &result->step_seconds);
  FLP_TRY(run_forward(state));
  if (!state->problem->spec.grads) return FLP_OK;
  FLP_TRY(check_data(state));
  return run_whole(state, FLP_PASS_BACKWARD, &result->backward, &result->backward_seconds);
}

/* Hands the outputs over as host memory: a copy from a GPU, the buffer itself from the host. */
static flp_status take_outputs(run_state *state) {
  for (int i = 0; i < RUN_OUTPUTS; i++) {
    cli_buffer *buffer = &state->output[i];
    if (!buffer->data) continue;
    state->result->bytes[i] = buffer->bytes;
    if (!state->device.driver) {
      state->result->output[i] = buffer->data;
      *buffer = (cli_buffer){0};
      continue;
    }
    state->result->output[i] = malloc(buffer->bytes);
    if (!state->result->output[i]) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the outputs");
    FLP_TRY(cli_buffer_download(buffer, 0, state->result->output[i], buffer->bytes));
  }
  return FLP_OK;
}

static void run_close(run_state *state) {
  for (int i = 0; i < RUN_OPERANDS; i++) cli_buffer_destroy(&state->operand[i]);
  for (int i = 0; i < RUN_OUTPUTS; i++) cli_buffer_destroy(&state->output[i]);
  cli_buffer_destroy(&state->workspace);
  flp_plan_destroy(state->plan);
  cli_device_close(&state->device);
}

flp_status run_execute(const run_args *args, const run_problem *problem, run_result *out) {
  *out = (run_result){.data = FLP_OK};
  run_state state = {.args = args, .problem = problem, .result = out, .device = {.ordinal = FLP_DEVICE_HOST}};
  flp_status status = open_plan(&state);
  if (status == FLP_OK) status = open_device(&state);
  if (status == FLP_OK) status = upload(&state);
  if (status == FLP_OK) status = create_outputs(&state);
  if (status == FLP_OK) status = run_passes(&state);
  if (status == FLP_OK) status = check_data(&state);
  if (status == FLP_OK) status = take_outputs(&state);
  out->peak_bytes = state.device.peak_bytes;
  run_close(&state);
  return status;
}

void run_result_clear(run_result *result) {
  for (int i = 0; i < RUN_OUTPUTS; i++) free(result->output[i]);
  *result = (run_result){.data = FLP_OK};
}
