/* targets.c: several targets a row of a benchmark, as the most likely ids of a teacher are: by Zipf's law, no id twice. */
#include <stdlib.h>

#include "gen/cli/bench/bench.h"
#include "gen/cli/call/lists.h"
#include "gen/cli/call/normal.h"
#include "runtime/kernel/kernel.h"

/* Seeds of the data; each is another stream. */
enum { SEED_ORDER = 1 << 20, SEED_TARGETS = SEED_ORDER + 3 };

static uint64_t seed_of(const bench_data *data, int what) {
  return cli_hash((uint64_t)data->args->seed ^ (uint64_t)what << 32);
}

static int is_among(const int64_t *ids, int64_t count, int64_t id) {
  for (int64_t i = 0; i < count; i++)
    if (ids[i] == id) return 1;
  return 0;
}

/* The id that is drawn or, where that is taken, the next one of the vocabulary that is not; as many as there are. */
static int64_t draw_other(const cli_zipf *zipf, uint64_t seed, const int64_t *ids, int64_t count) {
  int64_t id = cli_zipf_draw(zipf, seed);
  for (int64_t tries = 0; tries < zipf->vocab && is_among(ids, count, id); tries++) id = (id + 1) % zipf->vocab;
  return id;
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

/* dtype: of the ids in the buffer */
static flp_status upload(cli_buffer *buffer, flp_dtype dtype, const int64_t *ids, int64_t count) {
  size_t bytes = (size_t)count * flp_dtype_bytes(dtype);
  void *narrow = malloc(bytes + 1);
  if (!narrow) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the targets");
  cli_ids_narrow(dtype, ids, count, narrow);
  flp_status status = cli_buffer_upload(buffer, 0, narrow, bytes);
  free(narrow);
  return status;
}

static flp_status make(bench_data *data, const cli_zipf *zipf, const int64_t *own) {
  const call_problem *call = &data->call;
  flp_dtype dtype = call->spec.target_dtype;
  int64_t count = call->n * call->spec.targets, *ids = malloc((size_t)count * sizeof *ids + 1);
  if (!ids) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the targets");
  draw(data, zipf, own, ids);
  flp_status status = call_make(&data->buffers, CALL_TARGET, call_bytes(call, CALL_TARGET));
  if (status == FLP_OK) status = upload(&data->buffers.at[CALL_TARGET].buffer, dtype, ids, count);
  size_t bytes = (size_t)call->n * flp_dtype_bytes(dtype);
  if (status == FLP_OK) status = cli_buffer_create(data->buffers.device, bytes, &data->one_target);
  if (status == FLP_OK) status = upload(&data->one_target, dtype, own, call->n);
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
