/* test_pack_mutation.c: the fuzz target of packs over a fixed corpus of mutations of their tables. */
#include "tests/unit/support/mutation_run.h"
#include "tests/unit/support/pack_case.h"

#define LLVMFuzzerTestOneInput fuzz_pack
#include "tests/fuzz/fuzz_pack.c"
#undef LLVMFuzzerTestOneInput

Test(pack_mutation, packs) {
  const uint8_t seed[32] = {7};
  for (int is_signed = 0; is_signed < 2; is_signed++) {
    pack_case p = pack_case_make(is_signed ? seed : NULL);
    mutation_run(fuzz_pack, p.bytes, p.length);
    free(p.bytes);
  }
  fuzz_pack((const uint8_t *)"", 0);
}
