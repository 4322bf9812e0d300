/* device.c: buffers in device or host memory, with accounting. */
#include "gen/cli/call/device.h"

#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/lists.h"
#include "gen/cli/shared/common.h"
#include "runtime/base/names.h"
#include "runtime/base/status.h"

enum { BUFFER_ALIGNMENT = 256 };

static flp_status device_check(const cli_device *device, CUresult result, const char *what) {
  return flp_driver_status(device->driver, result, what);
}

static flp_status open_context(cli_device *device) {
  const flp_driver *driver = device->driver;
  FLP_TRY(device_check(device, driver->cuDevicePrimaryCtxRetain(&device->context, device->info.handle),
                       "cuDevicePrimaryCtxRetain"));
  FLP_TRY(device_check(device, driver->cuCtxPushCurrent_v2(device->context), "cuCtxPushCurrent"));
  FLP_TRY(device_check(device, driver->cuStreamCreate(&device->stream, 0), "cuStreamCreate"));
  FLP_TRY(device_check(device, driver->cuEventCreate(&device->start, 0), "cuEventCreate"));
  return device_check(device, driver->cuEventCreate(&device->stop, 0), "cuEventCreate");
}

flp_status cli_device_open(int ordinal, cli_device *out) {
  *out = (cli_device){.ordinal = ordinal};
  if (ordinal == FLP_DEVICE_HOST) return FLP_OK;
  FLP_TRY(flp_driver_get(&out->driver));
  flp_status status = flp_device_get(out->driver, ordinal, &out->info);
  if (status == FLP_OK) status = open_context(out);
  if (status != FLP_OK) cli_device_close(out);
  return status;
}

void cli_device_close(cli_device *device) {
  if (device->driver && device->context) {
    const flp_driver *driver = device->driver;
    if (device->start) driver->cuEventDestroy_v2(device->start);
    if (device->stop) driver->cuEventDestroy_v2(device->stop);
    if (device->stream) driver->cuStreamDestroy_v2(device->stream);
    CUcontext popped;
    driver->cuCtxPopCurrent_v2(&popped);
    driver->cuDevicePrimaryCtxRelease_v2(device->info.handle);
  }
  *device = (cli_device){.ordinal = FLP_DEVICE_HOST};
}

flp_status cli_device_synchronise(cli_device *device) {
  if (!device->driver) return FLP_OK;
  return device_check(device, device->driver->cuStreamSynchronize(device->stream), "cuStreamSynchronize");
}

flp_status cli_device_timer_start(cli_device *device) {
  device->host_start = cli_seconds_now();
  if (!device->driver) return FLP_OK;
  return device_check(device, device->driver->cuEventRecord(device->start, device->stream), "cuEventRecord");
}

flp_status cli_device_timer_stop(cli_device *device, double *seconds) {
  *seconds = cli_seconds_now() - device->host_start;
  if (!device->driver) return FLP_OK;
  float milliseconds = 0;
  FLP_TRY(device_check(device, device->driver->cuEventRecord(device->stop, device->stream), "cuEventRecord"));
  FLP_TRY(device_check(device, device->driver->cuEventSynchronize(device->stop), "cuEventSynchronize"));
  FLP_TRY(device_check(device, device->driver->cuEventElapsedTime(&milliseconds, device->start, device->stop),
                       "cuEventElapsedTime"));
  *seconds = 1e-3 * (double)milliseconds;
  return FLP_OK;
}

static void account_add(cli_device *device, size_t bytes) {
  device->current_bytes += bytes;
  if (device->current_bytes > device->peak_bytes) device->peak_bytes = device->current_bytes;
}

flp_status cli_buffer_create(cli_device *device, size_t bytes, cli_buffer *out) {
  *out = (cli_buffer){.device = device, .bytes = bytes};
  if (bytes == 0) return FLP_OK;
  flp_status status = FLP_OK;
  if (device->driver) {
    CUdeviceptr address = 0;
    status = device_check(device, device->driver->cuMemAlloc_v2(&address, bytes), "cuMemAlloc");
    out->data = (void *)(uintptr_t)address;
  } else if (posix_memalign(&out->data, BUFFER_ALIGNMENT, bytes) != 0) {
    status = flp_fail(FLP_ERROR_MEMORY, "out of host memory: %zu bytes were asked for", bytes);
  }
  if (status == FLP_OK)
    account_add(device, bytes);
  else
    *out = (cli_buffer){0};
  return status;
}

