/* precompile.c: the kernels of cases to come, made by other threads while cases before them run.
 *
 * A kernel is handed to the cache no sooner than a plan on the jit rung asks for it, so that the rungs of a cache find
 * what they would find if nothing were made ahead. What cannot be made ahead is left to that plan, which says why. */
#include <stdlib.h>
#include <string.h>

#include "gen/cli/check/precompile.h"
#include "gen/cli/kernels/compile_pool.h"
#include "runtime/api/validate.h"
#include "runtime/base/status.h"
#include "runtime/load/jit.h"
#include "runtime/plan/plan.h"

enum { LOCK_TIMEOUT_MS = 30000 }; /* for the lock of a key, as of the jit rung */

/* One kernel. image and given belong to the crew until its task is done. */
typedef struct job {
  flp_kernel_key key;
  flp_rung rung;       /* JIT or GENERIC */
  const uint8_t *loss; /* borrowed; of a kernel of a loss */
  size_t loss_bytes;
  flp_kernel_image image; /* without PTX: not made */
  int given;              /* to the cache, or taken from there */
} job;

struct check_ahead {
  cli_compilers compilers;
  cli_crew crew;
  const flp_driver *driver;
  flp_device device;
  const flp_provider *provider; /* NULL: nothing for the jit rung */
  flp_store *cache, *generic;   /* generic: NULL if not for that rung */
  job *jobs;
  int count, capacity;
};

/* ---- one kernel ---- */

static int bytes_of(const check_ahead *ahead, const job *j, char bytes[FLP_KEY_BYTES_MAX]) {
  const uint8_t *sources = j->rung == FLP_RUNG_JIT ? ahead->provider->sources_hash() : flp_sources_hash();
  return flp_kernel_key_bytes(&j->key, sources, "", bytes, FLP_KEY_BYTES_MAX) > 0;
}

static void make(void *argument, int i) {
  check_ahead *ahead = argument;
  job *j = &ahead->jobs[i];
  flp_store *store = j->rung == FLP_RUNG_JIT ? ahead->cache : ahead->generic;
  char bytes[FLP_KEY_BYTES_MAX];
  if (!bytes_of(ahead, j, bytes) || flp_store_get(store, bytes, strlen(bytes), &j->image, &j->given) != FLP_OK) return;
  if (!j->given && j->rung == FLP_RUNG_JIT)
    flp_jit_generate(ahead->provider, &j->key, j->loss, j->loss_bytes, &j->image);
  if (j->image.ptx) cli_compile_ahead(ahead->driver, store, &j->image);
  if (j->given) flp_kernel_image_clear(&j->image);
}

static flp_status take_image(void *context, flp_kernel_image *out) {
  job *j = context;
  *out = j->image;
  memset(&j->image, 0, sizeof j->image);
  return FLP_OK;
}

/* Returns 0 if the kernel was not made: those behind it would not have been asked for. */
static int give(check_ahead *ahead, job *j) {
  char bytes[FLP_KEY_BYTES_MAX];
  flp_kernel_image image = {.ptx = NULL};
  int made;
  if (j->given) return 1;
  if (!j->image.ptx || !bytes_of(ahead, j, bytes)) return 0;
  j->given = 1;
  flp_store_get_or_make(ahead->cache, bytes, strlen(bytes), LOCK_TIMEOUT_MS, take_image, j, &image, &made);
  flp_kernel_image_clear(&image);
  return 1;
}

/* ---- the list ---- */

/* The kernels of a spec on a rung, as a plan asks for them. Returns their number. */
static int keys_of(const check_ahead *ahead, const flp_spec *spec, const flp_tuning *tuning, flp_rung rung,
                   flp_kernel_key keys[FLP_SPEC_KERNELS_MAX]) {
  const char *arches[FLP_LADDER_ARCHES_MAX];
  int clusters = flp_driver_has_clusters(ahead->driver);
  if (!flp_ladder_arches(&ahead->device, spec, clusters, NULL, arches)) return 0;
  int count = flp_kernel_keys_for(spec, arches[0], keys);
  flp_tuning_apply(tuning, keys, count);
  for (int i = 0; i < count && rung == FLP_RUNG_GENERIC; i++) keys[i] = flp_kernel_key_generic(&keys[i], keys[i].arch);
  return count;
}

static int find(const check_ahead *ahead, const flp_kernel_key *key, flp_rung rung) {
  for (int i = 0; i < ahead->count; i++)
    if (ahead->jobs[i].rung == rung && memcmp(&ahead->jobs[i].key, key, sizeof *key) == 0) return i;
  return -1;
}

static flp_status add(check_ahead *ahead, const flp_spec *spec, const flp_kernel_key *key, flp_rung rung) {
  if (find(ahead, key, rung) >= 0) return FLP_OK;
  if (ahead->count == ahead->capacity) {
    int capacity = ahead->capacity ? 2 * ahead->capacity : 64;
    job *grown = realloc(ahead->jobs, (size_t)capacity * sizeof *grown);
    if (!grown) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the list of kernels");
    ahead->jobs = grown;
    ahead->capacity = capacity;
  }
  job *j = &ahead->jobs[ahead->count++];
  *j = (job){.key = *key, .rung = rung};
  if (key->kind != FLP_KERNEL_LOSS) return FLP_OK;
  j->loss = spec->loss;
  j->loss_bytes = spec->loss_bytes;
  return FLP_OK;
}

