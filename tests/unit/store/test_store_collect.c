/* test_store_collect.c: showing what a cache holds, and throwing out what nobody will read again. */
#include <criterion/criterion.h>
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/store/internal.h"
#include "tests/unit/support/store_fixture.h"

/* ---- showing ---- */

typedef struct seen {
  int count, stop_at;
  flp_store_item items[8];
  char text[8][1024]; /* file, key and reason outlive the visit here */
} seen;

static int on_item(void *context, const flp_store_item *item) {
  seen *s = context;
  s->items[s->count] = *item;
  snprintf(s->text[s->count], sizeof s->text[0], "%.16s|%s|%s", item->file, item->key, item->reason);
  return ++s->count != s->stop_at;
}

Test(store_collect, each_shows_directories_in_order_and_names_sorted) {
  char a[FIXTURE_PATH_BYTES], b[FIXTURE_PATH_BYTES], path[FIXTURE_PATH_BYTES];
  const char *root = sample_directory();
  snprintf(a, sizeof a, "%s/a", root);
  snprintf(b, sizeof b, "%s/b", root);
  fixture_put_in(a, FIXTURE_KEY, 1);
  fixture_put_in(b, FIXTURE_KEY, 1);
  fixture_put_in(b, FIXTURE_OTHER_KEY, 1);
  fixture_write_file(fixture_path(b, FIXTURE_OTHER_KEY, ".flpk", path), "x", 1);
  fixture_write_file(fixture_path(b, FIXTURE_OTHER_KEY, ".bad-0", path), "x", 1);
  flp_store *store = fixture_open(b, a);
  seen s = {0};
  cr_assert_eq(flp_store_each(store, on_item, &s), FLP_OK);
  cr_assert_eq(s.count, 3);
  cr_expect_eq(s.items[0].writable, 0);
  cr_expect_eq(s.items[0].status, FLP_OK);
  cr_expect_eq(s.items[0].bytes, 24 + FIXTURE_KEY_BYTES + 292 + 5000 + 32);
  cr_expect_leq(llabs(s.items[0].modified - (int64_t)time(NULL)), 60);
  cr_expect_not_null(strstr(s.text[0], FIXTURE_KEY));
  cr_expect_lt(strcmp(s.text[1], s.text[2]), 0);
  int corrupt = s.items[1].status == FLP_ERROR_CORRUPT ? 1 : 2;
  cr_expect_eq(s.items[corrupt].status, FLP_ERROR_CORRUPT);
  cr_expect_eq(s.items[3 - corrupt].status, FLP_OK);
  cr_expect_not_null(strstr(s.text[corrupt], "||entry: 1 bytes are too few"), "%s", s.text[corrupt]);
  cr_expect_eq(sample_count(b, ".flpk"), 2, "looking sets nothing aside");

  seen stopped = {.stop_at = 1};
  cr_assert_eq(flp_store_each(store, on_item, &stopped), FLP_OK);
  cr_expect_eq(stopped.count, 1);
  flp_store_close(store);
}

Test(store_collect, each_finds_a_misnamed_entry) {
  const char *directory = sample_directory();
  char from[FIXTURE_PATH_BYTES], to[FIXTURE_PATH_BYTES];
  fixture_put_in(directory, FIXTURE_OTHER_KEY, 1);
  cr_assert_eq(rename(fixture_path(directory, FIXTURE_OTHER_KEY, ".flpk", from),
                      fixture_path(directory, FIXTURE_KEY, ".flpk", to)),
               0);
  flp_store *store = fixture_open(directory, NULL);
  seen s = {0};
  cr_assert_eq(flp_store_each(store, on_item, &s), FLP_OK);
  cr_assert_eq(s.count, 1);
  cr_expect_eq(s.items[0].status, FLP_ERROR_CORRUPT);
  cr_expect_not_null(strstr(s.text[0], "name is not the key's SHA-256"), "%s", s.text[0]);
  flp_store_close(store);
}

/* ---- throwing out ---- */

