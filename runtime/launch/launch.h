/* launch.h: what the files of this folder share: one call of flp_execute on the way to the device.
 *
 * Invariants: nothing here allocates, loads or synchronises, so that a call can be captured in a CUDA graph; grids are
 * sized for n rows, because only the device knows how many are active. */
#ifndef FLP_LAUNCH_H
#define FLP_LAUNCH_H

#include "runtime/base/operands.h"
#include "runtime/plan/plan.h"

/* Of a step whose loss reads values of all scores of a row: its arrays, which outlive its passes' workspaces (score.c). */
typedef struct flp_score_values {
  CUdeviceptr lse, mean, grad_lse, grad_mean, any; /* by row */
  CUdeviceptr each;                                /* by active row; without a softcap where products add it from */
  CUdeviceptr stats;                               /* as keep_finish takes them; 0 where dz is expanded */
  CUdeviceptr part, weight;                        /* sums; 0 where nothing reads the mean, or with a softcap */
  CUdeviceptr added_hidden, added_weight;          /* and as products add them */
  CUdeviceptr record, scale, partial;              /* of the mean with a softcap, else 0 */
} flp_score_values;

/* Rows of the weight that a launch over a slice makes for the next one; rows 0: none. */
typedef struct flp_ahead {
  CUdeviceptr source, out;
  int64_t stride, rows;
} flp_ahead;

typedef struct flp_call {
  flp_plan *plan;
  const flp_args *args; /* resolved */
  const flp_args *head; /* NULL; or where args has a slice of the weight the arguments with all of it */
  flp_scheme scheme;
  CUstream stream;
  CUdeviceptr error_word; /* where prepare counts bad rows: one of the plan's two */
  float unit;             /* a·log2(e), or softcap·log2(e) */
  float row_scale;        /* unit/T; unused with per-row temperatures */
  float cap_in;           /* a/softcap; 0 without */
  int32_t capped;
  const flp_score_values *scores; /* NULL but in a step whose loss reads such values */
  CUdeviceptr lora_a_acc;         /* f32 sums that take the place of grad_lora_a, or 0 */
  flp_ahead ahead;
  CUdeviceptr flat; /* of a step with an order for flat rows (tail.c): two words; else 0 */
  int32_t is_flat;  /* 1 in that order */
} flp_call;

/* Rows of a chunk: active rows [begin, end). */
typedef struct flp_row_range {
  int64_t begin, end;
} flp_row_range;

/* Columns [begin, end): rows of weight. */
typedef struct flp_column_range {
  int64_t begin, end;
} flp_column_range;

/* Parameters that many kernels have under one name (abi.h): initialisers of what a launch gives. */
#define FLP_GIVE_ROWS(rows) .row_begin = (int32_t)(rows).begin, .row_end = (int32_t)(rows).end
#define FLP_GIVE_COLUMNS(columns) .column_begin = (int32_t)(columns).begin, .column_end = (int32_t)(columns).end
#define FLP_GIVE_TILES(m, n) .tiles_m = (int32_t)(m), .tiles_n = (int32_t)(n)
#define FLP_GIVE_GRAD_HIDDEN(a) .out = flp_call_pointer((a)->grad_hidden), .out_stride = (a)->grad_hidden_stride

/* That what an entry is given begins with the parameters of another, whose LIST in abi.h that is. */
#define FLP_GIVEN_BEGINS(whole, start, LIST)                                     \
  __attribute__((unused)) static inline void whole##_begins_with_##start(void) { \
    typedef flp_##whole##_given whole_given;                                     \
    typedef flp_##start##_given start_given;                                     \
    LIST(FLP_SAME_PLACE)                                                         \
  }
#define FLP_SAME_PLACE(kind, name) \
  FLP_GIVEN_##kind(_Static_assert(offsetof(start_given, name) == offsetof(whole_given, name), #name);)

/* A call with arguments of its own: take address only where it stands, as the call points into it. */
typedef struct flp_own_call {
  flp_call call;
  flp_args args;
} flp_own_call;

/* ---- launch.c ---- */

