/* images.c: the four device rungs as sources of kernel images: tuned and plain cache entries, the generator, and the
 * shape-generic kernels that ship. */
#include "runtime/load/images.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/status.h"
#include "runtime/load/jit.h"

/* A compile takes well under a second; a lock held for longer is held by a process that hangs. */
enum { LOCK_TIMEOUT_MS = 30000 };

typedef struct collector {
  const flp_images_request *request;
  flp_store *store;
  flp_tuned *tuned;                    /* what the store holds for the device */
  const flp_provider *provider;        /* jit */
  char device_id[FLP_TUNED_FOR_BYTES]; /* tuned */
  int driver;                          /* tuned: of the entry that was found last, 0 if it was a plain one */
  char place[512];                     /* for messages */
} collector;

/* Finds or makes the image of one key; writes the key's bytes. */
typedef flp_status (*source_fn)(collector *c, const flp_kernel_key *key, char bytes[FLP_KEY_BYTES_MAX],
                                flp_kernel_image *out);

static flp_status key_bytes(const flp_kernel_key *key, const uint8_t *sources, const char *tuned_for, char *out) {
  if (flp_kernel_key_bytes(key, sources, tuned_for, out, FLP_KEY_BYTES_MAX)) return FLP_OK;
  return flp_fail(FLP_ERROR_INTERNAL, "the key of kernel %s does not fit %d bytes", flp_kernel_kind_name(key->kind),
                  FLP_KEY_BYTES_MAX);
}

/* UNAVAILABLE: what is missing, and how much of what is there serves nothing. */
static flp_status miss(collector *c, const flp_kernel_key *key, const char *what) {
  char made[FLP_STORE_MADE_BYTES], others[FLP_STORE_MADE_BYTES + 48] = "";
  FLP_TRY(flp_tuned_read(c->tuned, c->store, c->request->device));
  if (c->tuned->others)
    snprintf(others, sizeof others, "; %" PRIu64 " kernels there were %s", c->tuned->others,
             flp_store_made_by(NULL, c->tuned->sources, made));
  return flp_fail(FLP_ERROR_UNAVAILABLE, "%s has no %s kernel %s %s%s", c->place, key->arch,
                  flp_kernel_kind_name(key->kind), what, others);
}

static flp_status look_up(collector *c, const flp_kernel_key *key, const char *tuned_for, char *bytes,
                          flp_kernel_image *out, int *found) {
  FLP_TRY(key_bytes(key, flp_sources_hash(), tuned_for, bytes));
  return flp_store_get(c->store, bytes, strlen(bytes), out, found);
}

/* The same kernel, tuned for such a device with another driver. */
static flp_status look_up_other(collector *c, const flp_kernel_key *key, char *bytes, flp_kernel_image *out,
                                int *found) {
  flp_tuned_entry *entry;
  FLP_TRY(flp_tuned_read(c->tuned, c->store, c->request->device));
  while (!*found && (entry = flp_tuned_find(c->tuned, key, c->request->driver_version)) != NULL) {
    snprintf(bytes, FLP_KEY_BYTES_MAX, "%s", entry->text);
    FLP_TRY(flp_store_get(c->store, bytes, strlen(bytes), out, found));
    c->driver = entry->driver;
    entry->bad = !*found;
  }
  return FLP_OK;
}

/* Kinds whose plain entries serve: those that leave nothing to tune, and forward that keeps where a head was tuned for
 * what keeps nothing. */
static int may_be_plain(flp_kernel_kind kind) {
  return !flp_kind_has(kind, FLP_KIND_TUNE) || flp_kind_parts(kind) & FLP_PART_KEEP;
}

static flp_status from_tuned(collector *c, const flp_kernel_key *key, char *bytes, flp_kernel_image *out) {
  int found = 0;
  char what[FLP_TUNED_FOR_BYTES + 16];
  c->driver = c->request->driver_version;
  FLP_TRY(look_up(c, key, c->device_id, bytes, out, &found));
  if (!found && flp_kind_has(key->kind, FLP_KIND_TUNE)) FLP_TRY(look_up_other(c, key, bytes, out, &found));
  if (!found && may_be_plain(key->kind)) {
    c->driver = 0;
    FLP_TRY(look_up(c, key, "", bytes, out, &found));
  }
  snprintf(what, sizeof what, "tuned for %s", c->device_id);
  return found ? FLP_OK : miss(c, key, what);
}

static flp_status from_cache(collector *c, const flp_kernel_key *key, char *bytes, flp_kernel_image *out) {
  int found = 0;
  FLP_TRY(look_up(c, key, "", bytes, out, &found));
  return found ? FLP_OK : miss(c, key, "for this spec");
}

static flp_status from_generic(collector *c, const flp_kernel_key *key, char *bytes, flp_kernel_image *out) {
  flp_kernel_key generic = flp_kernel_key_generic(key, key->arch);
  return from_cache(c, &generic, bytes, out);
}

