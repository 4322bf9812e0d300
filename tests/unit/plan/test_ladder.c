/* test_ladder.c: the fallback ladder: every rung, every reason to leave it, every CUDA error, pins and strict mode. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/driver/driver.h"
#include "runtime/plan/plan.h"
#include "tests/unit/support/kernel_sample.h"
#include "tests/unit/support/stage.h"

static const char tuned_for[] = "Fake H200/132/13000";

static flp_status try_plan(const flp_spec *spec, const flp_options *options, flp_plan **plan) {
  *plan = (flp_plan *)1;
  flp_status status = flp_plan_create(spec, options, plan);
  if (status != FLP_OK) cr_expect_null(*plan);
  return status;
}

static void expect_rung(flp_plan *plan, flp_rung rung) {
  cr_expect_eq(flp_plan_get_rung(plan), rung, "rung %s", flp_rung_name(flp_plan_get_rung(plan)));
}

static void expect_nothing_held(stage *s) {
  size_t bytes;
  int modules, contexts;
  s->held(&bytes, &modules, &contexts);
  cr_expect_eq(bytes, 0);
  cr_expect_eq(modules, 0);
  cr_expect_eq(contexts, 0);
}

/* ---- each rung ---- */

Test(ladder, tuned_comes_first) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(7);
  stage_fill_cache(s.cache, &spec, "");
  stage_fill_cache(s.cache, &spec, tuned_for);
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_rung(plan, FLP_RUNG_TUNED);
  for (int rung = FLP_RUNG_AUTO; rung <= FLP_RUNG_EAGER; rung++)
    cr_expect_str_eq(flp_plan_get_reason(plan, (flp_rung)rung), "");
  flp_plan_destroy(plan);
  expect_nothing_held(&s);
  s.script("name=Other");
  plan = stage_plan(&spec, NULL);
  expect_rung(plan, FLP_RUNG_HEURISTIC);
  char reason[600];
  snprintf(reason, sizeof reason, "the cache %s has no sm_80 kernel forward tuned for Other/132/13000", s.cache);
  cr_expect_str_eq(flp_plan_get_reason(plan, FLP_RUNG_TUNED), reason, "%s", flp_plan_get_reason(plan, FLP_RUNG_TUNED));
  flp_plan_destroy(plan);
}

Test(ladder, heuristic_is_found_in_the_read_only_path_too) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(0);
  char system[300];
  snprintf(system, sizeof system, "%s/system", s.root);
  stage_fill_cache(system, &spec, "");
  setenv("FLP_CACHE_PATH", system, 1);
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_rung(plan, FLP_RUNG_HEURISTIC);
  cr_expect_eq(s.provider_calls(), 2, "only the two that were put there");
  flp_plan_destroy(plan);
}

static int exists(const char *path) {
  return access(path, F_OK) == 0;
}

Test(ladder, options_name_the_cache_of_one_plan) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(7);
  flp_options options = FLP_OPTIONS_INIT;
  char own[300], system[300], reason[700];
  snprintf(own, sizeof own, "%s/own", s.root);
  snprintf(system, sizeof system, "%s/system", s.root);
  options.cache_dir = own;
  setenv("FLP_CACHE_PATH", system, 1);
  flp_plan *plan = stage_plan(&spec, &options);
  expect_rung(plan, FLP_RUNG_JIT);
  snprintf(reason, sizeof reason, "the cache %s:%s has no sm_80 kernel rows for this spec", system, own);
  cr_expect_str_eq(flp_plan_get_reason(plan, FLP_RUNG_HEURISTIC), reason);
  flp_plan_destroy(plan);
  cr_expect(exists(own));
  cr_expect_not(exists(s.cache), "FLP_CACHE_DIR is left alone");
  options.cache_dir = "";
  options.cache_path = own;
  plan = stage_plan(&spec, &options);
  expect_rung(plan, FLP_RUNG_HEURISTIC);
  cr_expect_eq(s.provider_calls(), 5, "all were found");
  flp_plan_destroy(plan);
  spec.vocab++;
  plan = stage_plan(&spec, &options);
  expect_rung(plan, FLP_RUNG_JIT);
  flp_plan_destroy(plan);
  cr_expect_not(exists(s.cache), "there is none to write to");
  flp_plan_destroy(stage_plan(&spec, NULL));
  cr_expect(exists(s.cache), "without options the settings hold");
}

