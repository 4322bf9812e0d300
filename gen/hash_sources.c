/* hash_sources.c: a program of the build: writes flp_sources.h, which names the templates and generator of a build.
 *
 *     flp_hash_sources OUT TEMPLATES FILE...      FILE: C of the generator, and the parameter lists of kernels */
#include <stdio.h>

#include "sources_hash.h"

static int write_header(const char *path, const char *generator, const uint8_t sources[32]) {
  FILE *file = fopen(path, "w");
  if (!file) return -1;
  fprintf(file,
          "/* flp_sources.h: written by gen/hash_sources.c; names the templates and generator of this build. */\n"
          "#ifndef FLP_SOURCES_H\n#define FLP_SOURCES_H\n\n#define FLP_GENERATOR_SHA256 \"%s\"\n"
          "#define FLP_SOURCES_SHA256_HEX \"",
          generator);
  for (int i = 0; i < 32; i++) fprintf(file, "%02x", sources[i]);
  fprintf(file, "\"\n#define FLP_SOURCES_SHA256_BYTES {");
  for (int i = 0; i < 32; i++) fprintf(file, "0x%02x, ", sources[i]);
  fprintf(file, "}\n\n#endif\n");
  return fclose(file);
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: flp_hash_sources OUT TEMPLATES FILE...\n");
    return 2;
  }
  char generator[65];
  uint8_t sources[32];
  flp_status status = gen_generator_hash((const char *const *)argv + 3, argc - 3, generator);
  if (status == FLP_OK) status = gen_templates_hash(argv[2], generator, sources);
  if (status == FLP_OK && write_header(argv[1], generator, sources) == 0) return 0;
  fprintf(stderr, "flp_hash_sources: a source cannot be read, or %s cannot be written\n", argv[1]);
  return 1;
}
