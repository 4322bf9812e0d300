/* test_pack_faults.c: packs where memory runs out, reads fail and the file ends early: each call once. A pack that
 * cannot be read whole is refused with the reason, or passed by with a warning; it never gives other bytes. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>

#include "tests/unit/faults/faults.h"
#include "tests/unit/support/pack_case.h"
#include "tests/unit/support/store_fixture.h"

static char folder[FIXTURE_PATH_BYTES - 64], path[FIXTURE_PATH_BYTES], key[FLP_KEY_BYTES_MAX + 1];
static pack_case bytes;
static int number, fd = -1;

/* The pack under another name, since a process reads the table of a path once. */
static void place(void) {
  if (fd >= 0) close(fd);
  snprintf(path, sizeof path, "%s/%d.flpp", folder, ++number);
  fixture_write_file(path, bytes.bytes, bytes.length);
  fd = open(path, O_RDONLY);
  cr_assert_geq(fd, 0);
}

static void start(const uint8_t *seed) {
  snprintf(folder, sizeof folder, "%s", sample_directory());
  bytes = pack_case_make(seed);
  flp_kernel_desc desc = pack_case_desc(FLP_KERNEL_FORWARD, "sm_90a", 151936);
  pack_case_key(&desc, "", key);
}

static void stop(void) {
  free(bytes.bytes);
  close(fd);
}

/* ---- reading and checking all of it ---- */

static flp_status read_all(void) {
  flp_pack *pack;
  flp_status status = flp_pack_open(fd, "pack", &pack);
  if (status == FLP_OK) status = flp_pack_check(pack, fd, NULL, NULL);
  flp_pack_close(pack);
  return status;
}

Test(pack_faults, reading) {
  static const uint8_t seed[32] = {1};
  static const faults_operation operation = {"read a pack", place, read_all, NULL,
                                             FAULTS_MAY(MEMORY) | FAULTS_MAY(IO) | FAULTS_MAY(INTERNAL)};
  static const faults_operation early = {"read a pack that ends", place, read_all, NULL, FAULTS_MAY(CORRUPT)};
  start(seed);
  cr_expect_geq(faults_each(&operation, FAULTS_MEMORY, 0), 10);
  cr_expect_geq(faults_each(&operation, FAULTS_FILES, 0), 5);
  cr_expect_eq(faults_each(&operation, FAULTS_START, 0), 1);
  cr_expect_geq(faults_each(&early, FAULTS_READ, FAULTS_END), 4);
  stop();
}

Test(pack_faults, an_interrupted_read_goes_on) {
  start(NULL);
  place();
  for (int k = 1; k <= 4; k++) {
    faults_arm(FAULTS_READ, k, EINTR);
    flp_status status = read_all();
    cr_expect_str_eq(faults_disarm(), "pread");
    cr_expect_eq(status, FLP_OK, "%s", flp_error_detail());
  }
  stop();
}

/* ---- where a cache path names it ---- */

static flp_store *store;
static flp_kernel_image got;
static int found, keys, items;

static int count_key(void *context, const char *text) {
  (void)context;
  keys += text[0] != 0;
  return 1;
}

static int count_item(void *context, const flp_store_item *item) {
  (void)context;
  items += item->status == FLP_OK;
  return 1;
}

static void open_store(void) {
  place();
  store = fixture_open(NULL, path);
  flp_store_set_device(store, 90, 13000);
  memset(&got, 0, sizeof got);
  found = keys = items = 0;
}

static flp_status look_up(void) {
  flp_status status = flp_store_get(store, key, strlen(key), &got, &found);
  if (status == FLP_OK) status = flp_store_each_key(store, count_key, NULL);
  return status == FLP_OK ? flp_store_each(store, count_item, NULL) : status;
}

static void check_found(flp_status status, const char *failed) {
  if (!failed) cr_assert(status == FLP_OK && found && keys == 3 && items == 3, "%d %d %d", found, keys, items);
  if (found) cr_assert_not_null(strstr(got.ptx, "kernel forward of sm_90a"), "%s", failed);
  if (!found) cr_assert_null(got.ptx, "%s", failed);
  cr_assert(keys <= 3 && items <= 3);
  flp_kernel_image_clear(&got);
  flp_store_close(store);
}

Test(pack_faults, in_a_cache_path) {
  static const faults_operation operation = {"look a pack up", open_store, look_up, check_found, FAULTS_MAY(MEMORY)};
  start(NULL);
  cr_expect_geq(faults_each(&operation, FAULTS_MEMORY, 0), 15);
  cr_expect_geq(faults_each(&operation, FAULTS_FILES, 0), 15);
  cr_expect_geq(faults_each(&operation, FAULTS_READ, FAULTS_END), 8);
  stop();
}