Test(ladder, jit_on_a_miss_and_heuristic_from_then_on) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(7);
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_rung(plan, FLP_RUNG_JIT);
  cr_expect_eq(s.provider_calls(), 5);
  char reason[600], id[17], other_id[17];
  snprintf(reason, sizeof reason, "the cache %s has no sm_80 kernel rows for this spec", s.cache);
  cr_expect_str_eq(flp_plan_get_reason(plan, FLP_RUNG_HEURISTIC), reason);
  cr_expect_eq(flp_plan_get_id(plan, id), FLP_OK);
  flp_plan_destroy(plan);
  plan = stage_plan(&spec, NULL);
  expect_rung(plan, FLP_RUNG_HEURISTIC);
  cr_expect_eq(s.provider_calls(), 5);
  cr_expect_eq(flp_plan_get_id(plan, other_id), FLP_OK);
  cr_expect_str_eq(id, other_id, "the same kernels");
  flp_plan_destroy(plan);
  expect_nothing_held(&s);
}

Test(ladder, generic_when_there_is_no_generator) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(3);
  stage_fill_generic(s.generic, &spec);
  setenv("FLP_JIT_LIBRARY", "/nowhere/libflpgen.so", 1);
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_rung(plan, FLP_RUNG_GENERIC);
  cr_expect_not_null(strstr(flp_plan_get_reason(plan, FLP_RUNG_JIT), "/nowhere/libflpgen.so cannot be opened: "));
  cr_expect_eq(stage_logged("1 rung jit is not taken: "), 1, "%s", stage_messages());
  cr_expect_eq(stage_logged("2 rung heuristic is not taken: "), 1, "%s", stage_messages());
  flp_plan_destroy(plan);
  plan = stage_plan(&spec, NULL);
  flp_plan_destroy(plan);
  cr_expect_eq(stage_logged("rung jit is not taken: "), 1, "each reason is logged once");
}

Test(ladder, host_pointers_run_eagerly) {
  stage s;
  stage_open(&s, "");
  flp_options options = FLP_OPTIONS_INIT;
  options.device = FLP_DEVICE_HOST;
  flp_spec spec = stage_spec(7);
  flp_plan *plan = stage_plan(&spec, &options);
  expect_rung(plan, FLP_RUNG_EAGER);
  cr_expect_str_eq(flp_plan_get_reason(plan, FLP_RUNG_JIT), "options.device is FLP_DEVICE_HOST");
  cr_expect_eq(s.calls(NULL), 0, "the driver is left alone");
  cr_expect_eq(stage_logged("not taken"), 0, "and nothing fell back");
  size_t bytes = 0;
  cr_expect_eq(flp_plan_workspace(plan, FLP_PASS_BACKWARD, 100, 0, &bytes), FLP_OK, "%s", flp_error_detail());
  cr_expect_gt(bytes, 0);
  flp_plan_destroy(plan);
}

/* ---- reasons ---- */

static void expect_reason(const char *provider_script, const char *reason) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(7);
  stage_fill_generic(s.generic, &spec);
  s.provider_script(provider_script);
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_rung(plan, FLP_RUNG_GENERIC);
  cr_expect_str_eq(flp_plan_get_reason(plan, FLP_RUNG_JIT), reason);
  flp_plan_destroy(plan);
}

Test(ladder, a_generator_that_fails) {
  expect_reason("fail=10;error=forward.lua:7: too wide", "kernel rows: forward.lua:7: too wide");
}

