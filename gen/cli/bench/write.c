/* write.c: `flpgen bench --write-rows`, which writes the operands that would be measured instead of measuring.
 *
 * Other programs measure on the same rows so: python -m flp.bench, flpgen run. Nothing is timed, so that without a GPU
 * the CPU gives the entropies; it takes long for a real head. */
#include <stdio.h>
#include <stdlib.h>

#include "gen/cli/bench/bench.h"
#include "gen/cli/shared/record.h"
#include "gen/cli/shared/text.h"
#include "gen/cli/tensors/safetensors.h"

/* What is written, by the names that `flpgen run` looks for. */
static const struct {
  flp_array_id id;
  const char *name;
} operands[] = {{FLP_ARRAY_hidden, "hidden"},
                {FLP_ARRAY_weight, "weight"},
                {FLP_ARRAY_bias, "bias"},
                {FLP_ARRAY_target, "target"},
                {FLP_ARRAY_temperature_rows, "temperature"}};
enum { OPERANDS = sizeof operands / sizeof operands[0] };

static flp_status check_fields(const bench_args *args) {
  const flp_spec *spec = &args->spec.spec;
  const flp_options *options = &args->options;
  const bench_refusal fields[] = {{args->row_count > 1, "--rows: a list"},
                                  {args->peers != NULL, "--peers"},
                                  {args->json != NULL, "--json"},
                                  {args->spec.loss.name != NULL, "--loss"},
                                  {spec->grads != 0, "--grad"},
                                  {spec->keep != 0, "--keep"},
                                  {spec->listed, "--keep-set"},
                                  {spec->tail > 0, "--tail"},
                                  {spec->targets > 1, "--targets"},
                                  {spec->topk, "--topk"},
                                  {spec->rank, "--rank"},
                                  {spec->statistics, "--statistics"},
                                  {args->spec.tune != NULL, "--tune"},
                                  {options->mode != 0, "--mode"},
                                  {options->budget_bytes != 0, "--budget"}};
  return bench_refuse(fields, sizeof fields / sizeof fields[0], "--write-rows, which measures nothing");
}

/* The GPU, or the CPU where there is none. */
static flp_status open_device(bench_args *args, cli_device *out) {
  flp_status status = cli_device_open(args->options.device, out);
  if (status != FLP_ERROR_UNAVAILABLE) return status;
  args->options.device = FLP_DEVICE_HOST;
  return cli_device_open(FLP_DEVICE_HOST, out);
}

static cli_tensor tensor_of(const bench_data *data, int which) {
  const flp_spec *spec = &data->call.spec;
  flp_array_id id = operands[which].id;
  return (cli_tensor){.name = operands[which].name,
                      .dtype = cli_tensor_dtype_of(flp_array_dtype(id, spec)),
                      .rank = FLP_ARRAY[id].columns == FLP_SIZE_D ? 2 : 1,
                      .shape = {FLP_ARRAY[id].rows == FLP_SIZE_V ? spec->vocab : data->call.n, spec->hidden}};
}

static flp_status write_operands(bench_data *data, const char *path) {
  cli_tensor tensors[OPERANDS];
  void *memory[OPERANDS] = {NULL};
  size_t count = 0;
  flp_status status = FLP_OK;
  for (int i = 0; i < OPERANDS && status == FLP_OK; i++) {
    call_buffer *buffer = &data->buffers.at[operands[i].id];
    int overrun = 0;
    status = call_buffer_take(buffer, buffer->bytes, &memory[i], &overrun);
    if (!memory[i]) continue;
    tensors[count] = tensor_of(data, i);
    tensors[count++].data = memory[i];
  }
  if (status == FLP_OK) status = cli_safetensors_write(path, tensors, count);
  for (int i = 0; i < OPERANDS; i++) free(memory[i]);
  return status;
}

static void print_operands(const bench_args *args, const bench_data *data, const cli_device *device) {
  const flp_spec *spec = &data->call.spec;
  cli_print(2, "device: %s", device->driver ? device->info.name : "the CPU");
  cli_print(2, "%s: hidden (%lld, %lld), weight (%lld, %lld), target (%lld)%s%s", args->write_rows,
            (long long)data->call.n, (long long)spec->hidden, (long long)spec->vocab, (long long)spec->hidden,
            (long long)data->call.n, spec->has_bias ? ", bias" : "", spec->per_row_temperature ? ", temperature" : "");
  if (args->data != CLI_DATA_RANDOM) bench_print_entropies(args, &data->entropies);
}

flp_status bench_write_rows(const bench_args *given) {
  bench_args args = *given;
  cli_device device = {.ordinal = FLP_DEVICE_HOST};
  bench_data data = {.args = &args, .buffers = {.device = &device}};
  FLP_TRY(check_fields(&args));
  FLP_TRY(cli_record_probe(args.write_rows));
  flp_status status = open_device(&args, &device);
  if (status == FLP_OK) status = bench_data_head(&data);
  if (status == FLP_OK) status = bench_data_rows(&data, args.rows[0]);
  if (status == FLP_OK) status = write_operands(&data, args.write_rows);
  if (status == FLP_OK) print_operands(&args, &data, &device);
  flp_failure held = flp_failure_hold(status);
  bench_data_clear(&data);
  cli_device_close(&device);
  return flp_failure_restore(&held);
}
