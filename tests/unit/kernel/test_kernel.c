/* test_kernel.c: keys: their bytes exactly, what changes them, and which kernels a spec asks for. */
#include <criterion/criterion.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/support/kernel_sample.h"

static const uint8_t sources[32] = {0x00, 0x01, 0xab, 0xff};
#define SOURCES_HEX "0001abff00000000000000000000000000000000000000000000000000000000"
#define LOSS_HEX "4c00000000000000000000000000000000000000000000000000000000000053"

static flp_spec spec_of(uint32_t grads, flp_entropy entropy) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.vocab = 1000;
  spec.hidden = 64;
  spec.grads = grads;
  spec.entropy = entropy;
  spec.grad_hidden_dtype = spec.grad_weight_dtype = spec.dtype;
  return spec;
}

Test(kernel, key_bytes_are_exact) {
  const struct {
    flp_kernel_kind kind;
    const char *tuned_for, *want;
  } cases[] = {
      {FLP_KERNEL_ROWS, "",
       "flp-key/3 kind=rows arch=sm_80 dtype=bf16 target=int64 out=none entropy=0 bias=0 bias_grad=0 softcap=0 "
       "alignment=0 hidden=0 vocab=0 tune=own loss=none sources=" SOURCES_HEX " tuned="},
      {FLP_KERNEL_FORWARD, "NVIDIA H200/132/13000",
       "flp-key/3 kind=forward arch=sm_80 dtype=bf16 target=none out=none entropy=1 bias=1 bias_grad=0 softcap=1 "
       "alignment=16 hidden=4096 vocab=151936 tune=own loss=none sources=" SOURCES_HEX " tuned=NVIDIA H200/132/13000"},
      {FLP_KERNEL_DZ, NULL,
       "flp-key/3 kind=dz arch=sm_80 dtype=bf16 target=none out=none entropy=1 bias=1 bias_grad=1 softcap=1 "
       "alignment=16 hidden=4096 vocab=151936 tune=own loss=none sources=" SOURCES_HEX " tuned="},
      {FLP_KERNEL_LOSS, "",
       "flp-key/3 kind=loss_rows arch=sm_80 dtype=bf16 target=none out=none entropy=0 bias=0 bias_grad=0 softcap=0 "
       "alignment=0 hidden=0 vocab=0 tune=own loss=" LOSS_HEX " sources=" SOURCES_HEX " tuned="},
      {FLP_KERNEL_GRAD_WEIGHT, "",
       "flp-key/3 kind=grad_weight arch=sm_80 dtype=bf16 target=none out=fp32 entropy=0 bias=1 bias_grad=0 softcap=0 "
       "alignment=16 hidden=4096 vocab=0 tune=own loss=none sources=" SOURCES_HEX " tuned="},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    flp_kernel_key key = sample_key(cases[i].kind);
    char bytes[FLP_KEY_BYTES_MAX];
    size_t length = flp_kernel_key_bytes(&key, sources, cases[i].tuned_for, bytes, sizeof bytes);
    cr_expect_str_eq(bytes, cases[i].want);
    cr_expect_eq(length, strlen(cases[i].want));
  }
}

Test(kernel, key_bytes_need_their_capacity) {
  flp_kernel_key key = sample_key(FLP_KERNEL_DZ);
  char bytes[FLP_KEY_BYTES_MAX];
  size_t length = flp_kernel_key_bytes(&key, sources, "", bytes, sizeof bytes);
  cr_assert_gt(length, 0);
  cr_expect_eq(flp_kernel_key_bytes(&key, sources, "", bytes, length + 1), length);
  cr_expect_eq(flp_kernel_key_bytes(&key, sources, "", bytes, length), 0);
  cr_expect_eq(flp_kernel_key_bytes(&key, sources, "", bytes, 0), 0);
  /* The largest key: a device name of 127 letters and every number at its longest. */
  char tuned_for[160];
  snprintf(tuned_for, sizeof tuned_for, "%0127d/2147483647/2147483647", 0);
  strcpy(key.arch, "sm_100a_longest");
  key.hidden = key.vocab = INT64_MAX;
  key.alignment = UINT32_MAX;
  cr_expect_gt(flp_kernel_key_bytes(&key, sources, tuned_for, bytes, sizeof bytes), 0);
}

