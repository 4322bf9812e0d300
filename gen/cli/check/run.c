/* run.c: a problem executed on one rung, in buffers that are poisoned and guarded.
 *
 * Invariants: every output and workspace holds 0xff bytes before it is written, and so do a guard behind each buffer
 * and the elements between rows; after the run the latter still do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/check/check.h"
#include "runtime/base/half.h"
#include "runtime/planner/planner.h"

enum { GUARD = 256 };

/* A buffer whose data starts at a shift from its 256-byte boundary and ends in a guard. */
typedef struct guarded {
  cli_buffer buffer;
  size_t shift, bytes;
} guarded;

typedef enum slot {
  HIDDEN,
  WEIGHT,
  BIAS,
  TARGET,
  TEMPERATURE,
  ROWS,
  GRAD_LOGPROB,
  GRAD_ENTROPY,
  OLD_LSE,
  LOSS_INPUT,                                        /* by flp_loss_input */
  LAST_INPUT = LOSS_INPUT + FLP_LOSS_INPUTS_MAX - 1, /* operands */
  LOGPROB,
  ENTROPY,
  STATS,
  PARTIAL,
  GRAD_HIDDEN,
  GRAD_WEIGHT,
  GRAD_BIAS,
  LOSS,
  METRICS, /* outputs */
  SAVED,
  WORKSPACE,
  SLOTS
} slot;

/* Of what is written. */
static const char *const slot_names[SLOTS] = {[LOGPROB] = "logprob",
                                              [ENTROPY] = "entropy",
                                              [STATS] = "stats",
                                              [PARTIAL] = "partial",
                                              [GRAD_HIDDEN] = "grad_hidden",
                                              [GRAD_WEIGHT] = "grad_weight",
                                              [GRAD_BIAS] = "grad_bias",
                                              [LOSS] = "loss",
                                              [METRICS] = "metrics",
                                              [SAVED] = "saved",
                                              [WORKSPACE] = "workspace"};

typedef struct run_state {
  const check_problem *problem;
  const check_how *how;
  cli_device device;
  guarded slots[SLOTS];
  flp_plan *plan;

  check_result *out;
} run_state;

static flp_status create_slot(run_state *run, slot which, size_t bytes, size_t shift) {
  guarded *g = &run->slots[which];
  *g = (guarded){.shift = shift, .bytes = bytes};
  FLP_TRY(cli_buffer_create(&run->device, shift + bytes + GUARD, &g->buffer));
  return cli_buffer_fill(&g->buffer, 0xff);
}

static flp_status create_operand(run_state *run, slot which, const void *source, size_t bytes, size_t shift) {
  if (!source) return FLP_OK;
  FLP_TRY(create_slot(run, which, bytes, shift));
  return cli_buffer_upload(&run->slots[which].buffer, shift, source, bytes);
}

static char *at(const run_state *run, slot which) {
  const guarded *g = &run->slots[which];
  return g->buffer.data ? (char *)g->buffer.data + g->shift : NULL;
}

static size_t matrix_bytes(const check_problem *problem, int64_t rows, flp_dtype dtype) {
  return (size_t)(rows * problem->stride * flp_half_bytes(dtype));
}

static flp_status upload_operands(run_state *run) {
  const check_problem *p = run->problem;
  const flp_spec *spec = &p->c.spec;
  size_t n = (size_t)p->c.n, element = (size_t)flp_half_bytes(spec->dtype);
  FLP_TRY(create_operand(run, HIDDEN, p->hidden, matrix_bytes(p, p->c.n, spec->dtype), p->shift));
  FLP_TRY(create_operand(run, WEIGHT, p->weight, matrix_bytes(p, p->padded_vocab, spec->dtype), p->shift));
  FLP_TRY(create_operand(run, BIAS, p->bias, (size_t)p->padded_vocab * element, p->shift));
  FLP_TRY(create_operand(run, TARGET, p->target, n * (spec->target_dtype == FLP_DTYPE_INT32 ? 4 : 8), 0));
  if (spec->per_row_temperature) FLP_TRY(create_operand(run, TEMPERATURE, p->temperature_rows, n * 4, 0));
  FLP_TRY(create_operand(run, ROWS, p->rows, (size_t)p->row_count * 4, 0));
  FLP_TRY(create_operand(run, GRAD_LOGPROB, p->grad_logprob, n * 4, 0));
  FLP_TRY(create_operand(run, OLD_LSE, p->old_lse, n * 4, 0));
  for (int i = 0; i < FLP_LOSS_INPUTS_MAX; i++)
    FLP_TRY(create_operand(run, (slot)(LOSS_INPUT + i), p->loss_input[i], n * 4, 0));
  return create_operand(run, GRAD_ENTROPY, p->grad_entropy, n * 4, 0);
}

