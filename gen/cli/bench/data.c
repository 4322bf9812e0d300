/* data.c: the data that is measured on: random, never zero (a product of zeros runs faster, and lies). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/bench/bench.h"
#include "gen/cli/shared/normal.h"
#include "gen/cli/shared/parallel.h"
#include "runtime/base/half.h"
#include "runtime/kernel/kernel.h"

/* Elements uploaded at a time, and made by one thread at a time. */
enum { BLOCK = 1 << 24, PART = 1 << 18 };
_Static_assert(PART % CLI_NORMAL_BLOCK == 0, "parts are made as the whole is");

enum { IGNORE_INDEX = -100 };

flp_status bench_data_create(bench_data *data, bench_slot slot, size_t bytes) {
  return cli_buffer_create(data->device, bytes, &data->slot[slot]);
}

typedef struct filling {
  const cli_normal *normal;
  int64_t begin, count;
  char *block;
} filling;

static flp_status fill_part(void *context, size_t i) {
  const filling *whole = context;
  int64_t from = (int64_t)i * PART, some = whole->count - from < PART ? whole->count - from : PART;
  cli_normal_fill(whole->normal, whole->begin + from, some, whole->block + from * flp_half_bytes(whole->normal->dtype));
  return FLP_OK;
}

static flp_status upload_blocks(cli_buffer *buffer, const cli_normal *normal, int64_t count, void *block) {
  size_t element = (size_t)flp_half_bytes(normal->dtype);
  for (int64_t begin = 0; begin < count; begin += BLOCK) {
    int64_t some = count - begin < BLOCK ? count - begin : BLOCK;
    filling whole = {normal, begin, some, block};
    FLP_TRY(cli_parallel(fill_part, &whole, (size_t)((some + PART - 1) / PART), NULL));
    FLP_TRY(cli_buffer_upload(buffer, (size_t)begin * element, block, (size_t)some * element));
  }
  return FLP_OK;
}

/* Makes a buffer of count normal numbers; each slot has a stream of its own. */
static flp_status create_normal(bench_data *data, bench_slot slot, flp_dtype dtype, int64_t count, double sigma) {
  size_t element = (size_t)flp_half_bytes(dtype);
  cli_normal normal;
  FLP_TRY(bench_data_create(data, slot, (size_t)count * element));
  FLP_TRY(cli_normal_create(dtype, sigma, cli_hash((uint64_t)data->args->seed * BENCH_SLOTS + slot), &normal));
  void *block = malloc((size_t)(count < BLOCK ? count : BLOCK) * element);
  flp_status status = block ? upload_blocks(&data->slot[slot], &normal, count, block)
                            : flp_fail(FLP_ERROR_MEMORY, "out of host memory for random data");
  free(block);
  cli_normal_destroy(&normal);
  return status;
}

static flp_status create_outputs_of_head(bench_data *data) {
  const flp_spec *spec = &data->args->spec.spec;
  if (spec->grads & FLP_GRAD_WEIGHT) {
    size_t elements = (size_t)spec->vocab * (size_t)spec->hidden;
    FLP_TRY(bench_data_create(data, BENCH_GRAD_WEIGHT, elements * flp_dtype_bytes(spec->grad_weight_dtype)));
    FLP_TRY(cli_buffer_fill(&data->slot[BENCH_GRAD_WEIGHT], 0)); /* it may be added to */
  }
  if (spec->grads & FLP_GRAD_BIAS)
    FLP_TRY(bench_data_create(data, BENCH_GRAD_BIAS, (size_t)spec->vocab * flp_dtype_bytes(spec->dtype)));
  return FLP_OK;
}

flp_status bench_data_head(bench_data *data) {
  const flp_spec *spec = &data->args->spec.spec;
  /* Scores of standard deviation 1.5: neither flat nor saturated. */
  FLP_TRY(create_normal(data, BENCH_WEIGHT, spec->dtype, spec->vocab * spec->hidden, 1.5 / sqrt((double)spec->hidden)));
  if (spec->has_bias) FLP_TRY(create_normal(data, BENCH_BIAS, spec->dtype, spec->vocab, 0.5));
  return create_outputs_of_head(data);
}

