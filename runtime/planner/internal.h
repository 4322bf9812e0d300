/* internal.h: what the planner's files share, divided by the file that implements it. */
#ifndef FLP_PLANNER_INTERNAL_H
#define FLP_PLANNER_INTERNAL_H

#include "runtime/base/util.h"
#include "runtime/kernel/abi.h"
#include "runtime/planner/planner.h"

/* 1 if the mask holds the gradient. */
static inline int planner_wants(uint32_t grads, uint32_t which) {
  return (grads & which) != 0;
}

/* One launch with its ramp-up and drain, from the gap between dependent kernels on one stream of a Hopper card. */
static const double planner_launch_seconds = 4e-6;

/* 1 if nothing asks for one mode of recomputing. */
static inline int planner_is_free(const flp_planner *p) {
  return !p->mode || p->mode >= FLP_MODE_SAVE;
}

/* Blocks of that many active rows, each of which is redone as a whole (abi.h, saved exponentials). */
static inline int64_t planner_redo_blocks(int64_t rows) {
  return flp_ceil_div(rows, FLP_KEPT_BLOCK_ROWS);
}

/* ---- carve.c: the arrays of a workspace ---- */

/* Up to a multiple of the alignment of arrays. */
uint64_t planner_round_up(uint64_t bytes);

/* What save mode passes on from forward to backward: references and exponentials. */
uint64_t planner_exponentials_bytes(const flp_spec *spec, int64_t n);

/* Each adds arrays at the end of a scheme. */
void planner_put_region(flp_scheme *s, flp_region region, int64_t count, uint64_t element_bytes);
/* Several of one size, in the order in which they are named. */
#define PLANNER_PUT_EACH(s, count, element_bytes, ...)             \
  do {                                                             \
    const flp_region each_[] = {__VA_ARGS__};                      \
    for (size_t i_ = 0; i_ < sizeof each_ / sizeof each_[0]; i_++) \
      planner_put_region(s, each_[i_], count, element_bytes);      \
  } while (0)
/* What prepare writes; every pass starts with it. */
void planner_put_rows(flp_scheme *s, int64_t n);
/* Forward's partials, so many, and what statistics of n rows are made of. */
void planner_put_part(const flp_planner *p, flp_scheme *s, int64_t n, int64_t count);
/* Of n rows, where a caller may give none and a later launch reads them; once. */
void planner_put_stats(flp_scheme *s, int64_t n);
/* operands.c: terms of hidden and bias, where products take such. */
void planner_put_operands(const flp_planner *p, flp_scheme *s, int64_t n);
/* A scheme of nothing but these two, of n rows in chunks of rows x columns. */
void planner_begin(const flp_planner *p, flp_scheme *s, flp_mode mode, int64_t n, int64_t rows, int64_t columns);
/* Terms of so many columns of the weight, once or, ahead, twice; and the seconds of making so many columns in a launch. */
void planner_put_slice(const flp_planner *p, flp_scheme *s, int64_t columns, int ahead, int64_t first);
double planner_slice_cost(const flp_planner *p, int64_t columns);
/* Seconds that so many columns take where they are made ahead, at least. */
double planner_ahead_cost(const flp_planner *p, int64_t columns);
/* 1 if forward can make a slice ahead: of an fp32 weight, beside kernels of mapped operands. */
int planner_makes_ahead(const flp_planner *p);
/* gathered: rows that are put together at a time; 0 for the counter alone */
void planner_put_gather(const flp_planner *p, flp_scheme *s, int64_t gathered);
/* Sums over chunks of rows: of the head's gradients, where the caller's arrays do not serve. */
void planner_put_head_accumulators(const flp_planner *p, flp_scheme *s);

uint64_t planner_dz_bytes(const flp_planner *p, int64_t rows, int64_t columns);
/* One line a tile of rows, whole row panels; 0 without a gradient of the bias. */
uint64_t planner_bias_part_bytes(const flp_planner *p, int64_t rows, int64_t columns);

/* orders.c: entries by column: their rows, one order, and where there are several digits the one before; and the launches
 * that make the order and sum the head's gradients. */
void planner_put_orders(const flp_planner *p, flp_scheme *s, int64_t list_count);

/* ---- search.c: layouts of forward, and of backward in recompute mode ---- */

typedef struct planner_search {
  const flp_planner *planner;
  int64_t n;
  uint64_t budget;
  int any, found; /* a layout exists; one fits */
  uint64_t smallest;
  flp_scheme best;
} planner_search;

