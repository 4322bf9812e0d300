/* test_tuned_plan.c: plans and tuned kernels: those of this driver, of another one, and the tilings of the
 * nearest shape; what is logged, what is not compiled, and neighbours' tilings that do not serve. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/status.h"
#include "runtime/load/jit.h"
#include "runtime/plan/plan.h"
#include "tests/unit/support/kernel_sample.h"
#include "tests/unit/support/pack_case.h"
#include "tests/unit/support/stage.h"

static const char hopper[] = "capability=9.0;driver=13000";
static const char tiling_text[] = "forward:cooperative,256x128,stages=4;dz:raster=16;products:128x192";

static flp_spec spec_of(int64_t vocab, int64_t hidden, uint32_t grads) {
  flp_spec spec = stage_spec(grads);
  spec.vocab = vocab;
  spec.hidden = hidden;
  return spec;
}

/* Puts a kernel in the place of a key, as `flpgen tune` does. */
static void put(flp_store *store, const flp_kernel_key *key, const flp_tuning *tuning, const char *tuned_for,
                uint32_t chunk_vocab) {
  const flp_provider *provider;
  flp_kernel_image image;
  char bytes[FLP_KEY_BYTES_MAX];
  flp_kernel_key tiling = *key;
  flp_tuning_apply(tuning, &tiling, 1);
  cr_assert_eq(flp_jit_get(&provider), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(flp_jit_generate(provider, &tiling, NULL, 0, &image), FLP_OK, "%s", flp_error_detail());
  if (key->kind == FLP_KERNEL_DZ) image.desc.chunk_vocab = chunk_vocab;
  int is_plain = !flp_kind_has(key->kind, FLP_KIND_TUNE);
  size_t length = flp_kernel_key_bytes(key, flp_sources_hash(), is_plain ? "" : tuned_for, bytes, sizeof bytes);
  cr_assert_eq(flp_store_put(store, bytes, length, &image), FLP_OK, "%s", flp_error_detail());
  flp_kernel_image_clear(&image);
}

static void tune_on(const char *arch, const char *directory, const flp_spec *spec, const char *tune, int driver,
                    uint32_t chunk_vocab) {
  flp_store *store;
  flp_tuning tuning;
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  char device[64];
  snprintf(device, sizeof device, "Fake H200/132/%d", driver);
  mkdir(directory, 0700);
  cr_assert_eq(flp_tuning_parse("tune", tune, &tuning), FLP_OK);
  cr_assert_eq(flp_store_open(directory, NULL, &store), FLP_OK);
  int count = flp_kernel_keys_for(spec, arch, keys);
  for (int i = 0; i < count; i++) put(store, &keys[i], &tuning, device, chunk_vocab);
  flp_store_close(store);
}

static void tune_for(const char *directory, const flp_spec *spec, const char *tune, int driver, uint32_t chunk_vocab) {
  tune_on("sm_90a", directory, spec, tune, driver, chunk_vocab);
}

static void expect_plan(const flp_plan *plan, flp_rung rung, const char *tiling) {
  char text[4096], want[512];
  cr_expect_eq(flp_plan_get_rung(plan), rung, "rung %s", flp_rung_name(flp_plan_get_rung(plan)));
  cr_expect_str_eq(plan->tiling, tiling);
  cr_assert_eq(flp_plan_describe(plan, text, sizeof text), FLP_OK);
  snprintf(want, sizeof want, "; tiling: %s; plan id ", tiling);
  cr_expect_not_null(strstr(text, want), "%s", text);
}

static void expect_tiling(const flp_plan *plan, flp_kernel_kind kind, const char *want) {
  for (int i = 0; i < plan->modules.count; i++) {
    if (plan->modules.desc[i].key.kind != kind) continue;
    char text[FLP_TUNABLES_TEXT_BYTES];
    flp_tunables_text(&plan->modules.desc[i].key.tune, text);
    cr_expect_str_eq(text, want, "%s: %s, wanted %s", flp_kernel_kind_name(kind), text, want);
    return;
  }
  cr_expect(0, "no kernel %s", flp_kernel_kind_name(kind));
}

/* Kernels of kinds that no architecture can tune are plain: the products of sm_80, too. */
Test(tuned_plan, plain_kernels_serve_where_their_kind_leaves_nothing_to_tune) {
  stage s;
  stage_open(&s, "capability=8.0;driver=13000");
  flp_spec spec = spec_of(1000, 64, 3);
  tune_on("sm_80", s.cache, &spec, "", 13000, 512);
  int put_calls = s.provider_calls();
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_plan(plan, FLP_RUNG_TUNED, "tuned here");
  cr_expect_eq(s.provider_calls(), put_calls);
  flp_plan_destroy(plan);
}

/* An operation that has nothing to tune is not called tuned for that. */
Test(tuned_plan, plain_kernels_alone_are_not_tuned) {
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = FLP_SPEC_INIT;
  spec.op = FLP_OP_SELECT;
  spec.vocab = 1000;
  tune_for(s.cache, &spec, "", 13000, 0);
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_plan(plan, FLP_RUNG_HEURISTIC, "default");
  cr_expect_not_null(strstr(flp_plan_get_reason(plan, FLP_RUNG_TUNED), " has no kernel tuned for Fake H200/132/13000"));
  flp_plan_destroy(plan);
}

/* ---- another driver ---- */

Test(tuned_plan, of_this_driver) {
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = spec_of(1000, 64, 3);
  tune_for(s.cache, &spec, tiling_text, 12040, 0);
  tune_for(s.cache, &spec, "forward:raster=32", 13000, 0);
  int put_calls = s.provider_calls();
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_plan(plan, FLP_RUNG_TUNED, "tuned here");
  expect_tiling(plan, FLP_KERNEL_FORWARD, "raster=32");
  cr_expect_eq(s.provider_calls(), put_calls);
  flp_plan_destroy(plan);
}

Test(tuned_plan, of_another_driver) {
  static const struct {
    int drivers[4];
    const char *tiling, *text;
  } cases[] = {{{12040, 12080, 13010, 13020}, "raster=2", "tuned with driver 12080"},
               {{12080, 12040}, "raster=1", "tuned with driver 12080"},
               {{13020, 13010}, "raster=2", "tuned with driver 13010"},
               {{13020, 9000}, "raster=2", "tuned with driver 9000"},
               {{12080, 13000, 13010}, "raster=2", "tuned here"}};
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = spec_of(1000, 64, 3);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char directory[300], tune[32];
    snprintf(directory, sizeof directory, "%s/case%zu", s.root, i);
    for (int j = 0; j < 4 && cases[i].drivers[j]; j++) {
      snprintf(tune, sizeof tune, "forward:raster=%d", j + 1);
      tune_for(directory, &spec, tune, cases[i].drivers[j], 0);
    }
    setenv("FLP_CACHE_DIR", directory, 1);
    flp_plan *plan = stage_plan(&spec, NULL);
    expect_plan(plan, FLP_RUNG_TUNED, cases[i].text);
    expect_tiling(plan, FLP_KERNEL_FORWARD, cases[i].tiling);
    cr_expect_str_eq(flp_plan_get_reason(plan, FLP_RUNG_TUNED), "");
    flp_plan_destroy(plan);
  }
}

