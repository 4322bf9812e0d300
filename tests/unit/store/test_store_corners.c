/* test_store_corners.c: what a cache seldom meets: names that are not its own, ties of age, visits that are stopped,
 * lists of odd paths, and files that are no files. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/store/internal.h"
#include "tests/unit/support/store_fixture.h"

#define HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

Test(store_corners, names) {
  static const struct {
    const char *name;
    store_file_kind kind;
  } cases[] = {{HEX ".flpk", STORE_FILE_ENTRY},  {HEX ".flpc", STORE_FILE_CUBIN},  {HEX ".lock", STORE_FILE_LOCK},
               {HEX ".flps", STORE_FILE_PROOF},
               {HEX ".bad-7", STORE_FILE_BAD},   {HEX ".flpx", STORE_FILE_OTHER},  {HEX, STORE_FILE_OTHER},
               {".tmp-1", STORE_FILE_TEMPORARY}, {HEX "0.flpk", STORE_FILE_OTHER}, {"notes", STORE_FILE_OTHER}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    cr_expect_eq(store_file_classify(cases[i].name), cases[i].kind, "%s", cases[i].name);
}

/* Equal times to the nanosecond: the name decides. */
Test(store_corners, the_oldest_go_first_and_ties_are_broken_by_name) {
  const char *directory = sample_directory();
  char path[2][FIXTURE_PATH_BYTES];
  const char *const keys[] = {FIXTURE_KEY, FIXTURE_OTHER_KEY};
  struct timespec times[2] = {{1700000000, 5}, {1700000000, 5}};
  for (int tie = 0; tie < 3; tie++) { /* a tie; then the second is older by a nanosecond, then the first */
    for (int i = 0; i < 2; i++) {
      fixture_put_in(directory, keys[i], 1);
      times[0].tv_nsec = times[1].tv_nsec = tie && i == (tie == 1) ? 4 : 5;
      cr_assert_eq(utimensat(AT_FDCWD, fixture_path(directory, keys[i], ".flpk", path[i]), times, 0), 0);
    }
    flp_store *store = fixture_open(directory, NULL);
    uint64_t files, bytes;
    struct stat one; /* the larger one */
    cr_assert_eq(stat(path[1], &one), 0);
    cr_assert_eq(flp_store_collect(store, (uint64_t)one.st_size, &files, &bytes), FLP_OK);
    int first_goes = tie ? tie == 2 : strcmp(path[0], path[1]) < 0;
    cr_expect_eq(files, 1);
    cr_expect_eq(access(path[!first_goes], F_OK) != 0, 1, "tie %d", tie);
    cr_expect_eq(access(path[first_goes], F_OK), 0, "tie %d", tie);
    flp_store_close(store);
  }
}

static int visits;

static int stop_at_once(void *context, const char *key) {
  (void)context;
  (void)key;
  visits++;
  return 0;
}

static int stop_item(void *context, const flp_store_item *item) {
  return stop_at_once(context, item->key);
}

/* The first of all ends the visit, of this directory and of those behind it. */
Test(store_corners, a_visit_that_is_stopped) {
  char other[256], both[600];
  snprintf(other, sizeof other, "%s", sample_directory());
  fixture_put_in(other, FIXTURE_KEY, 1);
  fixture_put_in(other, FIXTURE_OTHER_KEY, 1);
  snprintf(both, sizeof both, "%s:%s", other, other);
  flp_store *store = fixture_open(other, both);
  cr_assert_eq(flp_store_each_key(store, stop_at_once, NULL), FLP_OK);
  cr_expect_eq(visits, 1);
  cr_assert_eq(flp_store_each(store, stop_item, NULL), FLP_OK);
  cr_expect_eq(visits, 2);
  flp_store_close(store);
}

/* An absolute path of one slash, a path too long to be made, and a device that is none. */
Test(store_corners, odd_paths) {
  char deep[5000];
  memset(deep, 'd', sizeof deep);
  memcpy(deep, "/tmp/", 5);
  deep[sizeof deep - 1] = 0;
  flp_store *store = fixture_open(deep, "/");
  flp_store_set_device(store, -1, -1);
  cr_expect_str_eq(store->read_only[0], "/");
  cr_expect_eq(store->capability, 0);
  cr_expect_eq(store->driver, 0);
  flp_kernel_image image = sample_image(FLP_KERNEL_FORWARD, 100, 1);
  cr_expect_eq(flp_store_put(store, FIXTURE_KEY, FIXTURE_KEY_BYTES, &image), FLP_ERROR_IO);
  cr_expect_eq(flp_store_put(store, NULL, 0, &image), FLP_ERROR_ARGUMENT);
  flp_kernel_image_clear(&image);
  flp_store_close(store);
}

Test(store_corners, a_pack_is_a_regular_file_of_this_user) {
  char path[FIXTURE_PATH_BYTES];
  int fd;
  struct stat stat_;
  snprintf(path, sizeof path, "%s/fifo", sample_directory());
  cr_assert_eq(mkfifo(path, 0600), 0);
  cr_expect_eq(store_file_open_pack(path, &fd, &stat_), FLP_ERROR_IO);
  cr_expect_not_null(strstr(flp_error_detail(), "not a regular file"), "%s", flp_error_detail());
  cr_expect_eq(fd, -1);
}

/* The hundred and first bad file of a key is thrown away. */
Test(store_corners, a_hundred_specimens_are_enough) {
  char path[FIXTURE_PATH_BYTES], suffix[16];
  const char *directory = sample_directory();
  flp_store *store = fixture_open(directory, NULL);
  for (int i = 0; i < 100; i++) {
    snprintf(suffix, sizeof suffix, ".bad-%d", i);
    fixture_write_file(fixture_path(directory, FIXTURE_KEY, suffix, path), "x", 1);
  }
  fixture_write_file(fixture_path(directory, FIXTURE_KEY, ".flpk", path), "x", 1);
  cr_expect_not(fixture_finds(store, FIXTURE_KEY, 1));
  cr_expect_neq(access(path, F_OK), 0);
  cr_expect_eq(sample_count(directory, ".bad-"), 100);
  flp_store_close(store);
}
