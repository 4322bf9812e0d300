/* pack.h: what the files of `flpgen pack` share. The format is that of runtime/pack/pack.h; here it is written. */
#ifndef FLPGEN_CLI_PACK_H
#define FLPGEN_CLI_PACK_H

#include <jansson.h>

#include "gen/cli/keys/keys.h"
#include "gen/cli/shared/common.h"
#include "runtime/pack/pack.h"
#include "runtime/store/store.h"

/* ---- items.c: what is to be packed ---- */

typedef struct cli_pack_cubin {
  uint32_t capability, driver;
  uint8_t *code; /* owned */
  size_t bytes;
} cli_pack_cubin;

typedef struct cli_pack_item {
  char key[FLP_KEY_BYTES_MAX + 1];
  flp_kernel_desc desc;
  char *ptx; /* NUL-terminated, owned */
  size_t ptx_bytes;
  cli_pack_cubin *cubins; /* owned */
  uint32_t cubin_count;
} cli_pack_item;

typedef struct cli_pack_items {
  cli_pack_item *items;
  size_t count, capacity;
} cli_pack_items;

/* Adds a copy of a kernel. The same kernel twice is one; error: ARGUMENT if its code differs; MEMORY */
flp_status cli_pack_add(cli_pack_items *items, const char *key, const flp_kernel_desc *desc, const char *ptx,
                        size_t ptx_bytes);
/* Descriptors are equal if they are written as the same bytes. */
int cli_pack_is_same(const flp_kernel_desc *a, const flp_kernel_desc *b);
/* Adds a copy of a cubin. The same twice is one; error: ARGUMENT if its code differs; MEMORY */
flp_status cli_pack_add_cubin(cli_pack_item *item, const cli_pack_cubin *cubin);
/* An item's machine code, or NULL. */
const cli_pack_cubin *cli_pack_get_cubin(const cli_pack_item *item, uint32_t capability, uint32_t driver);
/* The item of a key, or NULL. */
cli_pack_item *cli_pack_get(const cli_pack_items *items, const char *key);
/* 1 if a kernel is among the items as any device takes it: tuned for none. */
int cli_pack_has(const cli_pack_items *items, const flp_kernel_key *key);
void cli_pack_items_clear(cli_pack_items *items);

/* Adds the entries of a cache directory or a pack that are this generator's. *left_out counts those of others.
 * error: IO, CORRUPT naming the file */
flp_status cli_pack_add_from(cli_pack_items *items, const char *path, uint64_t *left_out);

/* A specialisation whose kernels are to be packed. */
typedef struct cli_pack_spec {
  flp_spec spec;                         /* resolved */
  const char *tune, *tuned_for, *arches; /* borrowed, or NULL */
  uint32_t chunk_rows, chunk_vocab;      /* of the descriptor of dz */
  uint32_t step_rows;                    /* of that of forward_keep */
  int keeps;                             /* what tune found with forward_keep */
} cli_pack_spec;

/* ---- variants.c ---- */

/* What callers ask of a head: scores, the gradient of the hidden states alone and all gradients that the spec has, each
 * without entropy and with (its gradient too where there is any), in bf16 with the kernels of save and direction modes;
 * of no loss. They have the spec's tilings. The spec itself need not be among them. */
enum { CLI_PACK_VARIANTS = 6 };
void cli_pack_variants(const cli_pack_spec *given, cli_pack_spec out[CLI_PACK_VARIANTS]);

/* ---- specs.c: kernels made for a pack ---- */

/* Generates every kernel of the specs, and the portable ones that those in items lack, and adds them.
 * tuned_for: kernels with the tilings of tune serve a device in place of the defaults, which are packed beside them */
flp_status cli_pack_generate(const cli_pack_spec *specs, size_t count, cli_pack_items *items);

/* ---- cubin.c ---- */

/* Adds cubins made by ptxas for a list of capabilities, e.g. "sm_90,sm_100", to every item that plans take there: not
 * to portable ones beside kernels for that very capability, which come first; nor to what has one.
 * error: UNAVAILABLE without ptxas; ARGUMENT; COMPILE with the message of ptxas */
flp_status cli_pack_make_cubins(cli_pack_items *items, const char *capabilities);

/* ---- write.c ---- */

/* Makes the bytes of a pack: the same for the same items in any order. *bytes is malloc'ed.
 * manifest: its text; seed: of the Ed25519 key to sign with, 32 bytes, or NULL
 * error: ARGUMENT if nothing is to be packed or a bound is passed; MEMORY */
flp_status cli_pack_encode(const cli_pack_items *items, const char *manifest, const uint8_t *seed, uint8_t **bytes,
                           size_t *length);

/* ---- manifest.c ---- */

/* "151936 x 4096", "any x 4096", "any"; of scores that exist already "151936"; "loss 1a2b3c4d", how its digest
 * begins. */
enum { CLI_PACK_SHAPE_BYTES = 64 };
void cli_pack_shape(const flp_kernel_key *key, char out[CLI_PACK_SHAPE_BYTES]);

/* The manifest's text, malloc'ed; without times, so that it depends on its arguments alone. name may be NULL.
 * error: MEMORY */
flp_status cli_pack_manifest(const cli_pack_items *items, const char *name, char **out);
/* Reads a pack's manifest and compares it with the pack. *out is to be released. error: CORRUPT */
flp_status cli_pack_read_manifest(const flp_pack *pack, json_t **out);

/* ---- open.c: an open pack, as verify, inspect and install use it ---- */

typedef struct cli_pack_file {
  const char *path; /* borrowed */
  int fd;
  flp_pack *pack;
  json_t *manifest;
} cli_pack_file;

/* Opens a pack and checks its table and manifest. error: IO, CORRUPT, MEMORY */
flp_status cli_pack_file_open(const char *path, cli_pack_file *out);
void cli_pack_file_close(cli_pack_file *file);
/* Who made a pack of other sources, whose kernels no plan of this library takes, in out; NULL of a pack of its own. */
const char *cli_pack_file_other(const cli_pack_file *file, char out[FLP_STORE_MADE_BYTES]);
/* Reads every byte, behind a progress bar, and asks that one of the keys has signed it. keys: as flp_pack_trusts */
flp_status cli_pack_file_verify(const cli_pack_file *file, const char *keys);
/* A pack as JSON: size, signer, counts, manifest, entries. */
json_t *cli_pack_file_json(const cli_pack_file *file);

/* ---- trust.c ---- */

/* The trusted keys of a verb: those of --trust (comma-separated, grown by cli_pack_trust_add), else FLP_PACK_KEYS. */
typedef struct cli_pack_trust {
  char *keys; /* owned, or NULL */
} cli_pack_trust;
flp_status cli_pack_trust_add(const char *text, void *trust);
flp_status cli_pack_trust_finish(cli_pack_trust *trust);

/* The argument of an action, a row of its options. */
#define CLI_PACK_FILE(type, field) \
  { ARGP_KEY_ARG, CLI_IS_ARGUMENT, CLI_PLACE(type, field), .unsaid = "the pack's file is missing" }

/* ---- the actions; argv[0] is "flpgen pack ACTION" ---- */

int cli_pack_build(int argc, char **argv);
extern const cli_values cli_pack_build_argp, cli_pack_verify_argp, cli_pack_inspect_argp, cli_pack_install_argp;

#endif
