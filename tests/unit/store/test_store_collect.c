/* test_store_collect.c: machine code and locks that are thrown out, or stay. tests/golden/store has the rest. */
#include <criterion/criterion.h>
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/store/internal.h"
#include "tests/unit/support/store_fixture.h"

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

