/* internal.h: what the files of this folder share, divided by the file that implements it.
 *
 * Invariants: a directory is opened and checked anew for each operation, so that a store holds no descriptor that a
 * fork, a removed directory or a second thread could spoil; every file name is relative to such a descriptor. */
#ifndef FLP_STORE_INTERNAL_H
#define FLP_STORE_INTERNAL_H

#include <sys/stat.h>

#include "runtime/pack/pack.h"
#include "runtime/store/proof.h"

struct flp_store {
  char *writable;   /* absolute, or NULL */
  char **read_only; /* absolute */
  size_t read_only_count;
  int prefers_writable;
  uint32_t capability, driver; /* of the device whose cubins are wanted; 0 for none */
};

enum { STORE_HEX = 64, STORE_DIGEST = 32, STORE_ENTRY_BYTES_MAX = 64 << 20, STORE_HEAD_BYTES = 24 };

/* ---- container.c: what files of entries and of machine code have in common ---- */

enum { STORE_PARTS_MAX = 2 };

/* Bytes of a file; borrowed. */
typedef struct store_piece {
  const void *at;
  size_t bytes;
} store_piece;

/* A kind of file. */
typedef struct store_container {
  const char *name;  /* for messages */
  const char *magic; /* four letters */
  uint32_t format;
  int part_count; /* beside the key */
  struct {
    const char *name;
    size_t most; /* bytes */
  } parts[STORE_PARTS_MAX];
} store_container;

/* 1 if bytes can be a key: text without control characters, not empty and not too long. */
int store_is_key(const char *key, size_t key_bytes);

/* Builds a file of a key and parts, which the caller has checked. *bytes is malloc'ed. error: MEMORY */
flp_status store_container_encode(const store_container *kind, store_piece key, const store_piece *parts,
                                  uint8_t **bytes, size_t *length);

/* Reads a file. key_out: the key's bytes and a 0, or NULL; parts: where they lie in the file. error: CORRUPT */
flp_status store_container_decode(const store_container *kind, const uint8_t *bytes, size_t length,
                                  char key_out[FLP_KEY_BYTES_MAX + 1], store_piece *parts);

/* Reads the key of a file's first bytes (STORE_HEAD_BYTES and the key are enough); 0 if there is none. */
int store_container_peek(const store_container *kind, const uint8_t *bytes, size_t length,
                         char key_out[FLP_KEY_BYTES_MAX + 1]);

/* ---- entry.c: the bytes of an entry file ---- */

/* Writes SHA-256(key) as 64 hex digits and a 0. */
void store_entry_name(const char *key, size_t key_bytes, char hex[STORE_HEX + 1]);

/* Builds the file of an entry. *bytes is malloc'ed.
 * error: ARGUMENT if reading it back would be refused; MEMORY */
flp_status store_entry_encode(const char *key, size_t key_bytes, const flp_kernel_image *image, uint8_t **bytes,
                              size_t *length);

/* Reads an entry file. key_out: the key's bytes and a 0, or NULL. image: NULL only checks. error: CORRUPT; MEMORY */
flp_status store_entry_decode(const uint8_t *bytes, size_t length, char key_out[FLP_KEY_BYTES_MAX + 1],
                              flp_kernel_image *image);

/* As store_container_peek. */
int store_entry_peek(const uint8_t *bytes, size_t length, char key_out[FLP_KEY_BYTES_MAX + 1]);

/* Visits an item that was looked at with this outcome, whose reason it gets. Returns what visit does. */
int store_show(flp_store_item *item, flp_status status, flp_store_visit_fn visit, void *context);

/* ---- cubin.c: machine code kept beside the entries ---- */

/* Builds the file of an image's cubin. *bytes is malloc'ed. error: MEMORY */
flp_status store_cubin_encode(const char *key, const flp_kernel_image *image, uint8_t **bytes, size_t *length);

/* Reads a file of machine code. key_out: the key's bytes and a 0. image: gets the cubin; NULL only checks.
 * error: CORRUPT; MEMORY */
