/* trust.c: which signature a pack needs, and what it signs. */
#include <sodium.h>
#include <string.h>

#include "runtime/base/status.h"
#include "runtime/pack/pack.h"

enum { KEY_HEX = 2 * FLP_PACK_KEY };

size_t flp_pack_message(const uint8_t digest[FLP_PACK_DIGEST], uint8_t out[FLP_PACK_MESSAGE_BYTES]) {
  size_t prefix = sizeof FLP_PACK_SIGNED - 1;
  memcpy(out, FLP_PACK_SIGNED, prefix);
  memcpy(out + prefix, digest, FLP_PACK_DIGEST);
  return FLP_PACK_MESSAGE_BYTES;
}

static flp_status read_key(const char *text, size_t length, uint8_t out[FLP_PACK_KEY]) {
  size_t got = 0;
  if (length == KEY_HEX && sodium_hex2bin(out, FLP_PACK_KEY, text, length, NULL, &got, NULL) == 0 &&
      got == FLP_PACK_KEY)
    return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "trusted key '%.*s' is not accepted; %d hex digits of an Ed25519 public key are",
                  length < 80 ? (int)length : 80, text, KEY_HEX);
}

flp_status flp_pack_trusts(const flp_pack *pack, const char *keys) {
  int any = 0, trusted = 0;
  for (const char *at = keys; *at;) {
    size_t length = strcspn(at, ",");
    uint8_t key[FLP_PACK_KEY];
    FLP_TRY(read_key(at, length, key)); /* one bad key makes the list invalid: half a list would trust others */
    any = 1;
    if (pack->is_signed && memcmp(key, pack->signer, sizeof key) == 0) trusted = 1;
    at += length + (at[length] == ',');
  }
  if (!any || trusted) return FLP_OK;
  if (!pack->is_signed) return flp_fail(FLP_ERROR_DATA, "the pack is not signed, and only trusted keys are accepted");
  char signer[KEY_HEX + 1];
  sodium_bin2hex(signer, sizeof signer, pack->signer, sizeof pack->signer);
  return flp_fail(FLP_ERROR_DATA, "the pack is signed with key %s, which is not among the trusted ones", signer);
}
