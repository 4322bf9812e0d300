/* test_pack_store.c: packs where a cache path names directories: what look-ups find, refuse and log, and plans made of
 * nothing but a pack. */
#include <criterion/criterion.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "runtime/plan/plan.h"
#include "tests/unit/support/pack_case.h"
#include "tests/unit/support/rows.h"
#include "tests/unit/support/stage.h"
#include "tests/unit/support/store_fixture.h"
#include "tests/unit/support/words.h"

enum { LONGER = FIXTURE_PATH_BYTES + 32 };

static char path[FIXTURE_PATH_BYTES], key[FLP_KEY_BYTES_MAX + 1];

/* Writes a pack of three kernels into a directory of this test; key is that of the third one, which has a cubin. */
static pack_case place(const uint8_t *seed) {
  pack_case p = pack_case_make(seed);
  snprintf(path, sizeof path, "%s/kernels.flpp", sample_directory());
  fixture_write_file(path, p.bytes, p.length);
  flp_kernel_desc desc = pack_case_desc(FLP_KERNEL_FORWARD, "sm_90a", 151936);
  pack_case_key(&desc, "", key);
  return p;
}

static int finds(flp_store *store, int wants_cubin) {
  flp_kernel_image image;
  int found = -1;
  cr_assert_eq(flp_store_get(store, key, strlen(key), &image, &found), FLP_OK);
  cr_expect_eq(flp_error_detail()[0], 0);
  if (found) {
    cr_expect_not_null(strstr(image.ptx, "kernel forward of sm_90a"));
    cr_expect_eq(image.cubin != NULL, wants_cubin);
  }
  flp_kernel_image_clear(&image);
  return found;
}

Test(pack_store, a_pack_stands_for_a_directory) {
  free(place(NULL).bytes);
  flp_store *store = fixture_open(NULL, path);
  cr_expect(finds(store, 0));
  flp_store_set_device(store, 90, 13010);
  cr_expect(finds(store, 1));
  flp_store_set_device(store, 90, 12080);
  cr_expect(finds(store, 0), "an older driver does not load the cubin");
  flp_store_set_device(store, 80, 13010);
  cr_expect(finds(store, 0));
  strcat(key, "x");
  cr_expect_not(finds(store, 0));
  cr_expect_eq(fixture_warnings, 0, "%s", fixture_warning);
  flp_store_close(store);
}

static int count_item(void *context, const flp_store_item *item) {
  int *counts = context;
  counts[item->status != FLP_OK]++;
  return 1;
}

static int count_other(void *context, const flp_store_item *item) {
  int *counts = context;
  counts[item->other_sources != NULL]++;
  return 1;
}

Test(pack_store, lists_the_entries_of_packs) {
  pack_case p = place(NULL);
  int counts[2] = {0};
  flp_store *store = fixture_open(NULL, path);
  cr_assert_eq(flp_store_each(store, count_item, counts), FLP_OK);
  cr_expect_eq(counts[0], 3);
  cr_expect_eq(counts[1], 0);
  p.bytes[p.length - 1] ^= 1; /* of one entry's code */
  fixture_write_file(path, p.bytes, p.length);
  cr_assert_eq(flp_store_each(store, count_item, counts), FLP_OK);
  cr_expect_eq(counts[0], 5);
  cr_expect_eq(counts[1], 1);
  fixture_write_file(path, p.bytes, p.length - 1);
  cr_assert_eq(flp_store_each(store, count_item, counts), FLP_OK);
  cr_expect_eq(counts[1], 2, "a pack that does not open is one bad item");
  flp_store_close(store);
  free(p.bytes);
}

