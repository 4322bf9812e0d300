/* keys.c: the keys of everything that a cache holds, read as fast as they can be: of directories the head of each
 * file, of packs the table in memory. What an entry holds beside its key is for flp_store_get to read and to check. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/status.h"
#include "runtime/store/internal.h"

/* Reads the key of one file; 0 if it has none. */
static int read_key(int directory, const char *name, char key[FLP_KEY_BYTES_MAX + 1]) {
  uint8_t head[STORE_HEAD_BYTES + FLP_KEY_BYTES_MAX];
  struct stat stat;
  int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return 0;
  ssize_t got = fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode) ? read(fd, head, sizeof head) : 0;
  close(fd);
  return got > 0 && store_entry_peek(head, (size_t)got, key);
}

/* *stop is set when visit asks for it. A directory that cannot be used holds nothing. */
static flp_status visit_directory(const char *path, int writable, flp_store_key_fn visit, void *context, int *stop) {
  int directory;
  char **names, key[FLP_KEY_BYTES_MAX + 1];
  size_t count;
  if (store_file_open_directory(path, writable, 0, &directory, NULL) != FLP_OK) return FLP_OK;
  flp_status status = store_file_list(directory, &names, &count);
  for (size_t i = 0; status == FLP_OK && i < count && !*stop; i++)
    if (store_file_classify(names[i]) == STORE_FILE_ENTRY && read_key(directory, names[i], key))
      *stop = !visit(context, key);
  store_file_free_names(names, count);
  close(directory);
  return status == FLP_ERROR_MEMORY ? status : FLP_OK;
}

flp_status flp_store_each_key(flp_store *store, flp_store_key_fn visit, void *context) {
  int stop = 0;
  for (size_t i = 0; i < store->read_only_count && !stop; i++) {
    const char *path = store->read_only[i];
    if (store_pack_is(path))
      FLP_TRY(store_pack_each_key(path, visit, context, &stop));
    else
      FLP_TRY(visit_directory(path, 0, visit, context, &stop));
  }
  if (store->writable && !stop) FLP_TRY(visit_directory(store->writable, 1, visit, context, &stop));
  flp_detail_clear();
  return FLP_OK;
}
