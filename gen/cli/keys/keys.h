/* keys.h: Ed25519 keys of files and options. */
#ifndef FLPGEN_CLI_KEYS_H
#define FLPGEN_CLI_KEYS_H

#include <stdint.h>

#include "runtime/base/status.h"

enum { CLI_KEY_BYTES = 32 };

/* Reads a private key: a file that only its owner reads, with 64 hex digits or an Ed25519 key in PEM (PKCS #8).
 * error: IO, ARGUMENT */
flp_status cli_key_read_seed(const char *path, uint8_t seed[CLI_KEY_BYTES]);
/* The public key of a seed as 64 hex digits and a 0. */
enum { CLI_KEY_TEXT = 65 };
void cli_key_public(const uint8_t seed[CLI_KEY_BYTES], char out[CLI_KEY_TEXT]);
/* Reads a public key: 64 hex digits, or a file that holds them or an Ed25519 key in PEM. error: IO, ARGUMENT */
flp_status cli_key_read_public(const char *text, char out[CLI_KEY_TEXT]);

#endif
