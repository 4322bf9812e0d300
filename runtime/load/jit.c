/* jit.c: opens libflpgen and asks it for kernels.
 *
 * Invariants: a library that was opened is never closed, because its code may run on another thread; a path that could
 * not be opened is tried again next time. */
#include "runtime/load/jit.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/library.h"
#include "runtime/base/process.h"
#include "runtime/base/status.h"

typedef struct opened {
  char *path;
  const flp_provider *provider;
  struct opened *next;
} opened;

static opened *opened_first;

static flp_status open_provider(const char *path, const flp_provider **out) {
  void *library;
  FLP_TRY(flp_library_open(path, &library));
  flp_provider_get_fn get;
  void *address = dlsym(library, FLP_PROVIDER_SYMBOL);
  memcpy(&get, &address, sizeof get);
  *out = get ? get(FLP_PROVIDER_VERSION) : NULL;
  if (*out && (*out)->version == FLP_PROVIDER_VERSION) return FLP_OK;
  dlclose(library);
  *out = NULL;
  if (!get) return flp_fail(FLP_ERROR_UNAVAILABLE, "%s has no symbol %s", path, FLP_PROVIDER_SYMBOL);
  return flp_fail(FLP_ERROR_UNAVAILABLE, "%s does not serve provider version %d", path, FLP_PROVIDER_VERSION);
}

static flp_status remember(const char *path, const flp_provider *provider) {
  opened *entry = calloc(1, sizeof *entry);
  if (!entry || !(entry->path = strdup(path))) {
    free(entry);
    return flp_fail(FLP_ERROR_MEMORY, "no memory for the name of %s", path);
  }
  entry->provider = provider;
  entry->next = opened_first;
  opened_first = entry;
  return FLP_OK;
}

flp_status flp_jit_get(const flp_provider **out) {
  *out = NULL;
  flp_setting setting;
  flp_setting_get(FLP_SETTING_JIT_LIBRARY, &setting);
  flp_lock(FLP_LOCK_PROVIDER);
  opened *entry = opened_first;
  while (entry && strcmp(entry->path, setting.value) != 0) entry = entry->next;
  flp_status status = FLP_OK;
  if (entry) {
    *out = entry->provider;
  } else {
    status = open_provider(setting.value, out);
    if (status == FLP_OK) status = remember(setting.value, *out);
    if (status != FLP_OK) *out = NULL;
  }
  flp_unlock(FLP_LOCK_PROVIDER);
  return status;
}

flp_status flp_jit_generate(const flp_provider *provider, const flp_kernel_key *key, const uint8_t *loss,
                            size_t loss_bytes, flp_kernel_image *image) {
  char error[768] = "";
  char *ptx = NULL;
  size_t ptx_bytes = 0;
  memset(image, 0, sizeof *image);
  flp_status status = provider->generate(key, loss, loss_bytes, &image->desc, &ptx, &ptx_bytes, error, sizeof error);
  if (status == FLP_OK && !ptx) return flp_fail(FLP_ERROR_COMPILE, "the generator gave no PTX");
  if (status != FLP_OK) {
    if (ptx) provider->free_ptx(ptx);
    return flp_fail(status, "%s", error[0] ? error : "the generator gave no reason");
  }
  image->ptx = malloc(ptx_bytes + 1);
  if (image->ptx) {
    memcpy(image->ptx, ptx, ptx_bytes);
    image->ptx[ptx_bytes] = 0;
    image->ptx_bytes = ptx_bytes;
  }
  provider->free_ptx(ptx);
  return image->ptx ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "no memory for %zu bytes of PTX", ptx_bytes);
}
