/* test_store.c: the kernel cache of one process: what is stored, found, refused, made and set aside. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/status.h"
#include "runtime/store/internal.h"
#include "tests/unit/support/store_fixture.h"

/* ---- storing and finding ---- */

Test(store, stores_and_finds) {
  flp_store *store = fixture_open(sample_directory(), NULL);
  cr_expect_not(fixture_finds(store, FIXTURE_KEY, 1));
  fixture_put(store, FIXTURE_KEY, 1);
  cr_expect(fixture_finds(store, FIXTURE_KEY, 1));
  cr_expect_not(fixture_finds(store, FIXTURE_OTHER_KEY, 1));
  fixture_put(store, FIXTURE_KEY, 2);
  cr_expect(fixture_finds(store, FIXTURE_KEY, 2), "a second put replaces the first");
  cr_expect_eq(fixture_warnings, 0);
  flp_store_close(store);
}

Test(store, directory_is_made_private_with_its_parents) {
  char path[FIXTURE_PATH_BYTES];
  snprintf(path, sizeof path, "%s/a/b", sample_directory());
  flp_store *store = fixture_open(path, NULL);
  cr_expect_not(fixture_finds(store, FIXTURE_KEY, 1));
  cr_expect_neq(access(path, F_OK), 0, "looking creates nothing");
  fixture_put(store, FIXTURE_KEY, 1);
  struct stat stat_;
  cr_assert_eq(stat(path, &stat_), 0);
  cr_expect_eq(stat_.st_mode & 07777, 0700);
  char file[FIXTURE_PATH_BYTES];
  cr_assert_eq(stat(fixture_path(path, FIXTURE_KEY, ".flpk", file), &stat_), 0);
  cr_expect_eq(stat_.st_mode & 07777, 0600);
  cr_expect_eq(sample_count(path, ".tmp-"), 0);
  flp_store_close(store);
}

/* A directory that others may enter is there to be read: an image's, a server's. */
Test(store, files_may_be_read_by_whom_the_directory_admits) {
  static const struct {
    mode_t directory, mask, file;
  } cases[] = {{0755, 022, 0644}, {0755, 077, 0600}, {0750, 022, 0640}, {0755, 0, 0644}, {0700, 0, 0600}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char path[FIXTURE_PATH_BYTES], file[FIXTURE_PATH_BYTES];
    struct stat stat_;
    snprintf(path, sizeof path, "%s/%zu", sample_directory(), i);
    cr_assert(mkdir(path, 0700) == 0 && chmod(path, cases[i].directory) == 0);
    mode_t before = umask(cases[i].mask);
    fixture_put_in(path, FIXTURE_KEY, 1);
    umask(before);
    cr_assert_eq(stat(fixture_path(path, FIXTURE_KEY, ".flpk", file), &stat_), 0);
    cr_expect_eq(stat_.st_mode & 07777, cases[i].file, "%zu: %o", i, (unsigned)stat_.st_mode);
  }
}

Test(store, file_layout_is_fixed) {
  const char *directory = sample_directory();
  fixture_put_in(directory, FIXTURE_KEY, 1);
  char path[FIXTURE_PATH_BYTES];
  FILE *file = fopen(fixture_path(directory, FIXTURE_KEY, ".flpk", path), "r");
  cr_assert_not_null(file);
  uint8_t bytes[24 + FIXTURE_KEY_BYTES];
  cr_assert_eq(fread(bytes, 1, sizeof bytes, file), sizeof bytes);
  fclose(file);
  static const uint8_t head[24] = {'F', 'L', 'P', 'K',  1, 0, 0, 0,    FIXTURE_KEY_BYTES,
                                   0,   0,   0,   0x24, 1, 0, 0, 0x88, 0x13};
  cr_expect_arr_eq(bytes, head, sizeof head);
  cr_expect_arr_eq(bytes + 24, FIXTURE_KEY, FIXTURE_KEY_BYTES);
  struct stat stat_;
  cr_assert_eq(stat(path, &stat_), 0);
  cr_expect_eq(stat_.st_size, 24 + FIXTURE_KEY_BYTES + 292 + 5000 + 32);
}

