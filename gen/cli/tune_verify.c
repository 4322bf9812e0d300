/* tune_verify.c: a plan's kernels on a small problem, before they are timed.
 *
 * Kernels are specialised for their vocabulary, so the problem keeps it and makes few of its columns valid, as a padded
 * shard does: the same machine code, an oracle that takes no time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../runtime/half.h"
#include "tune.h"

/* A ragged last band in every tiling, masked rows, two leaves of columns of which the last is not full. */
enum { ROWS = 200, COLUMNS = 1531 };

static flp_status upload(cli_device *device, cli_buffer *buffer, const void *source, size_t bytes) {
  if (!source || bytes == 0) return FLP_OK;
  FLP_TRY(cli_buffer_create(device, bytes, buffer));
  return cli_buffer_upload(buffer, 0, source, bytes);
}

static flp_status upload_all(tune_check *check) {
  const check_problem *p = &check->problem;
  const flp_spec *spec = &p->c.spec;
  cli_device *device = check->device;
  size_t n = (size_t)p->c.n, element = (size_t)flp_half_bytes(spec->dtype), row = (size_t)p->stride * element;
  FLP_TRY(upload(device, &check->hidden, p->hidden, n * row));
  FLP_TRY(upload(device, &check->weight, p->weight, (size_t)spec->vocab * row));
  FLP_TRY(upload(device, &check->bias, p->bias, (size_t)spec->vocab * element));
  FLP_TRY(upload(device, &check->target, p->target, n * (spec->target_dtype == FLP_DTYPE_INT32 ? 4 : 8)));
  if (spec->per_row_temperature) FLP_TRY(upload(device, &check->temperature, p->temperature_rows, n * 4));
  if (!spec->grads) return FLP_OK;
  FLP_TRY(upload(device, &check->grad_logprob, p->grad_logprob, n * 4));
  if (spec->entropy != FLP_ENTROPY_BACKWARD) return FLP_OK;
  return upload(device, &check->grad_entropy, p->grad_entropy, n * 4);
}

flp_status tune_check_create(const tune_target *target, cli_device *device, cli_buffer *grad_weight,
                             cli_buffer *grad_bias, tune_check *out) {
  *out = (tune_check){.device = device, .grad_weight = grad_weight, .grad_bias = grad_bias};
  check_case c = check_case_default(target->spec.dtype, ROWS, COLUMNS, target->spec.hidden);
  c.name = "tune";
  c.spec = target->spec;
  c.spec.vocab = target->spec.vocab < COLUMNS ? target->spec.vocab : COLUMNS;
  c.scale = target->scale;
  c.temperature = c.spec.per_row_temperature ? 1.5 : 1;
  c.rows = CHECK_ROWS_MASKED;
  c.seed = 11;
  FLP_TRY(check_problem_create(&c, &out->problem));
  FLP_TRY(check_truth_create(&out->problem, &out->truth));
  out->problem.c.sampled = 1;
  FLP_TRY(check_truth_create(&out->problem, &out->sample));
  return upload_all(out);
}

void tune_check_clear(tune_check *check) {
  cli_buffer *const buffers[] = {&check->hidden,      &check->weight,       &check->bias,        &check->target,
                                 &check->temperature, &check->grad_logprob, &check->grad_entropy};
  for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) cli_buffer_destroy(buffers[i]);
  check_result_clear(&check->reference);
  check_truth_clear(&check->truth);
  check_truth_clear(&check->sample);
  check_problem_clear(&check->problem);
  *check = (tune_check){0};
}

/* ---- running ---- */

enum { LOGPROB, ENTROPY, STATS, GRAD_HIDDEN, WORKSPACE, BUFFERS };

typedef struct check_call {
  tune_check *check;
  flp_plan *plan;
  cli_buffer buffer[BUFFERS];
} check_call;

