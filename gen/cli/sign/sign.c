/* sign.c: `flpgen sign`: a minisign signature beside each file. */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gen/cli/keys/minisign.h"
#include "gen/cli/shared/common.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/text.h"
#include "gen/cli/verbs.h"

typedef struct sign_args {
  const char *key, *comment, *public;
  char **files; /* ends in NULL; or NULL */
  int json;
} sign_args;

static const struct argp_option options[] = {
    {"key", CLI_TEXT(sign_args, key), "KEYFILE", 0,
     "the Ed25519 private key (required), in a file of mode 0600: 64 hex digits (openssl rand -hex 32), PEM (openssl "
     "genpkey -algorithm ed25519) or minisign's without a password (minisign -G -W)",
     0},
    {"comment", CLI_TEXT(sign_args, comment), "TEXT", 0,
     "the trusted comment, which is signed too; default: time and name of the file, as minisign has them, the time of "
     "SOURCE_DATE_EPOCH if it is set",
     0},
    {"public", CLI_TEXT(sign_args, public), "FILE", 0,
     "also write the public key there, as minisign -p takes it; no file need be signed", 0},
    {"json", CLI_SWITCH(sign_args, json), NULL, 0, "print one JSON document", 0},
    {0}};

static const cli_value values[] = {{ARGP_KEY_ARGS, CLI_IS_ARGUMENTS, CLI_PLACE(sign_args, files)}, {0}};

static error_t parse(int key, char *text, struct argp_state *state) {
  const sign_args *args = state->input;
  if (key != ARGP_KEY_END) return cli_values_parse(key, text, state);
  if (!args->key) argp_error(state, "--key: the private key is not given; --key KEYFILE gives it");
  if (!args->files && !args->public) argp_error(state, "the file to sign is missing");
  return 0;
}

/* What minisign writes where nothing is asked for. */
static flp_status default_comment(const char *path, char **out) {
  const char *given = secure_getenv("SOURCE_DATE_EPOCH"), *slash = strrchr(path, '/');
  int64_t seconds = (int64_t)time(NULL);
  if (given) FLP_TRY(cli_parse_integer("SOURCE_DATE_EPOCH", given, 0, INT64_MAX, &seconds));
  if (asprintf(out, "timestamp:%lld\tfile:%s\thashed", (long long)seconds, slash ? slash + 1 : path) >= 0)
    return FLP_OK;
  *out = NULL;
  return flp_fail(FLP_ERROR_MEMORY, "out of memory");
}

static flp_status sign_file(const sign_args *args, const char *path, const cli_private_key *key, json_t *files) {
  char *comment = NULL, *signature = NULL;
  if (!args->comment) FLP_TRY(default_comment(path, &comment));
  flp_status status = cli_minisign_sign(path, key, args->comment ? args->comment : comment, &signature);
  if (status == FLP_OK && args->json)
    json_array_append_new(files,
                          json_pack("{s:o, s:o}", "file", cli_json_text(path), "signature", cli_json_text(signature)));
  else if (status == FLP_OK)
    cli_print(2, "%s signs %s", signature, path);
  free(signature);
  free(comment);
  return status;
}

static flp_status write_public(const char *path, const cli_public_key *key) {
  char line[CLI_KEY_LINE], id[CLI_KEY_ID_TEXT], text[128];
  int length = snprintf(text, sizeof text, "untrusted comment: minisign public key %s\n%s\n",
                        cli_key_id_hex(key->id, id), cli_key_line(key, line));
  return cli_write_file(path, text, (size_t)length);
}

static flp_status report(const sign_args *args, const cli_public_key *key, json_t *files) {
  char hex[CLI_KEY_TEXT], line[CLI_KEY_LINE], id[CLI_KEY_ID_TEXT];
  cli_key_line(key, line);
  if (args->json)
    return cli_json_print(json_pack("{s:s, s:s, s:s, s:O}", "key_id", cli_key_id_hex(key->id, id), "public_key",
                                    cli_key_hex(key->bytes, hex), "minisign_key", line, "files", files));
  if (args->public) cli_print(2, "%s has the public key", args->public);
  cli_print(2, "the public key is %s, for flpgen verify --trust and minisign -V -P", line);
  return FLP_OK;
}

static flp_status sign_all(const sign_args *args, const cli_private_key *key, json_t *files) {
  cli_public_key public;
  cli_key_public(key, &public);
  for (char **file = args->files; file && *file; file++) FLP_TRY(sign_file(args, *file, key, files));
  if (args->public) FLP_TRY(write_public(args->public, &public));
  return report(args, &public, files);
}

static flp_status sign(void *input) {
  const sign_args *args = input;
  cli_private_key key;
  if (sodium_init() < 0) return flp_fail(FLP_ERROR_INTERNAL, "libsodium could not be initialised");
  FLP_TRY(cli_key_read_private("--key", args->key, &key));
  json_t *files = json_array();
  flp_status status = sign_all(args, &key, files);
  json_decref(files);
  sodium_memzero(&key, sizeof key);
  return status;
}

const cli_values cli_sign_argp = {
    CLI_OPTIONS(options, parse, values),
    .argp.args_doc = "FILE...",
    CLI_RUN(sign_args, sign),
    .argp.doc =
        "Signs files of any kind, each with FILE.minisig beside it, which minisign verifies as `flpgen verify` does."
        "\vWheels, Debian packages, checksums. What FLP_CACHE_PATH names is a pack that bears its signature itself: "
        "`flpgen pack build --sign`, with the same key.\n\n"
        "Examples:\n"
        "  flpgen sign --key key.hex --public release.pub SHA256SUMS\n"
        "  flpgen verify --trust release.pub SHA256SUMS\n"
        "  flpgen sign --key key.hex --comment 'flp 0.1.0' *.whl\n\n" CLI_EXIT_HELP};
