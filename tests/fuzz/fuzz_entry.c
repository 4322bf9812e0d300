/* fuzz_entry.c: any bytes as a cache entry file, as they are and with the checksum made right: refused with a reason, or
 * read and written back as the same bytes.
 *
 * Build: clang -fsanitize=fuzzer,address,undefined; tests/unit/store/test_mutation.c runs the same function in every test. */
#include <sodium.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/store/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void read_and_write(const uint8_t *bytes, size_t length) {
  char key[FLP_KEY_BYTES_MAX + 1];
  flp_kernel_image image;
  flp_status status = store_entry_decode(bytes, length, key, &image);
  if (status != FLP_OK) {
    if (status != FLP_ERROR_CORRUPT || !*flp_error_detail() || image.ptx) __builtin_trap();
    return;
  }
  uint8_t *again;
  size_t again_length;
  if (store_entry_encode(key, strlen(key), &image, &again, &again_length) != FLP_OK || again_length != length ||
      memcmp(again, bytes, length) != 0)
    __builtin_trap();
  free(again);
  flp_kernel_image_clear(&image);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  read_and_write(bytes, length);
  if (length < STORE_DIGEST) return 0;
  /* Behind the checksum, where a fuzzer would never come by itself. */
  uint8_t *sealed = malloc(length);
  if (!sealed) return 0;
  memcpy(sealed, bytes, length);
  crypto_hash_sha256(sealed + length - STORE_DIGEST, sealed, length - STORE_DIGEST);
  read_and_write(sealed, length);
  free(sealed);
  return 0;
}