Test(tuned_plan, of_another_driver_each_kernel_for_itself) {
  stage s;
  stage_open(&s, hopper);
  flp_spec full = spec_of(1000, 64, 3), scoring = spec_of(1000, 64, 0);
  tune_for(s.cache, &full, tiling_text, 12080, 0);
  tune_for(s.cache, &scoring, "forward:raster=32", 12090, 0);
  flp_plan *plan = stage_plan(&full, NULL);
  expect_plan(plan, FLP_RUNG_TUNED, "tuned with driver 12090 and 12080");
  expect_tiling(plan, FLP_KERNEL_FORWARD, "raster=32");
  flp_plan_destroy(plan);
}

Test(tuned_plan, a_corrupt_entry_of_one_driver_leaves_the_next) {
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = spec_of(1000, 64, 0);
  char newer[300], command[1200];
  snprintf(newer, sizeof newer, "%s/newer", s.root);
  tune_for(s.cache, &spec, "forward:raster=2", 12040, 0);
  tune_for(newer, &spec, "forward:raster=4", 12080, 0);
  snprintf(
      command, sizeof command,
      "for f in '%s'/*.flpk; do printf X | dd of=\"$f\" bs=1 seek=2000 conv=notrunc 2>/dev/null; done; cp -p '%s'/*.flpk '%s'",
      newer, newer, s.cache);
  cr_assert_eq(system(command), 0);
  tune_for(s.cache, &spec, "forward:raster=2", 12040, 0); /* its rows, which the copy spoilt */
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_plan(plan, FLP_RUNG_TUNED, "tuned with driver 12040");
  expect_tiling(plan, FLP_KERNEL_FORWARD, "raster=2");
  flp_plan_destroy(plan);
}

