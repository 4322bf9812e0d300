/* test_tune_given.c: plans whose options give tile configurations: they get such kernels, or an error with
 * the reason, and never those of another rung or architecture. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/driver/driver.h"
#include "runtime/plan/plan.h"
#include "tests/unit/support/stage.h"

#define HOPPER "capability=9.0;driver=13000;"

static flp_options asking(const char *tune) {
  flp_options options = FLP_OPTIONS_INIT;
  options.tune = tune;
  return options;
}

static void expect_refused(const flp_spec *spec, const flp_options *options, flp_status status, const char *detail) {
  flp_plan *plan = (flp_plan *)1;
  cr_expect_eq(flp_plan_create(spec, options, &plan), status, "%s", flp_error_detail());
  cr_expect_null(plan);
  cr_expect_str_eq(flp_error_detail(), detail, "%s", flp_error_detail());
}

/* The tile configuration of a plan's kernel of that kind; "" where there is none. */
static void tiling_of(const flp_spec *spec, const flp_options *options, flp_kernel_kind kind,
                      char out[FLP_TUNABLES_TEXT_BYTES]) {
  flp_plan *plan = stage_plan(spec, options);
  out[0] = 0;
  for (int i = 0; i < plan->modules.count; i++)
    if (plan->modules.desc[i].key.kind == kind) flp_tunables_text(&plan->modules.desc[i].key.tune, out);
  flp_plan_destroy(plan);
}

/* ---- refused by a template: the real generator ---- */

static void open_with_generator(stage *s) {
  stage_open(s, HOPPER);
  setenv("FLP_JIT_LIBRARY", FLP_TEST_FLPGEN_LIBRARY, 1);
}

#define REFUSED                                                                                                \
  "options.tune is \"forward:cooperative,256x256,stages=3\", which is refused: kernel forward: tune: 256x256 " \
  "cooperative needs 256 accumulators a thread; at most 192 fit"

Test(tune_given, what_a_template_refuses_is_reported) {
  stage s;
  open_with_generator(&s);
  flp_spec spec = stage_spec(0);
  stage_fill_generic(s.generic, &spec);
  flp_options options = asking("forward:cooperative,256x256,stages=3");
  expect_refused(&spec, &options, FLP_ERROR_ARGUMENT,
                 "rung jit is the last that heeds options.tune and failed: " REFUSED);
  options.rung = FLP_RUNG_JIT;
  expect_refused(&spec, &options, FLP_ERROR_ARGUMENT, "rung jit is pinned and failed: " REFUSED);
  options.host_fallback = 1;
  expect_refused(&spec, &options, FLP_ERROR_ARGUMENT, "rung jit is pinned and failed: " REFUSED);
  size_t bytes;
  int modules, contexts;
  s.held(&bytes, &modules, &contexts);
  cr_expect(bytes == 0 && modules == 0 && contexts == 0);
}

Test(tune_given, the_kernel_that_is_refused_is_named_among_others) {
  stage s;
  open_with_generator(&s);
  flp_spec spec = stage_spec(3);
  flp_options options = asking("forward:stages=4;products:256x256,stages=13");
  expect_refused(&spec, &options, FLP_ERROR_ARGUMENT,
                 "rung jit is the last that heeds options.tune and failed: options.tune is "
                 "\"products:256x256,stages=13\", which is refused: kernel products: tune: stages 13 is not accepted; "
                 "2 to 12 is");
}

/* ---- kernels that cannot be had for other reasons ---- */

Test(tune_given, kernels_that_do_not_load_give_way_to_no_others) {
  stage s;
  stage_open(&s, HOPPER "compute=1;refuse=forward/raster=4 ");
  flp_spec spec = stage_spec(0);
  stage_fill_cache(s.cache, &spec, "");
  stage_fill_generic(s.generic, &spec);
  flp_options options = asking("forward:raster=4");
  flp_plan *plan;
  cr_expect_eq(flp_plan_create(&spec, &options, &plan), FLP_ERROR_DRIVER);
  const char *detail = flp_error_detail();
  cr_expect_not_null(strstr(detail,
                            "rung jit is the last that heeds options.tune and failed: kernel forward: "
                            "cuModuleLoadDataEx failed: CUDA_ERROR_INVALID_PTX (218)"),
                     "%s", detail);
  options.tune = "forward:raster=2";
  plan = stage_plan(&spec, &options);
  cr_expect_eq(flp_plan_get_rung(plan), FLP_RUNG_JIT);
  flp_plan_destroy(plan);
}

