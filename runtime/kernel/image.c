/* image.c: see image.h. */
#include "runtime/kernel/image.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/status.h"

flp_status flp_kernel_image_make(const flp_kernel_desc *desc, const char *ptx, size_t bytes, flp_kernel_image *out) {
  char *copy = malloc(bytes + 1);
  if (!copy) return flp_fail(FLP_ERROR_MEMORY, "no memory for PTX of %zu bytes", bytes);
  memcpy(copy, ptx, bytes);
  copy[bytes] = 0;
  *out = (flp_kernel_image){.desc = *desc, .ptx = copy, .ptx_bytes = bytes};
  return FLP_OK;
}

void flp_kernel_image_clear(flp_kernel_image *image) {
  if (!image) return;
  free(image->ptx);
  free(image->cubin);
  memset(image, 0, sizeof *image);
}
