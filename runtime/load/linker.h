/* linker.h: compiles PTX with the driver's linker, in a thread, while the driver loads other modules.
 *
 * The driver compiles the PTX that it loads one module after the other, whatever the number of threads; beside that it
 * compiles what is linked. But linked code is relocatable: ptxas ignores setmaxnreg, serialises wgmma and runs out of
 * registers where a kernel has none to spare. So this is for the small kernels around the products alone; their
 * arithmetic is IEEE's, rounded as the PTX states, and bits do not depend on the way. What was linked is kept in the
 * cache, since the driver's own cache does not hold it. */
#ifndef FLP_LINKER_H
#define FLP_LINKER_H

#include <pthread.h>

#include "runtime/driver/driver.h"
#include "runtime/load/images.h"

/* 1 for kinds whose relocatable code is as good. */
int flp_linker_takes(flp_kernel_kind kind);

/* Sets the cubin of an image of such a kind to what an earlier process left in the cache or, in the context that is
 * current, to what the linker makes of it, and keeps that. It is left without if the driver has no linker, or the cache
 * keeps none. */
void flp_linker_link(const flp_driver *driver, const flp_store *store, flp_kernel_image *image);

/* One kernel under way. It must not move. */
typedef struct flp_linking {
  const flp_driver *driver;
  CUcontext context;
  const flp_store *store;
  flp_kernel_image *image;
  pthread_t thread;
  int is_running;
} flp_linking;

/* Sets the cubins of images that earlier processes left in the cache, then starts to link those of the others that are
 * of such a kind, unless nothing else is to be compiled meanwhile, the driver has no linker, or the cache keeps no
 * cubins. context: of the device, retained. linkings[i] is that of image i */
void flp_linker_start(const flp_driver *driver, CUcontext context, flp_images *images,
                      flp_linking linkings[FLP_SPEC_KERNELS_MAX]);

/* Waits for them. An image whose kernel could not be linked is left without a cubin, for the caller to load its PTX. */
void flp_linker_finish(flp_linking linkings[FLP_SPEC_KERNELS_MAX]);

#endif
