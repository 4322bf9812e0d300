/* option_args.c: a row of a verb's options, and what it makes of a value. */
#include "gen/cli/shared/option_args.h"

#include <string.h>

#include "gen/gen.h"
#include "runtime/base/fields.h"
#include "runtime/load/jit.h"

enum { ORDINAL_MOST = 4096, THREADS_MOST = 4096 };

static const cli_value of_call[] = {
    {CLI_KEY_BUDGET, CLI_IS_BYTES, CLI_PLACE(flp_options, budget_bytes)},
    {CLI_KEY_CHUNK_ROWS, CLI_IS_INTEGER, CLI_PLACE(flp_options, chunk_rows), .least = 1, .most = FLP_COUNT_MAX},
    {CLI_KEY_CHUNK_VOCAB, CLI_IS_INTEGER, CLI_PLACE(flp_options, chunk_vocab), .least = 1, .most = FLP_COUNT_MAX},
    {CLI_KEY_RUNG, CLI_IS_WORD, CLI_PLACE(flp_options, rung), .words = FLP_RUNG_WORDS},
    {CLI_KEY_ARCH, CLI_IS_TEXT, CLI_PLACE(flp_options, arch)},
    {CLI_KEY_DEVICE, CLI_IS_INTEGER, CLI_PLACE(flp_options, device), .most = ORDINAL_MOST},
    {CLI_KEY_THREADS, CLI_IS_INTEGER, CLI_PLACE(flp_options, threads), .least = 1, .most = THREADS_MOST},
    {CLI_KEY_STRICT, CLI_IS_SWITCH, CLI_PLACE(flp_options, strict)},
    {0}};

const char *cli_values_name(const cli_values *values, int key, char out[CLI_TEXT_BYTES]) {
  const struct argp_option *option = values->argp.options;
  while (option->key != key) option++;
  snprintf(out, CLI_TEXT_BYTES, "--%s", option->name);
  return out;
}

static void put_text(void *place, const char *text) {
  memcpy(place, &text, sizeof text);
}

static void put_integer(void *place, size_t bytes, int64_t value) {
  memcpy(place, &value, bytes); /* little-endian */
}

static flp_status add_text(const cli_value *row, const char *name, const char *text, cli_texts *list) {
  if (list->count == row->most)
    return flp_fail(FLP_ERROR_ARGUMENT, "%s: '%s' is one too many; at most %d are accepted", name, text, list->count);
  list->text[list->count++] = text;
  return FLP_OK;
}

static flp_status parse_value(const cli_value *row, const char *name, const char *text, void *place) {
  int64_t value = 1; /* of a switch */
  int word = 0;
  switch (row->kind) {
    case CLI_IS_QUIET:
      cli_log_quiet();
      break;
    case CLI_IS_SWITCH:
      break;
    case CLI_IS_INTEGER:
      FLP_TRY(cli_parse_integer(name, text, row->least, row->most, &value));
      break;
    case CLI_IS_WORD:
      FLP_TRY(cli_parse_choice(name, text, row->words, &word));
      value = word;
      break;
    case CLI_IS_TEXT:
      put_text(place, text ? text : row->unsaid);
      return FLP_OK;
    case CLI_IS_FP32:
      return cli_parse_fp32(name, text, place);
    case CLI_IS_POSITIVE:
      return cli_parse_positive(name, text, place);
    case CLI_IS_BYTES:
      return flp_bytes_parse(name, text, 1, place);
    case CLI_IS_LIST:
      return add_text(row, name, text, place);
    case CLI_IS_FLAGS:
      return cli_parse_flags(name, text, row->words, place);
    default:
      return row->parse(text, place);
  }
  put_integer(place, row->bytes, value);
  return FLP_OK;
}

/* ---- arguments that are no options ---- */

static void take_argument(const cli_value *row, char *text, struct argp_state *state) {
  const char *before = NULL;
  char *place = (char *)state->input + row->place;
  if (row->kind != CLI_VALUES_END) memcpy(&before, place, sizeof before);
  int is_bare_json = row->kind == CLI_IS_JSON_FILE && before && strcmp(before, "-") == 0;
  if (row->kind != CLI_IS_ARGUMENT && !is_bare_json)
    argp_error(state, "argument '%s' is not accepted; only options are", text);
  if (row->kind == CLI_IS_ARGUMENT && before)
    argp_error(state, "argument '%s' is not accepted after '%s'", text, before);
  put_text(place, text);
}

