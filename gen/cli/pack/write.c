/* write.c: writes a pack in the format of runtime/pack/pack.h.
 *
 * Invariant: the result depends on the kernels, the manifest and the seed alone (and on the version of libzstd):
 * entries and blobs are sorted, a frame is made by one thread at one level, Ed25519 is deterministic. */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "gen/cli/kernels/parallel.h"
#include "gen/cli/pack/pack.h"
#include "runtime/base/bytes.h"

/* 19 makes PTX a tenth of its size; dictionaries and windows over all kernels save some 5% more, for which a kernel
 * could no longer be read alone. */
enum { ZSTD_LEVEL = 19 };

typedef struct blob {
  const void *code;                                      /* borrowed */
  uint8_t raw[FLP_PACK_DIGEST], sha256[FLP_PACK_DIGEST]; /* of the code as it is, and as it is stored */
  uint8_t *stored;
  size_t stored_bytes, unpacked_bytes;
} blob;

typedef struct packer {
  const cli_pack_item **items; /* by ascending key */
  size_t item_count;
  blob *blobs; /* while code is collected by no order, then by ascending sha256 */
  size_t blob_count, blob_capacity;
  uint8_t *out;
  flp_writer to; /* in out */
} packer;

/* ---- blobs ---- */

static blob *find_blob(const packer *p, const void *code, size_t bytes) {
  uint8_t raw[FLP_PACK_DIGEST];
  crypto_hash_sha256(raw, code, bytes);
  for (size_t i = 0; i < p->blob_count; i++)
    if (memcmp(p->blobs[i].raw, raw, sizeof raw) == 0) return &p->blobs[i];
  return NULL;
}

static flp_status compress(void *context, size_t i) {
  blob *out = &((packer *)context)->blobs[i];
  size_t bound = ZSTD_compressBound(out->unpacked_bytes);
  out->stored = malloc(bound);
  if (!out->stored) return flp_fail(FLP_ERROR_MEMORY, "out of memory for a blob of %zu bytes", bound);
  out->stored_bytes = ZSTD_compress(out->stored, bound, out->code, out->unpacked_bytes, ZSTD_LEVEL);
  if (ZSTD_isError(out->stored_bytes))
    return flp_fail(FLP_ERROR_INTERNAL, "zstd: %s", ZSTD_getErrorName(out->stored_bytes));
  if (out->stored_bytes > FLP_PACK_CODE_BYTES_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "code of %zu bytes is packed into %zu, accepted: up to %d", out->unpacked_bytes,
                    out->stored_bytes, FLP_PACK_CODE_BYTES_MAX);
  crypto_hash_sha256(out->sha256, out->stored, out->stored_bytes);
  return FLP_OK;
}

static flp_status add_code(packer *p, const void *code, size_t bytes) {
  if (bytes < 1 || bytes > FLP_PACK_CODE_BYTES_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "code of %zu bytes, accepted: 1 to %d", bytes, FLP_PACK_CODE_BYTES_MAX);
  if (find_blob(p, code, bytes)) return FLP_OK;
  if (p->blob_count == p->blob_capacity) {
    size_t capacity = p->blob_capacity ? 2 * p->blob_capacity : 64;
    blob *grown = realloc(p->blobs, capacity * sizeof *grown);
    if (!grown) return flp_fail(FLP_ERROR_MEMORY, "out of memory for %zu blobs", capacity);
    p->blobs = grown;
    p->blob_capacity = capacity;
  }
  blob *added = &p->blobs[p->blob_count++];
  *added = (blob){.code = code, .unpacked_bytes = bytes};
  crypto_hash_sha256(added->raw, code, bytes);
  return FLP_OK;
}

static int by_hash(const void *left, const void *right) {
  const blob *a = left, *b = right;
  return memcmp(a->sha256, b->sha256, sizeof a->sha256);
}

