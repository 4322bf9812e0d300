/* ways.c: flop, workspace and memory traffic of the naive way and of each mode. */
#include <string.h>

#include "gen/cli/explain/explain.h"
#include "gen/cli/shared/cost.h"
#include "runtime/base/names.h"
#include "runtime/base/util.h"
#include "runtime/kernel/kernel.h"

static int count_bits(uint32_t grads, uint32_t which) {
  return __builtin_popcount(grads & which);
}

/* Products of a backward pass that makes dz once: dz, dh, dW. */
static int backward_products(const flp_spec *spec) {
  return spec->grads ? 1 + count_bits(spec->grads, FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT) : 0;
}

static double dz_traffic(const flp_spec *spec, int64_t n) {
  return (double)flp_dtype_bytes(spec->dtype) * (double)n * (double)spec->vocab;
}

/* Materialised fp32 scores: written, read for the log-softmax, which is written; in backward it is read, dz written
 * over it and read once for each product. */
static explain_way naive(const flp_spec *spec, int64_t n, int backward) {
  cli_naive bytes = cli_naive_of(spec, n);
  int reads = count_bits(spec->grads, FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT);
  explain_way way = {.name = backward ? "naive, forward + backward" : "naive, forward", .fits = 1};
  way.products = 1 + (backward ? reads : 0);
  way.workspace = backward ? bytes.backward : bytes.forward;
  way.traffic = way.products * cli_input_bytes(spec, n) + (3.0 + (backward ? 2.0 + reads : 0.0)) * bytes.scores;
  if (backward) way.traffic += cli_output_bytes(spec, n);
  return way;
}

static explain_way forward(const flp_planner *planner, int64_t n, uint64_t budget) {
  flp_scheme scheme;
  explain_way way = {.name = flp_mode_name(FLP_MODE_SCORE), .products = 1};
  flp_status status = flp_planner_pick(planner, FLP_PASS_FORWARD, n, UINT64_MAX, 0, &scheme);
  way.workspace = status == FLP_OK ? (double)scheme.bytes : 0.0;
  way.fits = status == FLP_OK && scheme.bytes <= budget;
  way.traffic = cli_input_bytes(&planner->spec, n) + 2.0 * way.workspace;
  return way;
}

/* The largest chunk along one axis whose workspace fits, halving from all of it. 1 if one fits. */
static int pick_chunk(flp_planner planner, int64_t n, uint64_t budget, int by_rows, flp_scheme *out) {
  int64_t extent = by_rows ? n : planner.spec.vocab, tile = by_rows ? planner.dz_band : planner.dz_columns;
  for (int64_t chunk = extent;; chunk = flp_ceil_div(flp_ceil_div(chunk, 2), tile) * tile) {
    planner.chunk_rows = by_rows ? chunk : 0;
    planner.chunk_vocab = by_rows ? 0 : chunk;
    if (flp_planner_pick(&planner, FLP_PASS_BACKWARD, n, budget, 0, out) == FLP_OK) return 1;
    if (chunk <= tile) break;
  }
  return flp_planner_pick(&planner, FLP_PASS_BACKWARD, n, UINT64_MAX, 0, out) == FLP_OK ? 0 : -1;
}

static explain_way chunked(const flp_planner *planner, int64_t n, uint64_t budget, int by_rows) {
  const flp_spec *spec = &planner->spec;
  flp_scheme scheme;
  memset(&scheme, 0, sizeof scheme);
  explain_way way = {.name = flp_mode_name(by_rows ? FLP_MODE_RECOMPUTE_ROWS : FLP_MODE_RECOMPUTE_VOCAB)};
  way.fits = pick_chunk(*planner, n, budget, by_rows, &scheme) == 1;
  way.products = 1 + backward_products(spec);
  way.workspace = (double)scheme.bytes;
  double passes = scheme.chunks > 0 ? 2.0 * (double)(scheme.chunks - 1) : 0.0;
  double accumulator = 4.0 * (double)spec->hidden * (double)(by_rows ? spec->vocab : n);
  if (!(spec->grads & (by_rows ? FLP_GRAD_WEIGHT : FLP_GRAD_HIDDEN))) accumulator = 0.0;
  way.traffic = 2.0 * cli_input_bytes(spec, n) + cli_output_bytes(spec, n) + passes * accumulator +
                (1.0 + count_bits(spec->grads, FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT)) * dz_traffic(spec, n);
  return way;
}

