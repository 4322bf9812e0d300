/* search.c: the layouts of a forward pass, and of a backward pass in recompute mode, from which the cheapest is kept.
 *
 * R2 is searched axis by axis: its cost is a sum and its workspace a maximum of one term for the row chunks and one for
 * the vocab chunks, so the best of either axis under a budget is found alone. */
#include <math.h>

#include "runtime/base/util.h"
#include "runtime/base/operands.h"
#include "runtime/planner/internal.h"

/* ---- the workspace of a backward pass ---- */

/* A chunk's dz and column sums stand side by side; R2 lays its two kinds of chunk over each other. */
static uint64_t chunk_bytes(const flp_planner *p, int64_t rows, int64_t columns, int with_bias) {
  return planner_round_up(planner_dz_bytes(p, rows, columns)) +
         (with_bias ? planner_round_up(planner_bias_part_bytes(p, rows, columns)) : 0);
}

/* The same once more, for the part of dz that the mean of scores has by itself. */
static void put_mean(flp_scheme *s) {
  planner_put_region(s, FLP_REGION_mean_dz, 1, s->size[FLP_REGION_dz]);
  planner_put_region(s, FLP_REGION_mean_dz_part, 1, s->size[FLP_REGION_bias_part]);
}

static void put_chunks(const flp_planner *p, flp_scheme *s, int64_t n) {
  int64_t rows = s->mode == FLP_MODE_RECOMPUTE_ROWS ? s->chunk_rows : n;
  int64_t columns = s->mode == FLP_MODE_RECOMPUTE_ROWS ? p->spec.vocab : s->chunk_vocab;
  uint64_t base = s->bytes, end = base + chunk_bytes(p, rows, columns, 1);
  s->offset[FLP_REGION_dz] = base;
  s->size[FLP_REGION_dz] = planner_dz_bytes(p, rows, columns);
  s->offset[FLP_REGION_bias_part] = base + planner_round_up(s->size[FLP_REGION_dz]);
  s->size[FLP_REGION_bias_part] = planner_bias_part_bytes(p, rows, columns);
  if (s->mode == FLP_MODE_RECOMPUTE_SPLIT) {
    uint64_t other = planner_dz_bytes(p, s->chunk_rows, p->spec.vocab);
    s->size[FLP_REGION_dz] = flp_max_u64(s->size[FLP_REGION_dz], other);
    end = flp_max_u64(end, base + planner_round_up(other));
  }
  s->bytes = end;
  if (p->mean_passes) put_mean(s);
}

static void put_accumulators(const flp_planner *p, flp_scheme *s, int64_t n) {
  uint32_t grads = p->spec.grads;
  int64_t vocab = p->spec.vocab, depth = p->spec.hidden;
  int split_vocab = s->mode == FLP_MODE_RECOMPUTE_VOCAB && s->chunk_vocab < vocab;
  int split_rows = s->mode == FLP_MODE_RECOMPUTE_ROWS && s->chunk_rows < n;
  if ((split_vocab && (grads & FLP_GRAD_HIDDEN)) || planner_sums_hidden(p))
    planner_put_region(s, FLP_REGION_hidden_acc, n * depth, 4);
  if (split_rows) planner_put_head_accumulators(p, s);
  planner_put_lora_sums(p, s, n, split_rows);
}

/* gathered: rows that are put together at a time */
static void put_backward_rows(const flp_planner *p, flp_scheme *s, int64_t n, int64_t gathered) {
  planner_put_region(s, FLP_REGION_record, n, 16);
  planner_put_region(s, FLP_REGION_bound, n, 4);
  planner_put_pair(p, s, n);
  planner_put_targets_backward(p, s, n);
  planner_put_lora(p, s, n);
  if (p->is_mapped) planner_put_gather(p, s, gathered);
}

/* ---- one layout of the backward pass ---- */

static double accumulator_cost(const flp_planner *p, const flp_scheme *s, int64_t n) {
  double hidden = 4.0 * (double)n * (double)p->spec.hidden;
  double weight = flp_planner_weight_sum_bytes(p, s->chunks) * (double)p->spec.vocab * (double)p->spec.hidden;
  double passes = 2.0 * (double)(s->chunks - 1); /* every chunk but the last writes, every one but the first reads */
  double bytes = 0;
  if (s->mode == FLP_MODE_RECOMPUTE_VOCAB && (p->spec.grads & FLP_GRAD_HIDDEN)) bytes += passes * hidden;
  if (s->mode == FLP_MODE_RECOMPUTE_ROWS && (p->spec.grads & FLP_GRAD_WEIGHT)) bytes += passes * weight;
  return bytes / p->bandwidth;
}

