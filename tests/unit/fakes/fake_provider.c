/* fake_provider.c: a scripted stand-in for libflpgen: makes descriptors that are sound and PTX that only names its
 * entries, or fails as scripted. Tests build the images that they put into caches with it, too.
 *
 * fake_provider_script takes settings divided by ';': version=1 served provider version; fail=10 a flp_status for every
 * kernel, with error=text; shared=98304 of the tiled kernels; threads=256; missing=fill an entry left out;
 * kind=2 a kind that the descriptor claims; portable=dz a kind made for sm_90a as for sm_80; ptx=text added to the
 * PTX. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/kernel/kernel.h"
#include "runtime/kernel/provider.h"

/* A stand-in's symbols must not be mistaken for the library's. */
void fake_provider_script(const char *script);
void fake_provider_set_sources(const uint8_t sources[32]);
int fake_provider_calls(void);

#define USUAL \
  { .version = FLP_PROVIDER_VERSION, .threads = 256, .shared = 98304 }
static struct script {
  int version, fail, threads, shared, kind;
  char error[256], missing[32], portable[32], ptx[64];
} now = USUAL;
static uint8_t sources_now[32];
static int calls;

void fake_provider_set_sources(const uint8_t sources[32]) {
  memcpy(sources_now, sources, sizeof sources_now);
}

int fake_provider_calls(void) {
  return __atomic_load_n(&calls, __ATOMIC_SEQ_CST);
}

void fake_provider_script(const char *script) {
  now = (struct script)USUAL;
  char *copy = strdup(script), *rest = copy;
  for (char *setting; (setting = strtok_r(rest, ";", &rest));) {
    char *value = strchr(setting, '=');
    if (!value) continue;
    *value++ = 0;
    if (strcmp(setting, "version") == 0) now.version = atoi(value);
    if (strcmp(setting, "fail") == 0) now.fail = atoi(value);
    if (strcmp(setting, "threads") == 0) now.threads = atoi(value);
    if (strcmp(setting, "shared") == 0) now.shared = atoi(value);
    if (strcmp(setting, "kind") == 0) now.kind = atoi(value);
    if (strcmp(setting, "error") == 0) snprintf(now.error, sizeof now.error, "%s", value);
    if (strcmp(setting, "missing") == 0) snprintf(now.missing, sizeof now.missing, "%s", value);
    if (strcmp(setting, "portable") == 0) snprintf(now.portable, sizeof now.portable, "%s", value);
    if (strcmp(setting, "ptx") == 0) snprintf(now.ptx, sizeof now.ptx, "%s", value);
  }
  free(copy);
}

static void add_entry(flp_kernel_desc *desc, const char *name, int shared) {
  if (strcmp(name, now.missing) == 0) return;
  flp_kernel_entry *entry = &desc->entries[desc->entry_count++];
  snprintf(entry->name, sizeof entry->name, "%s", name);
  char signature[FLP_ABI_PARAMS_MAX + 1];
  snprintf(entry->signature, sizeof entry->signature, "%s", flp_abi_signature(flp_abi_find(name), signature));
  entry->threads = (uint32_t)now.threads;
  entry->shared_bytes = (uint32_t)shared;
}

/* All that a kind of several entries has. */
static void add_entries(flp_kernel_desc *desc) {
  const flp_kind *kind = flp_kind_of(desc->key.kind);
  for (int i = 0; i < kind->entry_count; i++) add_entry(desc, flp_entry_name(kind->entries[i].plain), 0);
  if (!flp_kind_has(desc->key.kind, FLP_KIND_TILED)) return;
  desc->tile_rows = 128;
  desc->tile_columns = 64;
}

static void take_tunables(flp_kernel_desc *desc) {
  const flp_tunables *tune = &desc->key.tune;
  if (tune->rows) desc->tile_rows = tune->rows;
  if (tune->columns) desc->tile_columns = tune->columns;
  if (tune->stages) desc->stages = tune->stages;
  if (tune->raster) desc->raster = tune->raster;
}

