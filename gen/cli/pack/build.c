/* build.c: `flpgen pack build`, from specs, lists of specs, cache directories and packs to one signed file. */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/pack/pack.h"
#include "gen/cli/presets/presets.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/spec_args.h"
#include "gen/cli/shared/text.h"
#include "runtime/kernel/op.h"

enum { KEY_FROM = CLI_KEY_FIRST, KEY_LIST, KEY_CHUNKS, KEY_STEP_ROWS };
enum { SOURCES_MAX = 64, SPECS_MAX = 4096, LIST_BYTES_MAX = 1 << 20, WORDS_MAX = 64 };

typedef struct build_args {
  cli_spec_args spec;
  const char *arches, *tuned_for, *cubin, *sign, *name, *out, *preset, *preset_file;
  uint32_t chunk_rows, chunk_vocab;
  int64_t step_rows;
  cli_texts from, list;
  int variants, json;
} build_args;

/* Specs, and the texts of lists that they borrow from. */
typedef struct spec_list {
  cli_pack_spec *specs;
  size_t count;
  char *texts[SOURCES_MAX];
} spec_list;

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "What is packed:", 2},
    {"preset", CLI_TEXT(build_args, preset), "LIST", 0,
     "heads of popular models by name, or all, each with the other options given", 2},
    {"preset-file", CLI_TEXT(build_args, preset_file), "FILE", 0,
     "take presets from here, not those built in; all of them without --preset", 2},
    {"list", KEY_LIST, "FILE", 0,
     "a specialisation a line: its options, and --arch, --tuned-for, --chunks, --step-rows; # begins a comment (flpgen "
     "tune --list writes such lines)",
     2},
    {"from", KEY_FROM, "PATH", 0, "the entries of a cache directory, or of another pack", 2},
    {"arch", CLI_TEXT(build_args, arches), "LIST", 0,
     "architectures, default: every one that plans take kernels of; sm_80 is always among them", 2},
    {"tuned-for", CLI_TEXT(build_args, tuned_for), "DEVICE", 0,
     "kernels with the tilings of --tune, or with defaults that were found best, are for this device alone, e.g. "
     "'NVIDIA H200/132/13000' (name/multiprocessors/driver), and kernels with default tilings are packed beside them",
     2},
    {"chunks", KEY_CHUNKS, "RxC", 0,
     "with --tuned-for: chunks of so many rows, or so many columns, that the backward pass prefers; 0 for no "
     "preference",
     2},
    {"step-rows", KEY_STEP_ROWS, "N", 0,
     "with --tuned-for and --loss: chunks of so many rows, that streamed steps prefer", 2},
    {"variants", CLI_SWITCH(build_args, variants), NULL, 0,
     "beside every specialisation those that share its model: scores, the gradient of hidden alone and all that --grad "
     "names, each without and with entropy and, in bf16, with the kernels of modes save and direction; with the same "
     "tilings and tuning. A loss comes with its own line, and serves every head",
     2},
    {NULL, 0, NULL, 0, "The pack:", 3},
    {"out", 'o', "FILE", 0, "where to write it (required)", 3},
    {"name", CLI_TEXT(build_args, name), "TEXT", 0, "a name for the manifest", 3},
    {"cubin", CLI_TEXT(build_args, cubin), "LIST", 0,
     "also machine code for these GPUs, e.g. sm_90, made by ptxas (FLP_PTXAS, else found in PATH): a start without the "
     "driver's compiler",
     3},
    {"sign", CLI_TEXT(build_args, sign), "KEYFILE", 0,
     "sign with an Ed25519 private key: 64 hex digits (openssl rand -hex 32), PEM (openssl genpkey -algorithm "
     "ed25519) or minisign's without a password (minisign -G -W), in a file of mode 0600; the public key is printed",
     3},
    {"json", CLI_SWITCH(build_args, json), NULL, 0, "print one JSON document", 3},
    {0}};

