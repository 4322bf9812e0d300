/* test_gen_sm90a.c: kernels of Hopper: they assemble without advisories, whatever the tile. What cannot be built is in
 * tests/golden/language/tiles.txt. */
#include "tests/unit/support/gen_case.h"

/* Of a kernel that must assemble without advisories; report is that of ptxas. */
static flpgen_result assemble(const flp_kernel_key *key, char report[4096]) {
  flpgen_result result = gen_case_generate(key, NULL);
  cr_expect_eq(gen_case_assemble(result.ptx, result.ptx_bytes, "sm_90a", report, 4096), 0, "%s", report);
  cr_expect_null(strstr(report, "C75"), "%s", report);
  return result;
}

/* The forward kernel over its lattice: wgmma stays asynchronous, roles keep their registers, and maps are not
 * copied. */
Test(gen_sm90a, forward_assembles_without_advisories) {
  if (!gen_case_ptxas()) cr_skip_test("no ptxas");
  gen_case_arch = "sm_90a";
  for (unsigned i = 0; i < 8; i++) {
    flp_kernel_key key = gen_case_key(FLP_KERNEL_FORWARD);
    key.dtype = i & 1 ? FLP_DTYPE_FP16 : FLP_DTYPE_BF16;
    key.entropy = !(i & 2);
    key.bias = key.softcap = (i & 4) != 0;
    char report[4096];
    flpgen_result result = assemble(&key, report);
    cr_expect_str_eq(result.desc.entries[0].name, "forward_map");
    cr_expect_eq(result.desc.cluster, 2);
    cr_expect_null(strstr(result.ptx, ".local"), "no local memory");
    flpgen_result_clear(&result);
  }
}

/* fp32: whatever the tile, sums stay in registers and wgmma asynchronous. */
Test(gen_sm90a, fp32_tiles_assemble_without_spills) {
  static const flp_tunables tunes[] = {{0}, {.columns = 64, .stages = 6, .cluster = 1}, {.cluster = 4}};
  static const flp_kernel_kind kinds[] = {FLP_KERNEL_FORWARD, FLP_KERNEL_DZ, FLP_KERNEL_PRODUCTS};
  if (!gen_case_ptxas()) cr_skip_test("no ptxas");
  gen_case_arch = "sm_90a";
  for (size_t i = 0; i < 9; i++) {
    char report[4096];
    flp_kernel_key key = gen_case_key(kinds[i % 3]);
    key.dtype = FLP_DTYPE_FP32;
    key.tune = tunes[i / 3];
    flpgen_result result = assemble(&key, report);
    cr_expect_eq(result.desc.tile_depth, 32);
    cr_expect_not_null(strstr(report, " 0 bytes spill stores, 0 bytes spill loads"), "%s", report);
    flpgen_result_clear(&result);
  }
}
