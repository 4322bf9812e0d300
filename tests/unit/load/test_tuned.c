/* test_tuned.c: keys read back from their text, the list of tuned kernels, and which of them is taken: by driver and by
 * distance, the same in every process. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/load/tuned.h"
#include "tests/unit/support/kernel_sample.h"
#include "tests/unit/support/store_fixture.h"

static const flp_device h200 = {.name = "NVIDIA H200", .major = 9, .multiprocessors = 132};

static flp_kernel_key key_of(flp_kernel_kind kind, int64_t vocab, int64_t hidden) {
  flp_kernel_key key = sample_key(kind);
  snprintf(key.arch, sizeof key.arch, "sm_90a");
  key.vocab = vocab;
  key.hidden = hidden;
  flp_kernel_key_canonicalise(&key);
  return key;
}

static const char *text_of(const flp_kernel_key *key, const char *tuned_for) {
  static char text[FLP_KEY_BYTES_MAX];
  cr_assert_gt(flp_kernel_key_bytes(key, flp_sources_hash(), tuned_for, text, sizeof text), 0);
  return text;
}

/* ---- keys as text ---- */

Test(tuned, every_key_reads_back) {
  static const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32};
  static const char *const devices[] = {"", "NVIDIA H200/132/13000", "a tuned=b / c=d/1/2"};
  for (int kind = FLP_KERNEL_ROWS; kind < FLP_KERNEL_KINDS; kind++)
    for (int i = 0; i < 3; i++) {
      flp_kernel_key key = key_of((flp_kernel_kind)kind, 151936, 4096), got;
      key.dtype = dtypes[i];
      if (i == 2) key.tune = (flp_tunables){FLP_SCHEDULE_COOPERATIVE, 256, 192, 4, 2, 8};
      flp_kernel_key_canonicalise(&key);
      uint8_t sources[32];
      cr_assert(flp_kernel_key_read(text_of(&key, devices[i]), &got, sources), "%s", text_of(&key, devices[i]));
      cr_expect_arr_eq(&got, &key, sizeof got);
      cr_expect_arr_eq(sources, flp_sources_hash(), 32);
    }
}

Test(tuned, what_is_no_key_is_refused) {
  flp_kernel_key key = key_of(FLP_KERNEL_FORWARD, 151936, 4096), got;
  uint8_t sources[32];
  char good[FLP_KEY_BYTES_MAX], bad[FLP_KEY_BYTES_MAX + 2];
  snprintf(good, sizeof good, "%s", text_of(&key, "NVIDIA H200/132/13000"));
  size_t device = (size_t)(strstr(good, " tuned=") - good) + 7;
  for (size_t length = 0; length < device; length++) {
    snprintf(bad, sizeof bad, "%.*s", (int)length, good);
    cr_expect_not(flp_kernel_key_read(bad, &got, sources), "%s", bad);
  }
  for (size_t at = 0; at < device; at++) {
    static const char others[] = {' ', '0', 'z', '9', '-', '%'};
    for (size_t i = 0; i < sizeof others; i++) {
      snprintf(bad, sizeof bad, "%s", good);
      bad[at] = others[i];
      /* Where it is read, it is another key and writes just that text. */
      if (!flp_kernel_key_read(bad, &got, sources)) continue;
      char again[FLP_KEY_BYTES_MAX];
      cr_assert_gt(flp_kernel_key_bytes(&got, sources, "NVIDIA H200/132/13000", again, sizeof again), 0);
      cr_expect_str_eq(again, bad);
    }
  }
  static const char *const texts[] = {"", "flp-key/2", "flp-key/2 kind=forward", FIXTURE_KEY,
                                      "flp-key/2 kind=none arch=sm_80 dtype=bf16 target=none out=none entropy=0"};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
    cr_expect_not(flp_kernel_key_read(texts[i], &got, sources));
}

/* ---- distance ---- */

static int64_t distance(int64_t vocab, int64_t hidden) {
  flp_kernel_key a = key_of(FLP_KERNEL_FORWARD, 128000, 4096), b = key_of(FLP_KERNEL_FORWARD, vocab, hidden);
  cr_expect_eq(flp_tuned_distance(&a, &b), flp_tuned_distance(&b, &a), "either way");
  return flp_tuned_distance(&a, &b);
}

