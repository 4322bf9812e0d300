/* store_fixture.c: see store_fixture.h. What must succeed aborts when it does not, which is a crashed test. */
#include "tests/unit/support/store_fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/store/internal.h"

int fixture_warnings;
char fixture_warning[2048];

static void require(int condition, const char *what) {
  if (condition) return;
  fprintf(stderr, "store_fixture: %s: %s\n", what, flp_error_detail());
  abort();
}

static void on_log(flp_log_level level, const char *message, void *user) {
  (void)user;
  if (level != FLP_LOG_WARNING) return;
  fixture_warnings++;
  snprintf(fixture_warning, sizeof fixture_warning, "%s", message);
}

flp_store *fixture_open(const char *writable, const char *read_only) {
  flp_store *store;
  require(flp_store_open(writable, read_only, &store) == FLP_OK, "open");
  flp_log_set(on_log, NULL);
  return store;
}

void fixture_put(flp_store *store, const char *key, unsigned seed) {
  flp_kernel_image image = sample_image(FLP_KERNEL_FORWARD, 5000, seed);
  require(flp_store_put(store, key, strlen(key), &image) == FLP_OK, "put");
  flp_kernel_image_clear(&image);
}

void fixture_put_in(const char *directory, const char *key, unsigned seed) {
  flp_store *store = fixture_open(directory, NULL);
  fixture_put(store, key, seed);
  flp_store_close(store);
}

int fixture_finds(flp_store *store, const char *key, unsigned seed) {
  flp_kernel_image got, want = sample_image(FLP_KERNEL_FORWARD, 5000, seed);
  int found = -1;
  require(flp_store_get(store, key, strlen(key), &got, &found) == FLP_OK, "get");
  require(found ? sample_image_equal(&got, &want) : got.ptx == NULL, "image is not that of the seed");
  flp_kernel_image_clear(&got);
  flp_kernel_image_clear(&want);
  return found;
}

static flp_status make_one(void *context, flp_kernel_image *out) {
  ++*(int *)context;
  *out = sample_image(FLP_KERNEL_FORWARD, 5000, 1);
  return FLP_OK;
}

int fixture_makes(flp_store *store) {
  flp_kernel_image got, want = sample_image(FLP_KERNEL_FORWARD, 5000, 1);
  int calls = 0, made = -1;
  require(flp_store_get_or_make(store, FIXTURE_KEY, FIXTURE_KEY_BYTES, 1000, make_one, &calls, &got, &made) == FLP_OK,
          "get_or_make");
  require(sample_image_equal(&got, &want), "get_or_make: wrong image");
  require(calls == made, "get_or_make: `made` is not the number of calls of make");
  require(flp_error_detail()[0] == 0, "get_or_make: success left a detail");
  flp_kernel_image_clear(&got);
  flp_kernel_image_clear(&want);
  return made;
}

char *fixture_path(const char *directory, const char *key, const char *suffix, char out[FIXTURE_PATH_BYTES]) {
  char hex[STORE_HEX + 1];
  store_entry_name(key, strlen(key), hex);
  int length = snprintf(out, FIXTURE_PATH_BYTES, "%s/%s%s", directory, hex, suffix);
  require(length > 0 && length < FIXTURE_PATH_BYTES, "path");
  return out;
}

void fixture_write_file(const char *path, const void *bytes, size_t length) {
  FILE *file = fopen(path, "w");
  require(file && fwrite(bytes, 1, length, file) == length && fclose(file) == 0, "write_file");
}

void fixture_make_old(const char *path, time_t age) {
  struct timespec times[2] = {{.tv_sec = time(NULL) - age}, {.tv_sec = time(NULL) - age}};
  require(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW) == 0, "make_old");
}