static void pack_directory(const char *directory, const char *out, const uint8_t *seed) {
  cli_pack_items items = {.count = 0};
  uint64_t left_out = 0;
  cr_assert_eq(cli_pack_add_from(&items, directory, &left_out), FLP_OK, "%s", flp_error_detail());
  pack_case p = pack_case_encode(&items, seed);
  FILE *file = fopen(out, "w");
  cr_assert(file && fwrite(p.bytes, 1, p.length, file) == p.length && fclose(file) == 0);
  free(p.bytes);
  cli_pack_items_clear(&items);
}

Test(tuned_plan, packs_serve_as_directories_do) {
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = spec_of(1000, 64, 3), near = spec_of(1200, 64, 3);
  char full[512], pack[512];
  snprintf(full, sizeof full, "%s/full", s.root);
  snprintf(pack, sizeof pack, "%s/kernels.flpp", s.root);
  tune_for(full, &spec, tiling_text, 12080, 0);
  pack_directory(full, pack, NULL);
  setenv("FLP_CACHE_PATH", pack, 1);
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_plan(plan, FLP_RUNG_TUNED, "tuned with driver 12080");
  expect_tiling(plan, FLP_KERNEL_DZ, "raster=16");
  flp_plan_destroy(plan);
  plan = stage_plan(&near, NULL);
  expect_plan(plan, FLP_RUNG_JIT, "as the nearest tuned shape, V=1000 D=64");
  flp_plan_destroy(plan);
  char keys[80];
  snprintf(keys, sizeof keys, "%064d", 7);
  setenv("FLP_PACK_KEYS", keys, 1);
  near.vocab = 1300;
  plan = stage_plan(&near, NULL);
  expect_plan(plan, FLP_RUNG_JIT, "default"); /* a pack that is not trusted does not count */
  flp_plan_destroy(plan);
}

/* ---- forward_keep ---- */

static flp_spec keeping(int64_t vocab) {
  flp_spec spec = spec_of(vocab, 64, 3);
  spec.keep = 1;
  return spec;
}

/* Expects a plan of the rung `tuned` with this text. */
static void expect_keep(const flp_spec *spec, const char *origin, const char *tiling) {
  flp_plan *plan = stage_plan(spec, NULL);
  expect_plan(plan, FLP_RUNG_TUNED, origin);
  expect_tiling(plan, FLP_KERNEL_KEEP, tiling);
  flp_plan_destroy(plan);
}

Test(tuned_plan, forward_keep_is_tuned_as_others_are) {
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = keeping(1000);
  tune_for(s.cache, &spec, "forward_keep:raster=2", 12080, 0);
  expect_keep(&spec, "tuned with driver 12080", "raster=2");
  tune_for(s.cache, &spec, "forward_keep:raster=4", 13000, 0);
  expect_keep(&spec, "tuned here", "raster=4");
}

/* A plain entry serves a head that was tuned without --keep, and comes behind one of another driver. */
Test(tuned_plan, a_plain_forward_keep_serves_a_tuned_head) {
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = keeping(1000), head = spec_of(1000, 64, 3);
  flp_plan_destroy(stage_plan(&spec, NULL)); /* makes the plain ones */
  tune_for(s.cache, &head, tiling_text, 13000, 0);
  expect_keep(&spec, "tuned here", "own");
  tune_for(s.cache, &spec, "forward_keep:raster=2", 12080, 0);
  expect_keep(&spec, "tuned with driver 13000 and 12080", "raster=2");
}