flp_status store_cubin_decode(const uint8_t *bytes, size_t length, char key_out[FLP_KEY_BYTES_MAX + 1],
                              flp_kernel_image *image);

/* ---- proof.c: stamps of proofs ---- */

/* Reads a stamp. key_out: as store_cubin_decode; out: NULL only checks. error: CORRUPT */
flp_status store_proof_decode(const uint8_t *bytes, size_t length, char key_out[FLP_KEY_BYTES_MAX + 1],
                              flp_proof *out);

/* ---- file.c: directories and whole files ---- */

/* Opens a cache directory and checks that it is one that only this user (or, read-only, root) writes.
 * create: make it and its parents, mode 0700. *fd is -1 on failure.
 * error: IO with the reason; *absent (may be NULL) is 1 if there is simply no such directory */
flp_status store_file_open_directory(const char *path, int writable, int create, int *fd, int *absent);

/* Opens a pack with the same checks. stat identifies the file. error: IO with the reason */
flp_status store_file_open_pack(const char *path, int *fd, struct stat *stat);

/* Reads a regular file of at most STORE_ENTRY_BYTES_MAX. *bytes is malloc'ed; stat identifies the file.
 * *absent is 1, with OK, if there is none. error: CORRUPT if it is a link, no file or too large; IO; MEMORY */
flp_status store_file_read(int directory, const char *name, uint8_t **bytes, size_t *length, struct stat *stat,
                           int *absent);

/* Puts a file in place in one step: temporary file, fsync, rename, fsync of the directory. error: IO */
flp_status store_file_write(int directory, const char *name, const uint8_t *bytes, size_t length);

/* Renames <hex>.<suffix> to the first free <hex>.bad-<n>, if it still is the file that stat describes. */
void store_file_quarantine(int directory, const char *name, const struct stat *stat);

/* What a name in a cache directory is. */
typedef enum store_file_kind {
  STORE_FILE_OTHER,
  STORE_FILE_ENTRY,
  STORE_FILE_CUBIN,
  STORE_FILE_PROOF,
  STORE_FILE_LOCK,
  STORE_FILE_BAD,
  STORE_FILE_TEMPORARY
} store_file_kind;
store_file_kind store_file_classify(const char *name);

/* Lists the names of a directory, sorted by bytes. Free with store_file_free_names. error: IO, MEMORY */
flp_status store_file_list(int directory, char ***names, size_t *count);
void store_file_free_names(char **names, size_t count);

/* ---- lock.c: one lock a key ---- */

/* Takes <hex>.lock. *lock is -1 if it could not be had in time or not at all. timeout 0 tries once. */
void store_lock_take(int directory, const char *hex, uint32_t timeout_ms, int *lock);
void store_lock_release(int lock);

/* ---- memory.c: entries that could not be written, for the life of this process ---- */

flp_status store_memory_put(const char hex[STORE_HEX + 1], const flp_kernel_image *image);
flp_status store_memory_get(const char hex[STORE_HEX + 1], flp_kernel_image *out, int *found);

/* ---- pack.c: packs where directories may stand ---- */

/* 1 if the path is a regular file, which can only be a pack. Links are not followed. */
int store_pack_is(const char *path);

/* Whether FLP_PACK_KEYS lets plans use a pack. error: DATA, ARGUMENT if the setting itself is not accepted */
flp_status store_pack_trusts(const flp_pack *pack);

/* Looks a key up in a pack. A pack that cannot be used, or is not trusted, holds nothing, with one warning. */
flp_status store_pack_get(const flp_store *store, const char *path, const char *key, size_t key_bytes,
                          flp_kernel_image *out, int *found);

/* Visits the keys of a pack as flp_store_each_key does, unless it cannot be used or is not trusted. */
flp_status store_pack_each_key(const char *path, flp_store_key_fn visit, void *context, int *stop);

/* Visits the entries of a pack as flp_store_each does. *stop is set when visit asks for it. */
flp_status store_pack_each(const char *path, flp_store_visit_fn visit, void *context, int *stop);

/* ---- warn.c ---- */

/* Logs a warning unless this process has already warned about the topic: a directory's path, or an entry's name. */
void store_warn(const char *topic, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
