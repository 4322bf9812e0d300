/* test_space.c: what the templates answer of tile configurations, held to what they build, and the list of a search. */
#include "autotune/space.h"
#include "runtime/api/validate.h"
#include "tests/unit/support/gen_case.h"

/* other: a configuration besides the default that both 16-bit and fp32 operands have */
static const struct {
  const char *arch;
  flp_kernel_kind kind;
  flp_tunables other;
} kernels[] = {{"sm_90a", FLP_KERNEL_FORWARD, {FLP_SCHEDULE_COOPERATIVE, 128, 64, 3, 1, 16}},
               {"sm_90a", FLP_KERNEL_DZ, {FLP_SCHEDULE_COOPERATIVE, 128, 64, 3, 1, 16}},
               {"sm_90a", FLP_KERNEL_PRODUCTS, {FLP_SCHEDULE_COOPERATIVE, 128, 64, 3, 1, 16}},
               {"sm_90a", FLP_FORWARD(KEEP), {FLP_SCHEDULE_COOPERATIVE, 128, 64, 3, 1, 16}},
               {"sm_80", FLP_KERNEL_FORWARD, {FLP_SCHEDULE_COOPERATIVE, 64, 256, 3, 1, 4}},
               {"sm_80", FLP_KERNEL_DZ, {0, 0, 256, 3, 1, 4}},
               {"sm_80", FLP_KERNEL_GRAD_HIDDEN, {FLP_SCHEDULE_COOPERATIVE, 128, 128, 3, 1, 4}},
               {"sm_80", FLP_KERNEL_GRAD_WEIGHT, {FLP_SCHEDULE_COOPERATIVE, 128, 128, 3, 1, 4}},
               {"sm_80", FLP_FORWARD(KEEP), {FLP_SCHEDULE_COOPERATIVE, 64, 256, 3, 1, 4}}};
enum { KERNELS = sizeof kernels / sizeof kernels[0] };

/* Exponentials are saved of bf16 operands alone. */
static int is_there(flp_kernel_kind kind, flp_dtype dtype) {
  return kind != FLP_FORWARD(KEEP) || dtype == FLP_DTYPE_BF16;
}

static flp_spec spec_of(flp_dtype dtype, int64_t hidden, int bias) {
  flp_spec spec = FLP_SPEC_INIT, resolved;
  spec.vocab = 4000;
  spec.hidden = hidden;
  spec.dtype = dtype;
  spec.has_bias = bias;
  spec.keep = is_there(FLP_FORWARD(KEEP), dtype);
  spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | (bias ? FLP_GRAD_BIAS : 0);
  cr_assert_eq(flp_spec_resolve(&spec, &resolved), FLP_OK, "%s", flp_error_detail());
  return resolved;
}

static tile_space *open_space(const char *arch, flp_kernel_kind kind, const flp_spec *spec) {
  tile_space *space;
  cr_assert_eq(space_open(kind, spec, arch, &space), FLP_OK, "%s", flp_error_detail());
  return space;
}

static flp_kernel_key key_of(const char *arch, flp_kernel_kind kind, const flp_spec *spec) {
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  int count = flp_kernel_keys_for(spec, arch, keys), i = 0;
  while (i < count && keys[i].kind != kind) i++;
  cr_assert_lt(i, count);
  return keys[i];
}

/* ---- answers and builds ---- */

/* What the templates choose and accept is built so, with the shared memory that was told before. */
static void expect_built(const char *arch, flp_kernel_kind kind, const flp_spec *spec, flp_tunables tune) {
  char error[512], text[FLP_TUNABLES_TEXT_BYTES];
  flp_kernel_key key = key_of(arch, kind, spec);
  flpgen_space *space;
  flpgen_tile tile;
  flp_tunables_text(&tune, text);
  cr_assert_eq(flpgen_space_open(&key, NULL, &space, error, sizeof error), FLP_OK, "%s", error);
  cr_assert_eq(flpgen_space_ask(space, &tune, &tile, error, sizeof error), FLP_OK, "%s: %s", text, error);
  flpgen_space_close(space);
  key.tune = tune;
  flpgen_result result = gen_case_generate(&key, NULL);
  const flp_kernel_desc *d = &result.desc;
  uint32_t cluster = d->cluster ? d->cluster : 1; /* 0: it is not launched in clusters */
  const flp_tunables built = {tile.tune.schedule, d->tile_rows, d->tile_columns, d->stages, cluster, d->raster};
  cr_expect_arr_eq(&built, &tile.tune, sizeof built, "%s: %s", flp_kernel_kind_name(kind), text);
  cr_expect_eq(d->entries[0].shared_bytes, tile.shared_bytes, "%s: %s", flp_kernel_kind_name(kind), text);
  flpgen_result_clear(&result);
}