/* The next smaller number of tiles, or of other units, that divides an axis of so many evenly; 0 after one. */
int64_t planner_fewer(int64_t tiles, int64_t now);

/* Keeps the candidate if it fits and is cheaper. */
void planner_offer(planner_search *s, const flp_scheme *candidate);

/* Each offers every layout of a pass over n > 0 rows; of backward the one that tuning preferred, if it fits. */
void planner_search_forward(planner_search *s);
void planner_search_backward(planner_search *s);

/* ---- direction.c ---- */

/* Layouts of direction mode's forward pass; and the one of its backward pass. */
void planner_search_direction(planner_search *s);
void planner_search_direction_rows(planner_search *s);

/* ---- given.c ---- */

void planner_search_given(planner_search *s);

/* ---- tail.c ---- */

/* Layouts of tail mode's forward pass; and of its backward pass, with one of recompute mode in each. */
void planner_search_tail(planner_search *s);
void planner_search_tail_rows(planner_search *s);
/* A planner of the pass over rows that are recomputed. */
flp_planner planner_of_dense_rows(const flp_planner *p);

/* ---- score.c: values of all scores of a row ---- */

/* Adds scale_pair to a pass with products, and behind it what they add of the mean of scores. */
void planner_put_pair(const flp_planner *p, flp_scheme *s, int64_t n);
/* Adds what a step's loss that reads them takes; its seconds and launches: of forward in so many chunks of rows, and backward in
 * so many chunks. */
void planner_put_scores(const flp_planner *p, flp_scheme *s, int64_t n);
double planner_scores_cost(const flp_planner *p, int64_t n);
int64_t planner_scores_launches(const flp_planner *p, int64_t row_chunks, int64_t chunks);

/* ---- targets.c: K targets a row ---- */

/* Each adds the arrays of a pass, backward behind forward those of a step that has both; and the launches beside those
 * of a pass without. chunks: of the pass; bias_chunks: those of them that have column sums, of
 * saved exponentials twice */
void planner_put_targets_forward(const flp_planner *p, flp_scheme *s, int64_t n);
void planner_put_target_row(const flp_planner *p, flp_scheme *s, int64_t n); /* all that combine has */
void planner_put_targets_backward(const flp_planner *p, flp_scheme *s, int64_t n);
int64_t planner_targets_forward_launches(const flp_planner *p, int64_t chunks);
int64_t planner_targets_step_launches(const flp_planner *p, int64_t chunks);
int64_t planner_targets_backward_launches(const flp_planner *p, int64_t chunks, int64_t bias_chunks);
/* ---- lora.c: a low-rank adapter; without one none of these does anything ---- */

/* u of all rows. */
void planner_put_lora(const flp_planner *p, flp_scheme *s, int64_t n);
/* 1 if the gradient of hidden is summed in fp32 whatever the chunks, as the adapter's part comes behind them. */
int planner_sums_hidden(const flp_planner *p);
/* Sums of the backward pass. is_split_by_rows: chunks of rows add to the gradient of B */
void planner_put_lora_sums(const flp_planner *p, flp_scheme *s, int64_t n, int is_split_by_rows);
/* All of these where dz is made of saved exponentials, in chunks of `rows` rows. */
void planner_put_lora_kept(const flp_planner *p, flp_scheme *s, int64_t n, int64_t rows);
int64_t planner_lora_kept_launches(const flp_planner *p, int64_t chunks);
/* All but lora_u of a backward pass over lists, and its launches. */
void planner_put_lora_lists(const flp_planner *p, flp_scheme *s, int64_t n);
/* The launches of a backward pass beside those without; chunks: of dz. */
int64_t planner_lora_launches(const flp_planner *p, int64_t chunks);

/* ---- top.c ---- */

/* Arrays of best columns and ranks, of chunks of that many rows; and the launches that these and statistics of so many
 * chunks take beside those of forward. */
void planner_put_top(const flp_planner *p, flp_scheme *s, int64_t n, int64_t rows);
int64_t planner_values_launches(const flp_planner *p, int64_t chunks);

/* ---- keep.c ---- */

/* What passes from forward to loss to gradients of a step. */
void planner_put_step_rows(const flp_planner *p, flp_scheme *s, int64_t n);
/* The backward pass of save mode: one layout, unless no grid can hold it. */
void planner_search_saved(planner_search *s);
/* Layouts of a step: stream mode in chunks of rows, and forward, loss and backward one after the other, in tail mode where
 * that fits. */
void planner_search_step(planner_search *s);

#endif
