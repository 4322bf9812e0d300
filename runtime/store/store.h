/* store.h: the kernel cache, version 1: content-addressed files, one kernel each.
 *
 * A cache directory holds <64 hex digits of SHA-256(key bytes)>.flpk (entry), .flpc (machine code made here of an
 * entry's PTX, whose key names PTX, device and driver), .flps (a stamp: proof.h), .lock (per-key lock, flock) and
 * .bad-<n> (quarantined). An entry file: magic "FLPK", format, lengths, key bytes, descriptor, PTX, SHA-256 of all
 * before it. Written to a temporary file in the same directory, fsync, rename. Directory mode 0700, owned by the
 * user, links not followed. A pack (pack.h), one file, may stand for a read-only directory. Any failure to write
 * degrades to memory, with one warning; a corrupt entry is renamed away (in a writable directory) and treated as
 * missing. */
#ifndef FLP_STORE_H
#define FLP_STORE_H

#include "runtime/kernel/image.h"

typedef struct flp_store flp_store;

/* Opens the cache described by directories; never fails for an absent or unusable directory.
 * writable: NULL or "" for none; read_only: colon-separated list of directories and packs or NULL, searched first, in
 * order */
flp_status flp_store_open(const char *writable, const char *read_only, flp_store **out);
void flp_store_close(flp_store *store);

/* Sets the device that images are wanted for, so that packs give its cubins too. capability: as 90; driver: as 13000 */
void flp_store_set_device(flp_store *store, int capability, int driver);

/* Lets what the writable directory holds come before the read-only ones. For packs that nobody named. */
void flp_store_prefer_writable(flp_store *store);

/* Looks a key up. Returns OK with *found 0 or 1; corrupt entries are quarantined and count as not found. */
flp_status flp_store_get(flp_store *store, const char *key, size_t key_bytes, flp_kernel_image *out, int *found);

/* Stores an entry in the writable directory. error: IO with the reason (the caller warns and goes on). */
flp_status flp_store_put(flp_store *store, const char *key, size_t key_bytes, const flp_kernel_image *image);

/* Looks up, else takes the key's lock, looks again, else makes and stores: 64 processes compile each key once.
 * make: fills *out or returns an error, which is passed on. If the lock is not free within timeout_ms, it makes without
 * one. */
typedef flp_status (*flp_store_make_fn)(void *context, flp_kernel_image *out);
flp_status flp_store_get_or_make(flp_store *store, const char *key, size_t key_bytes, uint32_t timeout_ms,
                                 flp_store_make_fn make, void *context, flp_kernel_image *out, int *made);

/* Sets image->cubin to what flp_store_keep_cubin left in the writable directory for this PTX and the device of
 * flp_store_set_device, if that is there and sound; what is not is reported once and left to be written over. */
void flp_store_get_cubin(const flp_store *store, flp_kernel_image *image);

/* Writes image->cubin there, made of image->ptx for that device. A failure is logged once. */
void flp_store_keep_cubin(const flp_store *store, const flp_kernel_image *image);

/* 1 if there is a writable directory, or one can be made, for a device that was set. */
int flp_store_keeps_cubins(const flp_store *store);

/* One entry as `flpgen cache ls|verify` shows it. */
typedef struct flp_store_item {
  const char *directory, *file; /* borrowed for the call; of a pack: its path, and an entry's name in a directory */
  int writable;
  uint64_t bytes;
  int64_t modified; /* seconds since the epoch */
  const char *key;  /* key bytes as text, "" if unreadable */
  const char *other_sources; /* flp_store_other_sources of the key */
  flp_status status; /* OK, or CORRUPT / IO with reason */
  const char *reason;
} flp_store_item;

/* Visits every entry, kept machine code and stamp of every directory in a fixed order (directory order, then file
 * name). visit returns 0 to stop. */
typedef int (*flp_store_visit_fn)(void *context, const flp_store_item *item);
flp_status flp_store_each(flp_store *store, flp_store_visit_fn visit, void *context);

/* Visits the key bytes, as text, of every entry of every directory and pack that would be looked into, in the order of
 * the list. Nothing but keys is read and nothing is checked: a key is a hint that flp_store_get may find something
 * there. visit returns 0 to stop, and does not use the store. error: MEMORY */
typedef int (*flp_store_key_fn)(void *context, const char *key);
flp_status flp_store_each_key(flp_store *store, flp_store_key_fn visit, void *context);

/* The sources that the key of a kernel or of its machine code names, in 64 hex digits, if they are not this library's,
 * which then never finds it; else NULL. */
const char *flp_store_other_sources(const char *key);

/* Says who made such kernels, behind "were" or a comma. version: of flp, or NULL if it is not known. Returns out. */
enum { FLP_STORE_MADE_BYTES = 192 };
const char *flp_store_made_by(const char *version, const char *sources, char out[FLP_STORE_MADE_BYTES]);

/* Deletes, in the writable directory, quarantined files, temporary files and locks older than an hour, entries of
 * other source hashes, and then the oldest entries until at most keep_bytes are left (UINT64_MAX: keep all).
 * Reports the number and bytes of removed files. error: IO naming the first file that stays against that */
flp_status flp_store_collect(flp_store *store, uint64_t keep_bytes, uint64_t *removed_files, uint64_t *removed_bytes);

#endif