Test(space, what_is_accepted_is_built_as_it_was_told) {
  static const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP32};
  for (int i = 0; i < KERNELS * 2; i++) {
    flp_dtype dtype = dtypes[i / KERNELS];
    const char *arch = kernels[i % KERNELS].arch;
    flp_kernel_kind kind = kernels[i % KERNELS].kind;
    flp_spec spec = spec_of(dtype, 1152, kind == FLP_KERNEL_DZ);
    if (!is_there(kind, dtype)) continue;
    flp_tunables other = kernels[i % KERNELS].other;
    expect_built(arch, kind, &spec, (flp_tunables){0});
    expect_built(arch, kind, &spec, other);
    other.schedule = 0;
    other.rows = 0;
    if (dtype == FLP_DTYPE_BF16 && other.columns < 256) expect_built(arch, kind, &spec, other);
  }
}

static int asked, refused;

/* A refusal is the one of the build (tests/golden/language/tiles.txt has the sentences). Accepted ones are not built
 * here: each takes LLVM a second. */
static void compare_refusal(const tile_space *space, flp_kernel_key *key, flp_tunables tune) {
  char reason[SPACE_REASON_BYTES] = "";
  asked++;
  if (space_accepts(space, &tune, reason)) return;
  refused++;
  key->tune = tune;
  gen_case_refused(key, NULL, FLP_ERROR_COMPILE, reason);
  cr_expect_eq(strncmp(reason, "tune: ", 6), 0, "a refusal, not a fault of the template: %s", reason);
}

Test(space, what_is_refused_is_refused_by_the_build_in_the_same_words) {
  static const uint32_t sides[] = {64, 128, 192, 256, 320};
  for (int i = 0; i < KERNELS * 2; i++) {
    const char *arch = kernels[i / 2].arch;
    flp_kernel_kind kind = kernels[i / 2].kind;
    flp_spec spec = spec_of(i % 2 ? FLP_DTYPE_FP32 : FLP_DTYPE_BF16, 512, kind == FLP_KERNEL_DZ);
    if (!is_there(kind, spec.dtype)) continue;
    flp_kernel_key key = key_of(arch, kind, &spec);
    tile_space *space = open_space(arch, kind, &spec);
    for (int side = 0; side < 25; side++)
      for (uint32_t schedule = 1; schedule <= 2; schedule++)
        for (uint32_t stages = 2; stages <= 8; stages += 3)
          compare_refusal(space, &key, (flp_tunables){schedule, sides[side / 5], sides[side % 5], stages, 1, 8});
    const flp_tunables odd[] = {{0, 0, 0, 1, 0, 0}, {0, 0, 0, 13, 0, 0}, {0, 0, 0, 0, 3, 0},
                                {0, 0, 0, 0, 8, 0}, {0, 0, 0, 0, 0, 65}, {2, 128, 64, 3, 4, 8}};
    for (int o = 0; o < 6; o++) compare_refusal(space, &key, odd[o]);
    space_close(space);
  }
  cr_expect(refused > 1000 && asked - refused > 80, "%d of %d are refused", refused, asked);
}