/* "8192x0" */
static flp_status parse_chunks(const char *text, void *place) {
  build_args *args = place;
  unsigned rows = 0, vocab = 0;
  char end = 0;
  if (sscanf(text, "%9ux%9u%c", &rows, &vocab, &end) != 2)
    return flp_fail(FLP_ERROR_ARGUMENT, "--chunks: expected ROWSxCOLUMNS, e.g. 0x50688, got '%s'", text);
  args->chunk_rows = rows;
  args->chunk_vocab = vocab;
  return FLP_OK;
}

static const cli_value values[] = {
    {KEY_FROM, CLI_IS_LIST, CLI_PLACE(build_args, from), .most = SOURCES_MAX},
    {KEY_LIST, CLI_IS_LIST, CLI_PLACE(build_args, list), .most = SOURCES_MAX},
    {KEY_CHUNKS, CLI_IS_OWN, .parse = parse_chunks},
    {KEY_STEP_ROWS, CLI_IS_INTEGER, CLI_PLACE(build_args, step_rows), .least = 1, .most = INT32_MAX},
    {'o', CLI_IS_TEXT, CLI_PLACE(build_args, out)},
    {0}};

const cli_values cli_pack_build_argp = {
    CLI_OPTIONS(options, cli_values_parse, values),
    .argp.doc =
        "Packs kernels into one file, which FLP_CACHE_PATH may name as it is."
        "\vThe kernels of a specialisation, of lists of them, of caches and of packs, each once; beside those for one "
        "GPU stand the sm_80 kernels of the same specialisation, so that a pack runs everywhere. The same kernels give "
        "the same bytes, in whatever order they were named.\n\n"
        "Examples:\n"
        "  flpgen pack build --vocab 151936 --hidden 4096 --grad hidden -o qwen.flpp\n"
        "  flpgen pack build --preset qwen3-8b,llama-3.1-8b --grad hidden,weight -o two.flpp\n"
        "  flpgen pack build --list presets.txt --variants --sign key.hex -o h200.flpp\n"
        "  flpgen pack build --from h200.flpp --model config.json --loss grpo -o x.flpp\n"
        "  flpgen pack build --from ~/.cache/flp --cubin sm_90 -o mine.flpp\n"
        "  FLP_CACHE_PATH=h200.flpp python train.py\n\n" CLI_EXIT_HELP,
    .argp.children = cli_spec_children};

/* ---- specs ---- */

static flp_status add_spec(spec_list *specs, build_args *args) {
  if ((args->chunk_rows || args->chunk_vocab) && !args->tuned_for)
    return flp_fail(FLP_ERROR_ARGUMENT, "--chunks: %ux%u is not accepted without --tuned-for", args->chunk_rows,
                    args->chunk_vocab);
  if (args->step_rows && (!args->tuned_for || !args->spec.loss.name))
    return flp_fail(FLP_ERROR_ARGUMENT, "--step-rows: %lld is not accepted without --tuned-for and --loss",
                    (long long)args->step_rows);
  int variants = args->variants && flp_op_of(args->spec.spec.op)->has_head ? CLI_PACK_VARIANTS : 0;
  if (specs->count + (size_t)variants >= SPECS_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "more than %d specialisations, variants included, are not accepted", SPECS_MAX);
  FLP_TRY(cli_spec_args_resolve(&args->spec));
  cli_pack_spec *added = &specs->specs[specs->count++];
  *added = (cli_pack_spec){.spec = args->spec.spec,
                           .tune = args->spec.tune,
                           .tuned_for = args->tuned_for,
                           .arches = args->arches,
                           .chunk_rows = args->chunk_rows,
                           .chunk_vocab = args->chunk_vocab,
                           .step_rows = (uint32_t)args->step_rows,
                           .keeps = flp_kernel_spec_keeps(&args->spec.spec)};
  if (variants) cli_pack_variants(added, added + 1);
  specs->count += (size_t)variants;
  return FLP_OK;
}

typedef struct adding {
  spec_list *specs;
  const build_args *args;
} adding;

