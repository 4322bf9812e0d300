/* pack.h: packs, version 1: many kernels in one file that is read in place, and the one place that states its format.
 *
 * Layout, little-endian, no padding:
 *   head      "FLPP", u32 pack format, u32 descriptor format, u32 manifest bytes, u32 index bytes, u32 entries,
 *             u32 blobs, u32 signature bytes (0 or 96), u64 data bytes
 *   manifest  JSON, for people and for the command; nothing in this library reads it
 *   index     blobs:   {32 SHA-256 of the stored bytes; u32 stored bytes, u32 unpacked bytes}, ascending by hash
 *             entries: {u32 key bytes, u32 descriptor bytes, u32 images; key; descriptor; images}, ascending by key
 *             images:  {u32 code, u32 capability, u32 driver, u32 blob}, ascending; PTX, exactly one, comes first
 *   digest    SHA-256 of all before it
 *   signature Ed25519: 32 public key, 64 signature of FLP_PACK_SIGNED and the digest; absent if signature bytes is 0
 *   data      the stored bytes of every blob, in order: one zstd frame each
 * Invariants: the sizes add up to the file's own, every order is strict and every blob is used, so that the same
 * kernels have one form and no byte escapes a hash; a size is bounded before memory of that size is asked for; what
 * is read from a file is compared with its hash before anything interprets it. */
#ifndef FLP_PACK_H
#define FLP_PACK_H

#include "runtime/kernel/image.h"

enum {
  FLP_PACK_FORMAT = 1,
  FLP_PACK_DIGEST = 32,
  FLP_PACK_KEY = 32,       /* public, Ed25519 */
  FLP_PACK_SIGNATURE = 96, /* public key and signature */
  FLP_PACK_HEAD_BYTES = 40,
  FLP_PACK_BLOB_BYTES = 40,
  FLP_PACK_ENTRY_BYTES = 12, /* before its key */
  FLP_PACK_IMAGE_BYTES = 16,
  /* Bounds: some hundred times what the largest set of presets needs. */
  FLP_PACK_MANIFEST_BYTES_MAX = 1 << 20,
  FLP_PACK_INDEX_BYTES_MAX = 32 << 20,
  FLP_PACK_ENTRIES_MAX = 1 << 14,
  FLP_PACK_BLOBS_MAX = 1 << 16,
  FLP_PACK_IMAGES_MAX = 64,             /* of an entry */
  FLP_PACK_CODE_BYTES_MAX = 32 << 20,   /* of one PTX or cubin, packed or not */
  FLP_PACK_DATA_BYTES_MAX = 1 << 30,    /* of all, packed */
  FLP_PACK_UNPACKED_BYTES_MAX = 1 << 30 /* of the PTX of all entries: what an installation writes */
};

#define FLP_PACK_MAGIC "FLPP"
#define FLP_PACK_SIGNED "flp-pack/1 signature of "
typedef enum flp_pack_code {
  FLP_PACK_PTX = 1,  /* capability and driver are 0 */
  FLP_PACK_CUBIN = 2 /* capability as 90; driver: the oldest that loads it, as cuDriverGetVersion counts, 13000 */
} flp_pack_code;

typedef struct flp_pack_blob {
  const uint8_t *sha256; /* of the stored bytes */
  uint32_t stored_bytes, unpacked_bytes;
  uint64_t offset; /* in the file */
} flp_pack_blob;

typedef struct flp_pack_image {
  uint32_t code, capability, driver, blob;
} flp_pack_image;

typedef struct flp_pack_entry {
  const char *key; /* not terminated */
  size_t key_bytes;
  const uint8_t *desc;
  size_t desc_bytes;
  const flp_pack_image *images; /* the first is PTX */
  uint32_t image_count;
} flp_pack_entry;

/* A pack's table, checked and in memory. It holds no descriptor of the file. */
typedef struct flp_pack {
  uint8_t *table; /* the file before its data; all pointers lead into it */
  const char *manifest;
  size_t manifest_bytes;
  flp_pack_blob *blobs;
  flp_pack_entry *entries;
  flp_pack_image *images;
  uint32_t blob_count, entry_count;
  int is_signed; /* and the signature is right; flp_pack_trusts checks whose it is */
  uint8_t digest[FLP_PACK_DIGEST], signer[FLP_PACK_KEY];
  uint64_t file_bytes;
} flp_pack;

/* ---- pack.c: the table ---- */

/* Reads and checks everything of a pack but its data. name: for messages. error: CORRUPT with the reason; IO; MEMORY */
flp_status flp_pack_open(int fd, const char *name, flp_pack **out);
void flp_pack_close(flp_pack *pack);

/* The entry of a key, or NULL. */
const flp_pack_entry *flp_pack_find(const flp_pack *pack, const char *key, size_t key_bytes);

/* ---- read.c: the data ---- */

/* Reads, verifies and unpacks a blob. *out is malloc'ed and followed by a 0. error: CORRUPT, IO, MEMORY */
flp_status flp_pack_unpack(const flp_pack *pack, int fd, uint32_t blob, uint8_t **out, size_t *bytes);

/* The same for a cubin, which must be sound enough to be handed to a driver. */
flp_status flp_pack_unpack_cubin(const flp_pack *pack, int fd, uint32_t blob, uint8_t **out, size_t *bytes);

/* Checks that a cubin is an ELF file for CUDA whose parts lie within it. cubin.c. error: CORRUPT */
flp_status flp_pack_check_cubin(const uint8_t *code, size_t bytes);

/* The cubin of an entry that a device runs: of its very capability, and of the newest driver not newer than its own.
 * NULL if there is none. capability: as 90; 0 for no device */
const flp_pack_image *flp_pack_cubin(const flp_pack_entry *entry, uint32_t capability, uint32_t driver);

/* Reads an entry's descriptor, which must be that of its key, and its PTX. error: CORRUPT, IO, MEMORY */
flp_status flp_pack_load(const flp_pack *pack, int fd, const flp_pack_entry *entry, flp_kernel_image *out);

/* ---- check.c: all of a pack, before it is trusted with a cache ---- */

/* Called before each entry and once at the end (done = all); may be NULL. */
typedef void (*flp_pack_step_fn)(void *context, uint32_t done, uint32_t all);

/* Reads every byte: hashes, descriptors and their keys, entry symbols in PTX and cubins, and portable kernels beside
 * those of one capability. error: CORRUPT naming the entry; IO, MEMORY */
flp_status flp_pack_check(const flp_pack *pack, int fd, flp_pack_step_fn step, void *context);

/* ---- trust.c ---- */

/* Whether a pack may be used where only these keys are trusted: public keys of 64 hex digits divided by ','; "" trusts
 * every pack. error: ARGUMENT if the keys cannot be read; DATA if it is not signed, or by none of them */
flp_status flp_pack_trusts(const flp_pack *pack, const char *keys);

/* What an Ed25519 signature of a pack signs. Returns its length. */
enum { FLP_PACK_MESSAGE_BYTES = sizeof FLP_PACK_SIGNED - 1 + FLP_PACK_DIGEST };
size_t flp_pack_message(const uint8_t digest[FLP_PACK_DIGEST], uint8_t out[FLP_PACK_MESSAGE_BYTES]);

#endif
