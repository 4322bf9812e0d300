/* kernel.c: keys of kernels: canonical form, which ones a spec needs, and their bytes.
 *
 * Invariant: key bytes name every field, so two keys have equal bytes if and only if their canonical forms are equal. */
#include "runtime/kernel/kernel.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "runtime/kernel/op.h"
#include "runtime/base/operands.h"

void flp_kernel_key_canonicalise(flp_kernel_key *key) {
  unsigned fields = flp_kind_of(key->kind)->facts;
  flp_kernel_key out;
  memset(&out, 0, sizeof out); /* padding too, so that canonical keys also compare with memcmp */
  out.kind = key->kind;
  memcpy(out.arch, key->arch, strnlen(key->arch, sizeof out.arch - 1));
  out.dtype = key->dtype;
  if (fields & FLP_KIND_TARGET) out.target_dtype = key->target_dtype;
  if (fields & FLP_KIND_OUT) out.out_dtype = key->out_dtype;
  if (fields & FLP_KIND_ENTROPY) out.entropy = key->entropy != 0;
  if (fields & FLP_KIND_BIAS) {
    out.bias = key->bias != 0;
    out.softcap = key->softcap != 0;
  }
  if (fields & FLP_KIND_ADDS) out.bias = key->bias != 0;
  if (fields & FLP_KIND_LORA) out.lora = key->lora != 0;
  if (fields & FLP_KIND_MIXED) out.weight_form = key->weight_form;
  if (fields & FLP_KIND_BIAS_GRAD) out.bias_grad = key->bias_grad != 0;
  if (fields & FLP_KIND_ALIGNMENT) out.alignment = key->alignment >= 16 ? 16 : (uint32_t)flp_dtype_bytes(key->dtype);
  if (fields & FLP_KIND_HIDDEN) out.hidden = key->hidden;
  if (fields & FLP_KIND_VOCAB) out.vocab = key->vocab;
  if (fields & FLP_KIND_TUNE) out.tune = key->tune;
  if (fields & FLP_KIND_LOSS) memcpy(out.loss, key->loss, sizeof out.loss);
  memcpy(key, &out, sizeof out);
}

/* The dtype that a gradient is written in, for specs whether resolved or not. */
static flp_dtype grad_dtype(flp_dtype asked, flp_dtype operand) {
  return asked ? asked : operand;
}

/* 1 if what the mean score of a loss gives is a part of a gradient of 16 bits that this kernel writes: added behind it, it
 * would be rounded twice. A loss that reads lse alone has nothing to add, and the same kernels. */
static int adds_mean(const flp_spec *spec, flp_kernel_kind kind) {
  int hidden = kind != FLP_KERNEL_GRAD_WEIGHT && (spec->grads & FLP_GRAD_HIDDEN) &&
               grad_dtype(spec->grad_hidden_dtype, spec->dtype) != FLP_DTYPE_FP32;
  int weight = kind != FLP_KERNEL_GRAD_HIDDEN && (spec->grads & FLP_GRAD_WEIGHT) && !spec->accumulate_grad_weight &&
               grad_dtype(spec->grad_weight_dtype, spec->dtype) != FLP_DTYPE_FP32;
  return (hidden || weight) && flp_kernel_spec_has_scores_loss(spec) && !flp_kernel_spec_passes_for_mean(spec);
}

static flp_kernel_key key_of(const flp_spec *spec, const char *arch, flp_kernel_kind kind) {
  int is_dz = kind == FLP_KERNEL_DZ || kind == FLP_KERNEL_DZ_LORA;
  flp_kernel_key key = {
      .kind = kind,
      .dtype = spec->dtype,
      .target_dtype = spec->target_dtype,
      .entropy = is_dz ? spec->entropy == FLP_ENTROPY_BACKWARD : spec->entropy != FLP_ENTROPY_NONE,
      .bias = (flp_kind_has(kind, FLP_KIND_ADDS) ? adds_mean(spec, kind) : spec->has_bias) != 0,
      .bias_grad = (spec->grads & FLP_GRAD_BIAS) != 0,
      .softcap = spec->softcap > 0,
      .lora = spec->lora_rank > 0,
      .weight_form = (flp_weight_dtype(spec) != spec->dtype ? FLP_KEY_WIDE : 0u) |
               (flp_operand_terms(spec) > 1 ? FLP_KEY_TERMS : 0u),
      .alignment = spec->alignment,
      .hidden = kind == FLP_KERNEL_LORA_PRODUCTS ? spec->lora_rank : spec->hidden,
      .vocab = spec->vocab,
  };
  if (flp_kind_has(kind, FLP_KIND_LOSS)) {
    key.dtype = FLP_DTYPE_FP32;
    crypto_hash_sha256(key.loss, spec->loss, spec->loss_bytes);
  }
  if (flp_kind_parts(kind) & FLP_PART_COLUMNS || is_dz) key.hidden *= flp_operand_terms(spec);
  if (kind == FLP_KERNEL_DIVERGE) key.out_dtype = spec->dtype;
  if (kind == FLP_KERNEL_GRAD_HIDDEN || kind == FLP_KERNEL_LORA)
    key.out_dtype = grad_dtype(spec->grad_hidden_dtype, flp_hidden_dtype(spec));
  if (kind == FLP_KERNEL_GRAD_WEIGHT)
    key.out_dtype =
        spec->accumulate_grad_weight ? FLP_DTYPE_FP32 : grad_dtype(spec->grad_weight_dtype, flp_weight_dtype(spec));
  arch = flp_arch_of_kind(arch, kind, spec->alignment, spec->dtype);
  memcpy(key.arch, arch, strnlen(arch, sizeof key.arch - 1));
  flp_kernel_key_canonicalise(&key);
  return key;
}

