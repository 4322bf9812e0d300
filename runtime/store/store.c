/* store.c: the kernel cache's front: where to look, in which order, and who compiles on a miss.
 *
 * Invariants: a lookup never fails because of what lies in a directory, it only finds nothing; an image that is handed
 * out was checked against its checksum and its key, or was made by this process. */
#include "runtime/store/store.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/status.h"
#include "runtime/store/internal.h"

/* ---- opening ---- */

/* A copy of path[0..length), made absolute so that a later chdir changes nothing, without trailing slashes (open would
 * follow a link before them). *out is NULL, after a warning, where a relative path has no directory to start from.
 * error: MEMORY */
static flp_status absolute(const char *path, size_t length, char **out) {
  *out = NULL;
  while (length > 1 && path[length - 1] == '/') length--;
  char *cwd = path[0] == '/' ? NULL : getcwd(NULL, 0);
  if (path[0] != '/' && !cwd) {
    store_warn(path, "kernel cache %.*s ignored: it has no absolute path: %s", (int)length, path, strerror(errno));
    return FLP_OK;
  }
  if (asprintf(out, "%s%s%.*s", cwd ? cwd : "", cwd ? "/" : "", (int)length, path) < 0) *out = NULL;
  free(cwd);
  return *out ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "no memory for a cache directory's name");
}

static flp_status set_read_only(flp_store *store, const char *list) {
  size_t most = 1;
  for (const char *c = list; *c; c++) most += *c == ':';
  store->read_only = calloc(most, sizeof *store->read_only);
  if (!store->read_only) return flp_fail(FLP_ERROR_MEMORY, "no memory for %zu cache directories", most);
  for (const char *at = list; *at;) {
    size_t length = strcspn(at, ":");
    if (length) {
      char *path;
      FLP_TRY(absolute(at, length, &path));
      if (path) store->read_only[store->read_only_count++] = path;
    }
    at += length + (at[length] == ':');
  }
  return FLP_OK;
}

flp_status flp_store_open(const char *writable, const char *read_only, flp_store **out) {
  *out = NULL;
  if (sodium_init() < 0) return flp_fail(FLP_ERROR_INTERNAL, "libsodium could not be initialised");
  flp_store *store = calloc(1, sizeof *store);
  if (!store) return flp_fail(FLP_ERROR_MEMORY, "no memory for a kernel cache");
  flp_status status = set_read_only(store, read_only ? read_only : "");
  if (status == FLP_OK && writable && *writable) status = absolute(writable, strlen(writable), &store->writable);
  if (status != FLP_OK) {
    flp_store_close(store);
    return status;
  }
  *out = store;
  return FLP_OK;
}

void flp_store_close(flp_store *store) {
  if (!store) return;
  for (size_t i = 0; i < store->read_only_count; i++) free(store->read_only[i]);
  free(store->read_only);
  free(store->writable);
  free(store);
}

void flp_store_set_device(flp_store *store, int capability, int driver) {
  store->capability = capability > 0 ? (uint32_t)capability : 0;
  store->driver = driver > 0 ? (uint32_t)driver : 0;
}

void flp_store_prefer_writable(flp_store *store) {
  store->prefers_writable = 1;
}

/* ---- looking up ---- */

typedef struct query {
  const char *key;
  size_t key_bytes;
  char hex[STORE_HEX + 1];
} query;

static query query_of(const char *key, size_t key_bytes) {
  query q = {key, key_bytes, {0}};
  store_entry_name(key, key_bytes, q.hex);
  return q;
}

/* Reads and checks the entry of one directory. *stat identifies the file. */
static flp_status read_entry(int directory, const query *q, flp_kernel_image *out, struct stat *stat, int *absent) {
  char name[STORE_HEX + 16], key[FLP_KEY_BYTES_MAX + 1];
  snprintf(name, sizeof name, "%s.flpk", q->hex);
  uint8_t *bytes;
  size_t length;
  FLP_TRY(store_file_read(directory, name, &bytes, &length, stat, absent));
  if (*absent) return FLP_OK;
  flp_status status = store_entry_decode(bytes, length, key, out);
  free(bytes);
  FLP_TRY(status);
  if (strlen(key) == q->key_bytes && memcmp(key, q->key, q->key_bytes) == 0) return FLP_OK;
  flp_kernel_image_clear(out);
  return flp_fail(FLP_ERROR_CORRUPT, "%s: holds another key: %s", name, key);
}

/* Moves a corrupt file out of the way under the key's lock, so that it cannot be the maker's fresh one. */
static void set_aside(int directory, const query *q, const struct stat *stat, int locked) {
  int lock = -1;
  char name[STORE_HEX + 16];
  snprintf(name, sizeof name, "%s.flpk", q->hex);
  if (!locked) store_lock_take(directory, q->hex, 0, &lock);
  if (locked || lock >= 0) store_file_quarantine(directory, name, stat);
  store_lock_release(lock);
}

