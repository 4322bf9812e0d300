/* specs.c: kernels generated for a pack, each once, and portable ones beside those for one GPU. */
#include <stdlib.h>
#include <string.h>

#include "gen/cli/kernels/kernels.h"
#include "gen/cli/pack/pack.h"
#include "gen/cli/shared/spec_args.h"

/* A kernel to be made, and whose place it takes: kernels tuned for a device stand under the key of the untuned one.
 * If specialisations share one with several tilings, the last counts, as in a cache. */
typedef struct wish {
  flp_kernel_key key;
  char name[FLP_KEY_BYTES_MAX + 1]; /* key bytes to be packed under */
  uint32_t chunk_rows, chunk_vocab; /* of dz or forward_keep for a device */
} wish;

typedef struct wishes {
  wish *list;
  size_t count, capacity, last; /* last: asked for */
} wishes;

static flp_status wish_for(wishes *w, const flp_kernel_key *key, const char *tuned_for) {
  if (w->count == w->capacity) {
    size_t capacity = w->capacity ? 2 * w->capacity : 64;
    wish *grown = realloc(w->list, capacity * sizeof *grown);
    if (!grown) return flp_fail(FLP_ERROR_MEMORY, "out of memory for %zu kernels", capacity);
    w->list = grown;
    w->capacity = capacity;
  }
  wish *added = &w->list[w->count];
  memset(added, 0, sizeof *added);
  memcpy(&added->key, key, sizeof *key);
  flp_kernel_key named = *key;
  if (tuned_for[0]) named.tune = (flp_tunables){0};
  if (!flp_kernel_key_bytes(&named, flp_sources_hash(), tuned_for, added->name, sizeof added->name))
    return flp_fail(FLP_ERROR_ARGUMENT, "--tuned-for: expected shorter text, got '%s'", tuned_for);
  for (size_t i = 0; i < w->count; i++)
    if (strcmp(w->list[i].name, added->name) == 0) {
      memcpy(&w->list[i].key, key, sizeof *key);
      w->last = i;
      return FLP_OK;
    }
  w->last = w->count++;
  return FLP_OK;
}

static int is_portable(const flp_kernel_key *key) {
  return !flp_arch_is_exact(key->arch);
}

/* ---- from specs ---- */

/* tuned: the line's tile configurations are for this architecture */
static flp_status wish_for_arch(wishes *w, const cli_pack_spec *spec, const char *arch, const flp_tuning *tuning,
                                int tuned) {
  const char *tuned_for = tuned && spec->tuned_for ? spec->tuned_for : "";
  flp_kernel_key defaults[FLP_SPEC_KERNELS_MAX], tiling[FLP_SPEC_KERNELS_MAX];
  int count = flp_kernel_keys_for(&spec->spec, arch, defaults);
  memcpy(tiling, defaults, sizeof tiling);
  if (tuned) flp_tuning_apply(tuning, tiling, count);
  for (int i = 0; i < count; i++) {
    int is_tuned = tuned_for[0] && flp_kind_has(tiling[i].kind, FLP_KIND_TUNE) &&
                   (tiling[i].kind != FLP_FORWARD(KEEP) || spec->keeps);
    /* Other devices of the architecture take the template's default. */
    if (tuned_for[0]) FLP_TRY(wish_for(w, &defaults[i], ""));
    if (is_tuned) {
      FLP_TRY(wish_for(w, &tiling[i], tuned_for));
      wish *made = &w->list[w->last];
      if (tiling[i].kind == FLP_FORWARD(KEEP)) made->chunk_rows = spec->step_rows;
      if (tiling[i].kind != FLP_KERNEL_DZ) continue;
      made->chunk_rows = spec->chunk_rows;
      made->chunk_vocab = spec->chunk_vocab;
    }
    if (!tuned_for[0]) FLP_TRY(wish_for(w, &tiling[i], ""));
  }
  return FLP_OK;
}

/* The portable architecture first, whatever else was asked for. */
static flp_status list_arches(const char *given, char target[FLP_ARCHES_MAX][16], int *count) {
  char planned[128];
  char *list = strdup(given ? given : flp_arch_list(FLP_ARCH_PLANNED, FLP_ARCH_UNPROVEN, ",", planned, sizeof planned));
  flp_status status = list ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "out of memory");
  strcpy(target[0], FLP_PORTABLE_ARCH);
  *count = 1;
  for (char *rest = list, *name; status == FLP_OK && (name = strsep(&rest, ","));) {
    if (*count == FLP_ARCHES_MAX)
      status = flp_fail(FLP_ERROR_ARGUMENT, "--arch: '%s' has too many names; at most %d are accepted", given,
                        FLP_ARCHES_MAX - 1);
    if (status == FLP_OK) status = cli_kernels_target(name, target[*count]);
    if (status == FLP_OK) *count += 1;
  }
  free(list);
  return status;
}

