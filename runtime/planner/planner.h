/* planner.h: how one pass lays out its workspace and orders its matrix products; pure functions, no driver.
 *
 * Invariants: the candidates depend on the planner and n, never on the budget, and the cheapest that fits is picked
 * with ties broken by bytes and then by order; a layout that tuning preferred goes before all others. So a larger
 * budget never gives a dearer layout, and picking again with the bytes of a picked layout as the budget gives that
 * layout: a query and the execute that follows it agree. A layout holds for every vocab_valid <= V. */
#ifndef FLP_PLANNER_H
#define FLP_PLANNER_H

#include "runtime/base/names.h"
#include "runtime/driver/driver.h"
#include "runtime/kernel/kernel.h"

/* Save, stream and direction mode: the columns of whose largest score rows have their reference, those of one tile. */
enum { FLP_REFERENCE_COLUMNS = 192 };

typedef struct flp_planner {
  flp_spec spec;                      /* resolved */
  int64_t forward_rows, unit_columns; /* tile of forward: rows of a panel, columns of one partial */
  int64_t keep_rows, emit_rows; /* of a panel of forward with that part, the largest; 0: there is none */
  int64_t least_rows;           /* of one of forward with any parts, the smallest */
  /* 1 if operands come through tensor maps: rows are read compacted, put together in the workspace, and one launch makes
   * both products of a chunk */
  int is_mapped;
  int64_t dz_rows, dz_columns;         /* tile of dz */
  int64_t dz_unit_rows;                /* rows of a unit of dz: chunks of rows are multiples of it */
  int dz_unit_tiles;                   /* tiles of a unit of dz, side by side */
  int dz_cluster;                      /* CTAs of a unit of dz, 1 where kernels are launched without clusters */
  int64_t hidden_rows, hidden_columns; /* tile of grad_hidden, over active rows x D */
  int64_t weight_rows, weight_columns; /* tile of grad_weight, over vocab columns x D */
  int64_t keep_columns; /* of a unit of forward with part keep: as many leaves as it takes at a time */
  int64_t lora_rows, lora_columns; /* of a panel, and of a tile of lora_products */
  int saved_expands,
      step_expands;           /* 1 if exponentials become dz in place before the products, in save mode and in a step */
  int step_entropy;           /* 1 if the loss has a gradient by the entropy */
  int step_scores, step_mean; /* 1 if it reads lse or mean_score; if mean_score */
  int mean_passes;            /* 1 if that takes a pass, as no sum over rows of the weight gives it */
  int operands_made;          /* 1 of a pass that takes hidden and bias as its caller has made them */
  int64_t chunk_rows, chunk_vocab; /* explicit chunk sizes, 0 for the planner's choice */
  flp_mode mode;                   /* explicit mode of the backward pass, 0 for the planner's choice */
  flp_mode tuned_mode;             /* the layout that tuning preferred, 0 for none; its chunks are the most to take */
  int64_t tuned_rows, tuned_vocab;
  int64_t tuned_step_rows; /* of a chunk of stream mode, as tuning preferred; 0: no preference */
  int multiprocessors;
  double flop_rate; /* flop/s of one multiprocessor in the main loops */
  double bandwidth; /* bytes/s of device memory */
} flp_planner;

/* A planner for a resolved spec on kernels with these descriptors. Only mode and chunk sizes of the options are read;
 * facts that the device does not report (0) take defaults. init.c */
void flp_planner_init(flp_planner *out, const flp_spec *spec, const flp_options *options, const flp_device *device,
                      const flp_kernel_desc *descs, int count);

typedef struct flp_scheme {
  flp_mode mode;
  int64_t chunk_rows, chunk_vocab; /* as in flp_layout */
  int64_t chunks;
  int32_t products, launches;
  uint64_t bytes;
  uint64_t smallest_bytes;
  uint64_t saved_bytes; /* as in flp_layout */
  int64_t slice; /* columns that the workspace has terms of the weight of at a time; 0: products take it as it is */
  int ahead;     /* 1: of two slices side by side, one is made while the other is multiplied */
  int64_t first; /* columns of the first slice, which is made before any is multiplied: fewer where the next ones grow */
  uint64_t passes;      /* where the workspace of other passes begins: of a step but in stream mode, of its forward and
                           backward pass; of tail mode's backward pass, of the rows that are recomputed */
  double seconds;       /* of the cost model; compares layouts, predicts nothing */
  uint64_t offset[FLP_REGION_ID_COUNT], size[FLP_REGION_ID_COUNT]; /* size 0: the layout has no such array */
} flp_scheme;

/* Picks the cheapest layout of at most budget bytes.
 * query: 1 where the budget is the pass's: explicit chunk sizes override it, and what forward keeps counts to it;
 *        0 where it is the workspace that there is
 * error: BUDGET naming the smallest budget that would do, which is in out->smallest_bytes too; UNSUPPORTED if no grid
 * can hold the launch */
