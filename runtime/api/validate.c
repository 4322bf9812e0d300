/* validate.c: the checks of a spec and of the options; those of a call's arguments are in validate_args.c.
 *
 * Invariant: what a *_resolve function returns holds no "0 means the default" that later code would have to know. The
 * one exception is budget_bytes, whose default depends on the pass. */
#include "runtime/api/validate.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "runtime/api/op.h"
#include "runtime/base/number.h"
#include "runtime/base/quantity.h"
#include "runtime/base/status.h"
#include "runtime/base/structs.h"
#include "runtime/kernel/kernel.h"
#include "runtime/kernel/op.h"
#include "runtime/base/operands.h"
#include "runtime/loss/loss.h"
#include "runtime/planner/planner.h"

static flp_status out_of_range(const char *field, int64_t value, int64_t low, int64_t high) {
  return flp_fail(FLP_ERROR_ARGUMENT, "%s is %" PRId64 " (accepted: %" PRId64 " to %" PRId64 ")", field, value, low,
                  high);
}

static flp_status check_range(const char *field, int64_t value, int64_t low, int64_t high) {
  return value < low || value > high ? out_of_range(field, value, low, high) : FLP_OK;
}

static flp_status check_target_dtype(const flp_spec *spec) {
  if (spec->target_dtype == FLP_DTYPE_INT32 || spec->target_dtype == FLP_DTYPE_INT64) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "spec.target_dtype is %d (accepted: INT32 4, INT64 5)", (int)spec->target_dtype);
}

flp_status flp_head_check_spec(const flp_spec *spec) {
  if (spec->dtype < FLP_DTYPE_BF16 || spec->dtype > FLP_DTYPE_FP32)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.dtype is %d (accepted: BF16 1, FP16 2, FP32 3)", (int)spec->dtype);
  const struct {
    const char *name;
    flp_dtype value;
  } grads[] = {{"spec.grad_hidden_dtype", spec->grad_hidden_dtype},
               {"spec.grad_weight_dtype", spec->grad_weight_dtype},
               {"spec.grad_bias_dtype", spec->grad_bias_dtype},
               {"spec.grad_lora_dtype", spec->grad_lora_dtype}};
  for (size_t i = 0; i < sizeof grads / sizeof grads[0]; i++)
    if (grads[i].value && grads[i].value != spec->dtype && grads[i].value != FLP_DTYPE_FP32)
      return flp_fail(FLP_ERROR_ARGUMENT, "%s is %d (accepted: 0, spec.dtype %d, FP32 3)", grads[i].name,
                      (int)grads[i].value, (int)spec->dtype);
  return FLP_OK;
}

static flp_status refuse_operand(const char *field, flp_dtype value, const flp_spec *spec) {
  return flp_fail(FLP_ERROR_ARGUMENT, "spec.%s is %d (accepted: 0, spec.dtype %d, FP32 3)", field, (int)value,
                  (int)spec->dtype);
}

static flp_status check_mixed(const flp_spec *spec) {
  const struct {
    const char *name;
    flp_dtype value;
  } operands[] = {
      {"hidden_dtype", spec->hidden_dtype}, {"weight_dtype", spec->weight_dtype}, {"bias_dtype", spec->bias_dtype}};
  const char *wide = NULL;
  FLP_TRY(check_range("spec.mixed", spec->mixed, FLP_MIXED_NONE, FLP_MIXED_SPLIT));
  for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++) {
    flp_dtype value = operands[i].value;
    if (value && value != spec->dtype && value != FLP_DTYPE_FP32) return refuse_operand(operands[i].name, value, spec);
    if (value && value != spec->dtype && !wide) wide = operands[i].name;
  }
  if (wide && !spec->mixed)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "spec.%s is fp32 and spec.dtype %s, but spec.mixed is 0 (accepted: FLP_MIXED_ROUND 1, "
                    "FLP_MIXED_SPLIT 2)",
                    wide, flp_dtype_name(spec->dtype));
  if (spec->mixed && !wide)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.mixed is %d, but no operand is wider than spec.dtype %s (accepted: 0)",
                    (int)spec->mixed, flp_dtype_name(spec->dtype));
  int both = flp_hidden_dtype(spec) != spec->dtype && flp_weight_dtype(spec) != spec->dtype;
  if (both)
    return flp_fail(
        FLP_ERROR_ARGUMENT,
        "spec.weight_dtype is fp32, and spec.hidden_dtype too, but spec.dtype is %s (accepted: one of both, "
        "or spec.dtype FP32 3)",
        flp_dtype_name(spec->dtype));
  if (spec->mixed != FLP_MIXED_SPLIT || !spec->bias_dtype || spec->bias_dtype == spec->dtype) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "spec.bias_dtype is fp32, but spec.mixed is FLP_MIXED_SPLIT 2 (accepted: 0, %d)",
                  (int)spec->dtype);
}

