/* test_mutation.c: the fuzz targets over a fixed corpus of mutations, so that every test run exercises them without a
 * fuzzer. */
#include <elf.h>

#include "tests/unit/support/kernel_sample.h"
#include "tests/unit/support/mutation_run.h"

#define LLVMFuzzerTestOneInput fuzz_desc
#include "tests/fuzz/fuzz_desc.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_container
#include "tests/fuzz/fuzz_container.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_loss
#include "tests/fuzz/fuzz_loss.c"
#undef LLVMFuzzerTestOneInput

Test(mutation, descriptors) {
  for (int kind = FLP_KERNEL_ROWS; kind < FLP_KERNEL_KINDS; kind++) {
    flp_kernel_desc desc = sample_desc((flp_kernel_kind)kind);
    uint8_t bytes[FLP_DESC_BYTES_MAX];
    size_t length = flp_kernel_desc_write(&desc, bytes, sizeof bytes);
    cr_assert_gt(length, 0);
    mutation_run(fuzz_desc, bytes, length);
  }
  fuzz_desc(NULL, 0);
}

Test(mutation, entries) {
  flp_kernel_image image = sample_image(FLP_KERNEL_FORWARD, 300, 1);
  uint8_t *bytes;
  size_t length;
  cr_assert_eq(store_entry_encode("flp-key/1 mutation", 18, &image, &bytes, &length), FLP_OK);
  mutation_run(fuzz_container, bytes, length);
  free(bytes);
  flp_kernel_image_clear(&image);
}

Test(mutation, machine_code) {
  Elf64_Ehdr head = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB}, .e_machine = 190};
  const flp_kernel_image image = {.cubin = &head, .cubin_bytes = sizeof head};
  uint8_t *bytes;
  size_t length;
  cr_assert_eq(store_cubin_encode("flp-cubin/1 mutation", &image, &bytes, &length), FLP_OK);
  mutation_run(fuzz_container, bytes, length);
  free(bytes);
}

Test(mutation, losses) {
  static const char *const seeds[] = {"nll", "k2+entropy", "cispo+k3+entropy"};
  for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
    flp_loss loss;
    uint8_t bytes[FLP_LOSS_BYTES_MAX];
    cr_assert_eq(flp_loss_find(seeds[i], &loss), FLP_OK);
    size_t length = flp_loss_write(&loss, bytes, sizeof bytes);
    cr_assert_gt(length, 0);
    mutation_run(fuzz_loss, bytes, length);
  }
  fuzz_loss(NULL, 0);
}