static explain_way twice(flp_planner planner, int64_t n, uint64_t budget) {
  const flp_spec *spec = &planner.spec;
  flp_scheme scheme;
  explain_way way = {.name = flp_mode_name(FLP_MODE_RECOMPUTE_SPLIT), .products = 5};
  planner.chunk_rows = planner.chunk_vocab = 0;
  planner.mode = FLP_MODE_RECOMPUTE_SPLIT;
  way.fits = flp_planner_pick(&planner, FLP_PASS_BACKWARD, n, budget, 0, &scheme) == FLP_OK;
  way.workspace = (double)(way.fits ? scheme.bytes : scheme.smallest_bytes);
  way.traffic = 3.0 * cli_input_bytes(spec, n) + cli_output_bytes(spec, n) + 4.0 * dz_traffic(spec, n);
  return way;
}

/* Exponentials are written once, read by each product; in the expanded form they are turned into dz between. */
static explain_way saved(const flp_planner *planner, int64_t n, uint64_t budget) {
  const flp_spec *spec = &planner->spec;
  int products = count_bits(spec->grads, FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT), passes = planner->saved_expands ? 3 : 1;
  flp_planner own = *planner;
  own.mode = (flp_mode)0;
  flp_scheme scheme;
  explain_way way = {.name = flp_mode_name(FLP_MODE_SAVE), .products = 1 + products};
  way.fits = flp_planner_saved(&own, n, budget) > 0;
  flp_planner_pick(&own, FLP_PASS_BACKWARD_SAVED, n, UINT64_MAX, 1, &scheme);
  way.workspace = (double)(scheme.saved_bytes + scheme.bytes);
  way.traffic = 2.0 * cli_input_bytes(spec, n) + cli_output_bytes(spec, n) + (passes + products) * dz_traffic(spec, n);
  return way;
}

static explain_way streamed(const flp_planner *planner, int64_t n, uint64_t budget) {
  const flp_spec *spec = &planner->spec;
  flp_planner own = *planner;
  own.mode = FLP_MODE_STREAM;
  int products = count_bits(spec->grads, FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT), passes = planner->step_expands ? 3 : 1;
  flp_scheme scheme;
  explain_way way = {.name = flp_mode_name(FLP_MODE_STREAM), .products = 1 + products};
  way.fits = flp_planner_pick(&own, FLP_PASS_STEP, n, budget, 0, &scheme) == FLP_OK;
  if (!way.fits) flp_planner_pick(&own, FLP_PASS_STEP, n, UINT64_MAX, 0, &scheme);
  way.workspace = (double)(way.fits ? scheme.bytes : scheme.smallest_bytes);
  double accumulator = spec->grads & FLP_GRAD_WEIGHT ? 4.0 * (double)spec->hidden * (double)spec->vocab : 0.0;
  double rest = scheme.chunks > 0 ? (double)(scheme.chunks - 1) : 0.0;
  way.traffic = 2.0 * cli_input_bytes(spec, n) + cli_output_bytes(spec, n) + 2.0 * rest * accumulator +
                (passes + products) * dz_traffic(spec, n);
  return way;
}

int explain_ways(const flp_planner *planner, int64_t n, uint64_t forward_budget, uint64_t backward_budget,
                 explain_way out[EXPLAIN_WAYS_MAX]) {
  const flp_spec *spec = &planner->spec;
  uint32_t both = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  int count = 0;
  out[count++] = naive(spec, n, 0);
  out[count++] = forward(planner, n, forward_budget);
  if (spec->grads) {
    out[count++] = naive(spec, n, 1);
    out[count++] = chunked(planner, n, backward_budget, 0);
    out[count++] = chunked(planner, n, backward_budget, 1);
    if ((spec->grads & both) == both) out[count++] = twice(*planner, n, backward_budget);
  }
  if (planner->keep_rows && spec->keep) out[count++] = saved(planner, n, backward_budget);
  if (spec->loss && flp_planner_streams(planner)) out[count++] = streamed(planner, n, backward_budget);
  for (int i = 0; i < count; i++) out[i].flops = out[i].products * cli_product_flops(spec, n);
  return count;
}