static flp_status create_outputs(check_call *run) {
  const check_problem *p = &run->check->problem;
  const flp_spec *spec = &p->c.spec;
  size_t n = (size_t)p->c.n;
  const size_t bytes[GRAD_HIDDEN + 1] = {
      n * 4, spec->entropy != FLP_ENTROPY_NONE ? n * 4 : 0, n * 16,
      spec->grads & FLP_GRAD_HIDDEN ? n * (size_t)(p->stride * flp_half_bytes(spec->grad_hidden_dtype)) : 0};
  for (int i = 0; i <= GRAD_HIDDEN; i++) {
    FLP_TRY(cli_buffer_create(run->check->device, bytes[i], &run->buffer[i]));
    if (bytes[i]) FLP_TRY(cli_buffer_fill(&run->buffer[i], 0xff));
  }
  return FLP_OK;
}

static flp_args args_of(const check_call *run, flp_pass pass) {
  const tune_check *check = run->check;
  const check_problem *p = &check->problem;
  flp_args args = FLP_ARGS_INIT;
  args.pass = pass;
  args.n = p->c.n;
  args.hidden = check->hidden.data;
  args.weight = check->weight.data;
  args.bias = check->bias.data;
  args.target = check->target.data;
  args.temperature_rows = check->temperature.data;
  args.temperature = (float)p->c.temperature;
  args.scale = (float)p->c.scale;
  args.vocab_valid = args.vocab_total = p->c.spec.vocab;
  args.stats = run->buffer[STATS].data;
  args.stream = check->device->stream;
  return args;
}

static flp_status execute(check_call *run, flp_args *args) {
  size_t bytes = 0;
  FLP_TRY(flp_plan_workspace(run->plan, args->pass, args->n, 0, &bytes));
  cli_buffer_destroy(&run->buffer[WORKSPACE]);
  FLP_TRY(cli_buffer_create(run->check->device, bytes, &run->buffer[WORKSPACE]));
  FLP_TRY(cli_buffer_fill(&run->buffer[WORKSPACE], 0xff));
  args->workspace = run->buffer[WORKSPACE].data;
  args->workspace_bytes = bytes;
  FLP_TRY(flp_execute(run->plan, args));
  return cli_device_synchronise(run->check->device);
}

static flp_status run_backward(check_call *run) {
  tune_check *check = run->check;
  const check_problem *p = &check->problem;
  const flp_spec *spec = &p->c.spec;
  flp_args args = args_of(run, FLP_PASS_BACKWARD);
  args.grad_logprob = check->grad_logprob.data;
  args.grad_entropy = check->grad_entropy.data;
  args.grad_hidden = run->buffer[GRAD_HIDDEN].data;
  if (spec->grads & FLP_GRAD_WEIGHT) args.grad_weight = check->grad_weight->data;
  if (spec->grads & FLP_GRAD_BIAS) args.grad_bias = check->grad_bias->data;
  size_t base = (size_t)(spec->vocab * p->stride) * sizeof(float);
  if (spec->grads & FLP_GRAD_WEIGHT) FLP_TRY(cli_buffer_fill(check->grad_weight, 0xff));
  if (p->weight_base && args.grad_weight) FLP_TRY(cli_buffer_upload(check->grad_weight, 0, p->weight_base, base));
  return execute(run, &args);
}

static flp_status download(const cli_buffer *buffer, size_t bytes, void **out) {
  if (!buffer || !buffer->data || bytes == 0) return FLP_OK;
  *out = malloc(bytes);
  if (!*out) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the result");
  return cli_buffer_download(buffer, 0, *out, bytes);
}

