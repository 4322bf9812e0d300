/* space.c: the tunables of sm_90a's kernels: defaults, legality, enumeration. See space.h. */
#include "autotune/space.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/status.h"

/* As tune.lua has them: shared memory of a CTA, accumulators of a thread, L2 for the hidden rows of a sweep. */
enum { SHARED_BYTES = 232448, ACCUMULATORS = 192, ACCUMULATORS_WIDE = 96, RASTER_MOST = 64, PANEL_BYTES = 24 << 20 };
/* Of a warp that stores what its tile gives, as staging.lua has it: 16 rows of 128 bytes. With a bias gradient dz has a
 * float a column beside them. */
enum { STAGED_BYTES = 16 * 128 };
/* Of a row of a box, as engine.lua has it: its elements are the columns that a CTA loads at a time of an MN-major
 * operand. */
enum { BOX_BYTES = 128 };

static const uint32_t tiles[] = {64, 128, 192, 256};
static const uint32_t clusters[] = {1, 2, 4};
static const uint32_t rasters[] = {4, 8, 16, 32, 64}; /* beside the kernel's own */
#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

int space_has(flp_kernel_kind kind) {
  return flp_kind_has(kind, FLP_KIND_TUNE);
}

static int is_wide(const flp_spec *spec) {
  return spec->dtype == FLP_DTYPE_FP32;
}

/* The bands of two tiles of 128 whose hidden rows stay in L2, as tune.lua has it. */
static uint32_t own_raster(const flp_spec *spec) {
  int64_t depth = spec->hidden > 0 ? spec->hidden : 4096; /* of a kernel for any shape */
  int64_t bands = PANEL_BYTES / (256 * depth * (int64_t)flp_dtype_bytes(spec->dtype));
  return bands < 1 ? 1 : bands > RASTER_MOST ? RASTER_MOST : (uint32_t)bands;
}

/* As product.lua has them: the tile that leaves the fewest of D's columns unused. */
static flp_tunables own_of_products(const flp_spec *spec) {
  static const struct {
    uint32_t rows, columns, cluster;
    double loss;
  } tiles_of_d[] = {{128, 256, 2, 1}, {256, 192, 1, 1.005}, {256, 128, 1, 1.02}};
  if (is_wide(spec)) return (flp_tunables){FLP_SCHEDULE_COOPERATIVE, 128, 128, 4, 2, 8};
  int best = 0;
  double least = INFINITY;
  for (int i = 0; i < COUNT(tiles_of_d); i++) {
    int64_t across = (spec->hidden + tiles_of_d[i].columns - 1) / tiles_of_d[i].columns;
    double cost = (double)(across * tiles_of_d[i].columns) * tiles_of_d[i].loss;
    if (cost >= least) continue;
    best = i;
    least = cost;
  }
  return (flp_tunables){
      FLP_SCHEDULE_COOPERATIVE, tiles_of_d[best].rows, tiles_of_d[best].columns, 4, tiles_of_d[best].cluster, 8};
}

flp_tunables space_own(flp_kernel_kind kind, const flp_spec *spec) {
  int wide = is_wide(spec);
  if (kind == FLP_KERNEL_PRODUCTS) return own_of_products(spec);
  uint32_t schedule = wide ? FLP_SCHEDULE_COOPERATIVE : FLP_SCHEDULE_PING_PONG;
  return (flp_tunables){schedule, 128, wide ? 128 : 192, wide ? 4 : 5, 2, own_raster(spec)};
}

flp_tunables space_over(const flp_tunables *given, const flp_tunables *own) {
  return (flp_tunables){given->schedule ? given->schedule : own->schedule, given->rows ? given->rows : own->rows,
                        given->columns ? given->columns : own->columns,    given->stages ? given->stages : own->stages,
                        given->cluster ? given->cluster : own->cluster,    given->raster ? given->raster : own->raster};
}

/* ---- legality, in the order in which the templates ask ---- */

static int is_among(uint32_t value, const uint32_t *values, int count) {
  for (int i = 0; i < count; i++)
    if (values[i] == value) return 1;
  return 0;
}

