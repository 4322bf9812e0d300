/* pack.c: the table of a pack (pack.h), read from the file and checked before use.
 *
 * Invariants: nothing behind the head is interpreted before the digest was compared; every pointer of a flp_pack leads
 * into its table and stays within it. The file is read with pread and never mapped: a mapped file that another process
 * truncates kills its reader. */
#include "runtime/pack/pack.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/bytes.h"
#include "runtime/base/status.h"
#include "runtime/pack/internal.h"

typedef struct head {
  uint32_t format, desc_format, manifest, index, entries, blobs, signature;
  uint64_t data;
} head;

flp_status pack_read_at(int fd, const char *name, uint64_t offset, uint8_t *out, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t got = pread(fd, out + done, bytes - done, (off_t)(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return flp_fail(FLP_ERROR_IO, "%s: read: %s", name, strerror(errno));
    if (got == 0)
      return flp_fail(FLP_ERROR_CORRUPT, "%s: ends at byte %" PRIu64 ", before the end that its table gives", name,
                      offset + done);
    done += (size_t)got;
  }
  return FLP_OK;
}

/* ---- head ---- */

static flp_status bound(const char *name, const char *field, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return FLP_OK;
  return flp_fail(FLP_ERROR_CORRUPT, "%s: %s is %" PRIu64 ", accepted: %" PRIu64 " to %" PRIu64, name, field, value,
                  least, most);
}

static flp_status check_head(const char *name, const head *h, uint64_t file_bytes) {
  FLP_TRY(bound(name, "pack format", h->format, FLP_PACK_FORMAT, FLP_PACK_FORMAT));
  FLP_TRY(bound(name, "descriptor format", h->desc_format, FLP_DESC_FORMAT, FLP_DESC_FORMAT));
  FLP_TRY(bound(name, "manifest bytes", h->manifest, 2, FLP_PACK_MANIFEST_BYTES_MAX));
  FLP_TRY(bound(name, "index bytes", h->index, 1, FLP_PACK_INDEX_BYTES_MAX));
  FLP_TRY(bound(name, "entries", h->entries, 1, FLP_PACK_ENTRIES_MAX));
  FLP_TRY(bound(name, "blobs", h->blobs, 1, FLP_PACK_BLOBS_MAX));
  FLP_TRY(bound(name, "data bytes", h->data, 1, FLP_PACK_DATA_BYTES_MAX));
  if (h->signature != 0) FLP_TRY(bound(name, "signature bytes", h->signature, FLP_PACK_SIGNATURE, FLP_PACK_SIGNATURE));
  uint64_t counted = (uint64_t)h->blobs * FLP_PACK_BLOB_BYTES + (uint64_t)h->entries * FLP_PACK_ENTRY_BYTES;
  if (counted > h->index)
    return flp_fail(FLP_ERROR_CORRUPT,
                    "%s: %" PRIu32 " blobs and %" PRIu32 " entries do not fit an index of %" PRIu32 " bytes", name,
                    h->blobs, h->entries, h->index);
  uint64_t sum = FLP_PACK_HEAD_BYTES + (uint64_t)h->manifest + h->index + FLP_PACK_DIGEST + h->signature + h->data;
  if (sum != file_bytes)
    return flp_fail(FLP_ERROR_CORRUPT, "%s: %" PRIu64 " bytes long, its head has %" PRIu64, name, file_bytes, sum);
  return FLP_OK;
}

static flp_status read_head(int fd, const char *name, head *out, uint64_t *file_bytes) {
  struct stat st;
  if (fstat(fd, &st) != 0) return flp_fail(FLP_ERROR_IO, "%s: %s", name, strerror(errno));
  if (!S_ISREG(st.st_mode)) return flp_fail(FLP_ERROR_CORRUPT, "%s: not a regular file", name);
  if (st.st_size < FLP_PACK_HEAD_BYTES + FLP_PACK_DIGEST)
    return flp_fail(FLP_ERROR_CORRUPT, "%s: %" PRIdMAX " bytes are too few for a pack", name, (intmax_t)st.st_size);
  uint8_t bytes[FLP_PACK_HEAD_BYTES];
  FLP_TRY(pack_read_at(fd, name, 0, bytes, sizeof bytes));
  flp_reader r = {.at = bytes, .end = bytes + sizeof bytes};
  if (memcmp(flp_take_bytes(&r, 4), FLP_PACK_MAGIC, 4) != 0)
    return flp_fail(FLP_ERROR_CORRUPT, "%s: no pack, it does not begin with " FLP_PACK_MAGIC, name);
  uint32_t *const fields[] = {&out->format,  &out->desc_format, &out->manifest, &out->index,
                              &out->entries, &out->blobs,       &out->signature};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) *fields[i] = flp_get_u32(&r);
  out->data = flp_get_u64(&r);
  *file_bytes = (uint64_t)st.st_size;
  return check_head(name, out, *file_bytes);
}

/* ---- digest and signature ---- */

