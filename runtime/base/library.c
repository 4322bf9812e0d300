/* library.c: opening a shared library (library.h). */
#include "runtime/base/library.h"

#include <dlfcn.h>
#include <string.h>

#include "runtime/base/status.h"

flp_status flp_library_open(const char *path, void **out) {
  *out = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (*out) return FLP_OK;
  const char *reason = dlerror();
  if (!reason) reason = "unknown reason";
  /* dlerror names the file too, as "libx.so: why" */
  size_t length = strlen(path);
  if (strncmp(reason, path, length) == 0 && strncmp(reason + length, ": ", 2) == 0) reason += length + 2;
  return flp_fail(FLP_ERROR_UNAVAILABLE, "%s cannot be opened: %s", path, reason);
}
