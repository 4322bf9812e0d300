/* ladder.c: descends the fallback ladder: the first rung whose kernels load runs, and every rung above it has a reason.
 *
 * A fallback means that a rung should have worked and did not. A cache without an entry is none: the generator then
 * makes what the cache would have held. In strict mode a fallback is an error, and so is every failure of a pinned
 * rung. Where the options give tile configurations, no other kernels are looked for, and the jit rung is the last. */
#include <inttypes.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include "runtime/eager/eager.h"
#include "runtime/load/jit.h"
#include "runtime/plan/plan.h"

/* ---- saying each reason once ---- */

enum { LOGGED_MAX = 256 };
static uint64_t logged[LOGGED_MAX]; /* FNV-1a of texts; once full, the oldest are forgotten */
static unsigned logged_count;

static int is_first(const char *text) {
  uint64_t hash = 14695981039346656037u;
  for (const char *c = text; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211u;
  flp_lock(FLP_LOCK_REASONS);
  unsigned known = logged_count < LOGGED_MAX ? logged_count : LOGGED_MAX;
  int first = 1;
  for (unsigned i = 0; i < known; i++)
    if (logged[i] == hash) first = 0;
  if (first) logged[logged_count++ % LOGGED_MAX] = hash;
  flp_unlock(FLP_LOCK_REASONS);
  return first;
}

void flp_log_once(flp_log_level level, const char *format, ...) {
  char text[1024];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  if (is_first(text)) flp_log(level, "%s", text);
}

void flp_plan_log_exact(const flp_plan *plan) {
  flp_log_once(FLP_LOG_WARNING,
               "%s: a call has no room for lists, so its gradients are exact; flpgen explain says what lists take",
               plan->spec_text);
}

/* Cache misses are logged at INFO, fallbacks at WARNING. */
static void log_outcome(flp_rung rung, int is_miss, const char *reason) {
  flp_log_once(is_miss ? FLP_LOG_INFO : FLP_LOG_WARNING, "rung %s is not taken: %s", flp_rung_name(rung), reason);
}

/* ---- tile configurations ---- */

/* What was tuned, and by which drivers where this one is not the only one. */
static void log_tuned(flp_plan *plan, const flp_images *images) {
  int drivers[FLP_SPEC_KERNELS_MAX], count = 0;
  for (int i = 0; i < images->count; i++) {
    int known = !images->driver[i]; /* of a kernel that has nothing to tune */
    for (int j = 0; j < count; j++) known |= drivers[j] == images->driver[i];
    if (!known) drivers[count++] = images->driver[i];
  }
  int here = count == 0 || (count == 1 && drivers[0] == plan->driver->version);
  int used = snprintf(plan->tiling, sizeof plan->tiling, here ? "tuned here" : "tuned with driver");
  for (int i = 0; i < count && !here; i++)
    used += snprintf(plan->tiling + used, sizeof plan->tiling - (size_t)used, "%s %d", i ? " and" : "", drivers[i]);
}

/* Logs once per spec that a neighbour's tile configuration is used. */
static void log_nearest(flp_plan *plan, const char *shape) {
  char command[FLP_TUNE_COMMAND_BYTES];
  flp_plan_tune_command(&plan->spec, command);
  snprintf(plan->tiling, sizeof plan->tiling, "as the nearest tuned shape, %s", shape);
  flp_log_once(FLP_LOG_INFO,
           "V=%" PRId64 " D=%" PRId64
           ": not tuned on %s; it has the tile configuration of the nearest tuned shape %s; `%s` would tune it",
           plan->spec.vocab, plan->spec.hidden, plan->device.name, shape, command);
}

static int has_nearest(const flp_images *images) {
  return memchr(images->nearest, 1, sizeof images->nearest) != NULL;
}

static void log_tiling(flp_plan *plan, flp_rung rung, const flp_images *images, const flp_tuned_tiling *nearest) {
  char shape[FLP_TUNED_SHAPE_BYTES];
  if (rung == FLP_RUNG_TUNED) {
    log_tuned(plan, images);
  } else if (nearest && has_nearest(images)) {
    flp_tuned_shape(nearest, images->nearest, shape);
    log_nearest(plan, shape);
  } else {
    snprintf(plan->tiling, sizeof plan->tiling, plan->has_tuning ? "as the options ask" : "default");
  }
}

/* ---- plan id ---- */

/* Of the spec what decides numbers beside kernels: its features, and the loss. */
static void finish_id(flp_plan *plan, crypto_hash_sha256_state *state) {
  unsigned char digest[crypto_hash_sha256_BYTES];
  char features[FLP_SPEC_TEXT_BYTES];
  flp_plan_features_text(&plan->spec, features);
  crypto_hash_sha256_update(state, (const unsigned char *)features, strlen(features));
  if (plan->loss_bytes) crypto_hash_sha256_update(state, plan->loss_bytes, plan->spec.loss_bytes);
  crypto_hash_sha256_final(state, digest);
  for (int i = 0; i < 8; i++) snprintf(plan->id + 2 * i, 3, "%02x", digest[i]);
}

static void id_of_images(flp_plan *plan, const flp_images *images) {
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
  for (int i = 0; i < images->count; i++) {
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256(digest, (const unsigned char *)images->image[i].ptx, images->image[i].ptx_bytes);
    crypto_hash_sha256_update(&state, images->key_hash[i], sizeof images->key_hash[i]);
    crypto_hash_sha256_update(&state, digest, sizeof digest);
  }
  finish_id(plan, &state);
}

/* The reference computes the same bits on any number of threads, so what counts is its version and its products. */
static void id_of_eager(flp_plan *plan) {
  char text[256];
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
  int length = snprintf(text, sizeof text, "flp-eager/%s %s ", flp_version(), flp_eager_products());
  crypto_hash_sha256_update(&state, (const unsigned char *)text, (unsigned long long)length);
  finish_id(plan, &state);
}

/* ---- one rung ---- */

static int is_miss(flp_rung rung, flp_status status) {
  return rung <= FLP_RUNG_HEURISTIC && status == FLP_ERROR_UNAVAILABLE;
}

/* What one descent of the ladder finds out. */
typedef struct descent {
  flp_plan *plan;
  flp_tuned tuned;
  flp_tuned_tiling tiling; /* for the architecture tiling_arch */
  const char *tiling_arch; /* NULL: none yet */
} descent;

static flp_images_request request_of(descent *w, const char *arch, const flp_tuned_tiling *nearest) {
  flp_plan *plan = w->plan;
  return (flp_images_request){.spec = &plan->spec,
                              .device = &plan->device,
                              .driver_version = plan->driver->version,
                              .arch = arch,
                              .cache_dir = plan->options.cache_dir,
                              .cache_path = plan->options.cache_path,
                              .tuning = &plan->tuning,
                              .has_tuning = plan->has_tuning,
                              .tuned = &w->tuned,
                              .nearest = nearest};
}

/* nearest: NULL for none. *used_nearest: at least one kernel has that tiling */
static flp_status try_images(descent *w, flp_rung rung, const char *arch, const flp_tuned_tiling *nearest,
                             int *fallback, int *used_nearest) {
  flp_plan *plan = w->plan;
  flp_images_request request = request_of(w, arch, nearest);
  flp_images images;
  *fallback = 1;
  flp_status status = flp_images_collect(rung, &request, &images);
  if (status == FLP_OK) status = flp_loader_load(plan->driver, plan->context, &images, &plan->modules, fallback);
  if (status == FLP_OK) {
    id_of_images(plan, &images);
    snprintf(plan->arch, sizeof plan->arch, "%s", arch);
    log_tiling(plan, rung, &images, nearest);
  }
  if (status == FLP_ERROR_MEMORY || status == FLP_ERROR_INTERNAL) *fallback = 0;
  *used_nearest = has_nearest(&images);
  flp_images_clear(&images);
  return status;
}

/* The neighbours' tile configurations for the spec's kernels, on rungs that can find or make them. *out is NULL
 * where they are not to be: the options or a pinned rung give something else, or they are the defaults. */
static flp_status find_nearest(descent *w, flp_rung rung, const char *arch, const flp_tuned_tiling **out) {
  const flp_plan *plan = w->plan;
  *out = NULL;
  if (rung != FLP_RUNG_HEURISTIC && rung != FLP_RUNG_JIT) return FLP_OK;
  if (plan->options.rung != FLP_RUNG_AUTO || plan->has_tuning) return FLP_OK;
  if (!w->tiling_arch || strcmp(w->tiling_arch, arch) != 0) {
    flp_images_request request = request_of(w, arch, NULL);
    FLP_TRY(flp_images_nearest(&request, &w->tiling));
    w->tiling_arch = arch;
  }
  if (memchr(w->tiling.is, 1, sizeof w->tiling.is)) *out = &w->tiling;
  return FLP_OK;
}

/* A neighbour's tile configuration is a guess: if such kernels fail, those with defaults must still be found. */
static flp_status try_architecture(descent *w, flp_rung rung, const char *arch, int *fallback) {
  const flp_tuned_tiling *nearest;
  int used_nearest;
  *fallback = 0;
  FLP_TRY(find_nearest(w, rung, arch, &nearest));
  flp_status status = try_images(w, rung, arch, nearest, fallback, &used_nearest);
  if (status == FLP_OK || !used_nearest || !*fallback || is_miss(rung, status)) return status;
  flp_log_once(FLP_LOG_WARNING, "kernels with the tiling of the nearest tuned shape are not taken on rung %s: %.600s",
           flp_rung_name(rung), flp_error_detail());
  return try_images(w, rung, arch, NULL, fallback, &used_nearest);
}

int flp_ladder_arches(const flp_device *device, const flp_spec *spec, const char *asked, int clusters,
                      unsigned without, const flp_tuning *tuning, const char *out[FLP_LADDER_ARCHES_MAX]) {
  int count = 0, is_set = tuning && flp_tuning_is_set(tuning);
  for (int i = FLP_ARCHES_MAX - 1; i >= 0; i--) {
    const flp_arch *arch = flp_arch_at(i);
    if (!arch || !(arch->facts & FLP_ARCH_PLANNED) || !flp_arch_runs(arch, device->major, device->minor)) continue;
    if (without >> i & 1 || (asked && strcmp(arch->name, asked) != 0)) continue;
    if (!clusters && (arch->facts & FLP_ARCH_CLUSTERS)) continue;
    if (!flp_kernel_arch_serves(arch->name, spec)) continue;
    if (is_set && !(flp_kernel_arch_tunes(arch->name, spec, (flp_kernel_kind)0) &&
                    flp_kernel_arch_heeds(arch->name, spec, tuning)))
      continue;
    out[count++] = arch->name;
    if (is_set) break; /* another's kernels have other tile configurations */
  }
  return count;
}

int flp_ladder_arches_here(const flp_device *device, int driver, const flp_spec *spec, const char *asked, int clusters,
                           const flp_tuning *tuning, const char *out[FLP_LADDER_ARCHES_MAX]) {
  flp_unproven unproven = {.arches = 0};
  if (!asked && flp_unproven_find(device, spec, clusters, driver, NULL, NULL, &unproven) != FLP_OK) return 0;
  return flp_ladder_arches(device, spec, asked, clusters, unproven.arches, tuning, out);
}

static int list_arches(const flp_plan *plan, const flp_tuning *tuning, const char *out[FLP_LADDER_ARCHES_MAX]) {
  return flp_ladder_arches(&plan->device, &plan->spec, plan->arch_asked ? plan->arch_asked->name : NULL,
                           flp_driver_has_clusters(plan->driver), plan->unproven.arches, tuning, out);
}

/* An older architecture's kernels in a cache, where --arch leaves them, do not spare making this GPU's. */
static int is_for_jit(const descent *w, flp_rung rung) {
  const flp_provider *provider;
  return rung < FLP_RUNG_JIT && w->plan->options.rung == FLP_RUNG_AUTO && flp_jit_get(&provider) == FLP_OK;
}

/* Tries the architectures in turn. The reason that stays is that of the last, most portable one; in strict mode that of
 * the first whose kernels are there. */
static flp_status try_rung(descent *w, flp_rung rung, int *fallback) {
  const char *arches[FLP_LADDER_ARCHES_MAX];
  int count = list_arches(w->plan, &w->plan->tuning, arches);
  flp_status status = FLP_ERROR_UNAVAILABLE;
  for (int i = 0; i < count && (i == 0 || !is_for_jit(w, rung)); i++) {
    status = try_architecture(w, rung, arches[i], fallback);
    if (status == FLP_OK || !*fallback) break;
    if (status == FLP_ERROR_UNAVAILABLE || i + 1 == count) continue;
    if (w->plan->options.strict) break;
    flp_log_once(FLP_LOG_WARNING, "kernels for %s are not taken on rung %s: %.600s", arches[i], flp_rung_name(rung),
             flp_error_detail());
  }
  return status;
}

/* ---- the descent ---- */

static flp_status take_eager(flp_plan *plan) {
  plan->rung = FLP_RUNG_EAGER;
  id_of_eager(plan);
  return FLP_OK;
}

/* All reasons in one sentence, without repetitions of the rung before. */
static flp_status no_rung(const flp_plan *plan) {
  char text[1024];
  size_t used = 0;
  for (int rung = FLP_RUNG_TUNED; rung <= FLP_RUNG_EAGER && used < sizeof text; rung++) {
    int next = rung;
    while (next < FLP_RUNG_EAGER && strcmp(plan->reason[next + 1], plan->reason[rung]) == 0) next++;
    int got =
        snprintf(text + used, sizeof text - used, "%s%s%s%s: %.180s", used ? "; " : "", flp_rung_name((flp_rung)rung),
                 next > rung ? " to " : "", next > rung ? flp_rung_name((flp_rung)next) : "", plan->reason[rung]);
    used += got > 0 ? (size_t)got : 0;
    rung = next;
  }
  return flp_fail(FLP_ERROR_UNAVAILABLE, "no rung can run: %s", text);
}

/* The bottom of the ladder for a plan that was made for a device. */
static flp_status fall_back_to_eager(flp_plan *plan) {
  const flp_options *options = &plan->options;
  if (options->host_fallback && (!options->strict || options->rung == FLP_RUNG_EAGER)) return take_eager(plan);
  if (options->host_fallback)
    snprintf(plan->reason[FLP_RUNG_EAGER], FLP_REASON_BYTES, "strict mode refuses the fallback to host pointers");
  else
    snprintf(plan->reason[FLP_RUNG_EAGER], FLP_REASON_BYTES,
             "takes host pointers, but options.device is %d and options.host_fallback 0", options->device);
  return no_rung(plan);
}

static void set_reason(flp_plan *plan, flp_rung rung, const char *reason) {
  snprintf(plan->reason[rung], FLP_REASON_BYTES, "%s", reason);
}

/* Whether no rung below has kernels with the tile configurations of the options. */
static int is_last_tunable(const flp_plan *plan, flp_rung rung) {
  return rung == FLP_RUNG_JIT && flp_tuning_is_set(&plan->tuning);
}

/* Whether the descent ends with this failure instead of going on below. */
static int ends_here(const flp_plan *plan, flp_rung rung, flp_status status, int fallback) {
  return !fallback || plan->options.rung == rung || is_last_tunable(plan, rung) ||
         (plan->options.strict && !is_miss(rung, status));
}

static flp_status end_here(const flp_plan *plan, flp_rung rung, flp_status status) {
  const char *why = plan->options.rung == rung    ? "is pinned and failed"
                    : is_last_tunable(plan, rung) ? "is the last that heeds options.tune and failed"
                                                  : "failed";
  return flp_fail(status, "rung %s %s: %s", flp_rung_name(rung), why, plan->reason[rung]);
}

/* No architecture that runs here is the one that was asked for and has all kernels that the options' tile
 * configurations name. */
static flp_status no_choice(const flp_plan *plan) {
  char tune[FLP_TUNING_TEXT_BYTES], kinds[256];
  const char *arches[FLP_LADDER_ARCHES_MAX];
  flp_tuning_text(&plan->tuning, tune);
  int count = list_arches(plan, NULL, arches);
  if (count == 0 && plan->arch_asked)
    return flp_fail(FLP_ERROR_UNAVAILABLE,
                    "options.arch is %s, which has no kernels here of %s with this alignment (accepted: NULL, \"%s\")",
                    plan->arch_asked->name, plan->spec_text, FLP_PORTABLE_ARCH);
  for (int i = 0; i < count; i++)
    if (flp_kernel_tunable_kinds(arches[i], &plan->spec, kinds, sizeof kinds)[0])
      return flp_fail(FLP_ERROR_ARGUMENT,
                      "options.tune is \"%s\", but on %s kernels of %s leave a choice of %s (accepted: those, NULL, "
                      "\"\")",
                      tune, plan->device.name, plan->spec_text, kinds);
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "options.tune is \"%s\", but on %s kernels of %s have one tile configuration (accepted: NULL, \"\")",
                  tune, plan->device.name, plan->spec_text);
}

