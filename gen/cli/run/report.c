/* report.c: outputs as a file, and the summary of a run. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gen/cli/kernels/kernels.h"
#include "gen/cli/run/exact.h"
#include "gen/cli/run/run.h"
#include "gen/cli/shared/cost.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/text.h"
#include "runtime/base/operands.h"
#include "runtime/plan/plan.h"

enum { METRIC_NAME_BYTES = FLP_LOSS_NAME_BYTES + 16 };
enum { INDENT = 13 }; /* of what is said of a run, beside labels */

/* ---- the file ---- */

/* Dimensions of what has a value for each row: those of the target, of several a row without their own. */
static int rank_of_rows(const run_problem *problem) {
  return problem->rank - (problem->spec.targets > 1);
}

/* Dimensions that an array has by itself, beside those of rows. */
static void add_dimension(const flp_spec *spec, flp_size size, cli_tensor *tensor) {
  const flp_args none = FLP_ARGS_INIT;
  int is_own = size == FLP_SIZE_V || size == FLP_SIZE_D || size == FLP_SIZE_R || size == FLP_SIZE_T;
  if (is_own) tensor->shape[tensor->rank++] = flp_size_of(size, spec, &none);
}

static cli_tensor describe_output(const run_problem *problem, const run_result *result, flp_array_id id) {
  const flp_spec *spec = &problem->spec;
  const flp_array *array = &FLP_ARRAY[id];
  cli_tensor tensor = {.name = array->name, .dtype = cli_tensor_dtype_of(flp_array_dtype(id, spec))};
  tensor.data = call_result_at(&result->output, id);
  if (array->rows == FLP_SIZE_N) {
    tensor.rank = array->columns == FLP_SIZE_K ? problem->rank : rank_of_rows(problem);
    memcpy(tensor.shape, problem->shape, sizeof tensor.shape);
  }
  add_dimension(spec, array->rows, &tensor);
  add_dimension(spec, array->columns, &tensor);
  return tensor;
}

/* What backward reads and what is said of a pass is no output; metrics are tensors of their own. */
static int is_output(const flp_spec *spec, flp_array_id id) {
  int is_other = id == FLP_ARRAY_stats || id == FLP_ARRAY_metrics || id == FLP_ARRAY_tail_report ||
                 id == FLP_ARRAY_partial || id == FLP_ARRAY_partial_targets;
  return flp_array_is_written(id) && !is_other && FLP_ARRAY[id].is_asked(spec);
}

/* Metrics, each a tensor of its own. names: room for one each. */
static size_t describe_metrics(const run_problem *problem, const run_result *result, cli_tensor *tensors,
                               char (*metric_names)[METRIC_NAME_BYTES]) {
  size_t count = problem->loss ? problem->loss->metric_count : 0;
  for (size_t i = 0; i < count; i++) {
    snprintf(metric_names[i], METRIC_NAME_BYTES, "metrics.%s", problem->loss->metrics[i].name);
    tensors[i] = (cli_tensor){.name = metric_names[i], .dtype = CLI_TENSOR_F32, .rank = rank_of_rows(problem)};
    tensors[i].data = result->output.metrics + i * (size_t)problem->n;
    memcpy(tensors[i].shape, problem->shape, sizeof problem->shape);
  }
  return count;
}

flp_status run_write(const char *path, const run_problem *problem, const run_result *result) {
  cli_tensor tensors[FLP_ARRAYS + FLP_LOSS_METRICS_MAX];
  char metric_names[FLP_LOSS_METRICS_MAX][METRIC_NAME_BYTES];
  size_t count = 0;
  for (int i = 0; i < FLP_ARRAYS; i++)
    if (is_output(&problem->spec, (flp_array_id)i))
      tensors[count++] = describe_output(problem, result, (flp_array_id)i);
  count += describe_metrics(problem, result, tensors + count, metric_names);
  return cli_safetensors_write(path, tensors, count);
}

/* ---- statistics ---- */

typedef struct summary {
  int64_t rows, nans; /* counted, with several targets by target; of those NaN */
  double sum, mean, least, most;
} summary;