Test(store, read_only_directories_come_first_in_order) {
  char a[FIXTURE_PATH_BYTES], b[FIXTURE_PATH_BYTES], c[FIXTURE_PATH_BYTES], list[4 * FIXTURE_PATH_BYTES];
  const char *root = sample_directory();
  snprintf(a, sizeof a, "%s/a", root);
  snprintf(b, sizeof b, "%s/b", root);
  snprintf(c, sizeof c, "%s/c", root);
  fixture_put_in(a, FIXTURE_OTHER_KEY, 1);
  fixture_put_in(b, FIXTURE_KEY, 2);
  fixture_put_in(b, FIXTURE_OTHER_KEY, 2);
  fixture_put_in(c, FIXTURE_KEY, 3);
  snprintf(list, sizeof list, ":%s/absent::%s:%s/:", root, a, b);
  flp_store *store = fixture_open(c, list);
  cr_expect(fixture_finds(store, FIXTURE_OTHER_KEY, 1));
  cr_expect(fixture_finds(store, FIXTURE_KEY, 2));
  flp_store_close(store);
  store = fixture_open(c, NULL);
  cr_expect(fixture_finds(store, FIXTURE_KEY, 3));
  flp_store_close(store);
  cr_expect_eq(fixture_warnings, 0, "an absent directory gives no warning: %s", fixture_warning);
}

Test(store, own_entries_come_before_packs_that_nobody_named) {
  char own[FIXTURE_PATH_BYTES], shared[FIXTURE_PATH_BYTES];
  snprintf(own, sizeof own, "%s/own", sample_directory());
  snprintf(shared, sizeof shared, "%s/shared", sample_directory());
  fixture_put_in(own, FIXTURE_KEY, 1);
  fixture_put_in(shared, FIXTURE_KEY, 2);
  fixture_put_in(shared, FIXTURE_OTHER_KEY, 3);
  flp_store *store = fixture_open(own, shared);
  cr_expect(fixture_finds(store, FIXTURE_KEY, 2), "what FLP_CACHE_PATH names comes first");
  flp_store_prefer_writable(store);
  cr_expect(fixture_finds(store, FIXTURE_KEY, 1));
  cr_expect(fixture_finds(store, FIXTURE_OTHER_KEY, 3));
  flp_store_close(store);
  store = fixture_open(NULL, shared);
  flp_store_prefer_writable(store);
  cr_expect(fixture_finds(store, FIXTURE_KEY, 2), "nothing is written, so nothing is preferred");
  flp_store_close(store);
}

Test(store, relative_directory_survives_chdir) {
  cr_assert_eq(chdir(sample_directory()), 0);
  flp_store *store = fixture_open("cache", "./cache");
  cr_assert_eq(chdir("/"), 0);
  fixture_put(store, FIXTURE_KEY, 1);
  cr_expect(fixture_finds(store, FIXTURE_KEY, 1));
  flp_store_close(store);
}

Test(store, unstorable_entries_are_refused) {
  flp_store *store = fixture_open(sample_directory(), NULL);
  flp_kernel_image image = sample_image(FLP_KERNEL_FORWARD, 100, 1);
  cr_expect_eq(flp_store_put(store, "", 0, &image), FLP_ERROR_ARGUMENT);
  cr_expect_eq(flp_store_put(store, "a\nb", 3, &image), FLP_ERROR_ARGUMENT);
  char long_key[FLP_KEY_BYTES_MAX + 1];
  memset(long_key, 'k', sizeof long_key);
  cr_expect_eq(flp_store_put(store, long_key, sizeof long_key, &image), FLP_ERROR_ARGUMENT);
  image.ptx[50] = 0;
  cr_expect_eq(flp_store_put(store, FIXTURE_KEY, FIXTURE_KEY_BYTES, &image), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(), "PTX of 100 bytes holds a NUL");
  image.ptx[50] = 'x';
  image.desc.tile_rows = 0;
  cr_expect_eq(flp_store_put(store, FIXTURE_KEY, FIXTURE_KEY_BYTES, &image), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(), "entry would not read back: descriptor: tile_rows is 0, accepted: 1 to 1048576");
  flp_kernel_image_clear(&image);
  cr_expect_eq(flp_store_put(store, FIXTURE_KEY, FIXTURE_KEY_BYTES, &image), FLP_ERROR_ARGUMENT, "no PTX");
  flp_store_close(store);
}

