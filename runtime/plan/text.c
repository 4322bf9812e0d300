/* text.c: the description of a plan. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/status.h"
#include "runtime/eager/eager.h"
#include "runtime/kernel/op.h"
#include "runtime/base/operands.h"
#include "runtime/plan/plan.h"

/* Text that stops at its buffer's end. */
typedef struct text {
  char *at;
  size_t left;
} text;

static void add(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(text *t, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(t->at, t->left, format, arguments);
  va_end(arguments);
  size_t used = length < 0 ? 0 : (size_t)length < t->left ? (size_t)length : t->left - 1;
  t->at += used;
  t->left -= used;
}

/* A power of two by its exponent, which is how people choose one. */
static void add_tail(text *t, const char *before, float tail) {
  int exponent = 0;
  if (frexpf(tail, &exponent) == 0.5f)
    add(t, "%s2^%d", before, exponent - 1);
  else
    add(t, "%s%.9g", before, (double)tail);
}

/* Operands of a dtype of their own: " weight=fp32 mixed=round", or as options of the command. */
static void add_mixed(text *t, const flp_spec *spec, int as_options) {
  flp_spec usual = *spec;
  usual.bias_dtype = (flp_dtype)0;
  const struct {
    const char *name;
    flp_dtype dtype, usual;
  } operands[] = {{"hidden", flp_hidden_dtype(spec), spec->dtype},
                  {"weight", flp_weight_dtype(spec), spec->dtype},
                  {"bias", flp_bias_dtype(spec), flp_bias_dtype(spec->has_bias ? &usual : spec)}};
  if (!spec->mixed) return;
  for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++)
    if (operands[i].dtype != operands[i].usual)
      add(t, as_options ? " --%s-dtype %s" : " %s=%s", operands[i].name, flp_dtype_name(operands[i].dtype));
  add(t, as_options ? " --mixed %s" : " mixed=%s", flp_mixed_name(spec->mixed));
}

void flp_plan_spec_text(const flp_spec *spec, char out[FLP_SPEC_TEXT_BYTES]) {
  char grads[FLP_GRADS_TEXT_BYTES];
  text t = {out, FLP_SPEC_TEXT_BYTES};
  int has_head = flp_op_of(spec->op)->has_head;
  if (spec->op != FLP_OP_HEAD) add(&t, "%s ", flp_op_name(spec->op));
  add(&t, "V=%" PRId64, spec->vocab);
  if (has_head) add(&t, " D=%" PRId64, spec->hidden);
  add(&t, " %s", flp_dtype_name(spec->dtype));
  add_mixed(&t, spec, 0);
  add(&t, " entropy=%s", flp_entropy_name(spec->entropy));
  if (has_head) add(&t, " grads=%s", spec->grads ? flp_grads_text(spec->grads, "+", grads) : "none");
  if (spec->has_bias) add(&t, " bias");
  if (spec->softcap > 0) add(&t, " softcap=%g", (double)spec->softcap);
  if (spec->keep) add(&t, " keep");
  if (spec->listed) add(&t, " listed");
  if (spec->tail > 0) add_tail(&t, " tail=", spec->tail);
  if (spec->targets > 1) add(&t, " targets=%" PRId32, spec->targets);
  if (spec->topk) add(&t, " topk=%d", spec->topk);
  if (spec->rank) add(&t, " rank");
  if (spec->lora_rank) add(&t, " lora=%d", spec->lora_rank);
  flp_loss loss;
  if (spec->loss && flp_loss_read(spec->loss, spec->loss_bytes, &loss) == FLP_OK) add(&t, " loss=%s", loss.name);
}

void flp_plan_spec_options(const flp_spec *spec, char out[FLP_SPEC_OPTIONS_BYTES]) {
  char grads[FLP_GRADS_TEXT_BYTES];
  const flp_spec usual = FLP_SPEC_INIT;
  text t = {out, FLP_SPEC_OPTIONS_BYTES};
  if (spec->op != FLP_OP_HEAD) add(&t, "--op %s ", flp_op_name(spec->op));
  add(&t, "--vocab %" PRId64, spec->vocab);
  if (flp_op_of(spec->op)->has_head) add(&t, " --hidden %" PRId64, spec->hidden);
  add(&t, " --dtype %s", flp_dtype_name(spec->dtype));
  add_mixed(&t, spec, 1);
  if (spec->entropy) add(&t, " --entropy %s", flp_entropy_name(spec->entropy));
  if (spec->grads) add(&t, " --grad %s", flp_grads_text(spec->grads, ",", grads));
  if (spec->has_bias) add(&t, " --bias");
  if (spec->softcap > 0) add(&t, " --softcap %.9g", (double)spec->softcap);
  if (spec->per_row_temperature) add(&t, " --per-row-temperature");
  if (spec->target_dtype != usual.target_dtype) add(&t, " --target-dtype %s", flp_dtype_name(spec->target_dtype));
  if (spec->grad_hidden_dtype && spec->grad_hidden_dtype != flp_hidden_dtype(spec))
    add(&t, " --grad-hidden-dtype %s", flp_dtype_name(spec->grad_hidden_dtype));
  if (spec->grad_weight_dtype && spec->grad_weight_dtype != flp_weight_dtype(spec))
    add(&t, " --grad-weight-dtype %s", flp_dtype_name(spec->grad_weight_dtype));
  if (spec->accumulate_grad_weight) add(&t, " --accumulate-grad-weight");
  if (spec->alignment && spec->alignment < 16) add(&t, " --alignment %" PRIu32, spec->alignment);
  if (spec->keep) add(&t, " --keep");
  if (spec->listed) add(&t, " --keep-set 1"); /* kernels are the same for lists of any length */
  if (spec->tail > 0) add_tail(&t, " --tail ", spec->tail);
  if (spec->targets > 1) add(&t, " --targets %" PRId32, spec->targets);
  if (spec->topk) add(&t, " --topk %d", spec->topk);
  if (spec->rank) add(&t, " --rank");
  if (spec->lora_rank) add(&t, " --lora-rank %d", spec->lora_rank);
}