/* A kernel whose operands come through tensor maps. */
static void fill_mapped(flp_kernel_desc *desc) {
  char entry[64];
  snprintf(entry, sizeof entry, "%s_map", flp_kernel_kind_name(desc->key.kind));
  add_entry(desc, entry, now.shared);
  desc->tile_rows = flp_kind_is_optional(desc->key.kind) ? 64 : 128; /* the form for few rows */
  int wide = desc->key.dtype == FLP_DTYPE_FP32;
  desc->tile_columns = wide ? 128 : desc->key.kind == FLP_KERNEL_PRODUCTS ? 256 : 192;
  desc->tile_depth = wide ? 32 : 64;
  desc->stages = 5;
  desc->unit_columns = flp_kind_has(desc->key.kind, FLP_KIND_UNITS) ? FLP_LEAF_COLUMNS : 0;
  desc->raster = 8;
  desc->cluster = 2;
  take_tunables(desc);
  if (desc->key.tune.cluster) desc->cluster = desc->key.tune.cluster;
}

static void fill_desc(const flp_kernel_key *key, flp_kernel_desc *desc) {
  memset(desc, 0, sizeof *desc);
  desc->key = *key;
  if (now.kind) desc->key.kind = (flp_kernel_kind)now.kind;
  flp_kernel_key_canonicalise(&desc->key);
  memcpy(desc->sources, sources_now, sizeof sources_now);
  desc->ptx_major = 7;
  if (flp_kind_of(desc->key.kind)->entry_count > 1) {
    add_entries(desc);
    if (flp_kind_has(desc->key.kind, FLP_KIND_TILED)) desc->tile_rows = 128, desc->tile_columns = 256;
    return;
  }
  int is_portable = strcmp(now.portable, flp_kernel_kind_name(desc->key.kind)) == 0;
  if (flp_arch_has(key->arch, FLP_ARCH_CLUSTERS) && !is_portable) {
    fill_mapped(desc);
    return;
  }
  add_entry(desc, flp_kernel_kind_name(desc->key.kind), now.shared);
  desc->tile_rows = 128;
  desc->tile_columns = 256;
  desc->tile_depth = 32;
  desc->stages = 4;
  desc->unit_columns = flp_kind_has(desc->key.kind, FLP_KIND_UNITS) ? 3072 : 0;
  desc->raster = 16;
  take_tunables(desc);
}

static flp_status generate(const flp_kernel_key *key, const uint8_t *loss, size_t loss_bytes, flp_kernel_desc *desc,
                           char **ptx, size_t *ptx_bytes, char *error, size_t error_capacity) {
  (void)loss, (void)loss_bytes;
  __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
  *ptx = NULL;
  if (now.fail) {
    snprintf(error, error_capacity, "%s", now.error);
    return (flp_status)now.fail;
  }
  fill_desc(key, desc);
  char text[4096];
  char bytes[FLP_KEY_BYTES_MAX];
  flp_kernel_key_bytes(key, sources_now, "", bytes, sizeof bytes);
  int used = snprintf(text, sizeof text, "// %s%s\n", bytes, now.ptx);
  for (uint32_t i = 0; i < desc->entry_count; i++)
    used += snprintf(text + used, sizeof text - (size_t)used, ".entry flp_%s\n", desc->entries[i].name);
  *ptx = strdup(text);
  *ptx_bytes = (size_t)used;
  return *ptx ? FLP_OK : FLP_ERROR_MEMORY;
}

static void free_ptx(char *ptx) {
  free(ptx);
}

static const uint8_t *sources_hash(void) {
  return sources_now;
}

const flp_provider *flp_provider_get(uint32_t version) {
  static flp_provider provider = {FLP_PROVIDER_VERSION, generate, free_ptx, sources_hash};
  return version == (uint32_t)now.version ? &provider : NULL;
}
