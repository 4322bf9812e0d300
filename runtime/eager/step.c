/* step.c: one training step of the reference: forward, the loss of each row, backward, in one workspace.
 *
 * Invariant: both passes get what the step's own arrays leave of a workspace, so a layout planned for its own bytes is
 * the same layout. */
#include <string.h>

#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/base/operands.h"
#include "runtime/eager/core.h"
#include "runtime/eager/eager.h"
#include "runtime/kernel/kernel.h"

/* What passes from one pass to the next, by row. */
typedef struct step_memory {
  eager_rows rows;
  float *logprob, *entropy, *stats, *grad_logprob, *grad_entropy; /* logprob and its gradient: (n, targets) */
  float *lse, *mean_score, *grad_lse, *grad_mean; /* (n) where the loss reads values of all scores; else NULL */
  uint8_t *skipped; /* (n, targets): is it ignore_index; NULL with one target, whose row is then left out */
} step_memory;

static void carve(const flp_spec *spec, int64_t n, eager_block *block, step_memory *out) {
  uint64_t rows = (uint64_t)n, targets = (uint64_t)flp_spec_targets(spec);
  eager_rows_carve(block, n, &out->rows);
  float **const each[] = {&out->logprob, &out->entropy, &out->grad_logprob, &out->grad_entropy};
  for (size_t i = 0; i < sizeof each / sizeof each[0]; i++)
    *each[i] = eager_block_take(block, i % 2 ? rows : rows * targets, sizeof(float));
  if (targets > 1) out->skipped = eager_block_take(block, rows * targets, 1);
  out->stats = eager_block_take(block, rows, 4 * sizeof(float));
  float **const of_scores[] = {&out->lse, &out->mean_score, &out->grad_lse, &out->grad_mean};
  for (size_t i = 0; flp_kernel_spec_has_scores_loss(spec) && i < sizeof of_scores / sizeof of_scores[0]; i++)
    *of_scores[i] = eager_block_take(block, rows, sizeof(float));
}

flp_status eager_step_layout(const flp_spec *spec, int64_t n, int64_t list_count, uint64_t budget_bytes, int threads,
                             flp_layout *layout) {
  eager_block own = {0};
  step_memory memory;
  eager_plan forward, backward = {0};
  if (n > 0) carve(spec, n, &own, &memory);
  uint64_t left = budget_bytes > own.used ? budget_bytes - own.used : 0;
  int count = eager_thread_count(threads);
  flp_status first = eager_pick(spec, FLP_PASS_FORWARD, n, list_count, left, count, &forward), last = FLP_OK;
  if (spec->grads) last = eager_pick(spec, FLP_PASS_BACKWARD, n, list_count, left, count, &backward);
  uint64_t smallest = own.used + flp_max_u64(forward.smallest_bytes, backward.smallest_bytes);
  if (first != FLP_OK || last != FLP_OK || own.used > budget_bytes)
    return flp_fail(
        FLP_ERROR_BUDGET,
        "budget: %llu bytes are too few for a step over %lld rows on the eager rung; %llu bytes or more are accepted",
        (unsigned long long)budget_bytes, (long long)n, (unsigned long long)smallest);
  eager_layout_of(spec, spec->grads ? FLP_PASS_BACKWARD : FLP_PASS_FORWARD, n, spec->grads ? &backward : &forward,
                  layout);
  layout->products += spec->grads ? forward.products : 0;
  layout->flops = 2.0 * (double)n * (double)spec->vocab * (double)spec->hidden * layout->products;
  layout->bytes = own.used + flp_max_u64(forward.bytes, backward.bytes);
  layout->smallest_bytes = smallest;
  return FLP_OK;
}

/* A row without work has no loss and no gradient, a bad one NaN. */
static void fill_rows(const flp_spec *spec, const flp_loss *loss, const flp_args *args, const step_memory *m) {
  int64_t targets = flp_spec_targets(spec);
  for (int64_t row = 0; row < args->n; row++) {
    if (m->rows.row_class[row] == FLP_ROW_ACTIVE) continue;
    float value = m->rows.row_class[row] == FLP_ROW_BAD ? NAN : 0.0f;
    for (int64_t k = 0; k < targets; k++) m->grad_logprob[row * targets + k] = value;
    m->grad_entropy[row] = value;
    if (m->grad_lse) m->grad_lse[row] = m->grad_mean[row] = value;
    if (args->loss) args->loss[row] = value;
    for (int64_t i = 0; args->metrics && i < (int64_t)loss->metric_count; i++) args->metrics[i * args->n + row] = value;
  }
}