static flp_status download_all(check_call *run, int backward, check_result *out) {
  const check_problem *p = &run->check->problem;
  const flp_spec *spec = &p->c.spec;
  void *rows[3] = {NULL, NULL, NULL};
  flp_status status = FLP_OK;
  for (int i = LOGPROB; i <= STATS && status == FLP_OK; i++)
    status = download(&run->buffer[i], run->buffer[i].bytes, &rows[i]);
  out->logprob = rows[LOGPROB];
  out->entropy = rows[ENTROPY];
  out->stats = rows[STATS];
  if (status != FLP_OK || !backward) return status;
  size_t width = (size_t)(p->stride * flp_half_bytes(spec->grad_weight_dtype)), valid = (size_t)spec->vocab;
  FLP_TRY(download(&run->buffer[GRAD_HIDDEN], run->buffer[GRAD_HIDDEN].bytes, &out->grad_hidden));
  if (spec->grads & FLP_GRAD_WEIGHT) FLP_TRY(download(run->check->grad_weight, valid * width, &out->grad_weight));
  if (!(spec->grads & FLP_GRAD_BIAS)) return FLP_OK;
  return download(run->check->grad_bias, valid * (size_t)flp_half_bytes(spec->dtype), &out->grad_bias);
}

static flp_status run_passes(check_call *run, int backward, check_result *out) {
  FLP_TRY(create_outputs(run));
  flp_args args = args_of(run, FLP_PASS_FORWARD);
  args.logprob = run->buffer[LOGPROB].data;
  args.entropy = run->buffer[ENTROPY].data;
  FLP_TRY(execute(run, &args));
  if (backward) FLP_TRY(run_backward(run));
  flp_status data = flp_plan_check(run->plan, run->check->device->stream);
  if (data != FLP_OK && data != FLP_ERROR_DATA) return data;
  out->data_error = data == FLP_ERROR_DATA;
  return download_all(run, backward, out);
}

static flp_status run_plan(tune_check *check, flp_plan *plan, int backward, check_result *out) {
  check_call run = {.check = check, .plan = plan};
  *out = (check_result){0};
  flp_status status = run_passes(&run, backward && check->problem.c.spec.grads, out);
  char detail[1024];
  snprintf(detail, sizeof detail, "%s", flp_error_detail());
  for (int i = 0; i < BUFFERS; i++) cli_buffer_destroy(&run.buffer[i]);
  if (status == FLP_OK) return FLP_OK;
  check_result_clear(out);
  return flp_fail(status, "%s", detail);
}

/* ---- judging ---- */

/* The first thing that the check found to be wrong, in words. */
static void say_finding(const check_report *report, char reason[SEARCH_REASON_BYTES]) {
  for (int64_t i = 0; i < report->count; i++) {
    const check_finding *f = &report->findings[i];
    if (f->metric.pass) continue;
    if (f->note[0])
      snprintf(reason, SEARCH_REASON_BYTES, "%s: %.200s", f->output, f->note);
    else if (f->metric.max_ulp >= 0)
      snprintf(reason, SEARCH_REASON_BYTES, "%s is off by %.3g ulp, allowed: %.3g", f->output, f->metric.max_ulp,
               f->metric.bound);
    else
      snprintf(reason, SEARCH_REASON_BYTES, "%s is off by %.3g (relative L2), allowed: %.3g", f->output,
               f->metric.rel_l2, f->metric.bound);
    return;
  }
}

/* Against the oracle. *error: the largest relative one of the gradients */
static flp_status judge(const tune_check *check, const check_truth *truth, const check_result *result, double *error,
                        char reason[SEARCH_REASON_BYTES]) {
  check_report report = {0};
  flp_status status = check_compare(&check->problem, truth, result, NULL, FLP_RUNG_JIT, &report);
  reason[0] = 0;
  *error = 0;
  for (int64_t i = 0; status == FLP_OK && i < report.count; i++)
    if (strncmp(report.findings[i].output, "grad_", 5) == 0 && report.findings[i].metric.rel_l2 > *error)
      *error = report.findings[i].metric.rel_l2;
  if (status == FLP_OK && report.failed) say_finding(&report, reason);
  check_report_clear(&report);
  return status;
}

