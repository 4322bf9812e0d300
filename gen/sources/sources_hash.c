/* sources_hash.c: the SHA-256 that names templates and generator together, from their tokens.
 *
 * What is hashed is a list of lines "name hash": the version, the generator, then the templates sorted by name. The
 * build calls it for the embedded templates (hash_sources.c), the library for a folder: equal tokens, equal hash. */
#include "gen/sources/sources_hash.h"

#include <dirent.h>
#include <errno.h>
#include <sodium/crypto_hash_sha256.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "gen/sources/tokens.h"

enum { NAME_MAX_BYTES = 256, FILE_MAX_BYTES = 1 << 20, FOLDERS_DEEP_MAX = 4 };

flp_status gen_file_read(const char *path, char **text, size_t *length) {
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

/* ---- one file ---- */

static void write_hex(const uint8_t hash[32], char hex[65]) {
  for (int i = 0; i < 32; i++) snprintf(hex + 2 * (size_t)i, 3, "%02x", hash[i]);
}

static int is(const gen_token *token, const char *text) {
  return token->length == strlen(text) && memcmp(token->text, text, token->length) == 0;
}

/* Number of tokens of #include "...", which names a file of the tree whose tokens are hashed themselves; 0 if none
 * begins here. A list of tokens has an end, so that no look goes past it. */
static size_t include_length(const gen_token *token) {
  if (!is(token, "#") || !is(token + 1, "include") || token[2].kind != GEN_TOKEN_STRING) return 0;
  return token[3].kind == GEN_TOKEN_LINE_END ? 4 : 3;
}

/* A NUL, which stands in no token, ends each. */
static flp_status hash_tokens(gen_language language, const char *text, size_t length, char hex[65]) {
  size_t count;
  gen_token *tokens = gen_tokens_read(language, text, length, &count);
  if (!tokens) return FLP_ERROR_MEMORY;
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
  for (size_t i = 0; i < count;) {
    size_t skipped = language == GEN_LANGUAGE_C ? include_length(&tokens[i]) : 0;
    if (!skipped) {
      crypto_hash_sha256_update(&state, (const unsigned char *)tokens[i].text, tokens[i].length);
      crypto_hash_sha256_update(&state, (const unsigned char *)"", 1);
    }
    i += skipped ? skipped : 1;
  }
  free(tokens);
  uint8_t hash[32];
  crypto_hash_sha256_final(&state, hash);
  write_hex(hash, hex);
  return FLP_OK;
}

static flp_status hash_file(gen_language language, const char *path, char hex[65]) {
  char *text;
  size_t length;
  flp_status status = gen_file_read(path, &text, &length);
  if (status == FLP_OK && !text) status = FLP_ERROR_IO;
  if (status == FLP_OK) status = hash_tokens(language, text, length, hex);
  free(text);
  return status;
}

/* ---- the generator ---- */

static int compare_texts(const void *a, const void *b) {
  return strcmp(a, b);
}

flp_status gen_generator_hash(const char *const *paths, int count, char hex[65]) {
  char(*hashes)[65] = malloc((size_t)count * sizeof *hashes);
  flp_status status = hashes ? FLP_OK : FLP_ERROR_MEMORY;
  for (int i = 0; i < count && status == FLP_OK; i++) status = hash_file(GEN_LANGUAGE_C, paths[i], hashes[i]);
  if (status == FLP_OK) {
    uint8_t hash[32];
    qsort(hashes, (size_t)count, sizeof *hashes, compare_texts);
    crypto_hash_sha256(hash, (const unsigned char *)hashes, (size_t)count * sizeof *hashes);
    write_hex(hash, hex);
  }
  free(hashes);
  return status;
}

/* ---- a folder of templates ---- */

typedef struct name_list {
  char (*names)[NAME_MAX_BYTES];
  int count;
} name_list;

/* Adds the *.lua files under folder/prefix. Returns 0 if the folder cannot be read or holds too much. */
static int list_folder(const char *folder, const char *prefix, int depth, name_list *list) {
  char path[4096];
  int n = snprintf(path, sizeof path, "%s/%s", folder, prefix);
  DIR *dir = n > 0 && (size_t)n < sizeof path && depth <= FOLDERS_DEEP_MAX ? opendir(path) : NULL;
  if (!dir) return 0;
  int good = 1;
  for (struct dirent *e; good;) {
    errno = 0; /* at its end readdir leaves it as it is */
    e = readdir(dir);
    if (!e) break;
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
      good = list->count < GEN_TEMPLATES_MAX;
      if (good) memcpy(list->names[list->count++], name, sizeof name);
    }
  }
  good = good && !errno;
  closedir(dir);
  return good;
}

static void add_line(crypto_hash_sha256_state *state, const char *name, const char *value) {
  crypto_hash_sha256_update(state, (const unsigned char *)name, strlen(name));
  crypto_hash_sha256_update(state, (const unsigned char *)" ", 1);
  crypto_hash_sha256_update(state, (const unsigned char *)value, strlen(value));
  crypto_hash_sha256_update(state, (const unsigned char *)"\n", 1);
}

static flp_status hash_list(const char *folder, const name_list *list, const char *generator_hex, uint8_t out[32]) {
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
  add_line(&state, "version", FLP_VERSION_STRING);
  add_line(&state, "generator", generator_hex);
  for (int i = 0; i < list->count; i++) {
    char path[4096 + NAME_MAX_BYTES], hex[65];
    int n = snprintf(path, sizeof path, "%s/%s", folder, list->names[i]);
    if (n < 0 || (size_t)n >= sizeof path) return FLP_ERROR_IO;
    flp_status status = hash_file(GEN_LANGUAGE_LUA, path, hex);
    if (status != FLP_OK) return status;
    add_line(&state, list->names[i], hex);
  }
  crypto_hash_sha256_final(&state, out);
  return FLP_OK;
}

flp_status gen_templates_hash(const char *folder, const char *generator_hex, uint8_t out[32]) {
  name_list list = {malloc(GEN_TEMPLATES_MAX * sizeof *list.names), 0};
  flp_status status = FLP_ERROR_MEMORY;
  if (list.names) {
    status = list_folder(folder, "", 0, &list) ? FLP_OK : FLP_ERROR_IO;
    qsort(list.names, (size_t)list.count, sizeof *list.names, compare_texts);
    if (status == FLP_OK) status = hash_list(folder, &list, generator_hex, out);
  }
  free(list.names);
  return status;
}
