/* tune_compile.c: kernels compiled side by side before plans ask for them.
 *
 * The driver compiles the PTX of one context one after the other, whatever the number of threads, and its linker,
 * which does not, makes code in which wgmma is serialised. So every thread has a context of its own, in which it
 * loads a kernel once; the driver's cache then has the machine code, and the plan that loads it for good finds it
 * there. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../runtime/compile.h"
#include "../../runtime/jit.h"
#include "../../runtime/plan.h"
#include "tune.h"

enum { CONTEXT_NEEDS = 1 << 30 }; /* bytes of device memory that are left alone for each */

flp_status tune_compilers_open(const cli_device *device, tune_compilers *out) {
  const flp_driver *driver = device->driver;
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  size_t available = 0, total = 0;
  *out = (tune_compilers){.driver = driver};
  if (!driver->cuCtxCreate_v2 || !driver->cuCtxDestroy_v2) return FLP_OK;
  while (out->count < TUNE_COMPILERS_MAX && out->count < processors) {
    FLP_TRY(flp_driver_status(driver, driver->cuMemGetInfo_v2(&available, &total), "cuMemGetInfo"));
    if (available < CONTEXT_NEEDS) break;
    CUcontext popped;
    if (driver->cuCtxCreate_v2(&out->context[out->count], 0, device->info.handle) != 0) break;
    FLP_TRY(flp_driver_status(driver, driver->cuCtxPopCurrent_v2(&popped), "cuCtxPopCurrent"));
    out->count++;
  }
  return FLP_OK;
}

void tune_compilers_close(tune_compilers *compilers) {
  for (int i = 0; i < compilers->count; i++) compilers->driver->cuCtxDestroy_v2(compilers->context[i]);
  *compilers = (tune_compilers){0};
}

flp_status tune_generate(const flp_spec *spec, const flp_kernel_key *key, flp_kernel_image *image) {
  const flp_provider *provider;
  int is_loss = key->kind == FLP_KERNEL_LOSS;
  FLP_TRY(flp_jit_get(&provider));
  return flp_jit_generate(provider, key, is_loss ? spec->loss : NULL, is_loss ? spec->loss_bytes : 0, image);
}

/* Generates, stores and compiles one kernel. */
static void compile(const flp_driver *driver, flp_store *store, const flp_spec *spec, const flp_kernel_key *key) {
  const flp_provider *provider;
  flp_kernel_image image;
  char bytes[FLP_KEY_BYTES_MAX];
  CUmodule module = NULL;
  flp_compile call;
  memset(&image, 0, sizeof image);
  if (flp_jit_get(&provider) != FLP_OK) return;
  if (!flp_kernel_key_bytes(key, provider->sources_hash(), "", bytes, sizeof bytes)) return;
  if (tune_generate(spec, key, &image) == FLP_OK) {
    flp_store_put(store, bytes, strlen(bytes), &image);
    flp_compile_open(&call, &image.desc);
    if (driver->cuModuleLoadDataEx(&module, image.ptx, call.option_count, call.options, call.values) == 0)
      driver->cuModuleUnload(module);
  }
  flp_kernel_image_clear(&image);
}

typedef struct shift {
  const flp_driver *driver;
  flp_store *store;
  const flp_spec *spec;
  const flp_kernel_key *keys;
  int count, next;
  pthread_mutex_t lock;
} shift;

typedef struct worker {
  shift *shift;
  CUcontext context;
  pthread_t thread;
} worker;

static void *work(void *argument) {
  worker *w = argument;
  shift *all = w->shift;
  CUcontext popped;
  if (all->driver->cuCtxPushCurrent_v2(w->context) != 0) return NULL;
  for (;;) {
    pthread_mutex_lock(&all->lock);
    int i = all->next++;
    pthread_mutex_unlock(&all->lock);
    if (i >= all->count) break;
    compile(all->driver, all->store, all->spec, &all->keys[i]);
  }
  all->driver->cuCtxPopCurrent_v2(&popped);
  return NULL;
}

flp_status tune_compile(const tune_workshop *workshop, const flp_spec *spec, const flp_kernel_key *keys, int count) {
  const tune_compilers *compilers = &workshop->compilers;
  worker workers[TUNE_COMPILERS_MAX];
  int started = 0;
  shift all = {.driver = compilers->driver, .spec = spec, .keys = keys, .count = count};
  if (!compilers->count || count < 2) return FLP_OK;
  FLP_TRY(flp_store_open(workshop->directory, NULL, &all.store));
  pthread_mutex_init(&all.lock, NULL);
  for (int i = 0; i < compilers->count && i < count; i++) {
    workers[started] = (worker){.shift = &all, .context = compilers->context[i]};
    if (pthread_create(&workers[started].thread, NULL, work, &workers[started]) != 0) break;
    started++;
  }
  for (int i = 0; i < started; i++) pthread_join(workers[i].thread, NULL);
  pthread_mutex_destroy(&all.lock);
  flp_store_close(all.store);
  return FLP_OK;
}
