/* arrays.c: the arrays of a benchmark, each made by its id. */
#include <stdlib.h>

#include "gen/cli/bench/bench.h"
#include "gen/cli/call/normal.h"

int64_t bench_data_elements(const bench_data *data, flp_array_id id) {
  return (int64_t)(call_bytes(&data->call, id) / call_array_of(&data->call, id).element);
}

flp_status bench_data_make(bench_data *data, flp_array_id id) {
  return call_make(&data->buffers, id, call_bytes(&data->call, id));
}

flp_status bench_data_ids(bench_data *data, flp_array_id id, const int64_t *ids) {
  flp_dtype dtype = flp_array_dtype(id, &data->call.spec);
  FLP_TRY(bench_data_make(data, id));
  return cli_buffer_upload_ids(&data->buffers.at[id].buffer, dtype, ids, bench_data_elements(data, id));
}

flp_status bench_data_drawn(bench_data *data, flp_array_id id, uint64_t seed,
                            void (*draw)(uint64_t seed, int64_t count, float *out)) {
  size_t bytes = call_bytes(&data->call, id);
  int64_t width = call_size(&data->call, FLP_ARRAY[id].columns);
  float *values = malloc(bytes + 1);
  if (!values) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for %s", FLP_ARRAY[id].name);
  for (int64_t row = 0; row < data->call.n; row++) draw(cli_hash(seed + (uint64_t)row), width, values + row * width);
  flp_status status = bench_data_make(data, id);
  if (status == FLP_OK) status = cli_buffer_upload(&data->buffers.at[id].buffer, 0, values, bytes);
  free(values);
  return status;
}
