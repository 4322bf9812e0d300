/* kernel.c: keys of kernels: canonical form, which ones a spec needs, their bytes, and names.
 *
 * Invariants: fields_of is the one place that says which fields a kind uses; key bytes name every field, so two keys
 * have equal bytes if and only if their canonical forms are equal. */
#include "runtime/kernel/kernel.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

enum {
  USES_TARGET = 1,
  USES_OUT = 2,
  USES_ENTROPY = 4,
  USES_BIAS = 8, /* with softcap: both change the scores */
  USES_BIAS_GRAD = 16,
  USES_ALIGNMENT = 32,
  USES_HIDDEN = 64,
  USES_VOCAB = 128,
  USES_TUNE = 256,
  USES_LOSS = 512
};

static const struct {
  const char *name;
  unsigned fields;
} kinds[] = {
    [FLP_KERNEL_ROWS] = {"rows", USES_TARGET},
    [FLP_KERNEL_FORWARD] = {"forward",
                            USES_ENTROPY | USES_BIAS | USES_ALIGNMENT | USES_HIDDEN | USES_VOCAB | USES_TUNE},
    [FLP_KERNEL_DZ] = {"dz", USES_ENTROPY | USES_BIAS | USES_BIAS_GRAD | USES_ALIGNMENT | USES_HIDDEN | USES_VOCAB |
                                 USES_TUNE},
    [FLP_KERNEL_GRAD_HIDDEN] = {"grad_hidden", USES_OUT | USES_ALIGNMENT | USES_HIDDEN},
    [FLP_KERNEL_GRAD_WEIGHT] = {"grad_weight", USES_OUT | USES_ALIGNMENT | USES_HIDDEN},
    [FLP_KERNEL_PRODUCTS] = {"products", USES_ALIGNMENT | USES_HIDDEN | USES_TUNE},
    [FLP_KERNEL_SELECT] = {"select", USES_TARGET | USES_ENTROPY | USES_ALIGNMENT | USES_VOCAB},
    [FLP_KERNEL_KEEP] = {"forward_keep",
                         USES_ENTROPY | USES_BIAS | USES_ALIGNMENT | USES_HIDDEN | USES_VOCAB | USES_TUNE},
    [FLP_KERNEL_KEPT] = {"kept", USES_ALIGNMENT},
    [FLP_KERNEL_LOSS] = {"loss_rows", USES_LOSS},
};

const char *flp_kernel_kind_name(flp_kernel_kind kind) {
  size_t i = (size_t)kind;
  return i < sizeof kinds / sizeof kinds[0] && kinds[i].name ? kinds[i].name : "?";
}

static unsigned fields_of(flp_kernel_kind kind) {
  size_t i = (size_t)kind;
  return i < sizeof kinds / sizeof kinds[0] ? kinds[i].fields : 0;
}

void flp_kernel_key_canonicalise(flp_kernel_key *key) {
  unsigned fields = fields_of(key->kind);
  flp_kernel_key out;
  memset(&out, 0, sizeof out); /* padding too, so that canonical keys also compare with memcmp */
  out.kind = key->kind;
  memcpy(out.arch, key->arch, strnlen(key->arch, sizeof out.arch - 1));
  out.dtype = key->dtype;
  if (fields & USES_TARGET) out.target_dtype = key->target_dtype;
  if (fields & USES_OUT) out.out_dtype = key->out_dtype;
  if (fields & USES_ENTROPY) out.entropy = key->entropy != 0;
  if (fields & USES_BIAS) {
    out.bias = key->bias != 0;
    out.softcap = key->softcap != 0;
  }
  if (fields & USES_BIAS_GRAD) out.bias_grad = key->bias_grad != 0;
  if (fields & USES_ALIGNMENT) out.alignment = key->alignment >= 16 ? 16 : (uint32_t)flp_dtype_bytes(key->dtype);
  if (fields & USES_HIDDEN) out.hidden = key->hidden;
  if (fields & USES_VOCAB) out.vocab = key->vocab;
  if (fields & USES_TUNE) out.tune = key->tune;
  if (fields & USES_LOSS) memcpy(out.loss, key->loss, sizeof out.loss);
  memcpy(key, &out, sizeof out);
}

/* The dtype that a gradient is written in, for specs whether resolved or not. */
static flp_dtype grad_dtype(flp_dtype asked, flp_dtype operand) {
  return asked ? asked : operand;
}

/* Architectures that have kernels of their own for some kinds only. */
static const struct {
  const char *name, *below; /* below: whose kernels serve for the other kinds */
  unsigned kinds;           /* 1 << kind */
} partial_arches[] = {
    {"sm_90a", "sm_80",
     1u << FLP_KERNEL_FORWARD | 1u << FLP_KERNEL_DZ | 1u << FLP_KERNEL_PRODUCTS | 1u << FLP_KERNEL_KEEP},
};

static const char *arch_of(const flp_spec *spec, const char *arch, flp_kernel_kind kind) {
  for (size_t i = 0; i < sizeof partial_arches / sizeof partial_arches[0]; i++) {
    if (strcmp(partial_arches[i].name, arch) != 0) continue;
    int own = (partial_arches[i].kinds >> kind & 1) && spec->alignment >= 16;
    return own ? arch : partial_arches[i].below;
  }
  return arch;
}

