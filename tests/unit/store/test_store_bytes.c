/* test_store_bytes.c: the bytes of the files that a cache keeps, fixed by their hashes: what older and newer releases
 * write and read must be the same, byte for byte. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <elf.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/store/internal.h"
#include "tests/unit/support/store_fixture.h"

/* As sample_image, whatever sources this was built from. */
static flp_kernel_image image_of(size_t ptx_bytes) {
  flp_kernel_image image = sample_image(FLP_KERNEL_FORWARD, ptx_bytes, 3);
  for (size_t i = 0; i < sizeof image.desc.sources; i++) image.desc.sources[i] = (uint8_t)(5 * i);
  return image;
}

/* The only file of a directory that ends so; name is its own. */
static size_t read_file(const char *directory, const char *suffix, char name[256], uint8_t *bytes, size_t capacity) {
  char path[FIXTURE_PATH_BYTES + 256] = "";
  DIR *stream = opendir(directory);
  for (struct dirent *entry; stream && (entry = readdir(stream)) != NULL;)
    if (strlen(entry->d_name) > strlen(suffix) &&
        strcmp(entry->d_name + strlen(entry->d_name) - strlen(suffix), suffix) == 0) {
      snprintf(name, 256, "%s", entry->d_name);
      snprintf(path, sizeof path, "%s/%s", directory, name);
    }
  closedir(stream);
  FILE *file = fopen(path, "r");
  cr_assert_not_null(file, "no %s", suffix);
  size_t length = fread(bytes, 1, capacity, file);
  fclose(file);
  return length;
}

static void expect_hash(const uint8_t *bytes, size_t length, const char *want) {
  uint8_t digest[STORE_DIGEST];
  char hex[STORE_HEX + 1];
  crypto_hash_sha256(digest, bytes, length);
  sodium_bin2hex(hex, sizeof hex, digest, sizeof digest);
  cr_expect_str_eq(hex, want, "%zu bytes are %s", length, hex);
}

Test(store_bytes, an_entry) {
  uint8_t bytes[8192];
  char name[256];
  const char *directory = sample_directory();
  flp_store *store = fixture_open(directory, NULL);
  flp_kernel_image image = image_of(3000);
  cr_assert_eq(flp_store_put(store, FIXTURE_KEY, FIXTURE_KEY_BYTES, &image), FLP_OK, "%s", flp_error_detail());
  size_t length = read_file(directory, ".flpk", name, bytes, sizeof bytes);
  cr_expect_str_eq(name, "d52b7e8815f5e82a390be7b8d7cf4a5c62013cee065179a71acf28dbe55a4106.flpk");
  expect_hash(bytes, length, "db3341fabb76a01dd5da95625bc0dee7e233512024b349264bc57d307842a5c8");
  flp_kernel_image_clear(&image);
  flp_store_close(store);
}

Test(store_bytes, machine_code) {
  uint8_t bytes[8192];
  char name[256];
  const char *directory = sample_directory();
  flp_store *store = fixture_open(directory, NULL);
  flp_store_set_device(store, 90, 13000);
  flp_kernel_image image = image_of(500);
  Elf64_Ehdr head = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB}, .e_machine = 190};
  image.cubin = memcpy(malloc(sizeof head), &head, sizeof head);
  image.cubin_bytes = sizeof head;
  flp_store_keep_cubin(store, &image);
  size_t length = read_file(directory, ".flpc", name, bytes, sizeof bytes);
  cr_expect_str_eq(name, "b91d9f58084901a8777190196a4c73e37b8322b5f336e32856842b06abc7c294.flpc");
  expect_hash(bytes, length, "a8ddba5590d7e84555367630c4a87cce366d468d218957bd7c8de1e0c30f5dbc");
  flp_kernel_image_clear(&image);
  flp_store_close(store);
}
