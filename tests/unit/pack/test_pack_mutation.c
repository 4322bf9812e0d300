/* test_pack_mutation.c: the fuzz target of packs over a fixed corpus of mutations of their tables. */
#include <criterion/criterion.h>

#include "tests/unit/support/mutation.h"
#include "tests/unit/support/pack_case.h"

#define LLVMFuzzerTestOneInput fuzz_pack
#include "tests/fuzz/fuzz_pack.c"
#undef LLVMFuzzerTestOneInput

enum { ROUNDS = 20000 };

/* Changes a few places: a bit, a byte, an interesting 32-bit number wherever numbers may stand, the length. */
static size_t mutate(uint8_t *bytes, size_t length) {
  static const uint32_t interesting[] = {0, 1, 2, 3, 15, 16, 64, 65, 1024, 65536, 0x7fffffff, 0x80000000, 0xffffffff};
  for (uint64_t times = 1 + draw(3); times > 0; times--) {
    size_t at = draw(length);
    switch (draw(4)) {
      case 0:
        bytes[at] ^= (uint8_t)(1 << draw(8));
        break;
      case 1:
        bytes[at] = (uint8_t)draw(256);
        break;
      case 2:
        if (at + 4 <= length) pack_case_set(bytes + at, interesting[draw(13)]);
        break;
      default:
        if (draw(4) == 0) length = 1 + draw(length);
    }
  }
  return length;
}

Test(pack_mutation, packs) {
  const uint8_t seed[32] = {7};
  for (int is_signed = 0; is_signed < 2; is_signed++) {
    pack_case p = pack_case_make(is_signed ? seed : NULL);
    fuzz_pack(p.bytes, p.length);
    for (int round = 0; round < ROUNDS; round++) {
      uint8_t *bytes = malloc(p.length);
      cr_assert_not_null(bytes);
      memcpy(bytes, p.bytes, p.length);
      size_t length = mutate(bytes, p.length);
      /* An exact copy on the heap, so that a sanitizer sees a read beyond the end. */
      uint8_t *exact = malloc(length);
      cr_assert_not_null(exact);
      memcpy(exact, bytes, length);
      fuzz_pack(exact, length);
      free(exact);
      free(bytes);
    }
    free(p.bytes);
  }
  fuzz_pack((const uint8_t *)"", 0);
}
