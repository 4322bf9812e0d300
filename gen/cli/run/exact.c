/* exact.c: logprob and entropy of a few rows in fp64, through the oracle. */
#include "gen/cli/run/exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/lists.h"
#include "gen/cli/call/oracle.h"
#include "runtime/base/number.h"
#include "runtime/base/operands.h"

static double temperature_of(const run_problem *problem, int64_t row) {
  float value = (float)problem->temperature;
  const char *rows = problem->operand[FLP_ARRAY_temperature_rows];
  if (rows) memcpy(&value, rows + 4 * row, sizeof value);
  return (double)value;
}

/* A row that has an answer: neither masked nor bad. */
static int is_active(const run_problem *problem, int64_t row) {
  int64_t count = flp_spec_targets(&problem->spec);
  double factor = problem->spec.softcap > 0 ? (double)problem->spec.softcap : problem->scale;
  for (int64_t at = row * count; at < (row + 1) * count; at++) {
    int64_t target = run_problem_target(problem, at);
    if (target != problem->ignore_index && (target < 0 || target >= problem->spec.vocab)) return 0;
  }
  return run_problem_first(problem, row) >= 0 && flp_number_is_temperature((float)temperature_of(problem, row), factor);
}

/* The first active row of each eighth of them, and all if there are few. */
static void choose_rows(const run_problem *problem, run_exact *out) {
  int64_t active = 0, seen = 0;
  for (int64_t i = 0; i < problem->n; i++) active += is_active(problem, i);
  for (int64_t i = 0; i < problem->n && out->count < RUN_SAMPLES_MAX; i++) {
    if (!is_active(problem, i)) continue;
    if (seen++ * RUN_SAMPLES_MAX < out->count * active) continue;
    out->target[out->count] = run_problem_first(problem, i);
    out->row[out->count++] = i;
  }
}

/* The problem of the chosen rows alone, whose hidden states are gathered into hidden. */
static oracle_problem gather(const run_problem *problem, const run_exact *rows, char *hidden, int64_t *target,
                             double *temperature, const double *zeros) {
  const flp_spec *spec = &problem->spec;
  size_t bytes = (size_t)spec->hidden * flp_dtype_bytes(spec->dtype);
  for (int i = 0; i < rows->count; i++) {
    memcpy(hidden + (size_t)i * bytes, (const char *)problem->operand[FLP_ARRAY_hidden] + (size_t)rows->row[i] * bytes,
           bytes);
    target[i] = run_problem_target(problem, rows->target[i]);
    temperature[i] = temperature_of(problem, rows->row[i]);
  }
  return (oracle_problem){.dtype = spec->dtype,
                          .n = rows->count,
                          .vocab = spec->vocab,
                          .depth = spec->hidden,
                          .hidden = hidden,
                          .weight = problem->operand[FLP_ARRAY_weight],
                          .bias = problem->operand[FLP_ARRAY_bias],
                          .hidden_stride = spec->hidden,
                          .weight_stride = spec->hidden,
                          .target = target,
                          .temperature = temperature,
                          .scale = (double)(float)problem->scale,
                          .softcap = (double)spec->softcap,
                          .grad_logprob = zeros,
                          .grad_entropy = zeros,
                          .threads = 1};
}

/* The lists of the chosen rows, sorted; those of a demonstration hold an id once. columns: malloc'ed, or NULL for none */
static flp_status gather_lists(const run_problem *problem, const run_exact *rows, int64_t *offsets, int64_t **columns) {
  const int64_t *from = problem->operand[FLP_ARRAY_list_offsets], *ids = problem->operand[FLP_ARRAY_list_ids];
  *columns = NULL;
  if (!from) return FLP_OK;
  for (int i = 0; i <= rows->count; i++)
    offsets[i] = i ? offsets[i - 1] + from[rows->row[i - 1] + 1] - from[rows->row[i - 1]] : 0;
  *columns = malloc((size_t)offsets[rows->count] * sizeof **columns);
  if (!*columns) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the fp64 comparison");
  for (int i = 0; i < rows->count; i++) {
    size_t count = (size_t)(offsets[i + 1] - offsets[i]);
    memcpy(*columns + offsets[i], ids + from[rows->row[i]], count * sizeof **columns);
    qsort(*columns + offsets[i], count, sizeof **columns, cli_by_value);
  }
  return FLP_OK;
}

/* u of the chosen rows, and what its rounding makes of their scores; block: malloc'ed, or NULL without an adapter */
static flp_status gather_adapter(const run_problem *problem, double scale, oracle_problem *exact, void **block) {
  const flp_spec *spec = &problem->spec;
  *block = NULL;
  if (!spec->lora_rank) return FLP_OK;
  const oracle_lora lora = {.dtype = spec->dtype,
                            .hidden_dtype = spec->hidden_dtype,
                            .terms = flp_operand_terms(spec),
                            .n = exact->n,
                            .vocab = spec->vocab,
                            .depth = spec->hidden,
                            .rank = spec->lora_rank,
                            .hidden = exact->hidden,
                            .a = problem->operand[FLP_ARRAY_lora_a],
                            .b = problem->operand[FLP_ARRAY_lora_b],
                            .hidden_stride = spec->hidden,
                            .a_stride = spec->hidden,
                            .scale = (double)(float)scale};
  double *errors = malloc(RUN_SAMPLES_MAX * (sizeof *errors + (size_t)spec->lora_rank * flp_dtype_bytes(spec->dtype)));
  if (!errors) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the fp64 comparison");
  *block = errors;
  exact->more = spec->lora_rank;
  exact->depth += exact->more;
  exact->hidden_more = errors + RUN_SAMPLES_MAX;
  exact->weight_more = lora.b;
  exact->score_error = errors;
  return oracle_lora_project(&lora, errors + RUN_SAMPLES_MAX, errors);
}

flp_status run_exact_sample(const run_args *args, const run_problem *problem, run_exact *out) {
  *out = (run_exact){0};
  choose_rows(problem, out);
  if (out->count == 0) return FLP_OK;
  char *hidden = malloc(RUN_SAMPLES_MAX * (size_t)problem->spec.hidden * flp_dtype_bytes(problem->spec.dtype));
  if (!hidden) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the fp64 comparison");
  static const double zeros[RUN_SAMPLES_MAX];
  int64_t target[RUN_SAMPLES_MAX], ids[RUN_SAMPLES_MAX], offsets[RUN_SAMPLES_MAX + 1], *columns;
  double temperature[RUN_SAMPLES_MAX];
  oracle_row rows[RUN_SAMPLES_MAX];
  oracle_problem exact = gather(problem, out, hidden, target, temperature, zeros);
  for (int i = 0; i < out->count; i++) ids[i] = i;
  flp_status status = gather_lists(problem, out, offsets, &columns);
  exact.list_offsets = columns ? offsets : NULL;
  exact.list_columns = columns;
  void *adapter = NULL;
  if (status == FLP_OK) status = gather_adapter(problem, args->lora_scale, &exact, &adapter);
  if (status == FLP_OK) status = oracle_forward(&exact, ids, out->count, rows);
  for (int i = 0; status == FLP_OK && i < out->count; i++) {
    out->logprob[i] = rows[i].logprob;
    out->entropy[i] = rows[i].entropy;
    out->score_error = fmax(out->score_error, rows[i].product_error);
  }
  free(hidden);
  free(columns);
  free(adapter);
  return status;
}
