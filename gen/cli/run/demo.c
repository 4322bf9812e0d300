/* demo.c: a problem of random data at real size, the same for the same seed on every machine. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/lists.h"
#include "gen/cli/call/normal.h"
#include "gen/cli/call/teacher.h"
#include "gen/cli/run/run.h"
#include "gen/cli/shared/hfconfig.h"
#include "gen/cli/shared/progress.h"
#include "gen/cli/shared/spec_args.h"
#include "runtime/api/validate.h"
#include "runtime/kernel/features.h"
#include "runtime/base/operands.h"

/* Elements made between two looks of the progress bar. */
enum { BLOCK = 1 << 22, MASK_EVERY = 3 };

/* Memory that is the operand. */
static void keep(run_problem *problem, flp_array_id id, void *data) {
  problem->memory[id] = data;
  problem->operand[id] = data;
}

/* Allocates an operand of `count` elements and fills it with normal numbers. */
static flp_status make_normal(run_problem *problem, flp_array_id id, flp_dtype dtype, int64_t count, uint64_t seed,
                              double sigma, cli_progress *progress) {
  size_t element = flp_dtype_bytes(dtype), bytes = (size_t)count * element;
  char *data = aligned_alloc(256, (bytes + 256) / 256 * 256);
  cli_normal normal;
  keep(problem, id, data);
  if (!data) return flp_fail(FLP_ERROR_MEMORY, "out of host memory: %zu bytes were asked for", bytes);
  FLP_TRY(cli_normal_create(dtype, sigma, seed, &normal));
  for (int64_t begin = 0; begin < count; begin += BLOCK) {
    int64_t some = count - begin < BLOCK ? count - begin : BLOCK;
    cli_normal_fill(&normal, begin, some, data + (size_t)begin * element);
    cli_progress_update(progress, begin + some, count);
  }
  cli_normal_destroy(&normal);
  return FLP_OK;
}

/* Random targets, with lists by Zipf's law; rows 0, 3, 6, ... are masked. Of several, the first are what one would be,
 * and beside a loss over them no two are the same. */
static flp_status make_targets(run_problem *problem, const cli_zipf *zipf, uint64_t seed) {
  int are_apart = problem->loss && problem->spec.targets > 1;
  int64_t count = flp_spec_targets(&problem->spec), *target = malloc((size_t)(problem->n * count) * sizeof *target + 1);
  if (!target) return flp_fail(FLP_ERROR_MEMORY, "out of host memory");
  for (int64_t i = 0; i < problem->n * count; i++) {
    int64_t row = i / count, drawn = row + i % count * problem->n;
    target[i] = row % MASK_EVERY == 0 ? problem->ignore_index
                : zipf->order         ? cli_zipf_draw(zipf, cli_hash(seed + (uint64_t)drawn))
                                      : (int64_t)(cli_hash(seed + (uint64_t)drawn) % (uint64_t)problem->spec.vocab);
    if (are_apart && row % MASK_EVERY)
      target[i] = cli_id_apart(target[i], target + row * count, i % count, problem->spec.vocab);
  }
  keep(problem, FLP_ARRAY_target, target);
  return FLP_OK;
}

/* Targets and, of --keep-set, their lists. */
static flp_status make_ids(const run_args *args, run_problem *problem, uint64_t seed) {
  cli_zipf zipf = {0};
  cli_lists lists = {0};
  if (!problem->spec.listed) return make_targets(problem, &zipf, seed);
  FLP_TRY(cli_zipf_create(problem->spec.vocab, cli_hash(seed), &zipf));
  flp_status status = make_targets(problem, &zipf, seed);
  if (status == FLP_OK)
    status = cli_lists_draw(&zipf, problem->operand[FLP_ARRAY_target], problem->n, args->kept, seed + 1, &lists);
  cli_zipf_destroy(&zipf);
  FLP_TRY(status);
  problem->list_count = lists.offsets[problem->n];
  keep(problem, FLP_ARRAY_list_offsets, lists.offsets);
  keep(problem, FLP_ARRAY_list_ids, lists.ids);
  return FLP_OK;
}

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
  if (args->file_count)
    return flp_fail(FLP_ERROR_ARGUMENT, "--input: '%s' is not accepted with --demo, which makes its own data",
                    args->files[0]);
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

