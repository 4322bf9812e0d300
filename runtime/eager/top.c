/* top.c: the best columns of each row and the rank of its target, as forward meets the scores.
 *
 * Invariants: a worker keeps lists of its own of the rows of a panel, and entries have one order, by score and then by
 * column, so which worker met a column does not matter. A list is a heap whose first entry is the worst. */
#include "runtime/base/operands.h"
#include "runtime/eager/core.h"

static const double ln_2 = 0.69314718055994530942;

/* Behind every entry of a column; its score is that of no entry. */
static const eager_top_entry none = {-INFINITY, INT32_MAX};

static int wants_best(const flp_spec *spec, const flp_args *args) {
  return spec->topk > 0 && (args->top_ids || args->top_logprob || args->top_rest);
}

int eager_top_wants_rank(const flp_spec *spec, const flp_args *args) {
  return spec->rank && args->rank;
}

void eager_top_carve(const flp_spec *spec, const eager_plan *plan, eager_block *block, eager_top *out) {
  uint64_t panel = (uint64_t)plan->panel_rows, threads = (uint64_t)plan->threads;
  *out = (eager_top){.topk = spec->topk, .panel_rows = plan->panel_rows};
  if (spec->topk) out->best = eager_block_take(block, threads * panel * (uint64_t)spec->topk, sizeof *out->best);
  if (!spec->rank) return;
  out->above = eager_block_take(block, threads * panel, sizeof *out->above);
  out->target = eager_block_take(block, panel, sizeof *out->target);
}

static int64_t workers_of(const eager_call *call, const eager_top *top) {
  return top->workers ? top->workers : call->team->count;
}

static eager_top_entry *list_of(const eager_top *top, int64_t worker, int64_t in_panel) {
  return top->best + (worker * top->panel_rows + in_panel) * top->topk;
}

void eager_top_clear(const eager_call *call, const eager_top *top, int64_t count) {
  for (int64_t worker = 0; worker < workers_of(call, top); worker++) {
    for (int64_t i = 0; wants_best(call->spec, call->args) && i < count * top->topk; i++)
      list_of(top, worker, 0)[i] = none;
    for (int64_t i = 0; eager_top_wants_rank(call->spec, call->args) && i < count; i++)
      top->above[worker * top->panel_rows + i] = 0;
  }
}

/* ---- heaps ---- */

static int is_worse(eager_top_entry left, eager_top_entry right) {
  return left.t < right.t || (left.t == right.t && left.column > right.column);
}

