/* ladder.c: walks the fallback ladder: the first rung whose kernels load runs, and every rung above it says why not.
 *
 * A fall is a rung that should have worked and did not. A cache without an entry is no fall: the generator then makes
 * what the cache would have held. In strict mode a fall is an error, and so is every failure of a pinned rung. Where
 * the options say how kernels are cut, the walk knows no kernels that are cut otherwise, and ends with the jit rung. */
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/process.h"
#include "runtime/base/status.h"
#include "runtime/eager/eager.h"
#include "runtime/plan/plan.h"

/* ---- saying each reason once ---- */

enum { SAID_MAX = 256 };
static uint64_t said[SAID_MAX]; /* FNV-1a of texts; once full, the oldest are forgotten */
static unsigned said_count;

static int say_first(const char *text) {
  uint64_t hash = 14695981039346656037u;
  for (const char *c = text; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211u;
  flp_lock(FLP_LOCK_REASONS);
  unsigned known = said_count < SAID_MAX ? said_count : SAID_MAX;
  int first = 1;
  for (unsigned i = 0; i < known; i++)
    if (said[i] == hash) first = 0;
  if (first) said[said_count++ % SAID_MAX] = hash;
  flp_unlock(FLP_LOCK_REASONS);
  return first;
}

/* A miss in a cache is everyday news, a fall is worth a warning. */
static void say(flp_rung rung, int is_miss, const char *reason) {
  char text[FLP_REASON_BYTES + 64];
  snprintf(text, sizeof text, "rung %s is not taken: %s", flp_rung_name(rung), reason);
  if (say_first(text)) flp_log(is_miss ? FLP_LOG_INFO : FLP_LOG_WARNING, "%s", text);
}

/* ---- how kernels are cut ---- */

/* What was tuned, and by which drivers where this one is not the only one. */
static void say_tuned(flp_plan *plan, const flp_images *images) {
  int drivers[FLP_SPEC_KERNELS_MAX], count = 0;
  for (int i = 0; i < images->count; i++) {
    int known = !images->driver[i]; /* of a kernel that has nothing to tune */
    for (int j = 0; j < count; j++) known |= drivers[j] == images->driver[i];
    if (!known) drivers[count++] = images->driver[i];
  }
  int here = count == 0 || (count == 1 && drivers[0] == plan->driver->version);
  int used = snprintf(plan->cut, sizeof plan->cut, here ? "tuned here" : "tuned with driver");
  for (int i = 0; i < count && !here; i++)
    used += snprintf(plan->cut + used, sizeof plan->cut - (size_t)used, "%s %d", i ? " and" : "", drivers[i]);
}

/* Cutting as a neighbour is news once a spec: the text names it. */
static void say_nearest(flp_plan *plan, const char *shape) {
  char text[1024], command[FLP_TUNE_COMMAND_BYTES];
  flp_plan_tune_command(&plan->spec, command);
  snprintf(plan->cut, sizeof plan->cut, "as the nearest tuned shape, %s", shape);
  snprintf(text, sizeof text,
           "V=%" PRId64 " D=%" PRId64 ": not tuned on %s; cut as the nearest tuned shape %s; `%s` would tune it",
           plan->spec.vocab, plan->spec.hidden, plan->device.name, shape, command);
  if (say_first(text)) flp_log(FLP_LOG_INFO, "%s", text);
}

static void say_cut(flp_plan *plan, flp_rung rung, const flp_images *images, const flp_tuned_cut *nearest) {
  char shape[FLP_TUNED_SHAPE_BYTES];
  if (rung == FLP_RUNG_TUNED) {
    say_tuned(plan, images);
  } else if (nearest && images->cut_kinds) {
    flp_tuned_shape(nearest, images->cut_kinds, shape);
    say_nearest(plan, shape);
  } else {
    snprintf(plan->cut, sizeof plan->cut, plan->has_tuning ? "as the options ask" : "own choice");
  }
}

/* ---- plan id ---- */

static void finish_id(flp_plan *plan, crypto_hash_sha256_state *state) {
  unsigned char digest[crypto_hash_sha256_BYTES];
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
  if (plan->loss_bytes) crypto_hash_sha256_update(&state, plan->loss_bytes, plan->spec.loss_bytes);
  finish_id(plan, &state);
}

/* The reference computes the same bits on any number of threads, so what counts is its version and its products. */
static void id_of_eager(flp_plan *plan) {
  const char *describe = flp_eager_describe(), *comma = strrchr(describe, ',');
  char text[512];
  snprintf(text, sizeof text, "flp-eager/%s %.*s", flp_version(), (int)(comma ? comma - describe : 400), describe);
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
  crypto_hash_sha256_update(&state, (const unsigned char *)text, strlen(text));
  if (plan->loss_bytes) crypto_hash_sha256_update(&state, plan->loss_bytes, plan->spec.loss_bytes);
  finish_id(plan, &state);
}

/* ---- one rung ---- */

static int is_miss(flp_rung rung, flp_status status) {
  return rung <= FLP_RUNG_HEURISTIC && status == FLP_ERROR_UNAVAILABLE;
}

/* What one walk down the ladder finds out on its way. */
typedef struct walk {
  flp_plan *plan;
  flp_tuned tuned;
  flp_tuned_cut cut;    /* for the architecture cut_arch */
  const char *cut_arch; /* NULL: none yet */
} walk;

static flp_images_request request_of(walk *w, const char *arch, const flp_tuned_cut *nearest) {
  flp_plan *plan = w->plan;
  return (flp_images_request){.spec = &plan->spec,
                              .device = &plan->device,
                              .driver_version = plan->driver->version,
                              .arch = arch,
                              .cache_dir = plan->options.cache_dir,
                              .cache_path = plan->options.cache_path,
                              .tuning = &plan->tuning,
                              .tuned = &w->tuned,
                              .nearest = nearest};
}

/* nearest: NULL for none. *was_cut: at least one kernel was cut so */
static flp_status try_images(walk *w, flp_rung rung, const char *arch, const flp_tuned_cut *nearest, int *fallback,
                             int *was_cut) {
  flp_plan *plan = w->plan;
  flp_images_request request = request_of(w, arch, nearest);
  flp_images images;
  *fallback = 1;
  flp_status status = flp_images_collect(rung, &request, &images);
  if (status == FLP_OK) status = flp_loader_load(plan->driver, plan->context, &images, &plan->modules, fallback);
  if (status == FLP_OK) {
    id_of_images(plan, &images);
    snprintf(plan->arch, sizeof plan->arch, "%s", arch);
    say_cut(plan, rung, &images, nearest);
  }
  if (status == FLP_ERROR_MEMORY || status == FLP_ERROR_INTERNAL) *fallback = 0;
  *was_cut = images.cut_kinds != 0;
  flp_images_clear(&images);
  return status;
}

/* How the spec's kernels would be cut after their neighbours, for rungs that can find or make such ones. *out is NULL
 * where they are not to be: the options or a pinned rung ask for something else, or the templates' own choice is it. */
static flp_status find_nearest(walk *w, flp_rung rung, const char *arch, const flp_tuned_cut **out) {
  const flp_plan *plan = w->plan;
  *out = NULL;
  if (rung != FLP_RUNG_HEURISTIC && rung != FLP_RUNG_JIT) return FLP_OK;
  if (plan->options.rung != FLP_RUNG_AUTO || plan->has_tuning) return FLP_OK;
  if (!w->cut_arch || strcmp(w->cut_arch, arch) != 0) {
    flp_images_request request = request_of(w, arch, NULL);
    FLP_TRY(flp_images_nearest(&request, &w->cut));
    w->cut_arch = arch;
  }
  if (w->cut.kinds) *out = &w->cut;
  return FLP_OK;
}

/* A neighbour's cut is a guess: where such kernels fail, those that the templates choose must still be had. */
static flp_status try_architecture(walk *w, flp_rung rung, const char *arch, int *fallback) {
  const flp_tuned_cut *nearest;
  int was_cut;
  *fallback = 0;
  FLP_TRY(find_nearest(w, rung, arch, &nearest));
  flp_status status = try_images(w, rung, arch, nearest, fallback, &was_cut);
  if (status == FLP_OK || !was_cut || !*fallback || is_miss(rung, status)) return status;
  char text[FLP_REASON_BYTES + 128];
  snprintf(text, sizeof text, "kernels cut as the nearest tuned shape are not taken on rung %s: %.600s",
           flp_rung_name(rung), flp_error_detail());
  if (say_first(text)) flp_log(FLP_LOG_WARNING, "%s", text);
  return try_images(w, rung, arch, NULL, fallback, &was_cut);
}

int flp_ladder_arches(const flp_device *device, const flp_spec *spec, int clusters, const flp_tuning *tuning,
                      const char *out[FLP_LADDER_ARCHES_MAX]) {
  int count = 0, asks = tuning && flp_tuning_asks(tuning);
  for (int i = FLP_ARCHES_MAX - 1; i >= 0; i--) {
    const flp_arch *arch = flp_arch_at(i);
    if (!arch || !(arch->facts & FLP_ARCH_PLANNED) || !flp_arch_runs(arch, device->major, device->minor)) continue;
    if (!clusters && (arch->facts & FLP_ARCH_CLUSTERS)) continue;
    if (!flp_kernel_arch_serves(arch->name, spec) || (asks && !flp_kernel_arch_leaves_choice(arch->name, spec)))
      continue;
    out[count++] = arch->name;
  }
  return count;
}

static int list_arches(const flp_plan *plan, const char *out[FLP_LADDER_ARCHES_MAX]) {
  return flp_ladder_arches(&plan->device, &plan->spec, flp_driver_has_clusters(plan->driver), &plan->tuning, out);
}

/* Tries the architectures in turn. The reason that stays is that of the last, most portable one. */
static flp_status try_rung(walk *w, flp_rung rung, int *fallback) {
  const char *arches[FLP_LADDER_ARCHES_MAX];
  int count = list_arches(w->plan, arches);
  flp_status status = FLP_ERROR_UNAVAILABLE;
  for (int i = 0; i < count; i++) {
    status = try_architecture(w, rung, arches[i], fallback);
    if (status == FLP_OK || !*fallback) break;
  }
  return status;
}

/* ---- the walk ---- */

static flp_status take_eager(flp_plan *plan) {
  plan->rung = FLP_RUNG_EAGER;
  id_of_eager(plan);
  return FLP_OK;
}

/* All reasons in one sentence, those that repeat the rung before said once. */
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
static flp_status fall_to_eager(flp_plan *plan) {
  const flp_options *options = &plan->options;
  if (options->host_fallback && (!options->strict || options->rung == FLP_RUNG_EAGER)) return take_eager(plan);
  if (options->host_fallback)
    snprintf(plan->reason[FLP_RUNG_EAGER], FLP_REASON_BYTES, "strict mode refuses the fall to host pointers");
  else
    snprintf(plan->reason[FLP_RUNG_EAGER], FLP_REASON_BYTES,
             "takes host pointers, but options.device is %d and options.host_fallback 0", options->device);
  return no_rung(plan);
}

static void set_reason(flp_plan *plan, flp_rung rung, const char *reason) {
  snprintf(plan->reason[rung], FLP_REASON_BYTES, "%s", reason);
}

/* Whether no rung below has kernels that are cut as the options ask. */
static int is_last_cut(const flp_plan *plan, flp_rung rung) {
  return rung == FLP_RUNG_JIT && flp_tuning_asks(&plan->tuning);
}

/* Whether the walk ends with this failure instead of going on below. */
static int ends_here(const flp_plan *plan, flp_rung rung, flp_status status, int fallback) {
  return !fallback || plan->options.rung == rung || is_last_cut(plan, rung) ||
         (plan->options.strict && !is_miss(rung, status));
}

static flp_status end_here(const flp_plan *plan, flp_rung rung, flp_status status) {
  const char *why = plan->options.rung == rung ? "is pinned and failed"
                    : is_last_cut(plan, rung)  ? "is the last that heeds options.tune and failed"
                                               : "failed";
  return flp_fail(status, "rung %s %s: %s", flp_rung_name(rung), why, plan->reason[rung]);
}

static flp_status no_choice(const flp_plan *plan) {
  char tune[FLP_TUNING_TEXT_BYTES], arches[128];
  flp_tuning_text(&plan->tuning, tune);
  return flp_fail(FLP_ERROR_ARGUMENT,
                  "options.tune is \"%s\", but on %s kernels of %s are cut in one way only (accepted: NULL, \"\"); "
                  "those of %s for operands aligned to 16 bytes leave a choice",
                  tune, plan->device.name, plan->spec_text,
                  flp_arch_list(FLP_ARCH_TUNABLE, " or ", arches, sizeof arches));
}

static flp_status climb(walk *w) {
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
  if (list_arches(plan, arches) == 0) return no_choice(plan);
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
    say(rung, is_miss(rung, status), plan->reason[rung]);
  }
  return fall_to_eager(plan);
}

flp_status flp_ladder_climb(flp_plan *plan) {
  walk w = {.plan = plan};
  flp_status status = climb(&w);
  flp_tuned_clear(&w.tuned);
  return status;
}

flp_status flp_ladder_without_device(flp_plan *plan, const char *reason) {
  for (int rung = FLP_RUNG_TUNED; rung <= FLP_RUNG_GENERIC; rung++) set_reason(plan, (flp_rung)rung, reason);
  flp_rung pinned = plan->options.rung;
  if (plan->options.device == FLP_DEVICE_HOST) return take_eager(plan);
  if (pinned == FLP_RUNG_EAGER) return fall_to_eager(plan);
  char text[FLP_REASON_BYTES + 64];
  snprintf(text, sizeof text, "no rung of the device can run: %s", reason);
  if (say_first(text)) flp_log(FLP_LOG_WARNING, "%s", text);
  return pinned != FLP_RUNG_AUTO ? end_here(plan, pinned, FLP_ERROR_UNAVAILABLE) : fall_to_eager(plan);
}
