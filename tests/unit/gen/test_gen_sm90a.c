/* test_gen_sm90a.c: kernels of Hopper: they assemble without advisories, whatever the tile, and what cannot be built is
 * refused. */
#include "tests/unit/support/gen_case.h"

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
    flpgen_result result;
    char error[512], report[4096];
    cr_assert_eq(flpgen_generate(&key, NULL, &result, error, sizeof error), FLP_OK, "%s", error);
    cr_expect_str_eq(result.desc.entries[0].name, "forward_map");
    cr_expect_eq(result.desc.cluster, 2);
    cr_expect_null(strstr(result.ptx, ".local"), "no local memory");
    cr_expect_eq(gen_case_assemble(result.ptx, result.ptx_bytes, "sm_90a", report, sizeof report), 0, "%s", report);
    cr_expect_null(strstr(report, "C75"), "%s", report);
    flpgen_result_clear(&result);
  }
}

static flp_kernel_key hopper_key(flp_kernel_kind kind, flp_dtype dtype, flp_tunables tune) {
  flp_kernel_key key = gen_case_key(kind);
  memcpy(key.arch, "sm_90a", sizeof "sm_90a");
  key.dtype = dtype;
  key.tune = tune;
  return key;
}

Test(gen_sm90a, tunables_that_cannot_be_built_are_refused) {
  static const struct {
    flp_kernel_kind kind;
    flp_dtype dtype;
    flp_tunables tune;
    const char *message;
  } refused[] = {
      {FLP_KERNEL_FORWARD, FLP_DTYPE_FP32, {.schedule = FLP_SCHEDULE_PING_PONG}, "one of cooperative is"},
      {FLP_KERNEL_FORWARD, FLP_DTYPE_FP32, {.columns = 192}, "columns 192 is not accepted; one of 64, 128 is"},
      {FLP_KERNEL_DZ, FLP_DTYPE_FP32, {.rows = 256}, "rows 256 is not accepted; one of 128 is"},
      {FLP_KERNEL_FORWARD, FLP_DTYPE_FP32, {.stages = 5}, "5 stages of 128x128 need 262312 bytes of shared memory"},
      {FLP_KERNEL_PRODUCTS, FLP_DTYPE_FP32, {.columns = 64, .cluster = 4}, "would load 16 columns; boxes have 32"},
      {FLP_KERNEL_PRODUCTS, FLP_DTYPE_BF16, {.columns = 64}, "would load 32 columns; boxes have 64"},
      {FLP_KERNEL_FORWARD, FLP_DTYPE_BF16, {.rows = 256}, "needs 384 accumulators a thread; at most 192 fit"},
  };
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    flp_kernel_key key = hopper_key(refused[i].kind, refused[i].dtype, refused[i].tune);
    flpgen_result result;
    char error[512];
    cr_expect_eq(flpgen_generate(&key, NULL, &result, error, sizeof error), FLP_ERROR_COMPILE, "%s",
                 refused[i].message);
    cr_expect_not_null(strstr(error, refused[i].message), "%s\n%s", refused[i].message, error);
  }
}

/* fp32: whatever the tile, sums stay in registers and wgmma asynchronous. */
Test(gen_sm90a, fp32_tiles_assemble_without_spills) {
  static const flp_tunables tunes[] = {{0}, {.columns = 64, .stages = 6, .cluster = 1}, {.cluster = 4}};
  static const flp_kernel_kind kinds[] = {FLP_KERNEL_FORWARD, FLP_KERNEL_DZ, FLP_KERNEL_PRODUCTS};
  if (!gen_case_ptxas()) cr_skip_test("no ptxas");
  for (size_t i = 0; i < 9; i++) {
    flp_kernel_key key = hopper_key(kinds[i % 3], FLP_DTYPE_FP32, tunes[i / 3]);
    flpgen_result result;
    char error[512], report[4096];
    cr_assert_eq(flpgen_generate(&key, NULL, &result, error, sizeof error), FLP_OK, "%s", error);
    cr_expect_eq(result.desc.tile_depth, 32);
    cr_expect_eq(gen_case_assemble(result.ptx, result.ptx_bytes, "sm_90a", report, sizeof report), 0, "%s", report);
    cr_expect_null(strstr(report, "C75"), "%s", report);
    cr_expect_not_null(strstr(report, " 0 bytes spill stores, 0 bytes spill loads"), "%s", report);
    flpgen_result_clear(&result);
  }
}