/* 1 if a pass scores rows for its outputs: forward, and a step. */
static inline int flp_args_want_outputs(const flp_args *args) {
  return args->pass == FLP_PASS_FORWARD || args->pass == FLP_PASS_STEP;
}

/* What kernels get that read rows of the weight themselves: all of it. */
#define FLP_GIVE_WHOLE_WEIGHT(call)                                                       \
  .weight = flp_call_pointer((call)->head ? (call)->head->weight : (call)->args->weight), \
  .weight_stride = (call)->head ? (call)->head->weight_stride : (call)->args->weight_stride

/* Starts one as a copy of another call. */
void flp_call_copy(const flp_call *call, flp_own_call *out);

/* Launches an entry with `ctas` CTAs. given: the entry's struct of abi.h, NULL where that is empty; the
 * other parameters are the call's. error: DRIVER naming kernel and spec; INTERNAL if the layout lacks a region */
flp_status flp_launch(const flp_call *call, flp_entry_id entry, const void *given, int64_t ctas);
/* Launches an entry with as many clusters as the device holds at once, at most `clusters`. */
flp_status flp_launch_clusters(const flp_call *call, flp_entry_id entry, const void *given, int64_t clusters);
/* Launches an entry that gives each item that many threads. */
flp_status flp_launch_over(const flp_call *call, flp_entry_id entry, const void *given, int64_t items, int lanes);
/* The layout of a pass over the call's rows and lists in its workspace. Searching for one takes longer than a launch, so
 * the plan remembers the last of each pass. error: BUDGET, with scheme.smallest_bytes */
flp_status flp_call_pick(flp_call *call, flp_pass pass);

/* 1 with several targets a row; where their scores are, the caller's partial_targets or the workspace's. */
int flp_call_has_targets(const flp_call *call);
CUdeviceptr flp_targets_scores(const flp_call *call);
/* Launches prepare (prepare.c). outputs: 1 to fill logprob, entropy, stats and, in a forward pass, partial of inactive rows. */
flp_status flp_launch_prepare(const flp_call *call, int outputs);
/* Sets so many bytes in a row; none at address 0. */
flp_status flp_launch_set_bytes(const flp_call *call, CUdeviceptr start, uint64_t bytes, unsigned char value);
/* A gradient: rows of so many columns, `stride` elements apart. */
typedef struct flp_gradient {
  const void *start;
  flp_dtype type;
  int64_t stride, rows, columns;
} flp_gradient;
/* Zeroes its rows from `first` on. */
flp_status flp_launch_zero(const flp_call *call, flp_gradient gradient, int64_t first);
/* Address of a workspace array; 0 if the layout has none. */
CUdeviceptr flp_call_region(const flp_call *call, flp_region region);
/* A device pointer as kernels take it. */
CUdeviceptr flp_call_pointer(const void *pointer);
/* OK for result 0; else as flp_driver_status, naming the plan's spec. */
flp_status flp_call_status(const flp_call *call, CUresult result, const char *what);
/* How many best columns the call asks for; whether it asks for them or for ranks; and where combine puts stats, the
 * workspace if they are for these alone. */
int32_t flp_call_best(const flp_call *call);
int flp_call_wants_top(const flp_call *call);
CUdeviceptr flp_call_stats(const flp_call *call);
/* The descriptor of the module of that kind. */
const flp_kernel_desc *flp_call_desc(const flp_call *call, flp_kernel_kind kind);

/* ---- operands.c: operands of two dtypes (abi.h) ---- */

/* D of products of scores: with two terms twice that of the head. */
int64_t flp_call_depth(const flp_call *call);
/* Makes what the layout has of hidden and bias; the call that takes them. */
flp_status flp_launch_operands(const flp_call *call, flp_own_call *own);
/* The same of the weight's columns [begin, end), slice after slice. Where the scheme has two of them all but the first,
 * number 0, are made by the launch over the one before, as own->call.ahead says. */
flp_status flp_launch_slice(const flp_call *call, int64_t number, int64_t begin, int64_t end, flp_own_call *own);

