/* show.c: `flpgen pack verify` and `flpgen pack inspect`: whether a pack is sound and whose, and what it holds. */
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/pack/pack.h"
#include "gen/cli/shared/json_out.h"
#include "gen/cli/shared/option_args.h"
#include "gen/cli/shared/table.h"
#include "gen/cli/shared/text.h"

enum { KEY_TRUST = CLI_KEY_FIRST };
enum { INDENT = 16 }; /* of what is said of a pack, beside labels */

typedef struct show_args {
  const char *path;
  cli_pack_trust trust;
  int json;
} show_args;

static const struct argp_option verify_options[] = {
    {"trust", KEY_TRUST, "KEY", 0,
     "accept only packs signed with this public key: 64 hex digits, minisign's line, or a file with one of them or "
     "with PEM; may be repeated; default FLP_PACK_KEYS, and without that any pack that is sound",
     0},
    {"json", CLI_SWITCH(show_args, json), NULL, 0, "print one JSON document", 0},
    {0}};

static const cli_value values[] = {CLI_PACK_FILE(show_args, path),
                                   {KEY_TRUST, CLI_IS_OWN, CLI_PLACE(show_args, trust), .parse = cli_pack_trust_add},
                                   {0}};

/* ---- verify ---- */

static void signer_of(const flp_pack *pack, char out[CLI_KEY_TEXT]) {
  sodium_bin2hex(out, CLI_KEY_TEXT, pack->signer, sizeof pack->signer);
}

static flp_status print_verified(const cli_pack_file *file, const show_args *args) {
  const flp_pack *pack = file->pack;
  int is_trusted = args->trust.keys[0] != 0; /* or verifying would have failed */
  char signer[CLI_KEY_TEXT], made[FLP_STORE_MADE_BYTES];
  const char *other = cli_pack_file_other(file, made);
  signer_of(pack, signer);
  if (args->json)
    return cli_json_print(json_pack("{s:o, s:b, s:o, s:i, s:i, s:o, s:b, s:o}", "file", cli_json_text(file->path),
                                    "sound", 1, "bytes", cli_json_count(pack->file_bytes), "entries",
                                    (int)pack->entry_count, "blobs", (int)pack->blob_count, "signed_by",
                                    pack->is_signed ? json_string(signer) : json_null(), "trusted", is_trusted,
                                    "of_no_use", other ? cli_json_text(other) : json_null()));
  cli_print(2, "%s: sound: %u kernels, %u blobs, %s", file->path, pack->entry_count, pack->blob_count,
            cli_bytes((double)pack->file_bytes).text);
  if (!pack->is_signed)
    puts("not signed");
  else
    cli_print(2, "signed with %s, %s", signer,
              is_trusted ? "a trusted key" : "and compared with no trusted key; --trust KEY names one");
  if (other) cli_print(2, "of no use here: %s", other);
  return FLP_OK;
}

static flp_status verify(void *input) {
  show_args *args = input;
  cli_pack_file file;
  FLP_TRY(cli_pack_trust_finish(&args->trust));
  FLP_TRY(cli_pack_file_open(args->path, &file));
  flp_status status = cli_pack_file_verify(&file, args->trust.keys);
  if (status == FLP_OK) status = print_verified(&file, args);
  cli_pack_file_close(&file);
  return status;
}

const cli_values cli_pack_verify_argp = {
    CLI_OPTIONS(verify_options, cli_values_parse, values),
    .argp.args_doc = "FILE",
    CLI_RUN(show_args, verify),
    .argp.doc =
        "Verifies a pack: every hash, descriptor, kernel symbol and size, the manifest and the signature."
        "\vNo GPU is needed and nothing is written. A signature that is there must be right whoever made it; --trust "
        "asks whose it is.\n\n"
        "Examples:\n"
        "  flpgen pack verify h200.flpp\n"
        "  flpgen pack verify h200.flpp --trust release.pub\n\n"
        "A pack that is sound but not signed by a trusted key is exit status 1, one that is corrupt "
        "4.\n\n" CLI_EXIT_HELP};

/* ---- inspect ---- */

