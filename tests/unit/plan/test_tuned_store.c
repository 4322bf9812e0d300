/* test_tuned_store.c: what `flpgen tune` stores is what a plan finds: kernels, their tile configurations, and the
 * layout. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "gen/cli/tune/store.h"
#include "runtime/plan/plan.h"
#include "tests/unit/support/stage.h"
#include "tests/unit/support/words.h"

/* A session that has chosen something, on the stand-in device. */
typedef struct scene {
  stage stage;
  tune_args args;
  tune_head target;
  cli_device device;
  tune_session session;
} scene;

static void open_scene(scene *s) {
  memset(s, 0, sizeof *s);
  stage_open(&s->stage, "capability=9.0;driver=13000");
  s->args.rows = 8192;
  s->target.spec = words_spec("V=151936 D=4096 grads=hidden,weight");
  const flp_driver *driver;
  cr_assert_eq(flp_driver_get(&driver), FLP_OK);
  s->device.driver = driver;
  cr_assert_eq(flp_device_get(driver, 0, &s->device.info), FLP_OK);
  s->session.args = &s->args;
  s->session.target = &s->target;
  s->session.device = &s->device;
  s->session.arch = "sm_90a";
}

static flp_plan *stored_plan(scene *s, flp_layout *layout) {
  char made_in[400];
  snprintf(made_in, sizeof made_in, "%s/made", s->stage.root);
  tune_compile_pool compile_pool = {.directory = made_in};
  s->session.compile_pool = &compile_pool;
  cr_assert_eq(tune_store(&s->session, s->stage.cache), FLP_OK, "%s", flp_error_detail());
  flp_plan *plan = stage_plan(&s->target.spec, NULL);
  cr_expect_eq(flp_plan_get_rung(plan), FLP_RUNG_TUNED, "%s", stage_messages());
  cr_expect_str_eq(plan->tiling, "tuned here");
  *layout = (flp_layout)FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, 8192, 0, layout), FLP_OK, "%s", flp_error_detail());
  return plan;
}

Test(tuned_store, kernels_have_the_chosen_tiling) {
  scene s;
  flp_layout untuned, layout;
  open_scene(&s);
  flp_plan *plan = stage_plan(&s.target.spec, NULL);
  untuned = (flp_layout)FLP_LAYOUT_INIT;
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_BACKWARD, 8192, 0, &untuned), FLP_OK);
  flp_plan_destroy(plan);
  s.session.chosen.of[FLP_KERNEL_FORWARD].raster = 32;
  plan = stored_plan(&s, &layout);
  cr_expect_eq(layout.mode, untuned.mode);
  cr_expect_eq(layout.chunk_rows, untuned.chunk_rows);
  cr_expect_eq(layout.chunk_vocab, untuned.chunk_vocab);
  for (int i = 0; i < plan->modules.count; i++)
    cr_expect_eq(plan->modules.desc[i].key.tune.raster, plan->modules.desc[i].key.kind == FLP_KERNEL_FORWARD ? 32 : 0);
  flp_plan_destroy(plan);
}

/* As the search leaves them: whole along an axis without chunks; and one chunk of everything is no preference. */
Test(tuned_store, the_layout_that_was_chosen_is_taken) {
  static const struct {
    uint32_t grads;
    flp_mode mode;
    int64_t rows, vocab;
    flp_mode tuned;
    int64_t tuned_rows, tuned_vocab;
  } cases[] = {{3, FLP_MODE_RECOMPUTE_VOCAB, 8192, 20000, FLP_MODE_RECOMPUTE_VOCAB, 0, 20000},
               {3, FLP_MODE_RECOMPUTE_SPLIT, 1024, 9000, FLP_MODE_RECOMPUTE_SPLIT, 1024, 9000},
               {1, FLP_MODE_RECOMPUTE_ROWS, 1536, 151936, FLP_MODE_RECOMPUTE_ROWS, 1536, 0},
               {3, FLP_MODE_RECOMPUTE_ROWS, 8192, 151936, (flp_mode)0, 0, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    scene s;
    flp_layout layout;
    open_scene(&s);
    s.target.spec.grads = cases[i].grads;
    s.session.mode = cases[i].mode;
    s.session.chunk_rows = cases[i].rows;
    s.session.chunk_vocab = cases[i].vocab;
    flp_plan *plan = stored_plan(&s, &layout);
    const flp_planner *p = &plan->planner;
    cr_expect_eq(p->tuned_mode, cases[i].tuned, "case %zu", i);
    cr_expect(p->tuned_rows == cases[i].tuned_rows && p->tuned_vocab == cases[i].tuned_vocab, "case %zu", i);
    if (cases[i].tuned)
      cr_expect(layout.mode == cases[i].mode && layout.chunk_rows == cases[i].rows &&
                    layout.chunk_vocab == cases[i].vocab, "case %zu", i);
    flp_plan_destroy(plan);
  }
}

static const flp_kernel_desc *keep_of(const flp_plan *plan) {
  for (int i = 0; i < plan->modules.count; i++)
    if (plan->modules.desc[i].key.kind == FLP_FORWARD(KEEP)) return &plan->modules.desc[i];
  return NULL;
}

Test(tuned_store, forward_keep_has_the_chosen_tiling_and_chunks) {
  scene s;
  flp_layout layout = FLP_LAYOUT_INIT, backward;
  open_scene(&s);
  words_change_spec(&s.target.spec, "grads=hidden loss=grpo");
  s.session.streams = 1;
  s.session.chosen.of[FLP_FORWARD(KEEP)].raster = 32;
  s.session.mode = FLP_MODE_STREAM;
  s.session.chunk_rows = 1792;
  s.session.chunk_vocab = 151936;
  flp_plan *plan = stored_plan(&s, &backward);
  cr_expect_eq(keep_of(plan)->key.tune.raster, 32);
  cr_expect_eq(plan->planner.tuned_step_rows, 1792);
  cr_expect_eq(plan->planner.tuned_mode, 0, "nothing is known of recompute mode");
  cr_assert_eq(flp_plan_layout(plan, FLP_PASS_STEP, 8192, (uint64_t)1 << 30, &layout), FLP_OK);
  cr_expect_eq(layout.mode, FLP_MODE_STREAM);
  cr_expect_eq(layout.chunk_rows, 1792);
  flp_plan_destroy(plan);
}

/* Where steps run in recompute mode nothing is found out of it, and its plain entry is what is stored. */
Test(tuned_store, forward_keep_that_was_not_searched_is_stored_plain) {
  scene s;
  flp_layout layout;
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  char bytes[FLP_KEY_BYTES_MAX];
  open_scene(&s);
  s.target.spec.keep = 1;
  flp_plan *plan = stored_plan(&s, &layout);
  int count = flp_kernel_keys_for(&s.target.spec, "sm_90a", keys), found = 0;
  flp_store *store;
  cr_assert_eq(flp_store_open(s.stage.cache, NULL, &store), FLP_OK);
  for (int i = 0; i < count; i++) {
    flp_kernel_image image;
    if (keys[i].kind != FLP_FORWARD(KEEP)) continue;
    size_t length = flp_kernel_key_bytes(&keys[i], flp_sources_hash(), "", bytes, sizeof bytes);
    cr_assert_eq(flp_store_get(store, bytes, length, &image, &found), FLP_OK);
    flp_kernel_image_clear(&image);
  }
  cr_expect(found);
  flp_store_close(store);
  flp_plan_destroy(plan);
}