Test(tuned_plan, forward_keep_has_the_tiling_of_the_nearest) {
  stage s;
  stage_open(&s, hopper);
  flp_spec near = keeping(2000), spec = keeping(1000);
  tune_for(s.cache, &near, "forward_keep:cooperative,256x128,stages=4", 13000, 0);
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_plan(plan, FLP_RUNG_JIT, "as the nearest tuned shape, V=2000 D=64");
  expect_tiling(plan, FLP_KERNEL_KEEP, "cooperative,256x128,stages=4");
  expect_tiling(plan, FLP_KERNEL_FORWARD, "own");
  cr_expect_eq(stage_logged("`flpgen tune --vocab 1000 --hidden 64 --dtype bf16 --grad hidden,weight --keep` would"), 1,
               "%s", stage_messages());
  flp_plan_destroy(plan);
}

/* ---- the nearest shape ---- */

Test(tuned_plan, tiling_of_the_nearest_shape) {
  stage s;
  stage_open(&s, hopper);
  flp_spec near = spec_of(2000, 64, 3), far = spec_of(1000, 512, 3), spec = spec_of(1000, 64, 7);
  tune_for(s.cache, &near, tiling_text, 13000, 0);
  tune_for(s.cache, &far, "forward:raster=64;dz:raster=64;products:raster=64", 13000, 0);
  int put_calls = s.provider_calls();
  spec.softcap = 30;
  spec.entropy = FLP_ENTROPY_BACKWARD;
  spec.target_dtype = FLP_DTYPE_INT32;
  spec.grad_weight_dtype = FLP_DTYPE_FP32;
  spec.per_row_temperature = spec.accumulate_grad_weight = 1;
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_plan(plan, FLP_RUNG_JIT, "as the nearest tuned shape, V=2000 D=64");
  expect_tiling(plan, FLP_KERNEL_FORWARD, "cooperative,256x128,stages=4");
  expect_tiling(plan, FLP_KERNEL_DZ, "raster=16");
  expect_tiling(plan, FLP_KERNEL_PRODUCTS, "128x192");
  cr_expect_eq(s.provider_calls() - put_calls, 4, "rows, forward, dz, products: each once");
  cr_expect_eq(stage_logged("2 V=1000 D=64: not tuned on Fake H200; it has the tile configuration of the nearest tuned "
                            "shape V=2000 D=64; "
                            "`flpgen tune --vocab 1000 --hidden 64 --dtype bf16 --target-dtype int32 --entropy "
                            "backward --grad hidden,weight,bias --bias --softcap 30 --per-row-temperature "
                            "--grad-weight-dtype fp32 --accumulate-grad-weight` would tune it\n"),
               1, "%s", stage_messages());
  char id[17], again[17];
  cr_assert_eq(flp_plan_get_id(plan, id), FLP_OK);
  flp_plan_destroy(plan);
  plan = stage_plan(&spec, NULL);
  expect_plan(plan, FLP_RUNG_HEURISTIC, "as the nearest tuned shape, V=2000 D=64");
  cr_assert_eq(flp_plan_get_id(plan, again), FLP_OK);
  cr_expect_str_eq(id, again);
  cr_expect_eq(s.provider_calls() - put_calls, 4);
  cr_expect_eq(stage_logged("not tuned on"), 1, "logged once per spec");
  flp_plan_destroy(plan);
  spec.vocab = 1100;
  flp_plan_destroy(stage_plan(&spec, NULL));
  cr_expect_eq(stage_logged("not tuned on"), 2);
}

Test(tuned_plan, a_plain_kernel_of_the_cache_is_taken_before_one_is_made) {
  stage s;
  stage_open(&s, hopper);
  flp_spec near = spec_of(2000, 64, 0), spec = spec_of(1000, 64, 0);
  flp_plan_destroy(stage_plan(&spec, NULL));
  cr_expect_eq(s.provider_calls(), 2);
  tune_for(s.cache, &near, tiling_text, 13000, 0);
  int put_calls = s.provider_calls();
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_plan(plan, FLP_RUNG_HEURISTIC, "default");
  cr_expect_eq(s.provider_calls(), put_calls);
  cr_expect_eq(stage_logged("not tuned on"), 0, "%s", stage_messages());
  flp_plan_destroy(plan);
}