static flp_status create_targets(bench_data *data, int64_t n) {
  const flp_spec *spec = &data->args->spec.spec;
  int narrow = spec->target_dtype == FLP_DTYPE_INT32;
  size_t bytes = (size_t)n * (narrow ? sizeof(int32_t) : sizeof(int64_t));
  uint64_t seed = cli_hash((uint64_t)data->args->seed * BENCH_SLOTS + BENCH_TARGET);
  FLP_TRY(bench_data_create(data, BENCH_TARGET, bytes));
  char *targets = malloc(bytes);
  if (!targets) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the targets");
  for (int64_t row = 0; row < n; row++) {
    int64_t id = (int64_t)(cli_hash(seed + (uint64_t)row) % (uint64_t)spec->vocab);
    if (bench_row_is_masked(row, data->args->masked)) id = IGNORE_INDEX;
    int32_t narrow_id = (int32_t)id;
    memcpy(targets + row * (narrow ? 4 : 8), narrow ? (void *)&narrow_id : (void *)&id, narrow ? 4 : 8);
  }
  flp_status status = cli_buffer_upload(&data->slot[BENCH_TARGET], 0, targets, bytes);
  free(targets);
  return status;
}

/* Temperatures from 0.75 to 1.25. */
static flp_status create_temperatures(bench_data *data, int64_t n) {
  uint64_t seed = cli_hash((uint64_t)data->args->seed * BENCH_SLOTS + BENCH_TEMPERATURE);
  FLP_TRY(bench_data_create(data, BENCH_TEMPERATURE, (size_t)n * sizeof(float)));
  float *values = malloc((size_t)n * sizeof *values);
  if (!values) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the temperatures");
  for (int64_t row = 0; row < n; row++)
    values[row] = 0.75f + 0.5f * 0x1p-24f * (float)(cli_hash(seed + (uint64_t)row) >> 40);
  flp_status status = cli_buffer_upload(&data->slot[BENCH_TEMPERATURE], 0, values, (size_t)n * sizeof *values);
  free(values);
  return status;
}

/* What the loss reads: rewards and vectors of standard deviation 1, weights near 1, policies before as flat ones. */
static flp_status create_loss_inputs(bench_data *data, int64_t n) {
  const flp_loss *loss = cli_loss_of(&data->args->spec.spec);
  uint32_t read = loss ? flp_loss_inputs(loss) : 0;
  for (int i = FLP_LOSS_OLD_LOGPROB; i < FLP_LOSS_INPUTS_MAX; i++)
    if (read >> i & 1) FLP_TRY(create_normal(data, (bench_slot)(BENCH_LOSS_INPUT + i), FLP_DTYPE_FP32, n, 1.0));
  return loss ? bench_data_create(data, BENCH_LOSS, (size_t)n * sizeof(float)) : FLP_OK;
}

flp_status bench_data_follow(bench_data *data, int64_t n) {
  static const int followers[] = {FLP_LOSS_OLD_LOGPROB, FLP_LOSS_REF_LOGPROB};
  size_t bytes = (size_t)n * sizeof(float);
  float *logprob = malloc(2 * bytes), *other = logprob ? logprob + n : NULL;
  if (!logprob) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the policies before");
  flp_status status = cli_buffer_download(&data->slot[BENCH_LOGPROB], 0, logprob, bytes);
  for (int i = 0; i < 2 && status == FLP_OK; i++) {
    cli_buffer *input = &data->slot[BENCH_LOSS_INPUT + followers[i]];
    if (!input->data) continue;
    status = cli_buffer_download(input, 0, other, bytes); /* of standard deviation 1 */
    for (int64_t row = 0; row < n; row++) other[row] = fminf(logprob[row] + 0.1f * other[row], 0);
    if (status == FLP_OK) status = cli_buffer_upload(input, 0, other, bytes);
  }
  free(logprob);
  return status;
}

static flp_status create_outputs_of_rows(bench_data *data, int64_t n) {
  const flp_spec *spec = &data->args->spec.spec;
  size_t rows = (size_t)n;
  FLP_TRY(bench_data_create(data, BENCH_LOGPROB, rows * sizeof(float)));
  if (spec->entropy != FLP_ENTROPY_NONE) FLP_TRY(bench_data_create(data, BENCH_ENTROPY, rows * sizeof(float)));
  if (spec->grads) FLP_TRY(bench_data_create(data, BENCH_STATS, rows * 4 * sizeof(float)));
  if (!(spec->grads & FLP_GRAD_HIDDEN)) return FLP_OK;
  return bench_data_create(data, BENCH_GRAD_HIDDEN,
                           rows * (size_t)spec->hidden * flp_dtype_bytes(spec->grad_hidden_dtype));
}

