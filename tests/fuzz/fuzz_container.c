/* fuzz_container.c: any bytes as a file of the cache, an entry and machine code, as they are and with the checksum made
 * right: refused with a reason, or read and written back as the same bytes.
 *
 * tests/unit/store/test_mutation.c runs the same function over mutations of samples. */
#include <sodium.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/store/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static flp_status encode_entry(const char *key, const flp_kernel_image *image, uint8_t **bytes, size_t *length) {
  return store_entry_encode(key, strlen(key), image, bytes, length);
}

/* The two kinds of files. Machine code is read into an image that has nothing yet. */
static const struct {
  flp_status (*decode)(const uint8_t *, size_t, char *, flp_kernel_image *);
  flp_status (*encode)(const char *, const flp_kernel_image *, uint8_t **, size_t *);
} kinds[] = {{store_entry_decode, encode_entry}, {store_cubin_decode, store_cubin_encode}};

static void read_and_write(const uint8_t *bytes, size_t length, size_t kind) {
  char key[FLP_KEY_BYTES_MAX + 1];
  flp_kernel_image image = {.ptx = NULL};
  flp_status status = kinds[kind].decode(bytes, length, key, &image);
  if (status != FLP_OK) {
    if (status != FLP_ERROR_CORRUPT || !*flp_error_detail() || image.ptx || image.cubin) __builtin_trap();
    return;
  }
  uint8_t *again;
  size_t again_length;
  if (kinds[kind].encode(key, &image, &again, &again_length) != FLP_OK || again_length != length ||
      memcmp(again, bytes, length) != 0)
    __builtin_trap();
  free(again);
  flp_kernel_image_clear(&image);
}

static void read_both(const uint8_t *bytes, size_t length) {
  for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) read_and_write(bytes, length, kind);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  read_both(bytes, length);
  if (length < STORE_DIGEST) return 0;
  /* Behind the checksum, where a fuzzer would never come by itself. */
  uint8_t *sealed = malloc(length);
  if (!sealed) return 0;
  memcpy(sealed, bytes, length);
  crypto_hash_sha256(sealed + length - STORE_DIGEST, sealed, length - STORE_DIGEST);
  read_both(sealed, length);
  free(sealed);
  return 0;
}