static flp_status add_preset(void *context, const cli_preset *preset) {
  const adding *a = context;
  build_args own = *a->args;
  cli_preset_apply(preset, &own.spec, &own.spec.spec);
  return add_spec(a->specs, &own);
}

/* The head of the options, or the presets that they name. */
static flp_status add_heads(spec_list *specs, build_args *args) {
  if (!args->preset && !args->preset_file) return add_spec(specs, args);
  const char *other = args->spec.model ? "--model" : "--vocab and --hidden";
  if (args->spec.model || args->spec.spec.vocab || args->spec.spec.hidden)
    return flp_fail(FLP_ERROR_ARGUMENT, "%s beside presets: heads are named by one of these", other);
  adding a = {specs, args};
  return cli_presets_each(args->preset_file, args->preset, add_preset, &a);
}

/* Splits a line into words, in place; quotes ' and " hold words together. Returns their number, or -1. */
static int split_words(char *line, char *words[WORDS_MAX]) {
  int count = 0;
  for (char *at = line;;) {
    at += strspn(at, " \t\r");
    if (!*at || *at == '#') return count;
    if (count == WORDS_MAX) return -1;
    char *to = words[count++] = at, quote = 0;
    for (; *at && (quote || !strchr(" \t\r", *at)); at++) {
      if (*at == quote)
        quote = 0;
      else if (!quote && (*at == '\'' || *at == '"'))
        quote = *at;
      else
        *to++ = *at;
    }
    if (quote) return -1;
    int last = *at == 0;
    *to = 0;
    if (last) return count;
    at++;
  }
}

/* One line of a list, with the options of build that a line may have. What argp refuses ends the program. */
static flp_status add_line(spec_list *specs, const build_args *args, const char *file, int number, char *line) {
  char *words[WORDS_MAX + 1], name[512];
  int count = split_words(line, words + 1);
  if (count == 0) return FLP_OK;
  snprintf(name, sizeof name, "flpgen pack build: %s:%d", file, number);
  if (count < 0 || count == WORDS_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "%s:%d: unbalanced quotes, or more than %d words", file, number, WORDS_MAX - 1);
  words[0] = name;
  build_args own = {.spec = CLI_SPEC_ARGS_INIT, .arches = args->arches, .variants = args->variants};
  own.spec.takes_op = 1;
  cli_parse_line(&cli_pack_build_argp, count + 1, words, &own);
  flp_status status = own.from.count || own.list.count || own.cubin || own.sign || own.name || own.out || own.json
                          ? flp_fail(FLP_ERROR_ARGUMENT, "options of the pack are not accepted in a list")
                          : add_heads(specs, &own);
  return status == FLP_OK ? FLP_OK : flp_fail(status, "%s:%d: %s", file, number, flp_error_detail());
}

static flp_status add_list(spec_list *specs, const build_args *args, int i) {
  FLP_TRY(cli_read_text(args->list.text[i], LIST_BYTES_MAX, &specs->texts[i]));
  int number = 0;
  for (char *line = specs->texts[i], *next; line; line = next) {
    next = strchr(line, '\n');
    if (next) *next++ = 0;
    FLP_TRY(add_line(specs, args, args->list.text[i], ++number, line));
  }
  return FLP_OK;
}

static flp_status collect_specs(spec_list *specs, build_args *args) {
  specs->specs = calloc(SPECS_MAX, sizeof *specs->specs);
  if (!specs->specs) return flp_fail(FLP_ERROR_MEMORY, "out of memory");
  int is_given =
      args->spec.spec.vocab || args->spec.spec.hidden || args->spec.model || args->preset || args->preset_file;
  if (is_given || (!args->from.count && !args->list.count))
    FLP_TRY(add_heads(specs, args));
  else if (args->spec.loss.name)
    return flp_fail(
        FLP_ERROR_ARGUMENT,
        "--loss: '%s' is not accepted without --vocab and --hidden, any head's, or --preset; or in a line of a list",
        args->spec.loss.name);
  for (int i = 0; i < args->list.count; i++) FLP_TRY(add_list(specs, args, i));
  return FLP_OK;
}

