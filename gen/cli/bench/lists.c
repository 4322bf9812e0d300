/* lists.c: targets and lists of columns of a benchmark with --keep-set, as a sampler's kept sets are. */
#include <stdlib.h>

#include "gen/cli/bench/bench.h"
#include "gen/cli/bench/kept.h"
#include "gen/cli/call/lists.h"
#include "gen/cli/call/normal.h"

/* Seeds of the data; each is another stream. */
enum { SEED_ORDER = 1 << 20, SEED_TARGETS, SEED_LISTS };

static uint64_t seed_of(const bench_data *data, int what) {
  return cli_hash((uint64_t)data->args->seed ^ (uint64_t)what << 32);
}

/* Makes the buffer of an array from ids. dtype: INT32 or INT64 */
static flp_status upload_ids(bench_data *data, flp_array_id id, flp_dtype dtype, const int64_t *ids, int64_t count) {
  FLP_TRY(call_make(&data->buffers, id, call_bytes(&data->call, id)));
  return cli_buffer_upload_ids(&data->buffers.at[id].buffer, dtype, ids, count);
}

static flp_status upload_lists(bench_data *data, const int64_t *target, const cli_lists *lists) {
  int64_t n = data->call.n;
  flp_dtype dtype = data->call.spec.target_dtype;
  data->call.list_count = lists->offsets[n];
  FLP_TRY(upload_ids(data, FLP_ARRAY_target, dtype, target, n));
  FLP_TRY(upload_ids(data, FLP_ARRAY_list_offsets, FLP_DTYPE_INT64, lists->offsets, n + 1));
  return upload_ids(data, FLP_ARRAY_list_ids, dtype, lists->ids, data->call.list_count);
}

static flp_status draw(bench_data *data, const cli_zipf *zipf) {
  int64_t n = data->call.n, *target = malloc((size_t)n * sizeof *target);
  cli_lists lists = {0};
  if (!target) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the targets");
  for (int64_t row = 0; row < n; row++) {
    target[row] = cli_zipf_draw(zipf, cli_hash(seed_of(data, SEED_TARGETS) + (uint64_t)row));
    if (bench_row_is_masked(row, data->args->masked)) target[row] = data->call.ignore_index;
  }
  flp_status status = cli_lists_draw(zipf, target, n, data->args->spec.kept, seed_of(data, SEED_LISTS), &lists);
  if (status == FLP_OK) status = upload_lists(data, target, &lists);
  cli_lists_destroy(&lists);
  free(target);
  return status;
}

flp_status bench_data_lists(bench_data *data) {
  cli_zipf zipf;
  FLP_TRY(cli_zipf_create(data->call.spec.vocab, seed_of(data, SEED_ORDER), &zipf));
  flp_status status = draw(data, &zipf);
  cli_zipf_destroy(&zipf);
  return status;
}

/* ---- of sharp rows ---- */

static flp_status draw_kept(bench_data *data, const cli_zipf *zipf, const bench_kept *kept) {
  cli_lists drawn, lists = {0};
  FLP_TRY(cli_lists_draw(zipf, kept->target, data->call.n, data->args->spec.kept, seed_of(data, SEED_LISTS), &drawn));
  flp_status status = bench_kept_draw(kept, &drawn, &lists);
  if (status == FLP_OK) status = upload_lists(data, kept->target, &lists);
  cli_lists_destroy(&lists);
  cli_lists_destroy(&drawn);
  return status;
}

flp_status bench_data_kept(bench_data *data, const rows_request *rows, const int64_t *target, const float *entropy) {
  int64_t vocab = data->call.spec.vocab, *order = malloc((size_t)vocab * sizeof *order);
  bench_kept kept = {rows, target, order, entropy};
  cli_zipf zipf;
  if (!order) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the order of the vocabulary");
  rows_order(rows, order);
  flp_status status = cli_zipf_create(vocab, seed_of(data, SEED_ORDER), &zipf);
  if (status == FLP_OK) status = draw_kept(data, &zipf, &kept);
  cli_zipf_destroy(&zipf);
  free(order);
  return status;
}
