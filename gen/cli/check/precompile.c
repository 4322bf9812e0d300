/* precompile.c: the kernels of cases to come, made by other threads while cases before them run.
 *
 * A kernel is handed to the cache no sooner than a plan on the jit rung asks for it, so that the rungs of a cache find
 * what they would find if nothing were precompiled. What cannot be precompiled is left to that plan, which gives the
 * reason. */
#include <stdlib.h>
#include <string.h>

#include "gen/cli/check/run.h"
#include "gen/cli/kernels/compile_pool.h"
#include "runtime/api/validate.h"
#include "runtime/base/status.h"
#include "runtime/load/jit.h"
#include "runtime/plan/plan.h"

enum { LOCK_TIMEOUT_MS = 30000 }; /* for the lock of a key, as of the jit rung */

/* One kernel. image and given belong to the pool until its task is done. */
typedef struct job {
  flp_kernel_key key;
  flp_rung rung;       /* JIT or GENERIC */
  const uint8_t *loss; /* borrowed; of a kernel of a loss */
  size_t loss_bytes;
  flp_kernel_image image; /* without PTX: not made */
  int given;              /* to the cache, or taken from there */
} job;

struct check_precompile {
  cli_compilers compilers;
  cli_pool pool;
  const flp_driver *driver;
  flp_device device;
  const char *arch, *tuned_arch; /* of the wish */
  const flp_provider *provider; /* NULL: nothing for the jit rung */
  flp_store *cache, *generic;   /* generic: NULL if not for that rung */
  job *jobs;
  int count, capacity;
};

/* ---- one kernel ---- */

static int bytes_of(const check_precompile *precompile, const job *j, char bytes[FLP_KEY_BYTES_MAX]) {
  const uint8_t *sources = j->rung == FLP_RUNG_JIT ? precompile->provider->sources_hash() : flp_sources_hash();
  return flp_kernel_key_bytes(&j->key, sources, "", bytes, FLP_KEY_BYTES_MAX) > 0;
}

static void make(void *argument, int i) {
  check_precompile *precompile = argument;
  job *j = &precompile->jobs[i];
  flp_store *store = j->rung == FLP_RUNG_JIT ? precompile->cache : precompile->generic;
  char bytes[FLP_KEY_BYTES_MAX];
  if (!bytes_of(precompile, j, bytes) || flp_store_get(store, bytes, strlen(bytes), &j->image, &j->given) != FLP_OK)
    return;
  if (!j->given && j->rung == FLP_RUNG_JIT)
    flp_jit_generate(precompile->provider, &j->key, j->loss, j->loss_bytes, &j->image);
  if (j->image.ptx) cli_precompile(precompile->driver, store, &j->image);
  if (j->given) flp_kernel_image_clear(&j->image);
}

static flp_status take_image(void *context, flp_kernel_image *out) {
  job *j = context;
  *out = j->image;
  memset(&j->image, 0, sizeof j->image);
  return FLP_OK;
}

/* Returns 0 if the kernel was not made: those behind it would not have been asked for. */
static int give(check_precompile *precompile, job *j) {
  char bytes[FLP_KEY_BYTES_MAX];
  flp_kernel_image image = {.ptx = NULL};
  int made;
  if (j->given) return 1;
  if (!j->image.ptx || !bytes_of(precompile, j, bytes)) return 0;
  j->given = 1;
  flp_store_get_or_make(precompile->cache, bytes, strlen(bytes), LOCK_TIMEOUT_MS, take_image, j, &image, &made);
  flp_kernel_image_clear(&image);
  return 1;
}

/* ---- the list ---- */

int check_precompile_tunes(const char *arch, const flp_spec *spec) {
  return arch && flp_kernel_arch_tunes(arch, spec, (flp_kernel_kind)0) &&
         strcmp(flp_arch_of_kind(arch, FLP_KERNEL_FORWARD, spec->alignment, spec->dtype), arch) == 0;
}

const char *check_precompile_arch(const char *asked, const flp_spec *spec) {
  return asked && flp_kernel_arch_serves(asked, spec) ? asked : NULL;
}

/* The kernels of a spec on a rung, as a plan asks for them. Returns their number. */
static int keys_of(const check_precompile *precompile, const flp_spec *spec, const flp_tuning *tuning, flp_rung rung,
                   flp_kernel_key keys[FLP_SPEC_KERNELS_MAX]) {
  const char *arches[FLP_LADDER_ARCHES_MAX];
  int clusters = flp_driver_has_clusters(precompile->driver);
  const char *asked = check_precompile_arch(precompile->arch, spec);
  int driver = precompile->driver->version;
  if (!flp_ladder_arches_here(&precompile->device, driver, spec, asked, clusters, NULL, arches)) return 0;
  int count = flp_kernel_keys_for(spec, arches[0], keys);
  if (check_precompile_tunes(precompile->tuned_arch, spec)) flp_tuning_apply(tuning, keys, count);
  for (int i = 0; i < count && rung == FLP_RUNG_GENERIC; i++) keys[i] = flp_kernel_key_generic(&keys[i], keys[i].arch);
  return count;
}

static int find(const check_precompile *precompile, const flp_kernel_key *key, flp_rung rung) {
  for (int i = 0; i < precompile->count; i++)
    if (precompile->jobs[i].rung == rung && memcmp(&precompile->jobs[i].key, key, sizeof *key) == 0) return i;
  return -1;
}

