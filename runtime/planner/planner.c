/* planner.c: picks the layout of a pass: the cheapest of those that search.c and keep.c offer and a budget holds. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/names.h"
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/planner/internal.h"

/* ---- passes ---- */

static const char *const pass_names[] = {
    [FLP_PASS_FORWARD] = "forward", [FLP_PASS_COMBINE] = "combine",         [FLP_PASS_BACKWARD] = "backward",
    [FLP_PASS_STEP] = "step",       [FLP_PASS_BACKWARD_SAVED] = "backward", [FLP_PASS_FORWARD_SAVED] = "forward",
    [FLP_PASS_BACKWARD_GIVEN] = "backward"};

static flp_status grid_too_large(flp_pass pass, int64_t n) {
  return flp_fail(FLP_ERROR_UNSUPPORTED, "n is %" PRId64 ": the %s pass would need a grid of more than 2^31 - 1 CTAs",
                  n, pass_names[pass]);
}

static flp_status too_many_targets(const flp_spec *spec, int64_t n) {
  return flp_fail(FLP_ERROR_UNSUPPORTED, "n is %" PRId64 " with spec.targets %d (accepted: up to %" PRId64 " rows)", n,
                  spec->targets, flp_planner_targets_rows_max(spec));
}

static flp_status over_budget(flp_pass pass, int64_t n, uint64_t budget, uint64_t smallest, uint64_t saved) {
  char with[64] = "";
  if (saved) snprintf(with, sizeof with, ", %" PRIu64 " of them for what forward keeps", saved);
  return flp_fail(FLP_ERROR_BUDGET,
                  "budget: %" PRIu64 " bytes are too few for the %s pass over %" PRId64 " rows; %" PRIu64
                  " bytes or more are accepted%s",
                  budget, pass_names[pass], n, smallest + saved, with);
}

/* ---- modes in which forward keeps something for backward ---- */

typedef struct kept_mode {
  flp_mode forward; /* of the layouts of the forward pass that keeps it */
  flp_pass chunked; /* of the two the one that explicit chunk sizes are of: they override its budget; 0: none */
  void (*search_forward)(planner_search *s);
  void (*search_backward)(planner_search *s);
  uint64_t (*bytes)(const flp_spec *spec, int64_t n); /* what is kept */
} kept_mode;

static void search_nothing(planner_search *s) {
  (void)s;
}

static void search_forward_saved(planner_search *s) {
  planner_search_forward(s);
  int64_t launches = s->best.launches + 2 * s->best.chunks; /* forward over the first columns, keep_reference */
  s->best.launches = (int32_t)flp_min(launches, INT32_MAX);
}

static uint64_t directions_bytes(const flp_spec *spec, int64_t n) {
  return 2 * flp_planner_references_bytes(n) + (uint64_t)n * (uint64_t)spec->hidden * sizeof(float);
}

static uint64_t lists_bytes(const flp_spec *spec, int64_t n) {
  return flp_planner_tail_saved(spec, n).bytes;
}

static const kept_mode kept_modes[] = {
    [0] = {FLP_MODE_SCORE, 0, planner_search_forward, search_nothing, NULL}, /* nothing is kept */
    [FLP_MODE_SAVE] = {FLP_MODE_SCORE, 0, search_forward_saved, planner_search_saved, planner_exponentials_bytes},
    [FLP_MODE_DIRECTION] = {FLP_MODE_DIRECTION, FLP_PASS_FORWARD_SAVED, planner_search_direction,
                            planner_search_direction_rows, directions_bytes},
    [FLP_MODE_TAIL] = {FLP_MODE_TAIL, FLP_PASS_BACKWARD_SAVED, planner_search_tail, planner_search_tail_rows,
                       lists_bytes}};

static const kept_mode *kept_mode_of(const flp_planner *p) {
  return &kept_modes[flp_planner_keeps(p)];
}

uint64_t flp_planner_saved_bytes(const flp_spec *spec, flp_mode mode, int64_t n) {
  return flp_mode_keeps(mode) ? kept_modes[mode].bytes(spec, n) : 0;
}

/* ---- search ---- */

static void search_combine(planner_search *s) {
  flp_scheme only = {.mode = FLP_MODE_SCORE, .chunk_rows = s->n, .chunk_vocab = s->planner->spec.vocab, .chunks = 1};
  planner_put_rows(&only, s->n);
  only.launches = 2; /* prepare, merge */
  if (flp_planner_has_targets(&s->planner->spec)) {
    planner_put_target_row(s->planner, &only, s->n);
    only.launches = 3; /* targets_rows, prepare, targets_finish */
  }
  if (s->planner->spec.statistics) {
    planner_put_stats(&only, s->n);
    only.launches++; /* statistics_merge */
  }
  planner_offer(s, &only);
}

/* Offers every layout of a pass over n > 0 rows. */
static planner_search search_pass(const flp_planner *p, flp_pass pass, int64_t n, uint64_t budget) {
  const kept_mode *kept = kept_mode_of(p);
  void (*const searches[])(planner_search *) = {[FLP_PASS_FORWARD] = planner_search_forward,
                                                [FLP_PASS_FORWARD_SAVED] = kept->search_forward,
                                                [FLP_PASS_COMBINE] = search_combine,
                                                [FLP_PASS_BACKWARD] = planner_search_backward,
                                                [FLP_PASS_BACKWARD_SAVED] = kept->search_backward,
                                                [FLP_PASS_STEP] = planner_search_step,
                                                [FLP_PASS_BACKWARD_GIVEN] = planner_search_given};
  planner_search s = {.planner = p, .n = n, .budget = budget};
  searches[pass](&s);
  return s;
}

