/* space.c: the tile configurations that a search may try, asked of the templates. See space.h. */
#include "autotune/space.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/gen.h"
#include "runtime/base/status.h"

struct tile_space {
  flpgen_space *templates;
  flp_tunables defaults;
  uint32_t shared_bytes; /* that a CTA may have; 0: not limited */
};

/* ---- asking ---- */

static flp_status find_key(flp_kernel_kind kind, const flp_spec *spec, const char *arch, flp_kernel_key *out) {
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  int count = flp_kernel_keys_for(spec, arch, keys);
  for (int i = 0; i < count; i++)
    if (keys[i].kind == kind) {
      *out = keys[i];
      return FLP_OK;
    }
  return flp_fail(FLP_ERROR_UNSUPPORTED, "the specification needs no kernel %s on %s", flp_kernel_kind_name(kind),
                  arch);
}

static flp_status ask_own(tile_space *s, const flp_kernel_key *key) {
  static const flp_tunables none;
  char error[256];
  flpgen_tile tile = {.shared_bytes = 0};
  flp_status status = flpgen_space_open(key, NULL, &s->templates, error, sizeof error);
  if (status == FLP_OK) status = flpgen_space_ask(s->templates, &none, &tile, error, sizeof error);
  s->defaults = tile.tune;
  return status == FLP_OK ? FLP_OK : flp_fail(status, "%s", error);
}

flp_status space_open(flp_kernel_kind kind, const flp_spec *spec, const char *arch, tile_space **out) {
  flp_kernel_key key;
  *out = NULL;
  FLP_TRY(find_key(kind, spec, arch, &key));
  tile_space *made = calloc(1, sizeof *made);
  if (!made) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the candidates");
  flp_status status = ask_own(made, &key);
  if (status == FLP_OK)
    *out = made;
  else
    space_close(made);
  return status;
}

void space_close(tile_space *s) {
  if (!s) return;
  flpgen_space_close(s->templates);
  free(s);
}

flp_tunables space_default(const tile_space *s) {
  return s->defaults;
}

flp_tunables space_over(const flp_tunables *given, const flp_tunables *defaults) {
  return (flp_tunables){
      given->schedule ? given->schedule : defaults->schedule, given->rows ? given->rows : defaults->rows,
      given->columns ? given->columns : defaults->columns,    given->stages ? given->stages : defaults->stages,
      given->cluster ? given->cluster : defaults->cluster,    given->raster ? given->raster : defaults->raster};
}

void space_limit_shared(tile_space *s, int bytes) {
  s->shared_bytes = bytes > 0 ? (uint32_t)bytes : 0;
}

int space_accepts(const tile_space *s, const flp_tunables *tune, char reason[SPACE_REASON_BYTES]) {
  flpgen_tile tile;
  if (flpgen_space_ask(s->templates, tune, &tile, reason, SPACE_REASON_BYTES) != FLP_OK) return 0;
  if (!s->shared_bytes || tile.shared_bytes <= s->shared_bytes) return 1;
  if (reason)
    snprintf(reason, SPACE_REASON_BYTES, "it needs %u bytes of shared memory; the device has %u",
             (unsigned)tile.shared_bytes, (unsigned)s->shared_bytes);
  return 0;
}

/* ---- enumeration ---- */

typedef struct lister {
  const tile_space *space;
  const flpgen_axes *axes;
  space_points *out;
  uint32_t raster[FLPGEN_AXIS_MAX + 1]; /* ascending, the template's own among them */
  int raster_count;
} lister;

static lister lister_of(const tile_space *s, space_points *out) {
  lister l = {.space = s, .axes = flpgen_space_axes(s->templates), .out = out};
  uint32_t defaults = s->defaults.raster;
  for (int r = 0; r < l.axes->raster.count; r++) {
    uint32_t value = l.axes->raster.values[r];
    if (defaults && defaults <= value) {
      if (defaults < value) l.raster[l.raster_count++] = defaults;
      defaults = 0;
    }
    l.raster[l.raster_count++] = value;
  }
  if (defaults) l.raster[l.raster_count++] = defaults;
  return l;
}

static void add(const lister *l, const flp_tunables *tune, const char *reason) {
  space_point *point = &l->out->items[l->out->count++];
  *point = (space_point){.tune = *tune, .legal = reason == NULL};
  if (reason) snprintf(point->reason, sizeof point->reason, "%s", reason);
}

/* Every raster of a tile in clusters of one size, or its refusal. Returns how many are accepted. */
static int list_cluster(const lister *l, flp_tunables tune) {
  char reason[SPACE_REASON_BYTES] = "";
  int accepted = 0;
  for (int r = 0; r < l->raster_count; r++) {
    tune.raster = l->raster[r];
    if (!space_accepts(l->space, &tune, reason)) continue;
    add(l, &tune, NULL);
    accepted++;
  }
  tune.raster = 0;
  if (!accepted) add(l, &tune, reason);
  return accepted;
}

/* One tile with so many stages in clusters of every size; 0 if it is refused whatever that is, which is listed once. */
static int list_tile(const lister *l, flp_tunables tune) {
  int first = l->out->count, accepted = 0;
  for (int c = 0; c < l->axes->cluster.count; c++) {
    tune.cluster = l->axes->cluster.values[c];
    accepted += list_cluster(l, tune);
  }
  if (accepted) return 1;
  l->out->count = first + 1;
  l->out->items[first].tune.cluster = 0;
  return 0;
}

/* One shape of a tile with more and more stages, until they are refused. */
static void list_stages(const lister *l, flp_tunables tune) {
  for (int i = 0; i < l->axes->stages.count; i++) {
    tune.stages = l->axes->stages.values[i];
    if (!list_tile(l, tune)) return;
  }
}

flp_status space_list(const tile_space *s, space_points *out) {
  lister l = lister_of(s, out);
  const flpgen_axes *a = l.axes;
  int most = a->schedule.count * a->rows.count * a->columns.count * a->stages.count * a->cluster.count * l.raster_count;
  *out = (space_points){.items = calloc((size_t)most + 1, sizeof *out->items)};
  if (!out->items) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the candidates");
  for (int i = 0; i < a->schedule.count; i++)
    for (int r = 0; r < a->rows.count; r++)
      for (int c = 0; c < a->columns.count; c++)
        list_stages(&l, (flp_tunables){a->schedule.values[i], a->rows.values[r], a->columns.values[c], 0, 0, 0});
  return FLP_OK;
}

void space_clear(space_points *points) {
  free(points->items);
  *points = (space_points){0};
}
