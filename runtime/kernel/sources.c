/* sources.c: the hash of templates and generator that this build belongs to. It alone includes the generated header,
 * so that an edited template recompiles one file. */
#include "flp_sources.h"
#include "runtime/kernel/kernel.h"

const uint8_t *flp_sources_hash(void) {
  static const uint8_t hash[32] = FLP_SOURCES_SHA256_BYTES;
  return hash;
}

const char *flp_sources_id(void) {
  return FLP_SOURCES_SHA256_HEX;
}
