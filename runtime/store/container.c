/* container.c: a file of the cache as bytes, an entry or machine code: a key and one or two parts.
 *
 * Layout, little-endian: four letters, u32 format, u32 key bytes, u32 bytes of each part but the last, u64 bytes of the
 * last; key; parts; SHA-256 of all before it.
 * Invariants: the lengths add up to the file's own, so there is one reading of a file; the checksum is compared before
 * anything else is interpreted; the key is text without control characters, and no part is empty. */
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "runtime/base/status.h"
#include "runtime/store/internal.h"

enum { MAGIC_BYTES = 4 };

int store_is_key(const char *key, size_t key_bytes) {
  if (key_bytes == 0 || key_bytes > FLP_KEY_BYTES_MAX) return 0;
  for (size_t i = 0; i < key_bytes; i++)
    if ((unsigned char)key[i] < 0x20 || key[i] == 0x7f) return 0;
  return 1;
}

static size_t head_bytes(const store_container *kind) {
  return MAGIC_BYTES + 4 + 4 + 4 * (size_t)(kind->part_count - 1) + 8;
}

/* ---- writing ---- */

flp_status store_container_encode(const store_container *kind, store_piece key, const store_piece *parts,
                                  uint8_t **bytes, size_t *length) {
  int last = kind->part_count - 1;
  size_t body = head_bytes(kind) + key.bytes;
  for (int i = 0; i <= last; i++) body += parts[i].bytes;
  *length = body + STORE_DIGEST;
  uint8_t *out = *bytes = malloc(*length);
  if (!out) return flp_fail(FLP_ERROR_MEMORY, "%s: no memory for a file of %zu bytes", kind->name, *length);
  flp_writer w = {.at = out, .end = out + body};
  flp_put_bytes(&w, kind->magic, MAGIC_BYTES);
  flp_put_u32(&w, kind->format);
  flp_put_u32(&w, (uint32_t)key.bytes);
  for (int i = 0; i < last; i++) flp_put_u32(&w, (uint32_t)parts[i].bytes);
  flp_put_u64(&w, parts[last].bytes);
  flp_put_bytes(&w, key.at, key.bytes);
  for (int i = 0; i <= last; i++) flp_put_bytes(&w, parts[i].at, parts[i].bytes);
  crypto_hash_sha256(out + body, out, body);
  return FLP_OK;
}

/* ---- reading ---- */

static flp_status bound(const store_container *kind, const char *what, uint64_t bytes, size_t most) {
  if (bytes >= 1 && bytes <= most) return FLP_OK;
  return flp_fail(FLP_ERROR_CORRUPT, "%s: %s of %" PRIu64 " bytes, accepted: 1 to %zu", kind->name, what, bytes, most);
}

/* Reads magic and format. */
static flp_status read_kind(const store_container *kind, flp_reader *r) {
  char magic[MAGIC_BYTES];
  flp_get_bytes(r, magic, sizeof magic);
  if (memcmp(magic, kind->magic, sizeof magic) != 0)
    return flp_fail(FLP_ERROR_CORRUPT, "%s: magic is not %s", kind->name, kind->magic);
  uint32_t format = flp_get_u32(r);
  if (format != kind->format)
    return flp_fail(FLP_ERROR_CORRUPT, "%s: format is %" PRIu32 ", accepted: %" PRIu32, kind->name, format,
                    kind->format);
  return FLP_OK;
}

/* Reads the lengths. Each is bounded before they are added, so the sum cannot wrap. */
static flp_status read_lengths(const store_container *kind, flp_reader *r, size_t length, store_piece *key,
                               store_piece *parts) {
  uint64_t bytes = flp_get_u32(r), sum = head_bytes(kind) + bytes + STORE_DIGEST;
  FLP_TRY(bound(kind, "key", bytes, FLP_KEY_BYTES_MAX));
  key->bytes = bytes;
  for (int i = 0; i < kind->part_count; i++) {
    bytes = i == kind->part_count - 1 ? flp_get_u64(r) : flp_get_u32(r);
    FLP_TRY(bound(kind, kind->parts[i].name, bytes, kind->parts[i].most));
    parts[i].bytes = bytes;
    sum += bytes;
  }
  if (sum == length) return FLP_OK;
  return flp_fail(FLP_ERROR_CORRUPT, "%s: %zu bytes long, its head has %" PRIu64, kind->name, length, sum);
}

static void copy_key(store_piece key, char out[FLP_KEY_BYTES_MAX + 1]) {
  memcpy(out, key.at, key.bytes);
  out[key.bytes] = 0;
}

flp_status store_container_decode(const store_container *kind, const uint8_t *bytes, size_t length,
                                  char key_out[FLP_KEY_BYTES_MAX + 1], store_piece *parts) {
  flp_reader r = {.at = bytes, .end = bytes + length};
  store_piece key = {0};
  if (length < head_bytes(kind) + STORE_DIGEST)
    return flp_fail(FLP_ERROR_CORRUPT, "%s: %zu bytes are too few", kind->name, length);
  FLP_TRY(read_kind(kind, &r));
  FLP_TRY(read_lengths(kind, &r, length, &key, parts));
  uint8_t digest[STORE_DIGEST];
  crypto_hash_sha256(digest, bytes, length - STORE_DIGEST);
  if (memcmp(digest, bytes + length - STORE_DIGEST, STORE_DIGEST) != 0)
    return flp_fail(FLP_ERROR_CORRUPT, "%s: checksum differs", kind->name);
  key.at = flp_take_bytes(&r, key.bytes);
  for (int i = 0; i < kind->part_count; i++) parts[i].at = flp_take_bytes(&r, parts[i].bytes);
  if (!store_is_key(key.at, key.bytes))
    return flp_fail(FLP_ERROR_CORRUPT, "%s: key has a control character", kind->name);
  if (key_out) copy_key(key, key_out);
  return FLP_OK;
}

int store_container_peek(const store_container *kind, const uint8_t *bytes, size_t length,
                         char key_out[FLP_KEY_BYTES_MAX + 1]) {
  flp_reader r = {.at = bytes, .end = bytes + length};
  if (length < head_bytes(kind) || read_kind(kind, &r) != FLP_OK) return 0;
  store_piece key = {.bytes = flp_get_u32(&r)};
  r.at = bytes + head_bytes(kind);
  key.at = flp_take_bytes(&r, key.bytes);
  if (!key.at || !store_is_key(key.at, key.bytes)) return 0;
  copy_key(key, key_out);
  return 1;
}