/* ---- maps.c: matrices that the copy engine reads and writes ---- */

/* A matrix of the operand dtype: boxes of at most flp_box_columns elements along a row, in the 128-byte swizzle. */
typedef struct flp_matrix {
  const char *name; /* for messages */
  CUdeviceptr start;
  int64_t rows, columns, stride; /* elements */
  uint32_t box_columns, box_rows;
} flp_matrix;

/* Elements of the operand dtype in 128 bytes, the width of the swizzle. */
uint32_t flp_box_columns(const flp_call *call);

/* error: DRIVER naming matrix and spec */
flp_status flp_map_encode(const flp_call *call, const flp_matrix *matrix, flp_abi_map *out);
/* With the boxes in which a kernel of scores reads their rows, and their columns. */
flp_status flp_map_encode_rows(const flp_call *call, const flp_kernel_desc *desc, uint32_t box_rows, flp_matrix matrix,
                               flp_abi_map *out);
flp_status flp_map_encode_columns(const flp_call *call, const flp_kernel_desc *desc, flp_matrix matrix,
                                  flp_abi_map *out);

/* Rows of operands: of hidden, of the gathered rows from row `first` of their region on, and of weight. */
flp_matrix flp_matrix_hidden(const flp_call *call, flp_row_range rows);
flp_matrix flp_matrix_gathered(const flp_call *call, int64_t first, int64_t rows);
flp_matrix flp_matrix_weight(const flp_call *call, flp_column_range columns);

/* Of an adapter: row `column` of B, that of an active row of u; and their rows as matrices, likewise. */
CUdeviceptr flp_lora_b(const flp_call *call, int64_t column);
CUdeviceptr flp_lora_u(const flp_call *call, int64_t row);
flp_matrix flp_matrix_lora_u(const flp_call *call, flp_row_range rows);
flp_matrix flp_matrix_lora_b(const flp_call *call, flp_column_range columns);

/* Puts these active rows together in their region, from its row 0 on, where kernels want that: through tensor maps. */
flp_status flp_launch_gather(const flp_call *call, flp_row_range rows);

/* ---- scores.c ---- */

/* Where part keep puts exponentials: of the chunk's first row and column, rows stride elements apart. expands: 1 if
 * they become dz in place before the products; else they have the slope of a softcap from the start. */
typedef struct flp_keep_sink {
  CUdeviceptr reference, kept;
  int64_t stride;
  int expands;
} flp_keep_sink;

/* Where part emit lists the columns above the floors, by active row from 0 on. */
typedef struct flp_emit_sink {
  CUdeviceptr floor, gate, count, entry;
  int32_t capacity;
  float log2_threshold;
} flp_emit_sink;

/* What forward makes beside partials: a sink for each part; NULL: nothing. top: 1 to list columns in the layout's
 * arrays, from number top_from of the launch on. */
typedef struct flp_sinks {
  const flp_keep_sink *keep;
  const flp_emit_sink *emit;
  int top;
  int64_t top_from;
} flp_sinks;

/* Partials of the scores of a chunk's rows with these columns; rows have been gathered where kernels want that. Columns
 * begin at a multiple of the planner's unit_columns; at 0, where neither keep nor top is there. */
flp_status flp_launch_scores(const flp_call *call, flp_row_range rows, flp_column_range columns, flp_sinks to);
/* The scores of the rows' own targets, before forward: tail_target or top_target. */
flp_status flp_launch_own_scores(const flp_call *call, flp_entry_id entry, flp_row_range rows);
/* logprob, entropy and stats from those; partial: where a shard's partial goes in their place, 0: nowhere */
flp_status flp_launch_fold(const flp_call *call, flp_row_range rows, CUdeviceptr partial);

/* ---- outputs.c ---- */

/* Scores as flp_launch_scores makes them, range after range of columns; in slices, with part top, where the call wants
 * best columns or ranks (top.c). */
