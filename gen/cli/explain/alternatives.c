/* alternatives.c: flop, workspace and memory traffic of the naive form and of each mode.
 *
 * Invariant: workspace of a mode is the planner's answer to the query that a plan asks, for that mode alone; where the
 * plan takes the mode it is the plan's own. */
#include <math.h>

#include "gen/cli/explain/explain.h"
#include "gen/cli/shared/cost.h"
#include "runtime/base/names.h"
#include "runtime/kernel/kernel.h"

static int count_bits(uint32_t grads, uint32_t which) {
  return __builtin_popcount(grads & which);
}

/* Products of a backward pass that makes dz once: dz, dh, dW. */
static int backward_products(const flp_spec *spec) {
  return spec->grads ? 1 + count_bits(spec->grads, FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT) : 0;
}

static double element_bytes(const flp_spec *spec) {
  return (double)flp_dtype_bytes(spec->dtype);
}

static double dz_traffic(const flp_spec *spec, int64_t n) {
  return element_bytes(spec) * (double)n * (double)spec->vocab;
}

/* Materialised fp32 scores: written, read for the log-softmax, which is written; in backward it is read, dz written
 * over it and read once for each product. */
static explain_alternative naive(const flp_spec *spec, int64_t n, int backward) {
  cli_naive bytes = cli_naive_of(spec, n);
  int reads = count_bits(spec->grads, FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT);
  explain_alternative alternative = {.name = backward ? "naive, forward + backward" : "naive, forward",
                                     .fit = EXPLAIN_FITS};
  alternative.products = 1 + (backward ? reads : 0);
  alternative.workspace = alternative.least = backward ? bytes.backward : bytes.forward;
  alternative.traffic =
      alternative.products * cli_input_bytes(spec, n) + (3.0 + (backward ? 2.0 + reads : 0.0)) * bytes.scores;
  if (backward) alternative.traffic += cli_output_bytes(spec, n);
  return alternative;
}

/* ---- what the planner answers ---- */

/* The query of a plan; where nothing fits, again with the least that would do. */
static explain_fit query(const flp_planner *planner, flp_pass pass, int64_t n, uint64_t budget, flp_scheme *out) {
  if (flp_planner_pick(planner, pass, n, budget, 1, out) == FLP_OK)
    return out->bytes + out->saved_bytes <= budget ? EXPLAIN_FITS : EXPLAIN_BEYOND;
  uint64_t least = out->smallest_bytes + out->saved_bytes;
  if (least > budget) flp_planner_pick(planner, pass, n, least, 1, out);
  return EXPLAIN_LEAST;
}

/* A planner that is asked for one mode; chunk sizes and tuned layouts of other modes are let go. */
static flp_planner restricted(const flp_planner *planner, flp_mode mode) {
  flp_planner unpinned = *planner;
  if (mode == FLP_MODE_TAIL) return unpinned; /* the spec asks for it */
  unpinned.mode = mode;
  unpinned.spec.tail = 0;
  if (mode == FLP_MODE_RECOMPUTE_VOCAB) unpinned.chunk_rows = 0;
  if (mode == FLP_MODE_RECOMPUTE_ROWS || mode == FLP_MODE_STREAM) unpinned.chunk_vocab = 0;
  if (unpinned.tuned_mode != mode) unpinned.tuned_mode = (flp_mode)0;
  return unpinned;
}

explain_fit explain_query(const flp_planner *planner, flp_pass pass, flp_mode mode, int64_t n, uint64_t budget,
                          flp_scheme *out) {
  explain_fit fit = query(planner, pass, n, budget, out);
  if (fit != EXPLAIN_LEAST && out->mode == mode) return fit;
  flp_planner unpinned = restricted(planner, mode);
  return query(&unpinned, pass, n, budget, out);
}