static flp_status add(check_precompile *precompile, const flp_spec *spec, const flp_kernel_key *key, flp_rung rung) {
  if (find(precompile, key, rung) >= 0) return FLP_OK;
  if (precompile->count == precompile->capacity) {
    int capacity = precompile->capacity ? 2 * precompile->capacity : 64;
    job *grown = realloc(precompile->jobs, (size_t)capacity * sizeof *grown);
    if (!grown) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the list of kernels");
    precompile->jobs = grown;
    precompile->capacity = capacity;
  }
  job *j = &precompile->jobs[precompile->count++];
  *j = (job){.key = *key, .rung = rung};
  if (!flp_kind_has(key->kind, FLP_KIND_LOSS)) return FLP_OK;
  j->loss = spec->loss;
  j->loss_bytes = spec->loss_bytes;
  return FLP_OK;
}

static flp_status add_rung(check_precompile *precompile, const flp_spec *spec, const flp_tuning *tuning,
                           flp_rung rung) {
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  int count = keys_of(precompile, spec, tuning, rung, keys);
  for (int i = 0; i < count; i++) FLP_TRY(add(precompile, spec, &keys[i], rung));
  return FLP_OK;
}

/* Cases that are not accepted are reported when they run. */
static flp_status add_cases(check_precompile *precompile, const check_list *list, const flp_tuning *tuning) {
  for (int i = 0; i < list->count; i++) {
    flp_spec own = list->cases[i].spec, spec;
    own.vocab = check_shard_vocab(&list->cases[i]);
    if (flp_spec_resolve(&own, &spec) != FLP_OK) continue;
    if (precompile->provider) FLP_TRY(add_rung(precompile, &spec, tuning, FLP_RUNG_JIT));
    if (precompile->generic) FLP_TRY(add_rung(precompile, &spec, tuning, FLP_RUNG_GENERIC));
  }
  return FLP_OK;
}

/* ---- from start to end ---- */

/* writable: FLP_SETTING_COUNT for none. */
static flp_status open_store(const check_precompile *precompile, flp_setting_id writable, flp_setting_id read_only,
                             flp_store **out) {
  flp_setting own = {0}, shared = {0};
  if (writable != FLP_SETTING_COUNT) flp_setting_get(writable, &own);
  flp_setting_get(read_only, &shared);
  FLP_TRY(flp_store_open(own.value, shared.value, out));
  flp_store_set_device(*out, precompile->device.major * 10 + precompile->device.minor, precompile->driver->version);
  return FLP_OK;
}

static flp_status start(check_precompile *precompile, const check_precompile_wish *wish) {
  flp_tuning tuning;
  FLP_TRY(flp_tuning_parse("--tune", wish->tune, &tuning));
  FLP_TRY(cli_compilers_open(wish->device, wish->jobs, &precompile->compilers));
  precompile->driver = wish->device->driver;
  precompile->device = wish->device->info;
  precompile->arch = wish->arch;
  precompile->tuned_arch = wish->tuned_arch;
  if (wish->jit) {
    FLP_TRY(flp_jit_get(&precompile->provider));
    FLP_TRY(open_store(precompile, FLP_SETTING_CACHE_DIR, FLP_SETTING_CACHE_PATH, &precompile->cache));
  }
  if (wish->generic) FLP_TRY(open_store(precompile, FLP_SETTING_COUNT, FLP_SETTING_GENERIC_DIR, &precompile->generic));
  FLP_TRY(add_cases(precompile, wish->list, &tuning));
  return cli_pool_start(&precompile->compilers, precompile->count, make, precompile, &precompile->pool);
}

flp_status check_precompile_start(const check_precompile_wish *wish, check_precompile **out) {
  *out = NULL;
  if (wish->jobs < 2 || !wish->device->driver || !(wish->jit || wish->generic)) return FLP_OK;
  check_precompile *precompile = calloc(1, sizeof *precompile);
  if (!precompile) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the list of kernels");
  flp_status status = start(precompile, wish);
  if (status != FLP_OK) {
    check_precompile_stop(precompile);
    return status;
  }
  *out = precompile;
  return FLP_OK;
}

flp_status check_precompile_plan(check_precompile *precompile, const flp_spec *spec, const flp_options *options,
                                 flp_plan **out) {
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  flp_spec resolved;
  flp_tuning tuning;
  int is_generic = options->rung == FLP_RUNG_GENERIC, gives = options->rung == FLP_RUNG_JIT, count = 0;
  flp_rung rung = is_generic ? FLP_RUNG_GENERIC : FLP_RUNG_JIT;
  if (precompile && options->rung != FLP_RUNG_EAGER && flp_spec_resolve(spec, &resolved) == FLP_OK &&
      flp_tuning_parse("--tune", options->tune, &tuning) == FLP_OK)
    count = keys_of(precompile, &resolved, &tuning, rung, keys);
  for (int i = 0; i < count; i++) {
    int at = find(precompile, &keys[i], rung);
    if (at >= 0 && cli_pool_wait(&precompile->pool, at) && gives) gives = give(precompile, &precompile->jobs[at]);
  }
  flp_options own = *options;
  own.arch = check_precompile_arch(options->arch, spec);
  return flp_plan_create(spec, &own, out);
}

void check_precompile_finish(check_precompile *precompile) {
  if (!precompile) return;
  cli_pool_finish(&precompile->pool);
  cli_compilers_close(&precompile->compilers);
}

void check_precompile_stop(check_precompile *precompile) {
  if (!precompile) return;
  cli_pool_stop(&precompile->pool);
  cli_compilers_close(&precompile->compilers);
  for (int i = 0; i < precompile->count; i++) flp_kernel_image_clear(&precompile->jobs[i].image);
  free(precompile->jobs);
  flp_store_close(precompile->cache);
  flp_store_close(precompile->generic);
  free(precompile);
}
