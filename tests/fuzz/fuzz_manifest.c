/* fuzz_manifest.c: any bytes as the manifest of a pack without kernels: refused with a reason, or a JSON object. */
#include "gen/cli/pack/pack.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  flp_pack pack = {.manifest = (const char *)bytes, .manifest_bytes = length};
  json_t *manifest = NULL;
  flp_status status = cli_pack_read_manifest(&pack, &manifest);
  if (status != FLP_OK)
    fuzz_expect_refusal(status, FUZZ_BIT(FLP_ERROR_CORRUPT));
  else
    FUZZ_PROMISE(json_is_object(manifest));
  json_decref(manifest);
  return 0;
}