typedef struct make_context {
  const flp_provider *provider;
  const flp_kernel_key *key;
  const flp_spec *spec;
} make_context;

static flp_status make_image(void *context, flp_kernel_image *out) {
  const make_context *make = context;
  int is_loss = flp_kind_has(make->key->kind, FLP_KIND_LOSS);
  return flp_jit_generate(make->provider, make->key, is_loss ? make->spec->loss : NULL,
                          is_loss ? make->spec->loss_bytes : 0, out);
}

static flp_status from_jit(collector *c, const flp_kernel_key *key, char *bytes, flp_kernel_image *out) {
  make_context context = {c->provider, key, c->request->spec};
  int made = 0;
  FLP_TRY(key_bytes(key, c->provider->sources_hash(), "", bytes));
  flp_status status =
      flp_store_get_or_make(c->store, bytes, strlen(bytes), LOCK_TIMEOUT_MS, make_image, &context, out, &made);
  if (status == FLP_OK && made)
    flp_log(FLP_LOG_INFO, "generated kernel %s for %s", flp_kernel_kind_name(key->kind), key->arch);
  if (status == FLP_OK) return FLP_OK;
  return flp_fail(status, "kernel %s: %s", flp_kernel_kind_name(key->kind), flp_error_detail());
}

/* A key with the tile configuration of its nearest tuned neighbour; the same key where that is the default. */
static flp_kernel_key nearest_key(const flp_images_request *request, const flp_kernel_key *key) {
  flp_kernel_key tiling = *key;
  const flp_tuned_tiling *nearest = request->nearest;
  if (nearest && nearest->is[key->kind]) flp_tuning_apply(&nearest->tuning, &tiling, 1);
  return tiling;
}

/* A cache may give either tile configuration, the neighbour's first; what is yet to be made takes the
 * neighbour's. */
static flp_status from_nearest(collector *c, flp_rung rung, const flp_kernel_key *key, char *bytes,
                               flp_kernel_image *out, int *found) {
  flp_kernel_key tiling = nearest_key(c->request, key);
  *found = 0;
  if (memcmp(&tiling.tune, &key->tune, sizeof tiling.tune) == 0) return FLP_OK;
  if (rung == FLP_RUNG_HEURISTIC) return look_up(c, &tiling, "", bytes, out, found);
  if (rung != FLP_RUNG_JIT) return FLP_OK;
  flp_status status = from_jit(c, &tiling, bytes, out);
  *found = status == FLP_OK;
  return status;
}

/* ---- checks ---- */

static int has_entry(const flp_kernel_desc *desc, int entry) {
  for (uint32_t i = 0; i < desc->entry_count; i++)
    if (strcmp(desc->entries[i].name, flp_entry_name(entry)) == 0) return 1;
  return 0;
}

static flp_status no_entry(const char *kind, const flp_kind_entry *entry) {
  if (entry->plain == FLP_NO_ENTRY || entry->mapped == FLP_NO_ENTRY)
    return flp_fail(FLP_ERROR_CORRUPT, "module %s has no entry %s%s", kind, flp_entry_name(entry->plain),
                    flp_entry_name(entry->mapped));
  return flp_fail(FLP_ERROR_CORRUPT, "module %s has neither entry %s nor %s", kind, flp_entry_name(entry->plain),
                  flp_entry_name(entry->mapped));
}

/* The entries that plans of this spec launch. */
static flp_status check_entries(const flp_spec *spec, const flp_kernel_desc *desc) {
  const flp_kind *kind = flp_kind_of(desc->key.kind);
  for (int i = 0; i < kind->entry_count; i++) {
    const flp_kind_entry *entry = &kind->entries[i];
    int is_asked = (!entry->grads || (spec->grads & entry->grads)) && (!entry->dtype || entry->dtype == spec->dtype) &&
                   (!entry->of_lora || desc->key.lora);
    if (is_asked && !has_entry(desc, entry->plain) && !has_entry(desc, entry->mapped))
      return no_entry(kind->name, entry);
  }
  return FLP_OK;
}

/* Whatever parts forward has, a plan has its partials of the same columns. */
static flp_status check_units(const flp_images *images) {
  const flp_kernel_desc *first = NULL;
  for (int i = 0; i < images->count; i++) {
    const flp_kernel_desc *desc = &images->image[i].desc;
    if (!flp_kind_has(desc->key.kind, FLP_KIND_UNITS)) continue;
    if (!first) first = desc;
    if (first->unit_columns != desc->unit_columns)
      return flp_fail(FLP_ERROR_CORRUPT, "modules %s and %s have partials of different columns",
                      flp_kernel_kind_name(first->key.kind), flp_kernel_kind_name(desc->key.kind));
  }
  return FLP_OK;
}

