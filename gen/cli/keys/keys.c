/* keys.c: Ed25519 keys of files and options: hex digits, or the PEM that openssl writes. */
#include "gen/cli/keys/keys.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "gen/cli/shared/common.h"

enum { FILE_BYTES_MAX = 4096 };

/* What precedes the 32 bytes in DER: RFC 8410, sections 4 and 7. */
static const uint8_t public_prefix[] = {0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00};
static const uint8_t private_prefix[] = {0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06,
                                         0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20};

/* Returns 1 if the text between PEM's two lines is that prefix and a key. */
static int read_pem(const char *text, const char *label, const uint8_t *prefix, size_t prefix_bytes,
                    uint8_t out[CLI_KEY_BYTES]) {
  char begin[64], end[64];
  uint8_t der[128];
  size_t length = 0;
  snprintf(begin, sizeof begin, "-----BEGIN %s-----", label);
  snprintf(end, sizeof end, "-----END %s-----", label);
  const char *from = strstr(text, begin), *to = from ? strstr(from, end) : NULL;
  if (!to) return 0;
  from += strlen(begin);
  int is_key = sodium_base642bin(der, sizeof der, from, (size_t)(to - from), "\r\n", &length, NULL,
                                 sodium_base64_VARIANT_ORIGINAL) == 0 &&
               length == prefix_bytes + CLI_KEY_BYTES && memcmp(der, prefix, prefix_bytes) == 0;
  if (is_key) memcpy(out, der + prefix_bytes, CLI_KEY_BYTES);
  sodium_memzero(der, sizeof der);
  return is_key;
}

/* Returns 1 if the text is 64 hex digits and blank else. */
static int read_hex(const char *text, uint8_t out[CLI_KEY_BYTES]) {
  size_t length = 0;
  return sodium_hex2bin(out, CLI_KEY_BYTES, text, strlen(text), " \t\r\n", &length, NULL) == 0 &&
         length == CLI_KEY_BYTES;
}

flp_status cli_key_read_seed(const char *path, uint8_t seed[CLI_KEY_BYTES]) {
  struct stat st;
  char *text = NULL;
  size_t bytes = 0;
  if (stat(path, &st) == 0 && (st.st_mode & 077))
    return flp_fail(FLP_ERROR_ARGUMENT, "--sign: %s: mode %04o lets other users at the private key, accepted: 0600",
                    path, (unsigned)(st.st_mode & 07777));
  FLP_TRY(cli_read_file(path, FILE_BYTES_MAX, &text, &bytes));
  int is_key = read_hex(text, seed) || read_pem(text, "PRIVATE KEY", private_prefix, sizeof private_prefix, seed);
  sodium_memzero(text, bytes);
  free(text);
  if (is_key) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "--sign: %s is no Ed25519 private key; 64 hex digits (openssl rand -hex 32) are accepted, or PEM "
                  "(openssl genpkey -algorithm ed25519)",
                  path);
}

void cli_key_public(const uint8_t seed[CLI_KEY_BYTES], char out[CLI_KEY_TEXT]) {
  uint8_t public[crypto_sign_PUBLICKEYBYTES], secret[crypto_sign_SECRETKEYBYTES];
  crypto_sign_seed_keypair(public, secret, seed);
  sodium_memzero(secret, sizeof secret);
  sodium_bin2hex(out, CLI_KEY_TEXT, public, sizeof public);
}

flp_status cli_key_read_public(const char *text, char out[CLI_KEY_TEXT]) {
  uint8_t key[CLI_KEY_BYTES];
  char *file = NULL;
  size_t bytes = 0;
  int is_key = read_hex(text, key);
  if (!is_key) {
    FLP_TRY(cli_read_file(text, FILE_BYTES_MAX, &file, &bytes));
    is_key = read_hex(file, key) || read_pem(file, "PUBLIC KEY", public_prefix, sizeof public_prefix, key);
    free(file);
  }
  if (!is_key)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "trusted key %s is no Ed25519 public key; 64 hex digits are accepted, or a file with them or with "
                    "PEM (openssl pkey -pubout)",
                    text);
  sodium_bin2hex(out, CLI_KEY_TEXT, key, sizeof key);
  return FLP_OK;
}
