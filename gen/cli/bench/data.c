/* data.c: the data that is measured on: random, never zero (a product of zeros runs faster, and lies), or rows.h's. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/bench/bench.h"
#include "gen/cli/call/normal.h"
#include "gen/cli/kernels/parallel.h"
#include "runtime/base/half.h"

/* Elements uploaded at a time, and made by one thread at a time. */
enum { BLOCK = 1 << 24, PART = 1 << 18 };
_Static_assert(PART % CLI_NORMAL_BLOCK == 0, "parts are made as the whole is");

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

/* Those of one array are the same for the same seed, whatever arrays there are, and not those of another. */
static uint64_t seed_of(const bench_data *data, flp_array_id id) {
  enum { APART = 34 }; /* of seeds: hidden states, weight, bias and targets are drawn as those of the records */
  return cli_hash((uint64_t)data->args->seed * APART + id);
}

static flp_status fill_normal(cli_buffer *buffer, flp_dtype dtype, double sigma, uint64_t seed, int64_t count) {
  cli_normal normal;
  FLP_TRY(cli_normal_create(dtype, sigma, seed, &normal));
  void *block = malloc((size_t)(count < BLOCK ? count : BLOCK) * (size_t)flp_half_bytes(dtype));
  flp_status status = block ? upload_blocks(buffer, &normal, count, block)
                            : flp_fail(FLP_ERROR_MEMORY, "out of host memory for random data");
  free(block);
  cli_normal_destroy(&normal);
  return status;
}

flp_status bench_data_normal(bench_data *data, flp_array_id id, double sigma) {
  flp_dtype dtype = flp_array_dtype(id, &data->call.spec);
  FLP_TRY(bench_data_make(data, id));
  return fill_normal(&data->buffers.at[id].buffer, dtype, sigma, seed_of(data, id), bench_data_elements(data, id));
}

/* As random operands are. */
flp_status bench_data_narrow(bench_data *data, flp_array_id id) {
  const flp_spec *spec = &data->call.spec;
  cli_buffer *buffer = &data->narrow[id - FLP_ARRAY_hidden];
  int64_t count = bench_data_elements(data, id);
  if (flp_array_dtype(id, spec) == spec->dtype) return FLP_OK;
  cli_buffer_destroy(buffer);
  FLP_TRY(cli_buffer_create(data->buffers.device, (size_t)count * flp_dtype_bytes(spec->dtype), buffer));
  double sigma = id == FLP_ARRAY_hidden ? 1.0 : 1.5 / sqrt((double)spec->hidden);
  return fill_normal(buffer, spec->dtype, sigma, seed_of(data, id), count);
}

/* What belongs to the head, whatever rows there are. */
static int is_of_head(flp_array_id id) {
  return FLP_ARRAY[id].rows == FLP_SIZE_V || FLP_ARRAY[id].rows == FLP_SIZE_R;
}

/* Those of the head, or the others, without metrics, which nothing times. */
static flp_status make_outputs(bench_data *data, int of_head) {
  for (int i = 0; i < FLP_ARRAYS; i++) {
    flp_array_id id = (flp_array_id)i;
    if (flp_array_is_written(id) && is_of_head(id) == of_head && call_array_of(&data->call, id).wanted)
      FLP_TRY(bench_data_make(data, id));
  }
  return FLP_OK;
}

/* Statistics are for the passes of a spec with a loss that are timed alone: tune's. */
static void set_problem(bench_data *data, int64_t n) {
  const cli_spec_args *spec = &data->args->spec;
  data->call = call_problem_of(&spec->spec, n);
  data->call.loss = cli_loss_of(&spec->spec);
  data->call.loss_parameters = spec->loss.parameters;
  data->call.scale = spec->scale;
  data->call.gives_stats = spec->spec.grads != 0;
}

flp_status bench_data_head(bench_data *data) {
  set_problem(data, 0);
  if (data->args->data != CLI_DATA_RANDOM)
    FLP_TRY(rows_make_weight(&data->call, seed_of(data, FLP_ARRAY_weight), &data->buffers));
  else /* scores of standard deviation 1.5: neither flat nor saturated */
    FLP_TRY(bench_data_normal(data, FLP_ARRAY_weight, 1.5 / sqrt((double)data->call.spec.hidden)));
  if (data->call.spec.has_bias) FLP_TRY(bench_data_normal(data, FLP_ARRAY_bias, 0.5));
  if (data->call.spec.lora_rank) { /* u near 1, and what it adds to a score a tenth of one */
    FLP_TRY(bench_data_normal(data, FLP_ARRAY_lora_a, 1 / sqrt((double)data->call.spec.hidden)));
    FLP_TRY(bench_data_normal(data, FLP_ARRAY_lora_b, 0.15 / sqrt((double)data->call.spec.lora_rank)));
  }
  FLP_TRY(make_outputs(data, 1));
  return cli_buffer_fill(&data->buffers.at[FLP_ARRAY_grad_weight].buffer, 0); /* it may be added to */
}

/* Of a row, as make_targets has it. */
static int64_t target_of(const bench_data *data, const int64_t *ids, int64_t row) {
  uint64_t random = cli_hash(seed_of(data, FLP_ARRAY_target) + (uint64_t)row);
  if (bench_row_is_masked(row, data->args->masked)) return data->call.ignore_index;
  return ids ? ids[row] : (int64_t)(random % (uint64_t)data->call.spec.vocab);
}

/* ids: (n) of the vocabulary; NULL for random ones */
static flp_status make_targets(bench_data *data, const int64_t *ids) {
  int64_t n = data->call.n, *own = malloc((size_t)n * sizeof *own);
  if (!own) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the targets");
  for (int64_t row = 0; row < n; row++) own[row] = target_of(data, ids, row);
  flp_status status =
      data->call.spec.targets > 1 ? bench_data_targets(data, own) : bench_data_ids(data, FLP_ARRAY_target, own);
  free(own);
  return status;
}

