/* fuzz_keys.c: any text as a list of trusted keys, a public key, a file with a key, or a signature: refused with a
 * reason, or read as a key that is read back as the same one, from hex digits and from minisign's line. A list that is
 * no list of keys trusts nobody. */
#include "gen/cli/keys/minisign.h"
#include "gen/cli/pack/pack.h"
#include "tests/fuzz/fuzz.h"

static const unsigned REFUSED = FUZZ_BIT(FLP_ERROR_ARGUMENT) | FUZZ_BIT(FLP_ERROR_IO) | FUZZ_BIT(FLP_ERROR_CORRUPT);

/* Whether a list holds nothing but blanks of a list; only such a one trusts every pack. */
static int is_empty_list(const char *text) {
  return text[0] == 0;
}

static void read_list(const char *text) {
  flp_pack unsigned_pack = {.is_signed = 0}, signed_pack = {.is_signed = 1, .signer = {1, 2, 3}};
  flp_status status = flp_pack_trusts(&unsigned_pack, text);
  FUZZ_PROMISE((status == FLP_OK) == is_empty_list(text));
  if (status != FLP_OK) fuzz_expect_refusal(status, FUZZ_BIT(FLP_ERROR_ARGUMENT) | FUZZ_BIT(FLP_ERROR_DATA));
  status = flp_pack_trusts(&signed_pack, text);
  if (status != FLP_OK) fuzz_expect_refusal(status, FUZZ_BIT(FLP_ERROR_ARGUMENT) | FUZZ_BIT(FLP_ERROR_DATA));
}

static void read_public(const char *text) {
  char hex[CLI_KEY_TEXT], line[CLI_KEY_LINE];
  cli_public_key key, again;
  flp_status status = cli_key_read_public(text, &key);
  if (status != FLP_OK) {
    fuzz_expect_refusal(status, REFUSED);
    return;
  }
  FUZZ_PROMISE(cli_key_read_public(cli_key_hex(key.bytes, hex), &again) == FLP_OK);
  FUZZ_PROMISE(!again.has_id && memcmp(key.bytes, again.bytes, sizeof key.bytes) == 0);
  FUZZ_PROMISE(cli_key_read_public(cli_key_line(&key, line), &again) == FLP_OK && again.has_id);
  FUZZ_PROMISE(memcmp(key.bytes, again.bytes, sizeof key.bytes) == 0 && memcmp(key.id, again.id, sizeof key.id) == 0);
}

static void read_private(const char *path) {
  cli_private_key key;
  cli_public_key public;
  flp_status status = cli_key_read_private("--key", path, &key);
  if (status != FLP_OK)
    fuzz_expect_refusal(status, REFUSED);
  else
    cli_key_public(&key, &public);
}

static void read_signature(const char *text) {
  cli_minisign signature;
  flp_status status = cli_minisign_read("a.minisig", text, &signature);
  if (status != FLP_OK)
    fuzz_expect_refusal(status, FUZZ_BIT(FLP_ERROR_CORRUPT));
  else
    FUZZ_PROMISE(strlen(signature.comment) < sizeof signature.comment);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  char *text = fuzz_text(bytes, length);
  fuzz_file file = fuzz_file_create(bytes, length);
  fchmod(file.fd, 0600);
  read_list(text);
  if (text[0] != '/' && text[0] != '.') read_public(text); /* as a path it would be a file of this machine */
  read_public(file.path);
  read_private(file.path);
  read_signature(text);
  fuzz_file_close(&file);
  free(text);
  return 0;
}