explain_fit explain_query_saved(const flp_planner *planner, flp_mode mode, int64_t n, uint64_t budget,
                                explain_saved *out) {
  flp_planner unpinned = restricted(planner, mode);
  flp_scheme forward, backward;
  explain_fit first = query(&unpinned, FLP_PASS_FORWARD_SAVED, n, budget, &forward);
  explain_fit second = query(&unpinned, FLP_PASS_BACKWARD_SAVED, n, budget, &backward);
  out->forward = forward;
  out->kept = backward.saved_bytes;
  out->workspace = forward.bytes > backward.bytes ? forward.bytes : backward.bytes;
  out->least = backward.saved_bytes +
               (forward.smallest_bytes > backward.smallest_bytes ? forward.smallest_bytes : backward.smallest_bytes);
  return first == EXPLAIN_FITS ? second : first;
}

static void set_scheme(explain_alternative *alternative, const flp_scheme *scheme) {
  alternative->workspace = (double)scheme->bytes;
  alternative->least = (double)scheme->smallest_bytes;
  alternative->chunk_rows = scheme->chunk_rows;
  alternative->chunk_vocab = scheme->chunk_vocab;
  alternative->chunks = scheme->chunks;
}

static void set_saved(explain_alternative *alternative, explain_fit fit, const explain_saved *bytes) {
  set_scheme(alternative, &bytes->forward);
  alternative->fit = fit;
  alternative->workspace = (double)(bytes->kept + bytes->workspace);
  alternative->least = (double)bytes->least;
}

/* ---- ways ---- */

/* Every array of the workspace is written and read once, those of a chunk of rows once a chunk. */
static explain_alternative forward(const flp_planner *planner, int64_t n, uint64_t budget) {
  flp_scheme scheme;
  explain_alternative alternative = {.name = flp_mode_name(FLP_MODE_SCORE), .products = 1};
  alternative.fit = query(planner, FLP_PASS_FORWARD, n, budget, &scheme);
  set_scheme(&alternative, &scheme);
  double again = scheme.chunk_rows > 0 ? (double)n / (double)scheme.chunk_rows - 1 : 0;
  double of_chunk = (double)(scheme.size[FLP_REGION_part] + scheme.size[FLP_REGION_gather]);
  alternative.traffic = cli_input_bytes(&planner->spec, n) + 2.0 * (alternative.workspace + again * of_chunk);
  return alternative;
}

/* Bytes of the weight's gradient as chunks of rows leave it for the next. */
static double weight_sums(const flp_planner *planner, int64_t chunks) {
  return flp_planner_weight_sum_bytes(planner, chunks) * (double)planner->spec.hidden * (double)planner->spec.vocab;
}

static explain_alternative chunked(const flp_planner *planner, int64_t n, uint64_t budget, int by_rows) {
  const flp_spec *spec = &planner->spec;
  flp_scheme scheme;
  explain_alternative alternative = {.name =
                                         flp_mode_name(by_rows ? FLP_MODE_RECOMPUTE_ROWS : FLP_MODE_RECOMPUTE_VOCAB)};
  alternative.fit = explain_query(planner, FLP_PASS_BACKWARD,
                                  by_rows ? FLP_MODE_RECOMPUTE_ROWS : FLP_MODE_RECOMPUTE_VOCAB, n, budget, &scheme);
  alternative.products = 1 + backward_products(spec);
  set_scheme(&alternative, &scheme);
  double passes = scheme.chunks > 0 ? 2.0 * (double)(scheme.chunks - 1) : 0.0;
  double accumulator = by_rows ? weight_sums(planner, scheme.chunks) : 4.0 * (double)spec->hidden * (double)n;
  if (!(spec->grads & (by_rows ? FLP_GRAD_WEIGHT : FLP_GRAD_HIDDEN))) accumulator = 0.0;
  alternative.traffic = 2.0 * cli_input_bytes(spec, n) + cli_output_bytes(spec, n) + passes * accumulator +
                        (1.0 + count_bits(spec->grads, FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT)) * dz_traffic(spec, n);
  return alternative;
}

