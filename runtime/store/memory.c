/* memory.c: the kernels that could not be written to a cache, kept for the life of this process.
 *
 * Invariants: an entry is never changed or removed once it is in the list, so equal keys give equal images; there are
 * as many entries as distinct kernels that this process compiled and could not store. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include "runtime/store/internal.h"

typedef struct node {
  struct node *next;
  char hex[STORE_HEX + 1];
  flp_kernel_image image;
} node;

static node *first;

static flp_status copy_image(const flp_kernel_image *from, flp_kernel_image *to) {
  char *ptx = malloc(from->ptx_bytes + 1);
  if (!ptx) return flp_fail(FLP_ERROR_MEMORY, "no memory for PTX of %zu bytes", from->ptx_bytes);
  memcpy(ptx, from->ptx, from->ptx_bytes);
  ptx[from->ptx_bytes] = 0;
  *to = (flp_kernel_image){.desc = from->desc, .ptx = ptx, .ptx_bytes = from->ptx_bytes};
  return FLP_OK;
}

/* The caller holds the lock. */
static const node *find(const char *hex) {
  for (const node *n = first; n; n = n->next)
    if (strcmp(n->hex, hex) == 0) return n;
  return NULL;
}

flp_status store_memory_put(const char hex[STORE_HEX + 1], const flp_kernel_image *image) {
  node *added = calloc(1, sizeof *added);
  if (!added) return flp_fail(FLP_ERROR_MEMORY, "no memory for a cache entry");
  memcpy(added->hex, hex, STORE_HEX);
  flp_status status = copy_image(image, &added->image);
  int kept = 0;
  if (status == FLP_OK) {
    flp_lock(FLP_LOCK_KERNELS);
    if (!find(hex)) {
      added->next = first;
      first = added;
      kept = 1;
    }
    flp_unlock(FLP_LOCK_KERNELS);
  }
  if (kept) return FLP_OK;
  flp_kernel_image_clear(&added->image);
  free(added);
  return status;
}

flp_status store_memory_get(const char hex[STORE_HEX + 1], flp_kernel_image *out, int *found) {
  flp_lock(FLP_LOCK_KERNELS);
  const node *n = find(hex);
  flp_status status = n ? copy_image(&n->image, out) : FLP_OK;
  flp_unlock(FLP_LOCK_KERNELS);
  *found = n && status == FLP_OK;
  return status;
}
