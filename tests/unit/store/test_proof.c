/* test_proof.c: stamps of proofs in a kernel cache: what is written is found, and nothing else. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/store/internal.h"
#include "tests/unit/support/store_fixture.h"

static const flp_proof_of here = {.gpu = "Fake B200", .arch = "sm_90a", .capability = 90, .driver = 13000};
static const flp_proof proven = {.verdict = FLP_VERDICT_PROVEN, .time = 1700000000, .ms = 1.5, .portable_ms = 4.25};

static flp_proof refuted_by(const char *reason) {
  flp_proof proof = {.verdict = FLP_VERDICT_REFUTED, .time = 1700000001};
  snprintf(proof.reason, sizeof proof.reason, "%s", reason);
  return proof;
}

static void put(const char *directory, const flp_proof_of *of, flp_proof proof) {
  flp_store *store = fixture_open(directory, NULL);
  cr_assert_eq(flp_proof_write(store, of, &proof), FLP_OK, "%s", flp_error_detail());
  flp_store_close(store);
}

static flp_proof find(const char *writable, const char *read_only, const flp_proof_of *of) {
  flp_store *store = fixture_open(writable, read_only);
  flp_proof out;
  flp_proof_find(store, of, &out);
  cr_expect_str_eq(flp_error_detail(), "");
  flp_store_close(store);
  return out;
}

static const char *path_of(const char *directory, const flp_proof_of *of, char out[FIXTURE_PATH_BYTES]) {
  char key[FLP_KEY_BYTES_MAX];
  snprintf(key, sizeof key, "flp-proof/1 arch=%s gpu=%s capability=%d driver=%d sources=%s", of->arch, of->gpu,
           of->capability, of->driver, flp_sources_id());
  return fixture_path(directory, key, ".flps", out);
}

static const char *stamp_in(const char *directory, char out[FIXTURE_PATH_BYTES]) {
  return path_of(directory, &here, out);
}

Test(proof, a_stamp_is_found_as_it_was_written) {
  const char *directory = sample_directory();
  cr_expect_eq(find(directory, NULL, &here).verdict, FLP_VERDICT_NONE);
  put(directory, &here, proven);
  flp_proof got = find(directory, NULL, &here);
  cr_expect(got.verdict == FLP_VERDICT_PROVEN && got.time == 1700000000 && got.reason[0] == 0);
  cr_expect_float_eq(got.ms, 1.5, 1e-6);
  cr_expect_float_eq(got.portable_ms, 4.25, 1e-6);
  put(directory, &here, refuted_by("logprob is off\nby 3 ulp"));
  got = find(directory, NULL, &here);
  cr_expect_eq(got.verdict, FLP_VERDICT_REFUTED, "the newer one replaces the older");
  cr_expect_str_eq(got.reason, "logprob is off by 3 ulp", "on one line");
  cr_expect_eq(sample_count(directory, ".flps"), 1);
  cr_expect_eq(fixture_warnings, 0);
}

/* Each part of what was proven. */
Test(proof, a_stamp_is_of_one_gpu_driver_architecture_and_sources) {
  const char *directory = sample_directory();
  char path[FIXTURE_PATH_BYTES];
  put(directory, &here, proven);
  flp_proof_of of[4] = {here, here, here, here};
  of[0].gpu = "Fake B300";
  of[1].capability = 100;
  of[2].driver = 13010;
  of[3].arch = "sm_80";
  for (int i = 0; i < 4; i++) cr_expect_eq(find(directory, NULL, &of[i]).verdict, FLP_VERDICT_NONE, "part %d", i);
  cr_expect_eq(find(directory, NULL, &here).verdict, FLP_VERDICT_PROVEN);
  /* A file under the name of another key, as one of other sources would be. */
  char key[FLP_KEY_BYTES_MAX], own[FIXTURE_PATH_BYTES];
  snprintf(key, sizeof key, "flp-proof/1 arch=sm_90a gpu=Fake B200 capability=90 driver=13000 sources=%064d", 0);
  cr_assert_eq(rename(stamp_in(directory, own), fixture_path(directory, key, ".flps", path)), 0);
  cr_expect_eq(find(directory, NULL, &here).verdict, FLP_VERDICT_NONE, "of other sources");
  put(directory, &of[0], proven);
  cr_assert_eq(rename(path, own), 0);
  cr_expect_eq(find(directory, NULL, &here).verdict, FLP_VERDICT_PROVEN);
  cr_assert_eq(rename(path_of(directory, &of[0], path), own), 0);
  fixture_warnings = 0;
  cr_expect_eq(find(directory, NULL, &here).verdict, FLP_VERDICT_NONE);
  cr_expect_not_null(strstr(fixture_warning, "of another key"), "%s", fixture_warning);
}