/* Changes field i of a key; returns its name, or NULL behind the last. */
static const char *change_field(flp_kernel_key *key, int i) {
  switch (i) {
    case 0:
      strcpy(key->arch, "sm_90a");
      return "arch";
    case 1:
      key->dtype = FLP_DTYPE_FP16;
      return "dtype";
    case 2:
      key->target_dtype = FLP_DTYPE_INT32;
      return "target_dtype";
    case 3:
      key->out_dtype = FLP_DTYPE_BF16;
      return "out_dtype";
    case 4:
      key->entropy = !key->entropy;
      return "entropy";
    case 5:
      key->bias = !key->bias;
      return "bias";
    case 6:
      key->bias_grad = !key->bias_grad;
      return "bias_grad";
    case 7:
      key->softcap = !key->softcap;
      return "softcap";
    case 8:
      key->alignment = 2;
      return "alignment";
    case 9:
      key->hidden = 4104;
      return "hidden";
    case 10:
      key->vocab = 0x100000000;
      return "vocab";
    case 11:
      key->loss[31] ^= 1;
      return "loss";
    default:
      return NULL;
  }
}

/* Whether the table of kinds says that a field is used. */
static int is_used(flp_kernel_kind kind, const char *field) {
  static const struct {
    const char *name;
    unsigned fact;
  } fields[] = {{"arch", 0},
                {"dtype", 0},
                {"target_dtype", FLP_KIND_TARGET},
                {"out_dtype", FLP_KIND_OUT},
                {"entropy", FLP_KIND_ENTROPY},
                {"bias", FLP_KIND_BIAS | FLP_KIND_ADDS},
                {"softcap", FLP_KIND_BIAS},
                {"bias_grad", FLP_KIND_BIAS_GRAD},
                {"alignment", FLP_KIND_ALIGNMENT},
                {"hidden", FLP_KIND_HIDDEN},
                {"vocab", FLP_KIND_VOCAB},
                {"loss", FLP_KIND_LOSS}};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
    if (strcmp(fields[i].name, field) == 0) return !fields[i].fact || (flp_kind_of(kind)->facts & fields[i].fact) != 0;
  cr_assert_fail("no fact for %s", field);
  return 0;
}

Test(kernel, each_used_field_changes_the_bytes_and_no_other) {
  static const char *const used[] = {
      [FLP_KERNEL_ROWS] = " arch dtype target_dtype ",
      [FLP_KERNEL_FORWARD] = " arch dtype entropy bias softcap alignment hidden vocab ",
      [FLP_KERNEL_DZ] = " arch dtype entropy bias bias_grad softcap alignment hidden vocab ",
      [FLP_KERNEL_GRAD_HIDDEN] = " arch dtype out_dtype bias alignment hidden ",
      [FLP_KERNEL_GRAD_WEIGHT] = " arch dtype out_dtype bias alignment hidden ",
      [FLP_KERNEL_PRODUCTS] = " arch dtype bias alignment hidden ",
      [FLP_KERNEL_SELECT] = " arch dtype target_dtype entropy alignment vocab ",
      [FLP_KERNEL_KEEP] = " arch dtype entropy bias softcap alignment hidden vocab ",
      [FLP_KERNEL_KEPT] = " arch dtype entropy alignment ",
      [FLP_KERNEL_LOSS] = " arch dtype loss ",
      [FLP_KERNEL_LISTED] = " arch dtype target_dtype alignment ",
      [FLP_KERNEL_LISTED_WEIGHT] = " arch dtype alignment ",
      [FLP_KERNEL_EMIT] = " arch dtype entropy bias softcap alignment hidden vocab ",
      [FLP_KERNEL_EMITTED] = " arch dtype ",
      [FLP_KERNEL_TAIL] = " arch dtype alignment ",
      [FLP_KERNEL_FORWARD_TARGETS] = " arch dtype entropy bias softcap alignment hidden vocab ",
      [FLP_KERNEL_TARGETS] = " arch dtype target_dtype ",
      [FLP_KERNEL_LOSS_TARGETS] = " arch dtype target_dtype loss ",
      [FLP_KERNEL_FORWARD_TOP] = " arch dtype entropy bias softcap alignment hidden vocab ",
      [FLP_KERNEL_TOP] = " arch dtype target_dtype alignment ",
      [FLP_KERNEL_LOSS_SCORES] = " arch dtype loss ",
      [FLP_KERNEL_MEAN] = " arch dtype alignment ",
      [FLP_KERNEL_OPERANDS] = " arch dtype alignment ",
      [FLP_KERNEL_FORWARD_COLUMNS] = " arch dtype entropy bias softcap alignment hidden vocab ",
      [FLP_KERNEL_FORWARD_LORA] = " arch dtype entropy bias softcap alignment hidden vocab ",
      [FLP_KERNEL_DZ_LORA] = " arch dtype entropy bias bias_grad softcap alignment hidden vocab ",
      [FLP_KERNEL_LORA] = " arch dtype out_dtype alignment ",
      [FLP_KERNEL_LORA_PRODUCTS] = " arch dtype alignment hidden ",
      [FLP_KERNEL_SCALE] = " arch dtype alignment ",
  };
  for (int kind = FLP_KERNEL_ROWS; kind < FLP_KERNEL_KINDS; kind++) {
    flp_kernel_key key = sample_key((flp_kernel_kind)kind);
    char before[FLP_KEY_BYTES_MAX], after[FLP_KEY_BYTES_MAX], word[32];
    flp_kernel_key_bytes(&key, sources, "", before, sizeof before);
    for (int i = 0;; i++) {
      flp_kernel_key changed = key;
      const char *name = change_field(&changed, i);
      if (!name) break;
      flp_kernel_key_bytes(&changed, sources, "", after, sizeof after);
      snprintf(word, sizeof word, " %s ", name);
      int want = is_used((flp_kernel_kind)kind, name);
      cr_expect_eq(want, strstr(used[kind], word) != NULL, "%s of kind %d", name, kind);
      cr_expect_eq(strcmp(before, after) != 0, want, "%s of %s", name, flp_kernel_kind_name((flp_kernel_kind)kind));
    }
  }
}

