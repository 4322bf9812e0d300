/* test_store_faults.c: a cache whose memory runs out and whose system calls fail, each call of each operation once. A
 * cache costs time, never an answer: what can be read elsewhere or made is got, and nothing wrong ever is. */
#include <criterion/criterion.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/status.h"
#include "runtime/store/internal.h"
#include "tests/unit/faults/faults.h"
#include "tests/unit/support/store_fixture.h"

enum { PTX_BYTES = 5000 };

static char directory[FIXTURE_PATH_BYTES - 32], key[128];
static flp_store *store;
static flp_kernel_image want, got;
static int number, found;

/* A cache with a device. Keys of runs differ, since what could not be written is found in memory from then on. */
static void start(void) {
  snprintf(directory, sizeof directory, "%s", sample_directory());
  store = fixture_open(directory, NULL);
  flp_store_set_device(store, 90, 13000);
  want = sample_image(FLP_KERNEL_FORWARD, PTX_BYTES, 1);
}

static void stop(void) {
  flp_kernel_image_clear(&want);
  flp_store_close(store);
}

static void next_key(void) {
  snprintf(key, sizeof key, FIXTURE_KEY " %d", ++number);
  memset(&got, 0, sizeof got);
  found = 0;
}

/* What was given is whole, and nothing is given beside a failure. */
static void check_got(flp_status status, const char *failed) {
  if (status == FLP_OK && found)
    cr_assert(sample_image_equal(&got, &want), "%s", failed);
  else
    cr_assert_null(got.ptx, "%s", failed);
  flp_kernel_image_clear(&got);
}

/* ---- opening ---- */

static flp_store *opened;

static flp_status open_relative(void) {
  return flp_store_open("some/cache/", "first:/second:", &opened);
}

static void check_opened(flp_status status, const char *failed) {
  if (status != FLP_OK) {
    cr_assert_null(opened);
    return;
  }
  cr_assert(!opened->writable || opened->writable[0] == '/', "%s", failed);
  for (size_t i = 0; i < opened->read_only_count; i++) cr_assert_eq(opened->read_only[i][0], '/', "%s", failed);
  if (!failed) cr_assert(opened->writable && opened->read_only_count == 2);
  flp_store_close(opened);
}

Test(store_faults, opening) {
  static const faults_operation operation = {"open", NULL, open_relative, check_opened,
                                             FAULTS_MAY(MEMORY) | FAULTS_MAY(INTERNAL)};
  cr_expect_eq(faults_each(&operation, FAULTS_MEMORY, 0), 7);
  cr_expect_eq(faults_each(&operation, FAULTS_START, 0), 1);
}

/* ---- looking up ---- */

static void put_entry(void) {
  next_key();
  fixture_put(store, key, 1);
}

static flp_status get_entry(void) {
  return flp_store_get(store, key, strlen(key), &got, &found);
}

Test(store_faults, looking_up) {
  static const faults_operation operation = {"get", put_entry, get_entry, check_got, FAULTS_MAY(MEMORY)};
  start();
  cr_expect_eq(faults_each(&operation, FAULTS_MEMORY, 0), 2);
  cr_expect_eq(sample_count(directory, ".bad-"), 0);
  cr_expect_geq(faults_each(&operation, FAULTS_FILES, 0), 5);
  cr_expect_eq(sample_count(directory, ".bad-"), 0, "an error of the disk sets nothing aside");
  cr_expect_eq(faults_each(&operation, FAULTS_READ, FAULTS_END), 1);
  cr_expect_eq(sample_count(directory, ".bad-"), 1, "a file that ends early is set aside");
  stop();
}

/* A signal costs no entry: the call is made again. */
Test(store_faults, an_interrupted_call_is_made_again) {
  start();
  next_key();
  faults_arm(FAULTS_WRITE, 1, EINTR);
  fixture_put(store, key, 1);
  cr_expect_str_eq(faults_disarm(), "write");
  faults_arm(FAULTS_READ, 1, EINTR);
  cr_expect(fixture_finds(store, key, 1));
  cr_expect_str_eq(faults_disarm(), "read");
  cr_expect_eq(fixture_warnings, 0, "%s", fixture_warning);
  stop();
}

/* ---- storing ---- */

static flp_status put(void) {
  return flp_store_put(store, key, strlen(key), &want);
}

