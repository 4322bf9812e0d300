/* test_store_directory.c: cache directories that must not be trusted, and such that cannot be written. */
#include <criterion/criterion.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/store/internal.h"
#include "tests/unit/support/store_fixture.h"

/* ---- directories that are refused ---- */

static void expect_refused(const char *directory, const char *reason) {
  flp_store *store = fixture_open(directory, NULL);
  fixture_warnings = 0;
  flp_kernel_image image = sample_image(FLP_KERNEL_FORWARD, 5000, 1);
  cr_expect_not(fixture_finds(store, FIXTURE_KEY, 1));
  cr_expect(fixture_makes(store));
  cr_expect_not(fixture_makes(store), "memory serves this process");
  cr_expect_eq(fixture_warnings, 1, "%d warnings, the last: %s", fixture_warnings, fixture_warning);
  cr_expect_not_null(strstr(fixture_warning, reason), "%s", fixture_warning);
  cr_expect_eq(flp_store_put(store, FIXTURE_OTHER_KEY, sizeof FIXTURE_OTHER_KEY - 1, &image), FLP_ERROR_IO);
  cr_expect_not_null(strstr(flp_error_detail(), reason), "%s", flp_error_detail());
  cr_expect(fixture_finds(store, FIXTURE_OTHER_KEY, 1), "what could not be written is served from memory");
  flp_kernel_image_clear(&image);
  flp_store_close(store);
}

Test(store_directory, directory_that_a_group_may_write_is_refused) {
  const char *directory = sample_directory();
  fixture_put_in(directory, FIXTURE_KEY, 9); /* it lies there, but anybody could have put it there */
  cr_assert_eq(chmod(directory, 0770), 0);
  expect_refused(directory, "mode 0770 lets other users write, accepted: 0700 or 0755");
}

/* A relative name counts from the directory of the time of opening; where that is gone, from none. */
Test(store_directory, relative_name_in_a_directory_that_is_gone_is_no_cache) {
  char gone[600], later[600], found[700];
  snprintf(gone, sizeof gone, "%s/gone", sample_directory());
  snprintf(later, sizeof later, "%s", sample_directory());
  snprintf(found, sizeof found, "%s/cache", later);
  cr_assert(mkdir(gone, 0700) == 0 && chdir(gone) == 0 && rmdir(gone) == 0);
  flp_store_close(fixture_open(NULL, NULL)); /* listens from here on */
  flp_store *store = fixture_open("cache", "system:/absolute");
  cr_expect_eq(fixture_warnings, 2, "%d warnings, the last: %s", fixture_warnings, fixture_warning);
  cr_expect_not_null(strstr(fixture_warning, "kernel cache cache ignored: it has no absolute path: "), "%s",
                     fixture_warning);
  cr_assert_eq(chdir(later), 0);
  cr_expect(fixture_makes(store));
  cr_expect_not(fixture_makes(store), "memory serves this process");
  cr_expect_neq(access(found, F_OK), 0, "nothing is written to a place that nobody named");
  cr_expect_null(store->writable);
  cr_expect_eq(store->read_only_count, 1);
  flp_store_close(store);
}

Test(store_directory, directory_that_others_may_write_is_refused) {
  const char *directory = sample_directory();
  cr_assert_eq(chmod(directory, 01777), 0);
  expect_refused(directory, "mode 1777 lets other users write");
}

Test(store_directory, directory_of_another_user_is_refused) {
  const char *directory = "/usr"; /* root's, for whoever is not root */
  if (geteuid() == 0) {
    directory = sample_directory();
    cr_assert_eq(chown(directory, 12345, 12345), 0);
  }
  expect_refused(directory, "owned by user");
}

Test(store_directory, linked_directory_is_refused) {
  char path[FIXTURE_PATH_BYTES], target[FIXTURE_PATH_BYTES];
  const char *root = sample_directory();
  snprintf(target, sizeof target, "%s/real", root);
  snprintf(path, sizeof path, "%s/link/", root); /* a trailing slash would follow the link */
  fixture_put_in(target, FIXTURE_KEY, 9);
  path[strlen(path) - 1] = 0;
  cr_assert_eq(symlink(target, path), 0);
  strcat(path, "/");
  expect_refused(path, "not a directory (links are not followed)");
}

Test(store_directory, file_in_place_of_a_directory_is_refused) {
  char path[FIXTURE_PATH_BYTES];
  snprintf(path, sizeof path, "%s/file", sample_directory());
  fixture_write_file(path, "x", 1);
  expect_refused(path, "not a directory");
}