Test(kernel, kind_sources_and_device_change_the_bytes) {
  flp_kernel_key hidden = sample_key(FLP_KERNEL_GRAD_HIDDEN), weight = sample_key(FLP_KERNEL_GRAD_WEIGHT);
  char a[FLP_KEY_BYTES_MAX], b[FLP_KEY_BYTES_MAX];
  flp_kernel_key_bytes(&hidden, sources, "", a, sizeof a);
  flp_kernel_key_bytes(&weight, sources, "", b, sizeof b);
  cr_expect_str_neq(a, b);
  uint8_t other[32];
  for (int i = 0; i < 32; i++) {
    memcpy(other, sources, sizeof other);
    other[i] ^= 1;
    flp_kernel_key_bytes(&hidden, other, "", b, sizeof b);
    cr_expect_str_neq(a, b, "byte %d of the source hash", i);
  }
  flp_kernel_key_bytes(&hidden, sources, "x/1/2", b, sizeof b);
  cr_expect_str_neq(a, b);
}

Test(kernel, canonical_keys_compare_as_memory) {
  flp_kernel_key a, b;
  memset(&a, 0x5a, sizeof a);
  memset(&b, 0xa5, sizeof b);
  flp_kernel_key *const keys[] = {&a, &b};
  for (int i = 0; i < 2; i++) {
    keys[i]->kind = FLP_KERNEL_ROWS;
    strcpy(keys[i]->arch, "sm_80");
    keys[i]->dtype = FLP_DTYPE_FP32;
    keys[i]->target_dtype = FLP_DTYPE_INT32;
    flp_kernel_key_canonicalise(keys[i]);
  }
  cr_expect_arr_eq(&a, &b, sizeof a);
  cr_expect_eq(a.vocab, 0);
  cr_expect_eq(a.alignment, 0);
}

Test(kernel, canonical_flags_are_0_or_1) {
  flp_kernel_key key = sample_key(FLP_KERNEL_DZ);
  key.entropy = 2;
  key.bias = 7;
  flp_kernel_key_canonicalise(&key);
  cr_expect_eq(key.entropy, 1);
  cr_expect_eq(key.bias, 1);
}

