/* loss.c: losses of log-probabilities that exist already, on one rung, against double: every built-in loss of one
 * target a row, over ordinary and odd rows.
 *
 * Inputs are drawn apart from one another; of every eight rows one has weight 0, one a NaN, one an infinity, one a
 * logprob far from the old one. A derivative is a float: it may be half a place off, and a little of what cancels. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/lists.h"
#include "gen/cli/call/normal.h"
#include "gen/cli/check/session.h"
#include "runtime/api/validate.h"
#include "runtime/base/status.h"
#include "runtime/loss/loss.h"

static const int64_t rows_of[] = {1, 259};
enum { SHAPES = sizeof rows_of / sizeof rows_of[0], METRICS = FLP_LOSS_METRICS_MAX };
enum { OUT_LOSS, OUT_LOGPROB, OUT_ENTROPY, OUT_METRICS, OUTPUTS = OUT_METRICS + METRICS };
static const char *const outputs[] = {"loss: loss", "loss: grad_logprob", "loss: grad_entropy", "loss: metrics"};

typedef struct problem {
  check_case c;
  flp_loss loss;
  size_t bytes;  /* of one array over rows */
  float *inputs; /* (FLP_LOSS_INPUTS_MAX,n) */
} problem;

/* error: ARGUMENT of a loss that no plan without a head takes */
static flp_status case_of(int loss, int64_t n, flp_dtype dtype, check_case *out) {
  flp_spec resolved;
  *out = check_case_default(dtype, n, 2, 0);
  out->name = flp_loss_table[loss].name;
  out->spec.op = FLP_OP_LOSS;
  out->spec.entropy = FLP_ENTROPY_FORWARD;
  out->spec.loss = flp_loss_table[loss].bytes;
  out->spec.loss_bytes = flp_loss_table[loss].length;
  return flp_spec_resolve(&out->spec, &resolved);
}

static float drawn(int64_t input, int64_t row) {
  double unit = cli_unit(cli_hash((uint64_t)(input * 1009 + row) * 0x9e3779b97f4a7c15u));
  int64_t sort = row % 8;
  if (input == FLP_LOSS_WEIGHT) return sort == 1 ? 0 : (float)(0.25 + unit);
  if (sort == 2 || (sort == 1 && input % 2)) return NAN;
  if (sort == 3 && input == FLP_LOSS_LOGPROB) return -INFINITY;
  if (input == FLP_LOSS_ADVANTAGE) return (float)(4 * unit - 2);
  if (input == FLP_LOSS_ENTROPY) return (float)(3 * unit);
  double apart = sort == 4 && input == FLP_LOSS_OLD_LOGPROB ? 40 : 0.5; /* from logprob */
  double logprob = -6 * cli_unit(cli_hash((uint64_t)row));
  return (float)(input == FLP_LOSS_LOGPROB ? logprob : logprob + apart * (unit - 0.5));
}

static flp_status problem_create(int loss, int64_t n, flp_dtype dtype, problem *p) {
  *p = (problem){.bytes = (size_t)n * sizeof(float)};
  FLP_TRY(case_of(loss, n, dtype, &p->c));
  FLP_TRY(flp_loss_read(p->c.spec.loss, p->c.spec.loss_bytes, &p->loss));
  p->inputs = malloc(FLP_LOSS_INPUTS_MAX * p->bytes);
  if (!p->inputs) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for inputs");
  for (int64_t i = 0; i < FLP_LOSS_INPUTS_MAX * n; i++) p->inputs[i] = drawn(i / n, i % n);
  return FLP_OK;
}

/* ---- running ---- */

typedef struct run {
  cli_device device;
  call_buffer inputs, outputs;
  void *got; /* (OUTPUTS,n) f32 */
  int overrun;
} run;

static flp_args args_of(const problem *p, const run *r) {
  flp_args args = FLP_ARGS_INIT;
#define INPUT(i) call_buffer_at(&r->inputs, (size_t)(i)*p->bytes)
#define OUTPUT(i) call_buffer_at(&r->outputs, (size_t)(i)*p->bytes)
  args.pass = FLP_PASS_STEP;
  args.n = p->c.n;
  args.stream = r->device.stream;
  args.logprob = INPUT(FLP_LOSS_LOGPROB);
  args.entropy = INPUT(FLP_LOSS_ENTROPY);
  args.old_logprob = INPUT(FLP_LOSS_OLD_LOGPROB);
  args.ref_logprob = INPUT(FLP_LOSS_REF_LOGPROB);
  args.advantage = INPUT(FLP_LOSS_ADVANTAGE);
  args.row_weight = INPUT(FLP_LOSS_WEIGHT);
  for (int i = 0; i < FLP_LOSS_VECTORS_MAX; i++) args.vectors[i] = INPUT(FLP_LOSS_FIRST_VECTOR + i);
  args.loss = OUTPUT(OUT_LOSS);
  args.metrics = OUTPUT(OUT_METRICS);
  args.grad_logprob = OUTPUT(OUT_LOGPROB);
  args.grad_entropy = OUTPUT(OUT_ENTROPY);
  return args;
}

