/* demo.c: a problem of random data at real size, the same for the same seed on every machine. */
#include <math.h>

#include "gen/cli/bench/bench.h"
#include "gen/cli/run/run.h"
#include "gen/cli/shared/hfconfig.h"
#include "gen/cli/shared/spec_args.h"
#include "runtime/api/validate.h"
#include "runtime/base/operands.h"
#include "runtime/kernel/features.h"

static flp_status choose_lists(const run_args *args, run_problem *problem) {
  flp_spec asked = args->spec;
  problem->spec.listed = asked.listed = args->kept > 0;
  asked.loss = problem->spec.loss;
  FLP_TRY(flp_features_check(&asked, FLP_SURFACE_OPTION));
  return cli_spec_check_kept(args->kept, problem->spec.vocab);
}

static flp_status check_args(const run_args *args) {
  for (int i = 0; i < FLP_ARRAYS; i++) /* hidden and temperature may be numbers */
    if (i != FLP_ARRAY_hidden && i != FLP_ARRAY_temperature_rows && args->source[i])
      return flp_fail(FLP_ERROR_ARGUMENT, "--%s: '%s' is not accepted with --demo, which makes its own data",
                      run_operand_option((flp_array_id)i), args->source[i]);
  if (args->spec.mixed)
    return flp_fail(FLP_ERROR_ARGUMENT, "--mixed: '%s' is not accepted with --demo, whose data has one dtype",
                    flp_mixed_name(args->spec.mixed));
  if (args->files.count)
    return flp_fail(FLP_ERROR_ARGUMENT, "--input: '%s' is not accepted with --demo, which makes its own data",
                    args->files.text[0]);
  return FLP_OK;
}

static flp_status choose_sizes(const run_args *args, run_problem *problem) {
  cli_hfconfig model = {.vocab = 151936, .hidden = 4096, .dtype = FLP_DTYPE_BF16};
  if (args->model) FLP_TRY(cli_hfconfig_read(args->model, &model));
  flp_spec *spec = &problem->spec;
  spec->vocab = args->spec.vocab ? args->spec.vocab : model.vocab;
  spec->hidden = model.hidden;
  if (args->source[FLP_ARRAY_hidden])
    FLP_TRY(cli_parse_integer("--hidden", args->source[FLP_ARRAY_hidden], 8, FLP_HIDDEN_MAX, &spec->hidden));
  int own = run_given(args, FLP_FIELD_dtype);
  if (own || model.dtype) spec->dtype = own ? args->spec.dtype : model.dtype;
  if (args->source[FLP_ARRAY_temperature_rows])
    FLP_TRY(cli_parse_positive("--temperature", args->source[FLP_ARRAY_temperature_rows], &problem->temperature));
  problem->n = args->rows;
  problem->spec.lora_rank = args->spec.lora_rank;
  problem->rank = args->spec.targets > 1 ? 2 : 1;
  problem->shape[0] = args->rows;
  problem->shape[1] = args->spec.targets;
  return FLP_OK;
}

/* The operands of a benchmark that have been made, but for outputs; on policy, of weight 1. */
static flp_status take(bench_data *data, run_problem *problem) {
  for (int i = 0; i < FLP_ARRAYS; i++) {
    flp_array_id id = (flp_array_id)i;
    int overrun, is_taken = id != FLP_ARRAY_old_logprob && id != FLP_ARRAY_row_weight && !flp_array_is_written(id);
    if (is_taken)
      FLP_TRY(call_buffer_take(&data->buffers.at[id], call_bytes(&data->call, id), &problem->memory[id], &overrun));
    problem->operand[id] = problem->memory[id];
  }
  problem->list_count = data->call.list_count;
  float *reference = problem->memory[FLP_ARRAY_ref_logprob]; /* near what such scores give */
  for (int64_t row = 0; reference && row < problem->n; row++)
    reference[row] = fminf(reference[row] - (float)log((double)problem->spec.vocab) - 2, 0);
  return FLP_OK;
}

/* spec: resolved. Logprobs have gradients where gradients are asked for, unless a loss gives them. */
static flp_status make(const run_args *args, const flp_spec *spec, run_problem *problem) {
  cli_device host;
  bench_args given = {.spec = CLI_SPEC_ARGS_INIT, .masked = 1.0 / 3, .seed = args->seed, .data = CLI_DATA_RANDOM};
  given.spec.spec = *spec;
  given.spec.loss = args->loss;
  given.spec.kept = args->kept;
  FLP_TRY(cli_device_open(FLP_DEVICE_HOST, &host));
  bench_data data = {.args = &given, .buffers = {.device = &host}};
  flp_status status = bench_data_head(&data);
  if (status == FLP_OK) status = bench_data_rows(&data, problem->n);
  if (status == FLP_OK && run_given(args, FLP_FIELD_grads) && !problem->loss)
    status = bench_data_normal(&data, FLP_ARRAY_grad_logprob, 1.0);
  if (status == FLP_OK) status = take(&data, problem);
  bench_data_clear(&data);
  cli_device_close(&host);
  return status;
}

flp_status run_problem_demo(run_args *args, run_problem *out) {
  *out = (run_problem){.spec = FLP_SPEC_INIT, .temperature = 1.0, .ignore_index = args->ignore_index};
  FLP_TRY(check_args(args));
  FLP_TRY(run_problem_loss(args, out));
  FLP_TRY(choose_sizes(args, out));
  FLP_TRY(choose_lists(args, out));
  flp_spec *spec = &out->spec, resolved;
  spec->entropy = cli_loss_entropy(spec);
  FLP_TRY(flp_spec_resolve(spec, &resolved)); /* before anything of that size is allocated */
  FLP_TRY(make(args, &resolved, out));
  return run_problem_resolve(args, out);
}