Test(tune_given, without_a_generator_only_a_cache_that_has_them_will_do) {
  stage s;
  char tiling[FLP_TUNABLES_TEXT_BYTES];
  stage_open(&s, HOPPER);
  flp_spec spec = stage_spec(0);
  stage_fill_generic(s.generic, &spec);
  flp_options options = asking("forward:raster=4"), pinned = asking("forward:raster=2");
  tiling_of(&spec, &options, FLP_KERNEL_FORWARD, tiling);
  cr_expect_str_eq(tiling, "raster=4");
  setenv("FLP_JIT_LIBRARY", "/nowhere/libflpgen.so", 1);
  flp_plan *plan = stage_plan(&spec, &options);
  cr_expect_eq(flp_plan_get_rung(plan), FLP_RUNG_HEURISTIC);
  flp_plan_destroy(plan);
  options.tune = "forward:raster=2";
  cr_expect_eq(flp_plan_create(&spec, &options, &plan), FLP_ERROR_UNAVAILABLE);
  cr_expect_not_null(
      strstr(flp_error_detail(), "heeds options.tune and failed: /nowhere/libflpgen.so cannot be opened"), "%s",
      flp_error_detail());
  char detail[600];
  snprintf(detail, sizeof detail,
           "rung heuristic is pinned and failed: the cache %s has no sm_90a kernel forward for this spec", s.cache);
  pinned.rung = FLP_RUNG_HEURISTIC;
  expect_refused(&spec, &pinned, FLP_ERROR_UNAVAILABLE, detail);
}

/* ---- where there is nothing to ask for ---- */

#define NO_CHOICE "; those of sm_90a for operands aligned to 16 bytes leave a choice"

Test(tune_given, a_device_without_a_choice_refuses) {
  stage s;
  stage_open(&s, "capability=8.0;name=Fake A100");
  flp_spec spec = stage_spec(0);
  flp_options options = asking("forward:raster=4");
  options.host_fallback = 1;
  expect_refused(&spec, &options, FLP_ERROR_ARGUMENT,
                 "options.tune is \"forward:raster=4\", but on Fake A100 kernels of bf16 V=1000 D=64 "
                 "have one tile configuration (accepted: NULL, \"\")" NO_CHOICE);
  options.tune = "";
  flp_plan_destroy(stage_plan(&spec, &options));
}

Test(tune_given, operands_without_a_choice_refuse) {
  stage s;
  stage_open(&s, HOPPER);
  flp_spec spec = stage_spec(0);
  spec.alignment = 8;
  flp_options options = asking("forward:raster=4");
  flp_plan *plan;
  cr_expect_eq(flp_plan_create(&spec, &options, &plan), FLP_ERROR_ARGUMENT);
  cr_expect_not_null(strstr(flp_error_detail(), NO_CHOICE), "%s", flp_error_detail());
}

Test(tune_given, kernels_that_the_plan_does_not_have_are_passed_over) {
  stage s;
  char tiling[FLP_TUNABLES_TEXT_BYTES];
  stage_open(&s, HOPPER);
  flp_spec scoring = stage_spec(0), training = stage_spec(3);
  flp_options options = asking("dz:raster=4;forward_keep:stages=13");
  tiling_of(&scoring, &options, FLP_KERNEL_FORWARD, tiling);
  cr_expect_str_eq(tiling, "own");
  tiling_of(&scoring, &options, FLP_KERNEL_DZ, tiling);
  cr_expect_str_eq(tiling, "");
  tiling_of(&training, &options, FLP_KERNEL_DZ, tiling);
  cr_expect_str_eq(tiling, "raster=4");
}

Test(tune_given, rungs_whose_kernels_have_one_tiling_refuse) {
  stage s;
  stage_open(&s, HOPPER);
  flp_spec spec = stage_spec(0);
  stage_fill_generic(s.generic, &spec);
  flp_options options = asking("forward:raster=4");
  static const char refusal[] =
      "options.tune is \"forward:raster=4\", but rung %s is pinned, whose kernels have one "
      "tile configuration (accepted: NULL, \"\", or rung auto, tuned, heuristic, jit)";
  char detail[300];
  snprintf(detail, sizeof detail, refusal, "generic");
  options.rung = FLP_RUNG_GENERIC;
  expect_refused(&spec, &options, FLP_ERROR_ARGUMENT, detail);
  options.rung = FLP_RUNG_AUTO;
  setenv("FLP_FORCE", "generic", 1);
  expect_refused(&spec, &options, FLP_ERROR_ARGUMENT, detail);
  snprintf(detail, sizeof detail, refusal, "eager");
  setenv("FLP_FORCE", "", 1);
  options.device = FLP_DEVICE_HOST;
  expect_refused(&spec, &options, FLP_ERROR_ARGUMENT, detail);
  options.device = 0;
  options.tune = "";
  options.rung = FLP_RUNG_GENERIC;
  flp_plan_destroy(stage_plan(&spec, &options));
}

Test(tune_given, without_a_gpu_a_host_fallback_is_taken) {
  stage s;
  stage_open(&s, "fail:cuInit=100");
  flp_spec spec = stage_spec(0);
  flp_options options = asking("forward:raster=4");
  flp_plan *plan;
  cr_expect_eq(flp_plan_create(&spec, &options, &plan), FLP_ERROR_UNAVAILABLE);
  options.host_fallback = 1;
  plan = stage_plan(&spec, &options);
  cr_expect_eq(flp_plan_get_rung(plan), FLP_RUNG_EAGER);
  flp_plan_destroy(plan);
}