/* The kernels of one plan read their rows in one way: by index, or put together in the workspace for tensor maps. */
static flp_status check_together(const flp_images *images) {
  const flp_kernel_desc *first = NULL;
  for (int i = 0; i < images->count; i++) {
    const flp_kernel_desc *desc = &images->image[i].desc;
    if (!flp_kind_has(desc->key.kind, FLP_KIND_TILED) || flp_kind_has(desc->key.kind, FLP_KIND_INDEXED)) continue;
    if (!first) first = desc;
    if (flp_kernel_is_mapped(first) != flp_kernel_is_mapped(desc))
      return flp_fail(FLP_ERROR_CORRUPT, "modules %s and %s are for different architectures",
                      flp_kernel_kind_name(first->key.kind), flp_kernel_kind_name(desc->key.kind));
  }
  return check_units(images);
}

static flp_status check_device(const flp_device *device, const flp_kernel_desc *desc) {
  for (uint32_t i = 0; i < desc->entry_count; i++)
    if (desc->entries[i].shared_bytes > (uint32_t)device->shared_bytes_max)
      return flp_fail(FLP_ERROR_UNAVAILABLE, "entry %s needs %" PRIu32 " bytes of shared memory, but %s allows %d",
                      desc->entries[i].name, desc->entries[i].shared_bytes, device->name, device->shared_bytes_max);
  return FLP_OK;
}

/* A descriptor fresh from the generator is held to the rules of a stored one: writing and reading it checks them. */
static flp_status check_image(const flp_images_request *request, const flp_kernel_key *key, flp_kernel_image *image) {
  uint8_t bytes[FLP_DESC_BYTES_MAX];
  size_t length = flp_kernel_desc_write(&image->desc, bytes, sizeof bytes);
  if (!length)
    return flp_fail(FLP_ERROR_CORRUPT, "the descriptor of kernel %s cannot be written",
                    flp_kernel_kind_name(key->kind));
  flp_status status = flp_kernel_desc_read(bytes, length, &image->desc);
  if (status != FLP_OK) return flp_fail(status, "kernel %s: %s", flp_kernel_kind_name(key->kind), flp_error_detail());
  const flp_kernel_key *got = &image->desc.key;
  if (got->kind != key->kind || got->dtype != key->dtype || got->target_dtype != key->target_dtype ||
      got->out_dtype != key->out_dtype || got->softcap != key->softcap ||
      (got->bias != key->bias && flp_kind_has(key->kind, FLP_KIND_ADDS)) ||
      (memcmp(got->loss, key->loss, sizeof got->loss) != 0 && !flp_kernel_runs_any_loss(got)))
    return flp_fail(FLP_ERROR_CORRUPT, "the entry of kernel %s holds kernel %s %s of other types or another loss",
                    flp_kernel_kind_name(key->kind), flp_kernel_kind_name(got->kind), flp_dtype_name(got->dtype));
  FLP_TRY(check_entries(request->spec, &image->desc));
  return check_device(request->device, &image->desc);
}

/* ---- rungs ---- */

/* kind: of the place, for messages */
static flp_status open_store(collector *c, const char *kind, const char *writable, const char *read_only) {
  snprintf(c->place, sizeof c->place, "%s%.200s%s%.200s", kind, read_only, read_only[0] && writable[0] ? ":" : "",
           writable);
  FLP_TRY(flp_store_open(writable, read_only, &c->store));
  const flp_device *device = c->request->device;
  flp_store_set_device(c->store, device->major * 10 + device->minor, c->request->driver_version);
  return FLP_OK;
}

static flp_status open_generic(collector *c) {
  flp_setting setting;
  flp_setting_get(FLP_SETTING_GENERIC_DIR, &setting);
  return open_store(c, "", "", setting.value);
}

static flp_status open_cache(collector *c) {
  const flp_images_request *request = c->request;
  flp_setting writable, read_only;
  flp_setting_get(FLP_SETTING_CACHE_DIR, &writable);
  flp_setting_get(FLP_SETTING_CACHE_PATH, &read_only);
  FLP_TRY(open_store(c, "the cache ", request->cache_dir ? request->cache_dir : writable.value,
                     request->cache_path ? request->cache_path : read_only.value));
  /* Packs that stand beside the library give way to what was tuned on this machine. */
  if (!request->cache_path && strcmp(read_only.source, "default") == 0) flp_store_prefer_writable(c->store);
  return FLP_OK;
}

static flp_status prepare(flp_rung rung, collector *c) {
  if (rung == FLP_RUNG_GENERIC) return open_generic(c);
  if (rung == FLP_RUNG_JIT) FLP_TRY(flp_jit_get(&c->provider));
  flp_tuned_for(c->request->device, c->request->driver_version, c->device_id);
  return open_cache(c);
}