Test(pack_store, a_corrupt_pack_is_passed_by_with_one_warning) {
  pack_case p = place(NULL);
  char list[2 * LONGER], good[LONGER];
  snprintf(good, sizeof good, "%s.good", path);
  fixture_write_file(good, p.bytes, p.length);
  fixture_write_file(path, p.bytes, p.length - 1);
  snprintf(list, sizeof list, "%s:%s", path, good);
  flp_store *store = fixture_open(NULL, list);
  cr_expect(finds(store, 0));
  cr_expect(finds(store, 0));
  cr_expect_eq(fixture_warnings, 1, "%s", fixture_warning);
  cr_expect_not_null(strstr(fixture_warning, "is ignored"), "%s", fixture_warning);
  flp_store_close(store);
  free(p.bytes);
}

Test(pack_store, corrupt_code_costs_its_entry_alone) {
  pack_case p = place(NULL);
  for (size_t i = 0; i < pack_case_get(p.bytes + 24); i++) {
    char bad[LONGER];
    pack_case copy = {malloc(p.length), p.length};
    memcpy(copy.bytes, p.bytes, p.length);
    uint8_t *at = pack_case_data(&copy);
    for (size_t j = 0; j < i; j++) at += pack_case_get(pack_case_blob(&copy, j) + 32);
    at[8] ^= 1;
    snprintf(bad, sizeof bad, "%s.%zu", path, i);
    fixture_write_file(bad, copy.bytes, copy.length);
    flp_store *store = fixture_open(NULL, bad);
    flp_store_set_device(store, 90, 13000);
    flp_kernel_image image;
    int found;
    fixture_warnings = 0;
    cr_assert_eq(flp_store_get(store, key, strlen(key), &image, &found), FLP_OK);
    int is_ptx = pack_case_get(pack_case_image(&p, 2, 0) + 12) == i;
    int is_cubin = pack_case_get(pack_case_image(&p, 2, 1) + 12) == i;
    cr_expect_eq(found, !is_ptx);
    cr_expect_eq(found && image.cubin, !is_ptx && !is_cubin);
    cr_expect_eq(fixture_warnings, is_ptx || is_cubin);
    flp_kernel_image_clear(&image);
    flp_store_close(store);
    free(copy.bytes);
  }
  free(p.bytes);
}

Test(pack_store, a_pack_that_was_replaced_is_read_anew) {
  pack_case p = place(NULL);
  flp_store *store = fixture_open(NULL, path);
  cr_expect(finds(store, 0));
  fixture_write_file(path, "FLPP", 4);
  cr_expect_not(finds(store, 0));
  char fresh[LONGER];
  snprintf(fresh, sizeof fresh, "%s.new", path);
  fixture_write_file(fresh, p.bytes, p.length);
  cr_assert_eq(rename(fresh, path), 0);
  cr_expect(finds(store, 0));
  cr_assert_eq(unlink(path), 0);
  cr_expect_not(finds(store, 0), "a pack that is gone is an absent directory");
  cr_expect_eq(fixture_warnings, 1);
  flp_store_close(store);
  free(p.bytes);
}

Test(pack_store, links_and_files_of_others_are_not_read) {
  pack_case p = place(NULL);
  char link[LONGER], fifo[LONGER], list[3 * LONGER];
  snprintf(link, sizeof link, "%s.link", path);
  snprintf(fifo, sizeof fifo, "%s.fifo", path);
  cr_assert_eq(symlink(path, link), 0);
  cr_assert_eq(mkfifo(fifo, 0600), 0);
  cr_assert_eq(chmod(path, 0622), 0);
  snprintf(list, sizeof list, "%s:%s:%s", link, fifo, path);
  flp_store *store = fixture_open(NULL, list);
  cr_expect_not(finds(store, 0));
  cr_expect_eq(fixture_warnings, 3);
  cr_expect_not_null(strstr(fixture_warning, "lets other users write, accepted: 0600 or 0644"), "%s", fixture_warning);
  cr_assert_eq(chmod(path, 0644), 0);
  cr_expect(finds(store, 0));
  flp_store_close(store);
  free(p.bytes);
}