flp_status tune_check_reference(tune_check *check, flp_plan *plan) {
  char reason[SEARCH_REASON_BYTES];
  double error = 0;
  check_result_clear(&check->reference);
  FLP_TRY(run_plan(check, plan, 1, &check->reference));
  FLP_TRY(judge(check, &check->truth, &check->reference, &error, reason));
  if (!reason[0]) return FLP_OK;
  return flp_fail(FLP_ERROR_INTERNAL, "the untuned kernels are wrong, nothing is tuned: %s", reason);
}

/* Bytes of the rows that differ from the untuned kernels'. */
static int64_t differing(const tune_check *check, const check_result *got) {
  size_t n = (size_t)check->problem.c.n;
  double bytes = check_metric_bits(got->logprob, check->reference.logprob, n * 4).max_ulp +
                 check_metric_bits(got->stats, check->reference.stats, n * 16).max_ulp;
  if (got->entropy) bytes += check_metric_bits(got->entropy, check->reference.entropy, n * 4).max_ulp;
  return (int64_t)bytes;
}

double tune_distance(const float *got, const float *wanted, size_t count) {
  double off = 0, whole = 0;
  for (size_t i = 0; i < count; i++) {
    double difference = (double)got[i] - (double)wanted[i];
    off += difference * difference;
    whole += (double)wanted[i] * (double)wanted[i];
  }
  return whole > 0 ? sqrt(off / whole) : sqrt(off);
}

double tune_distance_allowed(flp_dtype dtype) {
  return dtype == FLP_DTYPE_BF16 ? 0x1p-7 : dtype == FLP_DTYPE_FP16 ? 0x1p-10 : 0x1p-17;
}

static flp_status compare_one(const char *output, flp_dtype dtype, const void *got, const void *wanted, int64_t count,
                              char reason[SEARCH_REASON_BYTES]) {
  if (!wanted || reason[0]) return FLP_OK;
  float *a = malloc(2 * (size_t)count * sizeof *a), *b = a + count;
  if (!a) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for gradients");
  flp_half_widen(dtype, got, count, a);
  flp_half_widen(dtype, wanted, count, b);
  double off = tune_distance(a, b, (size_t)count), allowed = tune_distance_allowed(dtype);
  free(a);
  if (!(off <= allowed))
    snprintf(reason, SEARCH_REASON_BYTES, "%s is %.3g (relative L2) from the untuned kernels', allowed: %.3g", output,
             off, allowed);
  return FLP_OK;
}

/* Every element beside those of the untuned kernels, which were held to the oracle. */
static flp_status compare_gradients(const tune_check *check, const check_result *got,
                                    char reason[SEARCH_REASON_BYTES]) {
  const check_problem *p = &check->problem;
  const flp_spec *spec = &p->c.spec;
  const check_result *wanted = &check->reference;
  FLP_TRY(compare_one("grad_hidden", spec->grad_hidden_dtype, got->grad_hidden, wanted->grad_hidden, p->c.n * p->stride,
                      reason));
  FLP_TRY(compare_one("grad_weight", spec->grad_weight_dtype, got->grad_weight, wanted->grad_weight,
                      spec->vocab * p->stride, reason));
  return compare_one("grad_bias", spec->dtype, got->grad_bias, wanted->grad_bias, spec->vocab, reason);
}

flp_status tune_check_plan(tune_check *check, flp_plan *plan, flp_kernel_kind kind, double *error,
                           char reason[SEARCH_REASON_BYTES]) {
  check_result got;
  reason[0] = 0;
  *error = 0;
  FLP_TRY(run_plan(check, plan, kind != FLP_KERNEL_FORWARD, &got));
  int64_t bytes = differing(check, &got);
  flp_status status = FLP_OK;
  if (bytes)
    snprintf(reason, SEARCH_REASON_BYTES, "forward differs in %lld bytes from the untuned kernel's", (long long)bytes);
  else if (kind != FLP_KERNEL_FORWARD)
    status = judge(check, &check->sample, &got, error, reason);
  if (status == FLP_OK && !reason[0] && kind != FLP_KERNEL_FORWARD) status = compare_gradients(check, &got, reason);
  check_result_clear(&got);
  return status;
}
