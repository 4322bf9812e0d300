/* sources.c: template text from the library or a folder, and the SHA-256 that names templates and generator together.
 *
 * The manifest that is hashed is the one that sources_hash.cmake writes: a line for the version, one for the
 * generator, one a template, sorted by name. A folder equal to the embedded templates has the embedded hash. */
#include "sources.h"

#include <dirent.h>
#include <errno.h>
#include <sodium/crypto_hash_sha256.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "flp_sources.h"

enum { NAME_MAX_BYTES = 256, FILE_MAX_BYTES = 1 << 20, FILES_MAX = 256, FOLDERS_DEEP_MAX = 4 };

static flp_status read_file(const char *path, char **text, size_t *length) {
  *text = NULL;
  FILE *file = fopen(path, "rb");
  if (!file) return errno == ENOENT ? FLP_OK : FLP_ERROR_IO;
  char *buffer = malloc(FILE_MAX_BYTES + 1);
  size_t n = buffer ? fread(buffer, 1, FILE_MAX_BYTES + 1, file) : 0;
  flp_status status = !buffer ? FLP_ERROR_MEMORY : ferror(file) || n > FILE_MAX_BYTES ? FLP_ERROR_IO : FLP_OK;
  fclose(file);
  if (status != FLP_OK) {
    free(buffer);
    return status;
  }
  buffer[n] = 0;
  *text = buffer;
  *length = n;
  return FLP_OK;
}

static flp_status copy_embedded(const char *name, char **text, size_t *length) {
  *text = NULL;
  for (size_t i = 0; i < gen_sources_embedded_count; i++) {
    const gen_source *s = &gen_sources_embedded[i];
    if (strcmp(s->name, name) != 0) continue;
    *text = malloc(s->length + 1);
    if (!*text) return FLP_ERROR_MEMORY;
    memcpy(*text, s->bytes, s->length);
    (*text)[s->length] = 0;
    *length = s->length;
  }
  return FLP_OK;
}

flp_status gen_sources_read(const char *folder, const char *name, char **text, size_t *length) {
  if (!folder) return copy_embedded(name, text, length);
  char path[4096];
  int n = snprintf(path, sizeof path, "%s/%s", folder, name);
  if (n < 0 || (size_t)n >= sizeof path) return FLP_ERROR_IO;
  return read_file(path, text, length);
}

/* ---- the hash ---- */

typedef struct name_list {
  char (*names)[NAME_MAX_BYTES];
  int count;
} name_list;

static int compare_names(const void *a, const void *b) {
  return strcmp(a, b);
}

/* Adds the *.lua files under folder/prefix. Returns 0 if the folder cannot be read or holds too much. */
static int list_folder(const char *folder, const char *prefix, int depth, name_list *list) {
  char path[4096];
  int n = snprintf(path, sizeof path, "%s/%s", folder, prefix);
  DIR *dir = n > 0 && (size_t)n < sizeof path && depth <= FOLDERS_DEEP_MAX ? opendir(path) : NULL;
  if (!dir) return 0;
  int good = 1;
  for (struct dirent *e = readdir(dir); e && good; e = readdir(dir)) {
    char name[NAME_MAX_BYTES];
    struct stat info;
    if (e->d_name[0] == '.') continue;
    n = snprintf(name, sizeof name, "%s%s", prefix, e->d_name);
    good = n > 0 && (size_t)n < sizeof name - 1 && fstatat(dirfd(dir), e->d_name, &info, 0) == 0;
    if (!good) break;
    if (S_ISDIR(info.st_mode)) {
      strcat(name, "/");
      good = list_folder(folder, name, depth + 1, list);
    } else if (n > 4 && strcmp(name + n - 4, ".lua") == 0) {
      good = list->count < FILES_MAX;
      if (good) memcpy(list->names[list->count++], name, sizeof name);
    }
  }
  closedir(dir);
  return good;
}

/* SHA-256 of a text as CMake writes it. */
static void hash_hex(const void *bytes, size_t length, char out[65]) {
  unsigned char hash[32];
  crypto_hash_sha256(hash, bytes, length);
  for (int i = 0; i < 32; i++) snprintf(out + 2 * (size_t)i, 3, "%02x", hash[i]);
}

static void add_line(crypto_hash_sha256_state *state, const char *name, const char *value) {
  crypto_hash_sha256_update(state, (const unsigned char *)name, strlen(name));
  crypto_hash_sha256_update(state, (const unsigned char *)" ", 1);
  crypto_hash_sha256_update(state, (const unsigned char *)value, strlen(value));
  crypto_hash_sha256_update(state, (const unsigned char *)"\n", 1);
}

static flp_status hash_list(const char *folder, const name_list *list, uint8_t out[32]) {
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
  add_line(&state, "version", FLP_VERSION_STRING);
  add_line(&state, "generator", FLP_GENERATOR_SHA256);
  for (int i = 0; i < list->count; i++) {
    char *text, hex[65];
    size_t length = 0;
    flp_status status = gen_sources_read(folder, list->names[i], &text, &length);
    if (status != FLP_OK) return status;
    if (!text) return FLP_ERROR_IO;
    hash_hex(text, length, hex);
    add_line(&state, list->names[i], hex);
    free(text);
  }
  crypto_hash_sha256_final(&state, out);
  return FLP_OK;
}

flp_status gen_sources_hash(const char *folder, uint8_t out[32], char *error, size_t error_capacity) {
  static const uint8_t embedded[32] = FLP_SOURCES_SHA256_BYTES;
  if (!folder) {
    memcpy(out, embedded, sizeof embedded);
    return FLP_OK;
  }
  name_list list = {malloc(FILES_MAX * sizeof *list.names), 0};
  flp_status status = FLP_ERROR_MEMORY;
  if (list.names) {
    status = list_folder(folder, "", 0, &list) ? FLP_OK : FLP_ERROR_IO;
    qsort(list.names, (size_t)list.count, sizeof *list.names, compare_names);
    if (status == FLP_OK) status = hash_list(folder, &list, out);
  }
  free(list.names);
  if (status == FLP_ERROR_IO)
    snprintf(error, error_capacity, "template_dir: '%s' cannot be read or holds over %d templates", folder, FILES_MAX);
  return status;
}