flp_status flp_launch_range(const flp_call *call, flp_row_range rows, flp_column_range columns, flp_sinks to);
/* The same of all columns, with the weight as it is or slice by slice. */
flp_status flp_launch_columns(const flp_call *call, flp_row_range rows, flp_sinks to);
/* What a chunk's partials give, when its scores are there: args.partial, logprob, entropy and stats, best columns,
 * statistics; the same but for the first, of which several targets are given the rows' partials. */
flp_status flp_launch_outputs(const flp_call *call, flp_row_range rows);
flp_status flp_launch_values(const flp_call *call, flp_row_range rows, CUdeviceptr partial);

/* ---- targets.c: K targets a row (abi.h) ---- */

/* What stands for a row's targets, and sums of their upstream gradients; before prepare. */
flp_status flp_launch_targets_rows(const flp_call *call);
/* Those sums alone, once a step's loss has its gradients. */
flp_status flp_launch_targets_sums(const flp_call *call);
/* Behind prepare: their lists, for part targets. */
flp_status flp_launch_targets_sort(const flp_call *call);
/* logprob, entropy and stats of some rows from the partials of shard_count shards and their scores. */
flp_status flp_launch_targets_finish(const flp_call *call, flp_row_range rows, CUdeviceptr partial, CUdeviceptr scores,
                                     int64_t shard_count);
/* Backward: what chunks need of all rows, behind record; of a stream, before all chunks. */
flp_status flp_launch_targets_gradients(const flp_call *call);

/* ---- score.c: values of all scores of a row, which a step's loss reads (abi.h) ---- */

flp_score_values flp_score_values_of(const flp_call *step);
/* What the means of all rows need, before forward: the sums of the weight's rows; or (mean.c) a forward pass of its
 * own, in the workspace of the one that follows. */
flp_status flp_launch_score_means(const flp_call *call);
/* The former alone. */
flp_status flp_launch_score_weight(const flp_call *call);
/* lse and mean_score of a chunk's rows, behind stats. */
flp_status flp_launch_score_rows(const flp_call *call, flp_row_range rows);
/* record with the derivative by lse. */
flp_status flp_launch_score_record(const flp_call *call, flp_row_range rows);
/* Behind keep_finish in the plain form: the targets' saved exponentials. */
flp_status flp_launch_score_target(const flp_call *call, flp_row_range rows, const flp_keep_sink *keep);
/* Behind list_dz: what the mean adds to it. */
flp_status flp_launch_score_list(const flp_call *call);
/* Where products add what the mean gives, in the layout of the pass that has them: sets `values`, and the sums of the weight's
 * rows there. Then, behind the last record, those of hidden; and of column sums of dz what is a bias's part. */
flp_status flp_launch_score_added(const flp_call *call, flp_score_values *values);
flp_status flp_launch_score_hidden_sums(const flp_call *call);
flp_status flp_launch_score_bias(const flp_call *call, CUdeviceptr bias_part, int64_t columns);
/* Zeros there, where nothing reads the mean, or the pass is no part of a step. */
flp_status flp_launch_score_nothing(const flp_call *call);
/* What the mean adds to gradients in fp32, behind the last chunk. */
flp_status flp_launch_score_gradients(const flp_call *call);

/* ---- lora.c: a low-rank adapter (abi.h); without one nothing is launched ---- */

/* Behind prepare: u of all active rows. */
flp_status flp_launch_lora_project(const flp_call *call);
/* Behind all chunks of the backward pass: the gradients that follow from G = dz·B. */
flp_status flp_launch_lora_gradients(const flp_call *call);
/* Zeroes rows of grad_lora_b from `first` on, and in a call without rows grad_lora_a. */
flp_status flp_launch_zero_lora(const flp_call *call, int64_t first);

/* ---- fill.c ---- */

/* Gradients of rows and columns that no product reaches. */
flp_status flp_launch_fill(const flp_call *call);
/* Zeroes the rows of grad_weight and grad_bias from `first` on, where they are asked for and not accumulated. */
flp_status flp_launch_zero_head(const flp_call *call, int64_t first);

/* ---- listed.c: gradients over entries in the layout's arrays ---- */

