/* cubin.c: machine code that was made of an entry's PTX in this process, kept for the next.
 *
 * A file is a container (container.c) of the key and a cubin. Invariant: the key names the PTX by its hash, the device
 * and the driver, so whoever writes a file writes code of equal worth, and nothing is locked. */
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/status.h"
#include "runtime/pack/pack.h"
#include "runtime/store/internal.h"

enum { CUBIN_FORMAT = 1, NAME_BYTES = STORE_HEX + 8 };

static const store_container container = {
    .name = "machine code",
    .magic = "FLPC",
    .format = CUBIN_FORMAT,
    .part_count = 1,
    .parts = {{"cubin", STORE_ENTRY_BYTES_MAX}},
};

/* Writes the key and the file's name. */
static void name_of(const flp_store *store, const flp_kernel_image *image, char key[FLP_KEY_BYTES_MAX],
                    char name[NAME_BYTES]) {
  uint8_t digest[STORE_DIGEST];
  char ptx[STORE_HEX + 1], sources[STORE_HEX + 1], hex[STORE_HEX + 1];
  crypto_hash_sha256(digest, (const unsigned char *)image->ptx, image->ptx_bytes);
  sodium_bin2hex(ptx, sizeof ptx, digest, sizeof digest);
  sodium_bin2hex(sources, sizeof sources, image->desc.sources, sizeof image->desc.sources);
  int length = snprintf(key, FLP_KEY_BYTES_MAX,
                        "flp-cubin/%d kind=%s arch=%s capability=%" PRIu32 " driver=%" PRIu32 " ptx=%s sources=%s",
                        CUBIN_FORMAT, flp_kernel_kind_name(image->desc.key.kind), image->desc.key.arch,
                        store->capability, store->driver, ptx, sources);
  store_entry_name(key, (size_t)length, hex);
  snprintf(name, NAME_BYTES, "%s.flpc", hex);
}

flp_status store_cubin_decode(const uint8_t *bytes, size_t length, char key_out[FLP_KEY_BYTES_MAX + 1],
                              flp_kernel_image *image) {
  store_piece cubin;
  key_out[0] = 0;
  FLP_TRY(store_container_decode(&container, bytes, length, key_out, &cubin));
  FLP_TRY(flp_pack_check_cubin(cubin.at, cubin.bytes));
  if (!image) return FLP_OK;
  image->cubin = malloc(cubin.bytes);
  if (!image->cubin) return flp_fail(FLP_ERROR_MEMORY, "no memory for a cubin of %zu bytes", cubin.bytes);
  memcpy(image->cubin, cubin.at, cubin.bytes);
  image->cubin_bytes = cubin.bytes;
  return FLP_OK;
}

flp_status store_cubin_encode(const char *key, const flp_kernel_image *image, uint8_t **bytes, size_t *length) {
  const store_piece cubin = {image->cubin, image->cubin_bytes};
  return store_container_encode(&container, (store_piece){key, strlen(key)}, &cubin, bytes, length);
}

static flp_status read_cubin(int directory, const char *name, const char *key, flp_kernel_image *image) {
  uint8_t *bytes;
  size_t length;
  struct stat stat;
  int absent;
  char found[FLP_KEY_BYTES_MAX + 1];
  FLP_TRY(store_file_read(directory, name, &bytes, &length, &stat, &absent));
  if (absent) return FLP_OK;
  flp_kernel_image read = {.ptx = NULL};
  flp_status status = store_cubin_decode(bytes, length, found, &read);
  free(bytes);
  FLP_TRY(status);
  if (strcmp(found, key) != 0) {
    flp_kernel_image_clear(&read);
    return flp_fail(FLP_ERROR_CORRUPT, "machine code: is of another key: %s", found);
  }
  image->cubin = read.cubin;
  image->cubin_bytes = read.cubin_bytes;
  return FLP_OK;
}

void flp_store_get_cubin(const flp_store *store, flp_kernel_image *image) {
  char key[FLP_KEY_BYTES_MAX], name[NAME_BYTES];
  int directory;
  if (!store->writable || !store->capability) return;
  /* A directory that cannot be used was reported when the PTX was looked for. */
  if (store_file_open_directory(store->writable, 1, 0, &directory, NULL) != FLP_OK) return;
  name_of(store, image, key, name);
  if (read_cubin(directory, name, key, image) != FLP_OK)
    store_warn(name, "kernel cache %s: %.16s… is compiled anew: %s", store->writable, name, flp_error_detail());
  close(directory);
}

static flp_status write_cubin(const flp_store *store, const flp_kernel_image *image) {
  char key[FLP_KEY_BYTES_MAX], name[NAME_BYTES];
  uint8_t *bytes;
  size_t length;
  int directory;
  name_of(store, image, key, name);
  FLP_TRY(store_cubin_encode(key, image, &bytes, &length));
  flp_status status = store_file_open_directory(store->writable, 1, 1, &directory, NULL);
  if (status == FLP_OK) {
    status = store_file_write(directory, name, bytes, length);
    close(directory);
  }
  free(bytes);
  return status;
}

void flp_store_keep_cubin(const flp_store *store, const flp_kernel_image *image) {
  if (write_cubin(store, image) != FLP_OK)
    store_warn(store->writable, "kernel cache %s: machine code is not kept: %s", store->writable, flp_error_detail());
}

int flp_store_keeps_cubins(const flp_store *store) {
  int directory;
  if (!store->writable || !store->capability) return 0;
  if (store_file_open_directory(store->writable, 1, 1, &directory, NULL) != FLP_OK) return 0;
  int writable = faccessat(directory, ".", W_OK, AT_EACCESS) == 0;
  close(directory);
  return writable;
}
