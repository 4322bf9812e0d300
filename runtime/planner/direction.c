/* direction.c: layouts of direction mode, a frozen head whose forward pass makes the sums from which grad_hidden follows.
 *
 * Exponentials pass in chunks of rows and columns, as they do not depend on what the other columns hold: one chunk at a
 * time is in the workspace, and each adds to the sums of its rows, which are kept for the backward pass. Short chunks of
 * rows read the weight more often and leave multiprocessors idle, short chunks of columns read and write the sums more
 * often; the cost model weighs them. */
#include "runtime/base/util.h"
#include "runtime/planner/internal.h"

/* Blocks of rows that may be redone are launched for nothing else. */
static int64_t count_launches(const flp_planner *p, int64_t n, const flp_scheme *s) {
  int64_t row_chunks = flp_ceil_div(n, s->chunk_rows), pieces = flp_ceil_div(p->spec.vocab, s->chunk_vocab);
  int64_t blocks = n / s->chunk_rows * planner_redo_blocks(s->chunk_rows) + planner_redo_blocks(n % s->chunk_rows);
  int64_t redone = flp_ceil_div(p->spec.vocab, flp_planner_redo_columns(p, s->chunk_rows, s->chunk_vocab));
  /* prepare; gather, forward over the first columns, keep_reference, combine twice, direction_finish; forward_keep,
   * direction_strike, product; dz, product */
  return 1 + row_chunks * (5 + p->is_mapped + 3 * pieces) + blocks * redone * 2 +
         planner_values_launches(p, row_chunks);
}

static void build(const flp_planner *p, int64_t n, int64_t rows, int64_t columns, flp_scheme *s) {
  planner_begin(p, s, FLP_MODE_DIRECTION, n, rows, columns);
  s->products = 2;
  planner_put_region(s, FLP_REGION_zy, n, 4);
  planner_put_part(p, s, n, rows * flp_ceil_div(p->spec.vocab, p->unit_columns));
  PLANNER_PUT_EACH(s, n, 16, FLP_REGION_stats, FLP_REGION_record);
  planner_put_region(s, FLP_REGION_redo, planner_redo_blocks(rows), 4);
  planner_put_region(s, FLP_REGION_dz, 1, planner_dz_bytes(p, rows, columns));
  if (p->is_mapped) planner_put_gather(p, s, rows);
  planner_put_top(p, s, n, rows);
  s->launches = (int32_t)flp_min(count_launches(p, n, s), INT32_MAX);
  s->seconds = flp_planner_direction_cost(p, n, rows, columns);
}

/* ---- search ---- */

static void offer(planner_search *s, int64_t rows, int64_t columns) {
  const flp_planner *p = s->planner;
  flp_scheme candidate;
  int64_t groups = flp_ceil_div(p->spec.vocab, p->unit_columns);
  if (flp_ceil_div(rows, p->keep_rows) > INT32_MAX / groups || !flp_planner_grids_fit(p, rows, p->spec.vocab)) return;
  build(p, s->n, rows, columns, &candidate);
  planner_offer(s, &candidate);
}

/* Columns whose scores fill whole waves of clusters. */
static int64_t wave_columns(const flp_planner *p, int64_t rows) {
  int64_t at_once = flp_max(p->multiprocessors / p->dz_cluster, 1);
  return at_once / flp_gcd(at_once, flp_ceil_div(rows, p->keep_rows)) * p->keep_columns;
}

/* Even chunks, then those of whole waves. */
static void search_columns(planner_search *s, int64_t rows) {
  const flp_planner *p = s->planner;
  int64_t vocab = p->spec.vocab, wave = wave_columns(p, rows);
  if (p->chunk_vocab) {
    offer(s, rows, flp_min(flp_round_up(p->chunk_vocab, p->unit_columns), vocab));
    return;
  }
  int64_t units = flp_ceil_div(vocab, p->keep_columns);
  for (int64_t now = units; now; now = planner_fewer(units, now)) offer(s, rows, flp_min(now * p->keep_columns, vocab));
  for (int64_t columns = wave; columns < vocab; columns += wave) offer(s, rows, columns);
}

void planner_search_direction(planner_search *s) {
  const flp_planner *p = s->planner;
  int64_t panel_rows = flp_max(p->keep_rows, p->dz_unit_rows), panels = flp_ceil_div(s->n, panel_rows);
  if (p->chunk_rows) {
    search_columns(s, flp_min(p->chunk_rows, s->n));
    return;
  }
  for (int64_t now = panels; now; now = planner_fewer(panels, now)) search_columns(s, flp_min(now * panel_rows, s->n));
}

/* ---- the backward pass ---- */

void planner_search_direction_rows(planner_search *s) {
  flp_scheme only;
  planner_begin(s->planner, &only, FLP_MODE_DIRECTION, s->n, s->n, s->planner->spec.vocab);
  planner_put_region(&only, FLP_REGION_record, s->n, 16);
  planner_put_region(&only, FLP_REGION_bound, s->n, 4);
  only.launches = 4; /* prepare, record, direction_rows, fill */
  only.seconds = flp_planner_direction_rows_cost(s->planner, s->n);
  planner_offer(s, &only);
}