/* As tune.lua's panel has it: of kernels for any D, 4096 columns. */
Test(space, without_a_depth_the_raster_is_that_of_4096_columns) {
  for (int i = 0; i < KERNELS; i++) {
    flp_spec spec = spec_of(FLP_DTYPE_BF16, 4096, 0);
    flp_kernel_key key = key_of(kernels[i].arch, kernels[i].kind, &spec);
    flp_tunables none = {0};
    flpgen_tile tile[2];
    for (int any = 0; any < 2; any++) {
      flpgen_space *space;
      char error[512];
      if (any) key.hidden = 0;
      cr_assert_eq(flpgen_space_open(&key, NULL, &space, error, sizeof error), FLP_OK, "%s", error);
      cr_assert_eq(flpgen_space_ask(space, &none, &tile[any], error, sizeof error), FLP_OK, "%s", error);
      flpgen_space_close(space);
    }
    cr_expect_eq(tile[0].tune.raster, tile[1].tune.raster, "%s", flp_kernel_kind_name(kernels[i].kind));
  }
}

Test(space, has_nothing_to_report_of_kernels_without_a_choice) {
  flp_spec spec = spec_of(FLP_DTYPE_BF16, 512, 0);
  tile_space *space;
  flpgen_space *templates;
  char error[512];
  cr_expect_eq(space_open(FLP_KERNEL_ROWS, &spec, "sm_90a", &space), FLP_ERROR_UNSUPPORTED);
  cr_expect_str_eq(flp_error_detail(), "key: kernel rows leaves no choice of a tile configuration");
  cr_expect_eq(space_open(FLP_KERNEL_PRODUCTS, &spec, "sm_80", &space), FLP_ERROR_UNSUPPORTED);
  cr_expect_str_eq(flp_error_detail(), "the specification needs no kernel products on sm_80");
  cr_expect_eq(space_open(FLP_KERNEL_SELECT, &spec, "sm_90a", &space), FLP_ERROR_UNSUPPORTED);
  cr_expect_str_eq(flp_error_detail(), "the specification needs no kernel select on sm_90a");
  cr_expect_null(space);
  flp_kernel_key key = key_of("sm_90a", FLP_KERNEL_FORWARD, &spec);
  flpgen_options options = {.template_dir = "/nonexistent"};
  cr_expect_eq(flpgen_space_open(&key, &options, &templates, error, sizeof error), FLP_ERROR_COMPILE);
  cr_expect_str_eq(error, "there is no template tune.lua in sm_90a/, portable/ or common/");
  cr_assert_eq(flpgen_space_open(&key, NULL, &templates, error, sizeof error), FLP_OK);
  cr_expect_eq(flpgen_space_ask(templates, &(flp_tunables){.schedule = 3}, NULL, error, sizeof error),
               FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(error, "key.tune.schedule: 3 is no schedule (0 to 2)");
  flpgen_space_close(templates);
}

/* A folder of templates may decide otherwise; what is no decision is a fault of its line. */
Test(space, a_folder_of_templates_is_asked) {
  static const struct {
    const char *text, *error; /* NULL: none */
  } cases[] = {
      {"return {choose = function() return {schedule = 'ping-pong', rows = 1, columns = 2, stages = 3, cluster = 4, "
       "raster = 5, shared_bytes = 6} end, axes = {schedule = {}, rows = {}, columns = {}, stages = {7, 9}, cluster = "
       "{}, raster = {}}}",
       NULL},
      {"return 7", "tune.lua: expected a table with the function 'choose' and the table 'axes'"},
      {"return {choose = function() return {schedule = 'zigzag'} end, axes = {schedule = {}, rows = {}, columns = {}, "
       "stages = {}, cluster = {}, raster = {}}}",
       "tune.lua: choose: schedule: expected a schedule, got string"},
      {"return {choose = function() end, axes = {schedule = {}, rows = {0}}}",
       "tune.lua: axes: rows: expected a positive integer, got a Lua integer"},
      {"return {choose = function() end, axes = {schedule = 1}}",
       "tune.lua: axes: schedule: expected an array of at most 16 values"},
      {"local x = k.load", "sm_90a/tune.lua:1: k has no word 'load'; there are abi, import"},
      {"while true do end", "sm_90a/tune.lua:1: the template ran 20000000 steps without an end"},
  };
  flp_spec spec = spec_of(FLP_DTYPE_BF16, 512, 0);
  flp_kernel_key key = key_of("sm_90a", FLP_KERNEL_FORWARD, &spec);
  const char *folder = gen_case_folder("tune");
  flpgen_options options = {.template_dir = folder};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    flpgen_space *space;
    flpgen_tile tile;
    char error[512] = "";
    gen_case_write(folder, "sm_90a/tune.lua", cases[i].text, strlen(cases[i].text));
    flp_status status = flpgen_space_open(&key, &options, &space, error, sizeof error);
    cr_assert_eq(status, cases[i].error ? FLP_ERROR_COMPILE : FLP_OK, "%zu: %s", i, error);
    if (cases[i].error) {
      cr_expect_str_eq(error, cases[i].error);
      continue;
    }
    cr_assert_eq(flpgen_space_ask(space, &(flp_tunables){0}, &tile, error, sizeof error), FLP_OK, "%s", error);
    cr_expect(tile.tune.schedule == FLP_SCHEDULE_PING_PONG && tile.tune.raster == 5 && tile.shared_bytes == 6);
    cr_expect(flpgen_space_axes(space)->stages.count == 2 && flpgen_space_axes(space)->stages.values[1] == 9);
    flpgen_space_close(space);
  }
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

/* Holds a point to space_accepts, whatever its other fields are. */
static void compare_point(const tile_space *space, const space_point *point) {
  static const uint32_t clusters[] = {1, 2, 4}, rasters[] = {1, 5, 64};
  for (int i = 0; i < 9; i++) {
    flp_tunables tune = point->tune;
    char reason[SPACE_REASON_BYTES] = "";
    if (!tune.cluster) tune.cluster = clusters[i % 3];
    if (!tune.raster) tune.raster = rasters[i / 3];
    cr_expect_eq(space_accepts(space, &tune, reason), point->legal);
    if (point->tune.cluster) cr_expect_str_eq(reason, point->reason);
  }
  cr_expect_eq(point->legal, point->reason[0] == 0);
}

Test(space, lists_each_tiling_once_in_order_as_it_is_accepted) {
  for (int i = 0; i < KERNELS * 2; i++) {
    flp_spec spec = spec_of(i % 2 ? FLP_DTYPE_FP32 : FLP_DTYPE_BF16, 4096, 0);
    if (!is_there(kernels[i / 2].kind, spec.dtype)) continue;
    tile_space *space = open_space(kernels[i / 2].arch, kernels[i / 2].kind, &spec);
    flp_tunables defaults = space_default(space);
    space_points points;
    int legal = 0;
    cr_assert_eq(space_list(space, &points), FLP_OK);
    for (int p = 0; p < points.count; p++) {
      if (p) cr_expect_lt(compare_points(&points.items[p - 1], &points.items[p]), 0, "%d", p);
      compare_point(space, &points.items[p]);
      legal += points.items[p].legal;
    }
    cr_expect(is_listed(&points, &defaults));
    cr_expect(legal >= 50 && legal < points.count, "%d of %d", legal, points.count);
    space_clear(&points);
    space_close(space);
    cr_expect(!points.items && points.count == 0);
  }
}

/* What has no legal number of stages cannot be listed. */
static void expect_listed(const char *arch, flp_kernel_kind kind, flp_tunables tile, uint32_t clusters) {
  flp_spec spec = spec_of(FLP_DTYPE_BF16, 4096, 0);
  tile_space *space = open_space(arch, kind, &spec);
  space_points points;
  cr_assert_eq(space_list(space, &points), FLP_OK);
  for (uint32_t cluster = 1; cluster <= clusters; cluster++)
    for (uint32_t raster = 8; raster <= 64; raster *= 2)
      for (uint32_t stages = 3; stages <= tile.stages; stages++) {
        flp_tunables tune = {tile.schedule, tile.rows, tile.columns, stages, cluster, raster};
        cr_expect(is_listed(&points, &tune), "%s %s: %ux%u", arch, flp_kernel_kind_name(kind), (unsigned)tile.rows,
                  (unsigned)tile.columns);
      }
  space_clear(&points);
  space_close(space);
}

Test(space, lists_the_tiles_that_a_search_should_see) {
  static const flp_tunables mapped[] = {{FLP_SCHEDULE_COOPERATIVE, 128, 256, 4, 0, 0},
                                        {FLP_SCHEDULE_COOPERATIVE, 256, 128, 4, 0, 0},
                                        {FLP_SCHEDULE_PING_PONG, 128, 192, 5, 0, 0},
                                        {FLP_SCHEDULE_PING_PONG, 128, 128, 6, 0, 0}},
                            portable[] = {{FLP_SCHEDULE_COOPERATIVE, 128, 256, 6, 0, 0},
                                          {FLP_SCHEDULE_COOPERATIVE, 256, 128, 6, 0, 0},
                                          {FLP_SCHEDULE_COOPERATIVE, 128, 128, 8, 0, 0}};
  for (int i = 0; i < 4; i++) expect_listed("sm_90a", FLP_KERNEL_FORWARD, mapped[i], 2);
  for (int i = 0; i < 3; i++) {
    expect_listed("sm_80", FLP_KERNEL_DZ, portable[i], 1);
    expect_listed("sm_80", FLP_KERNEL_GRAD_HIDDEN, portable[i], 1);
    expect_listed("sm_80", FLP_KERNEL_GRAD_WEIGHT, portable[i], 1);
  }
  expect_listed("sm_80", FLP_KERNEL_FORWARD, portable[0], 1);
}

/* Portable kernels that an architecture's CTA has the shared memory for, a device that runs them may have too little
 * for. */
Test(space, a_device_may_have_less_shared_memory) {
  flp_spec spec = spec_of(FLP_DTYPE_BF16, 4096, 0);
  tile_space *space = open_space("sm_80", FLP_KERNEL_DZ, &spec);
  const flp_tunables fits = {.stages = 4}, not = {.stages = 5};
  char reason[SPACE_REASON_BYTES];
  cr_expect(space_accepts(space, &not, reason) && space_accepts(space, &fits, NULL));
  space_limit_shared(space, 101376);
  cr_expect(space_accepts(space, &fits, reason) && !space_accepts(space, &not, NULL));
  cr_expect(!space_accepts(space, &not, reason));
  cr_expect_str_eq(reason, "it needs 122880 bytes of shared memory; the device has 101376");
  space_limit_shared(space, 0);
  cr_expect(space_accepts(space, &not, reason));
  space_close(space);
}

/* With any tile configuration, a forward kernel's partial results are of the same leaves or groups: the canonical split
 * is no choice. */
Test(space, leaves_the_canonical_split_alone) {
  static const struct {
    const char *arch;
    uint32_t unit;
    flp_tunables some[3];
  } splits[] = {{"sm_90a",
                 FLP_LEAF_COLUMNS,
                 {{0, 0, 0, 0, 0, 0},
                  {FLP_SCHEDULE_COOPERATIVE, 128, 256, 3, 4, 32},
                  {FLP_SCHEDULE_PING_PONG, 64, 64, 3, 1, 4}}},
                {"sm_80",
                 FLP_GROUP_COLUMNS,
                 {{0, 0, 0, 0, 0, 0},
                  {FLP_SCHEDULE_COOPERATIVE, 128, 256, 3, 1, 32},
                  {FLP_SCHEDULE_COOPERATIVE, 64, 256, 3, 1, 4}}}};
  for (int a = 0; a < 2; a++) {
    flp_spec spec = spec_of(FLP_DTYPE_BF16, 64, 0);
    flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
    int count = flp_kernel_keys_for(&spec, splits[a].arch, keys), seen = 0;
    for (int i = 0; i < 3 * count; i++) {
      flp_kernel_key *key = &keys[i / 3];
      if (key->kind != FLP_KERNEL_FORWARD && key->kind != FLP_FORWARD(KEEP)) continue;
      key->tune = splits[a].some[i % 3];
      flpgen_result result = gen_case_generate(key, NULL);
      cr_expect_eq(result.desc.unit_columns, splits[a].unit, "%u", result.desc.unit_columns);
      flpgen_result_clear(&result);
      seen++;
    }
    cr_expect_eq(seen, 6);
  }
}
