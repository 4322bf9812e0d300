/* validate.c: the checks of a spec and of the options; those of a call's arguments are in validate_args.c.
 *
 * Invariant: what a *_resolve function returns holds no "0 means the default" that later code would have to know. The
 * one exception is budget_bytes, whose default depends on the pass. */
#include "runtime/api/validate.h"

#include <inttypes.h>
#include <string.h>

#include "runtime/api/op.h"
#include "runtime/base/number.h"
#include "runtime/base/operands.h"
#include "runtime/base/quantity.h"
#include "runtime/base/status.h"
#include "runtime/base/structs.h"
#include "runtime/driver/driver.h"
#include "runtime/kernel/features.h"
#include "runtime/kernel/op.h"
#include "runtime/loss/loss.h"

static flp_status out_of_range(const char *of, const char *field, int64_t value, int64_t low, int64_t high) {
  return flp_fail(FLP_ERROR_ARGUMENT, "%s%s is %" PRId64 " (accepted: %" PRId64 " to %" PRId64 ")", of, field, value,
                  low, high);
}

static flp_status check_range(const char *of, const char *field, int64_t value, int64_t low, int64_t high) {
  return value < low || value > high ? out_of_range(of, field, value, low, high) : FLP_OK;
}

flp_status flp_head_check_spec(const flp_spec *spec) {
  if (spec->dtype < FLP_DTYPE_BF16 || spec->dtype > FLP_DTYPE_FP32)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.dtype is %d (accepted: BF16 1, FP16 2, FP32 3)", (int)spec->dtype);
  for (const flp_field *field = FLP_SPEC_FIELD; field < FLP_SPEC_FIELD + FLP_SPEC_FIELD_COUNT; field++) {
    int64_t value = field->words == FLP_OPERAND_DTYPE_WORDS ? flp_field_get(field, spec) : 0;
    if (value && value != spec->dtype && value != FLP_DTYPE_FP32)
      return flp_fail(FLP_ERROR_ARGUMENT, "spec.%s is %d (accepted: 0, spec.dtype %d, FP32 3)", field->name, (int)value,
                      (int)spec->dtype);
  }
  return FLP_OK;
}

static flp_status check_mixed(const flp_spec *spec) {
  static const flp_field_id operands[] = {FLP_FIELD_hidden_dtype, FLP_FIELD_weight_dtype, FLP_FIELD_bias_dtype};
  const char *wide = NULL;
  FLP_TRY(check_range("spec.", "mixed", spec->mixed, FLP_MIXED_NONE, FLP_MIXED_SPLIT));
  for (size_t i = 0; !wide && i < sizeof operands / sizeof operands[0]; i++) {
    const flp_field *field = &FLP_SPEC_FIELD[operands[i]];
    int64_t value = flp_field_get(field, spec);
    if (value && value != spec->dtype) wide = field->name;
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

static flp_status check_integer(const flp_field *field, int64_t value) {
  int is_feature = field->feature != FLP_FEATURE_NONE;
  if ((value == 0 && is_feature) || (value >= field->least && value <= field->most && value % field->step == 0))
    return FLP_OK;
  if (field->step == 1) return out_of_range("spec.", field->name, value, is_feature ? 0 : field->least, field->most);
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "spec.%s is %" PRId64 " (accepted: %smultiples of %" PRId64 " from %" PRId64 " to %" PRId64 ")",
                  field->name, value, is_feature ? "0 for none, or " : "", field->step, field->least, field->most);
}

/* What a field alone says: dtypes and the alignment depend on others. */
static flp_status check_field(const flp_spec *spec, const flp_field *field) {
  int64_t most = field->most;
  switch (field->kind) {
    case FLP_FIELD_INTEGER:
      return check_integer(field, flp_field_get(field, spec));
    case FLP_FIELD_SWITCH:
    case FLP_FIELD_LISTS:
      break;
    case FLP_FIELD_FLAGS:
      for (const flp_word *word = field->words; word->name; word++) most |= word->value;
      break;
    default:
      return FLP_OK;
  }
  return check_range("spec.", field->name, flp_field_get(field, spec), 0, most);
}

static flp_status check_fields(const flp_spec *spec) {
  int has_head = flp_op_of(spec->op)->has_head;
  for (int i = 0; i < FLP_SPEC_FIELD_COUNT; i++)
    if (i != FLP_FIELD_alignment && (has_head || i != FLP_FIELD_hidden)) FLP_TRY(check_field(spec, &FLP_SPEC_FIELD[i]));
  FLP_TRY(check_range("spec.", "entropy", spec->entropy, FLP_ENTROPY_NONE, FLP_ENTROPY_BACKWARD));
  if (!(spec->softcap >= 0) || !flp_number_fits((double)spec->softcap))
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.softcap is %g (accepted: " FLP_NUMBER_RANGE ", or 0 for none)",
                    (double)spec->softcap);
  if (spec->tail != 0 && !(spec->tail >= 0x1p-20f && spec->tail <= 0x1p-2f))
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.tail is %g (accepted: 2^-20 to 2^-2, or 0 for exact gradients)",
                    (double)spec->tail);
  if (spec->target_dtype == FLP_DTYPE_INT32 || spec->target_dtype == FLP_DTYPE_INT64) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "spec.target_dtype is %d (accepted: INT32 4, INT64 5)", (int)spec->target_dtype);
}

static flp_status check_alignment(const flp_spec *spec) {
  size_t element = flp_dtype_bytes(spec->dtype);
  uint32_t a = spec->alignment;
  if (a >= element && a <= 16 && !(a & (a - 1))) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "spec.alignment is %" PRIu32 " (accepted: powers of two from %zu to 16)", a,
                  element);
}

