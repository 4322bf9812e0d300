/* gen.c: `flpgen gen`, the kernels of one specialisation (or the shape-generic set) as PTX and cache entries. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/kernels/kernels.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/spec_args.h"
#include "gen/cli/shared/table.h"
#include "gen/cli/shared/text.h"
#include "gen/cli/verbs.h"
#include "runtime/plan/plan.h"

enum { ARCHES_MAX = 16 };
enum { KEY_EMIT = CLI_KEY_FIRST };

typedef struct gen_args {
  cli_spec_args spec;
  const char *arches, *out;
  flpgen_options options;
  uint32_t emit;
  int generic, json, install;
} gen_args;

/* What was asked for and what is made. */
typedef struct gen_work {
  char asked[ARCHES_MAX][16], target[ARCHES_MAX][16]; /* target[i] covers asked[i] */
  int arches;
  flp_kernel_key *keys;
  int key_count;
  cli_kernels kernels;
} gen_work;

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Output:", 2},
    {"arch", CLI_TEXT(gen_args, arches), "LIST", 0,
     "architectures, e.g. sm_80,sm_90; sm_80 (default) runs on every newer GPU", 2},
    {"out", 'o', "DIR", 0, "write PTX, descriptors and cache entries here; FLP_CACHE_PATH=DIR then finds them", 2},
    {"emit", KEY_EMIT, "LIST", 0,
     "any of ir,opt,ptx: also write the IR, each module to its file; without --out print all to standard output", 2},
    {"generic", CLI_SWITCH(gen_args, generic), NULL, 0,
     "write the shape-generic kernels of rung 4 in place of one specialisation", 2},
    {"install-cache", CLI_SWITCH(gen_args, install), NULL, 0, "store the kernels in the cache of this user", 2},
    {"template-dir", CLI_KEY_TEMPLATES, "DIR", 0, CLI_TEMPLATES_HELP, 2},
    {"json", CLI_SWITCH(gen_args, json), NULL, 0, "print one JSON document", 2},
    {0}};

static const cli_value values[] = {{'o', CLI_IS_TEXT, CLI_PLACE(gen_args, out)},
                                   {KEY_EMIT, CLI_IS_FLAGS, CLI_PLACE(gen_args, emit), .words = CLI_EMITS},
                                   {0}};

static flp_status add_arch(gen_work *work, const gen_args *args, const char *name) {
  if (work->arches == ARCHES_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "--arch: '%s' has too many names; at most %d are accepted", args->arches,
                    ARCHES_MAX);
  char target[16];
  FLP_TRY(cli_kernels_target(name, target));
  strcpy(work->asked[work->arches], name); /* fits: the target check has bounded it */
  memcpy(work->target[work->arches++], target, sizeof target);
  return FLP_OK;
}

static flp_status choose_arches(gen_work *work, const gen_args *args) {
  char *list = strdup(args->arches ? args->arches : FLP_PORTABLE_ARCH);
  if (!list) return flp_fail(FLP_ERROR_MEMORY, "out of memory");
  flp_status status = FLP_OK;
  for (char *rest = list, *name; status == FLP_OK && (name = strsep(&rest, ","));) status = add_arch(work, args, name);
  free(list);
  return status;
}

/* 1 if target i was met before. */
static int is_repeated(const gen_work *work, int i) {
  for (int j = 0; j < i; j++)
    if (strcmp(work->target[j], work->target[i]) == 0) return 1;
  return 0;
}

static flp_status choose_keys(gen_work *work, const gen_args *args) {
  work->keys = calloc(ARCHES_MAX * FLP_SPEC_KERNELS_MAX, sizeof *work->keys);
  if (!work->keys) return flp_fail(FLP_ERROR_MEMORY, "out of memory");
  flp_tuning tuning;
  const char *targets[ARCHES_MAX];
  FLP_TRY(flp_tuning_parse("--tune", args->spec.tune, &tuning));
  for (int i = 0; i < work->arches; i++) targets[i] = work->target[i];
  int heeding = flp_kernel_heeding_arch(targets, work->arches, &args->spec.spec, &tuning);
  FLP_TRY(cli_spec_check_tiling("--tune", args->spec.tune, &args->spec.spec, targets[heeding < 0 ? 0 : heeding]));
  for (int i = 0; i < work->arches; i++) {
    flp_kernel_key *keys = work->keys + work->key_count;
    if (is_repeated(work, i)) continue;
    int count = flp_kernel_keys_for(&args->spec.spec, targets[i], keys);
    if (i == heeding) flp_tuning_apply(&tuning, keys, count);
    work->key_count += count;
  }
  return FLP_OK;
}