Test(kernel, a_spec_asks_for_the_kernels_of_its_gradients) {
  for (uint32_t grads = 0; grads < 8; grads++) {
    flp_spec spec = spec_of(grads, FLP_ENTROPY_NONE);
    spec.has_bias = 1;
    flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
    int count = flp_kernel_keys_for(&spec, "sm_80", keys);
    int want = 2 + (grads != 0) + ((grads & FLP_GRAD_HIDDEN) != 0) + ((grads & FLP_GRAD_WEIGHT) != 0);
    cr_assert_eq(count, want, "grads %u", grads);
    cr_expect_eq(keys[0].kind, FLP_KERNEL_ROWS);
    cr_expect_eq(keys[1].kind, FLP_KERNEL_FORWARD);
    if (grads) {
      cr_expect_eq(keys[2].kind, FLP_KERNEL_DZ);
      cr_expect_eq(keys[2].bias_grad, (grads & FLP_GRAD_BIAS) != 0);
    }
    if (grads & FLP_GRAD_HIDDEN) cr_expect_eq(keys[3].kind, FLP_KERNEL_GRAD_HIDDEN);
    if (grads & FLP_GRAD_WEIGHT) cr_expect_eq(keys[count - 1].kind, FLP_KERNEL_GRAD_WEIGHT);
    for (int i = 0; i < count; i++) cr_expect_str_eq(keys[i].arch, "sm_80");
  }
}

/* "kind@arch " of each kernel that the spec asks for on Hopper. */
static const char *hopper_kernels(const flp_spec *spec, char out[256]) {
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  int count = flp_kernel_keys_for(spec, "sm_90a", keys);
  out[0] = 0;
  for (int i = 0; i < count; i++) {
    size_t used = strlen(out);
    snprintf(out + used, 256 - used, "%s%s@%s", i ? " " : "", flp_kernel_kind_name(keys[i].kind), keys[i].arch);
  }
  return out;
}

Test(kernel, hopper_makes_both_products_in_one_kernel) {
  char got[256];
  for (uint32_t grads = 1; grads < 8; grads++)
    for (int dtype = FLP_DTYPE_BF16; dtype <= FLP_DTYPE_FP32; dtype++) {
      flp_spec spec = spec_of(grads, FLP_ENTROPY_NONE);
      spec.dtype = (flp_dtype)dtype;
      spec.alignment = 16;
      cr_expect_str_eq(hopper_kernels(&spec, got), grads & 3 ? "rows@sm_80 forward@sm_90a dz@sm_90a products@sm_90a"
                                                             : "rows@sm_80 forward@sm_90a dz@sm_90a");
    }
  flp_spec spec = spec_of(FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT, FLP_ENTROPY_NONE);
  static const char portable[] = "rows@sm_80 forward@sm_80 dz@sm_80 grad_hidden@sm_80 grad_weight@sm_80";
  spec.alignment = 8;
  cr_expect_str_eq(hopper_kernels(&spec, got), portable);
  spec.dtype = FLP_DTYPE_FP32;
  cr_expect_str_eq(hopper_kernels(&spec, got), portable);
}

Test(kernel, what_is_kept_and_losses_have_kernels_of_their_own) {
  static const uint8_t program[] = "any bytes";
  char got[256];
  flp_spec spec = spec_of(FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT, FLP_ENTROPY_NONE);
  spec.keep = 1;
#define HOPPER "rows@sm_80 forward@sm_90a dz@sm_90a products@sm_90a"
  cr_expect_str_eq(hopper_kernels(&spec, got), HOPPER " forward_keep@sm_90a kept@sm_80");
  spec.keep = 0;
  spec.loss = program;
  spec.loss_bytes = sizeof program;
  cr_expect_str_eq(hopper_kernels(&spec, got), HOPPER " forward_keep@sm_90a kept@sm_80 loss_rows@sm_80");
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  uint8_t digest[crypto_hash_sha256_BYTES];
  cr_assert_eq(flp_kernel_keys_for(&spec, "sm_80", keys), 8);
  crypto_hash_sha256(digest, program, sizeof program);
  cr_expect_arr_eq(keys[7].loss, digest, sizeof digest);
  cr_expect_eq(keys[7].dtype, FLP_DTYPE_FP32, "whatever the operands are");
  spec.dtype = FLP_DTYPE_FP16;
  cr_expect_str_eq(hopper_kernels(&spec, got), HOPPER " loss_rows@sm_80");
  spec.grads = 0;
  cr_expect_str_eq(hopper_kernels(&spec, got), "rows@sm_80 forward@sm_90a loss_rows@sm_80");
}