/* Over what is not masked; NaN rows are counted but left out. by_target: of each target a value, else of each row */
static summary summarise(const run_problem *problem, const float *values, int by_target) {
  summary out = {.least = INFINITY, .most = -INFINITY};
  double sum = 0.0;
  int64_t count = problem->n * (by_target ? flp_spec_targets(&problem->spec) : 1);
  for (int64_t i = 0; values && i < count; i++) {
    int masked =
        by_target ? run_problem_target(problem, i) == problem->ignore_index : run_problem_first(problem, i) < 0;
    if (masked) continue;
    double value = (double)values[i];
    out.rows++;
    if (isnan(value)) {
      out.nans++;
      continue;
    }
    sum += value;
    out.least = fmin(out.least, value);
    out.most = fmax(out.most, value);
  }
  out.sum = sum;
  out.mean = sum / (double)(out.rows - out.nans);
  return out;
}

/* Largest distance from fp64 over the sample rows. */
static double worst(const run_exact *exact, const int64_t *at, const double *right, const float *got) {
  double most = 0.0;
  for (int i = 0; i < exact->count; i++) {
    double distance = fabs((double)got[at[i]] - right[i]);
    if (!(distance <= most)) most = distance; /* a NaN stays */
  }
  return most;
}

typedef struct report {
  const run_args *args;
  const run_problem *problem;
  const run_result *result;
  summary logprob, entropy, loss, rest, metrics[FLP_LOSS_METRICS_MAX];
  int64_t first; /* rows whose target has rank 0 */
  run_exact exact;
  int has_exact;
  int64_t active; /* rows that are not masked */
  double logprob_error, entropy_error;
  cli_naive naive;
  double naive_peak; /* inputs, outputs and what a plain implementation adds */
} report;

static flp_status measure(report *out) {
  const run_problem *problem = out->problem;
  const float *logprob = out->result->output.logprob, *entropy = out->result->output.entropy;
  out->logprob = summarise(problem, logprob, 1);
  out->entropy = summarise(problem, entropy, 0);
  out->loss = summarise(problem, out->result->output.loss, 0);
  out->rest = summarise(problem, out->result->output.top_rest, 0);
  for (int64_t row = 0; logprob && row < problem->n; row++) out->active += run_problem_first(problem, row) >= 0;
  const int32_t *rank = out->result->output.rank;
  for (int64_t row = 0; rank && row < problem->n; row++) out->first += rank[row] == 0;
  const float *metrics = out->result->output.metrics;
  for (uint32_t i = 0; metrics && i < problem->loss->metric_count; i++)
    out->metrics[i] = summarise(problem, metrics + (int64_t)i * problem->n, 0);
  out->naive = cli_naive_of(&problem->spec, problem->n);
  out->naive_peak = cli_input_bytes(&problem->spec, problem->n) + cli_output_bytes(&problem->spec, problem->n) +
                    (problem->spec.grads ? out->naive.backward : out->naive.forward);
  out->has_exact = out->args->demo && logprob;
  if (!out->has_exact) return FLP_OK;
  FLP_TRY(run_exact_sample(out->args, problem, &out->exact));
  out->logprob_error = worst(&out->exact, out->exact.target, out->exact.logprob, logprob);
  if (entropy) out->entropy_error = worst(&out->exact, out->exact.row, out->exact.entropy, entropy);
  return FLP_OK;
}

/* ---- as JSON ---- */

static json_t *summary_json(const summary *in) {
  return json_pack("{s:o, s:o, s:o, s:I}", "mean", cli_json_number(in->mean), "min", cli_json_number(in->least), "max",
                   cli_json_number(in->most), "nan_rows", (json_int_t)in->nans);
}

/* The loss is the sum over rows; metrics are means over them. */
static json_t *loss_json(const report *in) {
  const flp_loss *loss = in->problem->loss;
  if (!loss) return json_null();
  json_t *metrics = json_object(), *object = summary_json(&in->loss);
  for (uint32_t i = 0; i < loss->metric_count; i++)
    json_object_set_new(metrics, loss->metrics[i].name, cli_json_number(in->metrics[i].mean));
  json_object_set_new(object, "name", json_string(loss->name));
  json_object_set_new(object, "sum", cli_json_number(in->loss.sum));
  json_object_set_new(object, "metrics", metrics);
  json_object_set_new(object, "mode", json_string(flp_mode_name(in->result->step.mode)));
  json_object_set_new(object, "chunks", json_integer(in->result->step.chunks));
  return object;
}