Test(pack_store, trusts_the_keys_that_are_set) {
  const uint8_t seed[32] = {1}, other[32] = {2};
  char own_key[CLI_KEY_TEXT], other_key[CLI_KEY_TEXT], many[2000];
  free(place(seed).bytes);
  pack_case_public(seed, own_key);
  pack_case_public(other, other_key);
  flp_store *store = fixture_open(NULL, path);
  cr_expect(finds(store, 0));
  setenv("FLP_PACK_KEYS", own_key, 1);
  cr_expect(finds(store, 0));
  setenv("FLP_PACK_KEYS", other_key, 1);
  cr_expect_not(finds(store, 0));
  cr_expect_not_null(strstr(fixture_warning, "not among the trusted ones"), "%s", fixture_warning);
  setenv("FLP_PACK_KEYS", "nonsense", 1);
  cr_expect_not(finds(store, 0));
  memset(many, '0', sizeof many - 1);
  many[sizeof many - 1] = 0;
  setenv("FLP_PACK_KEYS", many, 1);
  cr_expect_not(finds(store, 0), "keys that cannot be held are not the same as none");
  flp_store_close(store);
}

Test(pack_store, sixty_four_processes_at_once) {
  free(place(NULL).bytes);
  pid_t children[64];
  for (int i = 0; i < 64; i++) {
    children[i] = fork();
    if (children[i]) continue;
    flp_store *store;
    flp_kernel_image image;
    int found = 0;
    if (flp_store_open(NULL, path, &store) != FLP_OK) _exit(1);
    flp_store_set_device(store, 90, 13000);
    if (flp_store_get(store, key, strlen(key), &image, &found) != FLP_OK) _exit(2);
    _exit(found && image.cubin ? 0 : 3);
  }
  for (int i = 0; i < 64; i++) {
    int state;
    cr_assert_eq(waitpid(children[i], &state, 0), children[i]);
    cr_expect_eq(state, 0);
  }
}

/* ---- plans ---- */

/* Packs what stage_fill put into a directory, with cubins for capability 8.0, in the place of a cache. */
static void use_pack(const stage *s, const char *directory, int cubins) {
  cli_pack_items items = {.count = 0};
  uint64_t left_out = 0;
  cr_assert_eq(cli_pack_add_from(&items, directory, &left_out), FLP_OK, "%s", flp_error_detail());
  for (size_t i = 0; i < items.count && cubins; i++) pack_case_add_cubin(&items.items[i], 80, 12000, 0);
  pack_case p = pack_case_encode(&items, NULL);
  snprintf(path, sizeof path, "%s/kernels.flpp", s->root);
  fixture_write_file(path, p.bytes, p.length);
  setenv("FLP_CACHE_PATH", path, 1);
  free(p.bytes);
  cli_pack_items_clear(&items);
}

/* Plans without a generator and without a cache. */
static const struct row {
  const char *device, *words, *tuned_for;
  flp_rung rung;
  int has_cubins, cubins, modules; /* in the pack; that are loaded; that are loaded at all, or tried */
} rows[] = {
    {"", "grads=hidden,weight", "", FLP_RUNG_HEURISTIC, 0, 0, 5},
    {"name=Fake GPU;sms=132;driver=13000", "", "Fake GPU/132/13000", FLP_RUNG_TUNED, 0, 0, 2},
    {"", "grads=hidden", "", FLP_RUNG_HEURISTIC, 1, 4, 4},             /* no PTX is compiled */
    {"nocubin=209", "grads=hidden", "", FLP_RUNG_HEURISTIC, 1, 4, 8},    /* each gives way to its PTX */
    {"capability=8.6", "grads=hidden", "", FLP_RUNG_HEURISTIC, 1, 0, 4}, /* cubins of another device */
};

ParameterizedTestParameters(pack_store, plans_of_nothing_but_a_pack) {
  return rows_numbered(sizeof rows / sizeof rows[0]);
}