Test(tuned_plan, kernels_may_have_different_neighbours) {
  stage s;
  stage_open(&s, hopper);
  flp_spec scoring = spec_of(1000, 128, 0), full = spec_of(1000, 512, 3), spec = spec_of(1000, 120, 3);
  tune_for(s.cache, &scoring, "forward:raster=2", 13000, 0);
  tune_for(s.cache, &full, tiling_text, 12080, 0);
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_plan(plan, FLP_RUNG_JIT, "as the nearest tuned shape, forward V=1000 D=128, dz V=1000 D=512, products D=512");
  expect_tiling(plan, FLP_KERNEL_FORWARD, "raster=2");
  flp_plan_destroy(plan);
}

Test(tuned_plan, nothing_changes_where_neighbours_have_default_tilings) {
  stage s;
  stage_open(&s, hopper);
  flp_spec near = spec_of(2000, 64, 3), spec = spec_of(1000, 64, 3);
  char without[17], with[17];
  flp_plan *plan = stage_plan(&spec, NULL);
  cr_assert_eq(flp_plan_get_id(plan, without), FLP_OK);
  flp_plan_destroy(plan);
  tune_for(s.cache, &near, "", 13000, 20000);
  int put_calls = s.provider_calls();
  plan = stage_plan(&spec, NULL);
  expect_plan(plan, FLP_RUNG_HEURISTIC, "default");
  cr_assert_eq(flp_plan_get_id(plan, with), FLP_OK);
  cr_expect_str_eq(with, without);
  cr_expect_eq(plan->planner.tuned_mode, 0, "chunks are of the shape that was tuned");
  cr_expect_eq(s.provider_calls(), put_calls);
  cr_expect_eq(stage_logged("not tuned on"), 0);
  flp_plan_destroy(plan);
}

Test(tuned_plan, nothing_is_reported_where_nothing_was_tuned) {
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = spec_of(1000, 64, 3), near = spec_of(2000, 64, 3);
  tune_for(s.cache, &near, tiling_text, 13000, 0);
  s.script("capability=9.0;driver=13000;name=Other");
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_plan(plan, FLP_RUNG_JIT, "default");
  cr_expect_eq(stage_logged("nearest tuned"), 0, "%s", stage_messages());
  flp_plan_destroy(plan);
}

/* ---- what asks for something else ---- */

Test(tuned_plan, options_and_pins_come_first) {
  stage s;
  stage_open(&s, hopper);
  flp_spec near = spec_of(2000, 64, 3), spec = spec_of(1000, 64, 3);
  tune_for(s.cache, &near, tiling_text, 13000, 0);
  flp_options options = FLP_OPTIONS_INIT;
  options.tune = "";
  flp_plan *plan = stage_plan(&spec, &options);
  expect_plan(plan, FLP_RUNG_JIT, "as the options ask");
  expect_tiling(plan, FLP_KERNEL_FORWARD, "own");
  flp_plan_destroy(plan);
  options.tune = "forward:raster=4";
  plan = stage_plan(&spec, &options);
  expect_plan(plan, FLP_RUNG_JIT, "as the options ask");
  expect_tiling(plan, FLP_KERNEL_FORWARD, "raster=4");
  flp_plan_destroy(plan);
  options.tune = NULL;
  options.rung = FLP_RUNG_JIT;
  spec.vocab = 1100;
  plan = stage_plan(&spec, &options);
  expect_plan(plan, FLP_RUNG_JIT, "default");
  flp_plan_destroy(plan);
  setenv("FLP_FORCE", "jit", 1);
  spec.vocab = 1200;
  plan = stage_plan(&spec, NULL);
  expect_plan(plan, FLP_RUNG_JIT, "default");
  flp_plan_destroy(plan);
  cr_expect_eq(stage_logged("nearest tuned"), 0, "%s", stage_messages());
}

Test(tuned_plan, portable_kernels_leave_no_choice) {
  stage s;
  stage_open(&s, "capability=8.0;driver=13000");
  flp_spec near = spec_of(2000, 64, 3), spec = spec_of(1000, 64, 3);
  tune_for(s.cache, &near, tiling_text, 13000, 0);
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_plan(plan, FLP_RUNG_JIT, "default");
  flp_plan_destroy(plan);
}