/* "a, b" of an array of texts, "-" if it is empty. */
static const char *join(const json_t *array, char *out, size_t capacity) {
  size_t i;
  json_t *text;
  out[0] = 0;
  json_array_foreach(array, i, text) cli_append(out, capacity, ", ", "%s", json_string_value(text));
  return out[0] ? out : "-";
}

static void print_head(const cli_pack_file *file) {
  static const char *const fields[][2] = {{"arches", "architectures"},
                                          {"dtypes", "dtypes"},
                                          {"shapes", "vocab x hidden"},
                                          {"tuned_for", "tuned for"},
                                          {"cubins", "machine code"}};
  const flp_pack *pack = file->pack;
  char signer[CLI_KEY_TEXT], text[1024];
  const char *name = json_string_value(json_object_get(file->manifest, "name"));
  const char *version = json_string_value(json_object_get(file->manifest, "flp"));
  signer_of(pack, signer);
  if (name && name[0]) cli_print_field(INDENT, "name", "%s", name);
  cli_print_field(INDENT, "size", "%s, %u kernels in %u blobs", cli_bytes((double)pack->file_bytes).text,
                  pack->entry_count, pack->blob_count);
  cli_print_field(INDENT, "signed with", "%s", pack->is_signed ? signer : "-");
  cli_print_field(INDENT, "made by", "flp %s", version ? version : "of a version that is not told");
  cli_print_field(INDENT, "sources", "%.16s", json_string_value(json_object_get(file->manifest, "sources")));
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
    cli_print_field(INDENT, fields[i][1], "%s", join(json_object_get(file->manifest, fields[i][0]), text, sizeof text));
}

static void add_row(cli_table *table, const flp_pack *pack, const flp_pack_entry *entry) {
  flp_kernel_desc desc;
  char key[FLP_KEY_BYTES_MAX + 1] = "", shape[CLI_PACK_SHAPE_BYTES], tiling[FLP_TUNABLES_TEXT_BYTES];
  memcpy(key, entry->key, entry->key_bytes);
  if (flp_kernel_desc_read(entry->desc, entry->desc_bytes, &desc) != FLP_OK) return; /* opening has read them all */
  const flp_pack_blob *blob = &pack->blobs[entry->images[0].blob];
  const char *tuned = strstr(key, " tuned=");
  cli_pack_shape(&desc.key, shape);
  flp_tunables_text(&desc.key.tune, tiling);
  cli_table_addf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%u", flp_kernel_kind_name(desc.key.kind), desc.key.arch,
                 flp_dtype_name(desc.key.dtype), shape, tiling, tuned && tuned[7] ? tuned + 7 : "-",
                 cli_bytes((double)blob->stored_bytes).text, cli_bytes((double)blob->unpacked_bytes).text,
                 entry->image_count - 1);
}

static flp_status inspect(void *input) {
  const show_args *args = input;
  cli_pack_file file;
  FLP_TRY(cli_pack_file_open(args->path, &file));
  flp_status status = FLP_OK;
  if (args->json) {
    status = cli_json_print(cli_pack_file_json(&file));
  } else {
    cli_table table;
    print_head(&file);
    cli_table_start(&table, "kernel", "arch", "dtype", "vocab x hidden", "tiling", "tuned for", "packed", "PTX",
                    "cubins", NULL);
    cli_table_may_move(&table, 5, "tuned for ");
    cli_table_may_move(&table, 4, "tiling ");
    for (uint32_t i = 0; i < file.pack->entry_count; i++) add_row(&table, file.pack, &file.pack->entries[i]);
    cli_table_finish(&table);
  }
  cli_pack_file_close(&file);
  return status;
}

const cli_values cli_pack_inspect_argp = {
    CLI_OPTIONS(verify_options + 1, cli_values_parse, values),
    .argp.args_doc = "FILE",
    CLI_RUN(show_args, inspect),
    .argp.doc =
        "Shows what a pack holds: its manifest, its signer and its kernels."
        "\vThe table of the pack is checked on the way; `flpgen pack verify` reads the code as well.\n\n"
        "Examples:\n"
        "  flpgen pack inspect h200.flpp\n"
        "  flpgen pack inspect h200.flpp --json\n\n" CLI_EXIT_HELP};
