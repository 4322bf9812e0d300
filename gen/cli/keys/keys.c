/* keys.c: Ed25519 keys of files and options: hex digits, the PEM that openssl writes, minisign's files. */
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

/* minisign's keys, in base64 below a comment: https://jedisct1.github.io/minisign, "Public key format" and "Secret key
 * format". All fields are bytes. */
typedef struct public_box {
  uint8_t algorithm[2], id[CLI_KEY_ID_BYTES], key[CLI_KEY_BYTES];
} public_box;
typedef struct private_box {
  uint8_t algorithm[2], derivation[2], checksum_algorithm[2], salt[32], limits[16];
  uint8_t id[CLI_KEY_ID_BYTES], seed[CLI_KEY_BYTES], key[CLI_KEY_BYTES], checksum[32];
} private_box;
_Static_assert(sizeof(public_box) == 42 && sizeof(private_box) == 158, "bytes of minisign's keys");

/* ---- forms ---- */

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

/* Returns 1 if the text is so many bytes in base64 on one line, which minisign's comment may precede. */
static int read_box(const char *text, void *out, size_t bytes) {
  static const char comment[] = "untrusted comment:";
  size_t length = 0;
  if (strncmp(text, comment, sizeof comment - 1) == 0) {
    text += strcspn(text, "\n");
    text += *text == '\n';
  }
  const char *end = text + strcspn(text, "\r\n");
  return sodium_base642bin(out, bytes, text, (size_t)(end - text), NULL, &length, NULL,
                           sodium_base64_VARIANT_ORIGINAL) == 0 &&
         length == bytes && end[strspn(end, "\r\n")] == 0;
}

/* ---- private ---- */

/* Returns 1 if the text is a minisign key, whose two halves belong together; *locked: it has a password. */
static int read_private_box(const char *text, cli_private_key *out, int *locked) {
  private_box box;
  cli_public_key public;
  int is_key = read_box(text, &box, sizeof box) && memcmp(box.algorithm, "Ed", 2) == 0;
  if (is_key && (box.derivation[0] || box.derivation[1])) {
    *locked = 1;
    is_key = 0;
  }
  if (is_key) {
    memcpy(out->seed, box.seed, sizeof out->seed);
    memcpy(out->id, box.id, sizeof out->id);
    cli_key_public(out, &public);
    is_key = memcmp(public.bytes, box.key, sizeof box.key) == 0;
  }
  sodium_memzero(&box, sizeof box);
  return is_key;
}

static void derive_id(const uint8_t key[CLI_KEY_BYTES], uint8_t id[CLI_KEY_ID_BYTES]) {
  uint8_t hash[crypto_generichash_BYTES];
  crypto_generichash(hash, sizeof hash, key, CLI_KEY_BYTES, NULL, 0);
  memcpy(id, hash, CLI_KEY_ID_BYTES);
}

static int read_private(const char *text, cli_private_key *out, int *locked) {
  *locked = 0;
  if (read_hex(text, out->seed) || read_pem(text, "PRIVATE KEY", private_prefix, sizeof private_prefix, out->seed)) {
    cli_public_key public;
    cli_key_public(out, &public);
    derive_id(public.bytes, out->id);
    return 1;
  }
  return read_private_box(text, out, locked);
}

flp_status cli_key_read_private(const char *option, const char *path, cli_private_key *out) {
  struct stat st;
  char *text = NULL;
  int locked;
  if (stat(path, &st) == 0 && (st.st_mode & 077))
    return flp_fail(FLP_ERROR_ARGUMENT, "%s: %s: mode %04o lets other users at the private key, accepted: 0600", option,
                    path, (unsigned)(st.st_mode & 07777));
  FLP_TRY(cli_read_text(path, FILE_BYTES_MAX, &text));
  int is_key = read_private(text, out, &locked);
  sodium_memzero(text, strlen(text));
  free(text);
  if (is_key) return FLP_OK;
  sodium_memzero(out, sizeof *out);
  if (locked)
    return flp_fail(FLP_ERROR_ARGUMENT,
                    "%s: %s has a password; accepted are keys without one, as `minisign -C -W` leaves it", option,
                    path);
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "%s: %s is no Ed25519 private key; 64 hex digits (openssl rand -hex 32) are accepted, PEM (openssl "
                  "genpkey -algorithm ed25519) or minisign's (minisign -G -W)",
                  option, path);
}

/* ---- public ---- */

void cli_key_public(const cli_private_key *key, cli_public_key *out) {
  uint8_t secret[crypto_sign_SECRETKEYBYTES];
  crypto_sign_seed_keypair(out->bytes, secret, key->seed);
  sodium_memzero(secret, sizeof secret);
  memcpy(out->id, key->id, sizeof out->id);
  out->has_id = 1;
}

static int read_public_text(const char *text, cli_public_key *out) {
  public_box box;
  if ((out->has_id = read_box(text, &box, sizeof box) && memcmp(box.algorithm, "Ed", 2) == 0)) {
    memcpy(out->bytes, box.key, sizeof out->bytes);
    memcpy(out->id, box.id, sizeof out->id);
    return 1;
  }
  if (!read_hex(text, out->bytes)) return 0;
  derive_id(out->bytes, out->id);
  return 1;
}

static int read_public_file(const char *text, cli_public_key *out) {
  if (read_public_text(text, out)) return 1;
  if (!read_pem(text, "PUBLIC KEY", public_prefix, sizeof public_prefix, out->bytes)) return 0;
  derive_id(out->bytes, out->id);
  return 1;
}

flp_status cli_key_read_public(const char *text, cli_public_key *out) {
  char *file = NULL;
  if (read_public_text(text, out)) return FLP_OK;
  FLP_TRY(cli_read_text(text, FILE_BYTES_MAX, &file));
  int is_key = read_public_file(file, out);
  free(file);
  if (is_key) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "trusted key %s is no Ed25519 public key; 64 hex digits are accepted, minisign's line of 56 "
                  "characters, or a file with one of them or with PEM (openssl pkey -pubout)",
                  text);
}

/* ---- as text ---- */

const char *cli_key_hex(const uint8_t bytes[CLI_KEY_BYTES], char out[CLI_KEY_TEXT]) {
  return sodium_bin2hex(out, CLI_KEY_TEXT, bytes, CLI_KEY_BYTES);
}

const char *cli_key_id_hex(const uint8_t id[CLI_KEY_ID_BYTES], char out[CLI_KEY_ID_TEXT]) {
  for (int i = 0; i < CLI_KEY_ID_BYTES; i++) snprintf(out + 2 * i, 3, "%02X", id[CLI_KEY_ID_BYTES - 1 - i]);
  return out;
}

const char *cli_key_line(const cli_public_key *key, char out[CLI_KEY_LINE]) {
  public_box box = {.algorithm = {'E', 'd'}};
  memcpy(box.id, key->id, sizeof box.id);
  memcpy(box.key, key->bytes, sizeof box.key);
  return sodium_bin2base64(out, CLI_KEY_LINE, (const uint8_t *)&box, sizeof box, sodium_base64_VARIANT_ORIGINAL);
}