static json_t *exact_json(const report *in) {
  json_t *rows = json_array();
  for (int i = 0; i < in->exact.count; i++) json_array_append_new(rows, json_integer(in->exact.row[i]));
  return json_pack("{s:o, s:o, s:o, s:o}", "rows", rows, "fp32_score_error", cli_json_number(in->exact.score_error),
                   "logprob_error", cli_json_number(in->logprob_error), "entropy_error",
                   in->result->output.entropy ? cli_json_number(in->entropy_error) : json_null());
}

/* Ids of a row's list, on average. */
static double mean_length(const run_problem *problem) {
  return problem->n > 0 ? (double)problem->list_count / (double)problem->n : 0;
}

static json_t *tail_json(const run_result *result) {
  const float *numbers = result->output.tail_report;
  return json_pack("{s:o, s:o, s:o, s:o}", "left", cli_json_number((double)numbers[0]), "sum",
                   cli_json_number((double)numbers[1]), "dense_rows", cli_json_number((double)numbers[2]), "columns",
                   cli_json_number((double)numbers[3]));
}

/* rest: of the mass; first: rows whose target no column is above */
static json_t *top_json(const report *in) {
  const flp_spec *spec = &in->problem->spec;
  if (!spec->topk && !spec->rank) return json_null();
  return json_pack("{s:i, s:o, s:o}", "topk", spec->topk, "rest", spec->topk ? summary_json(&in->rest) : json_null(),
                   "first_rows", spec->rank ? json_integer(in->first) : json_null());
}

static flp_status print_json(const report *in) {
  const run_problem *problem = in->problem;
  const run_result *result = in->result;
  json_t *document =
      json_pack("{s:o, s:I, s:I, s:s, s:o, s:o, s:s}", "spec",
                cli_spec_json(&problem->spec, problem->scale, mean_length(problem)), "rows", (json_int_t)problem->n,
                "active_rows", (json_int_t)in->active, "rung", flp_rung_name(result->rung), "device",
                cli_json_text(result->device), "plan", cli_json_text(result->description), "plan_id", result->plan_id);
  json_object_set_new(
      document, "seconds",
      json_pack("{s:f, s:f, s:f, s:f}", "plan", result->plan_seconds, "forward", result->forward_seconds, "backward",
                result->backward_seconds, "step", result->step_seconds));
  json_object_set_new(document, "memory",
                      json_pack("{s:o, s:o, s:o, s:f, s:f}", "peak_bytes", cli_json_count(result->peak_bytes),
                                "workspace_bytes", cli_json_count(result->workspace_bytes), "host_resident_bytes",
                                cli_json_count(cli_peak_resident_bytes()), "naive_scores_bytes", in->naive.scores,
                                "naive_peak_bytes", in->naive_peak));
  json_object_set_new(document, "logprob", summary_json(&in->logprob));
  json_object_set_new(document, "entropy", result->output.entropy ? summary_json(&in->entropy) : json_null());
  json_object_set_new(document, "loss", loss_json(in));
  json_object_set_new(document, "tail_report", result->output.tail_report ? tail_json(result) : json_null());
  json_object_set_new(document, "top", top_json(in));
  json_object_set_new(document, "fp64", in->has_exact ? exact_json(in) : json_null());
  json_object_set_new(document, "bad_rows", result->data ? cli_json_text(result->data_detail) : json_null());
  json_object_set_new(document, "output", in->args->output ? cli_json_text(in->args->output) : json_null());
  return cli_json_print(document);
}

/* ---- for people ---- */

static void print_summary(const char *name, const summary *in) {
  char nans[48] = "";
  if (in->nans) snprintf(nans, sizeof nans, "  (%lld rows NaN)", (long long)in->nans);
  cli_print_field(INDENT, name, "mean %.6f  min %.6f  max %.6f%s", in->mean, in->least, in->most, nans);
}

static void print_memory(const report *in) {
  const run_result *result = in->result;
  const flp_spec *spec = &in->problem->spec;
  double beyond = spec->grads ? in->naive.backward : in->naive.forward;
  cli_print_field(INDENT, "peak memory", "%s of inputs, outputs and workspace (%s)",
                  cli_bytes((double)result->peak_bytes).text, cli_bytes((double)result->workspace_bytes).text);
  cli_print_field(INDENT, "naive peak", "%s: scores N*V*4 = %s, with their log-softmax%s %s",
                  cli_bytes(in->naive_peak).text, cli_bytes(in->naive.scores).text, spec->grads ? " and gradient" : "",
                  cli_bytes(beyond).text);
}

