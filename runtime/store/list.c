/* list.c: visits all that every directory and pack of a cache holds, in a fixed order, and judges each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/status.h"
#include "runtime/store/internal.h"

static int is_shown(store_file_kind kind) {
  return kind == STORE_FILE_ENTRY || kind == STORE_FILE_CUBIN || kind == STORE_FILE_PROOF;
}

/* Reads one file for show. key holds its text, or "". */
static flp_status examine(int directory, const char *file, struct stat *stat, char key[FLP_KEY_BYTES_MAX + 1]) {
  key[0] = 0;
  uint8_t *bytes;
  size_t length;
  int absent;
  FLP_TRY(store_file_read(directory, file, &bytes, &length, stat, &absent));
  if (absent) return flp_fail(FLP_ERROR_IO, "%s: vanished while it was looked at", file);
  store_file_kind kind = store_file_classify(file);
  flp_status status = kind == STORE_FILE_CUBIN   ? store_cubin_decode(bytes, length, key, NULL)
                      : kind == STORE_FILE_PROOF ? store_proof_decode(bytes, length, key, NULL)
                                                 : store_entry_decode(bytes, length, key, NULL);
  free(bytes);
  FLP_TRY(status);
  char hex[STORE_HEX + 1];
  store_entry_name(key, strlen(key), hex);
  if (strncmp(hex, file, STORE_HEX) != 0) return flp_fail(FLP_ERROR_CORRUPT, "%s: name is not the key's SHA-256", file);
  return FLP_OK;
}

static int visit_file(int directory, const char *path, int writable, const char *file, flp_store_visit_fn visit,
                      void *context) {
  struct stat stat = {0};
  char key[FLP_KEY_BYTES_MAX + 1];
  flp_status status = examine(directory, file, &stat, key);
  flp_store_item item = {
      .directory = path,
      .file = file,
      .writable = writable,
      .bytes = (uint64_t)stat.st_size,
      .modified = stat.st_mtim.tv_sec,
      .key = key,
  };
  return store_show(&item, status, visit, context);
}

/* *stop is set when visit asks for it. A directory that cannot be used holds nothing. */
static flp_status visit_directory(const char *path, int writable, flp_store_visit_fn visit, void *context, int *stop) {
  int directory, absent;
  if (store_file_open_directory(path, writable, 0, &directory, &absent) != FLP_OK) {
    if (!absent) store_warn(path, "kernel cache ignored: %s", flp_error_detail());
    return FLP_OK;
  }
  char **names;
  size_t count;
  flp_status status = store_file_list(directory, &names, &count);
  for (size_t i = 0; status == FLP_OK && i < count && !*stop; i++)
    if (is_shown(store_file_classify(names[i])))
      *stop = !visit_file(directory, path, writable, names[i], visit, context);
  store_file_free_names(names, count);
  close(directory);
  return status;
}

flp_status flp_store_each(flp_store *store, flp_store_visit_fn visit, void *context) {
  int stop = 0;
  for (size_t i = 0; i < store->read_only_count && !stop; i++) {
    const char *path = store->read_only[i];
    if (store_pack_is(path))
      FLP_TRY(store_pack_each(path, visit, context, &stop));
    else
      FLP_TRY(visit_directory(path, 0, visit, context, &stop));
  }
  if (store->writable && !stop) FLP_TRY(visit_directory(store->writable, 1, visit, context, &stop));
  flp_detail_clear();
  return FLP_OK;
}
