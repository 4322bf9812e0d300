/* verify.c: a plan's kernels on a small problem, before they are timed.
 *
 * Kernels are specialised for their vocabulary, so the problem keeps it and makes few of its columns valid, as a padded
 * shard does: the same machine code, an oracle that takes no time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/tune/verify.h"
#include "runtime/base/half.h"

/* A partial last row panel in every tiling, masked rows, two leaves of columns of which the last is not full. */
enum { ROWS = 200, COLUMNS = 1531 };

flp_status tune_check_create(const tune_head *target, const double *loss_parameters, const call_buffers *head,
                             tune_check *out) {
  *out = (tune_check){.head = head, .operands = {.device = head->device}};
  check_case c = check_case_default(target->spec.dtype, ROWS, COLUMNS, target->spec.hidden);
  c.name = "tune";
  c.spec = target->spec;
  c.spec.tail = 0; /* what is timed is exact */
  c.spec.vocab = target->spec.vocab < COLUMNS ? target->spec.vocab : COLUMNS;
  c.scale = target->scale;
  c.temperature = c.spec.per_row_temperature ? 1.5 : 1;
  c.rows = CHECK_ROWS_MASKED;
  c.loss_parameters = loss_parameters;
  c.seed = 11;
  FLP_TRY(check_problem_create(&c, &out->problem));
  FLP_TRY(check_truth_create(&out->problem, NULL, &out->truth));
  out->problem.c.sampled = 1;
  FLP_TRY(check_truth_create(&out->problem, &out->truth, &out->sample));
  call_problem call = check_problem_call(&out->problem);
  return call_upload(&out->operands, &call);
}

void tune_check_clear(tune_check *check) {
  call_clear(&check->operands);
  call_result_clear(&check->reference);
  call_result_clear(&check->trained);
  check_truth_clear(&check->truth);
  check_truth_clear(&check->sample);
  check_problem_clear(&check->problem);
  *check = (tune_check){0};
}

/* ---- running ---- */

/* Upstream gradients are those of the loss at what forward has given. */
static flp_status follow_loss(tune_check *check, const call_result *forward) {
  size_t bytes = (size_t)check->problem.c.n * sizeof(float);
  cli_buffer *logprob = &check->operands.at[FLP_ARRAY_grad_logprob].buffer;
  cli_buffer *entropy = &check->operands.at[FLP_ARRAY_grad_entropy].buffer;
  if (!check->problem.loss) return FLP_OK;
  check_problem_follow(&check->problem, forward);
  FLP_TRY(cli_buffer_upload(logprob, 0, check->problem.grad_logprob, bytes));
  return entropy->data ? cli_buffer_upload(entropy, 0, check->problem.grad_entropy, bytes) : FLP_OK;
}

static flp_status run_passes(tune_check *check, const call_problem *p, call_buffers *b, flp_plan *plan, tune_call call,
                             call_result *out) {
  FLP_TRY(call_make_outputs(b, p));
  /* What a forward pass keeps shows in gradients alone. */
  if (call == TUNE_KEEPING || call == TUNE_SAVED) FLP_TRY(call_make_saved(b, p, plan));
  FLP_TRY(call_forward(b, p, plan));
  if (call == TUNE_BACKWARD && p->spec.grads) {
    FLP_TRY(call_take(b, p, FLP_ARRAY_logprob, out));
    FLP_TRY(call_take(b, p, FLP_ARRAY_entropy, out));
    FLP_TRY(follow_loss(check, out));
  }
  FLP_TRY(call_backward(b, p, plan));
  FLP_TRY(call_check_data(plan, b->device->stream, &out->data_error));
  return call_download(b, p, out);
}

/* error: DRIVER */
static flp_status run(tune_check *check, flp_plan *plan, tune_call call, call_result *out) {
  check_problem plain = check_problem_plain(&check->problem);
  call_problem p = check_problem_call(call == TUNE_STEP ? &check->problem : &plain);
  call_buffers b = {.device = check->operands.device, .guarded = 1};
  *out = (call_result){0};
  if (call == TUNE_FORWARD) p.spec.grads = 0;
  for (int id = 0; id < FLP_ARRAYS; id++)
    if (FLP_ARRAY[id].way == FLP_WAY_IN) call_borrow(&b, &check->operands, (flp_array_id)id);
  call_borrow(&b, check->head, FLP_ARRAY_grad_weight);
  call_borrow(&b, check->head, FLP_ARRAY_grad_bias);
  flp_failure held = flp_failure_hold(run_passes(check, &p, &b, plan, call, out));
  call_clear(&b);
  if (held.status != FLP_OK) call_result_clear(out);
  return flp_failure_restore(&held);
}

