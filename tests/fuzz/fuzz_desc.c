/* fuzz_desc.c: any bytes as a descriptor: refused with a reason, or read and written back as the same bytes.
 *
 * tests/unit/store/test_mutation.c runs the same function over mutations of samples. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "runtime/kernel/kernel.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  flp_kernel_desc desc;
  flp_status status = flp_kernel_desc_read(bytes, length, &desc);
  if (status != FLP_OK) {
    if (status != FLP_ERROR_CORRUPT || !*flp_error_detail()) __builtin_trap();
    return 0;
  }
  uint8_t again[FLP_DESC_BYTES_MAX];
  if (flp_kernel_desc_write(&desc, again, sizeof again) != length || memcmp(again, bytes, length) != 0)
    __builtin_trap();
  return 0;
}
