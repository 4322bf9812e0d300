/* install.c: `flpgen pack install`, the kernels of a pack as entries of a cache.
 *
 * Invariant: nothing is written before all of the pack was verified; each entry is put in place in one step, so the
 * cache is valid whenever this ends, and running it again completes it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/pack/pack.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/progress.h"
#include "gen/cli/shared/text.h"

enum { KEY_TRUST = CLI_KEY_FIRST };

typedef struct install_args {
  const char *path, *directory;
  cli_pack_trust trust;
  int json;
} install_args;

typedef struct outcome {
  uint32_t written, there; /* entries; there: equal ones that the cache has already */
  uint32_t cubins;         /* that stay in the pack */
} outcome;

static const struct argp_option options[] = {
    {"dir", CLI_TEXT(install_args, directory), "DIR", 0,
     "the cache to install into, default FLP_CACHE_DIR: that of this user", 0},
    {"trust", KEY_TRUST, "KEY", 0,
     "install only what is signed with this public key: 64 hex digits, minisign's line, or a file with one of them or "
     "with PEM; may be repeated; default FLP_PACK_KEYS",
     0},
    {"json", CLI_SWITCH(install_args, json), NULL, 0, "print one JSON document", 0},
    {0}};

static const cli_value values[] = {CLI_PACK_FILE(install_args, path),
                                   {KEY_TRUST, CLI_IS_OWN, CLI_PLACE(install_args, trust), .parse = cli_pack_trust_add},
                                   {0}};

/* 1 if the cache has this very entry already. */
static int is_there(flp_store *store, const flp_pack_entry *entry, const flp_kernel_image *image) {
  flp_kernel_image got;
  int found = 0;
  if (flp_store_get(store, entry->key, entry->key_bytes, &got, &found) != FLP_OK || !found) return 0;
  int equal = cli_pack_is_same(&got.desc, &image->desc) && got.ptx_bytes == image->ptx_bytes &&
              memcmp(got.ptx, image->ptx, got.ptx_bytes) == 0;
  flp_kernel_image_clear(&got);
  return equal;
}

static flp_status install_entry(flp_store *store, const cli_pack_file *file, const flp_pack_entry *entry,
                                outcome *out) {
  flp_kernel_image image;
  FLP_TRY(flp_pack_load(file->pack, file->fd, entry, &image));
  flp_status status = FLP_OK;
  out->cubins += entry->image_count - 1;
  if (is_there(store, entry, &image)) {
    out->there++;
  } else {
    status = flp_store_put(store, entry->key, entry->key_bytes, &image);
    out->written += status == FLP_OK;
  }
  flp_kernel_image_clear(&image);
  return status;
}

/* shared: a directory that is not the cache of this user is made as the umask says */
static flp_status install_all(const cli_pack_file *file, const char *directory, int shared, outcome *out) {
  flp_store *store = NULL;
  cli_progress progress;
  FLP_TRY(flp_store_open(directory, NULL, &store)); /* looks only: what is not there is made when an entry is put */
  cli_progress_start(&progress, "installing", 0);
  flp_status status = shared ? cli_make_directory(directory) : FLP_OK;
  uint32_t count = file->pack->entry_count;
  for (uint32_t i = 0; i < count && status == FLP_OK; i++) {
    status = install_entry(store, file, &file->pack->entries[i], out);
    cli_progress_update(&progress, (int64_t)i + 1, (int64_t)count);
  }
  cli_progress_end(&progress);
  flp_store_close(store);
  if (status == FLP_OK) return FLP_OK;
  return flp_fail(status, "%u of %u kernels are installed, the cache is valid: %s", out->written + out->there, count,
                  flp_error_detail());
}

/* other: who made a pack that is of no use here, or NULL */
static flp_status print(const install_args *args, const char *directory, const outcome *out, const char *other) {
  if (args->json)
    return cli_json_print(json_pack("{s:o, s:o, s:i, s:i, s:i, s:o}", "file", cli_json_text(args->path), "directory",
                                    cli_json_text(directory), "written", (int)out->written, "there", (int)out->there,
                                    "cubins_left", (int)out->cubins, "of_no_use",
                                    other ? cli_json_text(other) : json_null()));
  cli_print(2, "%u kernels installed in %s, %u were there already", out->written, directory, out->there);
  if (out->cubins)
    cli_print(2, "%u pieces of machine code stay in the pack; FLP_CACHE_PATH=%s uses them", out->cubins, args->path);
  if (other) cli_print(2, "of no use here: %s", other);
  return FLP_OK;
}

static flp_status install(void *input) {
  install_args *args = input;
  cli_pack_file file;
  outcome out = {0};
  char made[FLP_STORE_MADE_BYTES];
  flp_setting cache;
  flp_setting_get(FLP_SETTING_CACHE_DIR, &cache);
  const char *directory = args->directory ? args->directory : cache.value;
  if (!directory[0]) return flp_fail(FLP_ERROR_ARGUMENT, "no cache directory is known; --dir DIR gives one");
  FLP_TRY(cli_pack_trust_finish(&args->trust));
  FLP_TRY(cli_pack_file_open(args->path, &file));
  flp_status status = cli_pack_file_verify(&file, args->trust.keys);
  if (status == FLP_OK) status = install_all(&file, directory, args->directory != NULL, &out);
  if (status == FLP_OK) status = print(args, directory, &out, cli_pack_file_other(&file, made));
  cli_pack_file_close(&file);
  return status;
}

const cli_values cli_pack_install_argp = {
    CLI_OPTIONS(options, cli_values_parse, values),
    .argp.args_doc = "FILE",
    CLI_RUN(install_args, install),
    .argp.doc =
        "Installs the kernels of a pack into a cache."
        "\vThe whole pack is verified first, and one that is refused leaves the cache as it was. Each kernel is put in "
        "place in one step: an installation that is interrupted or meets a full disk leaves a valid cache, and running "
        "it again completes it. Without installing, FLP_CACHE_PATH=FILE reads a pack in place.\n\n"
        "Examples:\n"
        "  flpgen pack install h200.flpp\n"
        "  flpgen pack install h200.flpp --trust release.pub --dir /srv/flp\n\n" CLI_EXIT_HELP};