ParameterizedTest(const int *at, pack_store, plans_of_nothing_but_a_pack) {
  const struct row *row = &rows[*at];
  stage s;
  char full[512], none[512];
  flp_spec spec = words_spec(row->words);
  stage_open(&s, row->device);
  snprintf(full, sizeof full, "%s/full", s.root);
  snprintf(none, sizeof none, "%s/none", s.root); /* made when machine code is kept */
  stage_fill_cache(full, &spec, row->tuned_for);
  use_pack(&s, full, row->has_cubins);
  setenv("FLP_JIT_LIBRARY", "/nonexistent/libflpgen.so", 1);
  setenv("FLP_CACHE_DIR", none, 1);
  int made = s.provider_calls();
  flp_plan *plan = stage_plan(&spec, NULL);
  cr_expect_eq(flp_plan_get_rung(plan), row->rung, "row %d: %s", *at, stage_messages());
  cr_expect_eq(s.provider_calls(), made);
  cr_expect_eq(stage_called(&s, "cuModuleLoadDataEx cubin"), row->cubins, "row %d", *at);
  cr_expect_eq(s.calls("cuModuleLoadDataEx"), row->modules, "row %d", *at);
  cr_expect_eq(stage_logged("a cubin is not used, its PTX is compiled") > 0, row->modules > 5);
  cr_expect_eq(stage_logged("ignored"), 0, "%s", stage_messages());
  flp_plan_destroy(plan);
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

/* As directories do (tests/golden/plan), if they are trusted. */
Test(pack_store, packs_of_tuned_kernels_serve_other_shapes) {
  stage s;
  char full[512], keys[80];
  flp_spec spec = words_spec("grads=hidden,weight");
  stage_open(&s, "capability=9.0;driver=13000");
  snprintf(full, sizeof full, "%s/full", s.root);
  stage_filling how = {.arch = "sm_90a", .tuned_for = "Fake H200/132/12080", .tune = "dz:raster=16"};
  stage_fill(full, &spec, how);
  use_pack(&s, full, 0);
  expect_plan("grads=hidden,weight", FLP_RUNG_TUNED, "tuned with driver 12080");
  expect_plan("V=1200 grads=hidden,weight", FLP_RUNG_JIT, "as the nearest tuned shape, V=1000 D=64");
  snprintf(keys, sizeof keys, "%064d", 7);
  setenv("FLP_PACK_KEYS", keys, 1);
  expect_plan("V=1300 grads=hidden,weight", FLP_RUNG_JIT, "default");
}

Test(pack_store, kernels_of_other_sources_are_named_as_such) {
  stage s;
  int counts[2] = {0};
  cli_pack_items items = {.count = 0};
  flp_kernel_desc desc = pack_case_desc(FLP_KERNEL_FORWARD, "sm_80", 1000);
  flp_spec spec = words_spec("");
  stage_open(&s, "");
  memset(desc.sources, 0xab, sizeof desc.sources);
  pack_case_add(&items, &desc, "");
  pack_case p = pack_case_encode(&items, NULL);
  snprintf(path, sizeof path, "%s/kernels.flpp", s.root);
  fixture_write_file(path, p.bytes, p.length);
  setenv("FLP_CACHE_PATH", path, 1);
  flp_plan *plan = stage_plan(&spec, NULL);
  static const char said[] = "; 1 kernels there were made by another flp, sources abababababababab; this library, flp ";
  cr_expect_not_null(strstr(flp_plan_get_reason(plan, FLP_RUNG_HEURISTIC), said));
  cr_expect_eq(stage_logged("kernels.flpp is of no use: it was made by another flp, sources abababababababab"), 1);
  flp_plan_destroy(plan);
  flp_store *store = fixture_open(NULL, path);
  cr_assert_eq(flp_store_each(store, count_other, counts), FLP_OK);
  cr_expect(counts[0] == 0 && counts[1] == 1);
  flp_store_close(store);
  free(p.bytes);
  cli_pack_items_clear(&items);
}
