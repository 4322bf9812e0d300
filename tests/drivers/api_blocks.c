/* api_blocks.c: heap blocks of exact size; see api.h. */
#include <stdlib.h>
#include <string.h>

#include "tests/drivers/api.h"

static struct {
  void *memory;
  size_t bytes;
  unsigned char *output; /* NULL: an input */
} blocks[API_BLOCKS_MAX];
static int block_count;

static void *take(size_t bytes, size_t offset, int fill, int is_output) {
  if (bytes == 0) return NULL;
  void *memory = NULL;
  API_EXPECT(block_count < API_BLOCKS_MAX, "the driver itself: more than %d blocks", API_BLOCKS_MAX);
  API_EXPECT(posix_memalign(&memory, 256, bytes + offset) == 0, "the driver itself: no memory for %zu bytes", bytes);
  unsigned char *start = (unsigned char *)memory + offset;
  memset(memory, fill, bytes + offset);
  blocks[block_count].memory = memory;
  blocks[block_count].bytes = bytes;
  blocks[block_count++].output = is_output ? start : NULL;
  return start;
}

void *api_block(size_t bytes, size_t offset, int fill) {
  return take(bytes, offset, fill, 0);
}

void *api_output(size_t bytes, size_t offset) {
  return take(bytes, offset, API_POISON, 1);
}

int api_is_poison(const void *bytes, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (((const unsigned char *)bytes)[i] != API_POISON) return 0;
  return 1;
}

int api_outputs_untouched(void) {
  for (int i = 0; i < block_count; i++)
    if (blocks[i].output && !api_is_poison(blocks[i].output, blocks[i].bytes)) return 0;
  return 1;
}

void api_outputs_poison(void) {
  for (int i = 0; i < block_count; i++)
    if (blocks[i].output) memset(blocks[i].output, API_POISON, blocks[i].bytes);
}

void api_blocks_free(void) {
  while (block_count) free(blocks[--block_count].memory);
}
