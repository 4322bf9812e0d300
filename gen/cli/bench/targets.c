/* targets.c: several targets a row of a benchmark, as the most likely ids of a teacher are: by Zipf's law, no id twice;
 * and what a teacher says of them. */
#include <stdlib.h>

#include "gen/cli/bench/bench.h"
#include "gen/cli/call/lists.h"
#include "gen/cli/call/normal.h"
#include "gen/cli/call/teacher.h"
#include "runtime/base/operands.h"
#include "runtime/kernel/kernel.h"

/* Seeds of the data; each is another stream. */
enum { SEED_ORDER = 1 << 20, SEED_TARGETS = SEED_ORDER + 3, SEED_TEACHER };

static uint64_t seed_of(const bench_data *data, int what) {
  return cli_hash((uint64_t)data->args->seed ^ (uint64_t)what << 32);
}

/* The id that is drawn or, where the row has it already, another one. */
static int64_t draw_other(const cli_zipf *zipf, uint64_t seed, const int64_t *ids, int64_t count) {
  return cli_id_apart(cli_zipf_draw(zipf, seed), ids, count, zipf->vocab);
}

static void draw(const bench_data *data, const cli_zipf *zipf, const int64_t *own, int64_t *out) {
  int64_t count = data->call.spec.targets, ignored = data->call.ignore_index;
  for (int64_t row = 0; row < data->call.n; row++, out += count) {
    uint64_t seed = cli_hash(seed_of(data, SEED_TARGETS) + (uint64_t)row);
    out[0] = own[row];
    for (int64_t k = 1; k < count; k++)
      out[k] = own[row] == ignored ? ignored : draw_other(zipf, cli_hash(seed + (uint64_t)k), out, k);
  }
}

static flp_status make(bench_data *data, const cli_zipf *zipf, const int64_t *own) {
  const call_problem *call = &data->call;
  flp_dtype dtype = call->spec.target_dtype;
  int64_t count = call->n * call->spec.targets, *ids = malloc((size_t)count * sizeof *ids + 1);
  if (!ids) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the targets");
  draw(data, zipf, own, ids);
  flp_status status = call_make(&data->buffers, FLP_ARRAY_target, call_bytes(call, FLP_ARRAY_target));
  if (status == FLP_OK) status = cli_buffer_upload_ids(&data->buffers.at[FLP_ARRAY_target].buffer, dtype, ids, count);
  size_t bytes = (size_t)call->n * flp_dtype_bytes(dtype);
  if (status == FLP_OK) status = cli_buffer_create(data->buffers.device, bytes, &data->one_target);
  if (status == FLP_OK) status = cli_buffer_upload_ids(&data->one_target, dtype, own, call->n);
  free(ids);
  return status;
}

flp_status bench_data_targets(bench_data *data, const int64_t *own) {
  cli_zipf zipf;
  FLP_TRY(cli_zipf_create(data->call.spec.vocab, seed_of(data, SEED_ORDER), &zipf));
  flp_status status = make(data, &zipf, own);
  cli_zipf_destroy(&zipf);
  return status;
}

flp_status bench_data_teacher(bench_data *data) {
  int64_t n = data->call.n, count = flp_spec_targets(&data->call.spec);
  size_t bytes = call_bytes(&data->call, FLP_ARRAY_teacher_logprob);
  float *values = malloc(bytes + 1);
  if (!values) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the teacher");
  for (int64_t row = 0; row < n; row++)
    cli_teacher_draw(cli_hash(seed_of(data, SEED_TEACHER) + (uint64_t)row), count, values + row * count);
  flp_status status = call_make(&data->buffers, FLP_ARRAY_teacher_logprob, bytes);
  if (status == FLP_OK)
    status = cli_buffer_upload(&data->buffers.at[FLP_ARRAY_teacher_logprob].buffer, 0, values, bytes);
  free(values);
  return status;
}