/* Of every row, whatever the student gives. */
static flp_status make_teacher(run_problem *problem, uint64_t seed) {
  int64_t count = flp_spec_targets(&problem->spec);
  float *teacher = malloc((size_t)(problem->n * count) * sizeof *teacher + 1);
  if (!teacher) return flp_fail(FLP_ERROR_MEMORY, "out of host memory");
  for (int64_t row = 0; row < problem->n; row++)
    cli_teacher_draw(cli_hash(seed + (uint64_t)row), count, teacher + row * count);
  keep(problem, FLP_ARRAY_teacher_logprob, teacher);
  return FLP_OK;
}

/* What the loss reads: advantages and vectors; a reference near what such scores give; on policy, of weight 1. */
static flp_status make_loss_inputs(run_problem *problem, uint64_t seed, cli_progress *progress) {
  uint32_t read = problem->loss ? flp_loss_inputs(problem->loss) : 0;
  for (int i = FLP_LOSS_REF_LOGPROB; i < FLP_LOSS_INPUTS_MAX; i++)
    if (i != FLP_LOSS_WEIGHT && read >> i & 1)
      FLP_TRY(make_normal(problem, call_loss_input(i), FLP_DTYPE_FP32, problem->n, cli_hash(seed + (uint64_t)i), 1.0,
                          progress));
  float *reference = problem->memory[FLP_ARRAY_ref_logprob];
  for (int64_t row = 0; reference && row < problem->n; row++)
    reference[row] = fminf(reference[row] - (float)log((double)problem->spec.vocab) - 2, 0);
  return read >> FLP_LOSS_TEACHER_LOGPROB & 1 ? make_teacher(problem, cli_hash(seed + FLP_LOSS_TEACHER_LOGPROB))
                                              : FLP_OK;
}

/* An adapter that adds a quarter of the scores' deviation. */
static flp_status make_adapter(run_problem *problem, uint64_t seed, cli_progress *progress) {
  const flp_spec *spec = &problem->spec;
  double rank = (double)spec->lora_rank, depth = (double)spec->hidden;
  if (!spec->lora_rank) return FLP_OK;
  FLP_TRY(make_normal(problem, FLP_ARRAY_lora_a, spec->dtype, spec->lora_rank * spec->hidden, seed, 1 / sqrt(depth),
                      progress));
  return make_normal(problem, FLP_ARRAY_lora_b, spec->dtype, spec->vocab * spec->lora_rank, seed + 1, 0.5 / sqrt(rank),
                     progress);
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
  uint64_t seed = (uint64_t)args->seed;
  cli_progress progress;
  cli_progress_start(&progress, "making the head", args->quiet);
  /* Scores of standard deviation 2: neither flat nor saturated. */
  flp_status status = make_normal(out, FLP_ARRAY_weight, spec->dtype, spec->vocab * spec->hidden, cli_hash(seed),
                                  2.0 / sqrt((double)spec->hidden), &progress);
  cli_progress_end(&progress);
  if (status == FLP_OK)
    status = make_normal(out, FLP_ARRAY_hidden, spec->dtype, out->n * spec->hidden, cli_hash(seed + 1), 1.0, &progress);
  if (status == FLP_OK) status = make_adapter(out, cli_hash(seed + 5), &progress);
  if (status == FLP_OK) status = make_ids(args, out, cli_hash(seed + 2));
  if (status == FLP_OK) status = make_loss_inputs(out, seed + 4, &progress);
  if (status == FLP_OK && run_given(args, FLP_FIELD_grads) && !out->loss)
    status = make_normal(out, FLP_ARRAY_grad_logprob, FLP_DTYPE_FP32, out->n * flp_spec_targets(spec),
                         cli_hash(seed + 3), 1.0, &progress);
  if (status == FLP_OK) status = run_problem_resolve(args, out);
  return status;
}