/* list_score of the entries in list_column, list_length of them a row. */
flp_status flp_launch_list_scores(const flp_call *call, CUdeviceptr offsets);
/* Entries: how many there may be, 1 or more; and where the device has how many there are, 0: as many. */
typedef struct flp_entries {
  int32_t count;
  CUdeviceptr total;
} flp_entries;
/* list_order and list_start of entries. */
flp_status flp_launch_list_order(const flp_call *call, flp_entries entries);
/* grad_hidden and grad_lora_a of the active rows, but for those of list_length FLP_LIST_ELSEWHERE, from list_column and
 * list_dz.
 * offsets: (n) i64 by row, where its entries start */
flp_status flp_launch_listed_hidden(const flp_call *call, CUdeviceptr offsets);
/* grad_weight and grad_bias, those that the call has, from list_column, list_row and list_dz, which it brings into the
 * order of columns. add: 1 to add to both; else to grad_weight where the spec accumulates it */
flp_status flp_launch_listed_head(const flp_call *call, flp_entries entries, int add);

/* ---- one file a pass ---- */

flp_status flp_launch_forward(const flp_call *call);
/* The same, of a call whose operands flp_launch_operands has made. */
flp_status flp_launch_forward_made(const flp_call *call);
/* Forward and backward of direction mode, after prepare. */
flp_status flp_launch_direction(const flp_call *call);
flp_status flp_launch_direction_rows(const flp_call *call);
/* Forward of tail mode, of a chunk: its scores and lists; and the partials that backward reads. */
flp_status flp_launch_tail(const flp_call *call, flp_row_range rows);
flp_status flp_launch_tail_kept(const flp_call *call, flp_row_range rows);
/* Of a step with an order for flat rows, before all chunks: floors, and which order is taken; and after prepare of the
 * passes behind that: no row is active in the other one. */
flp_status flp_launch_flat(const flp_call *call);
flp_status flp_launch_flat_gate(const flp_call *call, int decides);
/* Backward of tail mode, after prepare: the entries of rows that lists serve; the call of a backward pass over the others,
 * of which args is part; and what the entries add to its gradients. */
flp_status flp_launch_tail_lists(const flp_call *call);
flp_status flp_tail_dense(const flp_call *call, flp_own_call *dense);
flp_status flp_launch_tail_sums(const flp_call *call);
/* Best columns and ranks: scores of a chunk in slices, with lists. Columns come range after range, of which slices are
 * parts; exponentials go where those of the range's first column do. */
flp_status flp_launch_top(const flp_call *call, flp_row_range rows, flp_column_range columns, flp_sinks to);
/* Of listed columns, whose scores are there. */
flp_status flp_launch_top_listed(const flp_call *call, flp_row_range rows);
/* What stands in these, when the chunk is folded; and rows that are not computed. Without either nothing. */
flp_status flp_launch_top_finish(const flp_call *call, flp_row_range rows);
flp_status flp_launch_top_others(const flp_call *call);
/* args.tail_report of a pass that leaves nothing out, if there is one. */
flp_status flp_launch_exact_report(const flp_call *call);
/* Partials of listed columns, and the gradients of these, after prepare. */
flp_status flp_launch_listed(const flp_call *call);
flp_status flp_launch_listed_gradients(const flp_call *call);
flp_status flp_launch_combine(const flp_call *call);
/* args.statistics of a chunk's rows, or partial_statistics of a shard's; nothing where neither is there. */
flp_status flp_launch_statistics(const flp_call *call, flp_row_range rows);
flp_status flp_launch_statistics_merged(const flp_call *call);
flp_status flp_launch_backward(const flp_call *call);
flp_status flp_launch_step(const flp_call *call);
/* Of a plan of FLP_OP_LOSS. */
flp_status flp_launch_loss(const flp_call *call);
/* Of flp_select, flp_diverge and flp_scale: calls without flp_args. */
flp_status flp_launch_select(const flp_call *call, const flp_select_args *args);
flp_status flp_launch_diverge(const flp_call *call, const flp_diverge_args *args);
flp_status flp_launch_scale(const flp_call *call, const flp_scale_args *args);

#endif