flp_status bench_data_rows(bench_data *data, int64_t n) {
  const flp_spec *spec = &data->args->spec.spec;
  bench_data_clear_rows(data);
  FLP_TRY(create_normal(data, BENCH_HIDDEN, spec->dtype, n * spec->hidden, 1.0));
  FLP_TRY(create_targets(data, n));
  if (spec->per_row_temperature) FLP_TRY(create_temperatures(data, n));
  FLP_TRY(create_loss_inputs(data, n));
  if (spec->grads) FLP_TRY(create_normal(data, BENCH_UPSTREAM_LOGPROB, FLP_DTYPE_FP32, n, 1.0));
  if (spec->grads && spec->entropy == FLP_ENTROPY_BACKWARD)
    FLP_TRY(create_normal(data, BENCH_UPSTREAM_ENTROPY, FLP_DTYPE_FP32, n, 1.0));
  return create_outputs_of_rows(data, n);
}

void bench_data_clear_rows(bench_data *data) {
  for (int i = BENCH_HIDDEN; i < BENCH_SLOTS; i++) cli_buffer_destroy(&data->slot[i]);
}

void bench_data_clear(bench_data *data) {
  for (int i = 0; i < BENCH_SLOTS; i++) cli_buffer_destroy(&data->slot[i]);
}

static void set_step(const bench_data *data, flp_args *args) {
  const float *inputs[FLP_LOSS_INPUTS_MAX];
  for (int i = 0; i < FLP_LOSS_INPUTS_MAX; i++) inputs[i] = data->slot[BENCH_LOSS_INPUT + i].data;
  args->old_logprob = inputs[FLP_LOSS_OLD_LOGPROB];
  args->ref_logprob = inputs[FLP_LOSS_REF_LOGPROB];
  args->advantage = inputs[FLP_LOSS_ADVANTAGE];
  args->row_weight = inputs[FLP_LOSS_WEIGHT];
  memcpy(args->vectors, inputs + FLP_LOSS_FIRST_VECTOR, sizeof args->vectors);
  args->loss_parameters = data->args->spec.loss.parameters;
  args->loss = data->slot[BENCH_LOSS].data;
  args->stats = NULL;
}

static void set_gradients(const bench_data *data, flp_args *args) {
  args->grad_hidden = data->slot[BENCH_GRAD_HIDDEN].data;
  args->grad_weight = data->slot[BENCH_GRAD_WEIGHT].data;
  args->grad_bias = data->slot[BENCH_GRAD_BIAS].data;
}

flp_args bench_data_args(const bench_data *data, flp_pass pass, int64_t n, const flp_layout *layout) {
  const cli_buffer *slot = data->slot;
  flp_args args = FLP_ARGS_INIT;
  args.pass = pass;
  args.n = n;
  args.hidden = slot[BENCH_HIDDEN].data;
  args.weight = slot[BENCH_WEIGHT].data;
  args.bias = slot[BENCH_BIAS].data;
  args.target = slot[BENCH_TARGET].data;
  args.temperature_rows = slot[BENCH_TEMPERATURE].data;
  args.scale = (float)data->args->spec.scale;
  args.ignore_index = IGNORE_INDEX;
  args.stats = slot[BENCH_STATS].data;
  args.workspace = slot[BENCH_WORKSPACE].data;
  args.workspace_bytes = (size_t)layout->bytes;
  args.stream = data->device->stream;
  args.saved = slot[BENCH_SAVED].data; /* NULL but in mode S */
  args.saved_bytes = slot[BENCH_SAVED].bytes;
  if (pass != FLP_PASS_BACKWARD) {
    args.logprob = slot[BENCH_LOGPROB].data;
    args.entropy = slot[BENCH_ENTROPY].data;
  } else {
    args.grad_logprob = slot[BENCH_UPSTREAM_LOGPROB].data;
    args.grad_entropy = slot[BENCH_UPSTREAM_ENTROPY].data;
  }
  if (pass != FLP_PASS_FORWARD) set_gradients(data, &args);
  if (pass == FLP_PASS_STEP) set_step(data, &args);
  return args;
}
