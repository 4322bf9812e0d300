/* tail.c: layouts of tail mode (spec.tail): what forward lists of each row, and a backward pass that reads the lists
 * and has a recompute layout behind its own arrays, for the rows whose tail counts.
 *
 * How many rows those are only the device knows, so the recompute layout has room for all of them, in what the lists
 * leave of the budget; it is the cheapest where few are: sums that pass through memory between chunks then weigh more
 * than products do. Lists have room for so many entries a row on average; where rows list more, the longest are
 * recomputed. Until then the recompute layout's place has the lists that forward kept, sorted. */
#include "runtime/base/util.h"
#include "runtime/planner/internal.h"

/* Entries that the backward pass has room for: what rows of text list by their mean, twice over, and a longest list. */
enum { ENTRIES_PER_ROW = 320, PLACES_UNIT = 32 };

/* ---- what forward keeps ---- */

int32_t flp_planner_tail_columns(const flp_spec *spec) {
  return (int32_t)flp_min(FLP_EMIT_MOST, flp_round_up(spec->vocab, PLACES_UNIT));
}

static uint64_t take(uint64_t *used, int64_t count, uint64_t element_bytes) {
  uint64_t at = *used;
  *used += planner_round_up((uint64_t)count * element_bytes);
  return at;
}

flp_tail_saved flp_planner_tail_saved(const flp_spec *spec, int64_t n) {
  int64_t columns = flp_planner_tail_columns(spec);
  flp_tail_saved s = {.bytes = 0};
  s.partial = take(&s.bytes, n, 16);
  s.floor = take(&s.bytes, n, 4);
  s.gate = take(&s.bytes, n, 4);
  s.count = take(&s.bytes, n * FLP_EMIT_BINS, 4);
  s.entry = take(&s.bytes, n * columns, 8);
  return s;
}

void planner_search_tail(planner_search *s) {
  planner_search_forward(s);
  if (!s->found) return;
  s->best.mode = FLP_MODE_TAIL;
  /* tail_target, in place of top_target; emit_floor, combine; a vocab shard's forward over the first columns */
  s->best.launches = (int32_t)flp_min(s->best.launches + (s->planner->spec.rank ? 2 : 3) * s->best.chunks, INT32_MAX);
}

/* ---- the backward pass ---- */

/* Every entry has a number of 31 bits, in whatever arrays and grids it counts. */
int32_t flp_planner_tail_entries(int64_t n) {
  return (int32_t)flp_min(ENTRIES_PER_ROW * n + FLP_EMIT_MOST, INT32_MAX - FLP_LIST_BLOCK);
}

/* All but the workspace of the rows that are recomputed. */
static void build_own(const flp_planner *p, int64_t n, flp_scheme *s) {
  int64_t entries = flp_planner_tail_entries(n);
  planner_begin(p, s, FLP_MODE_TAIL, n, n, p->spec.vocab);
  planner_put_region(s, FLP_REGION_record, n, 16);
  PLANNER_PUT_EACH(s, n, 4, FLP_REGION_bound, FLP_REGION_tail_left, FLP_REGION_tail_sum, FLP_REGION_tail_missed);
  if (planner_wants(p->spec.grads, FLP_GRAD_HIDDEN)) planner_put_region(s, FLP_REGION_tail_mean, p->spec.hidden, 4);
  planner_put_region(s, FLP_REGION_tail_offsets, n, 8);
  planner_put_region(s, FLP_REGION_tail_total, 1, 4);
  planner_put_region(s, FLP_REGION_tail_logprob, n, 4);
  if (p->spec.entropy == FLP_ENTROPY_BACKWARD) planner_put_region(s, FLP_REGION_tail_entropy, n, 4);
  planner_put_region(s, FLP_REGION_list_length, n, 4);
  PLANNER_PUT_EACH(s, entries, 4, FLP_REGION_list_column, FLP_REGION_list_dz);
  /* prepare, record, emit_sort, three of tail; tail_mean, list_hidden */
  s->launches = 6 + 2 * planner_wants(p->spec.grads, FLP_GRAD_HIDDEN);
  if (flp_planner_orders_lists(&p->spec, entries))
    planner_put_orders(p, s, entries);
  else
    planner_put_region(s, FLP_REGION_list_row, entries, 4);
  planner_put_lora(p, s, n);
  planner_put_lora_lists(p, s, n);
  if (planner_wants(p->spec.grads, FLP_GRAD_LORA_A) && p->spec.grad_lora_dtype != FLP_DTYPE_FP32)
    planner_put_region(s, FLP_REGION_lora_a_acc, p->spec.lora_rank * p->spec.hidden, 4);
  s->passes = s->bytes;
  s->seconds = flp_planner_tail_cost(p, n, s->launches);
}

/* Sorted lists, of which entries are made before rows are recomputed: in the place of what those take. */
static void put_lists(const flp_planner *p, int64_t n, flp_scheme *s) {
  int64_t columns = flp_planner_tail_columns(&p->spec);
  PLANNER_PUT_EACH(s, n, 4, FLP_REGION_tail_floor, FLP_REGION_tail_found);
  PLANNER_PUT_EACH(s, n * columns, 4, FLP_REGION_tail_column, FLP_REGION_tail_score);
}

/* One row in so many is recomputed, where most are as sharp as those of a trained model. */
static const double rows_per_dense_row = 16;

/* What tuning preferred was timed with all rows. */
flp_planner planner_of_dense_rows(const flp_planner *p) {
  flp_planner dense = *p;
  dense.operands_made = 1;
  dense.flop_rate *= rows_per_dense_row;
  dense.tuned_mode = (flp_mode)0;
  dense.spec.tail = 0;
  return dense;
}

void planner_search_tail_rows(planner_search *s) {
  flp_scheme both;
  build_own(s->planner, s->n, &both);
  uint64_t own = both.bytes;
  put_lists(s->planner, s->n, &both);
  uint64_t with_lists = both.bytes;
  flp_planner planner = planner_of_dense_rows(s->planner);
  planner_search dense = {.planner = &planner, .n = s->n, .budget = s->budget > own ? s->budget - own : 0};
  planner_search_backward(&dense);
  if (!dense.any) return;
  s->any = 1;
  s->smallest = flp_max_u64(own + dense.smallest, with_lists);
  if (!dense.found || with_lists > s->budget) return;
  both.chunk_rows = dense.best.chunk_rows;
  both.chunk_vocab = dense.best.chunk_vocab;
  both.chunks = dense.best.chunks;
  both.launches = (int32_t)flp_min((int64_t)both.launches + dense.best.launches, INT32_MAX);
  both.bytes = flp_max_u64(own + dense.best.bytes, with_lists);
  planner_offer(s, &both);
}
