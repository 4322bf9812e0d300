/* test_space.c: the mirror of the templates in autotune/space.c, held to what the templates themselves answer.
 *
 * The generator is asked with copies of the templates that end in an error: every kernel once it is built, before LLVM
 * sees it; or once it is decided how it is cut. */
#include "autotune/space.h"
#include "runtime/api/validate.h"
#include "runtime/base/status.h"
#include "tests/unit/support/gen_case.h"

static const flp_kernel_kind kinds[] = {FLP_KERNEL_FORWARD, FLP_KERNEL_DZ, FLP_KERNEL_PRODUCTS, FLP_KERNEL_KEEP};
enum { KINDS = 4 };

/* Exponentials are kept of bf16 operands alone. */
static int is_there(flp_kernel_kind kind, flp_dtype dtype) {
  return kind != FLP_KERNEL_KEEP || dtype == FLP_DTYPE_BF16;
}

static flp_spec spec_of(flp_dtype dtype, int64_t hidden, int bias) {
  flp_spec spec = FLP_SPEC_INIT, resolved;
  spec.vocab = 4000;
  spec.hidden = hidden;
  spec.dtype = dtype;
  spec.has_bias = bias;
  spec.keep = is_there(FLP_KERNEL_KEEP, dtype);
  spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | (bias ? FLP_GRAD_BIAS : 0);
  cr_assert_eq(flp_spec_resolve(&spec, &resolved), FLP_OK, "%s", flp_error_detail());
  return resolved;
}

/* ---- asking the templates ---- */

/* A copy of the templates, made once; `text` takes the place of a file, which is then called <name>_own. */
static const char *copy_templates(const char *folder_name) {
  char command[11000];
  const char *folder = gen_case_folder(folder_name);
  snprintf(command, sizeof command, "cp -r '%s/templates/.' '%s'", FLP_TEST_TREE, folder);
  cr_assert_eq(system(command), 0);
  return folder;
}

static void put_template(const char *folder, const char *name, const char *text) {
  char from[5200], to[5200], file[64];
  snprintf(file, sizeof file, "sm_90a/%s.lua", name);
  snprintf(from, sizeof from, "%s/%s", folder, file);
  snprintf(to, sizeof to, "%s/sm_90a/%s_own.lua", folder, name);
  cr_assert_eq(rename(from, to), 0, "%s", from);
  gen_case_write(folder, file, text, strlen(text));
}

static const char *ask(const char *folder, flp_kernel_kind kind, const flp_spec *spec, const flp_tunables *tune) {
  static char error[512];
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  flpgen_options options = {.template_dir = folder};
  flpgen_result result;
  int count = flp_kernel_keys_for(spec, "sm_90a", keys), i = 0;
  while (i < count && keys[i].kind != kind) i++;
  cr_assert_lt(i, count);
  if (tune) keys[i].tune = *tune;
  cr_assert_eq(flpgen_generate(&keys[i], &options, &result, error, sizeof error), FLP_ERROR_COMPILE);
  flpgen_result_clear(&result);
  return error;
}

/* ---- what the templates choose ---- */

Test(space, its_own_choice_is_the_templates) {
  static const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32};
  static const int64_t depths[] = {8, 896, 1152, 2880, 4096, 4160, 16384};
  const char *folder = copy_templates("own");
  put_template(folder, "engine",
               "return function(k, spec, T)\n  error((\"%s,%dx%d,stages=%d,cluster=%d,raster=%d\"):format("
               "T.schedule, T.rows, T.columns, T.stages, T.cluster, T.raster), 0)\nend\n");
  for (int i = 0; i < KINDS * 3 * 7 * 2; i++) {
    flp_kernel_kind kind = kinds[i % KINDS];
    flp_spec spec = spec_of(dtypes[i / KINDS % 3], depths[i / (3 * KINDS) % 7], i / (21 * KINDS));
    char text[FLP_TUNABLES_TEXT_BYTES];
    flp_tunables own = space_own(kind, &spec);
    if (!is_there(kind, spec.dtype)) continue;
    flp_tunables_text(&own, text);
    cr_expect_str_eq(text, ask(folder, kind, &spec, NULL), "%s of dtype %d, D=%lld", flp_kernel_kind_name(kind),
                     (int)spec.dtype, (long long)spec.hidden);
  }
  gen_case_remove(folder);
}

/* As tune.lua's panel has it: of kernels for any D, 4096 columns. */
Test(space, without_a_depth_the_raster_is_that_of_4096_columns) {
  for (int i = 0; i < KINDS; i++) {
    flp_spec spec = spec_of(FLP_DTYPE_BF16, 4096, 0);
    flp_tunables known = space_own(kinds[i], &spec);
    spec.hidden = 0;
    cr_expect_eq(space_own(kinds[i], &spec).raster, known.raster, "%s", flp_kernel_kind_name(kinds[i]));
  }
}