/* locked: the caller holds the key's lock in the writable directory. */
static flp_status find_in(const char *path, int writable, int locked, const query *q, flp_kernel_image *out,
                          int *found) {
  int directory, absent;
  if (store_file_open_directory(path, writable, 0, &directory, &absent) != FLP_OK) {
    if (!absent) store_warn(path, "kernel cache ignored: %s", flp_error_detail());
    return FLP_OK;
  }
  struct stat stat;
  flp_status status = read_entry(directory, q, out, &stat, &absent);
  *found = status == FLP_OK && !absent;
  if (status != FLP_OK && status != FLP_ERROR_MEMORY) {
    store_warn(q->hex, "kernel cache %s: entry %.16s… ignored: %s", path, q->hex, flp_error_detail());
    if (status == FLP_ERROR_CORRUPT && writable) set_aside(directory, q, &stat, locked);
    status = FLP_OK;
  }
  close(directory);
  return status;
}

static flp_status find_read_only(flp_store *store, const char *path, const query *q, flp_kernel_image *out,
                                 int *found) {
  if (store_pack_is(path)) return store_pack_get(store, path, q->key, q->key_bytes, out, found);
  return find_in(path, 0, 0, q, out, found);
}

static flp_status find(flp_store *store, const query *q, int locked, flp_kernel_image *out, int *found) {
  memset(out, 0, sizeof *out);
  FLP_TRY(store_memory_get(q->hex, out, found));
  int own_first = store->writable && store->prefers_writable;
  if (own_first && !*found) FLP_TRY(find_in(store->writable, 1, locked, q, out, found));
  for (size_t i = 0; i < store->read_only_count && !*found; i++)
    FLP_TRY(find_read_only(store, store->read_only[i], q, out, found));
  if (store->writable && !own_first && !*found) FLP_TRY(find_in(store->writable, 1, locked, q, out, found));
  flp_detail_clear(); /* problems met here are in the log and no failure */
  return FLP_OK;
}

flp_status flp_store_get(flp_store *store, const char *key, size_t key_bytes, flp_kernel_image *out, int *found) {
  query q = query_of(key, key_bytes);
  return find(store, &q, 0, out, found);
}

/* ---- storing ---- */

static flp_status write_entry(flp_store *store, const query *q, const uint8_t *bytes, size_t length) {
  if (!store->writable) return flp_fail(FLP_ERROR_IO, "no writable kernel cache is set");
  int directory;
  FLP_TRY(store_file_open_directory(store->writable, 1, 1, &directory, NULL));
  char name[STORE_HEX + 16];
  snprintf(name, sizeof name, "%s.flpk", q->hex);
  flp_status status = store_file_write(directory, name, bytes, length);
  close(directory);
  return status == FLP_OK ? FLP_OK : flp_fail(status, "%s/%s", store->writable, flp_error_detail());
}

flp_status flp_store_put(flp_store *store, const char *key, size_t key_bytes, const flp_kernel_image *image) {
  query q = query_of(key, key_bytes);
  uint8_t *bytes;
  size_t length;
  FLP_TRY(store_entry_encode(key, key_bytes, image, &bytes, &length));
  flp_status status = write_entry(store, &q, bytes, length);
  free(bytes);
  flp_failure held = flp_failure_hold(status);
  if (status != FLP_OK) (void)store_memory_put(q.hex, image); /* if even that fails, the kernel is compiled again */
  return flp_failure_restore(&held);
}

/* Makes and stores. A cache that cannot be written causes one warning and no failure. */
static flp_status make_and_put(flp_store *store, const query *q, flp_store_make_fn make, void *context,
                               flp_kernel_image *out, int *made) {
  flp_status status = make(context, out);
  if (status != FLP_OK) {
    flp_kernel_image_clear(out);
    return status;
  }
  *made = 1;
  if (flp_store_put(store, q->key, q->key_bytes, out) != FLP_OK && store->writable)
    store_warn(store->writable, "kernels are kept in memory only: %s", flp_error_detail());
  flp_detail_clear();
  return FLP_OK;
}

flp_status flp_store_get_or_make(flp_store *store, const char *key, size_t key_bytes, uint32_t timeout_ms,
                                 flp_store_make_fn make, void *context, flp_kernel_image *out, int *made) {
  *made = 0;
  query q = query_of(key, key_bytes);
  int found;
  flp_status status = find(store, &q, 0, out, &found);
  if (status != FLP_OK || found) return status;

  int directory = -1, lock = -1;
  if (store->writable && store_file_open_directory(store->writable, 1, 1, &directory, NULL) == FLP_OK) {
    store_lock_take(directory, q.hex, timeout_ms, &lock);
    /* Whether or not the lock was had: another process may have stored the entry meanwhile. */
    status = find(store, &q, lock >= 0, out, &found);
  }
  if (status == FLP_OK && !found) status = make_and_put(store, &q, make, context, out, made);
  store_lock_release(lock);
  if (directory >= 0) close(directory);
  return status;
}