Test(ladder, a_generator_that_fails_without_a_word) {
  expect_reason("fail=2", "kernel rows: the generator gave no reason");
}

Test(ladder, a_generator_of_another_version) {
  expect_reason("version=1", FLP_TEST_FAKE_PROVIDER " does not serve provider version 2");
}

Test(ladder, a_module_without_an_entry_that_the_spec_needs) {
  expect_reason("missing=bias_reduce", "module rows has no entry bias_reduce");
}

Test(ladder, a_descriptor_that_no_cache_would_hold) {
  expect_reason("threads=33", "kernel rows: descriptor: entry threads is 33, accepted: multiples of 32 up to 1024");
}

Test(ladder, a_kernel_that_needs_more_shared_memory_than_the_device_has) {
  expect_reason("shared=300000", "entry forward needs 300000 bytes of shared memory, but Fake H200 allows 232448");
}

Test(ladder, a_library_that_is_no_generator) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(0);
  stage_fill_generic(s.generic, &spec);
  setenv("FLP_JIT_LIBRARY", FLP_TEST_FAKE_CUDA, 1);
  flp_plan *plan = stage_plan(&spec, NULL);
  cr_expect_str_eq(flp_plan_get_reason(plan, FLP_RUNG_JIT), FLP_TEST_FAKE_CUDA " has no symbol flp_provider_get");
  flp_plan_destroy(plan);
}

Test(ladder, a_corrupt_entry_is_rebuilt) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(0);
  flp_plan_destroy(stage_plan(&spec, NULL));
  char command[400];
  snprintf(command, sizeof command,
           "for f in '%s'/*.flpk; do printf X | dd of=\"$f\" bs=1 seek=40 conv=notrunc 2>/dev/null; done", s.cache);
  cr_assert_eq(system(command), 0);
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_rung(plan, FLP_RUNG_JIT);
  cr_expect_eq(s.provider_calls(), 4);
  cr_expect_gt(sample_count(s.cache, ".bad-"), 0);
  flp_plan_destroy(plan);
}

/* ---- CUDA errors while loading ---- */

