/* keep.c: layouts of save and stream modes, and of a step in recompute or tail mode.
 *
 * A step in these is a forward and a backward pass over one block of rows' arrays and of workspace, each the
 * cheapest in what those arrays leave: so both are what they would be alone, and the block is as large as the larger of
 * them. */
#include "runtime/base/names.h"
#include "runtime/base/util.h"
#include "runtime/planner/internal.h"

static int32_t clamp_launches(int64_t launches) {
  return (int32_t)flp_min(launches, INT32_MAX);
}

/* Blocks start with a tile of column sums. */
static int keeps(const flp_planner *p) {
  return p->keep_rows > 0 && FLP_KEPT_BLOCK_ROWS % p->dz_rows == 0;
}

int flp_planner_has_direction(const flp_spec *spec) {
  return spec->keep && spec->grads == FLP_GRAD_HIDDEN && spec->entropy != FLP_ENTROPY_BACKWARD && spec->targets <= 1 &&
         !spec->lora_rank;
}

/* A frozen head costs two products either way, and its directions take less than exponentials where V is above 2·D. */
flp_mode flp_planner_keeps(const flp_planner *p) {
  if (p->spec.listed) return (flp_mode)0; /* lists are short, and exact */
  if (flp_kernel_spec_emits(&p->spec)) return p->emit_rows > 0 && planner_is_free(p) ? FLP_MODE_TAIL : (flp_mode)0;
  if (!keeps(p) || !p->spec.keep || !planner_is_free(p)) return (flp_mode)0;
  if (flp_mode_keeps(p->mode)) return p->mode;
  return flp_planner_has_direction(&p->spec) ? FLP_MODE_DIRECTION : FLP_MODE_SAVE;
}

int flp_planner_streams(const flp_planner *p) {
  int asked = p->mode == FLP_MODE_STREAM || (!p->mode && (!p->chunk_vocab || p->chunk_rows));
  return keeps(p) && p->spec.loss && p->spec.grads && asked && !p->mean_passes;
}

/* Rows that are put together, or times their factor in the same place. */
static void put_rows_together(const flp_planner *p, flp_scheme *s, int64_t rows) {
  if (p->is_mapped || planner_wants(p->spec.grads, FLP_GRAD_WEIGHT)) planner_put_gather(p, s, rows);
}

/* rows: of a chunk */
static void put_kept(const flp_planner *p, flp_scheme *s, int64_t n, int64_t rows) {
  planner_put_region(s, FLP_REGION_record, n, 16);
  PLANNER_PUT_EACH(s, n, 4, FLP_REGION_bound, FLP_REGION_factor);
  planner_put_region(s, FLP_REGION_redo, planner_redo_blocks(rows), 4);
  planner_put_pair(p, s, n);
  planner_put_lora_kept(p, s, n, rows);
  put_rows_together(p, s, rows);
  planner_put_region(s, FLP_REGION_bias_part, 1, planner_bias_part_bytes(p, rows, p->spec.vocab));
}

/* Launches that make gradients of a chunk of saved exponentials; without those for its blocks. */
static int64_t chunk_launches(const flp_planner *p, int expands) {
  uint32_t grads = p->spec.grads;
  int hidden = planner_wants(grads, FLP_GRAD_HIDDEN), weight = planner_wants(grads, FLP_GRAD_WEIGHT);
  /* record, keep_finish; keep_expand; keep_gather; products; bias_reduce */
  return 2 + expands + weight + (p->is_mapped ? hidden | weight : hidden + weight) +
         planner_wants(grads, FLP_GRAD_BIAS);
}

void planner_search_saved(planner_search *s) {
  const flp_planner *p = s->planner;
  int64_t n = s->n;
  flp_scheme only;
  if (!flp_planner_grids_fit(p, n, p->spec.vocab)) return;
  planner_begin(p, &only, FLP_MODE_SAVE, n, n, p->spec.vocab);
  only.products = planner_wants(p->spec.grads, FLP_GRAD_HIDDEN) + planner_wants(p->spec.grads, FLP_GRAD_WEIGHT);
  planner_put_targets_backward(p, &only, n);
  put_kept(p, &only, n, n);
  /* prepare, gather, fill */
  int64_t others = 1 + p->is_mapped + planner_wants(p->spec.grads, FLP_GRAD_HIDDEN);
  only.launches = clamp_launches(others + chunk_launches(p, p->saved_expands) + planner_redo_blocks(n) +
                                 planner_targets_backward_launches(p, 1, 2) + planner_lora_kept_launches(p, 1));
  only.seconds = flp_planner_saved_cost(p, n);
  planner_offer(s, &only);
}

/* ---- a step ---- */

