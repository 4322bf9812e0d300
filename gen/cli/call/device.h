/* device.h: buffers that lie in device or host memory, over one stream of one device, and how much they take.
 *
 * Invariants: every buffer is 256-byte aligned; current_bytes counts what is live, peak_bytes its maximum since the
 * device was opened or the peak reset; upload and download have finished when they return. Not for several threads. */
#ifndef FLPGEN_CLI_DEVICE_H
#define FLPGEN_CLI_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/driver/driver.h"
#include "runtime/flp.h"

typedef struct cli_device {
  int ordinal;              /* CUDA ordinal, or FLP_DEVICE_HOST */
  const flp_driver *driver; /* NULL on the host */
  flp_device info;          /* zero on the host */
  CUcontext context;
  CUstream stream; /* pass as flp_args.stream; NULL on the host */
  CUevent start, stop;
  double host_start; /* seconds, for the timer on the host */
  uint64_t current_bytes, peak_bytes;
} cli_device;

/* Opens a device: makes its primary context current on this thread and creates a stream.
 * ordinal: CUDA ordinal, or FLP_DEVICE_HOST, which cannot fail
 * error:   UNAVAILABLE, ARGUMENT, DRIVER with the reason */
flp_status cli_device_open(int ordinal, cli_device *out);
/* Closes a device whose buffers were destroyed. A zeroed device is fine. */
void cli_device_close(cli_device *device);
/* Waits for the stream. error: DRIVER */
flp_status cli_device_synchronise(cli_device *device);
/* Time between two points of the stream. Stop synchronises. unit: seconds */
flp_status cli_device_timer_start(cli_device *device);
flp_status cli_device_timer_stop(cli_device *device, double *seconds);

typedef struct cli_buffer {
  cli_device *device; /* borrowed; NULL for an empty buffer */
  void *data;         /* device pointer, or host memory; NULL if bytes is 0 */
  size_t bytes;
  int mapped; /* 1: data is borrowed host memory */
} cli_buffer;

/* error: MEMORY on the host, DRIVER on a GPU; *out is empty then */
flp_status cli_buffer_create(cli_device *device, size_t bytes, cli_buffer *out);
/* Makes a buffer that holds a copy of host bytes. On the host device it borrows them where they are aligned to
 * `alignment` (they must outlive it and are never written), so that a mapped file is not copied. */
flp_status cli_buffer_create_from(cli_device *device, const void *source, size_t bytes, size_t alignment,
                                  cli_buffer *out);
/* Frees and empties a buffer; NULL and empty buffers are fine. */
void cli_buffer_destroy(cli_buffer *buffer);
/* Copies bytes in or out at an offset. error: ARGUMENT if the range leaves the buffer; DRIVER */
flp_status cli_buffer_upload(cli_buffer *buffer, size_t offset, const void *source, size_t bytes);
/* Writes ids as a dtype of targets. error: DRIVER, MEMORY */
flp_status cli_buffer_upload_ids(cli_buffer *buffer, flp_dtype dtype, const int64_t *ids, int64_t count);
flp_status cli_buffer_download(const cli_buffer *buffer, size_t offset, void *target, size_t bytes);
/* Sets every byte to value, ordered on a stream: NULL, and in cli_buffer_fill, the device's. */
flp_status cli_buffer_fill(const cli_buffer *buffer, uint8_t value);
flp_status cli_buffer_fill_on(const cli_buffer *buffer, CUstream stream, uint8_t value);

#endif