static flp_status create_outputs(run_state *run) {
  const check_problem *p = run->problem;
  const flp_spec *spec = &p->c.spec;
  size_t n = (size_t)p->c.n, shards = (size_t)p->c.shards;
  FLP_TRY(create_slot(run, LOGPROB, n * 4, 0));
  if (spec->entropy != FLP_ENTROPY_NONE) FLP_TRY(create_slot(run, ENTROPY, n * 4, 0));
  if (!spec->loss) FLP_TRY(create_slot(run, STATS, n * 16, 0));
  if (spec->loss) FLP_TRY(create_slot(run, LOSS, n * 4, 0));
  if (spec->loss && p->loss->metric_count) FLP_TRY(create_slot(run, METRICS, p->loss->metric_count * n * 4, 0));
  if (shards > 1) FLP_TRY(create_slot(run, PARTIAL, shards * n * 16, 0));
  if (spec->grads & FLP_GRAD_HIDDEN)
    FLP_TRY(create_slot(run, GRAD_HIDDEN, shards * matrix_bytes(p, p->c.n, spec->grad_hidden_dtype), p->shift));
  size_t weight_bytes = matrix_bytes(p, p->padded_vocab, spec->grad_weight_dtype);
  if (spec->grads & FLP_GRAD_WEIGHT) FLP_TRY(create_slot(run, GRAD_WEIGHT, weight_bytes, p->shift));
  if (p->weight_base && spec->grads & FLP_GRAD_WEIGHT)
    FLP_TRY(cli_buffer_upload(&run->slots[GRAD_WEIGHT].buffer, p->shift, p->weight_base, weight_bytes));
  size_t bias_bytes = (size_t)(p->padded_vocab * flp_half_bytes(spec->dtype));
  if (spec->grads & FLP_GRAD_BIAS) FLP_TRY(create_slot(run, GRAD_BIAS, bias_bytes, p->shift));
  return FLP_OK;
}

const char *check_how_tune(const check_how *how, const flp_spec *spec) {
  return how->tune && flp_kernel_arch_leaves_choice("sm_90a", spec) ? how->tune : NULL;
}

int check_how_ends(const check_how *how, flp_status status) {
  return status == FLP_ERROR_MEMORY || (status == FLP_ERROR_ARGUMENT && how->tune);
}

static flp_status make_plan(run_state *run) {
  flp_spec spec = run->problem->c.spec;
  spec.vocab = run->problem->shard_vocab;
  flp_options options = FLP_OPTIONS_INIT;
  options.device = run->device.ordinal;
  options.rung = run->how->rung;
  options.budget_bytes = run->how->budget_bytes;
  options.chunk_rows = run->problem->c.chunk_rows;
  options.chunk_vocab = run->problem->c.chunk_vocab;
  options.mode = run->problem->c.mode == FLP_MODE_S ? (flp_mode)0 : run->problem->c.mode;
  options.threads = run->how->threads;
  options.tune = check_how_tune(run->how, &spec);
  return check_ahead_plan(run->how->ahead, &spec, &options, &run->plan);
}

