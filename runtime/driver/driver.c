/* driver.c: opens libcuda at run time and reads what the planner needs to know about a device.
 *
 * Invariants: a table is published only when every function was found and cuInit succeeded; tables are never freed, so
 * a borrowed one is valid for ever, though not after a fork; there is one table a path, so that a changed
 * FLP_CUDA_LIBRARY opens another. */
#include "runtime/driver/driver.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/library.h"
#include "runtime/base/process.h"
#include "runtime/base/status.h"

typedef struct opened {
  char *path;
  void *library;
  flp_driver driver;
  unsigned process; /* that opened it */
  struct opened *next;
} opened;

static opened *opened_first;

typedef struct symbol {
  const char *name;
  size_t offset; /* of its pointer in flp_driver */
} symbol;

#define SYMBOL(name, args) {#name, offsetof(flp_driver, name)},
static const symbol symbols[] = {FLP_DRIVER_FUNCTIONS(SYMBOL)};
static const symbol optional_symbols[] = {FLP_DRIVER_OPTIONAL(SYMBOL) FLP_DRIVER_TOOLS(SYMBOL)};
#undef SYMBOL

static void optional_find(void *library, flp_driver *driver) {
  for (size_t i = 0; i < sizeof optional_symbols / sizeof optional_symbols[0]; i++) {
    void *address = dlsym(library, optional_symbols[i].name);
    memcpy((char *)driver + optional_symbols[i].offset, &address, sizeof address);
  }
}

static flp_status symbols_find(void *library, const char *path, flp_driver *driver) {
  for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
    void *address = dlsym(library, symbols[i].name);
    if (!address)
      return flp_fail(FLP_ERROR_UNAVAILABLE, "%s has no symbol %s: it is not a CUDA driver of version 11.2 or newer",
                      path, symbols[i].name);
    memcpy((char *)driver + symbols[i].offset, &address, sizeof address);
  }
  return FLP_OK;
}

/* Like flp_driver_status, but a driver that does not start counts as an absent GPU. */
static flp_status start_failed(const flp_driver *driver, CUresult result, const char *what) {
  flp_driver_status(driver, result, what);
  return flp_fail(FLP_ERROR_UNAVAILABLE, "%s", flp_error_detail());
}

static flp_status driver_start(flp_driver *driver, const char *path) {
  CUresult result = driver->cuInit(0);
  if (result) return start_failed(driver, result, "cuInit");
  result = driver->cuDriverGetVersion(&driver->version);
  if (result) return start_failed(driver, result, "cuDriverGetVersion");
  int count = 0;
  result = driver->cuDeviceGetCount(&count);
  if (result) return start_failed(driver, result, "cuDeviceGetCount");
  if (count < 1) return flp_fail(FLP_ERROR_UNAVAILABLE, "%s reports no CUDA device", path);
  return FLP_OK;
}

static flp_status open_path(const char *path, opened **out) {
  flp_status status = FLP_ERROR_MEMORY;
  opened *entry = calloc(1, sizeof *entry);
  if (!entry || !(entry->path = strdup(path))) {
    status = flp_fail(FLP_ERROR_MEMORY, "no memory for the table of %s", path);
    goto done;
  }
  status = flp_library_open(path, &entry->library);
  if (status != FLP_OK) goto done;
  status = symbols_find(entry->library, path, &entry->driver);
  optional_find(entry->library, &entry->driver);
  if (status == FLP_OK) status = driver_start(&entry->driver, path);
done:
  if (status == FLP_OK) {
    *out = entry;
  } else if (entry) {
    if (entry->library) dlclose(entry->library);
    free(entry->path);
    free(entry);
  }
  return status;
}

/* The entry of a path, opened if need be. The caller holds the lock. */
static flp_status entry_of(const char *path, opened **out) {
  opened *entry = opened_first;
  while (entry && strcmp(entry->path, path) != 0) entry = entry->next;
  *out = entry;
  if (entry && entry->process == flp_process()) return FLP_OK;
  if (entry)
    return flp_fail(FLP_ERROR_UNAVAILABLE,
                    "CUDA does not outlive a fork, and the parent process has opened %s (accepted: a process that is forked "
                    "before that, or started by exec)",
                    path);
  FLP_TRY(open_path(path, out));
  (*out)->process = flp_process();
  (*out)->next = opened_first;
  opened_first = *out;
  return FLP_OK;
}

