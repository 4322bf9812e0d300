/* fuzz_pack.c: any bytes as a pack, as they are and with the digest made right: refused with a reason, or every entry
 * of it is found, and verifying ends in one of the promised ways.
 *
 * tests/unit/pack/test_pack_mutation.c runs the same function over mutations of samples. */
#include <sodium.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/pack/pack.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void expect_refusal(flp_status status) {
  if (status != FLP_ERROR_CORRUPT || !*flp_error_detail()) __builtin_trap();
}

static void open_and_check(const uint8_t *bytes, size_t length) {
  int fd = memfd_create("fuzz", MFD_CLOEXEC);
  flp_pack *pack;
  if (fd < 0 || write(fd, bytes, length) != (ssize_t)length) abort();
  flp_status status = flp_pack_open(fd, "fuzz", &pack);
  if (status == FLP_OK) {
    for (uint32_t i = 0; i < pack->entry_count; i++)
      if (flp_pack_find(pack, pack->entries[i].key, pack->entries[i].key_bytes) != &pack->entries[i]) __builtin_trap();
    status = flp_pack_check(pack, fd, NULL, NULL);
    if (status != FLP_OK) expect_refusal(status);
    (void)flp_pack_trusts(pack, "00");
    flp_pack_close(pack);
  } else {
    expect_refusal(status);
    if (pack) __builtin_trap();
  }
  close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  open_and_check(bytes, length);
  if (length < FLP_PACK_HEAD_BYTES) return 0;
  /* Behind the digest, where a fuzzer would never come by itself. */
  uint64_t body = FLP_PACK_HEAD_BYTES;
  for (int field = 12; field <= 16; field += 4)
    body += (uint64_t)bytes[field] | (uint64_t)bytes[field + 1] << 8 | (uint64_t)bytes[field + 2] << 16 |
            (uint64_t)bytes[field + 3] << 24;
  if (body + FLP_PACK_DIGEST > length) return 0;
  uint8_t *sealed = malloc(length);
  if (!sealed) return 0;
  memcpy(sealed, bytes, length);
  crypto_hash_sha256(sealed + body, sealed, body);
  open_and_check(sealed, length);
  free(sealed);
  return 0;
}