/* What all passes of one shard share. */
static flp_args base_args(const run_state *run, flp_pass pass, int64_t shard) {
  const check_problem *p = run->problem;
  int64_t first = shard * p->shard_vocab, left = p->c.spec.vocab - first;
  int64_t element = flp_half_bytes(p->c.spec.dtype);
  flp_args args = FLP_ARGS_INIT;
  args.pass = pass;
  args.n = p->c.n;
  args.hidden = at(run, HIDDEN);
  args.weight = at(run, WEIGHT) + first * p->stride * element;
  if (p->bias) args.bias = at(run, BIAS) + first * element;
  args.hidden_stride = args.weight_stride = args.grad_hidden_stride = args.grad_weight_stride = p->stride;
  args.target = at(run, TARGET);
  args.temperature_rows = (const float *)(const void *)at(run, TEMPERATURE);
  args.temperature = (float)p->c.temperature;
  args.scale = (float)p->c.scale;
  args.rows = (const int32_t *)(const void *)at(run, ROWS);
  args.row_count = p->row_count;
  args.vocab_offset = first;
  args.vocab_valid = left < p->shard_vocab ? left : p->shard_vocab;
  args.vocab_total = p->c.spec.vocab;
  args.stream = run->device.stream;
  return args;
}

/* error: UNAVAILABLE if the rung keeps nothing */
static flp_status create_saved(run_state *run) {
  size_t bytes = 0;
  const check_problem *p = run->problem;
  if (p->c.mode != FLP_MODE_S) return FLP_OK;
  FLP_TRY(flp_plan_saved(run->plan, p->c.n, UINT64_MAX, &bytes));
  if (bytes > 0) return create_slot(run, SAVED, bytes, 0);
  if (p->c.n == 0) return FLP_OK;
  return flp_fail(FLP_ERROR_UNAVAILABLE, "rung %s keeps no exponentials", flp_rung_name(run->how->rung));
}

static void set_saved(const run_state *run, flp_args *args) {
  args->saved = at(run, SAVED);
  args->saved_bytes = run->slots[SAVED].bytes;
}

/* What was asked for by name is what runs, but for the eager rung, which has one way. */
static flp_status check_layout(const run_state *run, flp_pass pass, const flp_layout *layout) {
  flp_mode mode = run->problem->c.mode;
  if (run->how->rung == FLP_RUNG_EAGER || mode != FLP_MODE_P || pass != FLP_PASS_STEP || layout->mode == mode)
    return FLP_OK;
  return flp_fail(FLP_ERROR_INTERNAL, "mode P was asked for, and %s was taken", flp_mode_name(layout->mode));
}

static flp_status execute(run_state *run, flp_args *args) {
  flp_layout layout = FLP_LAYOUT_INIT;
  int saved = args->pass == FLP_PASS_BACKWARD && args->saved;
  flp_pass pass = saved ? FLP_PASS_BACKWARD_SAVED : args->pass;
  FLP_TRY(flp_plan_layout(run->plan, pass, args->n, saved ? UINT64_MAX : 0, &layout));
  FLP_TRY(check_layout(run, pass, &layout));
  size_t bytes = (size_t)layout.bytes;
  cli_buffer_destroy(&run->slots[WORKSPACE].buffer);
  FLP_TRY(create_slot(run, WORKSPACE, bytes, 0));
  args->workspace = at(run, WORKSPACE);
  args->workspace_bytes = bytes;
  FLP_TRY(args->pass == FLP_PASS_STEP ? flp_step(run->plan, args) : flp_execute(run->plan, args));
  return cli_device_synchronise(&run->device);
}

static void set_outputs(const run_state *run, flp_args *args) {
  args->logprob = (float *)(void *)at(run, LOGPROB);
  args->entropy = (float *)(void *)at(run, ENTROPY);
  args->stats = (float *)(void *)at(run, STATS);
}

static flp_status run_forward(run_state *run) {
  const check_problem *p = run->problem;
  if (p->c.shards == 1) {
    flp_args args = base_args(run, FLP_PASS_FORWARD, 0);
    set_outputs(run, &args);
    set_saved(run, &args);
    args.old_lse = (const float *)(const void *)at(run, OLD_LSE);
    return execute(run, &args);
  }
  for (int64_t shard = 0; shard < p->c.shards; shard++) {
    flp_args args = base_args(run, FLP_PASS_FORWARD, shard);
    args.partial = (float *)(void *)(at(run, PARTIAL) + shard * p->c.n * 16);
    FLP_TRY(execute(run, &args));
  }
  flp_args args = base_args(run, FLP_PASS_COMBINE, 0);
  args.partial = (float *)(void *)at(run, PARTIAL);
  args.shard_count = p->c.shards;
  set_outputs(run, &args);
  return execute(run, &args);
}