static flp_status execute(const problem *p, flp_plan *plan, run *r) {
  size_t given = FLP_LOSS_INPUTS_MAX * p->bytes, made = (OUT_METRICS + p->loss.metric_count) * p->bytes;
  FLP_TRY(call_buffer_make(&r->device, given, 0, 1, &r->inputs));
  FLP_TRY(call_buffer_make(&r->device, made, 0, 1, &r->outputs));
  FLP_TRY(cli_buffer_upload(&r->inputs.buffer, 0, p->inputs, given));
  FLP_TRY(cli_device_synchronise(&r->device));
  flp_args args = args_of(p, r);
  FLP_TRY(flp_step(plan, &args));
  return call_buffer_take(&r->outputs, made, &r->got, &r->overrun);
}

static flp_status run_problem(const problem *p, const check_how *how, run *r) {
  flp_options options = check_how_options(how);
  flp_plan *plan = NULL;
  FLP_TRY(cli_device_open(options.device, &r->device));
  flp_status status = check_precompile_plan(how->precompile, &p->c.spec, &options, &plan);
  if (status == FLP_OK) status = execute(p, plan, r);
  flp_plan_destroy(plan);
  return status;
}

/* ---- comparing ---- */

static void take_truth(const problem *p, int64_t row, double out[OUTPUTS]) {
  double inputs[FLP_LOSS_ALL_INPUTS] = {0}, parameters[FLP_LOSS_PARAMETERS_MAX];
  flp_loss_row result;
  for (int i = 0; i < FLP_LOSS_INPUTS_MAX; i++) inputs[i] = (double)p->inputs[i * p->c.n + row];
  for (uint32_t i = 0; i < p->loss.parameter_count; i++) parameters[i] = p->loss.parameters[i].fallback;
  flp_loss_evaluate_row(&p->loss, inputs, parameters, &result);
  out[OUT_LOSS] = result.loss;
  out[OUT_LOGPROB] = result.grad_logprob;
  out[OUT_ENTROPY] = result.grad_entropy;
  memcpy(&out[OUT_METRICS], result.metrics, METRICS * sizeof *out);
}

/* Outputs first to last - 1. */
static flp_status compare(const problem *p, const run *r, int first, int last, check_metric *out) {
  cli_memory memory = {0};
  double truth[OUTPUTS];
  check_numbers a = check_numbers_of(&memory, p->c.n * (last - first));
  flp_status status = cli_memory_status(&memory, "a comparison");
  for (int64_t row = 0; status == FLP_OK && row < p->c.n; row++) {
    take_truth(p, row, truth);
    for (int i = first; i < last; i++) {
      double right = fabs(truth[i]) > (double)FLT_MAX ? copysign(INFINITY, truth[i]) : truth[i];
      double unit = isfinite(right) ? 0x1p-24 * fabs(right) + 0x1p-40 : 1;
      double got = (double)((float *)r->got)[i * p->c.n + row];
      check_numbers_set(&a, (i - first) * p->c.n + row, got, right, unit, 2 * unit);
    }
  }
  if (status == FLP_OK) *out = check_numbers_judge(&a);
  cli_memory_free(&memory);
  return status;
}

static flp_status check_one(const problem *p, const check_how *how, check_report *report) {
  run r = {0};
  flp_status status = run_problem(p, how, &r);
  for (int i = 0; status == FLP_OK && i <= OUT_METRICS; i++) {
    check_metric metric;
    int last = i < OUT_METRICS ? i + 1 : OUT_METRICS + (int)p->loss.metric_count;
    if (last == i) break;
    status = compare(p, &r, i, last, &metric);
    if (status != FLP_OK) break;
    metric.pass &= !r.overrun;
    check_report_add(report, &p->c, how->options.rung, outputs[i], metric, r.overrun ? "wrote outside of rows" : NULL);
  }
  call_buffer_clear(&r.inputs);
  call_buffer_clear(&r.outputs);
  free(r.got);
  cli_device_close(&r.device);
  return status;
}

flp_status check_loss(const check_part *of, const check_how *how, check_report *report) {
  check_case c;
  for (int i = 0; i < (int)flp_loss_table_count * SHAPES; i++) {
    int64_t n = rows_of[i % SHAPES];
    if (case_of(i / SHAPES, n, of->dtype, &c) != FLP_OK) continue;
    problem p;
    flp_status status = problem_create(i / SHAPES, n, of->dtype, &p);
    if (status == FLP_OK) status = check_one(&p, how, report);
    free(p.inputs);
    FLP_TRY(status);
  }
  return FLP_OK;
}

void check_loss_cases(const check_part *of, check_list *list) {
  check_case c;
  for (int i = 0; i < (int)flp_loss_table_count; i++)
    if (case_of(i, rows_of[0], of->dtype, &c) == FLP_OK) check_list_add(list, c);
}