static flp_status check_seal(const char *name, const head *h, flp_pack *pack) {
  size_t body = FLP_PACK_HEAD_BYTES + (size_t)h->manifest + h->index;
  crypto_hash_sha256(pack->digest, pack->table, body);
  if (memcmp(pack->digest, pack->table + body, FLP_PACK_DIGEST) != 0)
    return flp_fail(FLP_ERROR_CORRUPT, "%s: its table differs from its digest", name);
  if (!h->signature) return FLP_OK;
  const uint8_t *key = pack->table + body + FLP_PACK_DIGEST;
  uint8_t message[FLP_PACK_MESSAGE_BYTES];
  size_t length = flp_pack_message(pack->digest, message);
  if (crypto_sign_verify_detached(key + FLP_PACK_KEY, message, length, key) != 0)
    return flp_fail(FLP_ERROR_CORRUPT, "%s: its signature is not that of the key beside it", name);
  memcpy(pack->signer, key, FLP_PACK_KEY);
  pack->is_signed = 1;
  return FLP_OK;
}

/* ---- index ---- */

static flp_status read_blobs(const char *name, flp_reader *r, const head *h, flp_pack *pack) {
  uint64_t offset = pack->file_bytes - h->data, start = offset;
  for (uint32_t i = 0; i < h->blobs; i++) {
    flp_pack_blob *blob = &pack->blobs[i];
    blob->sha256 = flp_take_bytes(r, FLP_PACK_DIGEST); /* check_head has seen that there are as many */
    blob->stored_bytes = flp_get_u32(r);
    blob->unpacked_bytes = flp_get_u32(r);
    blob->offset = offset;
    FLP_TRY(bound(name, "stored bytes of a blob", blob->stored_bytes, 1, FLP_PACK_CODE_BYTES_MAX));
    FLP_TRY(bound(name, "unpacked bytes of a blob", blob->unpacked_bytes, 1, FLP_PACK_CODE_BYTES_MAX));
    if (i && memcmp(blob[-1].sha256, blob->sha256, FLP_PACK_DIGEST) >= 0)
      return flp_fail(FLP_ERROR_CORRUPT, "%s: blob %" PRIu32 " is out of order, or there twice", name, i);
    offset += blob->stored_bytes;
  }
  if (offset - start == h->data) return FLP_OK;
  return flp_fail(FLP_ERROR_CORRUPT, "%s: blobs of %" PRIu64 " bytes in all, its head has %" PRIu64, name,
                  offset - start, h->data);
}

/* Code, capability and driver in one number, so that images have an order. */
static uint64_t rank_of(const flp_pack_image *image) {
  return (uint64_t)image->code << 48 | (uint64_t)image->capability << 32 | image->driver;
}

static flp_status check_image(const char *name, const flp_pack_image *image, uint32_t i, uint32_t blobs) {
  int is_ptx = image->code == FLP_PACK_PTX && !image->capability && !image->driver;
  int is_cubin = image->code == FLP_PACK_CUBIN && image->capability >= 80 && image->capability <= 999 &&
                 image->driver >= 1000 && image->driver <= 999999;
  if (i == 0 ? !is_ptx : !is_cubin)
    return flp_fail(FLP_ERROR_CORRUPT,
                    "%s: image %" PRIu32 " of an entry has code %" PRIu32 ", capability %" PRIu32 ", driver %" PRIu32
                    "; accepted: PTX first, then cubins",
                    name, i, image->code, image->capability, image->driver);
  if (image->blob >= blobs)
    return flp_fail(FLP_ERROR_CORRUPT, "%s: an image refers to blob %" PRIu32 " of %" PRIu32, name, image->blob, blobs);
  return FLP_OK;
}

static flp_status read_images(const char *name, flp_reader *r, uint32_t count, const flp_pack *pack,
                              flp_pack_image *out, uint8_t *used) {
  for (uint32_t i = 0; i < count; i++) {
    uint32_t *const fields[] = {&out[i].code, &out[i].capability, &out[i].driver, &out[i].blob};
    for (size_t j = 0; j < sizeof fields / sizeof fields[0]; j++) *fields[j] = flp_get_u32(r);
    FLP_TRY(check_image(name, &out[i], i, pack->blob_count));
    if (i && rank_of(&out[i - 1]) >= rank_of(&out[i]))
      return flp_fail(FLP_ERROR_CORRUPT, "%s: images of an entry are out of order, or there twice", name);
    used[out[i].blob] = 1;
  }
  return FLP_OK;
}

static int compare_keys(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
  int order = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);
  return order ? order : a_bytes < b_bytes ? -1 : a_bytes > b_bytes;
}