Test(tuned, depth_weighs_most_and_vocab_little) {
  cr_expect_eq(distance(128000, 4096), 0);
  cr_expect_eq(distance(128000, 8192), llround(4096 * log(2.0)));
  cr_expect_eq(distance(128000, 2048), distance(128000, 8192), "factors count, not differences");
  cr_expect_eq(distance(64000, 4096), llround(512 * log(2.0)));
  cr_expect_lt(distance(32000, 4096), distance(128000, 5120), "a quarter of the vocab is nearer than 5/4 of the depth");
  cr_expect_gt(distance(2000, 4096), distance(128000, 5120), "but not a 64th of it");
  cr_expect_lt(distance(151936, 4096), distance(152064, 3584));
}

Test(tuned, the_epilogue_decides_among_equal_shapes_only) {
  flp_kernel_key a = key_of(FLP_KERNEL_FORWARD, 128000, 4096), b = a, c = key_of(FLP_KERNEL_FORWARD, 128000, 5120);
  b.entropy = 0;
  cr_expect_gt(flp_tuned_distance(&a, &b), 0);
  b.bias = 0;
  cr_expect_eq(flp_tuned_distance(&a, &b), 2 * 256);
  cr_expect_lt(flp_tuned_distance(&a, &b), flp_tuned_distance(&a, &c));
}

Test(tuned, products_have_no_vocab) {
  flp_kernel_key a = key_of(FLP_KERNEL_PRODUCTS, 128000, 4096), b = key_of(FLP_KERNEL_PRODUCTS, 1000, 4096);
  cr_expect_eq(flp_tuned_distance(&a, &b), 0);
}

/* ---- choosing ---- */

static flp_tuned list_of(const flp_kernel_key *keys, const int *drivers, int count) {
  flp_tuned list = {.items = calloc((size_t)count, sizeof(flp_tuned_entry)), .count = (size_t)count, .is_read = 1};
  for (int i = 0; i < count; i++) {
    char device[64];
    snprintf(device, sizeof device, "NVIDIA H200/132/%d", drivers[i]);
    list.items[i] = (flp_tuned_entry){.key = keys[i], .driver = drivers[i], .text = strdup(text_of(&keys[i], device))};
  }
  return list;
}

Test(tuned, of_drivers_the_newest_that_is_not_newer_then_the_oldest_newer) {
  static const int drivers[] = {13020, 12040, 13010, 12080, 13030}, order[] = {12080, 12040, 13010, 13020, 13030};
  flp_kernel_key keys[5], other = key_of(FLP_KERNEL_FORWARD, 1000, 4096);
  for (int i = 0; i < 5; i++) keys[i] = key_of(FLP_KERNEL_FORWARD, 128000, 4096);
  flp_tuned list = list_of(keys, drivers, 5);
  cr_expect_null(flp_tuned_find(&list, &other, 13000), "another kernel");
  for (int i = 0; i < 5; i++) {
    flp_tuned_entry *entry = flp_tuned_find(&list, &keys[0], 13000);
    cr_assert_not_null(entry);
    cr_expect_eq(entry->driver, order[i]);
    cr_expect_eq(flp_tuned_nearest(&list, &other, 13000), entry, "neighbours at the same distance too");
    entry->bad = 1;
  }
  cr_expect_null(flp_tuned_find(&list, &keys[0], 13000));
  cr_expect_null(flp_tuned_nearest(&list, &other, 13000));
  flp_tuned_clear(&list);
}

Test(tuned, the_nearest_is_of_the_same_kind_and_types) {
  flp_kernel_key want = key_of(FLP_KERNEL_FORWARD, 128000, 4096), keys[5];
  for (int i = 0; i < 5; i++) keys[i] = want;
  keys[0].kind = FLP_KERNEL_DZ;
  keys[1].dtype = FLP_DTYPE_FP16;
  keys[2].alignment = 2;
  snprintf(keys[3].arch, sizeof keys[3].arch, "sm_80");
  keys[4] = key_of(FLP_KERNEL_FORWARD, 1000, 64);
  static const int drivers[] = {13000, 13000, 13000, 13000, 13000};
  flp_tuned list = list_of(keys, drivers, 5);
  cr_expect_eq(flp_tuned_nearest(&list, &want, 13000), &list.items[4], "far away, but of its kind");
  flp_tuned_clear(&list);
}

