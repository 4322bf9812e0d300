/* memory.c: host memory that is let go of together; see the header. */
#include "gen/cli/call/memory.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/status.h"

struct cli_block {
  struct cli_block *before;
  max_align_t data[];
};

void *cli_memory_take(cli_memory *memory, size_t bytes) {
  struct cli_block *block = malloc(sizeof *block + bytes + sizeof(max_align_t));
  memory->is_short |= !block;
  if (!block) return NULL;
  block->before = memory->last;
  memory->last = block;
  return block->data;
}

void *cli_memory_take_zeros(cli_memory *memory, size_t bytes) {
  void *data = cli_memory_take(memory, bytes);
  return data ? memset(data, 0, bytes) : NULL;
}

flp_status cli_memory_status(const cli_memory *memory, const char *what) {
  return memory->is_short ? flp_fail(FLP_ERROR_MEMORY, "out of host memory for %s", what) : FLP_OK;
}

void cli_memory_free(cli_memory *memory) {
  while (memory->last) {
    struct cli_block *block = memory->last;
    memory->last = block->before;
    free(block);
  }
  memory->is_short = 0;
}
