/* fuzz_keys.c: any text as a list of trusted keys, a public key, or a file with a key: refused with a reason, or read
 * as 64 hex digits that are read back as the same key. A list that is no list of keys trusts nobody. */
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
  char key[CLI_KEY_TEXT], again[CLI_KEY_TEXT];
  flp_status status = cli_key_read_public(text, key);
  if (status != FLP_OK) {
    fuzz_expect_refusal(status, REFUSED);
    return;
  }
  FUZZ_PROMISE(strlen(key) == CLI_KEY_TEXT - 1);
  FUZZ_PROMISE(cli_key_read_public(key, again) == FLP_OK && strcmp(key, again) == 0);
}

static void read_seed(const char *path) {
  uint8_t seed[32];
  char public[CLI_KEY_TEXT];
  flp_status status = cli_key_read_seed(path, seed);
  if (status != FLP_OK)
    fuzz_expect_refusal(status, REFUSED);
  else
    cli_key_public(seed, public);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  char *text = fuzz_text(bytes, length);
  fuzz_file file = fuzz_file_create(bytes, length);
  fchmod(file.fd, 0600);
  read_list(text);
  if (text[0] != '/' && text[0] != '.') read_public(text); /* as a path it would be a file of this machine */
  read_public(file.path);
  read_seed(file.path);
  fuzz_file_close(&file);
  free(text);
  return 0;
}