static flp_status check_gradients(const flp_spec *spec) {
  if ((spec->grads & FLP_GRAD_BIAS) && !spec->has_bias)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.grads has FLP_GRAD_BIAS, but spec.has_bias is 0 (accepted: 1)");
  flp_dtype grad_weight = spec->grad_weight_dtype ? spec->grad_weight_dtype : flp_weight_dtype(spec);
  if (spec->accumulate_grad_weight && grad_weight != FLP_DTYPE_FP32)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "spec.accumulate_grad_weight is 1, but spec.grad_weight_dtype is %d (accepted: FP32 3)",
                    (int)spec->grad_weight_dtype);
  if (spec->keep && !spec->grads)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.keep is 1, but spec.grads is 0 (accepted: FLP_GRAD_* bits)");
  if (spec->tail > 0 && !spec->grads)
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.tail is %g, but spec.grads is 0 (accepted: FLP_GRAD_* bits)",
                    (double)spec->tail);
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

int flp_spec_passes_for_mean(const flp_spec *spec) {
  flp_loss loss;
  return flp_kernel_spec_passes_for_mean(spec) && spec->loss &&
         flp_loss_read(spec->loss, spec->loss_bytes, &loss) == FLP_OK && flp_loss_reads_mean(&loss);
}

static flp_status check_lora(const flp_spec *spec) {
  const uint32_t own = FLP_GRAD_LORA_A | FLP_GRAD_LORA_B;
  if (!spec->lora_rank && (spec->grads & own))
    return flp_fail(FLP_ERROR_ARGUMENT, "spec.grads has %s, but spec.lora_rank is 0 (accepted: multiples of 8 to %d)",
                    spec->grads & FLP_GRAD_LORA_A ? "FLP_GRAD_LORA_A" : "FLP_GRAD_LORA_B", FLP_LORA_RANK_MAX);
  if (!spec->lora_rank || !(spec->grads & FLP_GRAD_WEIGHT)) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "spec.grads has FLP_GRAD_WEIGHT, but spec.lora_rank is %d (accepted: a frozen weight: HIDDEN, BIAS, "
                  "LORA_A, LORA_B)",
                  spec->lora_rank);
}

flp_status flp_spec_resolve(const flp_spec *spec, flp_spec *out) {
  flp_spec read;
  memset(out, 0, sizeof *out);
  if (!spec) return flp_fail(FLP_ERROR_ARGUMENT, "spec is NULL (accepted: a flp_spec)");
  FLP_TRY(flp_struct_read(FLP_STRUCT_SPEC, spec, &read));
  spec = &read;
  FLP_TRY(check_range("spec.", "op", spec->op, 0, FLP_OP_COUNT - 1));
  FLP_TRY(flp_op_calls_of(spec->op)->check_spec(spec));
  if (flp_op_of(spec->op)->has_head) FLP_TRY(check_mixed(spec));
  FLP_TRY(check_fields(spec));
  FLP_TRY(check_alignment(spec));
  FLP_TRY(check_gradients(spec));
  FLP_TRY(check_loss(spec));
  FLP_TRY(check_lora(spec));
  FLP_TRY(flp_features_check(spec, FLP_SURFACE_SPEC));
  *out = *spec;
  if (!flp_op_of(spec->op)->has_head) return FLP_OK;
  out->targets = (int32_t)flp_spec_targets(spec);
  if (flp_spec_passes_for_mean(spec) && !out->entropy) out->entropy = FLP_ENTROPY_FORWARD;
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

static flp_status check_arch(const char *arch) {
  char accepted[64];
  if (!arch || flp_arch_has(arch, FLP_ARCH_PLANNED)) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "options.arch is \"%.32s\" (accepted: NULL, %s)", arch,
                  flp_arch_list(FLP_ARCH_PLANNED, 0, ", ", accepted, sizeof accepted));
}

static flp_status check_options(const flp_options *options) {
  FLP_TRY(check_range("options.", "device", options->device, FLP_DEVICE_HOST, 1023));
  FLP_TRY(check_range("options.", "rung", options->rung, FLP_RUNG_AUTO, FLP_RUNG_EAGER));
  FLP_TRY(check_range("options.", "strict", options->strict, 0, 1));
  FLP_TRY(check_range("options.", "host_fallback", options->host_fallback, 0, 1));
  FLP_TRY(check_range("options.", "chunk_rows", options->chunk_rows, 0, FLP_COUNT_MAX));
  FLP_TRY(check_range("options.", "chunk_vocab", options->chunk_vocab, 0, FLP_COUNT_MAX));
  int has_layouts = (options->mode >= FLP_MODE_RECOMPUTE_VOCAB && options->mode <= FLP_MODE_DIRECTION) ||
                    options->mode == FLP_MODE_TAIL;
  if (options->mode && !has_layouts)
    return flp_fail(
        FLP_ERROR_ARGUMENT,
        "options.mode is %d (accepted: 0, FLP_MODE_RECOMPUTE_VOCAB 2 to FLP_MODE_DIRECTION 7, FLP_MODE_TAIL 9)",
        (int)options->mode);
  FLP_TRY(check_range("options.", "threads", options->threads, 0, 4096));
  FLP_TRY(check_arch(options->arch));
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
  FLP_TRY(check_range("", "pass", pass, FLP_PASS_FORWARD, FLP_PASS_LAST));
  FLP_TRY(flp_options_resolve(options, &resolved));
  if (rung) *rung = resolved.rung;
  if (strict) *strict = resolved.strict;
  if (budget_bytes)
    *budget_bytes = flp_pass_budget(resolved.budget_bytes, pass, flp_device_memory(resolved.device));
  return FLP_OK;
}