Test(store_collect, collect_removes_rubbish_and_keeps_the_rest) {
  const char *directory = sample_directory();
  char path[FIXTURE_PATH_BYTES];
  fixture_put_in(directory, FIXTURE_KEY, 1);
  fixture_write_file(fixture_path(directory, FIXTURE_KEY, ".bad-3", path), "12345", 5);
  fixture_write_file(fixture_path(directory, FIXTURE_KEY, ".lock", path), "", 0);
  fixture_make_old(path, 3700);
  fixture_write_file(fixture_path(directory, FIXTURE_OTHER_KEY, ".lock", path), "", 0);
  snprintf(path, sizeof path, "%s/.tmp-0123", directory);
  fixture_write_file(path, "123", 3);
  fixture_make_old(path, 3700);
  snprintf(path, sizeof path, "%s/.tmp-4567", directory);
  fixture_write_file(path, "123", 3);
  snprintf(path, sizeof path, "%s/notes.txt", directory);
  fixture_write_file(path, "mine", 4);
  fixture_make_old(path, 1000000);
  flp_store *store = fixture_open(directory, NULL);
  flp_kernel_image other = sample_image(FLP_KERNEL_DZ, 100, 1);
  other.desc.sources[0] ^= 1;
  cr_assert_eq(flp_store_put(store, "other sources", 13, &other), FLP_OK);
  flp_kernel_image_clear(&other);
  uint64_t files, bytes;
  cr_assert_eq(flp_store_collect(store, UINT64_MAX, &files, &bytes), FLP_OK);
  cr_expect_eq(files, 4, "%lu", (unsigned long)files);
  cr_expect_eq(bytes, 5 + 3 + 24 + 13 + 292 + 100 + 32, "%lu", (unsigned long)bytes);
  cr_expect_eq(sample_count(directory, ".bad-"), 0);
  cr_expect_eq(sample_count(directory, ".lock"), 1, "a young lock may be in use");
  cr_expect_eq(sample_count(directory, ".tmp-4567"), 1, "a young temporary file may be in use");
  cr_expect_eq(sample_count(directory, "notes.txt"), 1, "what is not the cache's stays");
  cr_expect(fixture_finds(store, FIXTURE_KEY, 1));
  flp_store_close(store);
}

/* As a process leaves them that was killed before the clock was set back. */
Test(store_collect, collect_removes_temporaries_of_the_future) {
  const char *directory = sample_directory();
  char path[FIXTURE_PATH_BYTES];
  snprintf(path, sizeof path, "%s/.tmp-0123", directory);
  fixture_write_file(path, "123", 3);
  fixture_make_old(path, -3700);
  snprintf(path, sizeof path, "%s/.tmp-4567", directory);
  fixture_write_file(path, "123", 3);
  fixture_make_old(path, -3000); /* another machine's clock */
  fixture_write_file(fixture_path(directory, FIXTURE_KEY, ".lock", path), "", 0);
  fixture_make_old(path, -3700);
  flp_store *store = fixture_open(directory, NULL);
  uint64_t files, bytes;
  cr_assert_eq(flp_store_collect(store, UINT64_MAX, &files, &bytes), FLP_OK);
  cr_expect_eq(files, 2, "%lu", (unsigned long)files);
  cr_expect_eq(sample_count(directory, ".tmp-4567"), 1);
  flp_store_close(store);
}

/* Keeps machine code of a kernel, which need not be any; returns the size of its file. */
static size_t keep_code(flp_store *store, unsigned seed, int other_sources) {
  flp_kernel_image image = sample_image(FLP_KERNEL_ROWS, 100, seed);
  Elf64_Ehdr head = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB}, .e_machine = 190};
  image.desc.sources[0] ^= (uint8_t)other_sources;
  image.cubin = memcpy(malloc(sizeof head), &head, sizeof head);
  image.cubin_bytes = sizeof head;
  flp_store_keep_cubin(store, &image);
  char key[FLP_KEY_BYTES_MAX];
  int key_bytes =
      snprintf(key, sizeof key, "flp-cubin/1 kind=rows arch=%s capability=90 driver=13000 ptx=%064d sources=%064d",
               image.desc.key.arch, 0, 0);
  flp_kernel_image_clear(&image);
  return 20 + (size_t)key_bytes + sizeof head + 32;
}