/* ---- corrupt entries ---- */

Test(store, every_damaged_byte_is_corrupt) {
  flp_kernel_image image = sample_image(FLP_KERNEL_FORWARD, 64, 1), got;
  uint8_t *bytes;
  size_t length;
  cr_assert_eq(store_entry_encode(FIXTURE_KEY, FIXTURE_KEY_BYTES, &image, &bytes, &length), FLP_OK);
  cr_assert_eq(store_entry_decode(bytes, length, NULL, &got), FLP_OK, "%s", flp_error_detail());
  cr_expect(sample_image_equal(&got, &image));
  flp_kernel_image_clear(&got);
  for (size_t at = 0; at < length; at++)
    for (int bit = 0; bit < 8; bit++) {
      bytes[at] ^= (uint8_t)(1 << bit);
      cr_expect_eq(store_entry_decode(bytes, length, NULL, &got), FLP_ERROR_CORRUPT, "byte %zu bit %d", at, bit);
      cr_expect_null(got.ptx);
      bytes[at] ^= (uint8_t)(1 << bit);
    }
  for (size_t short_length = 0; short_length < length; short_length++)
    cr_expect_eq(store_entry_decode(bytes, short_length, NULL, &got), FLP_ERROR_CORRUPT, "length %zu", short_length);
  free(bytes);
  flp_kernel_image_clear(&image);
}

Test(store, corrupt_entry_is_set_aside_and_made_again) {
  const char *directory = sample_directory();
  char path[FIXTURE_PATH_BYTES];
  fixture_put_in(directory, FIXTURE_KEY, 1);
  fixture_write_file(fixture_path(directory, FIXTURE_KEY, ".flpk", path), "FLPK, but no more", 17);
  flp_store *store = fixture_open(directory, NULL);
  cr_expect_not(fixture_finds(store, FIXTURE_KEY, 1));
  cr_expect_eq(fixture_warnings, 1);
  cr_expect_not_null(strstr(fixture_warning, "17 bytes are too few"), "%s", fixture_warning);
  cr_expect_eq(access(fixture_path(directory, FIXTURE_KEY, ".bad-0", path), F_OK), 0);
  cr_expect_neq(access(fixture_path(directory, FIXTURE_KEY, ".flpk", path), F_OK), 0);
  cr_expect(fixture_makes(store));
  cr_expect_not(fixture_makes(store));
  /* a second specimen gets the next number */
  fixture_write_file(path, "x", 1);
  cr_expect(fixture_makes(store));
  cr_expect_eq(access(fixture_path(directory, FIXTURE_KEY, ".bad-1", path), F_OK), 0);
  cr_expect(fixture_finds(store, FIXTURE_KEY, 1));
  flp_store_close(store);
}

Test(store, corrupt_entry_of_a_read_only_directory_stays) {
  const char *directory = sample_directory();
  char path[FIXTURE_PATH_BYTES];
  fixture_write_file(fixture_path(directory, FIXTURE_KEY, ".flpk", path), "x", 1);
  flp_store *store = fixture_open(NULL, directory);
  cr_expect_not(fixture_finds(store, FIXTURE_KEY, 1));
  cr_expect_eq(access(path, F_OK), 0);
  cr_expect_eq(sample_count(directory, ".bad-"), 0);
  flp_store_close(store);
}

