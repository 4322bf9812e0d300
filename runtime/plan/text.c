/* text.c: the description of a plan. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/fields.h"
#include "runtime/base/status.h"
#include "runtime/eager/eager.h"
#include "runtime/plan/plan.h"

/* Text that stops at its buffer's end. */
typedef struct text {
  char *at;
  size_t left;
  int is_begun;
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

/* One field, if it is not as usual: " tail=2^-9". */
static void add_field(text *t, const flp_field *field, const flp_spec *spec) {
  char value[FLP_FIELD_TEXT_BYTES];
  flp_loss loss;
  if (!field->shown || !flp_field_is_set(field, spec)) return;
  add(t, "%s%s", t->is_begun++ ? " " : "", field->shown);
  if (field->kind == FLP_FIELD_LOSS)
    add(t, "%s", flp_loss_read(spec->loss, spec->loss_bytes, &loss) == FLP_OK ? loss.name : "?");
  else if (field->kind != FLP_FIELD_LISTS)
    add(t, "%s", flp_field_text(field, spec, value));
}

const char *flp_plan_fields_text(const flp_spec *spec, uint64_t fields, char out[FLP_SPEC_TEXT_BYTES]) {
  text t = {.at = out, .left = FLP_SPEC_TEXT_BYTES};
  out[0] = 0;
  for (int i = 0; i < FLP_SPEC_FIELD_COUNT; i++)
    if (fields >> i & 1) add_field(&t, &FLP_SPEC_FIELD[i], spec);
  return out;
}

const char *flp_plan_spec_text(const flp_spec *spec, char out[FLP_SPEC_TEXT_BYTES]) {
  return flp_plan_fields_text(spec, UINT64_MAX, out);
}

const char *flp_plan_features_text(const flp_spec *spec, char out[FLP_SPEC_TEXT_BYTES]) {
  uint64_t features = 0;
  for (int i = 0; i < FLP_SPEC_FIELD_COUNT; i++)
    features |= (uint64_t)(FLP_SPEC_FIELD[i].feature != FLP_FEATURE_NONE) << i;
  return flp_plan_fields_text(spec, features, out);
}

static void add_option(text *t, const flp_field *field, const flp_spec *spec) {
  char value[FLP_FIELD_TEXT_BYTES];
  if (field->kind == FLP_FIELD_LOSS || !flp_field_is_set(field, spec)) return;
  flp_field_text(field, spec, value);
  add(t, "%s--%s%s%s", t->is_begun++ ? " " : "", field->option, value[0] ? " " : "", value);
}

void flp_plan_spec_options(const flp_spec *spec, char out[FLP_SPEC_OPTIONS_BYTES]) {
  text t = {.at = out, .left = FLP_SPEC_OPTIONS_BYTES};
  out[0] = 0;
  add_option(&t, &FLP_SPEC_FIELD[FLP_FIELD_vocab], spec); /* as people write them */
  add_option(&t, &FLP_SPEC_FIELD[FLP_FIELD_hidden], spec);
  for (int i = 0; i < FLP_SPEC_FIELD_COUNT; i++)
    if (i != FLP_FIELD_vocab && i != FLP_FIELD_hidden) add_option(&t, &FLP_SPEC_FIELD[i], spec);
}

void flp_plan_tune_command(const flp_spec *spec, char out[FLP_TUNE_COMMAND_BYTES]) {
  char options[FLP_SPEC_OPTIONS_BYTES];
  flp_loss loss;
  flp_plan_spec_options(spec, options);
  snprintf(out, FLP_TUNE_COMMAND_BYTES, "flpgen tune %s", options);
  if (!spec->loss || flp_loss_read(spec->loss, spec->loss_bytes, &loss) != FLP_OK) return;
  text t = {.at = out + strlen(out), .left = FLP_TUNE_COMMAND_BYTES - strlen(out)};
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
/* A plan on a device has at least one rung's reason less. */
_Static_assert(FLP_UNPROVEN_BYTES + 2 <= FLP_REASON_BYTES, "a description is longer than flp.h says");

flp_status flp_plan_describe(const flp_plan *plan, char *buffer, size_t capacity) {
  flp_detail_clear();
  if (!plan) return flp_fail(FLP_ERROR_ARGUMENT, "plan is NULL (accepted: a plan of flp_plan_create)");
  if (!buffer) return flp_fail(FLP_ERROR_ARGUMENT, "buffer is NULL (accepted: capacity bytes to write to)");
  if (!capacity) return flp_fail(FLP_ERROR_ARGUMENT, "capacity is 0 (accepted: 1 or more)");
  text t = {.at = buffer, .left = capacity};
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
        : !plan->spec.keep && !flp_kernel_spec_emits(&plan->spec) ? "gradients are exact, which any tail allows"
        : flp_weight_is_sliced(&plan->spec) ? "products take the weight in slices"
                                            : "options.mode asks for recomputing");
  add(&t, "; plan id %s", plan->id);
  for (int rung = FLP_RUNG_TUNED; rung < (int)plan->rung; rung++)
    add(&t, "; not %s: %s", flp_rung_name((flp_rung)rung), plan->reason[rung]);
  if (plan->rung != FLP_RUNG_EAGER && plan->unproven.arches) add(&t, "; %s", plan->unproven.reason);
  return FLP_OK;
}

flp_rung flp_plan_get_rung(const flp_plan *plan) {
  return plan ? plan->rung : FLP_RUNG_AUTO;
}

const char *flp_plan_get_reason(const flp_plan *plan, flp_rung rung) {
  if (plan && rung == FLP_RUNG_AUTO) return plan->unproven.reason;
  if (!plan || rung < FLP_RUNG_TUNED || rung > FLP_RUNG_EAGER || rung >= plan->rung) return "";
  return plan->reason[rung];
}

flp_status flp_plan_get_id(const flp_plan *plan, char out[17]) {
  flp_detail_clear();
  if (!plan || !out) return flp_fail(FLP_ERROR_ARGUMENT, "%s is NULL", plan ? "out" : "plan");
  memcpy(out, plan->id, sizeof plan->id);
  return FLP_OK;
}