/* Lists take the place of exponentials, of a loss too. */
Test(kernel, a_tail_has_kernels_of_its_own_whatever_it_is) {
  static const uint8_t program[] = "any bytes", scores[] = "FLPL\3, which reads lse";
  char got[256];
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX], others[FLP_SPEC_KERNELS_MAX];
  flp_spec spec = spec_of(FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT, FLP_ENTROPY_NONE);
  spec.tail = 0x1p-9f;
#define TAIL "forward_emit@sm_90a emitted@sm_80 tail@sm_80"
  cr_expect_str_eq(hopper_kernels(&spec, got), HOPPER " listed@sm_80 listed_weight@sm_80 " TAIL);
  spec.grads = FLP_GRAD_HIDDEN;
  cr_expect_str_eq(hopper_kernels(&spec, got), HOPPER " listed@sm_80 " TAIL);
  spec.grads = FLP_GRAD_BIAS;
  cr_expect_str_eq(hopper_kernels(&spec, got), "rows@sm_80 forward@sm_90a dz@sm_90a listed_weight@sm_80 " TAIL);
  spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  spec.loss = program;
  spec.loss_bytes = sizeof program;
  cr_expect_str_eq(hopper_kernels(&spec, got), HOPPER " loss_rows@sm_80 listed@sm_80 listed_weight@sm_80 " TAIL);
  spec.loss = scores;
  spec.loss_bytes = sizeof scores;
  cr_expect_str_eq(hopper_kernels(&spec, got),
                   HOPPER " listed@sm_80 listed_weight@sm_80 " TAIL " loss_scores@sm_80 mean@sm_80");
  cr_assert_eq(flp_kernel_keys_for(&spec, "sm_80", keys), FLP_SPEC_KERNELS_MAX);
  spec.tail = 0x1p-20f;
  cr_assert_eq(flp_kernel_keys_for(&spec, "sm_80", others), FLP_SPEC_KERNELS_MAX);
  cr_expect_eq(memcmp(keys, others, sizeof keys), 0);
}

/* Backward gathers the scores that it writes anew, and for the bias brings them into the order of columns. No step keeps
 * exponentials. */
Test(kernel, targets_have_a_forward_of_their_own) {
  static const uint8_t program[] = "any bytes";
  char got[256];
  flp_spec spec = spec_of(0, FLP_ENTROPY_NONE);
  spec.targets = 64;
#define TARGETS "forward_targets@sm_90a targets@sm_80"
  cr_expect_str_eq(hopper_kernels(&spec, got), "rows@sm_80 " TARGETS);
  spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  cr_expect_str_eq(hopper_kernels(&spec, got), "rows@sm_80 dz@sm_90a products@sm_90a listed@sm_80 " TARGETS);
  spec.grads |= FLP_GRAD_BIAS;
  spec.loss = program;
  spec.loss_bytes = sizeof program;
  cr_expect_str_eq(hopper_kernels(&spec, got),
                   "rows@sm_80 dz@sm_90a products@sm_90a loss_rows@sm_80 listed@sm_80 listed_weight@sm_80 " TARGETS);
  spec.targets = 1;
  cr_expect_str_eq(hopper_kernels(&spec, got), HOPPER " forward_keep@sm_90a kept@sm_80 loss_rows@sm_80");
}

Test(kernel, best_columns_and_ranks_have_kernels_of_their_own_beside_forward) {
  char got[256], same[256];
  flp_spec spec = spec_of(0, FLP_ENTROPY_NONE);
  spec.topk = 1;
  cr_expect_str_eq(hopper_kernels(&spec, got), "rows@sm_80 forward@sm_90a forward_top@sm_90a top@sm_80");
  spec.topk = 0;
  spec.rank = 1;
  cr_expect_str_eq(hopper_kernels(&spec, same), got);
}

