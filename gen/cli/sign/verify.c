/* verify.c: `flpgen verify`: whose minisign signature stands beside a file, and whether it is of that file. */
#include <sodium.h>
#include <stdlib.h>

#include "gen/cli/keys/minisign.h"
#include "gen/cli/shared/common.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/text.h"
#include "gen/cli/verbs.h"

enum { KEY_TRUST = CLI_KEY_FIRST, TRUSTED_MAX = 16 };

typedef struct verify_args {
  cli_public_key trusted[TRUSTED_MAX];
  size_t trusted_count;
  char **files; /* ends in NULL; or NULL */
  int json;
} verify_args;

static const struct argp_option options[] = {
    {"trust", KEY_TRUST, "KEY", 0,
     "accept signatures of this public key (required; may be repeated): 64 hex digits, minisign's line (minisign -P), "
     "or a file with one of them or with PEM",
     0},
    {"json", CLI_SWITCH(verify_args, json), NULL, 0, "print one JSON document", 0},
    {0}};

static flp_status add_trusted(const char *text, void *place) {
  verify_args *args = place;
  if (args->trusted_count == TRUSTED_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "--trust: '%s' is one key too many; %d are accepted", text, TRUSTED_MAX);
  return cli_key_read_public(text, &args->trusted[args->trusted_count++]);
}

static const cli_value values[] = {{KEY_TRUST, CLI_IS_OWN, .parse = add_trusted},
                                   {ARGP_KEY_ARGS, CLI_IS_ARGUMENTS, CLI_PLACE(verify_args, files)},
                                   {0}};

static error_t parse(int key, char *text, struct argp_state *state) {
  const verify_args *args = state->input;
  if (key != ARGP_KEY_END) return cli_values_parse(key, text, state);
  if (!args->trusted_count) argp_error(state, "--trust: no key is given; --trust KEY names whose signature counts");
  if (!args->files) argp_error(state, "the file to verify is missing");
  return 0;
}

static flp_status verify_file(const verify_args *args, const char *path, json_t *files) {
  char hex[CLI_KEY_TEXT], id[CLI_KEY_ID_TEXT];
  const cli_public_key *signer;
  cli_minisign signature;
  FLP_TRY(cli_minisign_verify(path, args->trusted, args->trusted_count, &signature, &signer));
  cli_key_id_hex(signer->id, id); /* the signature's own is not signed */
  if (args->json)
    json_array_append_new(
        files, json_pack("{s:o, s:s, s:s, s:o}", "file", cli_json_text(path), "key_id", id, "signed_by",
                         cli_key_hex(signer->bytes, hex), "trusted_comment", cli_json_text(signature.comment)));
  else
    cli_print(2, "%s: signed with key %s: %s", path, id, signature.comment);
  return FLP_OK;
}

static flp_status verify(void *input) {
  const verify_args *args = input;
  if (sodium_init() < 0) return flp_fail(FLP_ERROR_INTERNAL, "libsodium could not be initialised");
  json_t *files = json_array();
  flp_status status = FLP_OK;
  for (char **file = args->files; *file && status == FLP_OK; file++) status = verify_file(args, *file, files);
  if (status == FLP_OK && args->json) status = cli_json_print(json_pack("{s:O}", "files", files));
  json_decref(files);
  return status;
}

const cli_values cli_verify_argp = {
    CLI_OPTIONS(options, parse, values),
    .argp.args_doc = "FILE...",
    CLI_RUN(verify_args, verify),
    .argp.doc =
        "Verifies the signature FILE.minisig beside each file: of `flpgen sign`, or of minisign."
        "\vThe trusted comment, which is signed too, is printed. It stops at the first file that fails. The signature "
        "within a pack is verified by `flpgen pack verify`.\n\n"
        "Examples:\n"
        "  flpgen verify --trust release.pub SHA256SUMS && sha256sum --check SHA256SUMS\n"
        "  flpgen verify --trust release.pub flp-0.1.0-*.whl --json\n\n"
        "A file that none of the trusted keys has signed is exit status 1, a signature that cannot be read "
        "4.\n\n" CLI_EXIT_HELP};