/* What could not be written is kept in memory; a half file stays only where it cannot be removed. */
static void check_put(flp_status status, const char *failed) {
  cr_assert(fixture_finds(store, key, 1), "%s", failed);
  cr_assert_eq(sample_count(directory, ".tmp-"), 0, "%s", failed);
  char path[FIXTURE_PATH_BYTES];
  int is_there = access(fixture_path(directory, key, ".flpk", path), F_OK) == 0;
  cr_assert(is_there || status == FLP_ERROR_IO, "%s", failed);
}

/* With one failure the entry is in the file or in memory; the memory's own failures are those of the next test. */
Test(store_faults, storing) {
  static const faults_operation operation = {"put", next_key, put, check_put, FAULTS_MAY(IO)};
  start();
  cr_expect_geq(faults_each(&operation, FAULTS_FILES, 0), 8);
  cr_expect_geq(faults_each(&operation, FAULTS_WRITE, ENOSPC), 5);
  stop();
}

/* A cache that cannot be written, beside memory that runs out: nothing is kept, and nothing breaks. */
Test(store_faults, storing_without_memory) {
  start();
  flp_store_close(store);
  store = fixture_open("/proc/no/such", NULL);
  static const int in_memory[] = {0, 0, 0, 1}; /* the file's bytes; the list's node and its PTX; none */
  static const flp_status statuses[] = {FLP_ERROR_MEMORY, FLP_ERROR_IO, FLP_ERROR_IO, FLP_ERROR_IO};
  for (int k = 0; k < 4; k++) {
    next_key();
    faults_arm(FAULTS_MEMORY, k + 1, 0);
    flp_status status = put();
    const char *failed = faults_disarm();
    cr_expect_eq(status, statuses[k], "call %d: %s: %s", k, failed, flp_error_detail());
    cr_expect_eq(failed != NULL, k < 3);
    cr_expect_eq(fixture_finds(store, key, 1), in_memory[k], "call %d: %s", k, failed);
  }
  faults_arm(FAULTS_MEMORY, 1, 0); /* the copy that a look-up gives */
  flp_status status = get_entry();
  cr_expect_str_eq(faults_disarm(), "malloc");
  cr_expect_eq(status, FLP_ERROR_MEMORY);
  cr_expect(fixture_finds(store, key, 1));
  stop();
}

/* ---- making ---- */

static flp_status make_one(void *context, flp_kernel_image *out) {
  ++*(int *)context;
  *out = sample_image(FLP_KERNEL_FORWARD, PTX_BYTES, 1);
  return FLP_OK;
}

static flp_status get_or_make(void) {
  int calls = 0, made;
  flp_status status = flp_store_get_or_make(store, key, strlen(key), 0, make_one, &calls, &got, &made);
  cr_assert(status != FLP_OK || (made == 1 && calls == 1));
  found = status == FLP_OK;
  return status;
}

Test(store_faults, making) {
  static const faults_operation operation = {"get or make", next_key, get_or_make, check_got, 0};
  start();
  cr_expect_geq(faults_each(&operation, FAULTS_FILES, 0), 15);
  cr_expect_geq(faults_each(&operation, FAULTS_FILES, EINTR), 15);
  cr_expect_geq(faults_each(&operation, FAULTS_WRITE, ENOSPC), 4);
  stop();
}

/* ---- machine code ---- */

static flp_status keep_and_get_code(void) {
  if (flp_store_keeps_cubins(store)) flp_store_keep_cubin(store, &want);
  flp_store_get_cubin(store, &got);
  return FLP_OK;
}

static void new_code(void) {
  memset(&got, 0, sizeof got);
  snprintf(want.ptx, 20, "// %d", ++number); /* the same key would find the code of the run before */
  got.desc = want.desc;
  got.ptx = want.ptx;
  got.ptx_bytes = want.ptx_bytes;
}

static void check_code(flp_status status, const char *failed) {
  cr_assert(status == FLP_OK && (failed || got.cubin));
  if (got.cubin)
    cr_assert(got.cubin_bytes == want.cubin_bytes && memcmp(got.cubin, want.cubin, want.cubin_bytes) == 0, "%s",
              failed);
  cr_assert_eq(sample_count(directory, ".tmp-"), 0, "%s", failed);
  free(got.cubin);
}

Test(store_faults, machine_code) {
  static const faults_operation operation = {"keep and get machine code", new_code, keep_and_get_code, check_code, 0};
  start();
  Elf64_Ehdr head = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB}, .e_machine = 190};
  want.cubin = memcpy(malloc(sizeof head), &head, sizeof head);
  want.cubin_bytes = sizeof head;
  cr_expect_eq(faults_each(&operation, FAULTS_MEMORY, 0), 3);
  cr_expect_geq(faults_each(&operation, FAULTS_FILES, 0), 20);
  cr_expect_geq(faults_each(&operation, FAULTS_READ, FAULTS_END), 1);
  stop();
}