Test(kernel, operands_of_two_dtypes_have_kernels_around_those_of_one) {
  char got[256];
  flp_spec spec = spec_of(FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT, FLP_ENTROPY_NONE);
  spec.dtype = FLP_DTYPE_BF16;
  spec.mixed = FLP_MIXED_ROUND;
  spec.hidden_dtype = FLP_DTYPE_FP32;
  cr_expect_str_eq(hopper_kernels(&spec, got), HOPPER " operand_terms@sm_80");
  spec.hidden_dtype = (flp_dtype)0;
  spec.weight_dtype = FLP_DTYPE_FP32;
  spec.keep = 1;
  cr_expect_str_eq(hopper_kernels(&spec, got),
                   "rows@sm_80 dz@sm_90a products@sm_90a operand_terms@sm_80 forward_columns@sm_90a");
  spec.mixed = FLP_MIXED_SPLIT;
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  int count = flp_kernel_keys_for(&spec, "sm_90a", keys);
  for (int i = 0; i < count; i++) {
    int of_terms = keys[i].kind == FLP_KERNEL_DZ || keys[i].kind == FLP_KERNEL_FORWARD_COLUMNS;
    if (flp_kind_has(keys[i].kind, FLP_KIND_HIDDEN)) cr_expect_eq(keys[i].hidden, (of_terms ? 2 : 1) * spec.hidden);
    cr_expect(keys[i].dtype == FLP_DTYPE_BF16, "products are of 16 bits");
  }
}

Test(kernel, entropy_is_folded_where_it_is_used) {
  static const uint32_t forward[] = {0, 1, 1}, dz[] = {0, 0, 1};
  for (int entropy = FLP_ENTROPY_NONE; entropy <= FLP_ENTROPY_BACKWARD; entropy++) {
    flp_spec spec = spec_of(FLP_GRAD_HIDDEN, (flp_entropy)entropy);
    flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
    cr_assert_eq(flp_kernel_keys_for(&spec, "sm_80", keys), 4);
    cr_expect_eq(keys[1].entropy, forward[entropy]);
    cr_expect_eq(keys[2].entropy, dz[entropy]);
  }
}

Test(kernel, gradient_dtypes_reach_the_products) {
  flp_spec spec = spec_of(FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT, FLP_ENTROPY_NONE);
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  flp_kernel_keys_for(&spec, "sm_80", keys);
  cr_expect_eq(keys[3].out_dtype, FLP_DTYPE_BF16);
  cr_expect_eq(keys[4].out_dtype, FLP_DTYPE_BF16);
  spec.grad_hidden_dtype = FLP_DTYPE_FP32;
  spec.accumulate_grad_weight = 1;
  flp_kernel_keys_for(&spec, "sm_80", keys);
  cr_expect_eq(keys[3].out_dtype, FLP_DTYPE_FP32);
  cr_expect_eq(keys[4].out_dtype, FLP_DTYPE_FP32);
  spec.grad_hidden_dtype = (flp_dtype)0; /* not resolved yet: the operand's */
  flp_kernel_keys_for(&spec, "sm_80", keys);
  cr_expect_eq(keys[3].out_dtype, FLP_DTYPE_BF16);
}

Test(kernel, generic_keys_serve_any_shape) {
  flp_kernel_key forward = sample_key(FLP_KERNEL_FORWARD);
  forward.entropy = forward.bias = 0;
  flp_kernel_key generic = flp_kernel_key_generic(&forward, "sm_90a");
  cr_expect_str_eq(generic.arch, "sm_90a");
  cr_expect_eq(generic.hidden, 0);
  cr_expect_eq(generic.vocab, 0);
  cr_expect_eq(generic.entropy, 1);
  cr_expect_eq(generic.bias, 1);
  cr_expect_eq(generic.bias_grad, 0, "forward does not use it");
  cr_expect_eq(generic.softcap, 1, "softcap stays as asked");
  cr_expect_eq(generic.alignment, 16);
  flp_kernel_key dz = sample_key(FLP_KERNEL_DZ);
  dz.bias_grad = 0;
  cr_expect_eq(flp_kernel_key_generic(&dz, "sm_80").bias_grad, 1);
}

Test(kernel, names_and_sizes) {
  cr_expect_str_eq(flp_kernel_kind_name(FLP_KERNEL_GRAD_HIDDEN), "grad_hidden");
  cr_expect_str_eq(flp_kernel_kind_name((flp_kernel_kind)0), "?");
  cr_expect_str_eq(flp_kernel_kind_name((flp_kernel_kind)FLP_KERNEL_KINDS), "?");
  cr_expect_str_eq(flp_dtype_name(FLP_DTYPE_FP16), "fp16");
  cr_expect_str_eq(flp_dtype_name((flp_dtype)99), "?");
  static const size_t bytes[] = {0, 2, 2, 4, 4, 8, 8, 0};
  for (int i = 0; i < 8; i++) cr_expect_eq(flp_dtype_bytes((flp_dtype)i), bytes[i], "dtype %d", i);
}
