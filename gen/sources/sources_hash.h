/* sources_hash.h: the SHA-256 that names templates and generator together. Keys of kernels hold it.
 *
 * It is a hash of tokens: comments, layout, and how the generator's C is divided among files change nothing. */
#ifndef FLPGEN_SOURCES_HASH_H
#define FLPGEN_SOURCES_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/flp.h"

enum { GEN_TEMPLATES_MAX = 256 };

/* The bytes of a file, NUL-terminated and malloc'ed; OK with *text NULL if there is no such file. */
flp_status gen_file_read(const char *path, char **text, size_t *length);

/* Hash of the generator, or of libflp: of the tokens of C files, in any order. hex: 64 lower-case digits and a NUL.
 * error: IO names no file; MEMORY */
flp_status gen_generator_hash(const char *const *paths, int count, char hex[65]);

/* Hash of the version, a generator and the *.lua files under a folder.
 * error: IO if the folder cannot be read or holds over GEN_TEMPLATES_MAX templates; MEMORY */
flp_status gen_templates_hash(const char *folder, const char *generator_hex, uint8_t out[32]);

#endif
