/* sources.h: the template files a library carries or a folder holds, and the hash that names them. */
#ifndef FLPGEN_SOURCES_H
#define FLPGEN_SOURCES_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/flp.h"

/* Written by runtime/embed.cmake from templates/, sorted by name. */
typedef struct gen_source {
  const char *name; /* "forward.lua", relative to the template folder */
  const unsigned char *bytes;
  size_t length;
} gen_source;
extern const gen_source gen_sources_embedded[];
extern const size_t gen_sources_embedded_count;

/* The text of one template, NUL-terminated and malloc'ed; OK with *text NULL if there is none of that name.
 * folder: NULL for the embedded ones */
flp_status gen_sources_read(const char *folder, const char *name, char **text, size_t *length);

/* SHA-256 of this generator with the templates of a folder (sources_hash.h). folder: NULL for the embedded ones */
flp_status gen_sources_hash(const char *folder, uint8_t out[32], char *error, size_t error_capacity);

#endif