static const struct {
  int code;
  const char *text;
} fallbacks[] = {
    {200, "CUDA_ERROR_INVALID_IMAGE (200): device kernel image is invalid"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU (209): no kernel image is available for execution on the device"},
    {218, "CUDA_ERROR_INVALID_PTX (218): a PTX JIT compilation failed"},
    {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND (221): PTX JIT compiler library not found"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222): the provided PTX was compiled with an unsupported toolchain."},
    {223, "CUDA_ERROR_JIT_COMPILATION_DISABLED (223): PTX JIT compilation was disabled"},
    {300, "CUDA_ERROR_INVALID_SOURCE (300): device kernel image is invalid"},
};
enum { FALLBACK_COUNT = sizeof fallbacks / sizeof fallbacks[0] };

Test(ladder, ptx_that_cannot_run_here_gives_the_next_rung) {
  for (int i = 0; i < FALLBACK_COUNT; i++) {
    stage s;
    char script[128], reason[512];
    snprintf(script, sizeof script, "errorlog=ptxas fatal: no|more;fail:cuModuleLoadDataEx=%d@1", fallbacks[i].code);
    stage_open(&s, script);
    flp_spec spec = stage_spec(3);
    stage_fill_generic(s.generic, &spec);
    flp_plan *plan = stage_plan(&spec, NULL);
    expect_rung(plan, FLP_RUNG_GENERIC);
    snprintf(reason, sizeof reason, "kernel forward: cuModuleLoadDataEx failed: %s; ptxas fatal: no",
             fallbacks[i].text);
    cr_expect_str_eq(flp_plan_get_reason(plan, FLP_RUNG_JIT), reason);
    flp_plan_destroy(plan);
    expect_nothing_held(&s);
  }
}

Test(ladder, no_rung_that_loads_is_unavailable_with_every_reason) {
  stage s;
  stage_open(&s, "fail:cuModuleLoadDataEx=222");
  flp_spec spec = stage_spec(0);
  stage_fill_generic(s.generic, &spec);
  flp_plan *plan;
  cr_expect_eq(try_plan(&spec, NULL, &plan), FLP_ERROR_UNAVAILABLE);
  const char *detail = flp_error_detail();
  cr_expect_eq(strncmp(detail, "no rung can run: tuned: the cache ", 34), 0, "%s", detail);
  cr_expect_not_null(strstr(detail,
                            "; jit to generic: kernel forward: cuModuleLoadDataEx failed: "
                            "CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)"),
                     "%s", detail);
  cr_expect_not_null(
      strstr(detail, "; eager: takes host pointers, but options.device is 0 and options.host_fallback 0"), "%s",
      detail);
  expect_nothing_held(&s);
  flp_options options = FLP_OPTIONS_INIT;
  options.host_fallback = 1;
  plan = stage_plan(&spec, &options);
  expect_rung(plan, FLP_RUNG_EAGER);
  flp_plan_destroy(plan);
  expect_nothing_held(&s);
}

Test(ladder, other_errors_of_the_driver_end_the_descent) {
  static const struct {
    const char *script, *detail;
  } cases[] = {
      {"fail:cuModuleLoadDataEx=2",
       "rung jit failed: kernel forward: cuModuleLoadDataEx failed: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"},
      {"fail:cuFuncSetAttribute=1",
       "rung jit failed: cuFuncSetAttribute(flp_forward) failed: CUDA_ERROR_INVALID_VALUE (1): invalid argument"},
      {"fail:cuFuncGetAttribute=700",
       "rung jit failed: cuFuncGetAttribute(flp_prepare) failed: "
       "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered"},
      {"fail:cuMemAlloc_v2=2", "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"},
      {"fail:cuMemsetD8Async=700",
       "cuMemsetD8Async failed: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered"},
      {"fail:cuDevicePrimaryCtxRetain=2",
       "cuDevicePrimaryCtxRetain failed: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"},
      {"fail:cuCtxPushCurrent_v2=201@1",
       "cuCtxPushCurrent failed: CUDA_ERROR_INVALID_CONTEXT (201): invalid device context"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    stage s;
    stage_open(&s, cases[i].script);
    flp_spec spec = stage_spec(0);
    flp_plan *plan;
    cr_expect_eq(try_plan(&spec, NULL, &plan), FLP_ERROR_DRIVER, "%s", cases[i].script);
    cr_expect_str_eq(flp_error_detail(), cases[i].detail);
    expect_nothing_held(&s);
  }
}

Test(ladder, an_image_without_its_entry_or_with_too_many_registers_falls) {
  static const struct {
    const char *script, *reason;
  } cases[] = {
      {"fail:cuModuleGetFunction=500@1",
       "cuModuleGetFunction(flp_prepare) failed: CUDA_ERROR_NOT_FOUND (500): named symbol not found"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    stage s;
    stage_open(&s, cases[i].script);
    flp_spec spec = stage_spec(0);
    stage_fill_generic(s.generic, &spec);
    flp_plan *plan = stage_plan(&spec, NULL);
    expect_rung(plan, FLP_RUNG_GENERIC);
    cr_expect_str_eq(flp_plan_get_reason(plan, FLP_RUNG_JIT), cases[i].reason);
    flp_plan_destroy(plan);
  }
  stage s;
  stage_open(&s, "maxthreads=128");
  flp_spec spec = stage_spec(0);
  flp_plan *plan;
  cr_expect_eq(try_plan(&spec, NULL, &plan), FLP_ERROR_UNAVAILABLE);
  cr_expect_not_null(
      strstr(flp_error_detail(), "jit: entry prepare has CTAs of 256 threads, but its registers allow 128"));
}

Test(ladder, doubtful_code_is_a_warning) {
  stage s;
  stage_open(&s,
             "infolog=ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
             "serialized|ptxas info : fine");
  flp_spec spec = stage_spec(0);
  flp_plan_destroy(stage_plan(&spec, NULL));
  cr_expect_eq(
      stage_logged("1 kernel forward: the PTX compiler reports: ptxas info : (C7510) Potential Performance Loss"), 1,
      "%s", stage_messages());
  cr_expect_eq(stage_logged("fine"), 0);
}

/* ---- no device ---- */

static void expect_no_device(const char *script, const char *reason) {
  stage s;
  stage_open(&s, script);
  flp_spec spec = stage_spec(0);
  flp_options options = FLP_OPTIONS_INIT;
  flp_plan *plan;
  cr_expect_eq(try_plan(&spec, &options, &plan), FLP_ERROR_UNAVAILABLE);
  char detail[512];
  snprintf(detail, sizeof detail,
           "no rung can run: tuned to generic: %s; eager: takes host pointers, but options.device is 0 and "
           "options.host_fallback 0",
           reason);
  cr_expect_str_eq(flp_error_detail(), detail);
  options.host_fallback = 1;
  plan = stage_plan(&spec, &options);
  expect_rung(plan, FLP_RUNG_EAGER);
  cr_expect_str_eq(flp_plan_get_reason(plan, FLP_RUNG_GENERIC), reason);
  cr_expect_eq(stage_logged("1 no rung of the device can run: "), 1, "%s", stage_messages());
  flp_plan_destroy(plan);
  options.strict = 1;
  cr_expect_eq(try_plan(&spec, &options, &plan), FLP_ERROR_UNAVAILABLE);
  cr_expect_not_null(strstr(flp_error_detail(), "eager: strict mode refuses the fallback to host pointers"));
  expect_nothing_held(&s);
}

Test(ladder, without_a_gpu) {
  expect_no_device("fail:cuInit=100", "cuInit failed: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected");
}

Test(ladder, on_a_card_that_is_too_old) {
  expect_no_device("capability=7.5", "compute capability 7.5 is below 8.0");
}

Test(ladder, every_newer_card_runs_the_portable_kernels) {
  static const char *const cards[] = {"8.0", "8.6", "8.9", "9.0", "10.0", "12.0"};
  for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
    stage s;
    char script[64];
    snprintf(script, sizeof script, "capability=%s", cards[i]);
    stage_open(&s, script);
    flp_spec spec = stage_spec(0);
    flp_plan *plan = stage_plan(&spec, NULL);
    expect_rung(plan, FLP_RUNG_JIT);
    flp_plan_destroy(plan);
  }
}

Test(ladder, a_device_that_does_not_exist) {
  stage s;
  stage_open(&s, "devices=2");
  flp_options options = FLP_OPTIONS_INIT;
  options.device = 2;
  flp_spec spec = stage_spec(0);
  flp_plan *plan;
  cr_expect_eq(try_plan(&spec, &options, &plan), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(), "device is 2, but the driver has 2 (accepted: 0 to 1)");
}

/* ---- pins and strict mode ---- */

Test(ladder, a_pinned_rung_is_the_only_one_tried) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(3);
  stage_fill_cache(s.cache, &spec, "");
  stage_fill_generic(s.generic, &spec);
  int put = s.provider_calls();
  flp_options options = FLP_OPTIONS_INIT;
  options.rung = FLP_RUNG_GENERIC;
  flp_plan *plan = stage_plan(&spec, &options);
  expect_rung(plan, FLP_RUNG_GENERIC);
  cr_expect_str_eq(flp_plan_get_reason(plan, FLP_RUNG_HEURISTIC), "rung generic is pinned");
  flp_plan_destroy(plan);
  setenv("FLP_FORCE", "generic", 1);
  plan = stage_plan(&spec, NULL);
  expect_rung(plan, FLP_RUNG_GENERIC);
  flp_plan_destroy(plan);
  setenv("FLP_FORCE", "tuned", 1);
  cr_expect_eq(try_plan(&spec, NULL, &plan), FLP_ERROR_UNAVAILABLE);
  char detail[600];
  snprintf(detail, sizeof detail,
           "rung tuned is pinned and failed: the cache %s has no sm_80 kernel forward tuned for Fake H200/132/13000",
           s.cache);
  cr_expect_str_eq(flp_error_detail(), detail);
  cr_expect_eq(s.provider_calls(), put, "nothing was generated");
}

Test(ladder, eager_can_be_pinned_where_host_pointers_are_allowed) {
  stage s;
  stage_open(&s, "");
  setenv("FLP_FORCE", "eager", 1);
  flp_spec spec = stage_spec(0);
  flp_options options = FLP_OPTIONS_INIT;
  flp_plan *plan;
  cr_expect_eq(try_plan(&spec, &options, &plan), FLP_ERROR_UNAVAILABLE);
  cr_expect_str_eq(flp_error_detail(),
                   "no rung can run: tuned to generic: rung eager is pinned; eager: takes host "
                   "pointers, but options.device is 0 and options.host_fallback 0");
  options.host_fallback = options.strict = 1;
  plan = stage_plan(&spec, &options);
  expect_rung(plan, FLP_RUNG_EAGER);
  flp_plan_destroy(plan);
  cr_expect_eq(s.calls(NULL), 0);
}

Test(ladder, strict_mode_takes_a_miss_but_no_fallback) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(0);
  stage_fill_generic(s.generic, &spec);
  setenv("FLP_STRICT", "1", 1);
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_rung(plan, FLP_RUNG_JIT);
  flp_plan_destroy(plan);
  spec.vocab = 2000;
  s.provider_script("fail=10;error=dz.lua:3: no");
  cr_expect_eq(try_plan(&spec, NULL, &plan), FLP_ERROR_COMPILE);
  cr_expect_str_eq(flp_error_detail(), "rung jit failed: kernel forward: dz.lua:3: no");
  s.provider_script("");
  s.script("fail:cuModuleLoadDataEx=222");
  cr_expect_eq(try_plan(&spec, NULL, &plan), FLP_ERROR_DRIVER);
  setenv("FLP_JIT_LIBRARY", "/nowhere/libflpgen.so", 1);
  spec.vocab = 3000;
  cr_expect_eq(try_plan(&spec, NULL, &plan), FLP_ERROR_UNAVAILABLE);
  expect_nothing_held(&s);
}