/* ---- judging ---- */

/* The first thing that the check found to be wrong, in words. */
static void report_finding(const check_report *report, char reason[SEARCH_REASON_BYTES]) {
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

/* Save, direction and stream modes, whose gradients may be somewhat worse than those of recompute mode. */
static int trains(tune_call call) {
  return call == TUNE_KEEPING || call == TUNE_SAVED || call == TUNE_STEP;
}

/* Against the oracle. *error: the largest relative one of the gradients */
static flp_status judge(const tune_check *check, const check_truth *truth, const call_result *result, tune_call call,
                        double *error, char reason[SEARCH_REASON_BYTES]) {
  check_report report = {0};
  const call_result *plain = trains(call) ? &check->reference : NULL;
  flp_status status = check_compare(&check->problem, truth, result, plain, FLP_RUNG_JIT, &report);
  reason[0] = 0;
  *error = 0;
  for (int64_t i = 0; status == FLP_OK && i < report.count; i++)
    if (strncmp(report.findings[i].output, "grad_", 5) == 0 && report.findings[i].metric.rel_l2 > *error)
      *error = report.findings[i].metric.rel_l2;
  if (status == FLP_OK && report.failed) report_finding(&report, reason);
  check_report_clear(&report);
  return status;
}

flp_status tune_check_reference(tune_check *check, flp_plan *plan, tune_call call) {
  char reason[SEARCH_REASON_BYTES];
  double error = 0;
  call_result *out = trains(call) ? &check->trained : &check->reference;
  call_result_clear(out);
  FLP_TRY(run(check, plan, call, out));
  FLP_TRY(judge(check, &check->truth, out, call, &error, reason));
  if (!reason[0]) return FLP_OK;
  return flp_fail(FLP_ERROR_INTERNAL, "the untuned kernels are wrong, nothing is tuned: %s", reason);
}

/* Bytes of the rows that differ from the untuned kernels'. */
static int64_t differing(const tune_check *check, const call_result *got) {
  static const flp_array_id arrays[] = {FLP_ARRAY_logprob, FLP_ARRAY_entropy, FLP_ARRAY_stats};
  check_problem plain = check_problem_plain(&check->problem);
  double bytes = 0;
  for (int i = 0; i < 3; i++)
    if (call_result_at(got, arrays[i])) bytes += check_result_bits(&plain, arrays[i], got, &check->reference).max_ulp;
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

/* Every element beside those of the untuned kernels in the same mode, which were held to the oracle. */
static flp_status compare_gradients(const tune_check *check, const call_result *got, tune_call call,
                                    char reason[SEARCH_REASON_BYTES]) {
  const check_problem *p = &check->problem;
  const flp_spec *spec = &p->c.spec;
  const call_result *wanted = trains(call) ? &check->trained : &check->reference;
  FLP_TRY(compare_one("grad_hidden", spec->grad_hidden_dtype, got->grad_hidden, wanted->grad_hidden, p->c.n * p->stride,
                      reason));
  FLP_TRY(compare_one("grad_weight", spec->grad_weight_dtype, got->grad_weight, wanted->grad_weight,
                      spec->vocab * p->stride, reason));
  return compare_one("grad_bias", spec->grad_bias_dtype, got->grad_bias, wanted->grad_bias, spec->vocab, reason);
}

flp_status tune_check_plan(tune_check *check, flp_plan *plan, tune_call call, double *error,
                           char reason[SEARCH_REASON_BYTES]) {
  call_result got;
  reason[0] = 0;
  *error = 0;
  FLP_TRY(run(check, plan, call, &got));
  int64_t bytes = differing(check, &got);
  flp_status status = FLP_OK;
  if (bytes)
    snprintf(reason, SEARCH_REASON_BYTES, "forward differs in %lld bytes from the untuned kernel's", (long long)bytes);
  else if (call != TUNE_FORWARD)
    status = judge(check, &check->sample, &got, call, error, reason);
  if (status == FLP_OK && !reason[0] && call != TUNE_FORWARD) status = compare_gradients(check, &got, call, reason);
  call_result_clear(&got);
  return status;
}