static explain_alternative twice(const flp_planner *planner, int64_t n, uint64_t budget) {
  const flp_spec *spec = &planner->spec;
  flp_scheme scheme;
  explain_alternative alternative = {.name = flp_mode_name(FLP_MODE_RECOMPUTE_SPLIT), .products = 5};
  alternative.fit = explain_query(planner, FLP_PASS_BACKWARD, FLP_MODE_RECOMPUTE_SPLIT, n, budget, &scheme);
  set_scheme(&alternative, &scheme);
  alternative.traffic = 3.0 * cli_input_bytes(spec, n) + cli_output_bytes(spec, n) + 4.0 * dz_traffic(spec, n);
  return alternative;
}

/* Exponentials are written once, read by each product; in the expanded form they are turned into dz between. */
static explain_alternative saved(const flp_planner *planner, int64_t n, uint64_t budget) {
  const flp_spec *spec = &planner->spec;
  int products = count_bits(spec->grads, FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT), passes = planner->saved_expands ? 3 : 1;
  explain_saved bytes;
  explain_alternative alternative = {.name = flp_mode_name(FLP_MODE_SAVE), .products = 1 + products};
  set_saved(&alternative, explain_query_saved(planner, FLP_MODE_SAVE, n, budget, &bytes), &bytes);
  alternative.chunk_rows = n;
  alternative.chunk_vocab = spec->vocab;
  alternative.chunks = 1;
  alternative.traffic =
      2.0 * cli_input_bytes(spec, n) + cli_output_bytes(spec, n) + (passes + products) * dz_traffic(spec, n);
  return alternative;
}

/* Exponentials of each chunk are written and read once. Sums are written once a chunk of columns, read by the next and
 * by backward. The weight is read again by each chunk of rows, and for the targets. */
static explain_alternative directed(const flp_planner *planner, int64_t n, uint64_t budget) {
  const flp_spec *spec = &planner->spec;
  explain_saved bytes;
  explain_alternative alternative = {.name = flp_mode_name(FLP_MODE_DIRECTION), .products = 2};
  set_saved(&alternative, explain_query_saved(planner, FLP_MODE_DIRECTION, n, budget, &bytes), &bytes);
  double row_chunks = ceil((double)n / fmax((double)alternative.chunk_rows, 1)), element = element_bytes(spec);
  double pieces = row_chunks > 0 ? (double)alternative.chunks / row_chunks : 0,
         elements = (double)n * (double)spec->hidden;
  double weight = element * (double)spec->vocab * (double)spec->hidden;
  alternative.traffic = 2.0 * cli_input_bytes(spec, n) + cli_output_bytes(spec, n) + 2.0 * dz_traffic(spec, n) +
                        2.0 * pieces * 4.0 * elements + 2.0 * fmax(row_chunks - 1, 0) * weight + element * elements;
  return alternative;
}

static explain_alternative streamed(const flp_planner *planner, int64_t n, uint64_t budget) {
  const flp_spec *spec = &planner->spec;
  int products = count_bits(spec->grads, FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT), passes = planner->step_expands ? 3 : 1;
  flp_scheme scheme;
  explain_alternative alternative = {.name = flp_mode_name(FLP_MODE_STREAM), .products = 1 + products};
  alternative.fit = explain_query(planner, FLP_PASS_STEP, FLP_MODE_STREAM, n, budget, &scheme);
  set_scheme(&alternative, &scheme);
  double accumulator = spec->grads & FLP_GRAD_WEIGHT ? weight_sums(planner, scheme.chunks) : 0.0;
  double rest = scheme.chunks > 0 ? (double)(scheme.chunks - 1) : 0.0;
  alternative.traffic = 2.0 * cli_input_bytes(spec, n) + cli_output_bytes(spec, n) + 2.0 * rest * accumulator +
                        (passes + products) * dz_traffic(spec, n);
  return alternative;
}

int64_t explain_list_count(double kept, int64_t n) {
  return (int64_t)llround(kept * (double)n);
}

