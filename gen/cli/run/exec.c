/* exec.c: a problem on a plan: buffers, forward by blocks of rows on the eager rung, backward. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/run/run.h"
#include "gen/cli/shared/progress.h"

/* Rows of one call on the eager rung: enough for its products to be efficient, few enough for a bar to move. */
enum { EAGER_ROWS = 128 };

/* What one execution holds; everything is released by run_close. */
typedef struct run_state {
  const run_args *args;
  const run_problem *problem;
  run_result *result;
  flp_plan *plan;
  cli_device device;
  call_problem call;
  call_buffers buffers;
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

static void set_problem(run_state *state) {
  const run_problem *problem = state->problem;
  call_problem *call = &state->call;
  *call = call_problem_of(&problem->spec, problem->n);
  call->loss = problem->loss;
  call->loss_parameters = state->args->loss.parameters;
  call->temperature = problem->temperature;
  call->scale = problem->scale;
  call->lora_scale = state->args->lora_scale;
  call->ignore_index = problem->ignore_index;
  call->gives_stats = problem->spec.grads && !problem->loss;
  call->gives_metrics = 1;
  call->list_count = problem->list_count;
  memcpy(call->operand, problem->operand, sizeof call->operand);
}

static flp_status open_buffers(run_state *state) {
  set_problem(state);
  state->buffers.device = &state->device;
  FLP_TRY(call_upload(&state->buffers, &state->call));
  return call_make_outputs(&state->buffers, &state->call);
}

/* Forward arguments of rows [begin, begin + n). */
static flp_args args_of_rows(const run_state *state, int64_t begin, int64_t n) {
  const call_buffers *b = &state->buffers;
  const call_problem *call = &state->call;
  flp_args args = call_args(b, call, FLP_PASS_FORWARD, 0);
  args.n = n;
  for (int id = 0; id < FLP_ARRAYS; id++)
    if (FLP_ARRAY[id].rows == FLP_SIZE_N && flp_array_get((flp_array_id)id, &args))
      flp_array_set((flp_array_id)id, &args, call_row(b, call, (flp_array_id)id, begin));
  return args;
}

/* Makes the workspace of a pass over n rows; an explicit budget was merged into the plan. */
static flp_status open_workspace(run_state *state, flp_pass pass, int64_t n, flp_layout *layout) {
  FLP_TRY(call_layout(&state->buffers, &state->call, state->plan, pass, n, layout));
  if (layout->bytes > state->result->workspace_bytes) state->result->workspace_bytes = layout->bytes;
  return call_make(&state->buffers, FLP_ARRAY_workspace, (size_t)layout->bytes);
}

static void close_workspace(run_state *state) {
  call_buffer_clear(&state->buffers.at[FLP_ARRAY_workspace]);
}

static flp_status run_blocks(run_state *state, int64_t block) {
  int64_t n = state->problem->n, begin = 0;
  cli_progress progress;
  cli_progress_start(&progress, "forward", state->args->quiet || block >= n);
  flp_status status = FLP_OK;
  do {
    int64_t rows = n - begin < block ? n - begin : block;
    flp_args args = args_of_rows(state, begin, rows);
    status = call_execute(state->plan, &args);
    begin += rows;
    cli_progress_update(&progress, begin, n);
  } while (status == FLP_OK && begin < n);
  cli_progress_end(&progress);
  return status;
}

static flp_status run_forward(run_state *state) {
  int64_t n = state->problem->n;
  int in_blocks = state->result->rung == FLP_RUNG_EAGER && n > EAGER_ROWS && !state->problem->spec.listed;
  int64_t block = in_blocks ? EAGER_ROWS : n; /* lists that are none make every row of a call bad */
  FLP_TRY(open_workspace(state, FLP_PASS_FORWARD, block, &state->result->forward));
  FLP_TRY(cli_device_timer_start(&state->device));
  FLP_TRY(run_blocks(state, block));
  FLP_TRY(cli_device_timer_stop(&state->device, &state->result->forward_seconds));
  close_workspace(state);
  return FLP_OK;
}

/* A pass over all rows at once. */
static flp_status run_whole(run_state *state, flp_pass pass, flp_layout *layout, double *seconds) {
  FLP_TRY(open_workspace(state, pass, state->problem->n, layout));
  flp_args args = call_args(&state->buffers, &state->call, pass, 0);
  FLP_TRY(cli_device_timer_start(&state->device));
  FLP_TRY(call_execute(state->plan, &args));
  FLP_TRY(cli_device_timer_stop(&state->device, seconds));
  close_workspace(state);
  return FLP_OK;
}

/* Rows with bad ids or temperatures are reported and do not fail: their outputs are NaN, the others stand. Backward
 * meets the same rows as forward, whose count is reported. */
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
  if (call_keeps(&state->call)) FLP_TRY(call_make_saved(&state->buffers, &state->call, state->plan));
  if (state->problem->loss) return run_whole(state, FLP_PASS_STEP, &result->step, &result->step_seconds);
  FLP_TRY(run_forward(state));
  if (!state->problem->spec.grads) return FLP_OK;
  FLP_TRY(check_data(state));
  return run_whole(state, FLP_PASS_BACKWARD, &result->backward, &result->backward_seconds);
}

static void run_close(run_state *state) {
  call_clear(&state->buffers);
  flp_plan_destroy(state->plan);
  cli_device_close(&state->device);
}

flp_status run_execute(const run_args *args, const run_problem *problem, run_result *out) {
  *out = (run_result){.data = FLP_OK};
  run_state state = {.args = args, .problem = problem, .result = out, .device = {.ordinal = FLP_DEVICE_HOST}};
  flp_status status = open_plan(&state);
  if (status == FLP_OK) status = open_device(&state);
  if (status == FLP_OK) status = open_buffers(&state);
  if (status == FLP_OK) status = run_passes(&state);
  if (status == FLP_OK) status = check_data(&state);
  if (status == FLP_OK) status = call_download(&state.buffers, &state.call, &out->output);
  out->peak_bytes = state.device.peak_bytes;
  run_close(&state);
  return status;
}

void run_result_clear(run_result *result) {
  call_result_clear(&result->output);
  *result = (run_result){.data = FLP_OK};
}