/* From 0.75 to 1.25. */
static void draw_temperatures(uint64_t seed, int64_t count, float *out) {
  for (int64_t i = 0; i < count; i++) out[i] = 0.75f + 0.5f * 0x1p-24f * (float)(seed >> 40);
}

/* What the loss reads: rewards and vectors of standard deviation 1, weights near 1, policies before as flat ones; of
 * several targets a teacher. */
static flp_status make_loss_inputs(bench_data *data) {
  uint32_t read = data->call.loss ? flp_loss_inputs(data->call.loss) : 0;
  for (int i = FLP_LOSS_OLD_LOGPROB; i < FLP_LOSS_INPUTS_MAX; i++)
    if (read >> i & 1) FLP_TRY(bench_data_normal(data, call_loss_input(i), 1.0));
  return read >> FLP_LOSS_TEACHER_LOGPROB & 1 ? bench_data_teacher(data) : FLP_OK;
}

flp_status bench_data_follow(bench_data *data) {
  static const int followers[] = {FLP_LOSS_OLD_LOGPROB, FLP_LOSS_REF_LOGPROB};
  int64_t n = data->call.n;
  size_t bytes = (size_t)n * sizeof(float);
  float *logprob = malloc(2 * bytes), *other = logprob ? logprob + n : NULL;
  if (!logprob) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the policies before");
  flp_status status = cli_buffer_download(&data->buffers.at[FLP_ARRAY_logprob].buffer, 0, logprob, bytes);
  for (int i = 0; i < 2 && status == FLP_OK; i++) {
    cli_buffer *input = &data->buffers.at[call_loss_input(followers[i])].buffer;
    if (!input->data) continue;
    status = cli_buffer_download(input, 0, other, bytes); /* of standard deviation 1 */
    for (int64_t row = 0; row < n; row++) other[row] = fminf(logprob[row] + 0.1f * other[row], 0);
    if (status == FLP_OK) status = cli_buffer_upload(input, 0, other, bytes);
  }
  free(logprob);
  return status;
}

/* Targets of sharp rows, and their lists. entropy: (n), which is sorted */
static flp_status follow_rows(bench_data *data, const rows_request *request, int64_t *target, float *entropy) {
  int64_t n = data->call.n;
  for (int64_t row = 0; row < n; row++)
    if (bench_row_is_masked(row, data->args->masked)) target[row] = data->call.ignore_index;
  const bench_kept kept = {request, target, entropy};
  FLP_TRY(data->call.spec.listed ? bench_data_lists(data, &kept) : make_targets(data, target));
  data->entropies.n = n;
  rows_quantiles(entropy, n, data->entropies.quantile);
  return FLP_OK;
}

/* Hidden states and targets of rows as sharp as a trained model's. */
static flp_status make_sharp(bench_data *data) {
  int64_t n = data->call.n, *target = malloc((size_t)n * sizeof *target);
  float *entropy = malloc((size_t)n * sizeof *entropy);
  rows_request request = {data->args->data, seed_of(data, FLP_ARRAY_hidden), &data->call, &data->args->options};
  flp_status status = target && entropy ? rows_make(&request, &data->buffers, target, entropy)
                                        : flp_fail(FLP_ERROR_MEMORY, "out of host memory for the targets");
  if (status == FLP_OK) status = follow_rows(data, &request, target, entropy);
  free(target);
  free(entropy);
  return status;
}

static flp_status make_random(bench_data *data) {
  FLP_TRY(bench_data_normal(data, FLP_ARRAY_hidden, 1.0));
  return data->call.spec.listed ? bench_data_lists(data, NULL) : make_targets(data, NULL);
}

flp_status bench_data_rows(bench_data *data, int64_t n) {
  bench_data_clear_rows(data);
  set_problem(data, n);
  const flp_spec *spec = &data->call.spec;
  if (spec->per_row_temperature)
    FLP_TRY(bench_data_drawn(data, FLP_ARRAY_temperature_rows, seed_of(data, FLP_ARRAY_temperature_rows),
                             draw_temperatures));
  FLP_TRY(data->args->data == CLI_DATA_RANDOM ? make_random(data) : make_sharp(data));
  FLP_TRY(make_loss_inputs(data));
  if (spec->grads) FLP_TRY(bench_data_normal(data, FLP_ARRAY_grad_logprob, 1.0));
  if (spec->grads && spec->entropy == FLP_ENTROPY_BACKWARD)
    FLP_TRY(bench_data_normal(data, FLP_ARRAY_grad_entropy, 1.0));
  return make_outputs(data, 0);
}

void bench_data_clear_rows(bench_data *data) {
  for (int id = 0; id < FLP_ARRAYS; id++)
    if (!is_of_head((flp_array_id)id)) call_buffer_clear(&data->buffers.at[id]);
  cli_buffer_destroy(&data->scores);
  for (int i = 0; i < 2; i++) cli_buffer_destroy(&data->narrow[i]);
  cli_buffer_destroy(&data->one_target);
  data->entropies = (bench_entropies){0};
}

void bench_data_clear(bench_data *data) {
  bench_data_clear_rows(data);
  call_clear(&data->buffers);
  cli_buffer_destroy(&data->workspace);
}

flp_args bench_data_args(const bench_data *data, flp_pass pass, const flp_layout *layout) {
  flp_args args = call_args(&data->buffers, &data->call, pass, 0);
  args.workspace_bytes = (size_t)layout->bytes;
  return args;
}