static int refuse(char reason[SPACE_REASON_BYTES], const char *format, ...) __attribute__((format(printf, 2, 3)));
static int refuse(char reason[SPACE_REASON_BYTES], const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (reason) vsnprintf(reason, SPACE_REASON_BYTES, format, arguments);
  va_end(arguments);
  return 0;
}

static const char *schedule_name(uint32_t schedule) {
  return schedule == FLP_SCHEDULE_COOPERATIVE ? "cooperative" : "ping-pong";
}

static int accepts_schedule(flp_kernel_kind kind, const flp_spec *spec, const flp_tunables *t, char *reason) {
  int only = is_wide(spec) || kind == FLP_KERNEL_PRODUCTS;
  if (t->schedule == FLP_SCHEDULE_COOPERATIVE || (!only && t->schedule == FLP_SCHEDULE_PING_PONG)) return 1;
  return refuse(reason, "tune: schedule %s is not accepted; one of %scooperative is", schedule_name(t->schedule),
                only ? "" : "ping-pong, ");
}

static int accepts_tile(const flp_spec *spec, const flp_tunables *t, char *reason) {
  static const uint32_t cooperative_rows[] = {128, 256};
  int wide = is_wide(spec), cooperative = t->schedule == FLP_SCHEDULE_COOPERATIVE;
  if (!is_among(t->columns, tiles, wide ? 2 : COUNT(tiles)))
    return refuse(reason, "tune: columns %" PRIu32 " is not accepted; one of %s is", t->columns,
                  wide ? "64, 128" : "64, 128, 192, 256");
  if (!is_among(t->cluster, clusters, COUNT(clusters)))
    return refuse(reason, "tune: cluster %" PRIu32 " is not accepted; one of 1, 2, 4 is", t->cluster);
  const uint32_t *rows = cooperative ? cooperative_rows : tiles;
  if (!is_among(t->rows, rows, wide ? 1 : cooperative ? 2 : COUNT(tiles)))
    return refuse(reason, "tune: rows %" PRIu32 " is not accepted; one of %s is", t->rows,
                  wide          ? "128"
                  : cooperative ? "128, 256"
                                : "64, 128, 192, 256");
  return 1;
}

static uint32_t shared_bytes(flp_kernel_kind kind, const flp_spec *spec, const flp_tunables *t) {
  uint32_t planes = is_wide(spec) ? t->stages - 1 : 0, staging = 0;
  if (kind == FLP_KERNEL_KEEP) staging = STAGED_BYTES;
  if (kind == FLP_KERNEL_DZ) staging = STAGED_BYTES + (spec->grads & FLP_GRAD_BIAS ? t->columns * 4 : 0);
  return t->stages * (t->rows + t->columns) * 128 + planes * t->columns * 192 + 8 * staging +
         (t->stages + planes) * 16 + 24;
}

/* As ring.lua asks: the second operand of products is MN-major, and each CTA of a cluster loads its part in whole
 * boxes. */
static int accepts_part(flp_kernel_kind kind, const flp_spec *spec, const flp_tunables *t, char *reason) {
  uint32_t box = BOX_BYTES / (uint32_t)flp_dtype_bytes(spec->dtype), part = t->columns / t->cluster;
  if (kind != FLP_KERNEL_PRODUCTS || part % box == 0) return 1;
  return refuse(reason, "tune: each CTA would load %" PRIu32 " columns; boxes have %" PRIu32, part, box);
}

