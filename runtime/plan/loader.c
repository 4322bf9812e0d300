/* loader.c: loads the modules of a plan and fetches their functions, so that execute never loads anything.
 *
 * The driver's own text on a failed or doubtful load is worth more than its error number: the error log becomes part
 * of the reason, and what makes the info log doubtful is warned of. */
#include <stdio.h>
#include <string.h>

#include "runtime/base/status.h"
#include "runtime/driver/compile.h"
#include "runtime/load/linker.h"
#include "runtime/plan/plan.h"

/* CUfunction_attribute numbers; pinned by the driver's ABI. */
enum { FUNCTION_MAX_THREADS_PER_BLOCK = 0, FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };

/* Dynamic shared memory that a kernel may use without asking. */
enum { SHARED_BYTES_UNASKED = 48 * 1024 };

static flp_status load_code(const flp_driver *driver, const flp_kernel_image *image, const void *code, CUmodule *out,
                            int *fallback) {
  const char *kernel = flp_kernel_kind_name(image->desc.key.kind);
  flp_compile call;
  flp_compile_open(&call, &image->desc);
  CUresult result = driver->cuModuleLoadDataEx(out, code, call.option_count, call.options, call.values);
  if (result == 0) {
    flp_compile_warn(&call, kernel);
    return FLP_OK;
  }
  *out = NULL;
  *fallback = flp_driver_is_fallback(result);
  flp_status status = flp_driver_status(driver, result, "cuModuleLoadDataEx");
  const char *line = flp_compile_error(&call);
  return flp_fail(status, "kernel %s: %s%s%.200s", kernel, flp_error_detail(), line[0] ? "; " : "", line);
}

/* A cubin spares the driver's compiler; where it does not load, the PTX beside it is compiled. */
static flp_status load_module(const flp_driver *driver, const flp_kernel_image *image, CUmodule *out, int *fallback) {
  if (image->cubin) {
    if (load_code(driver, image, image->cubin, out, fallback) == FLP_OK) return FLP_OK;
    flp_log(FLP_LOG_WARNING, "a cubin is not used, its PTX is compiled: %s", flp_error_detail());
    *fallback = 0;
  }
  return load_code(driver, image, image->ptx, out, fallback);
}

static flp_status call_status(const flp_driver *driver, CUresult result, const char *call, const char *entry) {
  char what[96];
  snprintf(what, sizeof what, "%s(flp_%s)", call, entry);
  return flp_driver_status(driver, result, what);
}

/* A grid of more clusters than fit at once would run its rest behind the whole of the first. */
static flp_status count_clusters(const flp_driver *driver, flp_function *function, int *fallback) {
  flp_launch_attribute attribute = {.id = FLP_LAUNCH_CLUSTER_DIMENSION, .value = {function->cluster, 1, 1}};
  flp_launch_config config = {.grid = {function->cluster, 1, 1},
                              .block = {function->threads, 1, 1},
                              .shared_bytes = function->shared_bytes,
                              .attributes = &attribute,
                              .attribute_count = 1};
  int most = 0;
  FLP_TRY(call_status(driver, driver->cuOccupancyMaxActiveClusters(&most, function->handle, &config),
                      "cuOccupancyMaxActiveClusters", function->abi->name));
  if (most < 1) {
    *fallback = 1;
    return flp_fail(FLP_ERROR_DRIVER, "entry %s: the device holds no cluster of %u CTAs", function->abi->name,
                    function->cluster);
  }
  function->clusters_max = (uint32_t)most;
  return FLP_OK;
}

static flp_status get_function(const flp_driver *driver, CUmodule module, const flp_kernel_entry *entry,
                               uint32_t cluster, flp_modules *out, int *fallback) {
  char symbol[64];
  snprintf(symbol, sizeof symbol, "flp_%s", entry->name);
  flp_function function = {.abi = flp_abi_find(entry->name)};
  *fallback = 1;
  if (!function.abi)
    return flp_fail(FLP_ERROR_CORRUPT, "entry %.48s is not one that this library launches", entry->name);
  function.threads = entry->threads;
  function.shared_bytes = entry->shared_bytes;
  function.cluster = cluster;
  CUresult result = driver->cuModuleGetFunction(&function.handle, module, symbol);
  enum { NOT_FOUND = 500 };
  *fallback = result == NOT_FOUND; /* an image without its own entry is a bad image, not a bad device */
  FLP_TRY(call_status(driver, result, "cuModuleGetFunction", entry->name));
  if (entry->shared_bytes > SHARED_BYTES_UNASKED)
    FLP_TRY(call_status(
        driver,
        driver->cuFuncSetAttribute(function.handle, FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)entry->shared_bytes),
        "cuFuncSetAttribute", entry->name));
  /* Asking for an attribute also makes a lazily loading driver load the code now. */
  int most = 0;
  FLP_TRY(call_status(driver, driver->cuFuncGetAttribute(&most, FUNCTION_MAX_THREADS_PER_BLOCK, function.handle),
                      "cuFuncGetAttribute", entry->name));
  if ((int64_t)most < (int64_t)entry->threads) {
    *fallback = 1;
    return flp_fail(FLP_ERROR_DRIVER, "entry %s has CTAs of %u threads, but its registers allow %d", entry->name,
                    entry->threads, most);
  }
  if (cluster) FLP_TRY(count_clusters(driver, &function, fallback));
  out->function[function.abi->id] = function;
  return FLP_OK;
}

static flp_status get_functions(const flp_driver *driver, CUmodule module, const flp_kernel_desc *desc,
                                flp_modules *out, int *fallback) {
  for (uint32_t i = 0; i < desc->entry_count; i++)
    FLP_TRY(get_function(driver, module, &desc->entries[i], desc->cluster, out, fallback));
  return FLP_OK;
}

/* Loads the images that the linker takes, or the others. */
static flp_status load_modules(const flp_driver *driver, const flp_images *images, int linkers, flp_modules *out,
                               int *fallback) {
  for (int i = 0; i < images->count; i++)
    if (flp_linker_takes(images->image[i].desc.key.kind) == linkers)
      FLP_TRY(load_module(driver, &images->image[i], &out->module[i], fallback));
  return FLP_OK;
}

flp_status flp_loader_load(const flp_driver *driver, CUcontext context, flp_images *images, flp_modules *out,
                           int *fallback) {
  flp_linking linkings[FLP_SPEC_KERNELS_MAX];
  memset(out, 0, sizeof *out);
  *fallback = 0;
  out->count = images->count;
  for (int i = 0; i < images->count; i++) out->desc[i] = images->image[i].desc;
  flp_linker_start(driver, context, images, linkings);
  flp_status status = load_modules(driver, images, 0, out, fallback);
  flp_linker_finish(linkings);
  if (status == FLP_OK) status = load_modules(driver, images, 1, out, fallback);
  for (int i = 0; i < images->count && status == FLP_OK; i++)
    status = get_functions(driver, out->module[i], &out->desc[i], out, fallback);
  if (status != FLP_OK) flp_loader_unload(driver, out);
  return status;
}

void flp_loader_unload(const flp_driver *driver, flp_modules *modules) {
  for (int i = 0; i < modules->count; i++)
    if (modules->module[i]) driver->cuModuleUnload(modules->module[i]);
  memset(modules, 0, sizeof *modules);
}