/* One byte at every place; what is cut off; what is too long. */
Test(proof, a_corrupt_stamp_counts_as_none_and_is_set_aside) {
  const char *directory = sample_directory();
  char path[FIXTURE_PATH_BYTES], key[FLP_KEY_BYTES_MAX + 1];
  uint8_t bytes[1024];
  put(directory, &here, refuted_by("died"));
  FILE *file = fopen(stamp_in(directory, path), "r");
  cr_assert_not_null(file);
  size_t length = fread(bytes, 1, sizeof bytes, file);
  fclose(file);
  for (size_t i = 0; i < length; i++) {
    bytes[i] ^= 1;
    cr_expect_eq(store_proof_decode(bytes, length, key, NULL), FLP_ERROR_CORRUPT, "byte %zu", i);
    bytes[i] ^= 1;
  }
  fixture_write_file(path, bytes, length - 1);
  fixture_warnings = 0;
  cr_expect_eq(find(directory, NULL, &here).verdict, FLP_VERDICT_NONE);
  cr_expect_eq(fixture_warnings, 1, "%s", fixture_warning);
  cr_expect_eq(sample_count(directory, ".flps"), 0);
  cr_expect_eq(sample_count(directory, ".bad-0"), 1);
  put(directory, &here, proven);
  cr_expect_eq(find(directory, NULL, &here).verdict, FLP_VERDICT_PROVEN);
}

Test(proof, read_only_directories_count_behind_ones_own) {
  char given[256];
  const char *own;
  snprintf(given, sizeof given, "%s", sample_directory());
  put(given, &here, proven);
  own = sample_directory();
  cr_assert_eq(chmod(given, 0500), 0);
  cr_expect_eq(find(NULL, given, &here).verdict, FLP_VERDICT_PROVEN);
  cr_expect_eq(find(own, given, &here).verdict, FLP_VERDICT_PROVEN);
  put(own, &here, refuted_by("wrong here"));
  cr_expect_eq(find(own, given, &here).verdict, FLP_VERDICT_REFUTED);
  cr_assert_eq(chmod(given, 0700), 0);
  flp_store *store = fixture_open(NULL, given);
  cr_expect_eq(flp_proof_write(store, &here, &proven), FLP_ERROR_IO);
  cr_expect_str_eq(flp_error_detail(), "no writable kernel cache is set");
  flp_store_close(store);
  store = fixture_open("/proc/nowhere", NULL);
  cr_expect_eq(flp_proof_write(store, &here, &proven), FLP_ERROR_IO);
  flp_store_close(store);
}

static int take_item(void *context, const flp_store_item *item) {
  *(flp_status *)context = item->status;
  return 1;
}

/* `flpgen cache ls` shows it, and gc leaves it whatever is to be kept. */
Test(proof, a_stamp_is_listed_and_outlasts_kernels) {
  const char *directory = sample_directory();
  uint64_t files, bytes;
  flp_status listed = FLP_ERROR_INTERNAL;
  put(directory, &here, proven);
  flp_store *store = fixture_open(directory, NULL);
  cr_assert_eq(flp_store_each(store, take_item, &listed), FLP_OK);
  cr_expect_eq(listed, FLP_OK);
  fixture_put_in(directory, FIXTURE_KEY, 1);
  cr_assert_eq(flp_store_collect(store, 0, &files, &bytes), FLP_OK);
  cr_expect_eq(sample_count(directory, ".flpk"), 0);
  cr_expect_eq(sample_count(directory, ".flps"), 1);
  flp_store_close(store);
}