Test(store, entry_under_another_keys_name_is_corrupt) {
  const char *directory = sample_directory();
  char from[FIXTURE_PATH_BYTES], to[FIXTURE_PATH_BYTES];
  fixture_put_in(directory, FIXTURE_OTHER_KEY, 1);
  cr_assert_eq(rename(fixture_path(directory, FIXTURE_OTHER_KEY, ".flpk", from),
                      fixture_path(directory, FIXTURE_KEY, ".flpk", to)),
               0);
  flp_store *store = fixture_open(directory, NULL);
  cr_expect_not(fixture_finds(store, FIXTURE_KEY, 1));
  cr_expect_not_null(strstr(fixture_warning, "holds another key"), "%s", fixture_warning);
  cr_expect_eq(sample_count(directory, ".bad-0"), 1);
  flp_store_close(store);
}

Test(store, things_that_are_no_files_are_set_aside) {
  const char *directory = sample_directory();
  char path[FIXTURE_PATH_BYTES], target[FIXTURE_PATH_BYTES];
  fixture_put_in(directory, FIXTURE_OTHER_KEY, 1);
  fixture_path(directory, FIXTURE_KEY, ".flpk", path);
  for (int i = 0; i < 3; i++) {
    if (i == 0) cr_assert_eq(symlink(fixture_path(directory, FIXTURE_OTHER_KEY, ".flpk", target), path), 0);
    if (i == 1) cr_assert_eq(mkdir(path, 0700), 0);
    if (i == 2) cr_assert_eq(mkfifo(path, 0600), 0);
    flp_store *store = fixture_open(directory, NULL);
    cr_expect_not(fixture_finds(store, FIXTURE_KEY, 1), "thing %d", i);
    cr_expect_eq(sample_count(directory, ".bad-"), i + 1, "thing %d", i);
    fixture_put(store, FIXTURE_KEY, 1);
    cr_expect(fixture_finds(store, FIXTURE_KEY, 1), "thing %d", i);
    flp_store_close(store);
    cr_assert_eq(unlink(path), 0);
  }
}

Test(store, quarantine_leaves_a_fresh_file_alone) {
  const char *directory = sample_directory();
  char path[FIXTURE_PATH_BYTES], hex[STORE_HEX + 1];
  struct stat seen;
  fixture_write_file(fixture_path(directory, FIXTURE_KEY, ".flpk", path), "x", 1);
  cr_assert_eq(stat(path, &seen), 0);
  fixture_put_in(directory, FIXTURE_KEY, 1); /* somebody rebuilt it after we had read the bad one */
  int fd = open(directory, O_RDONLY | O_DIRECTORY);
  store_entry_name(FIXTURE_KEY, FIXTURE_KEY_BYTES, hex);
  store_file_quarantine(fd, hex, &seen);
  close(fd);
  cr_expect_eq(sample_count(directory, ".bad-"), 0);
  flp_store *store = fixture_open(directory, NULL);
  cr_expect(fixture_finds(store, FIXTURE_KEY, 1));
  flp_store_close(store);
}

/* ---- making ---- */

static flp_status make_fails(void *context, flp_kernel_image *out) {
  (void)context;
  *out = sample_image(FLP_KERNEL_FORWARD, 10, 1); /* a maker that failed half-way */
  return flp_fail(FLP_ERROR_COMPILE, "forward.lua:7: no");
}

Test(store, failure_to_make_is_passed_on) {
  const char *directory = sample_directory();
  flp_store *store = fixture_open(directory, NULL);
  flp_kernel_image got;
  int made;
  cr_expect_eq(flp_store_get_or_make(store, FIXTURE_KEY, FIXTURE_KEY_BYTES, 100, make_fails, NULL, &got, &made),
               FLP_ERROR_COMPILE);
  cr_expect_str_eq(flp_error_detail(), "forward.lua:7: no");
  cr_expect_eq(made, 0);
  cr_expect_null(got.ptx);
  cr_expect_eq(sample_count(directory, ".flpk"), 0);
  cr_expect(fixture_makes(store), "the lock was released");
  flp_store_close(store);
}
