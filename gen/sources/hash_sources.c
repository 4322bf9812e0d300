/* hash_sources.c: a program of the build: writes flp_sources.h, which names the sources of a build.
 *
 *     flp_hash_sources OUT TEMPLATES FILE... -- RUNTIME...
 *
 * FILE: C of the generator, and the parameter lists of kernels; RUNTIME: C of libflp */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/sources/sources_hash.h"

enum { HEADER_BYTES = 2048 };

static void make_header(const char *generator, const char *runtime, const uint8_t sources[32], char out[HEADER_BYTES]) {
  char hex[65] = "", bytes[32 * 6 + 1] = "";
  for (size_t i = 0; i < 32; i++) {
    snprintf(hex + 2 * i, 3, "%02x", sources[i]);
    snprintf(bytes + 6 * i, 7, "0x%02x, ", sources[i]);
  }
  snprintf(out, HEADER_BYTES,
           "/* flp_sources.h: written by gen/sources/hash_sources.c; names the sources of this build. */\n"
           "#ifndef FLP_SOURCES_H\n#define FLP_SOURCES_H\n\n#define FLP_GENERATOR_SHA256 \"%s\"\n"
           "#define FLP_RUNTIME_SHA256_HEX \"%s\"\n#define FLP_SOURCES_SHA256_HEX \"%s\"\n"
           "#define FLP_SOURCES_SHA256_BYTES {%s}\n\n#endif\n",
           generator, runtime, hex, bytes);
}

/* A header with the same content is left alone, so that nothing is built anew for an edited comment. */
static int write_header(const char *path, const char *header) {
  char *before = NULL;
  size_t length;
  int is_same = gen_file_read(path, &before, &length) == FLP_OK && before && strcmp(before, header) == 0;
  free(before);
  if (is_same) return 0;
  FILE *file = fopen(path, "w");
  if (!file) return -1;
  int failed = fputs(header, file) < 0;
  return fclose(file) != 0 || failed ? -1 : 0;
}

int main(int argc, char **argv) {
  int split = 3;
  while (split < argc && strcmp(argv[split], "--") != 0) split++;
  if (split == 3 || split + 1 >= argc) {
    fprintf(stderr, "usage: flp_hash_sources OUT TEMPLATES FILE... -- RUNTIME...\n");
    return 2;
  }
  char generator[65], runtime[65], header[HEADER_BYTES];
  uint8_t sources[32];
  const char *const *files = (const char *const *)argv;
  flp_status status = gen_generator_hash(files + 3, split - 3, generator);
  if (status == FLP_OK) status = gen_generator_hash(files + split + 1, argc - split - 1, runtime);
  if (status == FLP_OK) status = gen_templates_hash(argv[2], generator, sources);
  if (status == FLP_OK) make_header(generator, runtime, sources, header);
  if (status == FLP_OK && write_header(argv[1], header) == 0) return 0;
  fprintf(stderr, "flp_hash_sources: a source cannot be read, or %s cannot be written\n", argv[1]);
  return 1;
}