/* One pass over lists; its flop and workspace are the planner's. Returns whether it fits. */
static explain_fit list_pass(const flp_planner *planner, flp_pass pass, int64_t n, int64_t ids, uint64_t budget,
                             explain_alternative *sum) {
  flp_scheme scheme;
  flp_layout layout = FLP_LAYOUT_INIT;
  flp_status status = flp_planner_pick_listed(planner, pass, n, ids, budget, &scheme);
  flp_planner_describe_listed(planner, pass, &scheme, n, ids, &layout);
  sum->flops += layout.flops;
  sum->workspace = fmax(sum->workspace, (double)scheme.bytes);
  sum->least = fmax(sum->least, (double)scheme.smallest_bytes);
  sum->chunks = scheme.chunks;
  return status == FLP_OK ? EXPLAIN_FITS : EXPLAIN_LEAST;
}

/* Hidden once a pass, and of the weight what is listed, which may be less than all of it; the ids, and the workspace
 * written and read. */
static explain_alternative listed(const flp_planner *planner, double kept, int64_t n, uint64_t forward_budget,
                                  uint64_t backward_budget) {
  const flp_spec *spec = &planner->spec;
  int64_t ids = explain_list_count(kept, n);
  int passes = spec->grads ? 2 : 1;
  explain_alternative alternative = {
      .name = flp_mode_name(FLP_MODE_LISTED), .chunk_rows = n, .chunk_vocab = spec->vocab};
  alternative.fit = list_pass(planner, FLP_PASS_FORWARD, n, ids, forward_budget, &alternative);
  if (spec->grads && list_pass(planner, FLP_PASS_BACKWARD, n, ids, backward_budget, &alternative) == EXPLAIN_LEAST)
    alternative.fit = EXPLAIN_LEAST;
  double rows = (double)n + fmin((double)ids, (double)spec->vocab);
  double list_bytes = 8.0 * (double)n + (double)flp_dtype_bytes(spec->target_dtype) * (double)ids;
  alternative.traffic = passes * (element_bytes(spec) * rows * (double)spec->hidden + list_bytes) +
                        2.0 * alternative.workspace + cli_output_bytes(spec, n);
  return alternative;
}

/* If no row were recomputed: forward, and what it lists written and read again; gradients are written once. */
static explain_alternative tailed(const flp_planner *planner, int64_t n, uint64_t budget) {
  const flp_spec *spec = &planner->spec;
  explain_saved bytes;
  explain_alternative alternative = {.name = flp_mode_name(FLP_MODE_TAIL), .products = 1};
  set_saved(&alternative, explain_query_saved(planner, FLP_MODE_TAIL, n, budget, &bytes), &bytes);
  alternative.traffic = cli_input_bytes(spec, n) + cli_output_bytes(spec, n) + 2.0 * (double)bytes.kept;
  return alternative;
}

int explain_alternatives(const flp_planner *planner, double kept, int64_t n, uint64_t forward_budget,
                         uint64_t backward_budget, explain_alternative out[EXPLAIN_ALTERNATIVES_MAX]) {
  const flp_spec *spec = &planner->spec;
  uint32_t both = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  int count = 0;
  out[count++] = naive(spec, n, 0);
  if (spec->listed) {
    if (spec->grads) out[count++] = naive(spec, n, 1);
    for (int i = 0; i < count; i++) out[i].flops = out[i].products * cli_product_flops(spec, n);
    out[count++] = listed(planner, kept, n, forward_budget, backward_budget);
    return count;
  }
  out[count++] = forward(planner, n, forward_budget);
  if (spec->grads) {
    out[count++] = naive(spec, n, 1);
    out[count++] = chunked(planner, n, backward_budget, 0);
    out[count++] = chunked(planner, n, backward_budget, 1);
    if ((spec->grads & both) == both) out[count++] = twice(planner, n, backward_budget);
  }
  if (flp_kernel_spec_emits(spec)) out[count++] = tailed(planner, n, backward_budget);
  if (planner->keep_rows && spec->keep) out[count++] = saved(planner, n, backward_budget);
  if (planner->keep_rows && flp_planner_has_direction(spec)) out[count++] = directed(planner, n, backward_budget);
  flp_planner streaming = restricted(planner, FLP_MODE_STREAM);
  if (flp_planner_streams(&streaming)) out[count++] = streamed(planner, n, backward_budget);
  for (int i = 0; i < count; i++) out[i].flops = out[i].products * cli_product_flops(spec, n);
  return count;
}
