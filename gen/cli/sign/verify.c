/* verify.c: `flpgen verify`: whose minisign signature stands beside a file, and whether it is of that file. */
#include <sodium.h>
#include <stdlib.h>

#include "gen/cli/keys/minisign.h"
#include "gen/cli/shared/common.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/text.h"
#include "gen/cli/verbs.h"

enum { KEY_TRUST = CLI_KEY_FIRST, KEY_JSON, TRUSTED_MAX = 16 };

typedef struct verify_args {
  cli_public_key trusted[TRUSTED_MAX];
  size_t trusted_count;
  char **files;
  int count, json;
} verify_args;

static const struct argp_option options[] = {
    {"trust", KEY_TRUST, "KEY", 0,
     "accept signatures of this public key (required; may be repeated): 64 hex digits, minisign's line (minisign -P), "
     "or a file with one of them or with PEM",
     0},
    {"json", KEY_JSON, NULL, 0, "print one JSON document", 0},
    {0}};

static void add_trusted(verify_args *args, const char *text, struct argp_state *state) {
  if (args->trusted_count == TRUSTED_MAX)
    argp_error(state, "--trust: '%s' is one key too many; %d are accepted", text, TRUSTED_MAX);
  cli_argp_check(state, cli_key_read_public(text, &args->trusted[args->trusted_count]));
  args->trusted_count++;
}

static error_t parse(int key, char *text, struct argp_state *state) {
  verify_args *args = state->input;
  switch (key) {
    case KEY_TRUST:
      add_trusted(args, text, state);
      return 0;
    case KEY_JSON:
      args->json = 1;
      return 0;
    case ARGP_KEY_ARGS:
      args->files = state->argv + state->next;
      args->count = state->argc - state->next;
      return 0;
    case ARGP_KEY_END:
      if (!args->trusted_count) argp_error(state, "--trust: no key is given; --trust KEY names whose signature counts");
      if (!args->count) argp_error(state, "the file to verify is missing");
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
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

static flp_status verify(const verify_args *args) {
  if (sodium_init() < 0) return flp_fail(FLP_ERROR_INTERNAL, "libsodium could not be initialised");
  json_t *files = json_array();
  flp_status status = FLP_OK;
  for (int i = 0; i < args->count && status == FLP_OK; i++) status = verify_file(args, args->files[i], files);
  if (status == FLP_OK && args->json) status = cli_json_print(json_pack("{s:O}", "files", files));
  json_decref(files);
  return status;
}

const struct argp cli_verify_argp = {
    options,
    parse,
    "FILE...",
    "Verifies the signature FILE.minisig beside each file: of `flpgen sign`, or of minisign."
    "\vThe trusted comment, which is signed too, is printed. It stops at the first file that fails. The signature "
    "within a pack is verified by `flpgen pack verify`.\n\n"
    "Examples:\n"
    "  flpgen verify --trust release.pub SHA256SUMS && sha256sum --check SHA256SUMS\n"
    "  flpgen verify --trust release.pub flp-0.1.0-*.whl --json\n\n"
    "A file that none of the trusted keys has signed is exit status 1, a signature that cannot be read "
    "4.\n\n" CLI_EXIT_HELP,
    NULL,
    NULL,
    NULL};

int cli_verify(int argc, char **argv) {
  verify_args args = {.trusted_count = 0};
  cli_parse(&cli_verify_argp, argc, argv, &args);
  return cli_finish(argv[0], args.json, verify(&args));
}