/* ---- lists ---- */

static int visited, bad;

static int count_key(void *context, const char *text) {
  (void)context;
  visited++;
  return strncmp(text, FIXTURE_KEY, FIXTURE_KEY_BYTES) == 0;
}

static int count_item(void *context, const flp_store_item *item) {
  (void)context;
  visited++;
  bad += item->status != FLP_OK;
  return item->status == FLP_OK || item->reason[0];
}

static void forget_visits(void) {
  visited = bad = 0;
}

static flp_status each_key(void) {
  return flp_store_each_key(store, count_key, NULL);
}

static flp_status each_item(void) {
  return flp_store_each(store, count_item, NULL);
}

static void check_visits(flp_status status, const char *failed) {
  if (!failed) cr_assert(status == FLP_OK && visited == 3 && bad == 0);
  cr_assert_leq(visited, 3);
}

static void put_three(void) {
  for (int i = 0; i < 3; i++) put_entry();
}

Test(store_faults, lists) {
  static const faults_operation keys = {"each key", forget_visits, each_key, check_visits, FAULTS_MAY(MEMORY)};
  static const faults_operation items = {"each", forget_visits, each_item, check_visits,
                                         FAULTS_MAY(MEMORY) | FAULTS_MAY(IO)};
  start();
  put_three();
  cr_expect_geq(faults_each(&keys, FAULTS_MEMORY, 0), 3);
  cr_expect_geq(faults_each(&keys, FAULTS_FILES, 0), 8);
  cr_expect_geq(faults_each(&keys, FAULTS_READ, FAULTS_END), 3);
  cr_expect_geq(faults_each(&items, FAULTS_MEMORY, 0), 6);
  cr_expect_geq(faults_each(&items, FAULTS_FILES, 0), 8);
  cr_expect_geq(faults_each(&items, FAULTS_READ, FAULTS_END), 3);
  stop();
}

/* ---- collecting ---- */

static uint64_t files, bytes;

/* Three entries, and a temporary file, a lock and a bad file to throw out. */
static void fill(void) {
  char path[FIXTURE_PATH_BYTES];
  number = 0; /* the same three in every run, which else would have more calls than the one before */
  put_three();
  static const char *const rubbish[] = {".lock", ".bad-0"};
  for (size_t i = 0; i < 2; i++) {
    fixture_path(directory, FIXTURE_KEY, rubbish[i], path);
    fixture_write_file(path, "x", 1);
    fixture_make_old(path, 7200);
  }
  snprintf(path, sizeof path, "%s/.tmp-0", directory);
  fixture_write_file(path, "x", 1);
  fixture_make_old(path, 7200);
}

static flp_status collect(void) {
  return flp_store_collect(store, UINT64_MAX, &files, &bytes);
}

static flp_status collect_all(void) {
  return flp_store_collect(store, 0, &files, &bytes);
}

/* Sound entries stay, whatever fails, and rubbish that stays is thrown out the next time. */
static void check_collected(flp_status status, const char *failed) {
  cr_assert(fixture_finds(store, key, 1), "%s", failed);
  if (!failed) cr_assert(status == FLP_OK && files == 3);
  cr_assert_eq(flp_store_collect(store, UINT64_MAX, &files, &bytes), FLP_OK);
  cr_assert_eq(sample_count(directory, ".tmp-") + sample_count(directory, ".bad-") + sample_count(directory, ".lock"),
               0, "%s", failed);
}

static void check_emptied(flp_status status, const char *failed) {
  if (!failed) cr_assert(status == FLP_OK && sample_count(directory, ".flpk") == 0);
}

Test(store_faults, collecting) {
  static const faults_operation keeping = {"collect", fill, collect, check_collected,
                                           FAULTS_MAY(MEMORY) | FAULTS_MAY(IO)};
  static const faults_operation emptying = {"collect all", fill, collect_all, check_emptied,
                                            FAULTS_MAY(MEMORY) | FAULTS_MAY(IO)};
  start();
  cr_expect_geq(faults_each(&keeping, FAULTS_MEMORY, 0), 6);
  cr_expect_geq(faults_each(&keeping, FAULTS_FILES, 0), 20);
  cr_expect_geq(faults_each(&emptying, FAULTS_WRITE, EPERM), 6);
  stop();
}