/* Puts an entry in the place of the first. */
static void replace_first(eager_top_entry *heap, int64_t count, eager_top_entry entry) {
  int64_t at = 0;
  for (;;) {
    int64_t child = 2 * at + 1;
    if (child >= count) break;
    if (child + 1 < count && is_worse(heap[child + 1], heap[child])) child++;
    if (!is_worse(heap[child], entry)) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = entry;
}

static void offer(eager_top_entry *heap, int64_t count, eager_top_entry entry) {
  if (is_worse(heap[0], entry)) replace_first(heap, count, entry);
}

/* The best first. */
static void sort(eager_top_entry *heap, int64_t count) {
  for (int64_t last = count - 1; last > 0; last--) {
    eager_top_entry worst = heap[0];
    replace_first(heap, last, heap[last]);
    heap[last] = worst;
  }
}

/* ---- scores ---- */

double eager_top_target(const flp_args *args, int64_t row, double own) {
  return own == -INFINITY && args->target_score ? (double)args->target_score[row] : own;
}

/* A NaN is above and below nothing; its row is found by the sums. Ranks compare scores in float. */
void eager_top_add(const eager_call *call, const eager_top *top, int worker, int64_t in_panel, int64_t column,
                   const double *t, int64_t count) {
  if (wants_best(call->spec, call->args)) {
    eager_top_entry *heap = list_of(top, worker, in_panel);
    for (int64_t j = 0; j < count; j++)
      if (t[j] >= heap[0].t && t[j] > -INFINITY) offer(heap, top->topk, (eager_top_entry){t[j], (int32_t)(column + j)});
  }
  if (!eager_top_wants_rank(call->spec, call->args)) return;
  int32_t above = 0;
  for (int64_t j = 0; j < count; j++) above += (float)t[j] > (float)top->target[in_panel];
  top->above[worker * top->panel_rows + in_panel] += above;
}

/* ---- outputs ---- */

static void write_id(const flp_spec *spec, const flp_args *args, int64_t at, int64_t id) {
  if (!args->top_ids) return;
  if (spec->target_dtype == FLP_DTYPE_INT32)
    ((int32_t *)args->top_ids)[at] = (int32_t)id;
  else
    ((int64_t *)args->top_ids)[at] = id;
}

/* A row without best columns. */
static void write_none(const flp_spec *spec, const flp_args *args, int64_t row, float value) {
  for (int64_t at = row * spec->topk; at < (row + 1) * spec->topk; at++) {
    write_id(spec, args, at, -1);
    if (args->top_logprob) args->top_logprob[at] = value;
  }
  if (args->top_rest) args->top_rest[row] = value;
  if (args->rank) args->rank[row] = -1;
}

/* The workers' lists of a row in one. */
static const eager_top_entry *merge(const eager_call *call, const eager_top *top, int64_t in_panel) {
  eager_top_entry *whole = list_of(top, 0, in_panel);
  for (int64_t worker = 1; worker < workers_of(call, top); worker++) {
    const eager_top_entry *own = list_of(top, worker, in_panel);
    for (int64_t i = 0; i < top->topk; i++) offer(whole, top->topk, own[i]);
  }
  sort(whole, top->topk);
  return whole;
}

/* The last column stands behind all others: where there is none, no mass is left. */
static double rest_of(const flp_args *args, const eager_top *top, const eager_top_entry *best, eager_partial whole) {
  double left = whole.sum;
  if (best[top->topk - 1].column == none.column || top->topk >= args->vocab_valid) return 0;
  for (int64_t i = 0; i < top->topk; i++) left -= exp2(best[i].t - whole.maximum);
  return left > 0 ? left / whole.sum : 0;
}

static void write_best(const eager_call *call, const eager_top *top, int64_t in_panel, int64_t row,
                       eager_partial whole) {
  const flp_args *args = call->args;
  const eager_top_entry *best = merge(call, top, in_panel);
  double log_whole = log2(whole.sum);
  int normalised = flp_args_are_whole(args);
  for (int64_t i = 0; i < top->topk; i++) {
    int64_t at = row * top->topk + i;
    int empty = best[i].column == none.column;
    double logprob = ln_2 * (normalised ? (best[i].t - whole.maximum) - log_whole : best[i].t);
    if (normalised && logprob > 0) logprob = 0;
    write_id(call->spec, args, at, empty ? -1 : args->vocab_offset + best[i].column);
    if (args->top_logprob) args->top_logprob[at] = empty ? -INFINITY : (float)logprob;
  }
  if (args->top_rest) args->top_rest[row] = (float)rest_of(args, top, best, whole);
}

/* A shard whose scores are all low is no bad one: other shards' may not be. */
static int is_number(const flp_args *args, eager_partial whole) {
  if (isnan(whole.sum) || !(whole.maximum <= FLP_SCORE_LIMIT)) return 0;
  return !flp_args_are_whole(args) || !eager_is_beyond_limit(whole.maximum, whole.sum);
}

void eager_top_finish(const eager_call *call, const eager_top *top, int64_t in_panel, int64_t row,
                      eager_partial whole) {
  const flp_spec *spec = call->spec;
  const flp_args *args = call->args;
  if (!is_number(args, whole)) {
    write_none(spec, args, row, NAN);
    return;
  }
  if (wants_best(spec, args)) write_best(call, top, in_panel, row, whole);
  if (!eager_top_wants_rank(spec, args)) return;
  int32_t above = 0;
  for (int64_t worker = 0; worker < workers_of(call, top); worker++)
    above += top->above[worker * top->panel_rows + in_panel];
  args->rank[row] = above;
}

void eager_top_fill(const flp_spec *spec, const flp_args *args, const uint8_t *row_class) {
  for (int64_t row = 0; row < args->n; row++)
    if (row_class[row] != FLP_ROW_ACTIVE) write_none(spec, args, row, row_class[row] == FLP_ROW_BAD ? NAN : 0.0f);
}
