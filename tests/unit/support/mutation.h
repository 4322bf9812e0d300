/* mutation.h: the numbers that mutate a fixed corpus, the same on every machine. */
#ifndef FLP_TEST_MUTATION_H
#define FLP_TEST_MUTATION_H

#include <stdint.h>

/* xorshift64 */
static uint64_t mutation_state = 0x9e3779b97f4a7c15;

static inline uint64_t draw(uint64_t below) {
  mutation_state ^= mutation_state << 13;
  mutation_state ^= mutation_state >> 7;
  mutation_state ^= mutation_state << 17;
  return mutation_state % below;
}

#endif
