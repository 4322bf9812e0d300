/* fuzz_hfconfig.c: any bytes as a config.json of Hugging Face: refused with a reason, or a head that can be. */
#include <math.h>

#include "gen/cli/shared/hfconfig.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  fuzz_file file = fuzz_file_create(bytes, length);
  cli_hfconfig config;
  flp_status status = cli_hfconfig_read(file.path, &config);
  fuzz_file_close(&file);
  if (status != FLP_OK) {
    fuzz_expect_refusal(status, FUZZ_BIT(FLP_ERROR_CORRUPT));
    return 0;
  }
  FUZZ_PROMISE(config.vocab >= 1 && config.hidden >= 1);
  FUZZ_PROMISE(isfinite(config.softcap) && config.softcap >= 0);
  FUZZ_PROMISE(isfinite(config.scale) && config.scale != 0);
  return 0;
}
