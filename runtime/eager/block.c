/* block.c: arrays taken out of one block of memory; with no memory behind it, their bytes are only counted. */
#include "runtime/eager/core.h"

enum { BLOCK_ALIGNMENT = 64 };

void *eager_block_take(eager_block *block, uint64_t count, uint64_t element_bytes) {
  uint64_t bytes, end;
  if (__builtin_mul_overflow(count, element_bytes, &bytes) ||
      __builtin_add_overflow(bytes, (uint64_t)BLOCK_ALIGNMENT - 1, &bytes) ||
      __builtin_add_overflow(block->used, bytes - bytes % BLOCK_ALIGNMENT, &end)) {
    block->used = UINT64_MAX;
    return NULL;
  }
  char *start = block->base ? block->base + block->used : NULL;
  block->used = end;
  return start;
}
