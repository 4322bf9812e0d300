/* collect.c: removes unused files from the writable directory, then the oldest entries.
 *
 * Invariants: files that a running writer may need stay: temporary files and locks are removed only if their time is
 * over an hour from now, before or after (a clock may have been set back), and a lock only while holding it; removing
 * an entry is always safe, since readers hold it open or compile it anew. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/status.h"
#include "runtime/store/internal.h"

enum { STALE_SECONDS = 3600 };

typedef struct sweep {
  int directory;
  uint64_t files, bytes; /* removed */
  char failure[256];     /* the first file that stays though it was to go, and why */
} sweep;

typedef struct survivor {
  const char *name;
  uint64_t bytes;
  struct timespec modified;
} survivor;

/* Another process may have been faster, which is no failure. */
static void note_failure(sweep *s, const char *action, const char *name) {
  if (errno == ENOENT || s->failure[0]) return;
  snprintf(s->failure, sizeof s->failure, "%s: cannot %s: %s", name, action, strerror(errno));
}

static void remove_file(sweep *s, const char *name, const struct stat *stat) {
  if (unlinkat(s->directory, name, 0) != 0) {
    note_failure(s, "remove", name);
    return;
  }
  s->files++;
  s->bytes += (uint64_t)stat->st_size;
}

/* Only the holder removes a lock: a waiting process then sees that the name is gone and starts again. */
static void remove_lock(sweep *s, const char *name, const struct stat *stat) {
  char hex[STORE_HEX + 1] = {0};
  memcpy(hex, name, STORE_HEX);
  int lock;
  store_lock_take(s->directory, hex, 0, &lock);
  if (lock >= 0) remove_file(s, name, stat);
  store_lock_release(lock);
}

static flp_status current_entry(const uint8_t *bytes, size_t length, int *current) {
  flp_kernel_image image;
  FLP_TRY(store_entry_decode(bytes, length, NULL, &image));
  *current = memcmp(image.desc.sources, flp_sources_hash(), sizeof image.desc.sources) == 0;
  flp_kernel_image_clear(&image);
  return FLP_OK;
}

/* Machine code, or a stamp. */
static flp_status current_key(const uint8_t *bytes, size_t length, store_file_kind kind, int *current) {
  char key[FLP_KEY_BYTES_MAX + 1];
  FLP_TRY(kind == STORE_FILE_PROOF ? store_proof_decode(bytes, length, key, NULL)
                                   : store_cubin_decode(bytes, length, key, NULL));
  *current = !flp_store_other_sources(key);
  return FLP_OK;
}

/* Whether a file is sound and of this library's sources. Unreadable for lack of memory or rights counts as sound. */
static int is_current(int directory, const char *name, store_file_kind kind) {
  uint8_t *bytes;
  size_t length;
  int absent, current = 0;
  struct stat stat;
  flp_status status = store_file_read(directory, name, &bytes, &length, &stat, &absent);
  if (status != FLP_OK) return status != FLP_ERROR_CORRUPT;
  if (absent) return 0;
  status = kind == STORE_FILE_ENTRY ? current_entry(bytes, length, &current)
                                    : current_key(bytes, length, kind, &current);
  free(bytes);
  return status == FLP_OK ? current : status != FLP_ERROR_CORRUPT;
}

/* Removes one file if it is rubbish; an entry or cubin that stays is written to *kept. Returns 1 for such a file. */
static int sweep_file(sweep *s, const char *name, time_t now, survivor *kept) {
  struct stat stat;
  if (fstatat(s->directory, name, &stat, AT_SYMLINK_NOFOLLOW) != 0) {
    note_failure(s, "stat", name);
    return 0;
  }
  int stale = llabs((long long)now - (long long)stat.st_mtim.tv_sec) > STALE_SECONDS;
  store_file_kind kind = store_file_classify(name);
  switch (kind) {
    case STORE_FILE_BAD:
      remove_file(s, name, &stat);
      return 0;
    case STORE_FILE_TEMPORARY:
      if (stale) remove_file(s, name, &stat);
      return 0;
    case STORE_FILE_LOCK:
      if (stale) remove_lock(s, name, &stat);
      return 0;
    case STORE_FILE_ENTRY:
    case STORE_FILE_CUBIN:
    case STORE_FILE_PROOF:
      if (!is_current(s->directory, name, kind)) {
        remove_file(s, name, &stat);
        return 0;
      }
      if (kind == STORE_FILE_PROOF) return 0; /* a few bytes that took minutes */
      *kept = (survivor){name, (uint64_t)stat.st_size, stat.st_mtim};
      return 1;
    case STORE_FILE_OTHER:
      break;
  }
  return 0;
}

/* Oldest first; equal times by name, so that the order is fixed. */
static int by_age(const void *left, const void *right) {
  const survivor *a = left, *b = right;
  if (a->modified.tv_sec != b->modified.tv_sec) return a->modified.tv_sec < b->modified.tv_sec ? -1 : 1;
  if (a->modified.tv_nsec != b->modified.tv_nsec) return a->modified.tv_nsec < b->modified.tv_nsec ? -1 : 1;
  return strcmp(a->name, b->name);
}

static flp_status sweep_directory(sweep *s, uint64_t keep_bytes) {
  char **names;
  size_t count, kept = 0;
  FLP_TRY(store_file_list(s->directory, &names, &count));
  flp_status status = FLP_OK;
  survivor *survivors = calloc(count + 1, sizeof *survivors);
  if (!survivors) {
    status = flp_fail(FLP_ERROR_MEMORY, "no memory for %zu cache files", count);
  } else {
    time_t now = time(NULL);
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++)
      if (sweep_file(s, names[i], now, &survivors[kept])) total += survivors[kept++].bytes;
    qsort(survivors, kept, sizeof *survivors, by_age);
    for (size_t i = 0; i < kept && total > keep_bytes; i++) {
      struct stat stat = {.st_size = (off_t)survivors[i].bytes};
      remove_file(s, survivors[i].name, &stat);
      total -= survivors[i].bytes;
    }
  }
  free(survivors);
  store_file_free_names(names, count);
  return status;
}

flp_status flp_store_collect(flp_store *store, uint64_t keep_bytes, uint64_t *removed_files, uint64_t *removed_bytes) {
  *removed_files = *removed_bytes = 0;
  if (!store->writable) return flp_fail(FLP_ERROR_IO, "no writable kernel cache is set");
  sweep s = {.directory = -1};
  int absent;
  flp_status status = store_file_open_directory(store->writable, 1, 0, &s.directory, &absent);
  if (status != FLP_OK) {
    if (!absent) return status;
    flp_detail_clear();
    return FLP_OK; /* nothing there, nothing to throw out */
  }
  status = sweep_directory(&s, keep_bytes);
  close(s.directory);
  *removed_files = s.files;
  *removed_bytes = s.bytes;
  if (status == FLP_OK && s.failure[0]) status = flp_fail(FLP_ERROR_IO, "%s: %s", store->writable, s.failure);
  if (status == FLP_OK) flp_detail_clear();
  return status;
}