int flp_kernel_spec_emits(const flp_spec *spec) {
  return spec->tail > 0 && !spec->listed && spec->targets <= 1 && !flp_kernel_spec_has_scores_loss(spec);
}

int flp_kernel_spec_keeps(const flp_spec *spec) {
  return spec->grads && spec->dtype == FLP_DTYPE_BF16 && (spec->keep || spec->loss) && !flp_kernel_spec_emits(spec) &&
         !flp_weight_is_sliced(spec) && !spec->listed;
}

int flp_kernel_spec_is_short(const flp_spec *spec) {
  return !spec->grads && spec->dtype != FLP_DTYPE_FP32;
}

int flp_kernel_spec_flat(const flp_spec *spec) {
  int is_mixed = flp_hidden_dtype(spec) != flp_weight_dtype(spec);
  int is_plain = !(spec->grads & FLP_GRAD_BIAS) && !spec->lora_rank && !is_mixed;
  return flp_kernel_spec_emits(spec) && spec->loss && spec->grads && spec->dtype == FLP_DTYPE_BF16 && is_plain &&
         spec->vocab >= FLP_FLAT_VOCAB;
}

int flp_kernel_spec_has_exponentials(const flp_spec *spec) {
  return flp_kernel_spec_keeps(spec) || flp_kernel_spec_flat(spec);
}

unsigned flp_kernel_spec_parts(const flp_spec *spec) {
  return (spec->targets > 1 ? FLP_PART_TARGETS : 0u) | (flp_weight_is_sliced(spec) ? FLP_PART_COLUMNS : 0u) |
         (spec->statistics ? FLP_PART_STATISTICS : 0u) | (spec->raw_scores ? FLP_PART_RAW : 0u) |
         (spec->lora_rank ? FLP_PART_LORA : 0u);
}

static int has_loss_version(const flp_spec *spec, int version) {
  const uint8_t *bytes = spec->loss;
  return bytes && spec->loss_bytes > 4 && bytes[4] == version;
}

int flp_kernel_spec_has_targets_loss(const flp_spec *spec) {
  return has_loss_version(spec, FLP_TARGETS_LOSS_VERSION);
}

int flp_kernel_spec_has_scores_loss(const flp_spec *spec) {
  return has_loss_version(spec, FLP_SCORES_LOSS_VERSION);
}

int flp_kernel_spec_passes_for_mean(const flp_spec *spec) {
  return spec->softcap > 0 || spec->lora_rank || spec->listed || flp_weight_is_sliced(spec);
}

int flp_kernel_keys_for(const flp_spec *spec, const char *arch, flp_kernel_key out[FLP_SPEC_KERNELS_MAX]) {
  const flp_op_row *op = flp_op_of(spec->op);
  int count = 0;
  for (int i = 0; i < op->kernel_count; i++) {
    flp_kernel_kind kind = op->kernels[i].kind;
    if (kind == FLP_KERNEL_FORWARD) kind += op->kernels[i].parts | flp_kernel_spec_parts(spec);
    int is_there = count > 0 && out[count - 1].kind == kind;
    if (!is_there && flp_op_wants(&op->kernels[i], spec, arch)) out[count++] = key_of(spec, arch, kind);
  }
  return count;
}

void flp_tuning_apply(const flp_tuning *tuning, flp_kernel_key *keys, int count) {
  for (int i = 0; i < count; i++)
    if (flp_kind_has(keys[i].kind, FLP_KIND_TUNE)) keys[i].tune = tuning->of[keys[i].kind];
}

static int has_tunable(const char *arch, const flp_spec *spec, flp_kernel_kind kind) {
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  int count = flp_kernel_keys_for(spec, arch, keys);
  for (int i = 0; i < count; i++)
    if (flp_kind_has(keys[i].kind, FLP_KIND_TUNE) && (!kind || keys[i].kind == kind)) return 1;
  return 0;
}