flp_status flp_planner_pick(const flp_planner *planner, flp_pass pass, int64_t n, uint64_t budget, int query,
                            flp_scheme *out);

/* The layout of a forward or backward pass, or a step, over listed columns (spec.listed), the only one there is, for a
 * workspace or a budget of that size. list_count: ids of all lists. error: as flp_planner_pick. listed.c */
flp_status flp_planner_pick_listed(const flp_planner *planner, flp_pass pass, int64_t n, int64_t list_count,
                                   uint64_t budget, flp_scheme *out);

/* How forward keeps something for backward, whatever the budget: SAVE, DIRECTION, TAIL, or 0 where there are no kernels for
 * it, or something asks for another mode; and 1 if a step may run in stream mode. */
flp_mode flp_planner_keeps(const flp_planner *planner);
int flp_planner_streams(const flp_planner *planner);

/* The public view of a scheme, and of one over listed columns. */
void flp_planner_describe(const flp_planner *planner, const flp_scheme *scheme, int64_t n, flp_layout *out);
void flp_planner_describe_listed(const flp_planner *planner, flp_pass pass, const flp_scheme *scheme, int64_t n,
                                 int64_t list_count, flp_layout *out);

/* Elements between two rows of a dz chunk of that many columns. */
int64_t flp_planner_dz_stride(int64_t columns);

/* Lower bits that the workspace has of a sum of the weight's gradient, where that is bf16 and holds the upper ones (abi.h): 4
 * of few chunks, which a sum's roundings leave far below bf16's own, 8 of more. */
int flp_planner_weight_low_bits(int64_t chunks);
/* Bytes that one of so many chunks of rows leaves of an element of the weight's gradient for the next chunk, those in the
 * gradient itself too: fewer than 4 where it is bf16. */
double flp_planner_weight_sum_bytes(const flp_planner *planner, int64_t chunks);

/* Elements between two gathered rows. */
int64_t flp_planner_gather_stride(int64_t depth);

/* What save, direction and tail modes pass from forward to backward: a reference a row, up to a multiple of 256 bytes, then
 * the exponentials, their rows flp_planner_dz_stride(V) elements apart; or as many bytes of slopes and the sums, (n,D) fp32;
 * or flp_tail_saved. 0 for other modes. */
uint64_t flp_planner_references_bytes(int64_t n);
uint64_t flp_planner_saved_bytes(const flp_spec *spec, flp_mode mode, int64_t n);

/* ---- tail.c: lists from forward to backward (abi.h, tail mode) ---- */

/* Where they stand in what is passed on: partial (n,4) f32 by row; floor and gate f32, (n) by active row; count i32,
 * (n,FLP_EMIT_BINS); entry, column i32 and score f32, (n, flp_planner_tail_columns, 2). */
typedef struct flp_tail_saved {
  uint64_t partial, floor, gate, count, entry, bytes;
} flp_tail_saved;
flp_tail_saved flp_planner_tail_saved(const flp_spec *spec, int64_t n);
/* Columns that a row's list has room for. */
int32_t flp_planner_tail_columns(const flp_spec *spec);
/* Entries of all lists that the backward pass has room for. */
int32_t flp_planner_tail_entries(int64_t n);

/* ---- top.c: best columns and ranks (abi.h) ---- */

/* 1 if forward makes either. */
int flp_planner_has_top(const flp_spec *spec);
/* 1 if forward makes either, or statistics: values of a row that have no gradient. */
int flp_planner_has_row_values(const flp_spec *spec);
/* Columns that a row's list has room for: 0 without best columns. */
int32_t flp_planner_top_places(const flp_spec *spec);
/* Of so many columns the first ones, all of which are listed before the others; 0: there is room for all of them. */
int64_t flp_planner_top_sample(const flp_spec *spec, int64_t columns);
/* The most columns up to the end of a slice, over those before it: a list is longer once in 10^8 then. */
double flp_planner_top_ratio(const flp_spec *spec);
/* Slices in which forward goes over the columns after that: 1 or more. */
int flp_planner_top_slices(const flp_spec *spec, int64_t columns);

/* The pass over rows that are recomputed, among the others of a plan; and its layout, of recompute mode, in the workspace
 * that there is. error: as flp_planner_pick */
#define FLP_PASS_DENSE ((flp_pass)0)
flp_status flp_planner_pick_dense(const flp_planner *planner, int64_t n, uint64_t budget, flp_scheme *out);

/* ---- given.c: a backward pass of a given gradient of raw scores ---- */

/* Calls over chunks of rows, of which nobody knows how many follow: a sum has as many lower bits as one of so many. */
enum { FLP_GIVEN_CALLS = 1 << 20 };
/* Bytes of flp_args.sums. */
uint64_t flp_planner_sums_bytes(const flp_planner *planner);

/* Bytes of flp_args.tail_report. */
enum { FLP_TAIL_REPORT_BYTES = 4 * sizeof(float) };

/* 1 if direction mode can have the gradients of a spec that keeps something: those of a frozen head, where the entropy has
 * none. */
