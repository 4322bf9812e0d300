/* minisign.h: detached signatures as minisign makes them: FILE.minisig beside FILE.
 *
 * Ed25519 signs the BLAKE2b-512 of the file, then, for the trusted comment, that signature with the comment behind it.
 * The older form, which signs the file itself, is not accepted. */
#ifndef FLPGEN_CLI_MINISIGN_H
#define FLPGEN_CLI_MINISIGN_H

#include "gen/cli/keys/keys.h"

enum { CLI_MINISIGN_COMMENT_BYTES = 1024, CLI_MINISIGN_SIGNATURE_BYTES = 64 };

typedef struct cli_minisign {
  uint8_t id[CLI_KEY_ID_BYTES];
  uint8_t signature[CLI_MINISIGN_SIGNATURE_BYTES]; /* of the file */
  uint8_t whole[CLI_MINISIGN_SIGNATURE_BYTES];     /* of signature and comment */
  char comment[CLI_MINISIGN_COMMENT_BYTES];        /* trusted; one line */
} cli_minisign;

/* Signs a file and writes FILE.minisig. *signature: its name, malloc'ed
 * error: IO; ARGUMENT if the comment is not one line, or too long */
flp_status cli_minisign_sign(const char *path, const cli_private_key *key, const char *comment, char **signature);

/* Reads the text of a signature. name: of its file, for messages. error: CORRUPT */
flp_status cli_minisign_read(const char *name, const char *text, cli_minisign *out);
/* Reads FILE.minisig and asks that one of the keys signed FILE and the comment. *signer: that key
 * error: IO, CORRUPT; DATA if none of them did */
flp_status cli_minisign_verify(const char *path, const cli_public_key *trusted, size_t count, cli_minisign *out,
                               const cli_public_key **signer);

#endif