/* ---- the pack ---- */

static flp_status collect(build_args *args, cli_pack_items *items, uint64_t *left_out) {
  spec_list specs = {.count = 0};
  flp_status status = collect_specs(&specs, args);
  for (int i = 0; i < args->from.count && status == FLP_OK; i++)
    status = cli_pack_add_from(items, args->from.text[i], left_out);
  if (status == FLP_OK) status = cli_pack_generate(specs.specs, specs.count, items);
  for (size_t i = 0; i < SOURCES_MAX; i++) free(specs.texts[i]);
  free(specs.specs);
  if (status == FLP_OK && !items->count)
    return flp_fail(FLP_ERROR_ARGUMENT, "nothing to pack: %llu entries are of other sources than this generator's",
                    (unsigned long long)*left_out);
  return status;
}

static flp_status write_pack(const build_args *args, const cli_pack_items *items, const uint8_t *seed) {
  char *manifest = NULL;
  uint8_t *bytes = NULL;
  size_t length = 0;
  FLP_TRY(cli_pack_manifest(items, args->name, &manifest));
  flp_status status = cli_pack_encode(items, manifest, seed, &bytes, &length);
  if (status == FLP_OK) status = cli_write_file(args->out, bytes, length);
  free(bytes);
  free(manifest);
  return status;
}

/* Reads back what was written: a pack that would be refused elsewhere is refused here. */
static flp_status report(const build_args *args, uint64_t left_out) {
  cli_pack_file file;
  FLP_TRY(cli_pack_file_open(args->out, &file));
  flp_status status = cli_pack_file_verify(&file, "");
  if (status == FLP_OK && args->json) {
    json_t *document = cli_pack_file_json(&file);
    if (document) json_object_set_new(document, "left_out", cli_json_count(left_out));
    status = cli_json_print(document);
  } else if (status == FLP_OK) {
    char signer[CLI_KEY_TEXT];
    cli_print(2, "%s: %u kernels, %s", args->out, file.pack->entry_count,
              cli_bytes((double)file.pack->file_bytes).text);
    if (left_out) printf("%llu entries of other sources were left out\n", (unsigned long long)left_out);
    if (file.pack->is_signed)
      cli_print(2, "signed; the public key is %s",
                sodium_bin2hex(signer, sizeof signer, file.pack->signer, sizeof file.pack->signer));
    cli_print(2, "FLP_CACHE_PATH=%s uses it in place; `flpgen pack install %s` copies it to a cache", args->out,
              args->out);
  }
  cli_pack_file_close(&file);
  return status;
}

static flp_status build(build_args *args) {
  cli_private_key key;
  uint64_t left_out = 0;
  cli_pack_items items = {.count = 0};
  if (!args->out) return flp_fail(FLP_ERROR_ARGUMENT, "--out: the file to write is not given; --out FILE gives it");
  if (sodium_init() < 0) return flp_fail(FLP_ERROR_INTERNAL, "libsodium could not be initialised");
  if (args->sign) FLP_TRY(cli_key_read_private("--sign", args->sign, &key));
  flp_status status = collect(args, &items, &left_out);
  if (status == FLP_OK && args->cubin) status = cli_pack_make_cubins(&items, args->cubin);
  if (status == FLP_OK) status = write_pack(args, &items, args->sign ? key.seed : NULL);
  if (status == FLP_OK) status = report(args, left_out);
  sodium_memzero(&key, sizeof key);
  cli_pack_items_clear(&items);
  return status;
}

int cli_pack_build(int argc, char **argv) {
  build_args args = {.spec = CLI_SPEC_ARGS_INIT};
  args.spec.takes_op = 1;
  cli_parse(&cli_pack_build_argp, argc, argv, &args);
  return cli_finish(argv[0], args.json, build(&args));
}
