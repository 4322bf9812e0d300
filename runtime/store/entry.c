/* entry.c: the bytes of an entry file, version 1, and its name.
 *
 * Layout, little-endian: "FLPK", u32 format, u32 key bytes, u32 descriptor bytes, u64 PTX bytes, key, descriptor, PTX,
 * SHA-256 of all before it.
 * Invariants: the lengths add up to the file's own, so there is one reading of a file; the checksum is compared before
 * anything else is interpreted; the key is text without control characters, the PTX text without a NUL. */
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/status.h"
#include "runtime/store/internal.h"

enum { ENTRY_FORMAT = 1, HEAD_BYTES = STORE_HEAD_BYTES };

static const char magic[4] = {'F', 'L', 'P', 'K'};

static void put_le(uint8_t *out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++) out[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get_le(const uint8_t *in, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; i++) value |= (uint64_t)in[i] << 8 * i;
  return value;
}

void store_entry_name(const char *key, size_t key_bytes, char hex[STORE_HEX + 1]) {
  uint8_t digest[STORE_DIGEST];
  crypto_hash_sha256(digest, (const unsigned char *)key, key_bytes);
  sodium_bin2hex(hex, STORE_HEX + 1, digest, sizeof digest);
}

int store_entry_is_key(const char *key, size_t key_bytes) {
  if (key_bytes == 0 || key_bytes > FLP_KEY_BYTES_MAX) return 0;
  for (size_t i = 0; i < key_bytes; i++)
    if ((unsigned char)key[i] < 0x20 || key[i] == 0x7f) return 0;
  return 1;
}

/* What decode would refuse must not be written, or every process would compile, store and quarantine it for ever. */
static flp_status check_image(const char *key, size_t key_bytes, const flp_kernel_image *image, const uint8_t *desc,
                              size_t desc_bytes) {
  if (!key || !store_entry_is_key(key, key_bytes))
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
  size_t body = HEAD_BYTES + key_bytes + desc_bytes + image->ptx_bytes;
  uint8_t *out = malloc(body + STORE_DIGEST);
  if (!out) return flp_fail(FLP_ERROR_MEMORY, "no memory for a cache entry of %zu bytes", body);
  memcpy(out, magic, sizeof magic);
  put_le(out + 4, ENTRY_FORMAT, 4);
  put_le(out + 8, key_bytes, 4);
  put_le(out + 12, desc_bytes, 4);
  put_le(out + 16, image->ptx_bytes, 8);
  memcpy(out + HEAD_BYTES, key, key_bytes);
  memcpy(out + HEAD_BYTES + key_bytes, desc, desc_bytes);
  memcpy(out + HEAD_BYTES + key_bytes + desc_bytes, image->ptx, image->ptx_bytes);
  crypto_hash_sha256(out + body, out, body);
  *bytes = out;
  *length = body + STORE_DIGEST;
  return FLP_OK;
}

/* The parts of a file whose magic, lengths and checksum are right. */
typedef struct parts {
  const char *key;
  size_t key_bytes;
  const uint8_t *desc;
  size_t desc_bytes;
  const char *ptx;
  size_t ptx_bytes;
} parts;

static flp_status split(const uint8_t *bytes, size_t length, parts *out) {
  if (length < HEAD_BYTES + STORE_DIGEST) return flp_fail(FLP_ERROR_CORRUPT, "entry: %zu bytes are too few", length);
  if (memcmp(bytes, magic, sizeof magic) != 0) return flp_fail(FLP_ERROR_CORRUPT, "entry: magic is not FLPK");
  uint64_t format = get_le(bytes + 4, 4), key = get_le(bytes + 8, 4), desc = get_le(bytes + 12, 4),
           ptx = get_le(bytes + 16, 8);
  if (format != ENTRY_FORMAT)
    return flp_fail(FLP_ERROR_CORRUPT, "entry: format is %" PRIu64 ", accepted: %d", format, ENTRY_FORMAT);
  /* Each part is bounded before they are added, so the sum cannot wrap. */
  if (key == 0 || key > FLP_KEY_BYTES_MAX || desc > FLP_DESC_BYTES_MAX || ptx == 0 || ptx > STORE_ENTRY_BYTES_MAX ||
      HEAD_BYTES + key + desc + ptx + STORE_DIGEST != length)
    return flp_fail(FLP_ERROR_CORRUPT,
                    "entry: key %" PRIu64 ", descriptor %" PRIu64 " and PTX %" PRIu64 " bytes do not make %zu", key,
                    desc, ptx, length);
  uint8_t digest[STORE_DIGEST];
  crypto_hash_sha256(digest, bytes, length - STORE_DIGEST);
  if (memcmp(digest, bytes + length - STORE_DIGEST, STORE_DIGEST) != 0)
    return flp_fail(FLP_ERROR_CORRUPT, "entry: checksum differs");
  const uint8_t *at = bytes + HEAD_BYTES;
  *out = (parts){(const char *)at, key, at + key, desc, (const char *)at + key + desc, ptx};
  return FLP_OK;
}

flp_status store_entry_decode(const uint8_t *bytes, size_t length, char key_out[FLP_KEY_BYTES_MAX + 1],
                              flp_kernel_image *image) {
  if (image) memset(image, 0, sizeof *image);
  if (key_out) key_out[0] = 0;
  parts p = {0};
  FLP_TRY(split(bytes, length, &p));
  if (!store_entry_is_key(p.key, p.key_bytes)) return flp_fail(FLP_ERROR_CORRUPT, "entry: key has a control character");
  if (key_out) {
    memcpy(key_out, p.key, p.key_bytes);
    key_out[p.key_bytes] = 0;
  }
  flp_kernel_desc desc;
  FLP_TRY(flp_kernel_desc_read(p.desc, p.desc_bytes, &desc));
  if (memchr(p.ptx, 0, p.ptx_bytes)) return flp_fail(FLP_ERROR_CORRUPT, "entry: PTX holds a NUL");
  if (!image) return FLP_OK;
  char *ptx = malloc(p.ptx_bytes + 1);
  if (!ptx) return flp_fail(FLP_ERROR_MEMORY, "no memory for PTX of %zu bytes", p.ptx_bytes);
  memcpy(ptx, p.ptx, p.ptx_bytes);
  ptx[p.ptx_bytes] = 0;
  *image = (flp_kernel_image){.desc = desc, .ptx = ptx, .ptx_bytes = p.ptx_bytes};
  return FLP_OK;
}

int store_entry_peek(const uint8_t *bytes, size_t length, char key_out[FLP_KEY_BYTES_MAX + 1]) {
  if (length < HEAD_BYTES || memcmp(bytes, magic, sizeof magic) != 0 || get_le(bytes + 4, 4) != ENTRY_FORMAT) return 0;
  uint64_t key_bytes = get_le(bytes + 8, 4);
  if (key_bytes > length - HEAD_BYTES || !store_entry_is_key((const char *)bytes + HEAD_BYTES, key_bytes)) return 0;
  memcpy(key_out, bytes + HEAD_BYTES, key_bytes);
  key_out[key_bytes] = 0;
  return 1;
}