static void mark_skipped(const flp_spec *spec, const flp_args *args, const step_memory *m) {
  int64_t targets = flp_spec_targets(spec);
  for (int64_t i = 0; m->skipped && i < args->n * targets; i++)
    m->skipped[i] = (uint8_t)eager_is_ignored(spec, args, i / targets, i % targets);
}

static flp_status evaluate(const flp_spec *spec, const flp_loss *loss, const flp_args *args, const step_memory *m) {
  mark_skipped(spec, args, m);
  flp_loss_rows rows = {.n = args->n,
                        .parameters = args->loss_parameters,
                        .loss = args->loss,
                        .grad_logprob = m->grad_logprob,
                        .grad_entropy = m->grad_entropy,
                        .metrics = args->metrics,
                        .grad_lse = m->grad_lse,
                        .grad_mean = m->grad_mean,
                        .targets = flp_spec_targets(spec),
                        .target_logprob = m->logprob,
                        .teacher_logprob = args->teacher_logprob,
                        .skipped = m->skipped};
  flp_loss_inputs_of(args, rows.inputs);
  rows.inputs[FLP_LOSS_LOGPROB] = m->logprob;
  rows.inputs[FLP_LOSS_ENTROPY] = m->entropy;
  rows.inputs[FLP_LOSS_LSE] = m->lse;
  rows.inputs[FLP_LOSS_MEAN_SCORE] = m->mean_score;
  FLP_TRY(flp_loss_evaluate(loss, &rows));
  fill_rows(spec, loss, args, m);
  return FLP_OK;
}

static void hand_out(const flp_spec *spec, const flp_args *args, const step_memory *m) {
  size_t bytes = (size_t)args->n * sizeof(float);
  if (args->logprob) memcpy(args->logprob, m->logprob, bytes * (size_t)flp_spec_targets(spec));
  if (args->entropy) memcpy(args->entropy, m->entropy, bytes);
}

flp_status flp_eager_step(const flp_spec *spec, const flp_loss *loss, const flp_args *args, int threads,
                          uint64_t *bad_rows) {
  eager_block block = {.base = args->workspace};
  step_memory m = {0};
  flp_layout layout;
  flp_args pass = *args;
  uint64_t counted_before = 0; /* the backward pass meets the same bad rows again */
  pass.pass = FLP_PASS_BACKWARD;
  if (args->n == 0) return spec->grads ? flp_eager_execute(spec, &pass, threads, bad_rows) : FLP_OK;
  if (eager_step_layout(spec, args->n, args->list_count, args->workspace_bytes, threads, &layout) != FLP_OK)
    return flp_fail(FLP_ERROR_WORKSPACE, "args.workspace_bytes: %s", flp_error_detail());
  carve(spec, args->n, &block, &m);
  pass.workspace = block.base + block.used;
  pass.workspace_bytes = args->workspace_bytes - block.used;
  pass.pass = FLP_PASS_FORWARD;
  pass.logprob = m.logprob;
  pass.entropy = spec->entropy != FLP_ENTROPY_NONE ? m.entropy : NULL;
  pass.stats = m.stats;
  eager_scores of_scores = {m.lse, m.mean_score, m.grad_lse, m.grad_mean}, *scores = m.lse ? &of_scores : NULL;
  for (int64_t row = 0; scores && row < args->n; row++) m.lse[row] = m.mean_score[row] = 0; /* of inactive rows */
  FLP_TRY(eager_execute(spec, &pass, scores, threads, bad_rows));
  eager_rows_classify(spec, &pass, NULL, m.rows.row_class, m.rows.index, &counted_before);
  FLP_TRY(evaluate(spec, loss, args, &m));
  hand_out(spec, args, &m);
  pass.pass = FLP_PASS_BACKWARD;
  pass.grad_logprob = m.grad_logprob;
  pass.grad_entropy = spec->entropy == FLP_ENTROPY_BACKWARD ? m.grad_entropy : NULL;
  return spec->grads ? eager_execute(spec, &pass, scores, threads, &counted_before) : FLP_OK;
}

flp_status flp_eager_loss(const flp_loss *loss, const flp_args *args) {
  flp_loss_rows rows = {.n = args->n,
                        .parameters = args->loss_parameters,
                        .loss = args->loss,
                        .grad_logprob = (float *)(uintptr_t)args->grad_logprob, /* outputs here */
                        .grad_entropy = (float *)(uintptr_t)args->grad_entropy,
                        .metrics = args->metrics};
  flp_loss_inputs_of(args, rows.inputs);
  return flp_loss_evaluate(loss, &rows);
}