static flp_status collect(packer *p) {
  for (size_t i = 0; i < p->item_count; i++) {
    const cli_pack_item *item = p->items[i];
    FLP_TRY(add_code(p, item->ptx, item->ptx_bytes));
    for (uint32_t j = 0; j < item->cubin_count; j++) FLP_TRY(add_code(p, item->cubins[j].code, item->cubins[j].bytes));
  }
  FLP_TRY(cli_parallel(compress, p, p->blob_count, "packing"));
  qsort(p->blobs, p->blob_count, sizeof *p->blobs, by_hash);
  return FLP_OK;
}

/* ---- layout ---- */

static size_t index_bytes(const packer *p) {
  size_t sum = p->blob_count * FLP_PACK_BLOB_BYTES;
  for (size_t i = 0; i < p->item_count; i++) {
    uint8_t desc[FLP_DESC_BYTES_MAX];
    sum += FLP_PACK_ENTRY_BYTES + strlen(p->items[i]->key) +
           flp_kernel_desc_write(&p->items[i]->desc, desc, sizeof desc) +
           (1 + (size_t)p->items[i]->cubin_count) * FLP_PACK_IMAGE_BYTES;
  }
  return sum;
}

static uint64_t data_bytes(const packer *p) {
  uint64_t sum = 0;
  for (size_t i = 0; i < p->blob_count; i++) sum += p->blobs[i].stored_bytes;
  return sum;
}

static void put_image(packer *p, flp_pack_code code, uint32_t capability, uint32_t driver, const void *image,
                      size_t bytes) {
  flp_put_u32(&p->to, code);
  flp_put_u32(&p->to, capability);
  flp_put_u32(&p->to, driver);
  flp_put_u32(&p->to, (uint32_t)(find_blob(p, image, bytes) - p->blobs));
}

static int by_device(const void *left, const void *right) {
  const cli_pack_cubin *a = left, *b = right;
  if (a->capability != b->capability) return a->capability < b->capability ? -1 : 1;
  return a->driver < b->driver ? -1 : a->driver > b->driver;
}

static void put_entry(packer *p, const cli_pack_item *item) {
  uint8_t desc[FLP_DESC_BYTES_MAX];
  size_t length = flp_kernel_desc_write(&item->desc, desc, sizeof desc);
  flp_put_u32(&p->to, (uint32_t)strlen(item->key));
  flp_put_u32(&p->to, (uint32_t)length);
  flp_put_u32(&p->to, 1 + item->cubin_count);
  flp_put_bytes(&p->to, item->key, strlen(item->key));
  flp_put_bytes(&p->to, desc, length);
  put_image(p, FLP_PACK_PTX, 0, 0, item->ptx, item->ptx_bytes);
  if (item->cubin_count) qsort(item->cubins, item->cubin_count, sizeof *item->cubins, by_device);
  for (uint32_t i = 0; i < item->cubin_count; i++) {
    const cli_pack_cubin *cubin = &item->cubins[i];
    put_image(p, FLP_PACK_CUBIN, cubin->capability, cubin->driver, cubin->code, cubin->bytes);
  }
}

static void put_head(packer *p, size_t manifest, size_t index, size_t signature, uint64_t data) {
  flp_put_bytes(&p->to, FLP_PACK_MAGIC, 4);
  const size_t fields[] = {FLP_PACK_FORMAT, FLP_DESC_FORMAT, manifest, index, p->item_count, p->blob_count, signature};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) flp_put_u32(&p->to, (uint32_t)fields[i]);
  flp_put_u64(&p->to, data);
}

static void put_index(packer *p) {
  for (size_t i = 0; i < p->blob_count; i++) {
    flp_put_bytes(&p->to, p->blobs[i].sha256, FLP_PACK_DIGEST);
    flp_put_u32(&p->to, (uint32_t)p->blobs[i].stored_bytes);
    flp_put_u32(&p->to, (uint32_t)p->blobs[i].unpacked_bytes);
  }
  for (size_t i = 0; i < p->item_count; i++) put_entry(p, p->items[i]);
}

