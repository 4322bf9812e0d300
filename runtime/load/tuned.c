/* tuned.c: the list of a device's tuned kernels, the driver that suits best, and the nearest neighbour. See tuned.h. */
#include "runtime/load/tuned.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/status.h"

void flp_tuned_for(const flp_device *device, int driver, char out[FLP_TUNED_FOR_BYTES]) {
  snprintf(out, FLP_TUNED_FOR_BYTES, "%s/%d/%d", device->name, device->multiprocessors, driver);
}

/* ---- the list ---- */

typedef struct reading {
  flp_tuned *tuned;
  char device[FLP_TUNED_FOR_BYTES]; /* " tuned=<device name>/<SM count>/" */
  size_t device_bytes;
  int out_of_memory;
} reading;

/* The number behind "<device name>/<SM count>/", which is all that is left of the key; 0 if it is none. */
static int driver_of(const char *text) {
  char *end;
  if (text[0] < '1' || text[0] > '9') return 0;
  long driver = strtol(text, &end, 10);
  return *end == 0 && driver < INT32_MAX ? (int)driver : 0;
}

static int append(flp_tuned *tuned, const flp_tuned_entry *entry) {
  if (tuned->count == tuned->capacity) {
    size_t capacity = tuned->capacity ? 2 * tuned->capacity : 64;
    flp_tuned_entry *grown = realloc(tuned->items, capacity * sizeof *grown);
    if (!grown) return 0;
    tuned->items = grown;
    tuned->capacity = capacity;
  }
  char *text = strdup(entry->text);
  if (!text) return 0;
  tuned->items[tuned->count] = *entry;
  tuned->items[tuned->count].text = text;
  tuned->count++;
  return 1;
}

static int take_key(void *context, const char *key) {
  reading *r = context;
  char text[FLP_KEY_BYTES_MAX + 1];
  uint8_t sources[32];
  const char *other = flp_store_other_sources(key);
  if (other && r->tuned->others++ == 0) snprintf(r->tuned->sources, sizeof r->tuned->sources, "%s", other);
  /* Most keys are of no interest, which is seen before they are taken apart. */
  const char *at = strstr(key, r->device);
  flp_tuned_entry entry = {.driver = at ? driver_of(at + r->device_bytes) : 0, .text = text};
  if (!entry.driver || !flp_kernel_key_read(key, &entry.key, sources) ||
      memcmp(sources, flp_sources_hash(), sizeof sources) != 0)
    return 1;
  snprintf(text, sizeof text, "%s", key);
  r->out_of_memory = !append(r->tuned, &entry);
  return !r->out_of_memory;
}

flp_status flp_tuned_read(flp_tuned *tuned, flp_store *store, const flp_device *device) {
  if (tuned->is_read) return FLP_OK;
  reading r = {.tuned = tuned};
  int length = snprintf(r.device, sizeof r.device, " tuned=%s/%d/", device->name, device->multiprocessors);
  r.device_bytes = (size_t)length;
  FLP_TRY(flp_store_each_key(store, take_key, &r));
  if (r.out_of_memory) return flp_fail(FLP_ERROR_MEMORY, "no memory for a list of %zu tuned kernels", tuned->count);
  tuned->is_read = 1;
  return FLP_OK;
}

void flp_tuned_clear(flp_tuned *tuned) {
  for (size_t i = 0; i < tuned->count; i++) free(tuned->items[i].text);
  free(tuned->items);
  *tuned = (flp_tuned){0};
}

/* ---- another driver ---- */

/* Negative if driver a is to be preferred to b where `driver` runs, positive if b, 0 if they are the same. */
static int64_t compare_drivers(int a, int b, int driver) {
  int a_newer = a > driver, b_newer = b > driver;
  if (a_newer != b_newer) return a_newer - b_newer;
  return a_newer ? (int64_t)a - b : (int64_t)b - a;
}

flp_tuned_entry *flp_tuned_find(flp_tuned *tuned, const flp_kernel_key *key, int driver) {
  flp_tuned_entry *best = NULL;
  char text[FLP_KEY_BYTES_MAX]; /* all of the key but the device */
  size_t length = flp_kernel_key_bytes(key, flp_sources_hash(), "", text, sizeof text);
  for (size_t i = 0; i < tuned->count && length; i++) {
    flp_tuned_entry *e = &tuned->items[i];
    if (e->bad || strncmp(e->text, text, length) != 0) continue;
    if (!best || compare_drivers(e->driver, best->driver, driver) < 0) best = e;
  }
  return best;
}

/* ---- the nearest neighbour ---- */