/* What would do nothing beside --generic. */
static flp_status check_generic(const gen_args *args) {
  static const char *const none[] = {NULL};
  const char *option = cli_spec_args_other(&args->spec, none);
  if (option)
    return flp_fail(FLP_ERROR_ARGUMENT, "--%s: not accepted with --generic, which makes kernels for any shape", option);
  if (args->arches && strchr(args->arches, ','))
    return flp_fail(FLP_ERROR_ARGUMENT, "--arch: expected one architecture with --generic, got '%s'", args->arches);
  if (args->out || args->install) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "--generic: expected --out DIR or --install-cache beside it, got neither");
}

static flp_status write_files(const gen_work *work, const gen_args *args) {
  if (args->out) {
    FLP_TRY(cli_make_directory(args->out));
    for (int i = 0; !args->generic && i < work->kernels.count; i++)
      FLP_TRY(cli_kernel_write(&work->kernels.items[i], args->out));
    FLP_TRY(cli_kernels_store(&work->kernels, args->out));
  }
  if (!args->install) return FLP_OK;
  flp_setting cache;
  flp_setting_get(FLP_SETTING_CACHE_DIR, &cache);
  return cli_kernels_store(&work->kernels, cache.value);
}

static json_t *kernel_json(const cli_kernel *kernel, const gen_args *args) {
  const flpgen_result *result = &kernel->result;
  json_t *object = cli_desc_json(&result->desc);
  json_object_set_new(object, "ptx_bytes", cli_json_count(result->ptx_bytes));
  json_object_set_new(object, "seconds", cli_json_number(kernel->seconds));
  if (args->out) return object;
  if (args->emit & CLI_EMIT_IR) json_object_set_new(object, "ir", cli_json_text(result->ir));
  if (args->emit & CLI_EMIT_OPT) json_object_set_new(object, "opt", cli_json_text(result->opt_ir));
  if (args->emit & CLI_EMIT_PTX) json_object_set_new(object, "ptx", cli_json_text(result->ptx));
  return object;
}

static flp_status print_json(const gen_work *work, const gen_args *args) {
  json_t *kernels = json_array(), *arches = json_object();
  for (int i = 0; i < work->kernels.count; i++)
    json_array_append_new(kernels, kernel_json(&work->kernels.items[i], args));
  for (int i = 0; i < work->arches; i++) json_object_set_new(arches, work->asked[i], json_string(work->target[i]));
  json_t *spec = args->generic ? json_null() : cli_spec_json(&args->spec.spec, args->spec.scale, args->spec.kept);
  return cli_json_print(json_pack("{s:o, s:o, s:o, s:o}", "spec", spec, "arches", arches, "out",
                                  args->out ? cli_json_text(args->out) : json_null(), "kernels", kernels));
}

static void print_text(const gen_work *work, uint32_t emit) {
  int modules = work->kernels.count * __builtin_popcount(emit);
  for (int i = 0; i < work->kernels.count; i++) {
    const flpgen_result *result = &work->kernels.items[i].result;
    if (emit & CLI_EMIT_IR) printf("%s\n", result->ir);
    if (emit & CLI_EMIT_OPT) printf("%s\n", result->opt_ir);
    if (emit & CLI_EMIT_PTX) printf("%s\n", result->ptx);
  }
  if (modules > 1)
    cli_complain("flpgen gen", "%d modules, one behind the other; --out DIR writes each to a file of its own", modules);
}

static void add_kernel_row(cli_table *table, const cli_kernel *kernel) {
  const flp_kernel_desc *desc = &kernel->result.desc;
  uint32_t most = 0, most_shared = 0;
  for (uint32_t i = 0; i < desc->entry_count; i++) {
    if (desc->entries[i].threads > most) most = desc->entries[i].threads;
    if (desc->entries[i].shared_bytes > most_shared) most_shared = desc->entries[i].shared_bytes;
  }
  cli_table_addf(
      table, "%s\t%s\t%u.%u\t%s\t%u\t%s\t%.0f ms\t%s\t%s", flp_kernel_kind_name(desc->key.kind), desc->key.arch,
      desc->ptx_major, desc->ptx_minor, cli_bytes((double)kernel->result.ptx_bytes).text, most,
      cli_bytes((double)most_shared).text, 1e3 * kernel->seconds,
      desc->tile_rows ? cli_shortly("%ux%ux%u", desc->tile_rows, desc->tile_columns, desc->tile_depth).text : "",
      desc->tile_rows ? cli_shortly("%u", desc->stages).text : "");
}