static flp_status check_shape(const flp_spec *spec) {
  FLP_TRY(check_range("spec.vocab", spec->vocab, 2, FLP_COUNT_MAX));
  if (flp_op_of(spec->op)->has_head && (spec->hidden < 8 || spec->hidden > FLP_HIDDEN_MAX || spec->hidden % 8))
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.hidden is %" PRId64 " (accepted: multiples of 8 from 8 to %d)",
                    spec->hidden, FLP_HIDDEN_MAX);
  size_t element = flp_dtype_bytes(spec->dtype);
  uint32_t a = spec->alignment;
  if (a < element || a > 16 || (a & (a - 1)))
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.alignment is %" PRIu32 " (accepted: powers of two from %zu to 16)", a,
                    element);
  return FLP_OK;
}

static flp_status check_wishes(const flp_spec *spec) {
  FLP_TRY(check_range("spec.entropy", spec->entropy, FLP_ENTROPY_NONE, FLP_ENTROPY_BACKWARD));
  FLP_TRY(check_range("spec.grads", spec->grads, 0,
                      FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS | FLP_GRAD_LORA_A | FLP_GRAD_LORA_B));
  FLP_TRY(check_range("spec.has_bias", spec->has_bias, 0, 1));
  FLP_TRY(check_range("spec.per_row_temperature", spec->per_row_temperature, 0, 1));
  FLP_TRY(check_range("spec.accumulate_grad_weight", spec->accumulate_grad_weight, 0, 1));
  FLP_TRY(check_range("spec.listed", spec->listed, 0, 1));
  if (!(spec->softcap >= 0) || !flp_number_fits((double)spec->softcap))
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.softcap is %g (accepted: " FLP_NUMBER_RANGE ", or 0 for none)",
                    (double)spec->softcap);
  if ((spec->grads & FLP_GRAD_BIAS) && !spec->has_bias)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.grads has FLP_GRAD_BIAS, but spec.has_bias is 0 (accepted: 1)");
  flp_dtype grad_weight = spec->grad_weight_dtype ? spec->grad_weight_dtype : flp_weight_dtype(spec);
  if (spec->accumulate_grad_weight && grad_weight != FLP_DTYPE_FP32)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "spec.accumulate_grad_weight is 1, but spec.grad_weight_dtype is %d (accepted: FP32 3)",
                    (int)spec->grad_weight_dtype);
  return FLP_OK;
}

static flp_status check_keep(const flp_spec *spec) {
  FLP_TRY(check_range("spec.keep", spec->keep, 0, 1));
  if (spec->keep && !spec->grads)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.keep is 1, but spec.grads is 0 (accepted: FLP_GRAD_* bits)");
  if (spec->keep && spec->dtype != FLP_DTYPE_BF16)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.keep is 1, but spec.dtype is %s (accepted: bf16)",
                    flp_dtype_name(spec->dtype));
  return FLP_OK;
}

/* A program that reads the entropy needs its value, one whose loss depends on it its gradient too. */
static flp_status check_loss(const flp_spec *spec) {
  flp_loss loss;
  if (!spec->loss && spec->loss_bytes)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.loss is NULL, but spec.loss_bytes is %zu (accepted: 0)",
                    spec->loss_bytes);
  if (!spec->loss) return FLP_OK;
  if (flp_loss_read(spec->loss, spec->loss_bytes, &loss) != FLP_OK)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.loss is no loss program: %s", flp_error_detail());
  int reads = flp_loss_inputs(&loss) >> FLP_LOSS_ENTROPY & 1, depends = flp_loss_is_active(&loss) & FLP_LOSS_BY_ENTROPY;
  flp_entropy least = depends && spec->grads ? FLP_ENTROPY_BACKWARD : reads ? FLP_ENTROPY_FORWARD : FLP_ENTROPY_NONE;
  if (spec->entropy < least)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.entropy is %d, but loss %s %s (accepted: %s)", (int)spec->entropy,
                    loss.name, least == FLP_ENTROPY_FORWARD ? "reads the entropy" : "has a gradient by the entropy",
                    least == FLP_ENTROPY_FORWARD ? "FORWARD 1, BACKWARD 2" : "BACKWARD 2");
  return FLP_OK;
}

