/* sources.c: template text and its hash, from the library or a folder. */
#include "gen/sources/sources.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flp_sources.h"
#include "gen/sources/sources_hash.h"

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
  return gen_file_read(path, text, length);
}

flp_status gen_sources_hash(const char *folder, uint8_t out[32], char *error, size_t error_capacity) {
  static const uint8_t embedded[32] = FLP_SOURCES_SHA256_BYTES;
  if (!folder) {
    memcpy(out, embedded, sizeof embedded);
    return FLP_OK;
  }
  flp_status status = gen_templates_hash(folder, FLP_GENERATOR_SHA256, out);
  if (status == FLP_ERROR_IO)
    snprintf(error, error_capacity, "template_dir: '%s' cannot be read or holds over %d templates", folder,
             GEN_TEMPLATES_MAX);
  return status;
}
