/* proof.c: stamps of proofs as files: a container (container.c) of the key and what was found out. */
#include "runtime/store/proof.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/bytes.h"
#include "runtime/base/status.h"
#include "runtime/store/internal.h"

/* What stands before the reason: verdict and three times. */
enum { PROOF_FORMAT = 1, HEAD_BYTES = 4 + 3 * 8, NAME_BYTES = STORE_HEX + 8, LOCK_TIMEOUT_MS = 5000 };

static const store_container container = {
    .name = "stamp",
    .magic = "FLPS",
    .format = PROOF_FORMAT,
    .part_count = 1,
    .parts = {{"proof", HEAD_BYTES + FLP_PROOF_REASON_BYTES - 1}},
};

const char *flp_verdict_name(flp_verdict verdict) {
  static const char *const names[] = {"unproven", "proven", "refuted"};
  return names[verdict];
}

typedef struct stamp_name {
  char key[FLP_KEY_BYTES_MAX], hex[STORE_HEX + 1], file[NAME_BYTES];
} stamp_name;

/* Texts of drivers; what has a control character would not be read back. */
static void make_plain(char *text) {
  for (; *text; text++)
    if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = ' ';
}

static void name_of(const flp_proof_of *of, stamp_name *out) {
  int length = snprintf(out->key, sizeof out->key, "flp-proof/%d arch=%s gpu=%.200s capability=%d driver=%d sources=%s",
                        PROOF_FORMAT, of->arch, of->gpu, of->capability, of->driver, flp_sources_id());
  make_plain(out->key);
  store_entry_name(out->key, (size_t)length, out->hex);
  snprintf(out->file, sizeof out->file, "%s.flps", out->hex);
}

/* ---- reading ---- */

flp_status store_proof_decode(const uint8_t *bytes, size_t length, char key_out[FLP_KEY_BYTES_MAX + 1],
                              flp_proof *out) {
  store_piece piece;
  flp_proof proof = {.verdict = FLP_VERDICT_NONE};
  key_out[0] = 0;
  FLP_TRY(store_container_decode(&container, bytes, length, key_out, &piece));
  flp_reader r = {.at = piece.at, .end = (const uint8_t *)piece.at + piece.bytes};
  uint32_t verdict = flp_get_u32(&r);
  proof.time = (int64_t)flp_get_u64(&r);
  proof.ms = 1e-6 * (double)flp_get_u64(&r); /* kept in nanoseconds */
  proof.portable_ms = 1e-6 * (double)flp_get_u64(&r);
  size_t reason = (size_t)(r.end - r.at);
  int is_proven = verdict == FLP_VERDICT_PROVEN && reason == 0;
  if (r.short_of_bytes || !(is_proven || (verdict == FLP_VERDICT_REFUTED && store_is_key((const char *)r.at, reason))))
    return flp_fail(FLP_ERROR_CORRUPT, "stamp: is neither PROVEN nor REFUTED with a reason");
  proof.verdict = (flp_verdict)verdict;
  flp_get_bytes(&r, proof.reason, reason);
  if (out) *out = proof;
  return FLP_OK;
}

static flp_status read_stamp(int directory, const stamp_name *name, struct stat *stat, flp_proof *out) {
  uint8_t *bytes;
  size_t length;
  int absent;
  char found[FLP_KEY_BYTES_MAX + 1];
  FLP_TRY(store_file_read(directory, name->file, &bytes, &length, stat, &absent));
  if (absent) return FLP_OK;
  flp_proof proof;
  flp_status status = store_proof_decode(bytes, length, found, &proof);
  free(bytes);
  FLP_TRY(status);
  if (strcmp(found, name->key) != 0) return flp_fail(FLP_ERROR_CORRUPT, "stamp: is of another key: %s", found);
  *out = proof;
  return FLP_OK;
}

static void find_in(const char *path, int writable, const stamp_name *name, flp_proof *out) {
  int directory;
  struct stat stat;
  /* A directory that cannot be used is reported when kernels are looked for. */
  if (out->verdict || !path || store_file_open_directory(path, writable, 0, &directory, NULL) != FLP_OK) return;
  flp_status status = read_stamp(directory, name, &stat, out);
  if (status != FLP_OK)
    store_warn(name->file, "kernel cache %s: stamp %.16s… ignored: %s", path, name->file, flp_error_detail());
  int lock = -1;
  if (status == FLP_ERROR_CORRUPT && writable) store_lock_take(directory, name->hex, 0, &lock);
  if (lock >= 0) store_file_quarantine(directory, name->file, &stat);
  store_lock_release(lock);
  close(directory);
}

void flp_proof_find(const flp_store *store, const flp_proof_of *of, flp_proof *out) {
  stamp_name name;
  name_of(of, &name);
  *out = (flp_proof){.verdict = FLP_VERDICT_NONE};
  find_in(store->writable, 1, &name, out);
  for (size_t i = 0; i < store->read_only_count; i++)
    if (!store_pack_is(store->read_only[i])) find_in(store->read_only[i], 0, &name, out);
  flp_detail_clear();
}

/* ---- writing ---- */

flp_status flp_proof_write(const flp_store *store, const flp_proof_of *of, const flp_proof *proof) {
  stamp_name name;
  uint8_t text[HEAD_BYTES + FLP_PROOF_REASON_BYTES], *bytes;
  char reason[FLP_PROOF_REASON_BYTES];
  size_t length;
  int directory, lock;
  name_of(of, &name);
  snprintf(reason, sizeof reason, "%s", proof->reason);
  make_plain(reason);
  flp_writer w = {.at = text, .end = text + sizeof text};
  flp_put_u32(&w, (uint32_t)proof->verdict);
  flp_put_u64(&w, (uint64_t)proof->time);
  flp_put_u64(&w, (uint64_t)(1e6 * proof->ms));
  flp_put_u64(&w, (uint64_t)(1e6 * proof->portable_ms));
  flp_put_bytes(&w, reason, strlen(reason));
  if (!store->writable) return flp_fail(FLP_ERROR_IO, "no writable kernel cache is set");
  const store_piece piece = {text, HEAD_BYTES + strlen(reason)};
  FLP_TRY(store_container_encode(&container, (store_piece){name.key, strlen(name.key)}, &piece, &bytes, &length));
  flp_status status = store_file_open_directory(store->writable, 1, 1, &directory, NULL);
  if (status == FLP_OK) {
    store_lock_take(directory, name.hex, LOCK_TIMEOUT_MS, &lock);
    status = store_file_write(directory, name.file, bytes, length);
    store_lock_release(lock);
    close(directory);
  }
  free(bytes);
  return status == FLP_OK ? FLP_OK : flp_fail(status, "%s: %s", store->writable, flp_error_detail());
}
