/* mutation_run.h: targets of tests/fuzz over a fixed corpus of mutations, the same on every machine. */
#ifndef FLP_TEST_MUTATION_RUN_H
#define FLP_TEST_MUTATION_RUN_H

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/support/mutation.h"

enum { MUTATION_ROUNDS = 20000, MUTATION_GROWTH = 8 };

/* Changes a place: a bit, a whole byte, an interesting 32-bit number, a copied piece, the length. */
static inline size_t mutation_change(uint8_t *bytes, size_t length, size_t capacity) {
  static const uint32_t interesting[] = {0,  1,  2,   3,    8,     9,          15,         16,
                                         64, 65, 255, 1024, 65536, 0x7fffffff, 0x80000000, 0xffffffff};
  size_t at = draw(length), from = draw(length), count = draw(16) + 1;
  switch (draw(6)) {
    case 0:
      bytes[at] ^= (uint8_t)(1 << draw(8));
      break;
    case 1:
      bytes[at] = (uint8_t)draw(256);
      break;
    case 2:
      if (draw(2)) at = at / 4 * 4;
      if (at + 4 <= length) memcpy(bytes + at, &interesting[draw(16)], 4);
      break;
    case 3:
      if (from + count <= length && at + count <= length) memmove(bytes + at, bytes + from, count);
      break;
    case 4:
      return 1 + draw(length);
    default:
      if (length + MUTATION_GROWTH > capacity) return length;
      memset(bytes + length, 0, MUTATION_GROWTH);
      return length + 1 + draw(MUTATION_GROWTH);
  }
  return length;
}

/* The target over the seed itself, and over what becomes of it when a few places change. The target traps on a broken
 * promise; here that is a crashed test. */
static inline void mutation_run(int (*target)(const uint8_t *, size_t), const uint8_t *seed, size_t seed_length) {
  size_t capacity = seed_length + 4 * MUTATION_GROWTH;
  uint8_t *bytes = malloc(capacity);
  cr_assert_not_null(bytes);
  target(seed, seed_length);
  for (int round = 0; round < MUTATION_ROUNDS; round++) {
    size_t length = seed_length;
    memcpy(bytes, seed, seed_length);
    for (uint64_t times = 1 + draw(4); times > 0; times--) length = mutation_change(bytes, length, capacity);
    /* An exact copy on the heap, so that a sanitizer sees a read beyond the end. */
    uint8_t *exact = malloc(length);
    cr_assert_not_null(exact);
    memcpy(exact, bytes, length);
    target(exact, length);
    free(exact);
  }
  free(bytes);
}

#endif