static void put_seal(packer *p, const uint8_t *seed) {
  uint8_t digest[FLP_PACK_DIGEST];
  crypto_hash_sha256(digest, p->out, (size_t)(p->to.at - p->out));
  flp_put_bytes(&p->to, digest, sizeof digest);
  if (!seed) return;
  uint8_t public[crypto_sign_PUBLICKEYBYTES], secret[crypto_sign_SECRETKEYBYTES], message[FLP_PACK_MESSAGE_BYTES],
      signature[crypto_sign_BYTES];
  size_t length = flp_pack_message(digest, message);
  crypto_sign_seed_keypair(public, secret, seed);
  flp_put_bytes(&p->to, public, sizeof public);
  crypto_sign_detached(signature, NULL, message, length, secret);
  flp_put_bytes(&p->to, signature, sizeof signature);
  sodium_memzero(secret, sizeof secret);
}

static flp_status bound(const char *what, uint64_t value, uint64_t most) {
  if (value <= most) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "%s: %llu, accepted in one pack: up to %llu", what, (unsigned long long)value,
                  (unsigned long long)most);
}

static flp_status lay_out(packer *p, const char *manifest, const uint8_t *seed, size_t *length) {
  size_t manifest_bytes = strlen(manifest), index = index_bytes(p), signature = seed ? FLP_PACK_SIGNATURE : 0;
  uint64_t data = data_bytes(p);
  FLP_TRY(bound("kernels", p->item_count, FLP_PACK_ENTRIES_MAX));
  FLP_TRY(bound("blobs", p->blob_count, FLP_PACK_BLOBS_MAX));
  FLP_TRY(bound("bytes of the manifest", manifest_bytes, FLP_PACK_MANIFEST_BYTES_MAX));
  FLP_TRY(bound("bytes of the index", index, FLP_PACK_INDEX_BYTES_MAX));
  FLP_TRY(bound("bytes of data", data, FLP_PACK_DATA_BYTES_MAX));
  *length = FLP_PACK_HEAD_BYTES + manifest_bytes + index + FLP_PACK_DIGEST + signature + (size_t)data;
  p->out = malloc(*length);
  if (!p->out) return flp_fail(FLP_ERROR_MEMORY, "out of memory for a pack of %zu bytes", *length);
  p->to = (flp_writer){.at = p->out, .end = p->out + *length};
  put_head(p, manifest_bytes, index, signature, data);
  flp_put_bytes(&p->to, manifest, manifest_bytes);
  put_index(p);
  put_seal(p, seed);
  for (size_t i = 0; i < p->blob_count; i++) flp_put_bytes(&p->to, p->blobs[i].stored, p->blobs[i].stored_bytes);
  return FLP_OK;
}

/* ---- the whole ---- */

static int by_key(const void *left, const void *right) {
  const cli_pack_item *const *a = left, *const *b = right;
  return strcmp((*a)->key, (*b)->key);
}

static flp_status start(packer *p, const cli_pack_items *items) {
  if (sodium_init() < 0) return flp_fail(FLP_ERROR_INTERNAL, "libsodium could not be initialised");
  if (!items->count) return flp_fail(FLP_ERROR_ARGUMENT, "there is no kernel to pack");
  p->items = calloc(items->count, sizeof *p->items);
  if (!p->items) return flp_fail(FLP_ERROR_MEMORY, "out of memory for %zu kernels", items->count);
  for (size_t i = 0; i < items->count; i++) p->items[i] = &items->items[i];
  p->item_count = items->count;
  qsort(p->items, p->item_count, sizeof *p->items, by_key);
  return FLP_OK;
}

flp_status cli_pack_encode(const cli_pack_items *items, const char *manifest, const uint8_t *seed, uint8_t **bytes,
                           size_t *length) {
  packer p = {.items = NULL};
  *bytes = NULL;
  flp_status status = start(&p, items);
  if (status == FLP_OK) status = collect(&p);
  if (status == FLP_OK) status = lay_out(&p, manifest, seed, length);
  for (size_t i = 0; i < p.blob_count; i++) free(p.blobs[i].stored);
  free(p.blobs);
  free(p.items);
  if (status == FLP_OK) *bytes = p.out;
  return status;
}