static void print_time(const report *in) {
  const run_result *result = in->result;
  double work = cli_product_flops(&in->problem->spec, in->active);
  if (in->problem->spec.listed) work = 2.0 * (double)in->problem->list_count * (double)in->problem->spec.hidden;
  if (in->problem->loss) {
    cli_print_field(INDENT, "time", "step %.4g s in mode %s, plan %.3g s", result->step_seconds,
                    flp_mode_name(result->step.mode), result->plan_seconds);
    return;
  }
  char backward[48] = "";
  if (in->problem->spec.grads) snprintf(backward, sizeof backward, ", backward %.4g s", result->backward_seconds);
  cli_print_field(INDENT, "time", "forward %.4g s (%s, %s/s)%s, plan %.3g s", result->forward_seconds,
                  cli_flops(work).text, cli_flops(work / fmax(result->forward_seconds, 1e-9)).text, backward,
                  result->plan_seconds);
}

static void print_loss(const report *in) {
  const flp_loss *loss = in->problem->loss;
  cli_print_field(INDENT, "loss", "%s: sum %.6f  mean %.6f", loss->name, in->loss.sum, in->loss.mean);
  for (uint32_t i = 0; i < loss->metric_count; i++) print_summary(loss->metrics[i].name, &in->metrics[i]);
}

static void print_tail(const report *in) {
  const float *numbers = in->result->output.tail_report;
  char tail[FLP_FIELD_TEXT_BYTES];
  cli_print_field(INDENT, "tail",
                  "left out %.3g of the scores' gradient, at most %s; %.0f rows recomputed, %.0f columns of "
                  "the others read",
                  numbers[1] > 0 ? (double)numbers[0] / (double)numbers[1] : 0,
                  flp_share_text(in->problem->spec.tail, tail), (double)numbers[2], (double)numbers[3]);
}

static void print_top(const report *in) {
  const flp_spec *spec = &in->problem->spec;
  if (spec->topk)
    cli_print_field(INDENT, "best columns", "%d have %.4f of the mass on average, at least %.4f", spec->topk,
                    1 - in->rest.mean, 1 - in->rest.most);
  if (spec->rank)
    cli_print_field(INDENT, "rank", "%lld of %lld targets are the best column of their row", (long long)in->first,
                    (long long)in->logprob.rows);
}

static void print_text(const report *in) {
  const run_problem *problem = in->problem;
  const run_result *result = in->result;
  char spec[FLP_SPEC_TEXT_BYTES];
  cli_print_field(INDENT, "spec", "%s, N=%lld (%lld masked)", flp_plan_spec_text(&problem->spec, spec),
                  (long long)problem->n, (long long)(problem->n - in->active));
  if (problem->spec.listed)
    cli_print_field(INDENT, "lists", "%lld ids, %.3g a row on average", (long long)problem->list_count,
                    mean_length(problem));
  cli_print_field(INDENT, "rung", "%s on %s", flp_rung_name(result->rung), result->device);
  cli_reasons_print(INDENT, "not taken", result->reasons);
  if (in->active) print_summary("logprob", &in->logprob);
  if (in->active && result->output.entropy) print_summary("entropy", &in->entropy);
  if (in->active && problem->loss) print_loss(in);
  if (in->has_exact && in->exact.count) {
    char entropy[48] = "";
    if (result->output.entropy) snprintf(entropy, sizeof entropy, ", entropy %.2e", in->entropy_error);
    cli_print_field(INDENT, "against fp64",
                    "largest error over %d rows: logprob %.2e%s (worst score of an ordinary product in fp32: %.2e)",
                    in->exact.count, in->logprob_error, entropy, in->exact.score_error);
  }
  if (result->output.tail_report) print_tail(in);
  if (in->logprob.rows) print_top(in);
  print_time(in);
  print_memory(in);
  if (in->args->output) cli_print_field(INDENT, "written to", "%s", in->args->output);
}

flp_status run_report(const run_args *args, const run_problem *problem, const run_result *result) {
  report out = {.args = args, .problem = problem, .result = result};
  FLP_TRY(measure(&out));
  if (args->json) return print_json(&out);
  print_text(&out);
  return FLP_OK;
}
