/* test_tuned_plan.c: packs of tuned kernels serve plans as directories do (tests/golden/plan), if they are trusted. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "runtime/plan/plan.h"
#include "tests/unit/support/pack_case.h"
#include "tests/unit/support/stage.h"
#include "tests/unit/support/words.h"

static void pack_directory(const char *directory, const char *out) {
  cli_pack_items items = {.count = 0};
  uint64_t left_out = 0;
  cr_assert_eq(cli_pack_add_from(&items, directory, &left_out), FLP_OK, "%s", flp_error_detail());
  pack_case p = pack_case_encode(&items, NULL);
  FILE *file = fopen(out, "w");
  cr_assert(file && fwrite(p.bytes, 1, p.length, file) == p.length && fclose(file) == 0);
  free(p.bytes);
  cli_pack_items_clear(&items);
}

static void expect_plan(const char *words, flp_rung rung, const char *tiling) {
  flp_spec spec = words_spec(words);
  flp_plan *plan = stage_plan(&spec, NULL);
  cr_expect_eq(plan->rung, rung, "%s", flp_rung_name(plan->rung));
  cr_expect_str_eq(plan->tiling, tiling);
  for (int i = 0; i < plan->modules.count && rung == FLP_RUNG_TUNED; i++)
    cr_expect_eq(plan->modules.desc[i].key.tune.raster, plan->modules.desc[i].key.kind == FLP_KERNEL_DZ ? 16 : 0);
  flp_plan_destroy(plan);
}

Test(tuned_plan, packs_serve_as_directories_do) {
  stage s;
  char full[512], pack[512], keys[80];
  flp_spec spec = words_spec("grads=hidden,weight");
  stage_open(&s, "capability=9.0;driver=13000");
  snprintf(full, sizeof full, "%s/full", s.root);
  snprintf(pack, sizeof pack, "%s/kernels.flpp", s.root);
  stage_filling how = {.arch = "sm_90a", .tuned_for = "Fake H200/132/12080", .tune = "dz:raster=16"};
  stage_fill(full, &spec, how);
  pack_directory(full, pack);
  setenv("FLP_CACHE_PATH", pack, 1);
  expect_plan("grads=hidden,weight", FLP_RUNG_TUNED, "tuned with driver 12080");
  expect_plan("V=1200 grads=hidden,weight", FLP_RUNG_JIT, "as the nearest tuned shape, V=1000 D=64");
  snprintf(keys, sizeof keys, "%064d", 7);
  setenv("FLP_PACK_KEYS", keys, 1);
  expect_plan("V=1300 grads=hidden,weight", FLP_RUNG_JIT, "default");
}