/* Where forward may have kept so many bytes, the workspace of recompute mode holds the mode that uses them too, if the
 * budget does. */
static void make_room_for_saved(const planner_search *s, uint64_t bytes, flp_scheme *out) {
  if (bytes > s->budget) return;
  planner_search saved = {.planner = s->planner, .n = s->n, .budget = s->budget - bytes};
  kept_mode_of(s->planner)->search_backward(&saved);
  if (saved.found) out->bytes = flp_max_u64(out->bytes, saved.best.bytes);
}

/* Of a pass over no rows. */
static flp_mode mode_of_nothing(const flp_planner *p, flp_pass pass) {
  switch (pass) {
    case FLP_PASS_BACKWARD:
      return FLP_MODE_RECOMPUTE_VOCAB;
    case FLP_PASS_STEP:
      if (flp_planner_keeps(p) == FLP_MODE_TAIL) return FLP_MODE_TAIL;
      return flp_planner_streams(p) ? FLP_MODE_STREAM : FLP_MODE_RECOMPUTE_VOCAB;
    case FLP_PASS_BACKWARD_SAVED:
      return flp_planner_keeps(p);
    case FLP_PASS_FORWARD_SAVED:
      return kept_mode_of(p)->forward;
    case FLP_PASS_BACKWARD_GIVEN:
      return FLP_MODE_GIVEN;
    default:
      return FLP_MODE_SCORE;
  }
}

/* The budget, which explicit chunk sizes override. */
static uint64_t unless_explicit(const flp_planner *p, flp_pass pass, uint64_t budget) {
  int has_chunks = pass == FLP_PASS_BACKWARD || pass == FLP_PASS_STEP || pass == kept_mode_of(p)->chunked;
  return has_chunks && (p->chunk_rows || p->chunk_vocab) ? UINT64_MAX : budget;
}

flp_status flp_planner_pick(const flp_planner *p, flp_pass pass, int64_t n, uint64_t budget, int query,
                            flp_scheme *out) {
  memset(out, 0, sizeof *out);
  out->mode = mode_of_nothing(p, pass);
  out->chunk_rows = n;
  out->chunk_vocab = p->spec.vocab;
  if (n == 0) return FLP_OK;
  if (n > flp_planner_targets_rows_max(&p->spec)) return too_many_targets(&p->spec, n);
  flp_mode kept = flp_planner_keeps(p);
  int keeps = pass == FLP_PASS_BACKWARD_SAVED || pass == FLP_PASS_FORWARD_SAVED;
  uint64_t saved = query ? flp_planner_saved_bytes(&p->spec, kept, n) : 0, beside = keeps ? saved : 0;
  uint64_t left = budget > beside ? budget - beside : 0;
  planner_search s = search_pass(p, pass, n, query ? unless_explicit(p, pass, left) : left);
  if (!s.any) return grid_too_large(pass, n);
  if (s.found) *out = s.best;
  if (s.found && pass == FLP_PASS_BACKWARD) make_room_for_saved(&s, saved, out);
  out->smallest_bytes = s.smallest;
  out->saved_bytes = beside;
  return s.found ? FLP_OK : over_budget(pass, n, budget, s.smallest, beside);
}

flp_status flp_planner_pick_dense(const flp_planner *p, int64_t n, uint64_t budget, flp_scheme *out) {
  flp_planner dense = planner_of_dense_rows(p);
  return flp_planner_pick(&dense, FLP_PASS_BACKWARD, n, budget, 0, out);
}

uint64_t flp_planner_saved(const flp_planner *p, int64_t n, uint64_t budget) {
  uint64_t saved = flp_planner_saved_bytes(&p->spec, flp_planner_keeps(p), n);
  if (saved == 0 || n == 0 || saved > budget) return 0;
  uint64_t left = budget - saved;
  int fits = search_pass(p, FLP_PASS_FORWARD_SAVED, n, unless_explicit(p, FLP_PASS_FORWARD_SAVED, left)).found &&
             search_pass(p, FLP_PASS_BACKWARD_SAVED, n, unless_explicit(p, FLP_PASS_BACKWARD_SAVED, left)).found;
  return fits ? saved : 0;
}

void flp_planner_describe(const flp_planner *p, const flp_scheme *s, int64_t n, flp_layout *out) {
  *out = (flp_layout)FLP_LAYOUT_INIT;
  out->mode = s->mode;
  out->chunk_rows = s->chunk_rows;
  out->chunk_vocab = s->chunk_vocab;
  out->chunks = s->chunks;
  out->products = s->products;
  out->launches = s->launches;
  out->bytes = s->bytes;
  out->smallest_bytes = s->smallest_bytes;
  out->saved_bytes = s->saved_bytes;
  out->flops = 2.0 * (double)s->products * (double)n * (double)p->spec.hidden * (double)p->spec.vocab;
}