/* ---- what they accept ---- */

static int asked, accepted;

static void compare(const char *folder, flp_kernel_kind kind, const flp_spec *spec, flp_tunables tune) {
  char reason[SPACE_REASON_BYTES] = "built", text[FLP_TUNABLES_TEXT_BYTES];
  int legal = space_accepts(kind, spec, &tune, reason);
  flp_tunables_text(&tune, text);
  cr_expect_str_eq(reason, ask(folder, kind, spec, &tune), "%s, dtype %d: %s", flp_kernel_kind_name(kind),
                   (int)spec->dtype, text);
  cr_expect_eq(legal, strcmp(reason, "built") == 0);
  asked++;
  accepted += legal;
}

/* The least and the most stages that a tile takes, and one too many; each size of a cluster. */
static void compare_tile(const char *folder, flp_kernel_kind kind, const flp_spec *spec, flp_tunables tune) {
  tune.raster = 8;
  tune.cluster = 1;
  for (tune.stages = 2; tune.stages < 13 && space_accepts(kind, spec, &tune, NULL);) tune.stages++;
  compare(folder, kind, spec, tune);
  if (tune.stages == 2) return;
  tune.stages--;
  for (tune.cluster = 1; tune.cluster <= 4; tune.cluster *= 2) compare(folder, kind, spec, tune);
}

static void compare_all(const char *folder, flp_kernel_kind kind, const flp_spec *spec) {
  static const uint32_t sides[] = {64, 96, 128, 192, 256, 320};
  for (uint32_t schedule = FLP_SCHEDULE_PING_PONG; schedule <= FLP_SCHEDULE_COOPERATIVE; schedule++)
    for (int r = 0; r < 6; r++)
      for (int c = 0; c < 6; c++)
        compare_tile(folder, kind, spec, (flp_tunables){schedule, sides[r], sides[c], 0, 0, 0});
  flp_tunables tune = space_own(kind, spec);
  const flp_tunables odd[] = {{tune.schedule, tune.rows, tune.columns, 1, tune.cluster, tune.raster},
                              {tune.schedule, tune.rows, tune.columns, tune.stages, 3, tune.raster},
                              {tune.schedule, tune.rows, tune.columns, tune.stages, 8, tune.raster},
                              {tune.schedule, tune.rows, tune.columns, tune.stages, tune.cluster, 64},
                              {tune.schedule, tune.rows, tune.columns, tune.stages, tune.cluster, 65}};
  for (int i = 0; i < 5; i++) compare(folder, kind, spec, odd[i]);
}

Test(space, accepts_and_refuses_as_the_templates_do) {
  const char *folder = copy_templates("ends");
  for (int k = 0; k < KINDS; k++) {
    char text[200];
    /* forward's template is one with forward_keep's */
    const char *name = kinds[k] == FLP_KERNEL_FORWARD ? "online" : flp_kernel_kind_name(kinds[k]);
    snprintf(text, sizeof text,
             "return function(k, spec, ...)\n  k.import \"%s_own\" (k, spec, ...)\n  error(\"built\", 0)\nend\n", name);
    put_template(folder, name, text);
  }
  for (int wide = 0; wide < 2; wide++)
    for (int bias = 0; bias < 2; bias++) {
      flp_spec spec = spec_of(wide ? FLP_DTYPE_FP32 : FLP_DTYPE_BF16, 512, bias);
      for (int k = 0; k < KINDS; k++)
        if (is_there(kinds[k], spec.dtype) && (!bias || kinds[k] == FLP_KERNEL_DZ))
          compare_all(folder, kinds[k], &spec);
    }
  cr_expect(accepted > 150 && asked - accepted > 500, "%d of %d are accepted", accepted, asked);
  gen_case_remove(folder);
}

/* ---- the list ---- */

static int compare_points(const space_point *a, const space_point *b) {
  const uint32_t x[] = {a->tune.schedule, a->tune.rows,    a->tune.columns,
                        a->tune.stages,   a->tune.cluster, a->tune.raster};
  const uint32_t y[] = {b->tune.schedule, b->tune.rows,    b->tune.columns,
                        b->tune.stages,   b->tune.cluster, b->tune.raster};
  for (int i = 0; i < 6; i++)
    if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
  return 0;
}

static int is_listed(const space_points *points, const flp_tunables *tune) {
  for (int i = 0; i < points->count; i++)
    if (points->items[i].legal && memcmp(&points->items[i].tune, tune, sizeof *tune) == 0) return 1;
  return 0;
}

