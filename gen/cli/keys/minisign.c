/* minisign.c: FILE.minisig, written, read and verified. */
#include "gen/cli/keys/minisign.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gen/cli/shared/common.h"

enum { FILE_BYTES_MAX = 16384, HASH_BYTES = 64, PIECE_BYTES = 1 << 16, BASE64 = sodium_base64_VARIANT_ORIGINAL };

/* The second line of a signature. */
typedef struct box {
  uint8_t algorithm[2], id[CLI_KEY_ID_BYTES], signature[CLI_MINISIGN_SIGNATURE_BYTES];
} box;
_Static_assert(sizeof(box) == 74 && CLI_MINISIGN_SIGNATURE_BYTES == crypto_sign_BYTES, "bytes of minisign's signature");

static const char untrusted[] = "untrusted comment: ", trusted_prefix[] = "trusted comment: ";

static flp_status hash_open(int fd, const char *path, uint8_t out[HASH_BYTES]) {
  uint8_t piece[PIECE_BYTES];
  crypto_generichash_state state;
  crypto_generichash_init(&state, NULL, 0, HASH_BYTES);
  for (;;) {
    ssize_t got = read(fd, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return flp_fail(FLP_ERROR_IO, "%s: cannot read: %s", path, strerror(errno));
    if (got == 0) break;
    crypto_generichash_update(&state, piece, (unsigned long long)got);
  }
  crypto_generichash_final(&state, out, HASH_BYTES);
  return FLP_OK;
}

static flp_status hash_file(const char *path, uint8_t out[HASH_BYTES]) {
  int fd;
  size_t bytes;
  FLP_TRY(cli_open_file(path, &fd, &bytes));
  flp_status status = hash_open(fd, path, out);
  close(fd);
  return status;
}

static flp_status signature_path(const char *path, char **out) {
  if (asprintf(out, "%s.minisig", path) >= 0) return FLP_OK;
  *out = NULL;
  return flp_fail(FLP_ERROR_MEMORY, "%s: out of memory", path);
}

/* What the second signature covers. Returns its bytes. */
static size_t covered_bytes(const cli_minisign *signature,
                            uint8_t out[CLI_MINISIGN_SIGNATURE_BYTES + CLI_MINISIGN_COMMENT_BYTES]) {
  size_t length = strlen(signature->comment);
  memcpy(out, signature->signature, sizeof signature->signature);
  memcpy(out + sizeof signature->signature, signature->comment, length);
  return sizeof signature->signature + length;
}

/* ---- signing ---- */

static flp_status check_comment(const char *comment) {
  if (strlen(comment) >= CLI_MINISIGN_COMMENT_BYTES)
    return flp_fail(FLP_ERROR_ARGUMENT, "trusted comment: %zu bytes; --comment takes at most %d", strlen(comment),
                    CLI_MINISIGN_COMMENT_BYTES - 1);
  for (const char *at = comment; *at; at++)
    if (((unsigned char)*at < ' ' && *at != '\t') || *at == 0x7f)
      return flp_fail(FLP_ERROR_ARGUMENT, "trusted comment: byte 0x%02x; --comment takes one line of text",
                      (unsigned)(unsigned char)*at);
  return FLP_OK;
}

static void sign(const uint8_t hash[HASH_BYTES], const cli_private_key *key, const char *comment, cli_minisign *out) {
  uint8_t public[CLI_KEY_BYTES], secret[crypto_sign_SECRETKEYBYTES];
  uint8_t covered[CLI_MINISIGN_SIGNATURE_BYTES + CLI_MINISIGN_COMMENT_BYTES];
  crypto_sign_seed_keypair(public, secret, key->seed);
  memcpy(out->id, key->id, sizeof out->id);
  snprintf(out->comment, sizeof out->comment, "%s", comment);
  crypto_sign_detached(out->signature, NULL, hash, HASH_BYTES, secret);
  crypto_sign_detached(out->whole, NULL, covered, covered_bytes(out, covered), secret);
  sodium_memzero(secret, sizeof secret);
}

static flp_status write_signature(const char *path, const cli_minisign *signature) {
  char first[sodium_base64_ENCODED_LEN(sizeof(box), BASE64)];
  char second[sodium_base64_ENCODED_LEN(CLI_MINISIGN_SIGNATURE_BYTES, BASE64)];
  char id[CLI_KEY_ID_TEXT], text[2 * CLI_MINISIGN_COMMENT_BYTES];
  box made = {.algorithm = {'E', 'D'}};
  memcpy(made.id, signature->id, sizeof made.id);
  memcpy(made.signature, signature->signature, sizeof made.signature);
  sodium_bin2base64(first, sizeof first, (const uint8_t *)&made, sizeof made, BASE64);
  sodium_bin2base64(second, sizeof second, signature->whole, sizeof signature->whole, BASE64);
  int length = snprintf(text, sizeof text, "%ssignature from flpgen, key %s\n%s\n%s%s\n%s\n", untrusted,
                        cli_key_id_hex(signature->id, id), first, trusted_prefix, signature->comment, second);
  return cli_write_file(path, text, (size_t)length);
}

flp_status cli_minisign_sign(const char *path, const cli_private_key *key, const char *comment, char **signature) {
  uint8_t hash[HASH_BYTES];
  cli_minisign made;
  *signature = NULL;
  FLP_TRY(check_comment(comment));
  FLP_TRY(hash_file(path, hash));
  FLP_TRY(signature_path(path, signature));
  sign(hash, key, comment, &made);
  flp_status status = write_signature(*signature, &made);
  if (status == FLP_OK) return FLP_OK;
  free(*signature);
  *signature = NULL;
  return status;
}

/* ---- reading ---- */

/* Takes the next line off *text, without its end. Returns its length, or -1 if it does not begin with that prefix. */
static int take_line(const char **text, const char *prefix, const char **out) {
  const char *line = *text;
  size_t length = strcspn(line, "\n"), prefix_length = strlen(prefix);
  *text = line + length + (line[length] == '\n');
  if (length && line[length - 1] == '\r') length--;
  if (length < prefix_length || memcmp(line, prefix, prefix_length) != 0) return -1;
  *out = line + prefix_length;
  return (int)(length - prefix_length);
}

/* Takes a line of so many bytes in base64. Returns 1 if it is one. */
static int take_bytes(const char **text, void *out, size_t bytes) {
  const char *line;
  size_t got = 0;
  int length = take_line(text, "", &line);
  return length >= 0 && sodium_base642bin(out, bytes, line, (size_t)length, NULL, &got, NULL, BASE64) == 0 &&
         got == bytes;
}

flp_status cli_minisign_read(const char *name, const char *text, cli_minisign *out) {
  box made;
  const char *comment;
  if (take_line(&text, untrusted, &comment) < 0 || !take_bytes(&text, &made, sizeof made))
    return flp_fail(FLP_ERROR_CORRUPT, "%s is no signature of minisign", name);
  if (memcmp(made.algorithm, "Ed", 2) == 0)
    return flp_fail(FLP_ERROR_CORRUPT, "%s has minisign's older form; accepted is the one of its hash (minisign -S)",
                    name);
  int length = take_line(&text, trusted_prefix, &comment);
  if (memcmp(made.algorithm, "ED", 2) != 0 || length < 0 || !take_bytes(&text, out->whole, sizeof out->whole) || *text)
    return flp_fail(FLP_ERROR_CORRUPT, "%s is no signature of minisign", name);
  if (length >= CLI_MINISIGN_COMMENT_BYTES)
    return flp_fail(FLP_ERROR_CORRUPT, "%s: a comment of %d bytes; at most %d are accepted", name, length,
                    CLI_MINISIGN_COMMENT_BYTES - 1);
  memcpy(out->id, made.id, sizeof out->id);
  memcpy(out->signature, made.signature, sizeof out->signature);
  memcpy(out->comment, comment, (size_t)length);
  out->comment[length] = 0;
  return FLP_OK;
}

static flp_status read_beside(const char *path, cli_minisign *out) {
  char *name = NULL, *text = NULL;
  FLP_TRY(signature_path(path, &name));
  flp_status status = cli_read_text(name, FILE_BYTES_MAX, &text);
  if (status == FLP_OK) status = cli_minisign_read(name, text, out);
  free(text);
  free(name);
  return status;
}

/* ---- verifying ---- */

static flp_status fail_verify(const char *path, const cli_minisign *signature, int is_named) {
  char id[CLI_KEY_ID_TEXT];
  cli_key_id_hex(signature->id, id);
  if (is_named) return flp_fail(FLP_ERROR_DATA, "%s is not what key %s has signed", path, id);
  return flp_fail(FLP_ERROR_DATA, "%s: none of the trusted keys has signed it; the signature names key %s", path, id);
}

flp_status cli_minisign_verify(const char *path, const cli_public_key *trusted, size_t count, cli_minisign *out,
                               const cli_public_key **signer) {
  uint8_t hash[HASH_BYTES], covered[CLI_MINISIGN_SIGNATURE_BYTES + CLI_MINISIGN_COMMENT_BYTES];
  int is_named = 0;
  FLP_TRY(read_beside(path, out));
  FLP_TRY(hash_file(path, hash));
  *signer = NULL;
  for (size_t i = 0; i < count && !*signer; i++) {
    int is_same = memcmp(trusted[i].id, out->id, sizeof out->id) == 0;
    if (trusted[i].has_id && !is_same) continue;
    is_named |= is_same;
    if (crypto_sign_verify_detached(out->signature, hash, sizeof hash, trusted[i].bytes) == 0) *signer = &trusted[i];
  }
  if (!*signer) return fail_verify(path, out, is_named);
  if (crypto_sign_verify_detached(out->whole, covered, covered_bytes(out, covered), (*signer)->bytes) == 0)
    return FLP_OK;
  return flp_fail(FLP_ERROR_DATA, "%s.minisig: the trusted comment is not what was signed with the file", path);
}
