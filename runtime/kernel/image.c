/* image.c: see image.h. */
#include "runtime/kernel/image.h"

#include <stdlib.h>
#include <string.h>

void flp_kernel_image_clear(flp_kernel_image *image) {
  if (!image) return;
  free(image->ptx);
  free(image->cubin);
  memset(image, 0, sizeof *image);
}
