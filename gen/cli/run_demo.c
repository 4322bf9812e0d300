/* run_demo.c: a problem of random data at real size, the same for the same seed on every machine.
 *
 * Element i of a matrix is a table of 65536 normal quantiles looked up by 16 bits of a hash of (seed, i), so that a
 * head of 622 million elements takes about a second to make. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../runtime/half.h"
#include "../../runtime/kernel.h"
#include "../../runtime/validate.h"
#include "hfconfig.h"
#include "progress.h"
#include "run.h"

enum { QUANTILES = 65536, PER_HASH = 4, BLOCK = 1 << 22, MASK_EVERY = 3 };

/* SplitMix64. source: Steele, Lea, Flood, OOPSLA 2014 */
static uint64_t hash(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

/* quantiles[i] = sigma·Φ⁻¹((i + 1/2)/65536), by Newton from the neighbour nearer to the middle. */
static void fill_quantiles(float quantiles[QUANTILES], double sigma) {
  double x = 0.0;
  for (int i = QUANTILES / 2; i < QUANTILES; i++) {
    double upper = (QUANTILES - i - 0.5) / QUANTILES; /* 1 - p, exact in the tail */
    for (int step = 0; step < 4; step++) {
      double error = 0.5 * erfc(x * M_SQRT1_2) - upper;
      x += error / (exp(-0.5 * x * x) * 0.3989422804014327);
    }
    quantiles[i] = (float)(sigma * x);
    quantiles[QUANTILES - 1 - i] = -quantiles[i];
  }
}

static void fill_narrow(uint16_t *out, int64_t begin, int64_t end, uint64_t seed, const uint16_t *quantiles) {
  for (int64_t i = begin; i < end; i += PER_HASH) {
    uint64_t bits = hash(seed + (uint64_t)i / PER_HASH);
    for (int64_t j = i; j < i + PER_HASH && j < end; j++, bits >>= 16) out[j] = quantiles[bits & 0xffff];
  }
}

static void fill_wide(float *out, int64_t begin, int64_t end, uint64_t seed, const float *quantiles) {
  for (int64_t i = begin; i < end; i += PER_HASH) {
    uint64_t bits = hash(seed + (uint64_t)i / PER_HASH);
    for (int64_t j = i; j < i + PER_HASH && j < end; j++, bits >>= 16) out[j] = quantiles[bits & 0xffff];
  }
}

/* Allocates an operand of `count` elements and fills it with normal numbers. */
static flp_status make_normal(run_problem *problem, run_operand operand, flp_dtype dtype, int64_t count, uint64_t seed,
                              double sigma, cli_progress *progress) {
  float *quantiles = malloc(QUANTILES * sizeof *quantiles);
  uint16_t *narrow = malloc(QUANTILES * sizeof *narrow);
  size_t bytes = (size_t)count * flp_dtype_bytes(dtype);
  void *data = aligned_alloc(256, (bytes + 256) / 256 * 256);
  problem->memory[operand] = data;
  problem->operand[operand] = data;
  problem->bytes[operand] = bytes;
  flp_status status = FLP_OK;
  if (!quantiles || !narrow || !data) {
    status = flp_fail(FLP_ERROR_MEMORY, "out of host memory: %zu bytes were asked for", bytes);
  } else {
    fill_quantiles(quantiles, sigma);
    if (dtype != FLP_DTYPE_FP32) flp_half_narrow(dtype, quantiles, QUANTILES, narrow);
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
      int64_t end = count - begin < BLOCK ? count : begin + BLOCK;
      if (dtype == FLP_DTYPE_FP32)
        fill_wide(data, begin, end, seed, quantiles);
      else
        fill_narrow(data, begin, end, seed, narrow);
      cli_progress_update(progress, end, count);
    }
  }
  free(quantiles);
  free(narrow);
  return status;
}

