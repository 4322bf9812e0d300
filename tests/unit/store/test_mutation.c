/* test_mutation.c: the fuzz targets over a fixed corpus of mutations, so that every test run exercises them without a
 * fuzzer. The targets trap on a broken promise; here that is a crashed test. */
#include <criterion/criterion.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/support/kernel_sample.h"
#include "tests/unit/support/mutation.h"

#define LLVMFuzzerTestOneInput fuzz_desc
#include "tests/fuzz/fuzz_desc.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_container
#include "tests/fuzz/fuzz_container.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_loss
#include "tests/fuzz/fuzz_loss.c"
#undef LLVMFuzzerTestOneInput

enum { CAPACITY = 4096, ROUNDS = 20000 };

/* Changes a few bytes: a bit, a whole byte, an interesting 32-bit number, a copied piece, the length. */
static size_t mutate(uint8_t *bytes, size_t length) {
  static const uint32_t interesting[] = {0, 1, 2, 8, 9, 64, 255, 1024, 65536, 0x7fffffff, 0x80000000, 0xffffffff};
  for (uint64_t times = 1 + draw(4); times > 0; times--) {
    size_t at = draw(length);
    switch (draw(6)) {
      case 0:
        bytes[at] ^= (uint8_t)(1 << draw(8));
        break;
      case 1:
        bytes[at] = (uint8_t)draw(256);
        break;
      case 2:
        at = at / 4 * 4;
        if (at + 4 <= length) memcpy(bytes + at, &interesting[draw(12)], 4);
        break;
      case 3: {
        size_t from = draw(length), count = draw(16) + 1;
        if (from + count <= length && at + count <= length) memmove(bytes + at, bytes + from, count);
        break;
      }
      case 4:
        length = 1 + draw(length);
        break;
      default:
        if (length + 8 <= CAPACITY) {
          memset(bytes + length, 0, 8);
          length += 1 + draw(8);
        }
    }
  }
  return length;
}

static void run(int (*target)(const uint8_t *, size_t), const uint8_t *seed, size_t seed_length) {
  for (int round = 0; round < ROUNDS; round++) {
    uint8_t bytes[CAPACITY];
    memcpy(bytes, seed, seed_length);
    size_t length = mutate(bytes, seed_length);
    /* An exact copy on the heap, so that a sanitizer sees a read beyond the end. */
    uint8_t *exact = malloc(length);
    cr_assert_not_null(exact);
    memcpy(exact, bytes, length);
    target(exact, length);
    free(exact);
  }
}

Test(mutation, descriptors) {
  for (int kind = FLP_KERNEL_ROWS; kind < FLP_KERNEL_KINDS; kind++) {
    flp_kernel_desc desc = sample_desc((flp_kernel_kind)kind);
    uint8_t bytes[FLP_DESC_BYTES_MAX];
    size_t length = flp_kernel_desc_write(&desc, bytes, sizeof bytes);
    cr_assert_gt(length, 0);
    fuzz_desc(bytes, length);
    run(fuzz_desc, bytes, length);
  }
  fuzz_desc(NULL, 0);
}

Test(mutation, entries) {
  flp_kernel_image image = sample_image(FLP_KERNEL_FORWARD, 300, 1);
  uint8_t *bytes;
  size_t length;
  cr_assert_eq(store_entry_encode("flp-key/1 mutation", 18, &image, &bytes, &length), FLP_OK);
  fuzz_container(bytes, length);
  run(fuzz_container, bytes, length);
  free(bytes);
  flp_kernel_image_clear(&image);
}

Test(mutation, machine_code) {
  Elf64_Ehdr head = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB}, .e_machine = 190};
  const flp_kernel_image image = {.cubin = &head, .cubin_bytes = sizeof head};
  uint8_t *bytes;
  size_t length;
  cr_assert_eq(store_cubin_encode("flp-cubin/1 mutation", &image, &bytes, &length), FLP_OK);
  fuzz_container(bytes, length);
  run(fuzz_container, bytes, length);
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
    fuzz_loss(bytes, length);
    run(fuzz_loss, bytes, length);
  }
  fuzz_loss(NULL, 0);
}