static flp_status add_rung(check_ahead *ahead, const flp_spec *spec, const flp_tuning *tuning, flp_rung rung) {
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  int count = keys_of(ahead, spec, tuning, rung, keys);
  for (int i = 0; i < count; i++) FLP_TRY(add(ahead, spec, &keys[i], rung));
  return FLP_OK;
}

/* Cases that are not accepted are for whoever runs them to tell of. */
static flp_status add_cases(check_ahead *ahead, const check_list *list, const flp_tuning *tuning) {
  for (int i = 0; i < list->count; i++) {
    flp_spec own = list->cases[i].spec, spec;
    own.vocab = check_shard_vocab(&list->cases[i]);
    if (flp_spec_resolve(&own, &spec) != FLP_OK) continue;
    if (ahead->provider) FLP_TRY(add_rung(ahead, &spec, tuning, FLP_RUNG_JIT));
    if (ahead->generic) FLP_TRY(add_rung(ahead, &spec, tuning, FLP_RUNG_GENERIC));
  }
  return FLP_OK;
}

/* ---- from start to end ---- */

/* writable: FLP_SETTING_COUNT for none. */
static flp_status open_store(const check_ahead *ahead, flp_setting_id writable, flp_setting_id read_only,
                             flp_store **out) {
  flp_setting own = {0}, shared = {0};
  if (writable != FLP_SETTING_COUNT) flp_setting_get(writable, &own);
  flp_setting_get(read_only, &shared);
  FLP_TRY(flp_store_open(own.value, shared.value, out));
  flp_store_set_device(*out, ahead->device.major * 10 + ahead->device.minor, ahead->driver->version);
  return FLP_OK;
}

static flp_status start(check_ahead *ahead, const check_ahead_wish *wish) {
  flp_tuning tuning;
  FLP_TRY(flp_tuning_parse("--tune", wish->tune, &tuning));
  FLP_TRY(cli_compilers_open(wish->device, wish->jobs, &ahead->compilers));
  ahead->driver = wish->device->driver;
  ahead->device = wish->device->info;
  if (wish->jit) {
    FLP_TRY(flp_jit_get(&ahead->provider));
    FLP_TRY(open_store(ahead, FLP_SETTING_CACHE_DIR, FLP_SETTING_CACHE_PATH, &ahead->cache));
  }
  if (wish->generic) FLP_TRY(open_store(ahead, FLP_SETTING_COUNT, FLP_SETTING_GENERIC_DIR, &ahead->generic));
  FLP_TRY(add_cases(ahead, wish->list, &tuning));
  return cli_crew_start(&ahead->compilers, ahead->count, make, ahead, &ahead->crew);
}

flp_status check_ahead_start(const check_ahead_wish *wish, check_ahead **out) {
  *out = NULL;
  if (wish->jobs < 2 || !wish->device->driver || !(wish->jit || wish->generic)) return FLP_OK;
  check_ahead *ahead = calloc(1, sizeof *ahead);
  if (!ahead) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the list of kernels");
  flp_status status = start(ahead, wish);
  if (status != FLP_OK) {
    check_ahead_stop(ahead);
    return status;
  }
  *out = ahead;
  return FLP_OK;
}

flp_status check_ahead_plan(check_ahead *ahead, const flp_spec *spec, const flp_options *options, flp_plan **out) {
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  flp_spec resolved;
  flp_tuning tuning;
  int is_generic = options->rung == FLP_RUNG_GENERIC, gives = options->rung == FLP_RUNG_JIT, count = 0;
  flp_rung rung = is_generic ? FLP_RUNG_GENERIC : FLP_RUNG_JIT;
  if (ahead && options->rung != FLP_RUNG_EAGER && flp_spec_resolve(spec, &resolved) == FLP_OK &&
      flp_tuning_parse("--tune", options->tune, &tuning) == FLP_OK)
    count = keys_of(ahead, &resolved, &tuning, rung, keys);
  for (int i = 0; i < count; i++) {
    int at = find(ahead, &keys[i], rung);
    if (at >= 0 && cli_crew_wait(&ahead->crew, at) && gives) gives = give(ahead, &ahead->jobs[at]);
  }
  return flp_plan_create(spec, options, out);
}

void check_ahead_finish(check_ahead *ahead) {
  if (!ahead) return;
  cli_crew_finish(&ahead->crew);
  cli_compilers_close(&ahead->compilers);
}

void check_ahead_stop(check_ahead *ahead) {
  if (!ahead) return;
  cli_crew_stop(&ahead->crew);
  cli_compilers_close(&ahead->compilers);
  for (int i = 0; i < ahead->count; i++) flp_kernel_image_clear(&ahead->jobs[i].image);
  free(ahead->jobs);
  flp_store_close(ahead->cache);
  flp_store_close(ahead->generic);
  free(ahead);
}