/* |ln(a / b)| in units; 0 where the kind has no such size. Whole units, so that it does not hang on the last bit of
 * log. */
static int64_t ratio(int64_t a, int64_t b, double units) {
  return a > 0 && b > 0 ? llround(units * fabs(log((double)a / (double)b))) : 0;
}

/* What decides the best tile configuration, from its cost terms (a tile of R x C over a depth of K = D for forward,
 * forward_keep and dz):
 *   depth    a tile costs R·C·D of products and, whatever D is, R·C of epilogue and one filling of the pipeline: the part
 *            of both, and with it schedule and stages, changes as 1/D; the rows that a raster keeps in L2 take R·D bytes;
 *            a product of dz has D/C tiles across, few enough that how they divide into waves matters. So D weighs 1.
 *   vocab    only counts tiles: V/C of them for every row panel, hundreds of waves in all; the part of the last,
 *            incomplete wave changes as 1/V, and is some hundredth where that of the epilogue is some tenth: 1/8.
 *   epilogue entropy, bias and softcap add an instruction or two a score to some twenty: a factor of about 1.1, so each
 *            weighs as D off by 1/16, which lets them decide among shapes that are otherwise alike. */
int64_t flp_tuned_distance(const flp_kernel_key *a, const flp_kernel_key *b) {
  enum { UNIT = 4096, VOCAB = UNIT / 8, EPILOGUE = UNIT / 16 };
  int differ =
      (a->entropy != b->entropy) + (a->bias != b->bias) + (a->bias_grad != b->bias_grad) + (a->softcap != b->softcap);
  return ratio(a->hidden, b->hidden, UNIT) + ratio(a->vocab, b->vocab, VOCAB) + (int64_t)differ * EPILOGUE;
}

static int is_alike(const flp_kernel_key *a, const flp_kernel_key *b) {
  return a->kind == b->kind && a->dtype == b->dtype && a->alignment == b->alignment &&
         strncmp(a->arch, b->arch, sizeof a->arch) == 0 && a->hidden > 0;
}

flp_tuned_entry *flp_tuned_nearest(flp_tuned *tuned, const flp_kernel_key *key, int driver) {
  flp_tuned_entry *best = NULL;
  int64_t least = 0;
  for (size_t i = 0; i < tuned->count; i++) {
    flp_tuned_entry *e = &tuned->items[i];
    if (e->bad || !is_alike(&e->key, key)) continue;
    int64_t distance = flp_tuned_distance(&e->key, key), order = best ? distance - least : -1;
    if (order == 0) order = compare_drivers(e->driver, best->driver, driver);
    if (order == 0) order = strcmp(e->text, best->text);
    if (order >= 0) continue;
    best = e;
    least = distance;
  }
  return best;
}

/* ---- text ---- */

static int is_same_shape(const flp_kernel_key *a, const flp_kernel_key *b) {
  return a->hidden == b->hidden && (a->vocab == b->vocab || !a->vocab || !b->vocab);
}

static void shape_of(const flp_kernel_key *key, char out[64]) {
  if (key->vocab)
    snprintf(out, 64, "V=%" PRId64 " D=%" PRId64, key->vocab, key->hidden);
  else
    snprintf(out, 64, "D=%" PRId64, key->hidden);
}

void flp_tuned_shape(const flp_tuned_tiling *tiling, const uint8_t kinds[FLP_KERNEL_KINDS],
                     char out[FLP_TUNED_SHAPE_BYTES]) {
  const flp_kernel_key *first = NULL;
  char shape[64];
  int same = 1;
  size_t used = 0;
  for (int kind = 0; kind < FLP_KERNEL_KINDS; kind++)
    if (kinds[kind] && (!first || !first->vocab)) first = &tiling->from[kind]; /* products alone has no vocab */
  for (int kind = 0; kind < FLP_KERNEL_KINDS; kind++)
    if (kinds[kind]) same &= is_same_shape(first, &tiling->from[kind]);
  out[0] = 0;
  for (int kind = 0; kind < FLP_KERNEL_KINDS && used < FLP_TUNED_SHAPE_BYTES; kind++) {
    if (!kinds[kind] || (same && first != &tiling->from[kind])) continue;
    shape_of(&tiling->from[kind], shape);
    int length = snprintf(out + used, FLP_TUNED_SHAPE_BYTES - used, "%s%s%s%s", used ? ", " : "",
                          same ? "" : flp_kernel_kind_name((flp_kernel_kind)kind), same ? "" : " ", shape);
    used += (size_t)length;
  }
}
