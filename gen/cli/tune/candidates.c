/* candidates.c: what is tried: the space of each kind of kernel with predictions, and layouts of the backward pass
 * or of a step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autotune/model.h"
#include "gen/cli/tune/candidates.h"
#include "runtime/base/util.h"

static search_candidate blank(flp_kernel_kind kind) {
  return (search_candidate){.kind = kind, .error = -1, .clock_mhz = -1, .power_w = -1};
}

/* Whether two candidates differ in their rasters at most, and go over the columns as often for that many rows. */
static int rasters_alike(const search_candidate *a, const search_candidate *b, int64_t rows) {
  flp_tunables as_b = a->tune;
  as_b.raster = b->tune.raster;
  int64_t panels = flp_ceil_div(rows, (int64_t)a->tune.rows * a->tune.cluster);
  return memcmp(&as_b, &b->tune, sizeof as_b) == 0 &&
         flp_ceil_div(panels, a->tune.raster) == flp_ceil_div(panels, b->tune.raster);
}

/* Leaves out what rasterises as the untuned kernel does, or as one before. rows: of the kernel's results; products have
 * the chunk's columns as rows, too */
static void prune_same_raster(const tune_list *list, search_candidate *c, int64_t rows) {
  if (c->is_default || c->kind == FLP_KERNEL_PRODUCTS || !c->tune.raster) return;
  const search_candidate *other = list->items;
  while (other < c && !rasters_alike(c, other, rows)) other++;
  if (other == c) return;
  c->status = SEARCH_PRUNED;
  snprintf(c->reason, sizeof c->reason, "%lld rows are rasterised as by %s", (long long)rows,
           other == list->items ? "by the untuned kernel" : "with a smaller raster");
}

/* Leaves out what would take save, stream and direction modes from every plan that finds it. */
static void prune_indivisible(search_candidate *c, const flp_spec *spec) {
  if (c->kind != FLP_KERNEL_DZ || spec->dtype != FLP_DTYPE_BF16 || FLP_KEPT_BLOCK_ROWS % c->tune.rows == 0) return;
  c->status = SEARCH_ILLEGAL;
  snprintf(c->reason, sizeof c->reason,
           "save, stream and direction modes redo blocks of %d rows, which tiles of %u do not divide",
           FLP_KEPT_BLOCK_ROWS, (unsigned)c->tune.rows);
}

static search_candidate *add_kernel(tune_list *out, flp_kernel_kind kind, const flp_tunables *tune) {
  search_candidate *c = &out->items[out->count++];
  *c = blank(kind);
  c->is_default = out->count == 1;
  c->tune = *tune;
  return c;
}

static void refuse(search_candidate *c, const char *reason) {
  c->status = SEARCH_ILLEGAL;
  snprintf(c->reason, sizeof c->reason, "%s", reason);
}

/* Adds what is to be timed to the end, unless it is the default. */
static void add_included(tune_list *out, const tile_space *space, const flp_tunables *included) {
  static const flp_tunables none = {0};
  const search_candidate *untuned = &out->items[0];
  flp_tunables tune = space_over(included, &untuned->tune);
  char reason[SPACE_REASON_BYTES];
  if (memcmp(included, &none, sizeof none) == 0 || memcmp(&tune, &untuned->tune, sizeof tune) == 0) return;
  search_candidate *c = add_kernel(out, untuned->kind, &tune);
  c->is_included = 1;
  if (!space_accepts(space, &tune, reason)) refuse(c, reason);
}

static int is_listed(const tune_list *list, int first, const flp_tunables *tune) {
  for (int i = 0; i < first; i++)
    if (memcmp(&list->items[i].tune, tune, sizeof *tune) == 0) return 1;
  return 0;
}

/* Fills out: the template's default first, then what is to be timed, then the rest of the space. */
static flp_status list_space(flp_kernel_kind kind, const tile_space *space, const flp_tunables *included,
                             tune_list *out) {
  space_points points;
  flp_tunables untuned = space_default(space);
  FLP_TRY(space_list(space, &points));
  out->items = calloc((size_t)points.count + 2, sizeof *out->items);
  if (out->items) {
    add_kernel(out, kind, &untuned);
    add_included(out, space, included);
    int first = out->count;
    for (int i = 0; i < points.count; i++) {
      if (is_listed(out, first, &points.items[i].tune)) continue;
      search_candidate *c = add_kernel(out, kind, &points.items[i].tune);
      if (!points.items[i].legal) refuse(c, points.items[i].reason);
    }
  }
  space_clear(&points);
  return out->items ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "out of host memory for the candidates");
}