/* What is left out is no failure, in strict mode either; it is said once. */
static flp_status leave_unproven_out(flp_plan *plan) {
  const flp_options *options = &plan->options;
  if (plan->arch_asked) return FLP_OK;
  FLP_TRY(flp_unproven_find(&plan->device, &plan->spec, flp_driver_has_clusters(plan->driver), plan->driver->version,
                            options->cache_dir, options->cache_path, &plan->unproven));
  if (plan->unproven.arches) flp_log_once(FLP_LOG_WARNING, "%s", plan->unproven.reason);
  return FLP_OK;
}

static flp_status descend(descent *w) {
  flp_plan *plan = w->plan;
  flp_rung pinned = plan->options.rung;
  const char *arches[FLP_LADDER_ARCHES_MAX];
  const flp_arch *portable = flp_arch_find(FLP_PORTABLE_ARCH);
  if (!flp_arch_runs(portable, plan->device.major, plan->device.minor)) {
    char reason[96];
    snprintf(reason, sizeof reason, "compute capability %d.%d is below %d.%d", plan->device.major, plan->device.minor,
             portable->capability / 10, portable->capability % 10);
    return flp_ladder_without_device(plan, reason);
  }
  const flp_arch *asked = plan->arch_asked;
  if (asked && !flp_arch_runs(asked, plan->device.major, plan->device.minor))
    return flp_fail(FLP_ERROR_UNAVAILABLE,
                    "options.arch is %s, whose kernels do not run on %s of compute capability %d.%d", asked->name,
                    plan->device.name, plan->device.major, plan->device.minor);
  FLP_TRY(leave_unproven_out(plan));
  if (list_arches(plan, &plan->tuning, arches) == 0) return no_choice(plan);
  for (int r = FLP_RUNG_TUNED; r <= FLP_RUNG_GENERIC; r++) {
    flp_rung rung = (flp_rung)r;
    if (pinned != FLP_RUNG_AUTO && rung != pinned) {
      snprintf(plan->reason[rung], FLP_REASON_BYTES, "rung %s is pinned", flp_rung_name(pinned));
      continue;
    }
    int fallback = 1;
    flp_status status = try_rung(w, rung, &fallback);
    if (status == FLP_OK) {
      for (int below = r + 1; below <= FLP_RUNG_EAGER; below++) plan->reason[below][0] = 0;
      plan->rung = rung;
      return FLP_OK;
    }
    set_reason(plan, rung, flp_error_detail());
    if (ends_here(plan, rung, status, fallback)) return end_here(plan, rung, status);
    log_outcome(rung, is_miss(rung, status), plan->reason[rung]);
  }
  return fall_back_to_eager(plan);
}

flp_status flp_ladder_climb(flp_plan *plan) {
  descent w = {.plan = plan};
  flp_status status = descend(&w);
  flp_tuned_clear(&w.tuned);
  return status;
}

flp_status flp_ladder_without_device(flp_plan *plan, const char *reason) {
  for (int rung = FLP_RUNG_TUNED; rung <= FLP_RUNG_GENERIC; rung++) set_reason(plan, (flp_rung)rung, reason);
  flp_rung pinned = plan->options.rung;
  if (plan->options.device == FLP_DEVICE_HOST) return take_eager(plan);
  if (pinned == FLP_RUNG_EAGER) return fall_back_to_eager(plan);
  flp_log_once(FLP_LOG_WARNING, "no rung of the device can run: %s", reason);
  return pinned != FLP_RUNG_AUTO ? end_here(plan, pinned, FLP_ERROR_UNAVAILABLE) : fall_back_to_eager(plan);
}
