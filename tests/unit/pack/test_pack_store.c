/* test_pack_store.c: packs where a cache path names directories: what look-ups find, refuse and log, and plans made of
 * nothing but a pack. */
#include <criterion/criterion.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/unit/support/pack_case.h"
#include "tests/unit/support/stage.h"
#include "tests/unit/support/store_fixture.h"

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

/* Packs what stage_fill_cache put into a directory, with cubins for capability 8.0. */
static void pack_directory(const char *directory, const char *out, int cubins) {
  cli_pack_items items = {.count = 0};
  uint64_t left_out = 0;
  cr_assert_eq(cli_pack_add_from(&items, directory, &left_out), FLP_OK, "%s", flp_error_detail());
  for (size_t i = 0; i < items.count && cubins; i++) pack_case_add_cubin(&items.items[i], 80, 12000, 0);
  pack_case p = pack_case_encode(&items, NULL);
  fixture_write_file(out, p.bytes, p.length);
  free(p.bytes);
  cli_pack_items_clear(&items);
}

static void only_a_pack(stage *s, const flp_spec *spec, const char *tuned_for, int cubins, const char *script) {
  char full[512], none[512];
  stage_open(s, script);
  snprintf(full, sizeof full, "%s/full", s->root);
  snprintf(none, sizeof none, "%s/none", s->root); /* made when machine code is kept */
  snprintf(path, sizeof path, "%s/kernels.flpp", s->root);
  stage_fill_cache(full, spec, tuned_for);
  pack_directory(full, path, cubins);
  setenv("FLP_CACHE_PATH", path, 1);
  setenv("FLP_JIT_LIBRARY", "/nonexistent/libflpgen.so", 1);
  setenv("FLP_CACHE_DIR", none, 1);
}

Test(pack_store, a_plan_of_nothing_but_a_pack) {
  stage s;
  flp_spec spec = stage_spec(FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT);
  only_a_pack(&s, &spec, "", 0, "");
  flp_plan *plan = stage_plan(&spec, NULL);
  cr_expect_eq(flp_plan_get_rung(plan), FLP_RUNG_HEURISTIC, "%s", stage_messages());
  cr_expect_eq(s.provider_calls(), 5, "those of filling the cache");
  cr_expect_eq(stage_logged("ignored"), 0, "%s", stage_messages());
  flp_plan_destroy(plan);
}

Test(pack_store, a_plan_of_tuned_kernels) {
  stage s;
  flp_spec spec = stage_spec(0);
  only_a_pack(&s, &spec, "Fake GPU/132/13000", 0, "name=Fake GPU;sms=132;driver=13000");
  flp_plan *plan = stage_plan(&spec, NULL);
  cr_expect_eq(flp_plan_get_rung(plan), FLP_RUNG_TUNED, "%s", stage_messages());
  flp_plan_destroy(plan);
}

static int cubins_loaded(stage *s) {
  int count = 0;
  for (const char *at = s->log(); (at = strstr(at, "cuModuleLoadDataEx cubin")) != NULL; at++) count++;
  return count;
}

Test(pack_store, cubins_of_the_device_are_loaded) {
  stage s;
  flp_spec spec = stage_spec(FLP_GRAD_HIDDEN);
  only_a_pack(&s, &spec, "", 1, "");
  flp_plan *plan = stage_plan(&spec, NULL);
  cr_expect_eq(flp_plan_get_rung(plan), FLP_RUNG_HEURISTIC, "%s", stage_messages());
  cr_expect_eq(cubins_loaded(&s), 4);
  cr_expect_eq(s.calls("cuModuleLoadDataEx"), 4, "no PTX is compiled");
  flp_plan_destroy(plan);
}

Test(pack_store, a_cubin_that_does_not_load_gives_way_to_its_ptx) {
  stage s;
  flp_spec spec = stage_spec(FLP_GRAD_HIDDEN);
  only_a_pack(&s, &spec, "", 1, "nocubin=209");
  flp_plan *plan = stage_plan(&spec, NULL);
  cr_expect_eq(flp_plan_get_rung(plan), FLP_RUNG_HEURISTIC, "%s", stage_messages());
  cr_expect_eq(cubins_loaded(&s), 4);
  cr_expect_gt(stage_logged("a cubin is not used, its PTX is compiled"), 0, "%s", stage_messages());
  flp_plan_destroy(plan);
}

Test(pack_store, cubins_of_other_devices_are_left_alone) {
  stage s;
  flp_spec spec = stage_spec(FLP_GRAD_HIDDEN);
  only_a_pack(&s, &spec, "", 1, "capability=8.6");
  flp_plan *plan = stage_plan(&spec, NULL);
  cr_expect_eq(flp_plan_get_rung(plan), FLP_RUNG_HEURISTIC, "%s", stage_messages());
  cr_expect_eq(cubins_loaded(&s), 0);
  flp_plan_destroy(plan);
}