static error_t check_argument(const cli_values *values, const struct argp_state *state) {
  const char *given = NULL;
  for (const cli_value *row = values->rows; row->kind; row++) {
    if (row->kind != CLI_IS_ARGUMENT) continue;
    memcpy(&given, (char *)state->input + row->place, sizeof given);
    if (!given) argp_error(state, "%s", row->unsaid);
  }
  return 0;
}

/* ---- the parser ---- */

static const cli_value *find(const cli_value *rows, int key) {
  while (rows->kind && rows->key != key) rows++;
  return rows;
}

static const char *templates; /* of --template-dir */
static char templates_id[65]; /* of plans' templates, their hash in hex */

static flp_status parse_option(const cli_values *values, int key, const char *text, flp_options *options) {
  const cli_value *row = find(of_call, key);
  char name[CLI_TEXT_BYTES];
  if (key == CLI_KEY_TEMPLATES) templates = text;
  if (key == CLI_KEY_TEMPLATES) return FLP_OK;
  if (key == CLI_KEY_MODE) return cli_parse_mode_of(text, values->modes, &options->mode);
  return parse_value(row, cli_values_name(values, key, name), text, (char *)options + row->place);
}

const char *cli_templates(void) {
  return templates;
}

flp_status cli_templates_use(flp_options *options) {
  const flp_provider *provider;
  uint8_t hash[32];
  char error[1024] = "";
  if (!templates) return FLP_OK;
  if (options->rung != FLP_RUNG_AUTO && options->rung != FLP_RUNG_JIT)
    return flp_fail(FLP_ERROR_ARGUMENT, "--template-dir: not accepted with --rung %s; kernels are generated (rung jit)",
                    flp_rung_name(options->rung));
  options->rung = FLP_RUNG_JIT;
  flp_status status = flpgen_provider_templates(templates, hash, error, sizeof error);
  if (status != FLP_OK) return flp_fail(status, "%s", error);
  FLP_TRY(flp_jit_get(&provider));
  for (size_t i = 0; i < sizeof hash; i++) snprintf(templates_id + 2 * i, 3, "%02x", hash[i]);
  if (memcmp(provider->sources_hash(), hash, sizeof hash) == 0) return FLP_OK;
  return flp_fail(FLP_ERROR_UNAVAILABLE, "--template-dir: not accepted where FLP_JIT_LIBRARY names another generator");
}

const char *cli_sources_id(void) {
  return templates_id[0] ? templates_id : flp_sources_id();
}

/* The verb's, which are the child of cli_parse's own, and of a line the whole. */
static const cli_values *values_of(const struct argp_state *state) {
  const struct argp *root = state->root_argp;
  return (const cli_values *)(const void *)(root->options == CLI_COMMON_OPTIONS ? root->children->argp : root);
}

error_t cli_values_parse(int key, char *text, struct argp_state *state) {
  const cli_values *values = values_of(state);
  char *args = state->input, name[CLI_TEXT_BYTES];
  if (key == ARGP_KEY_INIT && values->argp.children) state->child_inputs[0] = args;
  if (key == ARGP_KEY_INIT) return 0;
  if (key == ARGP_KEY_END) return check_argument(values, state);
  const cli_value *row = find(values->rows, key);
  if (key == ARGP_KEY_ARG && find(values->rows, ARGP_KEY_ARGS)->kind) return ARGP_ERR_UNKNOWN; /* asks for all then */
  if (key == ARGP_KEY_ARGS && row->kind) {
    char **rest = state->argv + state->next;
    memcpy(args + row->place, &rest, sizeof rest);
    return 0;
  }
  if (key == ARGP_KEY_ARG)
    take_argument(row, text, state);
  else if (cli_is_option(key))
    cli_argp_check(state, parse_option(values, key, text, (flp_options *)(void *)(args + values->call)));
  else if (row->kind)
    cli_argp_check(state, parse_value(row, cli_values_name(values, key, name), text, args + row->place));
  else if (key >= CLI_KEYS_TEXT && key < CLI_KEYS_TEXT + CLI_KEYS_PLACES)
    put_text(args + key - CLI_KEYS_TEXT, text);
  else if (key >= CLI_KEYS_SWITCH && key < CLI_KEYS_SWITCH + CLI_KEYS_PLACES)
    put_integer(args + key - CLI_KEYS_SWITCH, sizeof(int), 1);
  else
    return ARGP_ERR_UNKNOWN;
  return 0;
}