/* operand_terms of hidden and of bias. */
static int operand_launches(const flp_scheme *s) {
  return (s->size[FLP_REGION_operand_hidden] > 0) + (s->size[FLP_REGION_operand_bias] > 0);
}

static int64_t gather_launches(const flp_planner *p, const flp_scheme *s, int64_t n) {
  if (!p->is_mapped) return 0;
  return s->mode == FLP_MODE_RECOMPUTE_ROWS ? flp_ceil_div(n, s->chunk_rows) : 1;
}

static void count_work(const flp_planner *p, flp_scheme *s, int64_t n) {
  uint32_t grads = p->spec.grads;
  int hidden = planner_wants(grads, FLP_GRAD_HIDDEN), weight = planner_wants(grads, FLP_GRAD_WEIGHT),
      bias = planner_wants(grads, FLP_GRAD_BIAS);
  int64_t row_chunks = flp_ceil_div(n, s->chunk_rows), vocab_chunks = flp_ceil_div(p->spec.vocab, s->chunk_vocab);
  /* prepare, record, dz_scale, fill, gather */
  int64_t launches = 2 + (p->spec.dtype == FLP_DTYPE_FP16) + hidden + gather_launches(p, s, n);
  if (s->mode == FLP_MODE_RECOMPUTE_SPLIT) {
    s->chunks = row_chunks + vocab_chunks;
    s->products = 4;
    launches += row_chunks * 2 + vocab_chunks * (2 + bias);
    launches += planner_targets_backward_launches(p, s->chunks, vocab_chunks);
  } else {
    s->products = flp_operand_terms(&p->spec) + hidden + weight;
    launches +=
        s->chunks * (1 + flp_weight_is_sliced(&p->spec) + (p->is_mapped ? hidden | weight : hidden + weight) + bias);
    launches += planner_targets_backward_launches(p, s->chunks, s->chunks) + planner_lora_launches(p, s->chunks);
  }
  s->launches = (int32_t)flp_min(launches, INT32_MAX);
}

static void build(const flp_planner *p, flp_mode mode, int64_t n, int64_t rows, int64_t columns, flp_scheme *s) {
  planner_begin(p, s, mode, n, mode == FLP_MODE_RECOMPUTE_VOCAB ? n : rows,
                mode == FLP_MODE_RECOMPUTE_ROWS ? p->spec.vocab : columns);
  count_work(p, s, n);
  put_backward_rows(p, s, n, mode == FLP_MODE_RECOMPUTE_ROWS ? s->chunk_rows : n);
  put_chunks(p, s, n);
  put_accumulators(p, s, n);
  s->launches += operand_launches(s);
  planner_put_slice(p, s, s->chunk_vocab, 0, s->chunk_vocab);
  if (mode == FLP_MODE_RECOMPUTE_SPLIT)
    s->seconds = flp_planner_chunks_cost(p, n, rows, p->spec.vocab, FLP_GRAD_HIDDEN) +
                 flp_planner_chunks_cost(p, n, n, columns, p->spec.grads & ~(uint32_t)FLP_GRAD_HIDDEN);
  else
    s->seconds = flp_planner_chunks_cost(p, n, s->chunk_rows, s->chunk_vocab, p->spec.grads);
  s->seconds += (double)s->chunks * planner_slice_cost(p, s->chunk_vocab) + accumulator_cost(p, s, n) +
                flp_planner_gather_cost(p, n, gather_launches(p, s, n));
  if (flp_planner_has_targets(&p->spec))
    s->seconds += flp_planner_targets_cost(p, n, planner_targets_backward_launches(p, s->chunks, s->chunks));
}

/* ---- candidates: chunk sizes along one axis ---- */

/* The next smaller value of ceil(tiles / k) over k. */
int64_t planner_fewer(int64_t tiles, int64_t now) {
  return now > 1 ? flp_ceil_div(tiles, flp_ceil_div(tiles, now - 1)) : 0;
}

/* Sizes that divide the axis evenly in whole tiles, largest first, then sizes that fill whole waves. */
typedef struct sizes {
  int64_t extent, tile, tiles;
  int64_t step;    /* tiles of the last even size; 0 when those are done */
  int64_t quantum; /* tiles of the next wave-filling size */
  int64_t explicit_size;
  int started;
} sizes;

