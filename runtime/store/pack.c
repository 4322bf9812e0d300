/* pack.c: packs where a cache path may name directories: each table is read and checked once a process.
 *
 * Invariants: a table is used for the very file that it was read from (device, inode, size, times), so a pack that was
 * replaced is read anew; a bad file is reported once and never read again. Tables never leave the lock, descriptors
 * never outlive a look-up, and nothing is locked in the file system: any number of processes may read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include "runtime/pack/pack.h"
#include "runtime/store/internal.h"

typedef struct known {
  struct known *next;
  char *path;
  struct stat stat; /* of the file that was read */
  flp_pack *pack;   /* NULL if it is bad */
} known;

static known *first;
static unsigned first_process; /* that made the list */

int store_pack_is(const char *path) {
  struct stat st;
  return lstat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static int is_same_file(const struct stat *a, const struct stat *b) {
  return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
         a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
         a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* The caller takes this lock for all access to tables. After a fork the list may be half
 * changed by another thread of the parent, so the child starts a new one. */
static void lock_tables(void) {
  flp_lock(FLP_LOCK_PACKS);
  if (first_process != flp_process()) first = NULL;
  first_process = flp_process();
}

/* The record of a path, made if need be. The caller holds the lock. NULL if memory ran out. */
static known *record_of(const char *path) {
  known *k = first;
  while (k && strcmp(k->path, path) != 0) k = k->next;
  if (k) return k;
  k = calloc(1, sizeof *k);
  if (!k || !(k->path = strdup(path))) {
    free(k);
    return NULL;
  }
  k->next = first;
  return first = k;
}

static void ignore(const char *path) {
  store_warn(path, "pack %s is ignored: %s", path, flp_error_detail());
}

static int visit_keys(const flp_pack *pack, flp_store_key_fn visit, void *context) {
  char key[FLP_KEY_BYTES_MAX + 1];
  for (uint32_t i = 0; i < pack->entry_count; i++) {
    memcpy(key, pack->entries[i].key, pack->entries[i].key_bytes);
    key[pack->entries[i].key_bytes] = 0;
    if (!visit(context, key)) return 0;
  }
  return 1;
}

/* Warns of a pack of which no plan takes a kernel. Its first key says it for all. */
static int warn_of_sources(void *path, const char *key) {
  char made[FLP_STORE_MADE_BYTES];
  const char *sources = flp_store_other_sources(key);
  if (!sources) return 0;
  flp_store_made_by(NULL, sources, made);
  store_warn(path, "pack %s is of no use: it was %s", (char *)path, made);
  return 0;
}

/* The table of an open file. *out is NULL, with OK, if the pack is of no use. The caller holds the lock. */
static flp_status table_of(const char *path, int fd, const struct stat *stat, const flp_pack **out) {
  *out = NULL;
  known *k = record_of(path);
  if (!k) return flp_fail(FLP_ERROR_MEMORY, "no memory for the name of %s", path);
  if (!is_same_file(&k->stat, stat)) {
    flp_pack_close(k->pack);
    k->pack = NULL;
    memset(&k->stat, 0, sizeof k->stat);
    flp_status status = flp_pack_open(fd, path, &k->pack);
    if (status == FLP_ERROR_MEMORY) return status;
    if (status != FLP_OK)
      ignore(path);
    else
      visit_keys(k->pack, warn_of_sources, k->path);
    k->stat = *stat;
  }
  *out = k->pack;
  return FLP_OK;
}

flp_status store_pack_trusts(const flp_pack *pack) {
  flp_setting keys;
  flp_setting_get(FLP_SETTING_PACK_KEYS, &keys);
  const char *given = secure_getenv("FLP_PACK_KEYS");
  /* Keys that do not fit must not count as no keys, which would trust every pack. */
  if (given && given[0] && !keys.value[0])
    return flp_fail(FLP_ERROR_ARGUMENT, "FLP_PACK_KEYS has %zu bytes, accepted: up to %zu", strlen(given),
                    sizeof keys.value - 1);
  return flp_pack_trusts(pack, keys.value);
}

static int is_trusted(const char *path, const flp_pack *pack) {
  if (store_pack_trusts(pack) == FLP_OK) return 1;
  ignore(path);
  return 0;
}

/* A cubin only saves time, so an entry is usable without it. */
static void add_cubin(const flp_store *store, const char *path, const flp_pack *pack, int fd,
                      const flp_pack_entry *entry, flp_kernel_image *image) {
  const flp_pack_image *cubin = store->capability ? flp_pack_cubin(entry, store->capability, store->driver) : NULL;
  uint8_t *code;
  size_t bytes;
  if (!cubin) return;
  if (flp_pack_unpack_cubin(pack, fd, cubin->blob, &code, &bytes) != FLP_OK) {
    store_warn(path, "pack %s: a cubin is ignored: %s", path, flp_error_detail());
    return;
  }
  image->cubin = code;
  image->cubin_bytes = bytes;
}

static flp_status get_entry(const flp_store *store, const char *path, int fd, const flp_pack *pack, const char *key,
                            size_t key_bytes, flp_kernel_image *out, int *found) {
  const flp_pack_entry *entry = flp_pack_find(pack, key, key_bytes);
  if (!entry || !is_trusted(path, pack)) return FLP_OK;
  flp_status status = flp_pack_load(pack, fd, entry, out);
  if (status == FLP_ERROR_MEMORY) return status;
  if (status != FLP_OK) {
    store_warn(path, "pack %s: an entry is ignored: %s", path, flp_error_detail());
    return FLP_OK;
  }
  add_cubin(store, path, pack, fd, entry, out);
  *found = 1;
  return FLP_OK;
}

flp_status store_pack_get(const flp_store *store, const char *path, const char *key, size_t key_bytes,
                          flp_kernel_image *out, int *found) {
  int fd;
  struct stat stat;
  const flp_pack *pack;
  *found = 0;
  if (store_file_open_pack(path, &fd, &stat) != FLP_OK) {
    ignore(path);
    return FLP_OK;
  }
  lock_tables();
  flp_status status = table_of(path, fd, &stat, &pack);
  if (status == FLP_OK && pack) status = get_entry(store, path, fd, pack, key, key_bytes, out, found);
  flp_unlock(FLP_LOCK_PACKS);
  close(fd);
  return status;
}

flp_status store_pack_each_key(const char *path, flp_store_key_fn visit, void *context, int *stop) {
  int fd;
  struct stat stat;
  const flp_pack *pack;
  if (store_file_open_pack(path, &fd, &stat) != FLP_OK) {
    ignore(path);
    return FLP_OK;
  }
  lock_tables();
  flp_status status = table_of(path, fd, &stat, &pack);
  if (status == FLP_OK && pack && is_trusted(path, pack)) *stop = !visit_keys(pack, visit, context);
  flp_unlock(FLP_LOCK_PACKS);
  close(fd);
  return status;
}

/* ---- listing ---- */

/* Reads an entry whole for show. *bytes: what its images take in the pack. */
static flp_status examine(const flp_pack *pack, int fd, const flp_pack_entry *entry, uint64_t *bytes) {
  *bytes = 0;
  for (uint32_t i = 0; i < entry->image_count; i++) *bytes += pack->blobs[entry->images[i].blob].stored_bytes;
  flp_kernel_image image;
  FLP_TRY(flp_pack_load(pack, fd, entry, &image));
  flp_kernel_image_clear(&image);
  for (uint32_t i = 1; i < entry->image_count; i++) {
    uint8_t *code;
    size_t length;
    FLP_TRY(flp_pack_unpack_cubin(pack, fd, entry->images[i].blob, &code, &length));
    free(code);
  }
  return FLP_OK;
}

static int visit_entry(const char *path, const flp_pack *pack, int fd, const struct stat *stat,
                       const flp_pack_entry *entry, flp_store_visit_fn visit, void *context) {
  char key[FLP_KEY_BYTES_MAX + 1], file[STORE_HEX + 16], hex[STORE_HEX + 1];
  memcpy(key, entry->key, entry->key_bytes);
  key[entry->key_bytes] = 0;
  store_entry_name(key, entry->key_bytes, hex);
  snprintf(file, sizeof file, "%s.flpk", hex);
  uint64_t bytes;
  flp_status status = examine(pack, fd, entry, &bytes);
  flp_store_item item = {.directory = path, .file = file, .bytes = bytes, .modified = stat->st_mtim.tv_sec, .key = key};
  return store_show(&item, status, visit, context);
}

/* A pack that does not open is listed as one bad item, and `cache verify` fails. */
static int visit_bad(const char *path, const struct stat *stat, flp_status status, flp_store_visit_fn visit,
                     void *context) {
  flp_store_item item = {
      .directory = path, .file = path, .bytes = (uint64_t)stat->st_size, .modified = stat->st_mtim.tv_sec, .key = ""};
  return store_show(&item, status, visit, context);
}

flp_status store_pack_each(const char *path, flp_store_visit_fn visit, void *context, int *stop) {
  int fd;
  struct stat stat;
  if (store_file_open_pack(path, &fd, &stat) != FLP_OK) {
    ignore(path);
    return FLP_OK;
  }
  flp_pack *pack;
  flp_status status = flp_pack_open(fd, path, &pack); /* its own, since visit may take its time */
  if (status != FLP_OK)
    *stop = !visit_bad(path, &stat, status, visit, context);
  else
    for (uint32_t i = 0; i < pack->entry_count && !*stop; i++)
      *stop = !visit_entry(path, pack, fd, &stat, &pack->entries[i], visit, context);
  flp_pack_close(pack);
  close(fd);
  return FLP_OK;
}