void flp_plan_tune_command(const flp_spec *spec, char out[FLP_TUNE_COMMAND_BYTES]) {
  char options[FLP_SPEC_OPTIONS_BYTES];
  flp_loss loss;
  flp_plan_spec_options(spec, options);
  snprintf(out, FLP_TUNE_COMMAND_BYTES, "flpgen tune %s", options);
  if (!spec->loss || flp_loss_read(spec->loss, spec->loss_bytes, &loss) != FLP_OK) return;
  text t = {out + strlen(out), FLP_TUNE_COMMAND_BYTES - strlen(out)};
  if (flp_loss_builtin_bytes(loss.name, NULL, 0, &(size_t){0}) == FLP_OK)
    add(&t, " --loss %s", loss.name);
  else
    add(&t, " --loss FILE"); /* of the caller's own, which the library does not know */
}

static void add_device(text *t, const flp_plan *plan) {
  const flp_device *device = &plan->device;
  add(t, " on %s (compute capability %d.%d, %d multiprocessors, driver %d): kernels", device->name, device->major,
      device->minor, device->multiprocessors, plan->driver->version);
  for (int i = 0; i < plan->modules.count; i++)
    add(t, "%s %s", i ? "," : "", flp_kernel_kind_name(plan->modules.desc[i].key.kind));
  add(t, " for %s", plan->arch);
}

/* What flp.h says of the capacity: the reasons, the texts of spec and tiling, the CPU's (the device's are shorter) and
 * the words between them. */
_Static_assert((FLP_RUNG_EAGER - FLP_RUNG_TUNED) * FLP_REASON_BYTES + FLP_SPEC_TEXT_BYTES + FLP_TILING_BYTES +
                       FLP_EAGER_TEXT_BYTES + 400 <=
                   4096,
               "a description is longer than flp.h says");

flp_status flp_plan_describe(const flp_plan *plan, char *buffer, size_t capacity) {
  flp_detail_clear();
  if (!plan) return flp_fail(FLP_ERROR_ARGUMENT, "plan is NULL (accepted: a plan of flp_plan_create)");
  if (!buffer) return flp_fail(FLP_ERROR_ARGUMENT, "buffer is NULL (accepted: capacity bytes to write to)");
  if (!capacity) return flp_fail(FLP_ERROR_ARGUMENT, "capacity is 0 (accepted: 1 or more)");
  text t = {buffer, capacity};
  add(&t, "rung %s", flp_rung_name(plan->rung));
  if (plan->rung == FLP_RUNG_EAGER)
    add(&t, " on host pointers: %s", flp_eager_describe());
  else
    add_device(&t, plan);
  add(&t, "; spec %s", plan->spec_text);
  if (plan->tiling[0]) add(&t, "; tiling: %s", plan->tiling);
  if ((plan->spec.keep || plan->spec.tail > 0) && !flp_plan_keeps(plan))
    add(&t, "; keeps nothing for backward: %s",
        plan->rung == FLP_RUNG_EAGER        ? "the eager rung recomputes"
        : flp_weight_is_sliced(&plan->spec) ? "products take the weight in slices"
                                            : "options.mode asks for recomputing");
  add(&t, "; plan id %s", plan->id);
  for (int rung = FLP_RUNG_TUNED; rung < (int)plan->rung; rung++)
    add(&t, "; not %s: %s", flp_rung_name((flp_rung)rung), plan->reason[rung]);
  return FLP_OK;
}

flp_rung flp_plan_get_rung(const flp_plan *plan) {
  return plan ? plan->rung : FLP_RUNG_AUTO;
}

const char *flp_plan_get_reason(const flp_plan *plan, flp_rung rung) {
  if (!plan || rung < FLP_RUNG_TUNED || rung > FLP_RUNG_EAGER || rung >= plan->rung) return "";
  return plan->reason[rung];
}

flp_status flp_plan_get_id(const flp_plan *plan, char out[17]) {
  flp_detail_clear();
  if (!plan || !out) return flp_fail(FLP_ERROR_ARGUMENT, "%s is NULL", plan ? "out" : "plan");
  memcpy(out, plan->id, sizeof plan->id);
  return FLP_OK;
}