static void set_gradients(const run_state *run, int64_t shard, flp_args *args) {
  const check_problem *p = run->problem;
  const flp_spec *spec = &p->c.spec;
  int64_t first = shard * p->shard_vocab;
  if (spec->grads & FLP_GRAD_HIDDEN)
    args->grad_hidden = at(run, GRAD_HIDDEN) + (size_t)shard * matrix_bytes(p, p->c.n, spec->grad_hidden_dtype);
  if (spec->grads & FLP_GRAD_WEIGHT)
    args->grad_weight = at(run, GRAD_WEIGHT) + matrix_bytes(p, first, spec->grad_weight_dtype);
  if (spec->grads & FLP_GRAD_BIAS) args->grad_bias = at(run, GRAD_BIAS) + first * flp_half_bytes(spec->dtype);
}

static flp_status run_backward(run_state *run) {
  const check_problem *p = run->problem;
  const flp_spec *spec = &p->c.spec;
  for (int64_t shard = 0; spec->grads && shard < p->c.shards; shard++) {
    flp_args args = base_args(run, FLP_PASS_BACKWARD, shard);
    args.stats = (float *)(void *)at(run, STATS);
    args.grad_logprob = (const float *)(const void *)at(run, GRAD_LOGPROB);
    if (spec->entropy == FLP_ENTROPY_BACKWARD) args.grad_entropy = (const float *)(const void *)at(run, GRAD_ENTROPY);
    set_gradients(run, shard, &args);
    set_saved(run, &args);
    FLP_TRY(execute(run, &args));
  }
  return FLP_OK;
}

static flp_status run_step(run_state *run) {
  flp_args args = base_args(run, FLP_PASS_STEP, 0);
  const float *inputs[FLP_LOSS_INPUTS_MAX];
  set_outputs(run, &args);
  set_gradients(run, 0, &args);
  for (int i = 0; i < FLP_LOSS_INPUTS_MAX; i++)
    inputs[i] = (const float *)(const void *)at(run, (slot)(LOSS_INPUT + i));
  args.old_logprob = inputs[FLP_LOSS_OLD_LOGPROB];
  args.ref_logprob = inputs[FLP_LOSS_REF_LOGPROB];
  args.advantage = inputs[FLP_LOSS_ADVANTAGE];
  args.row_weight = inputs[FLP_LOSS_WEIGHT];
  memcpy(args.vectors, inputs + FLP_LOSS_FIRST_VECTOR, sizeof args.vectors);
  args.loss_parameters = run->problem->loss_parameters;
  args.old_lse = (const float *)(const void *)at(run, OLD_LSE);
  args.loss = (float *)(void *)at(run, LOSS);
  args.metrics = (float *)(void *)at(run, METRICS);
  return execute(run, &args);
}

/* ---- results ---- */

static int all_poison(const unsigned char *bytes, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (bytes[i] != 0xff) return 0;
  return 1;
}

/* Elements between the rows of a matrix are as they were. */
static int gaps_untouched(const check_problem *p, const unsigned char *matrix, int64_t rows, flp_dtype dtype) {
  size_t row_bytes = matrix_bytes(p, 1, dtype), used = (size_t)(p->c.spec.hidden * flp_half_bytes(dtype));
  for (int64_t row = 0; row < rows && row_bytes > used; row++)
    if (!all_poison(matrix + (size_t)row * row_bytes + used, row_bytes - used)) return 0;
  return 1;
}

static flp_status download(run_state *run, slot which, void **out) {
  const guarded *g = &run->slots[which];
  unsigned char edge[GUARD];
  if (!g->buffer.data) return FLP_OK;
  *out = malloc(g->bytes + 1);
  if (!*out) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the result");
  FLP_TRY(cli_buffer_download(&g->buffer, g->shift, *out, g->bytes));
  FLP_TRY(cli_buffer_download(&g->buffer, g->shift + g->bytes, edge, GUARD));
  if (!all_poison(edge, GUARD)) run->out->overrun = slot_names[which];
  FLP_TRY(cli_buffer_download(&g->buffer, 0, edge, g->shift));
  if (!all_poison(edge, g->shift)) run->out->overrun = slot_names[which];
  return FLP_OK;
}