/* What passes from forward to loss to gradients, by row, and of a logprob by target. */
void planner_put_step_rows(const flp_planner *p, flp_scheme *s, int64_t n) {
  int64_t targets = flp_max(p->spec.targets, 1);
  planner_put_region(s, FLP_REGION_stats, n, 16);
  planner_put_region(s, FLP_REGION_logprob, n * targets, 4);
  planner_put_region(s, FLP_REGION_entropy, p->spec.entropy ? n : 0, 4);
  planner_put_region(s, FLP_REGION_grad_logprob, p->spec.grads ? n * targets : 0, 4);
  planner_put_region(s, FLP_REGION_grad_entropy, p->spec.grads && p->step_entropy ? n : 0, 4);
  planner_put_scores(p, s, n);
}

static int64_t stream_launches(const flp_planner *p, int64_t n, int64_t rows) {
  int64_t chunks = flp_ceil_div(n, rows);
  int64_t blocks = n / rows * planner_redo_blocks(rows) + planner_redo_blocks(n % rows);
  /* gather, forward over the first columns, keep_reference, forward_keep, combine, loss_rows */
  int64_t each = 5 + p->is_mapped + chunk_launches(p, p->step_expands);
  return 2 + planner_wants(p->spec.grads, FLP_GRAD_HIDDEN) + chunks * each +
         planner_scores_launches(p, chunks * (p->step_expands ? 1 : 2), chunks) + planner_values_launches(p, chunks) +
         planner_targets_step_launches(p, chunks) + planner_lora_kept_launches(p, chunks) +
         blocks; /* prepare, loss_rows of inactive rows, fill */
}

static void build_stream(const flp_planner *p, int64_t n, int64_t rows, flp_scheme *s) {
  planner_begin(p, s, FLP_MODE_STREAM, n, rows, p->spec.vocab);
  s->products = 1 + planner_wants(p->spec.grads, FLP_GRAD_HIDDEN) + planner_wants(p->spec.grads, FLP_GRAD_WEIGHT);
  planner_put_step_rows(p, s, n);
  planner_put_region(s, FLP_REGION_zy, n, 4);
  planner_put_part(p, s, n, rows * flp_ceil_div(p->spec.vocab, p->unit_columns));
  planner_put_targets_forward(p, s, n);
  planner_put_targets_backward(p, s, n);
  planner_put_region(s, FLP_REGION_reference, n, 4);
  planner_put_region(s, FLP_REGION_dz, 1, planner_dz_bytes(p, rows, p->spec.vocab));
  put_kept(p, s, n, rows);
  planner_put_top(p, s, n, rows);
  if (s->chunks > 1) planner_put_head_accumulators(p, s);
  s->launches = clamp_launches(stream_launches(p, n, rows));
  s->seconds = flp_planner_stream_cost(p, n, rows) + planner_scores_cost(p, n);
}

static void offer_stream(planner_search *s, int64_t rows) {
  const flp_planner *p = s->planner;
  flp_scheme candidate;
  int64_t groups = flp_ceil_div(p->spec.vocab, p->unit_columns);
  rows = flp_min(rows, s->n);
  if (flp_ceil_div(rows, p->keep_rows) > INT32_MAX / groups || !flp_planner_grids_fit(p, rows, p->spec.vocab)) return;
  build_stream(p, s->n, rows, &candidate);
  planner_offer(s, &candidate);
}

/* Every number of row panels up to where a chunk's exponentials are tens of gigabytes, then those that divide n
 * evenly. */
static void search_stream(planner_search *s) {
  enum { PANELS_TRIED = 256 };
  const flp_planner *p = s->planner;
  int64_t panel_rows = flp_max(p->keep_rows, p->dz_unit_rows), panels = flp_ceil_div(s->n, panel_rows);
  if (p->chunk_rows) {
    offer_stream(s, p->chunk_rows);
    return;
  }
  int64_t count = panels;
  for (; count > PANELS_TRIED; count = planner_fewer(panels, count)) offer_stream(s, count * panel_rows);
  for (count = flp_min(panels, PANELS_TRIED); count > 0; count--) offer_stream(s, count * panel_rows);
}

/* Chunks as tuned: before what the cost model finds, if they fit and it puts them before recompute mode. */
static int offer_tuned(planner_search *s) {
  int64_t rows = s->planner->tuned_step_rows;
  if (!rows || rows >= s->n || s->planner->chunk_rows) return 0;
  offer_stream(s, rows);
  return s->found && s->best.mode == FLP_MODE_STREAM;
}

int flp_planner_pick_flat(const flp_planner *p, int64_t n, uint64_t bytes, flp_scheme *out) {
  planner_search s = {.planner = p, .n = n, .budget = bytes};
  if (!keeps(p) || !flp_kernel_spec_flat(&p->spec) || p->chunk_vocab) return 0;
  offer_tuned(&s);
  if (!s.found) search_stream(&s);
  *out = s.best;
  return s.found;
}