int flp_spec_takes_capped_mean(const flp_spec *spec) {
  flp_loss loss;
  return spec->softcap > 0 && spec->loss && flp_loss_read(spec->loss, spec->loss_bytes, &loss) == FLP_OK &&
         flp_loss_reads_mean(&loss);
}

static flp_status check_listed(const flp_spec *spec) {
  if (!spec->listed) return FLP_OK;
  if (spec->keep)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.listed is 1, but spec.keep is %d (accepted: 0)", spec->keep);
  if (spec->loss) return flp_fail(FLP_ERROR_ARGUMENT, "spec.listed is 1, but spec.loss is given (accepted: NULL)");
  return FLP_OK;
}

/* What a field that is set goes without. */
typedef struct excluded {
  const char *name;
  int set;
} excluded;

static flp_status check_without(const char *name, int64_t value, const excluded *others, int count) {
  for (int i = 0; i < count; i++)
    if (others[i].set)
      return flp_fail(FLP_ERROR_ARGUMENT, "spec.%s is %" PRId64 ", but spec.%s is set (accepted: 0)", name, value,
                      others[i].name);
  return FLP_OK;
}

static flp_status check_targets(const flp_spec *spec) {
  FLP_TRY(check_range("spec.targets", spec->targets, 0, FLP_TARGETS_MAX));
  if (spec->targets <= 1) return FLP_OK;
  const excluded others[] = {{"keep", spec->keep},
                             {"listed", spec->listed},
                             {"tail", spec->tail != 0},
                             {"topk", spec->topk},
                             {"rank", spec->rank}};
  return check_without("targets", spec->targets, others, sizeof others / sizeof *others);
}

/* With tail: its forward pass lists by other floors. */
static flp_status check_top(const flp_spec *spec) {
  FLP_TRY(check_range("spec.topk", spec->topk, 0, FLP_TOPK_MAX));
  FLP_TRY(check_range("spec.rank", spec->rank, 0, 1));
  const excluded others[] = {
      {"keep", spec->keep}, {"listed", spec->listed}, {"tail", spec->tail != 0}, {"loss", spec->loss != NULL}};
  int count = sizeof others / sizeof *others;
  if (spec->topk) FLP_TRY(check_without("topk", spec->topk, others, count));
  return spec->rank ? check_without("rank", spec->rank, others, count) : FLP_OK;
}

/* Its kernels take the adapter along where scores are made anew; what forward keeps or lists has none. */
static flp_status check_lora(const flp_spec *spec) {
  const uint32_t own = FLP_GRAD_LORA_A | FLP_GRAD_LORA_B;
  if (spec->lora_rank < 0 || spec->lora_rank > FLP_LORA_RANK_MAX || spec->lora_rank % 8)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.lora_rank is %d (accepted: 0 for none, or multiples of 8 from 8 to %d)",
                    spec->lora_rank, FLP_LORA_RANK_MAX);
  if (!spec->lora_rank && (spec->grads & own))
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.grads has %s, but spec.lora_rank is 0 (accepted: multiples of 8 to %d)",
                    spec->grads & FLP_GRAD_LORA_A ? "FLP_GRAD_LORA_A" : "FLP_GRAD_LORA_B", FLP_LORA_RANK_MAX);
  if (!spec->lora_rank) return FLP_OK;
  if (spec->grads & FLP_GRAD_WEIGHT)
    return flp_fail(
        FLP_ERROR_ARGUMENT,
        "spec.grads has FLP_GRAD_WEIGHT, but spec.lora_rank is %d (accepted: a frozen weight: HIDDEN, BIAS, "
        "LORA_A, LORA_B)",
        spec->lora_rank);
  const excluded others[] = {{"keep", spec->keep},           {"listed", spec->listed}, {"tail", spec->tail != 0},
                             {"targets", spec->targets > 1}, {"topk", spec->topk},     {"rank", spec->rank},
                             {"mixed", spec->mixed != 0}};
  return check_without("lora_rank", spec->lora_rank, others, sizeof others / sizeof *others);
}

/* Kernels that make lse and mean_score take operands of one dtype, and no adapter; every column counts, so none is left
 * out. */