static void expect_arches(int major, int minor, flp_dtype dtype, uint32_t alignment, int clusters, const char *wanted) {
  flp_device device = {.major = major, .minor = minor};
  flp_spec spec = stage_spec(3);
  const char *arches[FLP_LADDER_ARCHES_MAX];
  char got[64] = "";
  spec.dtype = dtype;
  spec.alignment = alignment;
  int count = flp_ladder_arches(&device, &spec, clusters, NULL, arches);
  for (int i = 0; i < count; i++) snprintf(got + strlen(got), sizeof got - strlen(got), "%s ", arches[i]);
  cr_expect_str_eq(got, wanted, "%d.%d: '%s', wanted '%s'", major, minor, got, wanted);
}

Test(ladder, architectures_are_listed_best_first) {
  expect_arches(9, 0, FLP_DTYPE_BF16, 16, 1, "sm_90a sm_80 ");
  expect_arches(9, 0, FLP_DTYPE_FP16, 16, 0, "sm_80 ");
  expect_arches(9, 0, FLP_DTYPE_FP32, 16, 1, "sm_90a sm_80 ");
  expect_arches(9, 0, FLP_DTYPE_BF16, 8, 1, "sm_80 ");
  expect_arches(10, 0, FLP_DTYPE_BF16, 16, 1, "sm_80 ");
  expect_arches(8, 0, FLP_DTYPE_BF16, 16, 1, "sm_80 ");
  expect_arches(7, 5, FLP_DTYPE_BF16, 16, 1, "");
}