int flp_kernel_arch_tunes(const char *arch, const flp_spec *spec, flp_kernel_kind kind) {
  const flp_arch *row;
  if (arch) return has_tunable(arch, spec, kind);
  for (int i = 0; (row = flp_arch_at(i)); i++)
    if (has_tunable(row->name, spec, kind)) return 1;
  return 0;
}

const char *flp_kernel_tunable_kinds(const char *arch, const flp_spec *spec, char *out, size_t capacity) {
  size_t used = 0;
  out[0] = 0;
  for (int kind = 1; kind < FLP_KERNEL_KINDS && used < capacity; kind++)
    if (flp_kernel_arch_tunes(arch, spec, (flp_kernel_kind)kind))
      used += (size_t)snprintf(out + used, capacity - used, "%s%s", used ? ", " : "",
                               flp_kernel_kind_name((flp_kernel_kind)kind));
  return out;
}

int flp_kernel_arch_heeds(const char *arch, const flp_spec *spec, const flp_tuning *tuning) {
  for (int k = 1; k < FLP_KERNEL_KINDS; k++) {
    flp_kernel_kind kind = (flp_kernel_kind)k;
    int is_named = flp_tunables_are_set(&tuning->of[kind]);
    if (is_named && !has_tunable(arch, spec, kind) && flp_kernel_arch_tunes(NULL, spec, kind)) return 0;
  }
  return 1;
}

int flp_kernel_heeding_arch(const char *const *arches, int count, const flp_spec *spec, const flp_tuning *tuning) {
  int found = -1;
  for (int i = 0; i < count; i++)
    if ((found < 0 || flp_arch_find(arches[i]) > flp_arch_find(arches[found])) &&
        flp_kernel_arch_heeds(arches[i], spec, tuning))
      found = i;
  return found;
}

int flp_kernel_arch_serves(const char *arch, const flp_spec *spec) {
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  int count = flp_kernel_keys_for(spec, arch, keys);
  for (int i = 0; i < count; i++)
    if (strncmp(keys[i].arch, arch, sizeof keys[i].arch) == 0) return 1;
  return 0;
}

int flp_kernel_runs_any_loss(const flp_kernel_key *key) {
  static const uint8_t none[sizeof key->loss] = {0};
  int has_any = key->kind == FLP_KERNEL_LOSS || key->kind == FLP_KERNEL_LOSS_SCORES;
  return has_any && memcmp(key->loss, none, sizeof none) == 0;
}

flp_kernel_key flp_kernel_key_generic(const flp_kernel_key *key, const char *arch) {
  flp_kernel_key generic = *key;
  memset(generic.arch, 0, sizeof generic.arch);
  memcpy(generic.arch, arch, strnlen(arch, sizeof generic.arch - 1));
  generic.hidden = generic.vocab = 0;
  generic.entropy = generic.bias_grad = 1;
  if (!flp_kind_has(key->kind, FLP_KIND_ADDS)) generic.bias = 1;
  generic.tune = (flp_tunables){0};
  memset(generic.loss, 0, sizeof generic.loss);
  flp_kernel_key_canonicalise(&generic);
  return generic;
}

static const char *key_dtype_name(flp_dtype dtype) {
  return dtype ? flp_dtype_name(dtype) : "none";
}

size_t flp_kernel_key_bytes(const flp_kernel_key *key, const uint8_t sources[32], const char *tuned_for, char *out,
                            size_t capacity) {
  flp_kernel_key k = *key;
  flp_kernel_key_canonicalise(&k);
  char hex[65], loss[65] = "none";
  for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", sources[i]);
  for (int i = 0; flp_kind_has(k.kind, FLP_KIND_LOSS) && i < 32; i++) snprintf(loss + 2 * i, 3, "%02x", k.loss[i]);
  char tune[FLP_TUNABLES_TEXT_BYTES];
  flp_tunables_text(&k.tune, tune);
  int length = snprintf(out, capacity,
                        "flp-key/%d kind=%s arch=%s dtype=%s target=%s out=%s entropy=%" PRIu32 " bias=%" PRIu32
                        " bias_grad=%" PRIu32 " softcap=%" PRIu32 " lora=%" PRIu32 " weight=%" PRIu32 " alignment=%" PRIu32
                        " hidden=%" PRId64
                        " vocab=%" PRId64 " tune=%s loss=%s sources=%s tuned=%s",
                        FLP_KEY_FORMAT, flp_kernel_kind_name(k.kind), k.arch, key_dtype_name(k.dtype),
                        key_dtype_name(k.target_dtype), key_dtype_name(k.out_dtype), k.entropy, k.bias, k.bias_grad,
                        k.softcap, k.lora, k.weight_form, k.alignment, k.hidden, k.vocab, tune, loss, hex,
                        tuned_for ? tuned_for : "");
  return length > 0 && (size_t)length < capacity ? (size_t)length : 0;
}