static void check_gaps(run_state *run) {
  const check_problem *p = run->problem;
  const flp_spec *spec = &p->c.spec;
  check_result *out = run->out;
  if (out->grad_hidden && !gaps_untouched(p, out->grad_hidden, p->c.n * p->c.shards, spec->grad_hidden_dtype))
    out->overrun = slot_names[GRAD_HIDDEN];
  if (out->grad_weight && !p->weight_base &&
      !gaps_untouched(p, out->grad_weight, p->padded_vocab, spec->grad_weight_dtype))
    out->overrun = slot_names[GRAD_WEIGHT];
}

static flp_status check_guard(run_state *run, slot which) {
  unsigned char edge[GUARD];
  const guarded *g = &run->slots[which];
  if (!g->buffer.data) return FLP_OK;
  FLP_TRY(cli_buffer_download(&g->buffer, g->bytes, edge, GUARD));
  if (!all_poison(edge, GUARD)) run->out->overrun = slot_names[which];
  return FLP_OK;
}

static flp_status download_all(run_state *run) {
  check_result *out = run->out;
  void *floats[] = {NULL, NULL, NULL, NULL, NULL};
  static const slot rows[] = {LOGPROB, ENTROPY, STATS, LOSS, METRICS};
  flp_status status = FLP_OK;
  for (int i = 0; i < 5 && status == FLP_OK; i++) status = download(run, rows[i], &floats[i]);
  out->logprob = floats[0];
  out->entropy = floats[1];
  out->stats = floats[2];
  out->loss = floats[3];
  out->metrics = floats[4];
  if (status == FLP_OK) status = download(run, GRAD_HIDDEN, &out->grad_hidden);
  if (status == FLP_OK) status = download(run, GRAD_WEIGHT, &out->grad_weight);
  if (status == FLP_OK) status = download(run, GRAD_BIAS, &out->grad_bias);
  if (status == FLP_OK) status = check_guard(run, WORKSPACE);
  if (status == FLP_OK) status = check_guard(run, SAVED);
  if (status == FLP_OK) check_gaps(run);
  return status;
}

static flp_status run_all(run_state *run) {
  FLP_TRY(cli_device_open(run->how->rung == FLP_RUNG_EAGER ? FLP_DEVICE_HOST : run->how->ordinal, &run->device));
  FLP_TRY(make_plan(run));
  FLP_TRY(upload_operands(run));
  FLP_TRY(create_outputs(run));
  FLP_TRY(create_saved(run));
  FLP_TRY(cli_device_synchronise(&run->device));
  if (run->problem->loss) {
    FLP_TRY(run_step(run));
  } else {
    FLP_TRY(run_forward(run));
    FLP_TRY(run_backward(run));
  }
  flp_status data = flp_plan_check(run->plan, run->device.stream);
  if (data != FLP_OK && data != FLP_ERROR_DATA) return data;
  run->out->data_error = data == FLP_ERROR_DATA;
  return download_all(run);
}

flp_status check_run(const check_problem *problem, const check_how *how, check_result *out) {
  *out = (check_result){0};
  run_state run = {.problem = problem, .how = how, .out = out};
  flp_status status = run_all(&run);
  flp_failure held = flp_failure_hold(status);
  flp_plan_destroy(run.plan);
  for (int i = 0; i < SLOTS; i++) cli_buffer_destroy(&run.slots[i].buffer);
  cli_device_close(&run.device);
  if (status != FLP_OK) check_result_clear(out);
  return flp_failure_restore(&held);
}

flp_status check_run_plain(const check_problem *problem, const check_how *how, check_result *out) {
  check_problem plain = *problem; /* borrows everything */
  plain.c.mode = (flp_mode)0;
  plain.c.spec.keep = 0;
  plain.c.spec.loss = NULL;
  plain.c.spec.loss_bytes = 0;
  plain.loss = NULL;
  plain.old_lse = NULL;
  memset(plain.loss_input, 0, sizeof plain.loss_input);
  return check_run(&plain, how, out);
}

void check_result_clear(check_result *result) {
  void *const blocks[] = {result->logprob,     result->entropy,   result->stats, result->grad_hidden,
                          result->grad_weight, result->grad_bias, result->loss,  result->metrics};
  for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) free(blocks[i]);
  *result = (check_result){0};
}
