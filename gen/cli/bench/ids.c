/* ids.c: targets and lists of columns of a benchmark, by Zipf's law: with --keep-set as a sampler's kept sets are; with
 * --targets as the most likely ids of a teacher are, no id twice. */
#include <stdlib.h>

#include "gen/cli/bench/bench.h"
#include "gen/cli/call/normal.h"
#include "gen/cli/call/teacher.h"

/* Seeds of the data; each is another stream. */
enum { SEED_ORDER = 1 << 20, SEED_OWN, SEED_LISTS, SEED_OTHERS, SEED_TEACHER };

static uint64_t seed_of(const bench_data *data, int what) {
  return cli_hash((uint64_t)data->args->seed ^ (uint64_t)what << 32);
}

/* ---- lists ---- */

static void draw_own(const bench_data *data, const cli_zipf *zipf, const bench_kept *kept, int64_t *out) {
  for (int64_t row = 0; row < data->call.n; row++) {
    int64_t drawn = cli_zipf_draw(zipf, cli_hash(seed_of(data, SEED_OWN) + (uint64_t)row));
    int is_masked = bench_row_is_masked(row, data->args->masked);
    out[row] = is_masked ? data->call.ignore_index : kept ? kept->target[row] : drawn;
  }
}

static flp_status upload_lists(bench_data *data, const int64_t *target, const cli_lists *lists) {
  data->call.list_count = lists->offsets[data->call.n];
  FLP_TRY(bench_data_ids(data, FLP_ARRAY_target, target));
  FLP_TRY(bench_data_ids(data, FLP_ARRAY_list_offsets, lists->offsets));
  return bench_data_ids(data, FLP_ARRAY_list_ids, lists->ids);
}

flp_status bench_data_lists(bench_data *data, const bench_kept *kept) {
  int64_t n = data->call.n, *target = malloc((size_t)n * sizeof *target);
  cli_zipf zipf = {0};
  cli_lists drawn = {0}, sharp = {0};
  if (!target) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the targets");
  flp_status status = cli_zipf_create(data->call.spec.vocab, seed_of(data, SEED_ORDER), &zipf);
  if (status == FLP_OK) {
    draw_own(data, &zipf, kept, target);
    status = cli_lists_draw(&zipf, target, n, data->args->spec.kept, seed_of(data, SEED_LISTS), &drawn);
  }
  if (status == FLP_OK && kept) status = bench_kept_draw(kept, &drawn, &sharp);
  if (status == FLP_OK) status = upload_lists(data, target, kept ? &sharp : &drawn);
  cli_lists_destroy(&sharp);
  cli_lists_destroy(&drawn);
  cli_zipf_destroy(&zipf);
  free(target);
  return status;
}

/* ---- several targets ---- */

/* An id that is drawn is, where the row has it already, another one. */
static void draw_others(const bench_data *data, const cli_zipf *zipf, const int64_t *own, int64_t *out) {
  int64_t count = data->call.spec.targets, ignored = data->call.ignore_index;
  for (int64_t row = 0; row < data->call.n; row++, out += count) {
    uint64_t seed = cli_hash(seed_of(data, SEED_OTHERS) + (uint64_t)row);
    out[0] = own[row];
    for (int64_t k = 1; k < count; k++) {
      int64_t drawn = cli_zipf_draw(zipf, cli_hash(seed + (uint64_t)k));
      out[k] = own[row] == ignored ? ignored : cli_id_apart(drawn, out, k, zipf->vocab);
    }
  }
}

flp_status bench_data_targets(bench_data *data, const int64_t *own) {
  const call_problem *call = &data->call;
  flp_dtype dtype = call->spec.target_dtype;
  int64_t *ids = malloc((size_t)(call->n * call->spec.targets) * sizeof *ids + 1);
  cli_zipf zipf = {0};
  if (!ids) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the targets");
  flp_status status = cli_zipf_create(call->spec.vocab, seed_of(data, SEED_ORDER), &zipf);
  if (status == FLP_OK) {
    draw_others(data, &zipf, own, ids);
    status = bench_data_ids(data, FLP_ARRAY_target, ids);
  }
  size_t bytes = (size_t)call->n * flp_dtype_bytes(dtype);
  if (status == FLP_OK) status = cli_buffer_create(data->buffers.device, bytes, &data->one_target);
  if (status == FLP_OK) status = cli_buffer_upload_ids(&data->one_target, dtype, own, call->n);
  cli_zipf_destroy(&zipf);
  free(ids);
  return status;
}

flp_status bench_data_teacher(bench_data *data) {
  return bench_data_drawn(data, FLP_ARRAY_teacher_logprob, seed_of(data, SEED_TEACHER), cli_teacher_draw);
}