flp_status flp_driver_get(const flp_driver **out) {
  *out = NULL;
  flp_setting setting;
  flp_setting_get(FLP_SETTING_CUDA_LIBRARY, &setting);
  const char *path = setting.value[0] ? setting.value : "libcuda.so.1";
  opened *entry;
  flp_lock(FLP_LOCK_DRIVER);
  flp_status status = entry_of(path, &entry);
  if (status == FLP_OK) *out = &entry->driver;
  flp_unlock(FLP_LOCK_DRIVER);
  return status;
}

/* CUdevice_attribute numbers; pinned by the driver's ABI. */
typedef struct attribute {
  int number;
  size_t offset; /* of its int in flp_device */
} attribute;

static const attribute attributes[] = {
    {75, offsetof(flp_device, major)},
    {76, offsetof(flp_device, minor)},
    {16, offsetof(flp_device, multiprocessors)},
    {97, offsetof(flp_device, shared_bytes_max)},
    {38, offsetof(flp_device, l2_bytes)},
    {13, offsetof(flp_device, clock_khz)},
    {36, offsetof(flp_device, memory_clock_khz)},
    {37, offsetof(flp_device, memory_bus_bits)},
};

flp_status flp_device_get(const flp_driver *driver, int ordinal, flp_device *out) {
  memset(out, 0, sizeof *out);
  int count = 0;
  FLP_TRY(flp_driver_status(driver, driver->cuDeviceGetCount(&count), "cuDeviceGetCount"));
  if (ordinal < 0 || ordinal >= count)
    return flp_fail(FLP_ERROR_ARGUMENT, "device is %d, but the driver has %d (accepted: 0 to %d)", ordinal, count,
                    count - 1);
  out->ordinal = ordinal;
  FLP_TRY(flp_driver_status(driver, driver->cuDeviceGet(&out->handle, ordinal), "cuDeviceGet"));
  FLP_TRY(flp_driver_status(driver, driver->cuDeviceGetName(out->name, (int)sizeof out->name, out->handle),
                            "cuDeviceGetName"));
  out->name[sizeof out->name - 1] = 0;
  for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
    int *field = (int *)(void *)((char *)out + attributes[i].offset);
    FLP_TRY(flp_driver_status(driver, driver->cuDeviceGetAttribute(field, attributes[i].number, out->handle),
                              "cuDeviceGetAttribute"));
  }
  size_t bytes = 0;
  FLP_TRY(flp_driver_status(driver, driver->cuDeviceTotalMem_v2(&bytes, out->handle), "cuDeviceTotalMem"));
  out->memory_bytes = bytes;
  return FLP_OK;
}

uint64_t flp_device_memory(int ordinal) {
  const flp_driver *driver;
  CUdevice device;
  size_t bytes = 0;
  if (ordinal < 0 || flp_driver_get(&driver) != FLP_OK || driver->cuDeviceGet(&device, ordinal) != 0) return 0;
  return driver->cuDeviceTotalMem_v2(&bytes, device) == 0 ? bytes : 0;
}

flp_status flp_driver_status(const flp_driver *driver, CUresult result, const char *what) {
  if (result == 0) return FLP_OK;
  const char *name = NULL, *text = NULL;
  if (driver->cuGetErrorName(result, &name) || !name) name = "CUDA_ERROR_UNKNOWN";
  if (driver->cuGetErrorString(result, &text) || !text) text = "no description";
  return flp_fail(FLP_ERROR_DRIVER, "%s failed: %s (%d): %s", what, name, result, text);
}

int flp_driver_has_clusters(const flp_driver *driver) {
  return driver->cuLaunchKernelEx && driver->cuOccupancyMaxActiveClusters && driver->cuTensorMapEncodeTiled;
}

int flp_driver_is_fallback(CUresult result) {
  static const CUresult codes[] = {
      200, /* INVALID_IMAGE */
      209, /* NO_BINARY_FOR_GPU */
      218, /* INVALID_PTX */
      221, /* JIT_COMPILER_NOT_FOUND */
      222, /* UNSUPPORTED_PTX_VERSION */
      223, /* JIT_COMPILATION_DISABLED */
      300, /* INVALID_SOURCE */
  };
  for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
    if (codes[i] == result) return 1;
  return 0;
}