static flp_status wish_for_spec(wishes *w, const cli_pack_spec *spec) {
  flp_tuning tuning;
  char target[FLP_ARCHES_MAX][16];
  const char *names[FLP_ARCHES_MAX];
  int count;
  FLP_TRY(flp_tuning_parse("--tune", spec->tune, &tuning));
  FLP_TRY(list_arches(spec->arches, target, &count));
  for (int i = 0; i < count; i++) names[i] = target[i];
  int heeding = flp_kernel_heeding_arch(names, count, &spec->spec, &tuning);
  if (heeding < 0) return cli_spec_check_tiling("--tune", spec->tune, &spec->spec, names[count - 1]);
  for (int i = 0; i < count; i++) FLP_TRY(wish_for_arch(w, spec, names[i], &tuning, i == heeding));
  return FLP_OK;
}

/* ---- company for what is there ---- */

/* Adds the portable kernels that replace this one, unless flp_pack_check would find some. */
static flp_status wish_for_company(wishes *w, const cli_pack_items *items, const flp_kernel_key *given) {
  static const flp_kernel_kind products[] = {FLP_KERNEL_GRAD_HIDDEN, FLP_KERNEL_GRAD_WEIGHT};
  flp_kernel_key key = *given, wanted[4];
  memset(key.arch, 0, sizeof key.arch);
  strcpy(key.arch, FLP_PORTABLE_ARCH);
  key.tune = (flp_tunables){0};
  key.kind = flp_kind_of_any_rows(key.kind);
  int is_products = key.kind == FLP_KERNEL_PRODUCTS, is_lora = key.kind == FLP_KERNEL_LORA_PRODUCTS;
  int forms = is_products || is_lora ? 4 : 1;
  for (int i = 0; i < forms; i++) {
    if (is_products) key.kind = products[i & 1];
    if (is_lora) key.kind = FLP_KERNEL_LORA;
    key.out_dtype = i & 2 ? FLP_DTYPE_FP32 : key.dtype;
    wanted[i] = key;
    flp_kernel_key_canonicalise(&wanted[i]);
    if (cli_pack_has(items, &wanted[i])) return FLP_OK;
  }
  FLP_TRY(wish_for(w, &wanted[0], ""));
  return is_products ? wish_for(w, &wanted[1], "") : FLP_OK;
}

/* ---- making ---- */

/* The place of a wish's kernel among keys, each there once: what stays as it is untuned is tuned and untuned at a
 * time. */
static size_t place_of(const flp_kernel_key *keys, size_t count, const flp_kernel_key *key) {
  for (size_t i = 0; i < count; i++)
    if (memcmp(&keys[i], key, sizeof *key) == 0) return i;
  return count;
}

static flp_status make(const wishes *w, cli_pack_items *items) {
  flp_kernel_key *keys = calloc(w->count + 1, sizeof *keys);
  size_t count = 0;
  cli_kernels kernels = {.count = 0};
  if (!keys) return flp_fail(FLP_ERROR_MEMORY, "out of memory for %zu kernels", w->count);
  for (size_t i = 0; i < w->count; i++)
    if (place_of(keys, count, &w->list[i].key) == count) memcpy(&keys[count++], &w->list[i].key, sizeof *keys);
  flp_status status = cli_kernels_generate(keys, (int)count, NULL, "generating", &kernels);
  for (size_t i = 0; i < w->count && status == FLP_OK; i++) {
    const flpgen_result *result = &kernels.items[place_of(keys, count, &w->list[i].key)].result;
    flp_kernel_desc desc = result->desc;
    desc.chunk_rows = w->list[i].chunk_rows;
    desc.chunk_vocab = w->list[i].chunk_vocab;
    status = cli_pack_add(items, w->list[i].name, &desc, result->ptx, result->ptx_bytes);
  }
  cli_kernels_destroy(&kernels);
  free(keys);
  return status;
}

flp_status cli_pack_generate(const cli_pack_spec *specs, size_t count, cli_pack_items *items) {
  wishes w = {.list = NULL};
  flp_status status = FLP_OK;
  for (size_t i = 0; i < count && status == FLP_OK; i++) status = wish_for_spec(&w, &specs[i]);
  if (status == FLP_OK && w.count) status = make(&w, items);
  w.count = 0;
  for (size_t i = 0; i < items->count && status == FLP_OK; i++)
    if (!is_portable(&items->items[i].desc.key)) status = wish_for_company(&w, items, &items->items[i].desc.key);
  if (status == FLP_OK && w.count) status = make(&w, items);
  free(w.list);
  return status;
}