int space_accepts(flp_kernel_kind kind, const flp_spec *spec, const flp_tunables *t, char reason[SPACE_REASON_BYTES]) {
  if (!accepts_schedule(kind, spec, t, reason) || !accepts_tile(spec, t, reason)) return 0;
  if (t->raster > RASTER_MOST || t->raster < 1)
    return refuse(reason, "tune: raster %" PRIu32 " is not accepted; 1 to 64 is", t->raster);
  if (t->stages < 2 || t->stages > 12)
    return refuse(reason, "tune: stages %" PRIu32 " is not accepted; 2 to 12 is", t->stages);
  uint32_t accumulators = t->rows * t->columns / (t->schedule == FLP_SCHEDULE_COOPERATIVE ? 256 : 128);
  uint32_t most = is_wide(spec) ? ACCUMULATORS_WIDE : ACCUMULATORS;
  if (accumulators > most)
    return refuse(reason,
                  "tune: %" PRIu32 "x%" PRIu32 " %s needs %" PRIu32 " accumulators a thread; at most %" PRIu32 " fit",
                  t->rows, t->columns, schedule_name(t->schedule), accumulators, most);
  uint32_t bytes = shared_bytes(kind, spec, t);
  if (bytes > SHARED_BYTES)
    return refuse(reason,
                  "tune: %" PRIu32 " stages of %" PRIu32 "x%" PRIu32 " need %" PRIu32
                  " bytes of shared memory; there are %d",
                  t->stages, t->rows, t->columns, bytes, (int)SHARED_BYTES);
  return accepts_part(kind, spec, t, reason);
}

/* ---- enumeration ---- */

typedef struct lister {
  flp_kernel_kind kind;
  const flp_spec *spec;
  space_points *out;
  uint32_t raster[COUNT(rasters) + 1]; /* ascending */
  int raster_count;
} lister;

static lister lister_of(flp_kernel_kind kind, const flp_spec *spec, space_points *out) {
  lister l = {.kind = kind, .spec = spec, .out = out};
  uint32_t own = space_own(kind, spec).raster;
  for (int r = 0; r < COUNT(rasters); r++) {
    if (own && own <= rasters[r]) {
      if (own < rasters[r]) l.raster[l.raster_count++] = own;
      own = 0;
    }
    l.raster[l.raster_count++] = rasters[r];
  }
  return l;
}

static void add(const lister *l, const flp_tunables *tune, const char *reason) {
  space_point *point = &l->out->items[l->out->count++];
  *point = (space_point){.tune = *tune, .legal = reason == NULL};
  if (reason) snprintf(point->reason, sizeof point->reason, "%s", reason);
}

/* Every raster of a tile in clusters of one size, or its refusal. Returns how many are accepted. */
static int list_cluster(const lister *l, flp_tunables tune) {
  char reason[SPACE_REASON_BYTES];
  int accepted = 0;
  for (int r = 0; r < l->raster_count; r++) {
    tune.raster = l->raster[r];
    if (!space_accepts(l->kind, l->spec, &tune, reason)) continue;
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
  for (int c = 0; c < COUNT(clusters); c++) {
    tune.cluster = clusters[c];
    accepted += list_cluster(l, tune);
  }
  if (accepted) return 1;
  l->out->count = first + 1;
  l->out->items[first].tune.cluster = 0;
  return 0;
}

flp_status space_list(flp_kernel_kind kind, const flp_spec *spec, space_points *out) {
  static const uint32_t schedules[] = {FLP_SCHEDULE_PING_PONG, FLP_SCHEDULE_COOPERATIVE};
  lister l = lister_of(kind, spec, out);
  size_t most = (size_t)(COUNT(schedules) * COUNT(tiles) * COUNT(tiles) * COUNT(clusters) * l.raster_count) *
                (SPACE_STAGES_MOST - SPACE_STAGES_LEAST + 1);
  *out = (space_points){.items = calloc(most, sizeof *out->items)};
  if (!out->items) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the candidates");
  for (int s = 0; s < COUNT(schedules); s++)
    for (int r = 0; r < COUNT(tiles); r++)
      for (int c = 0; c < COUNT(tiles); c++)
        for (uint32_t stages = SPACE_STAGES_LEAST; stages <= SPACE_STAGES_MOST; stages++)
          if (!list_tile(&l, (flp_tunables){schedules[s], tiles[r], tiles[c], stages, 0, 0})) break;
  return FLP_OK;
}

void space_clear(space_points *points) {
  free(points->items);
  *points = (space_points){0};
}