/* across: tiles of a chunk along the other axis */
static sizes sizes_along(const flp_planner *p, int64_t extent, int64_t tile, int64_t across, int64_t explicit_size) {
  sizes s = {.extent = extent, .tile = tile, .tiles = flp_ceil_div(extent, tile), .explicit_size = explicit_size};
  s.quantum = p->multiprocessors / flp_gcd(p->multiprocessors, across);
  return s;
}

static int64_t in_extent(const sizes *s, int64_t tiles) {
  return flp_min(tiles * s->tile, s->extent);
}

static int64_t sizes_next(sizes *s) {
  int first = !s->started;
  s->started = 1;
  if (s->explicit_size) return first ? flp_min(s->explicit_size, s->extent) : 0;
  s->step = first ? s->tiles : planner_fewer(s->tiles, s->step);
  if (s->step) return in_extent(s, s->step);
  if (s->quantum >= s->tiles) return 0;
  int64_t tiles = s->quantum;
  s->quantum *= 2;
  return in_extent(s, tiles);
}

static sizes row_sizes(const flp_planner *p, int64_t n) {
  return sizes_along(p, n, p->dz_unit_rows, flp_ceil_div(p->spec.vocab, p->dz_columns), p->chunk_rows);
}

static sizes vocab_sizes(const flp_planner *p, int64_t n) {
  return sizes_along(p, p->spec.vocab, p->dz_columns, flp_ceil_div(n, p->dz_unit_rows), p->chunk_vocab);
}

/* ---- search ---- */

/* Of two that cost the same the one of fewer bytes. Costs are sums, of which the last digits are the order of addition. */
static int is_better(double seconds, uint64_t bytes, double best_seconds, uint64_t best_bytes) {
  double least = 1e-9 * fmin(seconds, best_seconds), more = seconds - best_seconds;
  return more < -least || (more <= least && bytes < best_bytes);
}

void planner_offer(planner_search *s, const flp_scheme *candidate) {
  if (!s->any || candidate->bytes < s->smallest) s->smallest = candidate->bytes;
  s->any = 1;
  if (candidate->bytes > s->budget) return;
  if (!s->found || is_better(candidate->seconds, candidate->bytes, s->best.seconds, s->best.bytes)) s->best = *candidate;
  s->found = 1;
}

static void offer_backward(planner_search *s, flp_mode mode, int64_t rows, int64_t columns) {
  flp_scheme candidate;
  build(s->planner, mode, s->n, rows, columns, &candidate);
  planner_offer(s, &candidate);
}

static void search_r_vocab(planner_search *s) {
  sizes axis = vocab_sizes(s->planner, s->n);
  for (int64_t columns; (columns = sizes_next(&axis));)
    if (flp_planner_grids_fit(s->planner, s->n, columns)) offer_backward(s, FLP_MODE_RECOMPUTE_VOCAB, s->n, columns);
}

static void search_r_rows(planner_search *s) {
  sizes axis = row_sizes(s->planner, s->n);
  for (int64_t rows; (rows = sizes_next(&axis));)
    if (flp_planner_grids_fit(s->planner, rows, s->planner->spec.vocab))
      offer_backward(s, FLP_MODE_RECOMPUTE_ROWS, rows, s->planner->spec.vocab);
}

/* The best chunk of one axis of R2 within a budget, and the one of the fewest bytes. */
typedef struct axis_pick {
  int64_t best, smallest; /* 0: none */
  double best_seconds;
  uint64_t best_bytes, smallest_bytes;
} axis_pick;

static void axis_offer(axis_pick *pick, int64_t chunk, double seconds, uint64_t bytes, uint64_t budget) {
  if (!pick->smallest || bytes < pick->smallest_bytes) {
    pick->smallest = chunk;
    pick->smallest_bytes = bytes;
  }
  if (bytes > budget) return;
  if (pick->best && !is_better(seconds, bytes, pick->best_seconds, pick->best_bytes)) return;
  pick->best = chunk;
  pick->best_seconds = seconds;
  pick->best_bytes = bytes;
}