static flp_status check_scores_loss(const flp_spec *spec) {
  const excluded others[] = {{"mixed", spec->mixed != FLP_MIXED_NONE}, {"lora_rank", spec->lora_rank != 0},
                             {"tail", spec->tail != 0}};
  if (!flp_kernel_spec_has_scores_loss(spec)) return FLP_OK;
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (others[i].set)
      return flp_fail(FLP_ERROR_ARGUMENT, "spec.loss reads lse or mean_score, but spec.%s is set (accepted: 0)",
                      others[i].name);
  return FLP_OK;
}

static flp_status check_tail(const flp_spec *spec) {
  if (spec->tail == 0) return FLP_OK;
  if (!(spec->tail >= 0x1p-20f && spec->tail <= 0x1p-2f))
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.tail is %g (accepted: 2^-20 to 2^-2, or 0 for exact gradients)",
                    (double)spec->tail);
  if (!spec->grads)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.tail is %g, but spec.grads is 0 (accepted: FLP_GRAD_* bits)",
                    (double)spec->tail);
  if (spec->keep)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.tail is %g, but spec.keep is %d (accepted: 0)", (double)spec->tail,
                    spec->keep);
  if (spec->listed)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.tail is %g, but spec.listed is 1 (accepted: 0)", (double)spec->tail);
  return FLP_OK;
}

/* Kernels that read rows of the weight themselves read them as products take them. */
static flp_status check_sliced(const flp_spec *spec) {
  if (!spec->mixed || !flp_weight_is_sliced(spec)) return FLP_OK;
  const excluded others[] = {{"listed", spec->listed},
                             {"tail", spec->tail != 0},
                             {"targets", spec->targets > 1},
                             {"topk", spec->topk},
                             {"rank", spec->rank}};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (others[i].set)
      return flp_fail(FLP_ERROR_ARGUMENT, "spec.%s is set, but spec.mixed is %s with %s (accepted: 0)", others[i].name,
                      flp_mixed_name(spec->mixed),
                      flp_weight_dtype(spec) != spec->dtype ? "an fp32 weight" : "an fp32 hidden");
  return FLP_OK;
}

flp_status flp_spec_resolve(const flp_spec *spec, flp_spec *out) {
  flp_spec read;
  memset(out, 0, sizeof *out);
  if (!spec) return flp_fail(FLP_ERROR_ARGUMENT, "spec is NULL (accepted: a flp_spec)");
  FLP_TRY(flp_struct_read(FLP_STRUCT_SPEC, spec, &read));
  spec = &read;
  FLP_TRY(check_range("spec.op", spec->op, 0, FLP_OP_COUNT - 1));
  FLP_TRY(flp_op_calls_of(spec->op)->check_spec(spec));
  FLP_TRY(check_target_dtype(spec));
  if (flp_op_of(spec->op)->has_head) FLP_TRY(check_mixed(spec));
  FLP_TRY(check_shape(spec));
  FLP_TRY(check_wishes(spec));
  FLP_TRY(check_keep(spec));
  FLP_TRY(check_loss(spec));
  FLP_TRY(check_listed(spec));
  FLP_TRY(check_tail(spec));
  FLP_TRY(check_targets(spec));
  FLP_TRY(check_top(spec));
  FLP_TRY(check_sliced(spec));
  FLP_TRY(check_lora(spec));
  FLP_TRY(check_scores_loss(spec));
  *out = *spec;
  if (!flp_op_of(spec->op)->has_head) return FLP_OK;
  out->targets = (int32_t)flp_spec_targets(spec);
  if (flp_spec_takes_capped_mean(spec) && !out->entropy) out->entropy = FLP_ENTROPY_FORWARD;
  out->hidden_dtype = flp_hidden_dtype(spec);
  out->weight_dtype = flp_weight_dtype(spec);
  out->bias_dtype = flp_bias_dtype(spec);
  if (!out->grad_hidden_dtype) out->grad_hidden_dtype = out->hidden_dtype;
  if (!out->grad_weight_dtype) out->grad_weight_dtype = out->weight_dtype;
  if (!out->grad_bias_dtype) out->grad_bias_dtype = out->bias_dtype;
  if (!out->grad_lora_dtype) out->grad_lora_dtype = spec->dtype;
  return FLP_OK;
}

/* Reads a setting that the user gave; "" stands for one that was not given. */
static void given_setting(flp_setting_id id, flp_setting *out) {
  flp_setting_get(id, out);
  if (strcmp(out->source, "environment") != 0) out->value[0] = 0;
}