/* Finds or makes the image of one kernel. */
static flp_status collect_one(collector *c, flp_rung rung, const flp_kernel_key *key, flp_images *out) {
  static const source_fn sources[] = {[FLP_RUNG_TUNED] = from_tuned,
                                      [FLP_RUNG_HEURISTIC] = from_cache,
                                      [FLP_RUNG_JIT] = from_jit,
                                      [FLP_RUNG_GENERIC] = from_generic};
  char bytes[FLP_KEY_BYTES_MAX];
  int i = out->count, has_tiling = 0;
  flp_status status = from_nearest(c, rung, key, bytes, &out->image[i], &has_tiling);
  if (has_tiling || (status != FLP_OK && rung == FLP_RUNG_JIT)) out->nearest[key->kind] = 1;
  if (status == FLP_OK && !has_tiling) status = sources[rung](c, key, bytes, &out->image[i]);
  FLP_TRY(flp_tuning_status("options.tune", key, status));
  if (rung == FLP_RUNG_TUNED) out->driver[i] = c->driver;
  crypto_hash_sha256(out->key_hash[i], (const unsigned char *)bytes, strlen(bytes));
  out->count++;
  return check_image(c->request, key, &out->image[i]);
}

/* Plain kernels alone are what the next rung is for. */
static flp_status check_tuned(const collector *c, const flp_images *images) {
  for (int i = 0; i < images->count; i++)
    if (images->driver[i]) return FLP_OK;
  return flp_fail(FLP_ERROR_UNAVAILABLE, "%s has no kernel tuned for %s", c->place, c->device_id);
}

/* Generic kernels would be as many again; and what the caller gives forward is what runs. */
static int is_left_out(const flp_images_request *request, flp_rung rung, const flp_kernel_key *key) {
  if (!flp_kind_is_optional(key->kind)) return 0;
  return rung == FLP_RUNG_GENERIC || (request->has_tuning && !flp_tunables_are_set(&key->tune));
}

flp_status flp_images_collect(flp_rung rung, const flp_images_request *request, flp_images *out) {
  memset(out, 0, sizeof *out);
  flp_tuned generic = {0};
  collector c = {.request = request, .tuned = rung == FLP_RUNG_GENERIC ? &generic : request->tuned};
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  int count = flp_kernel_keys_for(request->spec, request->arch, keys);
  flp_tuning_apply(request->tuning, keys, count);
  flp_status status = prepare(rung, &c);
  out->store = c.store;
  for (int i = 0; i < count && status == FLP_OK; i++)
    if (!is_left_out(request, rung, &keys[i])) status = collect_one(&c, rung, &keys[i], out);
  if (status == FLP_OK && rung == FLP_RUNG_TUNED) status = check_tuned(&c, out);
  flp_tuned_clear(&generic);
  return status == FLP_OK ? check_together(out) : status;
}

void flp_images_clear(flp_images *images) {
  for (int i = 0; i < FLP_SPEC_KERNELS_MAX; i++) flp_kernel_image_clear(&images->image[i]);
  flp_store_close(images->store);
  images->store = NULL;
  images->count = 0;
}

/* ---- nearest neighbours ---- */

/* Takes over the tunables of the nearest entry that can be read. */
static flp_status take_nearest(collector *c, const flp_kernel_key *key, flp_tuned_tiling *out) {
  flp_tuned_entry *entry;
  while ((entry = flp_tuned_nearest(c->request->tuned, key, c->request->driver_version)) != NULL) {
    flp_kernel_image image;
    int found = 0;
    FLP_TRY(flp_store_get(c->store, entry->text, strlen(entry->text), &image, &found));
    flp_tunables tune = image.desc.key.tune;
    entry->bad = !found || image.desc.key.kind != key->kind;
    flp_kernel_image_clear(&image);
    if (entry->bad) continue;
    if (!flp_tunables_are_set(&tune)) return FLP_OK;
    out->tuning.of[key->kind] = tune;
    out->from[key->kind] = entry->key;
    out->is[key->kind] = 1;
    return FLP_OK;
  }
  return FLP_OK;
}

flp_status flp_images_nearest(const flp_images_request *request, flp_tuned_tiling *out) {
  collector c = {.request = request};
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  int count = flp_kernel_keys_for(request->spec, request->arch, keys);
  memset(out, 0, sizeof *out);
  if (!flp_kernel_arch_tunes(request->arch, request->spec, (flp_kernel_kind)0)) return FLP_OK;
  flp_status status = open_cache(&c);
  if (status == FLP_OK) status = flp_tuned_read(request->tuned, c.store, request->device);
  for (int i = 0; i < count && status == FLP_OK; i++)
    if (flp_kind_has(keys[i].kind, FLP_KIND_TUNE)) status = take_nearest(&c, &keys[i], out);
  flp_store_close(c.store);
  return status;
}
