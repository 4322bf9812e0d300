/* test_kernel.c: keys: what changes them. Their bytes, and which kernels a spec asks for, are in
 * tests/golden/plan/kernels.txt. */
#include <criterion/criterion.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/support/kernel_sample.h"
#include "tests/unit/support/words.h"

static const uint8_t sources[32] = {0x00, 0x01, 0xab, 0xff};

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

/* Fields of a key, another value of each, and the facts of kinds that use it; 0: all do. Which kinds have them is in
 * tests/golden/plan/kernels.txt. */
static const struct {
  const char *name;
  size_t offset, bytes;
  int64_t other;
  unsigned facts;
} fields[] = {
#define FIELD(name, other, facts) \
  {#name, offsetof(flp_kernel_key, name), sizeof(((flp_kernel_key *)0)->name), other, facts}
    FIELD(arch, 0x6130395f6d73, 0), /* sm_90a */
    FIELD(dtype, FLP_DTYPE_FP16, 0),
    FIELD(target_dtype, FLP_DTYPE_INT32, FLP_KIND_TARGET),
    FIELD(out_dtype, FLP_DTYPE_BF16, FLP_KIND_OUT),
    FIELD(entropy, 0, FLP_KIND_ENTROPY),
    FIELD(bias, 0, FLP_KIND_BIAS | FLP_KIND_ADDS),
    FIELD(bias_grad, 0, FLP_KIND_BIAS_GRAD),
    FIELD(softcap, 0, FLP_KIND_BIAS),
    FIELD(lora, 0, FLP_KIND_LORA),
    FIELD(weight_form, 0, FLP_KIND_MIXED),
    FIELD(alignment, 2, FLP_KIND_ALIGNMENT),
    FIELD(hidden, 4104, FLP_KIND_HIDDEN),
    FIELD(vocab, 0x100000000, FLP_KIND_VOCAB),
    FIELD(loss, 1, FLP_KIND_LOSS),
#undef FIELD
};

Test(kernel, each_used_field_changes_the_bytes_and_no_other) {
  for (int kind = FLP_KERNEL_ROWS; kind < FLP_KERNEL_KINDS; kind++) {
    flp_kernel_key key = sample_key((flp_kernel_kind)kind);
    char before[FLP_KEY_BYTES_MAX], after[FLP_KEY_BYTES_MAX];
    flp_kernel_key_bytes(&key, sources, "", before, sizeof before);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
      flp_kernel_key changed = key;
      size_t bytes = fields[i].bytes < 8 ? fields[i].bytes : 8;
      memcpy((char *)&changed + fields[i].offset, &fields[i].other, bytes);
      flp_kernel_key_bytes(&changed, sources, "", after, sizeof after);
      int want = !fields[i].facts || (flp_kind_of((flp_kernel_kind)kind)->facts & fields[i].facts) != 0;
      cr_expect_eq(strcmp(before, after) != 0, want, "%s of kind %d", fields[i].name, kind);
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
  flp_kernel_key flags = sample_key(FLP_KERNEL_DZ);
  flags.entropy = 2;
  flags.bias = 7;
  flp_kernel_key_canonicalise(&flags);
  cr_expect(flags.entropy == 1 && flags.bias == 1);
}

Test(kernel, a_loss_is_in_its_key_and_a_tail_in_none) {
  static const uint8_t program[] = "any bytes";
  enum { KERNELS = 11 };
  flp_spec spec = words_spec("grads=hidden,weight tail=2^-9");
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX], others[FLP_SPEC_KERNELS_MAX];
  uint8_t digest[crypto_hash_sha256_BYTES];
  spec.loss = program;
  spec.loss_bytes = sizeof program;
  cr_assert_eq(flp_kernel_keys_for(&spec, "sm_80", keys), KERNELS);
  spec.tail = 0x1p-20f;
  cr_assert_eq(flp_kernel_keys_for(&spec, "sm_80", others), KERNELS);
  cr_expect_eq(memcmp(keys, others, KERNELS * sizeof keys[0]), 0);
  spec.tail = 0;
  cr_assert_eq(flp_kernel_keys_for(&spec, "sm_80", keys), 8);
  crypto_hash_sha256(digest, program, sizeof program);
  cr_expect_arr_eq(keys[7].loss, digest, sizeof digest);
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