/* Up to its images, all of which are there. */
static flp_status read_entry(const char *name, flp_reader *r, flp_pack_entry *out) {
  uint32_t key = flp_get_u32(r), desc = flp_get_u32(r), count = flp_get_u32(r);
  if (r->short_of_bytes) return flp_fail(FLP_ERROR_CORRUPT, "%s: its index ends within its entries", name);
  FLP_TRY(bound(name, "key bytes of an entry", key, 1, FLP_KEY_BYTES_MAX));
  FLP_TRY(bound(name, "descriptor bytes of an entry", desc, 1, FLP_DESC_BYTES_MAX));
  FLP_TRY(bound(name, "images of an entry", count, 1, FLP_PACK_IMAGES_MAX));
  const uint8_t *at = flp_take_bytes(r, key + desc);
  if (!at || (size_t)(r->end - r->at) < count * (size_t)FLP_PACK_IMAGE_BYTES)
    return flp_fail(FLP_ERROR_CORRUPT, "%s: its index ends within an entry", name);
  for (uint32_t i = 0; i < key; i++)
    if (at[i] < 0x20 || at[i] == 0x7f)
      return flp_fail(FLP_ERROR_CORRUPT, "%s: the key of an entry has a control character", name);
  *out = (flp_pack_entry){(const char *)at, key, at + key, desc, NULL, count};
  return FLP_OK;
}

static flp_status read_entries(const char *name, flp_reader *r, const head *h, flp_pack *pack, uint8_t *used) {
  flp_pack_image *next = pack->images;
  uint64_t unpacked = 0;
  for (uint32_t i = 0; i < h->entries; i++) {
    flp_pack_entry *entry = &pack->entries[i], *before = entry - 1;
    FLP_TRY(read_entry(name, r, entry));
    if (i && compare_keys(before->key, before->key_bytes, entry->key, entry->key_bytes) >= 0)
      return flp_fail(FLP_ERROR_CORRUPT, "%s: entry %" PRIu32 " is out of order, or there twice", name, i);
    FLP_TRY(read_images(name, r, entry->image_count, pack, next, used));
    entry->images = next;
    unpacked += pack->blobs[next->blob].unpacked_bytes;
    next += entry->image_count;
  }
  if (r->at != r->end) return flp_fail(FLP_ERROR_CORRUPT, "%s: bytes are left over behind its index", name);
  FLP_TRY(bound(name, "PTX of all entries", unpacked, 1, FLP_PACK_UNPACKED_BYTES_MAX));
  for (uint32_t i = 0; i < h->blobs; i++)
    if (!used[i]) return flp_fail(FLP_ERROR_CORRUPT, "%s: blob %" PRIu32 " belongs to no entry", name, i);
  return FLP_OK;
}

static flp_status read_index(const char *name, const head *h, flp_pack *pack) {
  pack->manifest = (const char *)pack->table + FLP_PACK_HEAD_BYTES;
  pack->manifest_bytes = h->manifest;
  pack->blob_count = h->blobs;
  pack->entry_count = h->entries;
  const uint8_t *index = pack->table + FLP_PACK_HEAD_BYTES + h->manifest;
  flp_reader r = {.at = index, .end = index + h->index};
  uint8_t *used = calloc(h->blobs, 1);
  pack->blobs = calloc(h->blobs, sizeof *pack->blobs);
  pack->entries = calloc(h->entries, sizeof *pack->entries);
  pack->images = calloc(h->index / FLP_PACK_IMAGE_BYTES + 1, sizeof *pack->images); /* as many as could fit */
  flp_status status = used && pack->blobs && pack->entries && pack->images
                          ? read_blobs(name, &r, h, pack)
                          : flp_fail(FLP_ERROR_MEMORY, "%s: no memory for its index", name);
  if (status == FLP_OK) status = read_entries(name, &r, h, pack, used);
  free(used);
  return status;
}

/* ---- the whole ---- */

static flp_status read_table(int fd, const char *name, flp_pack *pack) {
  head h = {0};
  FLP_TRY(read_head(fd, name, &h, &pack->file_bytes));
  size_t bytes = (size_t)(pack->file_bytes - h.data);
  pack->table = malloc(bytes);
  if (!pack->table) return flp_fail(FLP_ERROR_MEMORY, "%s: no memory for a table of %zu bytes", name, bytes);
  FLP_TRY(pack_read_at(fd, name, 0, pack->table, bytes));
  FLP_TRY(check_seal(name, &h, pack));
  return read_index(name, &h, pack);
}

flp_status flp_pack_open(int fd, const char *name, flp_pack **out) {
  *out = NULL;
  if (sodium_init() < 0) return flp_fail(FLP_ERROR_INTERNAL, "libsodium could not be initialised");
  flp_pack *pack = calloc(1, sizeof *pack);
  if (!pack) return flp_fail(FLP_ERROR_MEMORY, "%s: no memory for a pack", name);
  flp_status status = read_table(fd, name, pack);
  if (status != FLP_OK) {
    flp_pack_close(pack);
    return status;
  }
  *out = pack;
  return FLP_OK;
}

void flp_pack_close(flp_pack *pack) {
  if (!pack) return;
  free(pack->table);
  free(pack->blobs);
  free(pack->entries);
  free(pack->images);
  free(pack);
}

const flp_pack_entry *flp_pack_find(const flp_pack *pack, const char *key, size_t key_bytes) {
  for (uint32_t low = 0, high = pack->entry_count; low < high;) {
    uint32_t middle = low + (high - low) / 2;
    const flp_pack_entry *entry = &pack->entries[middle];
    int order = compare_keys(key, key_bytes, entry->key, entry->key_bytes);
    if (order == 0) return entry;
    if (order < 0)
      high = middle;
    else
      low = middle + 1;
  }
  return NULL;
}
