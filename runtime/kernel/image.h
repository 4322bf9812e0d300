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

/* An image of a descriptor and a copy of its PTX, without machine code. error: MEMORY */
flp_status flp_kernel_image_make(const flp_kernel_desc *desc, const char *ptx, size_t bytes, flp_kernel_image *out);

/* Frees what it owns and zeroes it. NULL is fine. */
void flp_kernel_image_clear(flp_kernel_image *image);

#endif