static flp_kernel_key key_of(const flp_spec *spec, const char *arch, flp_kernel_kind kind) {
  flp_kernel_key key = {
      .kind = kind,
      .dtype = spec->dtype,
      .target_dtype = spec->target_dtype,
      .entropy = kind == FLP_KERNEL_DZ ? spec->entropy == FLP_ENTROPY_BACKWARD : spec->entropy != FLP_ENTROPY_NONE,
      .bias = spec->has_bias != 0,
      .bias_grad = (spec->grads & FLP_GRAD_BIAS) != 0,
      .softcap = spec->softcap > 0,
      .alignment = spec->alignment,
      .hidden = spec->hidden,
      .vocab = spec->vocab,
  };
  if (kind == FLP_KERNEL_LOSS) {
    key.dtype = FLP_DTYPE_FP32;
    crypto_hash_sha256(key.loss, spec->loss, spec->loss_bytes);
  }
  if (kind == FLP_KERNEL_GRAD_HIDDEN) key.out_dtype = grad_dtype(spec->grad_hidden_dtype, spec->dtype);
  if (kind == FLP_KERNEL_GRAD_WEIGHT)
    key.out_dtype = spec->accumulate_grad_weight ? FLP_DTYPE_FP32 : grad_dtype(spec->grad_weight_dtype, spec->dtype);
  arch = arch_of(spec, arch, kind);
  memcpy(key.arch, arch, strnlen(arch, sizeof key.arch - 1));
  flp_kernel_key_canonicalise(&key);
  return key;
}

/* 1 if one kernel makes both products of a chunk there. */
static int has_products(const flp_spec *spec, const char *arch) {
  for (size_t i = 0; i < sizeof partial_arches / sizeof partial_arches[0]; i++)
    if (strcmp(partial_arches[i].name, arch) == 0) return strcmp(arch_of(spec, arch, FLP_KERNEL_PRODUCTS), arch) == 0;
  return 0;
}

int flp_kernel_spec_keeps(const flp_spec *spec) {
  return spec->grads && spec->dtype == FLP_DTYPE_BF16 && (spec->keep || spec->loss);
}

int flp_kernel_keys_for(const flp_spec *spec, const char *arch, flp_kernel_key out[FLP_SPEC_KERNELS_MAX]) {
  int count = 0;
  if (spec->op == FLP_OP_SELECT) {
    out[count++] = key_of(spec, arch, FLP_KERNEL_SELECT);
    return count;
  }
  int hidden = (spec->grads & FLP_GRAD_HIDDEN) != 0, weight = (spec->grads & FLP_GRAD_WEIGHT) != 0;
  int products = (hidden || weight) && has_products(spec, arch);
  int keeps = flp_kernel_spec_keeps(spec);
  const struct {
    flp_kernel_kind kind;
    int wanted;
  } kinds_for[] = {{FLP_KERNEL_ROWS, 1},
                   {FLP_KERNEL_FORWARD, 1},
                   {FLP_KERNEL_DZ, spec->grads != 0},
                   {FLP_KERNEL_PRODUCTS, products},
                   {FLP_KERNEL_GRAD_HIDDEN, hidden && !products},
                   {FLP_KERNEL_GRAD_WEIGHT, weight && !products},
                   {FLP_KERNEL_KEEP, keeps},
                   {FLP_KERNEL_KEPT, keeps},
                   {FLP_KERNEL_LOSS, spec->loss != NULL}};
  for (size_t i = 0; i < sizeof kinds_for / sizeof kinds_for[0]; i++)
    if (kinds_for[i].wanted) out[count++] = key_of(spec, arch, kinds_for[i].kind);
  return count;
}

int flp_kernel_is_tunable(const flp_kernel_key *key) {
  for (size_t i = 0; i < sizeof partial_arches / sizeof partial_arches[0]; i++)
    if (strcmp(partial_arches[i].name, key->arch) == 0) return (fields_of(key->kind) & USES_TUNE) != 0;
  return 0;
}

void flp_tuning_apply(const flp_tuning *tuning, flp_kernel_key *keys, int count) {
  for (int i = 0; i < count; i++)
    if (flp_kernel_is_tunable(&keys[i])) keys[i].tune = tuning->of[keys[i].kind];
}

int flp_kernel_arch_leaves_choice(const char *arch, const flp_spec *spec) {
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  int count = flp_kernel_keys_for(spec, arch, keys), tunable = 0;
  for (int i = 0; i < count; i++) tunable |= flp_kernel_is_tunable(&keys[i]);
  return tunable;
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
  return key->kind == FLP_KERNEL_LOSS && memcmp(key->loss, none, sizeof none) == 0;
}

flp_kernel_key flp_kernel_key_generic(const flp_kernel_key *key, const char *arch) {
  flp_kernel_key generic = *key;
  memset(generic.arch, 0, sizeof generic.arch);
  memcpy(generic.arch, arch, strnlen(arch, sizeof generic.arch - 1));
  generic.hidden = generic.vocab = 0;
  generic.entropy = generic.bias = generic.bias_grad = 1;
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
  for (int i = 0; k.kind == FLP_KERNEL_LOSS && i < 32; i++) snprintf(loss + 2 * i, 3, "%02x", k.loss[i]);
  char tune[FLP_TUNABLES_TEXT_BYTES];
  flp_tunables_text(&k.tune, tune);
  int length = snprintf(out, capacity,
                        "flp-key/%d kind=%s arch=%s dtype=%s target=%s out=%s entropy=%" PRIu32 " bias=%" PRIu32
                        " bias_grad=%" PRIu32 " softcap=%" PRIu32 " alignment=%" PRIu32 " hidden=%" PRId64
                        " vocab=%" PRId64 " tune=%s loss=%s sources=%s tuned=%s",
                        FLP_KEY_FORMAT, flp_kernel_kind_name(k.kind), k.arch, key_dtype_name(k.dtype),
                        key_dtype_name(k.target_dtype), key_dtype_name(k.out_dtype), k.entropy, k.bias, k.bias_grad,
                        k.softcap, k.alignment, k.hidden, k.vocab, tune, loss, hex, tuned_for ? tuned_for : "");
  return length > 0 && (size_t)length < capacity ? (size_t)length : 0;
}