Test(store_collect, collect_judges_machine_code_as_entries) {
  const char *directory = sample_directory();
  flp_store *store = fixture_open(directory, NULL);
  flp_store_set_device(store, 90, 13000);
  size_t one = keep_code(store, 1, 0);
  keep_code(store, 2, 1);
  cr_assert_eq(sample_count(directory, ".flpc"), 2);
  uint64_t files, bytes;
  cr_assert_eq(flp_store_collect(store, UINT64_MAX, &files, &bytes), FLP_OK);
  cr_expect_eq(files, 1, "that of other sources");
  cr_expect_eq(bytes, one);
  cr_assert_eq(flp_store_collect(store, one - 1, &files, &bytes), FLP_OK);
  cr_expect_eq(files, 1);
  cr_expect_eq(sample_count(directory, ".flpc"), 0);
  flp_store_close(store);
}

Test(store_collect, collect_leaves_a_held_lock) {
  const char *directory = sample_directory();
  char path[FIXTURE_PATH_BYTES], hex[STORE_HEX + 1];
  int fd = open(directory, O_RDONLY | O_DIRECTORY), lock;
  store_entry_name(FIXTURE_KEY, FIXTURE_KEY_BYTES, hex);
  store_lock_take(fd, hex, 0, &lock);
  cr_assert_geq(lock, 0);
  fixture_make_old(fixture_path(directory, FIXTURE_KEY, ".lock", path), 3700);
  flp_store *store = fixture_open(directory, NULL);
  uint64_t files, bytes;
  cr_assert_eq(flp_store_collect(store, 0, &files, &bytes), FLP_OK);
  cr_expect_eq(files, 0);
  store_lock_release(lock);
  cr_assert_eq(flp_store_collect(store, 0, &files, &bytes), FLP_OK);
  cr_expect_eq(files, 1);
  close(fd);
  flp_store_close(store);
}

Test(store_collect, collect_removes_the_oldest_entries_first) {
  const char *directory = sample_directory();
  static const char *const keys[] = {"newest", "oldest", "middle"};
  static const time_t ages[] = {10, 30, 20};
  char path[FIXTURE_PATH_BYTES];
  for (int i = 0; i < 3; i++) {
    fixture_put_in(directory, keys[i], 1);
    fixture_make_old(fixture_path(directory, keys[i], ".flpk", path), ages[i]);
  }
  uint64_t one = 24 + 6 + 292 + 5000 + 32, files, bytes;
  flp_store *store = fixture_open(directory, NULL);
  cr_assert_eq(flp_store_collect(store, 3 * one, &files, &bytes), FLP_OK);
  cr_expect_eq(files, 0);
  cr_assert_eq(flp_store_collect(store, 3 * one - 1, &files, &bytes), FLP_OK);
  cr_expect_eq(files, 1);
  cr_expect_eq(bytes, one);
  cr_expect_not(fixture_finds(store, "oldest", 1));
  cr_assert_eq(flp_store_collect(store, one, &files, &bytes), FLP_OK);
  cr_expect_not(fixture_finds(store, "middle", 1));
  cr_expect(fixture_finds(store, "newest", 1));
  cr_assert_eq(flp_store_collect(store, 0, &files, &bytes), FLP_OK);
  cr_expect_eq(files, 1);
  cr_expect_eq(sample_count(directory, ".flpk"), 0);
  flp_store_close(store);
}

Test(store_collect, collect_without_a_directory) {
  uint64_t files = 1, bytes = 1;
  flp_store *store = fixture_open(NULL, sample_directory());
  cr_expect_eq(flp_store_collect(store, 0, &files, &bytes), FLP_ERROR_IO);
  flp_store_close(store);
  store = fixture_open("/nonexistent/flp", NULL);
  cr_expect_eq(flp_store_collect(store, 0, &files, &bytes), FLP_OK);
  cr_expect_eq(files, 0);
  flp_store_close(store);
}
