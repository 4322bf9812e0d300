/* test_store.c: the kernel cache of one process: what is refused, and races with others. The bytes of its files, what
 * it finds, makes and sets aside are in tests/golden/store. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/store/internal.h"
#include "tests/unit/support/store_fixture.h"

/* ---- storing ---- */

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
