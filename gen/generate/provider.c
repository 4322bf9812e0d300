/* provider.c: the table that libflp finds in libflpgen.so (runtime/kernel/provider.h). */
#include "runtime/kernel/provider.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/gen.h"
#include "gen/sources/sources.h"
#include "runtime/base/status.h"

/* Of flpgen_provider_templates; NULL: those that are embedded. */
static const char *folder;
static uint8_t folder_hash[32];

static flp_status generate(const flp_kernel_key *key, const uint8_t *loss, size_t loss_bytes, flp_kernel_desc *desc,
                           char **ptx, size_t *ptx_bytes, char *error, size_t error_capacity) {
  flpgen_result result;
  flp_loss program;
  *ptx = NULL;
  *ptx_bytes = 0;
  if (loss && flp_loss_read(loss, loss_bytes, &program) != FLP_OK) {
    snprintf(error, error_capacity, "%s", flp_error_detail());
    return FLP_ERROR_CORRUPT;
  }
  flpgen_options options = {.loss = loss ? &program : NULL, .template_dir = folder};
  flp_status status = flpgen_generate(key, &options, &result, error, error_capacity);
  if (status != FLP_OK) return status;
  *desc = result.desc;
  *ptx = result.ptx;
  *ptx_bytes = result.ptx_bytes;
  result.ptx = NULL;
  flpgen_result_clear(&result);
  return FLP_OK;
}

static void free_ptx(char *ptx) {
  free(ptx);
}

static const uint8_t *sources_hash(void) {
  return folder ? folder_hash : flp_sources_hash();
}

flp_status flpgen_provider_templates(const char *template_dir, uint8_t hash[32], char *error, size_t error_capacity) {
  FLP_TRY(gen_sources_hash(template_dir, folder_hash, error, error_capacity));
  folder = template_dir;
  memcpy(hash, folder_hash, sizeof folder_hash);
  return FLP_OK;
}

FLP_API const flp_provider *flp_provider_get(uint32_t version);

const flp_provider *flp_provider_get(uint32_t version) {
  static const flp_provider provider = {FLP_PROVIDER_VERSION, generate, free_ptx, sources_hash};
  return version == FLP_PROVIDER_VERSION ? &provider : NULL;
}