/* ---- a neighbour's tiling that does not serve ---- */

Test(tuned_plan, a_tiling_that_does_not_load_is_replaced_by_the_default) {
  stage s;
  stage_open(&s, hopper);
  flp_spec near = spec_of(2000, 64, 3), spec = spec_of(1000, 64, 3);
  tune_for(s.cache, &near, tiling_text, 13000, 0);
  setenv("FLP_STRICT", "1", 1);
  s.script("capability=9.0;driver=13000;fail:cuModuleLoadDataEx=218@1");
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_plan(plan, FLP_RUNG_JIT, "default");
  expect_tiling(plan, FLP_KERNEL_FORWARD, "own");
  cr_expect_eq(
      stage_logged("1 kernels with the tiling of the nearest tuned shape are not taken on rung jit: kernel forward: "
                   "cuModuleLoadDataEx failed: CUDA_ERROR_INVALID_PTX (218)"),
      1, "%s", stage_messages());
  cr_expect_eq(stage_logged("not tuned on"), 0);
  flp_plan_destroy(plan);
}

Test(tuned_plan, a_neighbour_that_cannot_be_read_leaves_the_next) {
  stage s;
  stage_open(&s, hopper);
  flp_spec near = spec_of(1100, 64, 0), next = spec_of(4000, 64, 0), spec = spec_of(1000, 64, 0);
  char spoilt[300], command[1024];
  snprintf(spoilt, sizeof spoilt, "%s/spoilt", s.root);
  tune_for(spoilt, &near, "forward:raster=2", 13000, 0);
  snprintf(command, sizeof command,
           "for f in '%s'/*.flpk; do printf X | dd of=\"$f\" bs=1 seek=800 conv=notrunc 2>/dev/null; done", spoilt);
  cr_assert_eq(system(command), 0);
  tune_for(s.cache, &next, "forward:raster=4", 13000, 0);
  setenv("FLP_CACHE_PATH", spoilt, 1);
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_plan(plan, FLP_RUNG_JIT, "as the nearest tuned shape, V=4000 D=64");
  expect_tiling(plan, FLP_KERNEL_FORWARD, "raster=4");
  flp_plan_destroy(plan);
}

/* The real generator, on what only a stand-in would have made. */
Test(tuned_plan, a_tiling_that_the_template_refuses_is_replaced_by_the_default) {
  stage s;
  stage_open(&s, hopper);
  flp_spec near = spec_of(2000, 64, 0), spec = spec_of(1000, 64, 0);
  tune_for(s.cache, &near, "forward:300x300", 13000, 0);
  setenv("FLP_JIT_LIBRARY", FLP_TEST_FLPGEN_LIBRARY, 1);
  setenv("FLP_STRICT", "1", 1);
  flp_plan *plan = stage_plan(&spec, NULL);
  expect_plan(plan, FLP_RUNG_JIT, "default");
  cr_expect_eq(
      stage_logged("1 kernels with the tiling of the nearest tuned shape are not taken on rung jit: kernel forward: "),
      1, "%s", stage_messages());
  cr_expect_not_null(strstr(stage_messages(), "300 is not accepted"), "%s", stage_messages());
  flp_plan_destroy(plan);
}

/* ---- layouts ---- */

Test(tuned_plan, the_tuned_layout_reaches_the_plan) {
  stage s;
  stage_open(&s, hopper);
  flp_spec spec = spec_of(151936, 4096, 3);
  tune_for(s.cache, &spec, tiling_text, 13000, 20000);
  flp_plan *plan = stage_plan(&spec, NULL);
  flp_layout layout = FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, 8192, 0, &layout), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(layout.mode, FLP_MODE_RECOMPUTE_VOCAB);
  cr_expect_eq(layout.chunk_vocab, 20000);
  flp_plan_destroy(plan);
  flp_options options = FLP_OPTIONS_INIT;
  options.chunk_vocab = 4096;
  plan = stage_plan(&spec, &options);
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, 8192, 0, &layout), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(layout.chunk_vocab, 4096);
  flp_plan_destroy(plan);
}