/* Whatever order a file system lists them in. */
Test(tuned, ties_break_by_key_bytes) {
  flp_kernel_key want = key_of(FLP_KERNEL_FORWARD, 128000, 4096), keys[3];
  static const int64_t depths[] = {8192, 2048, 8192}, vocabs[] = {128000, 128000, 128000};
  static const int drivers[] = {13000, 13000, 13000}, turns[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 0, 2}};
  char first[FLP_KEY_BYTES_MAX] = "";
  for (int turn = 0; turn < 3; turn++) {
    for (int i = 0; i < 3; i++) keys[i] = key_of(FLP_KERNEL_FORWARD, vocabs[turns[turn][i]], depths[turns[turn][i]]);
    flp_tuned list = list_of(keys, drivers, 3);
    flp_tuned_entry *entry = flp_tuned_nearest(&list, &want, 13000);
    cr_expect_eq(entry->key.hidden, 2048, "hidden=2048 comes before hidden=8192");
    if (!turn) snprintf(first, sizeof first, "%s", entry->text);
    cr_expect_str_eq(entry->text, first);
    flp_tuned_clear(&list);
  }
}

/* ---- the list ---- */

/* The PTX is noise, which does not get shorter when it is compressed. */
static void put(flp_store *store, const flp_kernel_key *key, const char *tuned_for) {
  flp_kernel_image image = sample_image(key->kind, 20000, 1);
  unsigned seed = 1;
  for (size_t i = 0; i < image.ptx_bytes; i++) image.ptx[i] = (char)('a' + rand_r(&seed) % 26);
  const char *text = text_of(key, tuned_for);
  cr_assert_eq(flp_store_put(store, text, strlen(text), &image), FLP_OK, "%s", flp_error_detail());
  flp_kernel_image_clear(&image);
}

Test(tuned, lists_those_of_the_device_alone) {
  static const char *const others[] = {"",
                                       "NVIDIA H200/131/13000",
                                       "NVIDIA H2000/132/13000",
                                       "NVIDIA H200/132/x",
                                       "NVIDIA H200/132/0",
                                       "NVIDIA H200/132/",
                                       "A NVIDIA H200/132/13000"};
  flp_store *store = fixture_open(sample_directory(), NULL);
  flp_kernel_key key = key_of(FLP_KERNEL_FORWARD, 128000, 4096);
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) put(store, &key, others[i]);
  put(store, &key, "NVIDIA H200/132/12040");
  key = key_of(FLP_KERNEL_DZ, 128000, 4096);
  put(store, &key, "NVIDIA H200/132/13000");
  /* other sources */
  flp_kernel_image image = sample_image(FLP_KERNEL_DZ, 100, 1);
  uint8_t sources[32] = {1};
  char text[FLP_KEY_BYTES_MAX];
  size_t length = flp_kernel_key_bytes(&key, sources, "NVIDIA H200/132/13000", text, sizeof text);
  cr_assert_eq(flp_store_put(store, text, length, &image), FLP_OK);
  flp_kernel_image_clear(&image);
  flp_tuned list = {0};
  cr_assert_eq(flp_tuned_read(&list, store, &h200), FLP_OK);
  cr_expect_eq(list.count, 2);
  for (size_t i = 0; i < list.count; i++)
    cr_expect_eq(list.items[i].driver, list.items[i].key.kind == FLP_KERNEL_DZ ? 13000 : 12040);
  flp_tuned_clear(&list);
  flp_store_close(store);
}