/* Whether plans of this libflp look for the kernels: their keys carry the hash of the sources they were made from. */
static int are_found(const gen_work *work) {
  for (int i = 0; i < work->kernels.count; i++)
    if (memcmp(work->kernels.items[i].result.desc.sources, flp_sources_hash(),
               sizeof work->kernels.items[i].result.desc.sources) != 0)
      return 0;
  return 1;
}

static void print_where(const gen_work *work, const gen_args *args) {
  int found = are_found(work);
  if (args->out && found) cli_print(2, "written to %s; FLP_CACHE_PATH=%s finds them", args->out, args->out);
  if (args->out && !found) cli_print(2, "written to %s", args->out);
  if (args->install) puts("stored in the cache of this user");
  if (!args->out && !args->install) cli_print(2, "nothing was written; --out DIR or --install-cache keeps the kernels");
  if ((args->out || args->install) && !found)
    cli_print(2,
              "no plan takes these kernels: it looks for those of the templates that its flpgen was built with; run, "
              "check, bench and explain take --template-dir too, and programs a flpgen built with these templates");
}

static void print_table(const gen_work *work, const gen_args *args) {
  char spec[FLP_SPEC_TEXT_BYTES];
  if (args->generic)
    printf("shape-generic kernels: %d\n", work->kernels.count);
  else
    cli_print(2, "%s", flp_plan_spec_text(&args->spec.spec, spec));
  if (!args->generic) {
    cli_table table;
    cli_table_start(&table, "kernel", "arch", "PTX", "size", "threads", "shared", "time", "tile", "stages", NULL);
    for (int i = 0; i < work->kernels.count; i++) add_kernel_row(&table, &work->kernels.items[i]);
    cli_table_finish(&table);
  }
  for (int i = 0; i < work->arches; i++)
    if (strcmp(work->asked[i], work->target[i]) != 0)
      cli_print(2, "%s: covered by the %s PTX, which runs on every newer GPU", work->asked[i], work->target[i]);
  print_where(work, args);
}

/* "-" is a folder's name to nobody; elsewhere it is standard output. */
static flp_status check_out(const gen_args *args) {
  if (!args->out || strcmp(args->out, "-") != 0) return FLP_OK;
  return flp_fail(FLP_ERROR_ARGUMENT, "--out: expected a folder, got '-'; --emit without --out prints the code");
}

static flp_status generate(gen_work *work, gen_args *args) {
  FLP_TRY(check_out(args));
  FLP_TRY(args->generic ? check_generic(args) : cli_spec_args_resolve(&args->spec));
  FLP_TRY(choose_arches(work, args));
  if (args->generic)
    FLP_TRY(cli_kernels_generic_keys(work->target[0], &work->keys, &work->key_count));
  else
    FLP_TRY(choose_keys(work, args));
  return cli_kernels_generate(work->keys, work->key_count, &args->options, "generating", &work->kernels);
}

const cli_values cli_gen_argp = {
    CLI_OPTIONS(options, cli_values_parse, values),
    .argp.doc =
        "Generates the kernels of one specialisation of a language-model head. Without --out or "
        "--install-cache nothing is written: the table shows what would be."
        "\vThe output is the same byte for byte whenever the input is.\n\n"
        "Examples:\n"
        "  flpgen gen --vocab 151936 --hidden 4096 --grad hidden,weight --install-cache\n"
        "  flpgen gen --model config.json --arch sm_80,sm_90a --emit ir,ptx -o kernels\n\n" CLI_EXIT_HELP,
    .argp.children = cli_spec_children};

int cli_gen(int argc, char **argv) {
  gen_args args = {.spec = CLI_SPEC_ARGS_INIT};
  gen_work work = {.arches = 0};
  args.spec.takes_op = 1;
  cli_parse(&cli_gen_argp, argc, argv, &args);
  args.options.want_ir = (args.emit & CLI_EMIT_IR) != 0;
  args.options.want_opt_ir = (args.emit & CLI_EMIT_OPT) != 0;
  flp_status status = generate(&work, &args);
  if (status == FLP_OK) status = write_files(&work, &args);
  if (status == FLP_OK && args.json) status = print_json(&work, &args);
  if (status == FLP_OK && !args.json) {
    if (args.emit && !args.out)
      print_text(&work, args.emit);
    else
      print_table(&work, &args);
  }
  cli_kernels_destroy(&work.kernels);
  free(work.keys);
  return cli_finish(argv[0], args.json, status);
}
