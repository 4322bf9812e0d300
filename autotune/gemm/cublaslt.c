/* cublaslt.c: opens cuBLASLt at run time. */
#include "autotune/gemm/cublaslt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/status.h"

typedef struct symbol {
  const char *name;
  size_t offset; /* of its pointer in cublaslt */
} symbol;

#define SYMBOL(type, name, args) {#name, offsetof(cublaslt, name)},
static const symbol symbols[] = {CUBLASLT_FUNCTIONS(SYMBOL)};
#undef SYMBOL

flp_status cublaslt_status(const cublaslt *library, cublasStatus_t status, const char *what) {
  if (status == 0) return FLP_OK;
  const char *name = library->cublasLtGetStatusName(status);
  return flp_fail(FLP_ERROR_UNSUPPORTED, "%s failed: %s (%d)", what, name ? name : "unknown status", status);
}

static flp_status find_symbols(cublaslt *out) {
  for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
    void *address = dlsym(out->library, symbols[i].name);
    if (!address)
      return flp_fail(FLP_ERROR_UNAVAILABLE, "%s has no symbol %s: it is not cuBLASLt 12 or newer", out->path,
                      symbols[i].name);
    memcpy((char *)out + symbols[i].offset, &address, sizeof address);
  }
  return FLP_OK;
}

static flp_status open_one(const char *name, cublaslt *out) {
  *out = (cublaslt){0};
  snprintf(out->path, sizeof out->path, "%s", name);
  out->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!out->library) {
    const char *reason = dlerror();
    return flp_fail(FLP_ERROR_UNAVAILABLE, "%s", reason ? reason : "unknown reason");
  }
  FLP_TRY(find_symbols(out));
  out->version = out->cublasLtGetVersion();
  cublasStatus_t status = out->cublasLtCreate(&out->handle);
  if (status) {
    const char *text = out->cublasLtGetStatusName(status);
    return flp_fail(FLP_ERROR_UNAVAILABLE, "cublasLtCreate of %s failed: %s (%d)", name, text ? text : "unknown status",
                    status);
  }
  return FLP_OK;
}

static flp_status none_opened(const cublaslt_places *places, const char *reason) {
  char tried[512] = ""; /* the sentence ends in what to do, which must not be truncated */
  for (int i = 0; i < places->count; i++) {
    size_t used = strlen(tried);
    snprintf(tried + used, sizeof tried - used, "%s%s", i ? ", " : "", places->name[i]);
  }
  return flp_fail(FLP_ERROR_UNAVAILABLE,
                  "cuBLASLt, for GEMM baselines, cannot be opened: %s (tried: %s); set FLP_CUBLASLT_LIBRARY to "
                  "the path of libcublasLt.so.13 or libcublasLt.so.12",
                  reason, tried);
}

/* Reports the failure of a library that was found, if there was one: it explains most. */
flp_status cublaslt_open(cublaslt *out) {
  cublaslt_places places;
  cublaslt_places_find(&places);
  char reason[256] = "out of memory";
  int was_there = 0;
  flp_status status = FLP_ERROR_UNAVAILABLE;
  for (int i = 0; i < places.count && status != FLP_OK; i++) {
    status = open_one(places.name[i], out);
    if (status != FLP_OK && !was_there) {
      was_there = out->library != NULL;
      if (was_there || i == 0) snprintf(reason, sizeof reason, "%s", flp_error_detail());
    }
  }
  if (status != FLP_OK) {
    *out = (cublaslt){0};
    status = none_opened(&places, reason);
  }
  cublaslt_places_clear(&places);
  return status;
}

void cublaslt_close(cublaslt *library) {
  if (library->handle) library->cublasLtDestroy(library->handle);
  *library = (cublaslt){0};
}
