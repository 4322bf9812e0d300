/* linker.c: see linker.h.
 *
 * Invariants: a thread touches its own image and the cache, nothing of the plan; whatever goes wrong in it costs time
 * only, as the image then has no cubin and is loaded, or refused with the driver's reason, as any other. */
#include "runtime/load/linker.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/process.h"
#include "runtime/driver/compile.h"
#include "runtime/pack/pack.h"

enum { LINK_INPUT_PTX = 1 }; /* CUjitInputType; pinned by the driver's ABI */

int flp_linker_takes(flp_kernel_kind kind) {
  return flp_kind_has(kind, FLP_KIND_LINKED);
}

/* Takes over what the linker made, as long as its state lives. */
static void take_cubin(flp_kernel_image *image, const void *cubin, size_t bytes) {
  if (flp_pack_check_cubin(cubin, bytes) != FLP_OK) return;
  image->cubin = malloc(bytes);
  if (!image->cubin) return;
  memcpy(image->cubin, cubin, bytes);
  image->cubin_bytes = bytes;
}

static void link_image(const flp_driver *driver, flp_kernel_image *image) {
  flp_compile call;
  CUlinkState state = NULL;
  void *cubin = NULL;
  size_t bytes = 0;
  flp_compile_open(&call, &image->desc);
  if (driver->cuLinkCreate_v2(call.option_count, call.options, call.values, &state) != 0) return;
  const char *name = flp_kernel_kind_name(image->desc.key.kind);
  CUresult result =
      driver->cuLinkAddData_v2(state, LINK_INPUT_PTX, image->ptx, image->ptx_bytes + 1, name, 0, NULL, NULL);
  if (result == 0) result = driver->cuLinkComplete(state, &cubin, &bytes);
  if (result == 0 && !flp_compile_is_doubtful(&call)) take_cubin(image, cubin, bytes);
  driver->cuLinkDestroy(state);
}

static void link_and_keep(const flp_driver *driver, const flp_store *store, flp_kernel_image *image) {
  link_image(driver, image);
  if (image->cubin) flp_store_keep_cubin(store, image);
}

static void *work(void *argument) {
  const flp_linking *l = argument;
  CUcontext popped;
  if (l->driver->cuCtxPushCurrent_v2(l->context) != 0) return NULL;
  link_and_keep(l->driver, l->store, l->image);
  l->driver->cuCtxPopCurrent_v2(&popped);
  return NULL;
}

static int is_offered(const flp_driver *driver, const flp_store *store) {
  return driver->cuLinkCreate_v2 && driver->cuLinkAddData_v2 && driver->cuLinkComplete && driver->cuLinkDestroy &&
         flp_store_keeps_cubins(store);
}

void flp_linker_link(const flp_driver *driver, const flp_store *store, flp_kernel_image *image) {
  if (!image->cubin) flp_store_get_cubin(store, image);
  if (!image->cubin && is_offered(driver, store)) link_and_keep(driver, store, image);
}

void flp_linker_start(const flp_driver *driver, CUcontext context, flp_images *images,
                      flp_linking linkings[FLP_SPEC_KERNELS_MAX]) {
  int others = 0;
  memset(linkings, 0, FLP_SPEC_KERNELS_MAX * sizeof *linkings);
  for (int i = 0; i < images->count; i++) {
    flp_kernel_image *image = &images->image[i];
    int taken = flp_linker_takes(image->desc.key.kind);
    if (taken && !image->cubin) flp_store_get_cubin(images->store, image);
    others += !taken && !image->cubin;
  }
  if (!others || !is_offered(driver, images->store)) return;
  for (int i = 0; i < images->count; i++) {
    flp_kernel_image *image = &images->image[i];
    flp_linking *l = &linkings[i];
    if (image->cubin || !flp_linker_takes(image->desc.key.kind)) continue;
    *l = (flp_linking){.driver = driver, .context = context, .store = images->store, .image = image};
    l->is_running = flp_thread_start(&l->thread, work, l) == 0;
  }
}

void flp_linker_finish(flp_linking linkings[FLP_SPEC_KERNELS_MAX]) {
  for (int i = 0; i < FLP_SPEC_KERNELS_MAX; i++)
    if (linkings[i].is_running) pthread_join(linkings[i].thread, NULL);
}
