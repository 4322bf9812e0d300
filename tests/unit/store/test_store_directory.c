/* test_store_directory.c: cache directories of other users, and such that cannot be written. tests/golden/store has the
 * rest. */
#include <criterion/criterion.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/support/store_fixture.h"

/* What is made is kept in memory, and a warning says so once. */
static void expect_memory(flp_store *store, const char *reason) {
  cr_expect(fixture_makes(store));
  cr_expect_not(fixture_makes(store), "memory serves this process");
  cr_expect_eq(fixture_warnings, 1, "%d warnings, the last: %s", fixture_warnings, fixture_warning);
  cr_expect_not_null(strstr(fixture_warning, reason), "%s", fixture_warning);
}

/* ---- directories that are refused ---- */

static void expect_refused(const char *directory, const char *reason) {
  flp_store *store = fixture_open(directory, NULL);
  fixture_warnings = 0;
  flp_kernel_image image = sample_image(FLP_KERNEL_FORWARD, 5000, 1);
  cr_expect_not(fixture_finds(store, FIXTURE_KEY, 1));
  expect_memory(store, reason);
  cr_expect_eq(flp_store_put(store, FIXTURE_OTHER_KEY, sizeof FIXTURE_OTHER_KEY - 1, &image), FLP_ERROR_IO);
  cr_expect_not_null(strstr(flp_error_detail(), reason), "%s", flp_error_detail());
  cr_expect(fixture_finds(store, FIXTURE_OTHER_KEY, 1), "what could not be written is served from memory");
  flp_kernel_image_clear(&image);
  flp_store_close(store);
}

Test(store_directory, directory_of_another_user_is_refused) {
  const char *directory = "/usr"; /* root's, for whoever is not root */
  if (geteuid() == 0) {
    directory = sample_directory();
    cr_assert_eq(chown(directory, 12345, 12345), 0);
  }
  expect_refused(directory, "owned by user");
}

/* ---- directories that cannot be written ---- */

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
  flp_kernel_image image = sample_image(FLP_KERNEL_FORWARD, 5000, 1);
  cr_expect_eq(flp_store_put(store, "another", 7, &image), FLP_ERROR_IO);
  expect_memory(store, "Permission denied");
  flp_kernel_image_clear(&image);
  flp_store_close(store);
  cr_assert_eq(chmod(directory, 0700), 0);
  if (is_root) cr_assert_eq(seteuid(0), 0);
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
  expect_memory(store, "write: File too large");
  cr_assert_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
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
  expect_memory(store, "No space left on device");
  cr_expect_eq(sample_count(directory, ".flpk"), 0);
  cr_expect_eq(sample_count(directory, ".tmp-"), 0);
  flp_store_close(store);
  umount(directory);
}