flp_status cli_buffer_create_from(cli_device *device, const void *source, size_t bytes, size_t alignment,
                                  cli_buffer *out) {
  int borrow = !device->driver && bytes > 0 && (uintptr_t)source % alignment == 0;
  if (borrow) {
    *out = (cli_buffer){.device = device, .data = (void *)(uintptr_t)source, .bytes = bytes, .mapped = 1};
    account_add(device, bytes);
    return FLP_OK;
  }
  FLP_TRY(cli_buffer_create(device, bytes, out));
  flp_status status = cli_buffer_upload(out, 0, source, bytes);
  if (status != FLP_OK) cli_buffer_destroy(out);
  return status;
}

void cli_buffer_destroy(cli_buffer *buffer) {
  if (!buffer) return;
  cli_device *device = buffer->device;
  if (buffer->data) {
    device->current_bytes -= buffer->bytes;
    if (device->driver)
      device->driver->cuMemFree_v2((CUdeviceptr)(uintptr_t)buffer->data);
    else if (!buffer->mapped)
      free(buffer->data);
  }
  *buffer = (cli_buffer){0};
}

static flp_status check_range(const cli_buffer *buffer, size_t offset, size_t bytes) {
  if (offset <= buffer->bytes && bytes <= buffer->bytes - offset) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "bytes [%zu, %zu + %zu) leave a buffer of %zu bytes", offset, offset, bytes,
                  buffer->bytes);
}

flp_status cli_buffer_upload(cli_buffer *buffer, size_t offset, const void *source, size_t bytes) {
  FLP_TRY(check_range(buffer, offset, bytes));
  if (bytes == 0) return FLP_OK;
  cli_device *device = buffer->device;
  if (!device->driver) {
    memcpy((char *)buffer->data + offset, source, bytes);
    return FLP_OK;
  }
  CUdeviceptr address = (CUdeviceptr)(uintptr_t)buffer->data + offset;
  FLP_TRY(device_check(device, device->driver->cuMemcpyHtoDAsync_v2(address, source, bytes, device->stream),
                       "cuMemcpyHtoDAsync"));
  return cli_device_synchronise(device);
}

flp_status cli_buffer_upload_ids(cli_buffer *buffer, flp_dtype dtype, const int64_t *ids, int64_t count) {
  size_t bytes = (size_t)count * flp_dtype_bytes(dtype);
  void *narrow = malloc(bytes + 1);
  if (!narrow) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for ids");
  cli_ids_narrow(dtype, ids, count, narrow);
  flp_status status = cli_buffer_upload(buffer, 0, narrow, bytes);
  free(narrow);
  return status;
}

flp_status cli_buffer_download(const cli_buffer *buffer, size_t offset, void *target, size_t bytes) {
  FLP_TRY(check_range(buffer, offset, bytes));
  if (bytes == 0) return FLP_OK;
  cli_device *device = buffer->device;
  if (!device->driver) {
    memcpy(target, (const char *)buffer->data + offset, bytes);
    return FLP_OK;
  }
  CUdeviceptr address = (CUdeviceptr)(uintptr_t)buffer->data + offset;
  FLP_TRY(device_check(device, device->driver->cuMemcpyDtoHAsync_v2(target, address, bytes, device->stream),
                       "cuMemcpyDtoHAsync"));
  return cli_device_synchronise(device);
}

flp_status cli_buffer_fill_on(const cli_buffer *buffer, CUstream stream, uint8_t value) {
  if (buffer->bytes == 0) return FLP_OK;
  cli_device *device = buffer->device;
  if (!device->driver) {
    memset(buffer->data, value, buffer->bytes);
    return FLP_OK;
  }
  CUdeviceptr address = (CUdeviceptr)(uintptr_t)buffer->data;
  CUresult result = device->driver->cuMemsetD8Async(address, value, buffer->bytes, stream ? stream : device->stream);
  return device_check(device, result, "cuMemsetD8Async");
}

flp_status cli_buffer_fill(const cli_buffer *buffer, uint8_t value) {
  return cli_buffer_fill_on(buffer, NULL, value);
}