/* Random targets; rows 0, 3, 6, ... are masked. */
static flp_status make_targets(run_problem *problem, uint64_t seed) {
  int64_t *target = malloc((size_t)problem->n * sizeof *target + 1);
  if (!target) return flp_fail(FLP_ERROR_MEMORY, "out of host memory");
  for (int64_t i = 0; i < problem->n; i++)
    target[i] = i % MASK_EVERY == 0 ? problem->ignore_index
                                    : (int64_t)(hash(seed + (uint64_t)i) % (uint64_t)problem->spec.vocab);
  problem->memory[RUN_TARGET] = target;
  problem->operand[RUN_TARGET] = target;
  problem->bytes[RUN_TARGET] = (size_t)problem->n * sizeof *target;
  return FLP_OK;
}

static flp_status check_args(const run_args *args) {
  static const char *const names[RUN_OPERANDS] = {NULL, "--weight",       "--bias",        "--target",
                                                  NULL, "--grad-logprob", "--grad-entropy"};
  for (int i = 0; i < RUN_OPERANDS; i++)
    if (names[i] && args->source[i])
      return flp_fail(FLP_ERROR_ARGUMENT, "%s: '%s' is not accepted with --demo, which makes its own data", names[i],
                      args->source[i]);
  if (args->file_count)
    return flp_fail(FLP_ERROR_ARGUMENT, "--input: '%s' is not accepted with --demo, which makes its own data",
                    args->files[0]);
  return FLP_OK;
}

static flp_status choose_sizes(const run_args *args, run_problem *problem) {
  cli_hfconfig model = {.vocab = 151936, .hidden = 4096, .dtype = FLP_DTYPE_BF16};
  if (args->model) FLP_TRY(cli_hfconfig_read(args->model, &model));
  flp_spec *spec = &problem->spec;
  spec->vocab = args->vocab ? args->vocab : model.vocab;
  spec->hidden = model.hidden;
  if (args->source[RUN_HIDDEN])
    FLP_TRY(cli_parse_integer("--hidden", args->source[RUN_HIDDEN], 8, FLP_HIDDEN_MAX, &spec->hidden));
  if (args->dtype || model.dtype) spec->dtype = args->dtype ? args->dtype : model.dtype;
  if (args->source[RUN_TEMPERATURE])
    FLP_TRY(cli_parse_number("--temperature", args->source[RUN_TEMPERATURE], &problem->temperature));
  problem->n = args->rows;
  problem->rank = 1;
  problem->shape[0] = args->rows;
  return FLP_OK;
}

flp_status run_problem_demo(const run_args *args, run_problem *out) {
  *out = (run_problem){.spec = FLP_SPEC_INIT, .temperature = 1.0, .ignore_index = args->ignore_index};
  FLP_TRY(check_args(args));
  FLP_TRY(choose_sizes(args, out));
  flp_spec *spec = &out->spec, resolved;
  FLP_TRY(flp_spec_resolve(spec, &resolved)); /* before anything of that size is allocated */
  uint64_t seed = (uint64_t)args->seed;
  cli_progress progress;
  cli_progress_start(&progress, "making the head", args->quiet);
  /* Scores of standard deviation 2: neither flat nor saturated. */
  flp_status status = make_normal(out, RUN_WEIGHT, spec->dtype, spec->vocab * spec->hidden, hash(seed),
                                  2.0 / sqrt((double)spec->hidden), &progress);
  cli_progress_end(&progress);
  if (status == FLP_OK)
    status = make_normal(out, RUN_HIDDEN, spec->dtype, out->n * spec->hidden, hash(seed + 1), 1.0, &progress);
  if (status == FLP_OK) status = make_targets(out, hash(seed + 2));
  if (status == FLP_OK && args->has_grads)
    status = make_normal(out, RUN_GRAD_LOGPROB, FLP_DTYPE_FP32, out->n, hash(seed + 3), 1.0, &progress);
  if (status == FLP_OK) status = run_problem_resolve(args, out);
  return status;
}
