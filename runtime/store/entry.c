/* entry.c: the bytes of an entry file, version 1, and its name. A file is a container (container.c) of the key, a
 * descriptor and PTX without a NUL. And who made one, and what a listing says of it. */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/status.h"
#include "runtime/store/internal.h"

static const store_container container = {
    .name = "entry",
    .magic = "FLPK",
    .format = 1,
    .part_count = 2,
    .parts = {{"descriptor", FLP_DESC_BYTES_MAX}, {"PTX", STORE_ENTRY_BYTES_MAX}},
};

void store_entry_name(const char *key, size_t key_bytes, char hex[STORE_HEX + 1]) {
  uint8_t digest[STORE_DIGEST];
  crypto_hash_sha256(digest, (const unsigned char *)key, key_bytes);
  sodium_bin2hex(hex, STORE_HEX + 1, digest, sizeof digest);
}

/* An entry that decode would refuse must not be written: every process would compile, store and quarantine it again. */
static flp_status check_image(const char *key, size_t key_bytes, const flp_kernel_image *image, const uint8_t *desc,
                              size_t desc_bytes) {
  if (!key || !store_is_key(key, key_bytes))
    return flp_fail(FLP_ERROR_ARGUMENT, "cache key of %zu bytes, accepted: 1 to %d bytes of text", key_bytes,
                    FLP_KEY_BYTES_MAX);
  if (!image->ptx || image->ptx_bytes == 0 || image->ptx_bytes > STORE_ENTRY_BYTES_MAX / 2)
    return flp_fail(FLP_ERROR_ARGUMENT, "PTX of %zu bytes, accepted: 1 to %d", image->ptx_bytes,
                    STORE_ENTRY_BYTES_MAX / 2);
  if (strnlen(image->ptx, image->ptx_bytes) != image->ptx_bytes)
    return flp_fail(FLP_ERROR_ARGUMENT, "PTX of %zu bytes holds a NUL", image->ptx_bytes);
  flp_kernel_desc back;
  if (desc_bytes == 0 || flp_kernel_desc_read(desc, desc_bytes, &back) != FLP_OK)
    return flp_fail(FLP_ERROR_ARGUMENT, "entry would not read back: %s", flp_error_detail());
  return FLP_OK;
}

flp_status store_entry_encode(const char *key, size_t key_bytes, const flp_kernel_image *image, uint8_t **bytes,
                              size_t *length) {
  *bytes = NULL;
  *length = 0;
  uint8_t desc[FLP_DESC_BYTES_MAX];
  size_t desc_bytes = flp_kernel_desc_write(&image->desc, desc, sizeof desc);
  FLP_TRY(check_image(key, key_bytes, image, desc, desc_bytes));
  const store_piece parts[] = {{desc, desc_bytes}, {image->ptx, image->ptx_bytes}};
  return store_container_encode(&container, (store_piece){key, key_bytes}, parts, bytes, length);
}

flp_status store_entry_decode(const uint8_t *bytes, size_t length, char key_out[FLP_KEY_BYTES_MAX + 1],
                              flp_kernel_image *image) {
  if (image) memset(image, 0, sizeof *image);
  if (key_out) key_out[0] = 0;
  store_piece parts[2];
  FLP_TRY(store_container_decode(&container, bytes, length, key_out, parts));
  flp_kernel_desc desc;
  FLP_TRY(flp_kernel_desc_read(parts[0].at, parts[0].bytes, &desc));
  size_t ptx_bytes = parts[1].bytes;
  if (memchr(parts[1].at, 0, ptx_bytes)) return flp_fail(FLP_ERROR_CORRUPT, "entry: PTX holds a NUL");
  if (!image) return FLP_OK;
  char *ptx = malloc(ptx_bytes + 1);
  if (!ptx) return flp_fail(FLP_ERROR_MEMORY, "no memory for PTX of %zu bytes", ptx_bytes);
  memcpy(ptx, parts[1].at, ptx_bytes);
  ptx[ptx_bytes] = 0;
  *image = (flp_kernel_image){.desc = desc, .ptx = ptx, .ptx_bytes = ptx_bytes};
  return FLP_OK;
}

int store_entry_peek(const uint8_t *bytes, size_t length, char key_out[FLP_KEY_BYTES_MAX + 1]) {
  return store_container_peek(&container, bytes, length, key_out);
}

const char *flp_store_other_sources(const char *key) {
  static const char name[] = " sources=";
  const char *at = strstr(key, name);
  if (!at || strncmp(at + sizeof name - 1, flp_sources_id(), STORE_HEX) == 0) return NULL;
  return at + sizeof name - 1;
}

const char *flp_store_made_by(const char *version, const char *sources, char out[FLP_STORE_MADE_BYTES]) {
  snprintf(out, FLP_STORE_MADE_BYTES, "made by %s%.32s, sources %.16s; this library, flp %s, has %.16s",
           version ? "flp " : "another flp", version ? version : "", sources, flp_version(), flp_sources_id());
  return out;
}

int store_show(flp_store_item *item, flp_status status, flp_store_visit_fn visit, void *context) {
  char reason[1024] = "";
  if (status != FLP_OK) snprintf(reason, sizeof reason, "%s", flp_error_detail());
  item->status = status;
  item->other_sources = flp_store_other_sources(item->key);
  item->reason = reason;
  return visit(context, item);
}