/* What the order for flat rows adds to a step, if the budget holds it. */
static void add_flat(const flp_planner *p, int64_t n, uint64_t budget, int64_t forward_chunks, flp_scheme *step) {
  flp_scheme flat;
  uint64_t begin = flp_planner_flat_begin(step);
  if (!flp_planner_pick_flat(p, n, budget > begin ? budget - begin : 0, &flat)) {
    step->size[FLP_REGION_flat] = 0;
    return;
  }
  /* gather, forward over the first columns and flat_rows; flat_gate of four passes; of stream mode neither the loss of
   * idle rows nor fill */
  int64_t own = (2 + p->is_mapped) * forward_chunks + 4;
  int64_t launches = step->launches + own + flat.launches - 1 - planner_wants(p->spec.grads, FLP_GRAD_HIDDEN);
  step->launches = clamp_launches(launches);
  step->bytes = flp_max_u64(step->bytes, begin + flat.bytes);
}

/* Forward, the loss of all rows, backward: exact, or in tail mode, where the step holds what passes between them. */
static void offer_passes(planner_search *s, int is_tail) {
  const flp_planner *p = s->planner;
  flp_scheme own = {.mode = FLP_MODE_SCORE};
  planner_put_step_rows(p, &own, s->n);
  if (is_tail) {
    if (keeps(p) && flp_kernel_spec_flat(&p->spec)) planner_put_region(&own, FLP_REGION_flat, 2, 4);
    planner_put_region(&own, FLP_REGION_tail_saved, 1, flp_planner_tail_saved(&p->spec, s->n).bytes);
  }
  uint64_t left = s->budget > own.bytes ? s->budget - own.bytes : 0;
  planner_search forward = {.planner = p, .n = s->n, .budget = left}, backward = forward;
  (is_tail ? planner_search_tail : planner_search_forward)(&forward);
  if (p->spec.grads)
    (is_tail ? planner_search_tail_rows : planner_search_backward)(&backward);
  else
    backward.any = backward.found = 1;
  if (!forward.any || !backward.any) return;
  uint64_t smallest = own.bytes + flp_max_u64(forward.smallest, backward.smallest);
  if (!s->any || smallest < s->smallest) s->smallest = smallest;
  s->any = 1;
  if (!forward.found || !backward.found || own.bytes > s->budget) return;
  flp_scheme both = own;
  const flp_scheme *shown = p->spec.grads ? &backward.best : &forward.best;
  both.mode = shown->mode;
  both.chunk_rows = shown->chunk_rows;
  both.chunk_vocab = shown->chunk_vocab;
  both.chunks = shown->chunks;
  both.products = forward.best.products + backward.best.products;
  if (p->mean_passes && !p->spec.listed)
    both.products += 1 + (p->spec.grads ? (both.mode == FLP_MODE_RECOMPUTE_SPLIT ? 2 : 1) : 0);
  both.passes = own.bytes;
  both.bytes = own.bytes + flp_max_u64(forward.best.bytes, backward.best.bytes);
  both.seconds = forward.best.seconds + backward.best.seconds + planner_scores_cost(p, s->n);
  /* The loss of active rows, and of idle ones. */
  int64_t launches = (1 + p->mean_passes) * (int64_t)forward.best.launches + backward.best.launches + 2;
  both.launches = clamp_launches(launches + planner_scores_launches(p, forward.best.chunks, both.chunks));
  if (both.size[FLP_REGION_flat]) add_flat(p, s->n, s->budget, forward.best.chunks, &both);
  planner_offer(s, &both);
}

uint64_t flp_planner_tail_step_least(const flp_planner *p, int64_t n) {
  planner_search s = {.planner = p, .n = n};
  offer_passes(&s, 1);
  return s.smallest;
}

static void search_exact(planner_search *s) {
  if (s->planner->mode != FLP_MODE_STREAM) offer_passes(s, 0);
  if (!flp_planner_streams(s->planner)) return;
  int is_tuned = offer_tuned(s);
  flp_scheme tuned = s->best;
  search_stream(s); /* for what is the smallest, too */
  if (is_tuned) s->best = tuned;
}

/* Tail mode is asked for, so it is taken where it fits, whatever the cost model says of a few rows. */
void planner_search_step(planner_search *s) {
  planner_search exact = *s;
  search_exact(&exact);
  if (flp_planner_keeps(s->planner) == FLP_MODE_TAIL) offer_passes(s, 1);
  if (!s->found) {
    s->found = exact.found;
    s->best = exact.best;
  }
  if (exact.any && (!s->any || exact.smallest < s->smallest)) s->smallest = exact.smallest;
  s->any |= exact.any;
}
