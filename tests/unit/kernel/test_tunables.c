/* test_tunables.c: tile configurations in keys, and in what the generator makes of them. What is read of a text is in
 * tests/golden/texts. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/support/kernel_sample.h"

static flp_tuning parse(const char *text) {
  flp_tuning tuning;
  cr_assert_eq(flp_tuning_parse("tune", text, &tuning), FLP_OK, "%s: %s", text, flp_error_detail());
  return tuning;
}

static void expect_text(const flp_tunables *tunables, const char *want) {
  char text[FLP_TUNABLES_TEXT_BYTES];
  flp_tunables_text(tunables, text);
  cr_expect_str_eq(text, want);
}

Test(tunables, a_text_of_any_length_is_refused_in_bounds) {
  char text[4096];
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = 0;
  flp_tuning t;
  cr_expect_eq(flp_tuning_parse("tune", text, &t), FLP_ERROR_ARGUMENT);
  memcpy(text, "forward:", 8);
  cr_expect_eq(flp_tuning_parse("tune", text, &t), FLP_ERROR_ARGUMENT);
}

Test(tunables, they_reach_the_keys_of_kernels_that_are_there) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.vocab = 1000;
  spec.hidden = 64;
  spec.grads = FLP_GRAD_HIDDEN;
  spec.grad_hidden_dtype = spec.dtype;
  flp_tuning t = parse("forward:cluster=1;products:raster=4;grad_hidden:stages=3;grad_weight:stages=5");
  static const char *const arches[] = {"sm_80", "sm_90a"};
  for (int a = 0; a < 2; a++) {
    flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
    int count = flp_kernel_keys_for(&spec, arches[a], keys);
    flp_tuning_apply(&t, keys, count);
    for (int i = 0; i < count; i++) {
      expect_text(&keys[i].tune, keys[i].kind == FLP_KERNEL_FORWARD       ? "cluster=1"
                                 : keys[i].kind == FLP_KERNEL_PRODUCTS    ? "raster=4"
                                 : keys[i].kind == FLP_KERNEL_GRAD_HIDDEN ? "stages=3"
                                                                          : "own");
    }
    char kinds[256];
    flp_kernel_tunable_kinds(arches[a], &spec, kinds, sizeof kinds);
    cr_expect_str_eq(kinds, a ? "dz, products, forward" : "dz, grad_hidden, forward");
  }
}

/* The newest architecture that has all kernels which tile configurations name, but for those that none has. */
Test(tunables, they_are_for_one_architecture) {
  static const struct {
    const char *tune;
    uint32_t alignment;
    int heeding;
  } cases[] = {{"", 16, 1},
               {"forward:raster=4", 16, 1},
               {"forward:raster=4;grad_weight:stages=3", 16, 1}, /* no gradient of the weight is asked for */
               {"products:raster=4", 16, 1},
               {"grad_hidden:raster=4", 16, 0},
               {"products:raster=4;grad_hidden:raster=4", 16, -1},
               {"forward:raster=4", 2, 1}, /* both have the portable kernels then */
               {"products:raster=4", 2, 1}};
  static const char *const arches[] = {"sm_80", "sm_90a"}, *const turned[] = {"sm_90a", "sm_80"};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    flp_spec spec = FLP_SPEC_INIT;
    spec.vocab = 1000;
    spec.hidden = 64;
    spec.grads = FLP_GRAD_HIDDEN;
    spec.alignment = cases[i].alignment;
    flp_tuning t = parse(cases[i].tune);
    int heeding = cases[i].heeding;
    cr_expect_eq(flp_kernel_heeding_arch(arches, 2, &spec, &t), heeding, "%s", cases[i].tune);
    cr_expect_eq(flp_kernel_heeding_arch(turned, 2, &spec, &t), heeding < 0 ? -1 : 1 - heeding, "%s", cases[i].tune);
    cr_expect_eq(flp_kernel_heeding_arch(arches, 0, &spec, &t), -1);
  }
}

Test(tunables, they_are_part_of_a_key_and_of_its_descriptor) {
  flp_kernel_desc desc = sample_desc(FLP_KERNEL_FORWARD), back;
  desc.key.tune = (flp_tunables){FLP_SCHEDULE_COOPERATIVE, 256, 192, 4, 2, 8};
  char bytes[FLP_KEY_BYTES_MAX];
  cr_assert_gt(flp_kernel_key_bytes(&desc.key, flp_sources_hash(), "", bytes, sizeof bytes), 0);
  cr_expect(strstr(bytes, " tune=cooperative,256x192,stages=4,cluster=2,raster=8 loss=none sources="), "%s", bytes);
  uint8_t written[FLP_DESC_BYTES_MAX];
  size_t length = flp_kernel_desc_write(&desc, written, sizeof written);
  cr_assert_eq(flp_kernel_desc_read(written, length, &back), FLP_OK, "%s", flp_error_detail());
  cr_expect_arr_eq(&back.key.tune, &desc.key.tune, sizeof back.key.tune);
  desc.key.tune.schedule = 3;
  length = flp_kernel_desc_write(&desc, written, sizeof written);
  cr_expect_eq(flp_kernel_desc_read(written, length, &back), FLP_ERROR_CORRUPT);
  cr_expect_str_eq(flp_error_detail(), "descriptor: key.tune.schedule is 3, accepted: 0 to 2");
  flp_kernel_key generic = flp_kernel_key_generic(&desc.key, "sm_90a");
  expect_text(&generic.tune, "own");
}