int flp_planner_has_direction(const flp_spec *spec);

/* The order of stream mode that a step with a tail has for flat rows, in the step's layout from its lists on, in so
 * many bytes. Returns 0 if there is none. keep.c */
#define FLP_PASS_FLAT ((flp_pass)(FLP_PASS_LAST + 1))
int flp_planner_pick_flat(const flp_planner *planner, int64_t n, uint64_t bytes, flp_scheme *out);
/* Those bytes of a step; and where its order for flat rows begins. */
static inline uint64_t flp_planner_flat_begin(const flp_scheme *step) {
  return step->offset[FLP_REGION_tail_saved];
}

/* The fewest bytes in which a step over n > 0 rows is in tail mode; 0: no grid can hold it. keep.c */
uint64_t flp_planner_tail_step_least(const flp_planner *planner, int64_t n);

/* The bytes that the planner keeps, where the workspace of both passes fits the budget beside them; else 0. */
uint64_t flp_planner_saved(const flp_planner *planner, int64_t n, uint64_t budget);

/* Columns of dz that a block of rows of direction mode is redone in: what such a chunk's exponentials leave room for. */
int64_t flp_planner_redo_columns(const flp_planner *planner, int64_t chunk_rows, int64_t chunk_vocab);

/* ---- targets.c: K targets a row (abi.h) ---- */

int flp_planner_has_targets(const flp_spec *spec);
/* Rows that a pass may have: every target has a number of 31 bits. */
int64_t flp_planner_targets_rows_max(const flp_spec *spec);
/* Words of target_block of a row. */
int64_t flp_planner_target_words(int64_t vocab);

/* ---- score.c: values of all scores of a row, which a step's loss reads (abi.h) ---- */

/* Rows of a CTA of mean_sums, which sums up so many. */
int64_t flp_planner_slab_rows(int64_t rows);
/* Bytes from one part to the next of what products add of the mean (abi.h, key.bias): sums of hidden, of weight, each. */
uint64_t flp_planner_added_bytes(const flp_planner *planner);

/* ---- orders.c: entries of lists brought into the order of columns (abi.h, listed columns) ---- */

/* 1 if the backward pass brings them into that order, as gradients of the head ask. */
int flp_planner_orders_lists(const flp_spec *spec, int64_t list_count);
/* Digits of a column, so that all ones, those of -1, are above every column. */
int flp_planner_list_passes(int64_t vocab);
/* Blocks of entries whose digits a CTA counts; and CTAs of list_weight_wide. */
int64_t flp_planner_list_blocks(int64_t list_count);
int64_t flp_planner_list_wide(const flp_planner *planner, int64_t list_count);

/* ---- cost.c: the cost model ---- */

/* Seconds of the dz chunks of chunk_rows x chunk_vocab that cover n x V, and of the products that grads asks for made
 * from each. */
double flp_planner_chunks_cost(const flp_planner *planner, int64_t n, int64_t chunk_rows, int64_t chunk_vocab,
                               uint32_t grads);

/* Seconds of putting n rows together in that many launches. */
double flp_planner_gather_cost(const flp_planner *planner, int64_t n, int64_t launches);

/* Seconds of stream mode in chunks of that many rows, and of the backward pass of save mode, in one. */
double flp_planner_stream_cost(const flp_planner *planner, int64_t n, int64_t chunk_rows);
double flp_planner_saved_cost(const flp_planner *planner, int64_t n);

/* Seconds of direction mode in such chunks, and of its backward pass. */
double flp_planner_direction_cost(const flp_planner *planner, int64_t n, int64_t chunk_rows, int64_t chunk_vocab);
double flp_planner_direction_rows_cost(const flp_planner *planner, int64_t n);

/* Seconds of tail mode's backward pass in so many launches, without the rows that are recomputed. */
double flp_planner_tail_cost(const flp_planner *planner, int64_t n, int64_t launches);

/* Seconds of so many launches for K targets a row, and of reading a row of weight for each target. */
double flp_planner_targets_cost(const flp_planner *planner, int64_t n, int64_t launches);

/* Seconds of one forward pass in chunks of that many rows. */
double flp_planner_forward_cost(const flp_planner *planner, int64_t n, int64_t chunk_rows);

/* The same in the slices of a scheme, which follow each other. */
double flp_planner_slices_forward_cost(const flp_planner *planner, int64_t n, int64_t chunk_rows,
                                       const flp_scheme *scheme);

/* Where the slice ends that begins at that column: the first at `first`, the second at three times that and the third at
 * `slice`, where these are less; all others are whole. One that is twice as wide is made while one is multiplied.
 * operands.c */
int64_t flp_planner_slice_end(const flp_scheme *scheme, int64_t begin);

/* 1 if every grid of a chunk of rows x columns has at most 2^31 - 1 CTAs. */
int flp_planner_grids_fit(const flp_planner *planner, int64_t rows, int64_t columns);

#endif
