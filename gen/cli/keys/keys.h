/* keys.h: Ed25519 keys of files and options, as openssl and minisign write them, or as hex digits. */
#ifndef FLPGEN_CLI_KEYS_H
#define FLPGEN_CLI_KEYS_H

#include <stdint.h>

#include "runtime/base/status.h"

enum { CLI_KEY_BYTES = 32, CLI_KEY_ID_BYTES = 8 };

/* minisign names a key by 8 bytes, random ones where it made the key. Of a key in another form they are the first of
 * the public key's BLAKE2b-256. */
typedef struct cli_private_key {
  uint8_t seed[CLI_KEY_BYTES], id[CLI_KEY_ID_BYTES];
} cli_private_key;
typedef struct cli_public_key {
  uint8_t bytes[CLI_KEY_BYTES], id[CLI_KEY_ID_BYTES];
  int has_id; /* of its own */
} cli_public_key;

/* Reads a private key: a file that only its owner reads, with 64 hex digits, an Ed25519 key in PEM (PKCS #8) or a
 * minisign key without a password. option: that names the file, for messages
 * error: IO, ARGUMENT */
flp_status cli_key_read_private(const char *option, const char *path, cli_private_key *out);
/* The public key of a private one. */
void cli_key_public(const cli_private_key *key, cli_public_key *out);
/* Reads a public key: 64 hex digits, minisign's line of 56 characters, or a file that holds one of them or an Ed25519
 * key in PEM. error: IO, ARGUMENT */
flp_status cli_key_read_public(const char *text, cli_public_key *out);

/* ---- as text, each with its 0 ---- */

enum { CLI_KEY_TEXT = 2 * CLI_KEY_BYTES + 1, CLI_KEY_ID_TEXT = 2 * CLI_KEY_ID_BYTES + 1, CLI_KEY_LINE = 57 };

/* 64 hex digits. Returns out. */
const char *cli_key_hex(const uint8_t bytes[CLI_KEY_BYTES], char out[CLI_KEY_TEXT]);
/* An id as minisign shows it: a little-endian number. Returns out. */
const char *cli_key_id_hex(const uint8_t id[CLI_KEY_ID_BYTES], char out[CLI_KEY_ID_TEXT]);
/* A public key as minisign -P takes it. Returns out. */
const char *cli_key_line(const cli_public_key *key, char out[CLI_KEY_LINE]);

#endif
