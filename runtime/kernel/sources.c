/* sources.c: the hashes of templates and generator that this build belongs to, and of libflp's own C. It alone includes
 * the generated header, so that an edited template recompiles one file. */
#include "flp_sources.h"
#include "runtime/kernel/kernel.h"

const uint8_t *flp_sources_hash(void) {
  static const uint8_t hash[32] = FLP_SOURCES_SHA256_BYTES;
  return hash;
}

const char *flp_sources_id(void) {
  return FLP_SOURCES_SHA256_HEX;
}

const char *flp_runtime_id(void) {
  return FLP_RUNTIME_SHA256_HEX;
}