flp_status tune_list_kernels(flp_kernel_kind kind, const tune_head *target, const char *arch, const tune_work *work,
                             const flp_device *device, const flp_tunables *included, tune_list *out) {
  tile_space *space;
  *out = (tune_list){0};
  FLP_TRY(space_open(kind, &target->spec, arch, &space));
  space_limit_shared(space, device->shared_bytes_max);
  flp_status status = list_space(kind, space, included, out);
  space_close(space);
  FLP_TRY(status);
  int64_t rows = work->chunk_rows > 0 ? work->chunk_rows : work->rows;
  int64_t columns = work->chunk_vocab > 0 ? work->chunk_vocab : target->spec.vocab;
  for (int i = 0; i < out->count; i++) {
    search_candidate *c = &out->items[i];
    if (c->status != SEARCH_ILLEGAL) prune_indivisible(c, &target->spec);
    if (c->status == SEARCH_ILLEGAL) continue;
    double ms = model_ms(arch, kind, &target->spec, rows, work->chunk_vocab, device, &c->tune);
    c->predicted_ms = ms * (double)work->rows / (double)rows;
    if (!c->is_included) prune_same_raster(out, c, kind == FLP_KERNEL_GRAD_WEIGHT ? columns : rows);
  }
  return FLP_OK;
}

/* ---- layouts ---- */

/* Parts of the largest chunk that are tried, in eighths: a smaller one may fill its waves better, and leave more of
 * dz in L2 between the launches. */
static const int eighths[] = {8, 7, 6, 5, 4, 3, 2};
enum { PARTS = sizeof eighths / sizeof eighths[0] };

static void add_layout(tune_list *out, const flp_scheme *scheme, int is_default) {
  for (int i = 0; i < out->count; i++)
    if (out->items[i].mode == scheme->mode && out->items[i].chunk_rows == scheme->chunk_rows &&
        out->items[i].chunk_vocab == scheme->chunk_vocab)
      return;
  search_candidate *c = &out->items[out->count++];
  *c = blank((flp_kernel_kind)0);
  c->is_default = is_default;
  c->mode = scheme->mode;
  c->chunk_rows = scheme->chunk_rows;
  c->chunk_vocab = scheme->chunk_vocab;
  c->predicted_ms = 1e3 * scheme->seconds;
}

/* The planner's layout of a mode within the budget, then with smaller chunks. */
static void add_mode(const flp_planner *planner, flp_mode mode, int64_t rows, uint64_t budget, tune_list *out) {
  flp_planner p = *planner;
  flp_scheme largest, scheme;
  p.mode = mode;
  if (flp_planner_pick(&p, FLP_PASS_BACKWARD, rows, budget, 0, &largest) != FLP_OK) return;
  add_layout(out, &largest, 0);
  for (int i = 1; i < PARTS; i++) {
    int64_t by_vocab = largest.chunk_vocab * eighths[i] / 8, by_rows = largest.chunk_rows * eighths[i] / 8;
    p.chunk_vocab = mode == FLP_MODE_RECOMPUTE_ROWS ? 0 : by_vocab;
    p.chunk_rows = mode == FLP_MODE_RECOMPUTE_VOCAB ? 0 : by_rows;
    if (by_vocab < 1 || by_rows < 1) return;
    if (flp_planner_pick(&p, FLP_PASS_BACKWARD, rows, budget, 0, &scheme) == FLP_OK) add_layout(out, &scheme, 0);
  }
}

flp_status tune_list_layouts(const flp_planner *planner, int64_t rows, uint64_t budget, tune_list *out) {
  static const flp_mode modes[] = {FLP_MODE_RECOMPUTE_VOCAB, FLP_MODE_RECOMPUTE_ROWS, FLP_MODE_RECOMPUTE_SPLIT};
  flp_scheme untuned;
  *out = (tune_list){0};
  FLP_TRY(flp_planner_pick(planner, FLP_PASS_BACKWARD, rows, budget, 0, &untuned));
  out->items = calloc(1 + 3 * PARTS, sizeof *out->items);
  if (!out->items) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the layouts");
  add_layout(out, &untuned, 1);
  for (int i = 0; i < 3; i++) add_mode(planner, modes[i], rows, budget, out);
  return FLP_OK;
}

/* Chunks of about equal size, from few of them to some more than the planner takes: fewer may fill their waves better,
 * more leave more of the exponentials in L2. */
flp_status tune_list_streams(const flp_planner *planner, int64_t rows, uint64_t budget, tune_list *out) {
  enum { FEWER = 2, MORE = 6 };
  flp_planner p = *planner;
  flp_scheme untuned, scheme;
  int64_t panel_rows = p.keep_rows > p.dz_unit_rows ? p.keep_rows : p.dz_unit_rows,
          panels = flp_ceil_div(rows, panel_rows);
  *out = (tune_list){0};
  p.mode = FLP_MODE_STREAM;
  FLP_TRY(flp_planner_pick(&p, FLP_PASS_STEP, rows, budget, 0, &untuned));
  out->items = calloc(2 + FEWER + MORE, sizeof *out->items);
  if (!out->items) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the layouts");
  add_layout(out, &untuned, 1);
  for (int64_t count = untuned.chunks > FEWER ? untuned.chunks - FEWER : 1;
       count <= untuned.chunks + MORE && count <= panels; count++) {
    p.chunk_rows = flp_ceil_div(panels, count) * panel_rows;
    if (flp_planner_pick(&p, FLP_PASS_STEP, rows, budget, 0, &scheme) == FLP_OK) add_layout(out, &scheme, 0);
  }
  return FLP_OK;
}

void tune_list_clear(tune_list *list) {
  free(list->items);
  *list = (tune_list){0};
}