Test(tuned, odd_files_in_a_directory_are_passed_by) {
  char directory[512], path[1024];
  snprintf(directory, sizeof directory, "%s", sample_directory());
  flp_store *store = fixture_open(directory, NULL);
  flp_kernel_key key = key_of(FLP_KERNEL_FORWARD, 128000, 4096);
  put(store, &key, "NVIDIA H200/132/13000");
  static const char *const contents[] = {"", "FLPK", "FLPK\1\0\0\0\377\377\377\377\0\0\0\0\0\0\0\0\0\0\0\0", "flpk"};
  static const size_t lengths[] = {0, 4, 24, 4};
  for (int i = 0; i < 6; i++) {
    snprintf(path, sizeof path, "%s/%064d.flpk", directory, i);
    if (i < 4) fixture_write_file(path, contents[i], lengths[i]);
    if (i == 4) cr_assert_eq(mkfifo(path, 0600), 0);
    if (i == 5) cr_assert_eq(symlink("/dev/zero", path), 0);
  }
  flp_tuned list = {0};
  cr_assert_eq(flp_tuned_read(&list, store, &h200), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(list.count, 1);
  cr_expect_eq(fixture_warnings, 0, "%s", fixture_warning);
  flp_tuned_clear(&list);
  flp_store_close(store);
}

/* Bytes that this process has read so far. */
static long long bytes_read(void) {
  long long bytes = -1;
  FILE *file = fopen("/proc/self/io", "r");
  if (file && fscanf(file, "rchar: %lld", &bytes) != 1) bytes = -1;
  if (file) fclose(file);
  return bytes;
}

/* Some 3 ms. The PTX of an entry is most of its bytes, and is not read to list it. */
Test(tuned, a_thousand_entries_are_listed_by_their_heads) {
  char directory[512];
  snprintf(directory, sizeof directory, "%s", sample_directory());
  flp_store *store = fixture_open(directory, NULL);
  for (int i = 0; i < 1000; i++) {
    flp_kernel_key key = key_of(FLP_KERNEL_FORWARD, 100000 + i, 4096);
    put(store, &key, i % 3 ? "" : "NVIDIA H200/132/13000");
  }
  flp_tuned list = {0};
  long long before = bytes_read();
  cr_assert_geq(before, 0);
  cr_assert_eq(flp_tuned_read(&list, store, &h200), FLP_OK);
  long long read = bytes_read() - before;
  cr_expect_eq(list.count, 334);
  cr_expect_lt(read, 1000 * (long long)FLP_KEY_BYTES_MAX * 2, "%lld bytes", read);
  flp_tuned_clear(&list);
  flp_store_close(store);
}

/* ---- text ---- */

Test(tuned, names_the_neighbours) {
  char text[FLP_TUNED_SHAPE_BYTES];
  flp_tuned_tiling tiling = {0};
  tiling.from[FLP_KERNEL_FORWARD] = key_of(FLP_KERNEL_FORWARD, 128000, 4096);
  tiling.from[FLP_KERNEL_DZ] = key_of(FLP_KERNEL_DZ, 128000, 4096);
  tiling.from[FLP_KERNEL_PRODUCTS] = key_of(FLP_KERNEL_PRODUCTS, 0, 4096);
  const uint8_t all[FLP_KERNEL_KINDS] = {[FLP_KERNEL_FORWARD] = 1, [FLP_KERNEL_DZ] = 1, [FLP_KERNEL_PRODUCTS] = 1};
  const uint8_t products[FLP_KERNEL_KINDS] = {[FLP_KERNEL_PRODUCTS] = 1}, none[FLP_KERNEL_KINDS] = {0};
  const uint8_t keeping[FLP_KERNEL_KINDS] = {[FLP_KERNEL_PRODUCTS] = 1, [FLP_KERNEL_FORWARD + FLP_PART_KEEP] = 1};
  flp_tuned_shape(&tiling, all, text);
  cr_expect_str_eq(text, "V=128000 D=4096");
  flp_tuned_shape(&tiling, products, text);
  cr_expect_str_eq(text, "D=4096");
  tiling.from[FLP_KERNEL_DZ].vocab = 32000;
  flp_tuned_shape(&tiling, all, text);
  cr_expect_str_eq(text, "dz V=32000 D=4096, products D=4096, forward V=128000 D=4096");
  tiling.from[FLP_FORWARD(KEEP)] = key_of(FLP_FORWARD(KEEP), 32000, 4096);
  flp_tuned_shape(&tiling, keeping, text);
  cr_expect_str_eq(text, "V=32000 D=4096", "products, of any vocabulary, are of the same shape");
  flp_tuned_shape(&tiling, none, text);
  cr_expect_str_eq(text, "");
  tiling.from[FLP_KERNEL_FORWARD].vocab = tiling.from[FLP_KERNEL_FORWARD].hidden = INT64_MAX;
  tiling.from[FLP_KERNEL_DZ].vocab = tiling.from[FLP_KERNEL_DZ].hidden = INT64_MAX - 1;
  tiling.from[FLP_KERNEL_PRODUCTS].hidden = INT64_MAX - 2;
  flp_tuned_shape(&tiling, all, text);
  cr_expect_lt(strlen(text), sizeof text);
}