/* Holds a point to space_accepts, whatever its fields are that are not said. */
static void compare_point(flp_kernel_kind kind, const flp_spec *spec, const space_point *point) {
  static const uint32_t clusters[] = {1, 2, 4}, rasters[] = {1, 5, 64};
  for (int i = 0; i < 9; i++) {
    flp_tunables tune = point->tune;
    char reason[SPACE_REASON_BYTES] = "";
    if (!tune.cluster) tune.cluster = clusters[i % 3];
    if (!tune.raster) tune.raster = rasters[i / 3];
    cr_expect_eq(space_accepts(kind, spec, &tune, reason), point->legal);
    if (point->tune.cluster) cr_expect_str_eq(reason, point->reason);
  }
  cr_expect_eq(point->legal, point->reason[0] == 0);
}

Test(space, lists_each_way_once_in_order_as_it_is_accepted) {
  for (int i = 0; i < KINDS * 2; i++) {
    flp_spec spec = spec_of(i % 2 ? FLP_DTYPE_FP32 : FLP_DTYPE_BF16, 4096, 0);
    if (!is_there(kinds[i / 2], spec.dtype)) continue;
    flp_tunables own = space_own(kinds[i / 2], &spec);
    space_points points;
    int legal = 0;
    cr_assert_eq(space_list(kinds[i / 2], &spec, &points), FLP_OK);
    for (int p = 0; p < points.count; p++) {
      if (p) cr_expect_lt(compare_points(&points.items[p - 1], &points.items[p]), 0, "%d", p);
      compare_point(kinds[i / 2], &spec, &points.items[p]);
      legal += points.items[p].legal;
    }
    cr_expect(is_listed(&points, &own));
    cr_expect(legal >= 50 && legal < points.count, "%d of %d", legal, points.count);
    space_clear(&points);
    cr_expect(!points.items && points.count == 0);
  }
}

/* Section 6 of the design; what has no legal number of stages cannot be listed. */
Test(space, lists_the_space_of_the_design) {
  static const flp_tunables tiles[] = {{FLP_SCHEDULE_COOPERATIVE, 128, 256, 4, 0, 0},
                                       {FLP_SCHEDULE_COOPERATIVE, 256, 128, 4, 0, 0},
                                       {FLP_SCHEDULE_PING_PONG, 128, 192, 5, 0, 0},
                                       {FLP_SCHEDULE_PING_PONG, 128, 128, 6, 0, 0}};
  flp_spec spec = spec_of(FLP_DTYPE_BF16, 4096, 0);
  space_points points;
  cr_assert_eq(space_list(FLP_KERNEL_FORWARD, &spec, &points), FLP_OK);
  for (int t = 0; t < 4; t++)
    for (uint32_t cluster = 1; cluster <= 2; cluster++)
      for (uint32_t raster = 8; raster <= 64; raster *= 2) {
        flp_tunables tune = tiles[t];
        for (tune.stages = SPACE_STAGES_LEAST; tune.stages <= tiles[t].stages; tune.stages++) {
          tune.cluster = cluster;
          tune.raster = raster;
          cr_expect(is_listed(&points, &tune));
        }
      }
  space_clear(&points);
}

/* However a forward kernel is cut, its partial results are those of the same leaves: the canonical split is no
 * choice. */
Test(space, leaves_the_canonical_split_alone) {
  static const flp_tunables some[] = {
      {0, 0, 0, 0, 0, 0}, {FLP_SCHEDULE_COOPERATIVE, 128, 256, 3, 4, 32}, {FLP_SCHEDULE_PING_PONG, 64, 64, 3, 1, 4}};
  flp_spec spec = spec_of(FLP_DTYPE_BF16, 64, 0);
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  int count = flp_kernel_keys_for(&spec, "sm_90a", keys), seen = 0;
  for (int i = 0; i < 3 * count; i++) {
    flp_kernel_key *key = &keys[i / 3];
    char error[512];
    flpgen_result result;
    if (key->kind != FLP_KERNEL_FORWARD && key->kind != FLP_KERNEL_KEEP) continue;
    key->tune = some[i % 3];
    cr_assert_eq(flpgen_generate(key, NULL, &result, error, sizeof error), FLP_OK, "%s", error);
    cr_expect_eq(result.desc.unit_columns, FLP_LEAF_COLUMNS, "%u", result.desc.unit_columns);
    flpgen_result_clear(&result);
    seen++;
  }
  cr_expect_eq(seen, 6);
}

Test(space, has_nothing_to_say_of_other_kinds) {
  for (int kind = 0; kind < FLP_KERNEL_KINDS; kind++) {
    int listed = 0;
    for (int i = 0; i < KINDS; i++) listed |= kinds[i] == (flp_kernel_kind)kind;
    cr_expect_eq(space_has((flp_kernel_kind)kind), listed);
  }
}