static void search_r2(planner_search *s) {
  const flp_planner *p = s->planner;
  int64_t n = s->n, vocab = p->spec.vocab;
  uint32_t others = p->spec.grads & ~(uint32_t)FLP_GRAD_HIDDEN;
  flp_scheme fixed;
  planner_begin(p, &fixed, FLP_MODE_RECOMPUTE_SPLIT, n, n, vocab);
  put_backward_rows(p, &fixed, n, n);
  uint64_t budget = s->budget > fixed.bytes ? s->budget - fixed.bytes : 0;
  axis_pick rows = {0}, columns = {0};
  sizes axis = row_sizes(p, n);
  for (int64_t chunk; (chunk = sizes_next(&axis));)
    if (flp_planner_grids_fit(p, chunk, vocab))
      axis_offer(&rows, chunk, flp_planner_chunks_cost(p, n, chunk, vocab, FLP_GRAD_HIDDEN),
                 chunk_bytes(p, chunk, vocab, 0), budget);
  axis = vocab_sizes(p, n);
  for (int64_t chunk; (chunk = sizes_next(&axis));)
    if (flp_planner_grids_fit(p, n, chunk))
      axis_offer(&columns, chunk, flp_planner_chunks_cost(p, n, n, chunk, others), chunk_bytes(p, n, chunk, 1), budget);
  if (rows.best && columns.best) offer_backward(s, FLP_MODE_RECOMPUTE_SPLIT, rows.best, columns.best);
  if (rows.smallest && columns.smallest) offer_backward(s, FLP_MODE_RECOMPUTE_SPLIT, rows.smallest, columns.smallest);
}

static void search_modes(planner_search *s) {
  const flp_planner *p = s->planner;
  int free = !p->chunk_rows && !p->chunk_vocab, both = p->chunk_rows && p->chunk_vocab;
  int any = planner_is_free(p);
  uint32_t two = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  if (any ? free || p->chunk_vocab : p->mode == FLP_MODE_RECOMPUTE_VOCAB) search_r_vocab(s);
  if (flp_weight_is_sliced(&p->spec)) return; /* a slice meets all rows */
  if (any ? free || p->chunk_rows : p->mode == FLP_MODE_RECOMPUTE_ROWS) search_r_rows(s);
  int wants_r2 = any ? free || both : p->mode == FLP_MODE_RECOMPUTE_SPLIT;
  if (wants_r2 && (p->spec.grads & two) == two) search_r2(s);
}

/* ---- the layout that tuning preferred ---- */

/* Whether a chunk as tuned gives every multiprocessor a tile. It was timed with many rows; with so few that it does
 * not, the time does not count, and the cost model decides. */
static int fills_device(const flp_planner *p, int64_t n) {
  int64_t rows = p->tuned_rows ? flp_min(p->tuned_rows, n) : n;
  int64_t columns = p->tuned_vocab ? flp_min(p->tuned_vocab, p->spec.vocab) : p->spec.vocab;
  return flp_ceil_div(rows, p->dz_rows) * flp_ceil_div(columns, p->dz_columns) >= p->multiprocessors;
}

/* The largest chunk of one axis, at most as tuned, whose layout fits; 0: none. In R2 the other axis takes its least, as
 * the workspace is the larger of one term for each. */
static int64_t largest_tuned(const planner_search *s, sizes axis, int64_t most, int by_rows) {
  const flp_planner *p = s->planner;
  int64_t best = 0, panel_rows = flp_min(p->dz_unit_rows, s->n);
  int64_t tile = flp_min(p->dz_columns, p->spec.vocab);
  for (int64_t chunk = flp_min(most, axis.extent); chunk; chunk = sizes_next(&axis)) {
    flp_scheme candidate;
    if (chunk > most || chunk <= best) continue;
    if (!flp_planner_grids_fit(p, by_rows ? chunk : s->n, by_rows ? p->spec.vocab : chunk)) continue;
    build(p, p->tuned_mode, s->n, by_rows ? chunk : panel_rows, by_rows ? tile : chunk, &candidate);
    if (candidate.bytes <= s->budget) best = chunk;
  }
  return best;
}

/* Puts that layout in the place of what the cost model found, if it fits. */
static void prefer_tuned(planner_search *s) {
  const flp_planner *p = s->planner;
  if (!p->tuned_mode || !fills_device(p, s->n)) return;
  if (flp_weight_is_sliced(&p->spec) && p->tuned_mode != FLP_MODE_RECOMPUTE_VOCAB) return;
  int64_t rows = s->n, columns = p->spec.vocab;
  if (p->tuned_mode != FLP_MODE_RECOMPUTE_VOCAB) rows = largest_tuned(s, row_sizes(p, s->n), p->tuned_rows, 1);
  if (p->tuned_mode != FLP_MODE_RECOMPUTE_ROWS) columns = largest_tuned(s, vocab_sizes(p, s->n), p->tuned_vocab, 0);
  if (!rows || !columns) return;
  s->found = s->any = 1;
  build(p, p->tuned_mode, s->n, rows, columns, &s->best);
}

