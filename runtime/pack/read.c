/* read.c: the data of a pack: blobs that are verified before they are unpacked, and entries made of them.
 *
 * Invariant: memory for a blob is what the table declared, within its bound, and unpacking writes no byte beyond it. */
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "runtime/base/status.h"
#include "runtime/pack/internal.h"

/* ---- blobs ---- */

static flp_status check_frame(const uint8_t *stored, const flp_pack_blob *blob, uint32_t i) {
  unsigned long long stated = ZSTD_getFrameContentSize(stored, blob->stored_bytes);
  if (stated != blob->unpacked_bytes || ZSTD_findFrameCompressedSize(stored, blob->stored_bytes) != blob->stored_bytes)
    return flp_fail(FLP_ERROR_CORRUPT, "pack: blob %" PRIu32 " is not one zstd frame of %" PRIu32 " bytes", i,
                    blob->unpacked_bytes);
  return FLP_OK;
}

static flp_status unpack(const uint8_t *stored, const flp_pack_blob *blob, uint32_t i, uint8_t *out) {
  size_t got = ZSTD_decompress(out, blob->unpacked_bytes, stored, blob->stored_bytes);
  if (got == blob->unpacked_bytes) return FLP_OK;
  return flp_fail(FLP_ERROR_CORRUPT, "pack: blob %" PRIu32 " does not unpack to %" PRIu32 " bytes: %s", i,
                  blob->unpacked_bytes, ZSTD_isError(got) ? ZSTD_getErrorName(got) : "it is shorter");
}

static flp_status read_stored(int fd, const flp_pack_blob *blob, uint32_t i, uint8_t *stored) {
  FLP_TRY(pack_read_at(fd, "pack", blob->offset, stored, blob->stored_bytes));
  uint8_t digest[FLP_PACK_DIGEST];
  crypto_hash_sha256(digest, stored, blob->stored_bytes);
  if (memcmp(digest, blob->sha256, sizeof digest) != 0)
    return flp_fail(FLP_ERROR_CORRUPT, "pack: blob %" PRIu32 " differs from its SHA-256", i);
  return check_frame(stored, blob, i);
}

flp_status flp_pack_unpack(const flp_pack *pack, int fd, uint32_t blob, uint8_t **out, size_t *bytes) {
  *out = NULL;
  *bytes = 0;
  const flp_pack_blob *b = &pack->blobs[blob];
  uint8_t *stored = malloc(b->stored_bytes);
  flp_status status = stored ? read_stored(fd, b, blob, stored)
                             : flp_fail(FLP_ERROR_MEMORY, "no memory for a blob of %" PRIu32 " bytes", b->stored_bytes);
  uint8_t *unpacked = NULL;
  if (status == FLP_OK) {
    unpacked = malloc((size_t)b->unpacked_bytes + 1);
    status = unpacked ? unpack(stored, b, blob, unpacked)
                      : flp_fail(FLP_ERROR_MEMORY, "no memory for a blob of %" PRIu32 " bytes", b->unpacked_bytes);
  }
  free(stored);
  if (status != FLP_OK) {
    free(unpacked);
    return status;
  }
  unpacked[b->unpacked_bytes] = 0;
  *out = unpacked;
  *bytes = b->unpacked_bytes;
  return FLP_OK;
}

flp_status flp_pack_unpack_cubin(const flp_pack *pack, int fd, uint32_t blob, uint8_t **out, size_t *bytes) {
  FLP_TRY(flp_pack_unpack(pack, fd, blob, out, bytes));
  flp_status status = flp_pack_check_cubin(*out, *bytes);
  if (status == FLP_OK) return FLP_OK;
  free(*out);
  *out = NULL;
  return status;
}

const flp_pack_image *flp_pack_cubin(const flp_pack_entry *entry, uint32_t capability, uint32_t driver) {
  const flp_pack_image *best = NULL;
  for (uint32_t i = 1; i < entry->image_count; i++) /* by ascending driver, so the last that fits is the newest */
    if (entry->images[i].capability == capability && entry->images[i].driver <= driver) best = &entry->images[i];
  return best;
}

/* ---- entries ---- */

flp_status pack_tuned_for(const flp_pack_entry *entry, char out[PACK_TUNED_BYTES]) {
  static const char mark[] = " tuned=";
  out[0] = 0;
  const char *at = memmem(entry->key, entry->key_bytes, mark, sizeof mark - 1);
  size_t left = at ? (size_t)(entry->key + entry->key_bytes - at) - (sizeof mark - 1) : PACK_TUNED_BYTES;
  if (left >= PACK_TUNED_BYTES)
    return flp_fail(FLP_ERROR_CORRUPT, "key %.*s: does not name what it was tuned for in %d bytes",
                    (int)entry->key_bytes, entry->key, PACK_TUNED_BYTES - 1);
  memcpy(out, at + sizeof mark - 1, left);
  out[left] = 0;
  return FLP_OK;
}

static int is_key_of(const flp_pack_entry *entry, const flp_kernel_key *key, const uint8_t *sources,
                     const char *tuned_for) {
  char text[FLP_KEY_BYTES_MAX];
  size_t bytes = flp_kernel_key_bytes(key, sources, tuned_for, text, sizeof text);
  return bytes && bytes == entry->key_bytes && memcmp(text, entry->key, bytes) == 0;
}

flp_status pack_read_desc(const flp_pack_entry *entry, flp_kernel_desc *out) {
  char tuned_for[PACK_TUNED_BYTES];
  FLP_TRY(pack_tuned_for(entry, tuned_for));
  FLP_TRY(flp_kernel_desc_read(entry->desc, entry->desc_bytes, out));
  if (is_key_of(entry, &out->key, out->sources, tuned_for)) return FLP_OK;
  /* A kernel tuned for a device stands under the key of the template's default, in place of that one. */
  flp_kernel_key own = out->key;
  own.tune = (flp_tunables){0};
  if (tuned_for[0] && is_key_of(entry, &own, out->sources, tuned_for)) return FLP_OK;
  return flp_fail(FLP_ERROR_CORRUPT, "key %.*s: its descriptor is that of another kernel", (int)entry->key_bytes,
                  entry->key);
}

flp_status flp_pack_load(const flp_pack *pack, int fd, const flp_pack_entry *entry, flp_kernel_image *out) {
  memset(out, 0, sizeof *out);
  flp_kernel_desc desc;
  FLP_TRY(pack_read_desc(entry, &desc));
  uint8_t *ptx;
  size_t bytes;
  FLP_TRY(flp_pack_unpack(pack, fd, entry->images[0].blob, &ptx, &bytes));
  if (memchr(ptx, 0, bytes)) {
    free(ptx);
    return flp_fail(FLP_ERROR_CORRUPT, "key %.*s: its PTX holds a NUL", (int)entry->key_bytes, entry->key);
  }
  *out = (flp_kernel_image){.desc = desc, .ptx = (char *)ptx, .ptx_bytes = bytes};
  return FLP_OK;
}
