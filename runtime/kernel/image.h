/* image.h: a kernel as PTX, with its descriptor, and as machine code where there is some. */
#ifndef FLP_IMAGE_H
#define FLP_IMAGE_H

#include "runtime/kernel/kernel.h"

typedef struct flp_kernel_image {
  flp_kernel_desc desc;
  char *ptx; /* NUL-terminated, owned */
  size_t ptx_bytes;
  void *cubin; /* the same kernel for one device and driver, owned; or NULL */
  size_t cubin_bytes;
} flp_kernel_image;

/* Frees what it owns and zeroes it. NULL is fine. */
void flp_kernel_image_clear(flp_kernel_image *image);

#endif