Test(store_directory, untrusted_read_only_directory_is_ignored) {
  const char *directory = sample_directory();
  fixture_put_in(directory, FIXTURE_KEY, 1);
  cr_assert_eq(chmod(directory, 0777), 0);
  flp_store *store = fixture_open(NULL, directory);
  cr_expect_not(fixture_finds(store, FIXTURE_KEY, 1));
  cr_expect_eq(fixture_warnings, 1);
  cr_expect_not_null(strstr(fixture_warning, "mode 0777"), "%s", fixture_warning);
  flp_store_close(store);
}

/* ---- directories that cannot be written ---- */

Test(store_directory, no_writable_directory_keeps_kernels_in_memory) {
  flp_store *store = fixture_open(NULL, NULL);
  cr_expect(fixture_makes(store));
  cr_expect_not(fixture_makes(store));
  cr_expect_eq(fixture_warnings, 0, "nobody asked for a cache");
  flp_store_close(store);
  store = fixture_open("", "");
  cr_expect_not(fixture_makes(store), "memory belongs to the process");
  flp_store_close(store);
}

Test(store_directory, read_only_directory_is_read_and_warned_about_once) {
  const char *directory = sample_directory();
  int is_root = geteuid() == 0;
  if (is_root) { /* root may write anywhere, so become somebody else */
    cr_assert_eq(chown(directory, 65534, 65534), 0);
    cr_assert_eq(seteuid(65534), 0);
  }
  fixture_put_in(directory, FIXTURE_OTHER_KEY, 2);
  cr_assert_eq(chmod(directory, 0500), 0);
  flp_store *store = fixture_open(directory, NULL);
  cr_expect(fixture_finds(store, FIXTURE_OTHER_KEY, 2));
  cr_expect(fixture_makes(store));
  cr_expect_not(fixture_makes(store));
  flp_kernel_image image = sample_image(FLP_KERNEL_FORWARD, 5000, 1);
  cr_expect_eq(flp_store_put(store, "another", 7, &image), FLP_ERROR_IO);
  cr_expect_eq(fixture_warnings, 1);
  cr_expect_not_null(strstr(fixture_warning, "Permission denied"), "%s", fixture_warning);
  flp_kernel_image_clear(&image);
  flp_store_close(store);
  cr_assert_eq(chmod(directory, 0700), 0);
  if (is_root) cr_assert_eq(seteuid(0), 0);
}

Test(store_directory, vanished_directory_is_made_again) {
  char path[FIXTURE_PATH_BYTES];
  snprintf(path, sizeof path, "%s/cache", sample_directory());
  flp_store *store = fixture_open(path, NULL);
  fixture_put(store, FIXTURE_KEY, 1);
  char file[FIXTURE_PATH_BYTES];
  cr_assert_eq(unlink(fixture_path(path, FIXTURE_KEY, ".flpk", file)), 0);
  cr_assert_eq(rmdir(path), 0);
  fixture_put(store, FIXTURE_KEY, 1);
  cr_expect(fixture_finds(store, FIXTURE_KEY, 1));
  flp_store_close(store);
}

Test(store_directory, file_size_limit_degrades_to_memory) {
  const char *directory = sample_directory();
  fixture_put_in(directory, FIXTURE_OTHER_KEY, 2);
  signal(SIGXFSZ, SIG_IGN);
  struct rlimit before, limit;
  cr_assert_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
  limit = before;
  limit.rlim_cur = 1000;
  cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
  flp_store *store = fixture_open(directory, NULL);
  int first = fixture_makes(store), second = fixture_makes(store);
  cr_assert_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
  cr_expect(first);
  cr_expect_not(second);
  cr_expect_eq(fixture_warnings, 1);
  cr_expect_not_null(strstr(fixture_warning, "write: File too large"), "%s", fixture_warning);
  cr_expect_eq(sample_count(directory, ".tmp-"), 0, "a failed write leaves nothing");
  cr_expect(fixture_finds(store, FIXTURE_OTHER_KEY, 2));
  flp_store_close(store);
}

Test(store_directory, full_disk_degrades_to_memory) {
  const char *directory = sample_directory();
  if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
      mount("tmpfs", directory, "tmpfs", 0, "size=4k,mode=0700") != 0)
    cr_skip_test("needs the right to mount a tmpfs");
  flp_store *store = fixture_open(directory, NULL);
  cr_expect(fixture_makes(store));
  cr_expect_not(fixture_makes(store));
  cr_expect_eq(fixture_warnings, 1);
  cr_expect_not_null(strstr(fixture_warning, "No space left on device"), "%s", fixture_warning);
  cr_expect_eq(sample_count(directory, ".flpk"), 0);
  cr_expect_eq(sample_count(directory, ".tmp-"), 0);
  flp_store_close(store);
  umount(directory);
}