static flp_status read_force(flp_rung *rung) {
  flp_setting force;
  given_setting(FLP_SETTING_FORCE, &force);
  if (!force.value[0]) return FLP_OK;
  for (int r = FLP_RUNG_TUNED; r <= FLP_RUNG_EAGER; r++)
    if (strcmp(force.value, flp_rung_name((flp_rung)r)) == 0) {
      *rung = (flp_rung)r;
      return FLP_OK;
    }
  return flp_fail(FLP_ERROR_ARGUMENT, "FLP_FORCE is \"%.60s\" (accepted: tuned, heuristic, jit, generic, eager)",
                  force.value);
}

static flp_status read_strict(int32_t *strict) {
  flp_setting setting;
  given_setting(FLP_SETTING_STRICT, &setting);
  if (!setting.value[0] || strcmp(setting.value, "0") == 0) return FLP_OK;
  if (strcmp(setting.value, "1") != 0)
    return flp_fail(FLP_ERROR_ARGUMENT, "FLP_STRICT is \"%.60s\" (accepted: 0, 1)", setting.value);
  *strict = 1;
  return FLP_OK;
}

static flp_status read_budget(uint64_t *budget) {
  flp_setting setting;
  given_setting(FLP_SETTING_BUDGET, &setting);
  if (!setting.value[0]) return FLP_OK;
  return flp_bytes_parse(setting.name, setting.value, 1, budget);
}

static flp_status check_options(const flp_options *options) {
  FLP_TRY(check_range("options.device", options->device, FLP_DEVICE_HOST, 1023));
  FLP_TRY(check_range("options.rung", options->rung, FLP_RUNG_AUTO, FLP_RUNG_EAGER));
  FLP_TRY(check_range("options.strict", options->strict, 0, 1));
  FLP_TRY(check_range("options.host_fallback", options->host_fallback, 0, 1));
  FLP_TRY(check_range("options.chunk_rows", options->chunk_rows, 0, FLP_COUNT_MAX));
  FLP_TRY(check_range("options.chunk_vocab", options->chunk_vocab, 0, FLP_COUNT_MAX));
  int has_layouts = (options->mode >= FLP_MODE_RECOMPUTE_VOCAB && options->mode <= FLP_MODE_DIRECTION) ||
                    options->mode == FLP_MODE_TAIL;
  if (options->mode && !has_layouts)
    return flp_fail(
        FLP_ERROR_ARGUMENT,
        "options.mode is %d (accepted: 0, FLP_MODE_RECOMPUTE_VOCAB 2 to FLP_MODE_DIRECTION 7, FLP_MODE_TAIL 9)",
        (int)options->mode);
  FLP_TRY(check_range("options.threads", options->threads, 0, 4096));
  if (options->device == FLP_DEVICE_HOST && options->rung != FLP_RUNG_AUTO && options->rung != FLP_RUNG_EAGER)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "options.rung is %s, but options.device is FLP_DEVICE_HOST (accepted: auto, eager)",
                    flp_rung_name(options->rung));
  return FLP_OK;
}

flp_status flp_options_resolve(const flp_options *options, flp_options *out) {
  flp_options merged = FLP_OPTIONS_INIT;
  memset(out, 0, sizeof *out);
  if (options) {
    FLP_TRY(flp_struct_read(FLP_STRUCT_OPTIONS, options, &merged));
    FLP_TRY(check_options(&merged));
  }
  /* Read even where it does not apply, so that a misspelt FLP_FORCE never passes in silence. Host pointers have one
   * rung only: there FLP_FORCE has nothing to choose. */
  flp_rung forced = FLP_RUNG_AUTO;
  FLP_TRY(read_force(&forced));
  if (merged.device == FLP_DEVICE_HOST) forced = FLP_RUNG_EAGER;
  if (merged.rung == FLP_RUNG_AUTO) merged.rung = forced;
  FLP_TRY(read_strict(&merged.strict));
  if (!merged.budget_bytes) FLP_TRY(read_budget(&merged.budget_bytes));
  *out = merged;
  return FLP_OK;
}

flp_status flp_options_in_force(const flp_options *options, flp_pass pass, flp_rung *rung, int32_t *strict,
                                uint64_t *budget_bytes) {
  flp_options resolved;
  flp_detail_clear();
  FLP_TRY(check_range("pass", pass, FLP_PASS_FORWARD, FLP_PASS_FORWARD_SAVED));
  FLP_TRY(flp_options_resolve(options, &resolved));
  if (rung) *rung = resolved.rung;
  if (strict) *strict = resolved.strict;
  if (budget_bytes) *budget_bytes = flp_pass_budget(resolved.budget_bytes, pass);
  return FLP_OK;
}