void planner_search_backward(planner_search *s) {
  search_modes(s);
  prefer_tuned(s);
}

/* ---- forward ---- */

static int64_t slices_of(const flp_planner *p, const flp_scheme *s) {
  int64_t count = 0;
  for (int64_t begin = 0; begin < p->spec.vocab; begin = flp_planner_slice_end(s, begin)) count++;
  return count;
}

/* Partials of one chunk of rows at a time; what prepare and the target scores take is for all of them. */
static void build_forward(const flp_planner *p, int64_t n, int64_t rows, int64_t slice, int ahead, int64_t first,
                          flp_scheme *s) {
  planner_begin(p, s, FLP_MODE_SCORE, n, rows, p->spec.vocab);
  planner_put_region(s, FLP_REGION_zy, n, 4);
  planner_put_part(p, s, n, rows * flp_ceil_div(p->spec.vocab, p->unit_columns));
  if (p->is_mapped) planner_put_gather(p, s, rows);
  planner_put_targets_forward(p, s, n);
  planner_put_top(p, s, n, rows);
  planner_put_slice(p, s, slice, ahead, first);
  planner_put_lora(p, s, n);
  s->products = flp_operand_terms(&p->spec);
  int64_t launches = 1 + (2 + p->is_mapped) * s->chunks; /* prepare; gather, forward, combine */
  int64_t slices = s->slice ? slices_of(p, s) : 1;
  if (s->slice) launches += (slices - 1 + (ahead ? 1 : slices)) * s->chunks; /* operand_terms */
  launches += operand_launches(s);
  launches += planner_targets_forward_launches(p, s->chunks);
  launches += planner_values_launches(p, s->chunks) + (p->spec.lora_rank > 0); /* lora_project */
  s->launches = (int32_t)flp_min(launches, INT32_MAX);
  s->seconds = s->slice ? flp_planner_slices_forward_cost(p, n, rows, s) : flp_planner_forward_cost(p, n, rows);
}

/* Slices of so many units of columns, all alike or, ahead, the first of them as three: 1, 2 and at most 4 parts of 7. */
static void offer_slices(planner_search *s, int64_t rows, int64_t unit, int64_t units) {
  const flp_planner *p = s->planner;
  int64_t columns = flp_min(units * unit, p->spec.vocab), first = flp_ceil_div(units, 7) * unit;
  int can_be_ahead = columns < p->spec.vocab && planner_makes_ahead(p);
  flp_scheme candidate;
  build_forward(p, s->n, rows, columns, 0, columns, &candidate);
  planner_offer(s, &candidate);
  for (int grows = 0; can_be_ahead && grows <= (first < columns); grows++) {
    build_forward(p, s->n, rows, columns, 1, grows ? first : columns, &candidate);
    planner_offer(s, &candidate);
  }
}

/* Whole units of columns: two leaves where kernels of mapped operands take two. */
static void search_slices(planner_search *s, int64_t rows) {
  const flp_planner *p = s->planner;
  int64_t unit = p->unit_columns * (p->is_mapped ? 2 : 1), units = flp_ceil_div(p->spec.vocab, unit);
  for (int64_t now = units; now; now = planner_fewer(units, now)) offer_slices(s, rows, unit, now);
}

void planner_search_forward(planner_search *s) {
  const flp_planner *p = s->planner;
  int64_t groups = flp_ceil_div(p->spec.vocab, p->unit_columns);
  sizes axis = sizes_along(p, s->n, p->forward_rows, groups, 0);
  for (int64_t rows; (rows = sizes_next(&axis));) {
    if (flp_ceil_div(rows, flp_max(p->least_rows, 1)) > INT32_MAX / groups) continue;
    if (flp_weight_is_sliced(&p->spec)) {
      search_slices(s, rows);
      continue;
    }
    flp_scheme candidate;
    build_forward(p, s->n, rows, p->spec.vocab, 0, p->spec.vocab, &candidate);
    planner_offer(s, &candidate);
  }
}
