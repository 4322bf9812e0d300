/* abi.h: the parameters of every kernel entry, defined once for the templates that read them and the launches that fill
 * them.
 *
 * Each list below, FLP_PARAMS_prepare of entry prepare and so on, becomes a C struct of what the launch fills by name,
 * a table of names and types (the launch points CUDA at each value; the generator declares the kernel from it, so
 * p.hidden in a template is this hidden) and a signature that travels in the kernel descriptor and is compared at load.
 *
 * Kinds: ptr, a device pointer, which may be null only where the list says so; i64, i32, f32, f64; map, a CUtensorMap
 * by value; region, the workspace array of that name; region_or_null, the same, null where the layout of the call has
 * none; arg(ptr) and so on: the field of that name of the call's flp_args; call(ptr): that of flp_call_values. A launch
 * fills none of the last four: flp_launch takes them from the call (launch.h).
 *
 * Index spaces. A "row" is a row of the caller's hidden (0 <= row < n). Rows that cost work are compacted by `prepare`
 * into "active rows" a (0 <= a < *count), in ascending order: row = index[a]. All workspace arrays over rows are
 * indexed by a. Columns are rows of weight, 0 <= v < vocab_valid. Scores in log2 units: t = row_scale[a]·(z [+ b]), or
 * with softcap t = row_scale[a]·tanh(cap_in·(z + b)), where z is the matrix product. */
#ifndef FLP_ABI_H
#define FLP_ABI_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/flp.h"

/* The workspace arrays; each starts 256-byte aligned. The planner says which of them a pass has. */
#define FLP_REGION_LIST(R)                                                                             \
  R(row_class)                                                                                         \
  R(index)                                                                                             \
  R(local_target) R(scale) R(count) R(zy) R(part) /* forward */                                        \
      R(gather) R(turn)                           /* passes that gather */                             \
      R(record) R(bound)                          /* backward from here on */                          \
      R(scale_pair)                               /* fp16, and what key.bias of products adds */       \
      R(dz) R(bias_part) R(hidden_acc) R(weight_acc) R(weight_low) R(bias_acc) R(factor)               \
          R(redo)  /* saved exponentials; those of stream and direction modes are in the place of dz */ \
      R(reference) /* stream mode; else in what forward saved */                                       \
      R(stats) R(logprob) R(entropy) R(grad_logprob) R(grad_entropy) /* step, by row */                \
      R(list_state) R(list_column) R(list_length) R(list_target) R(list_score) /* listed columns */    \
      R(list_row) R(list_dz) R(list_order) R(list_other) R(list_digit) R(list_start) /* backward */ \
      R(tail_floor) R(tail_found) R(tail_column) R(tail_score) /* tail mode: lists, sorted */ \
      R(tail_left) R(tail_sum) R(tail_missed) R(tail_mean) R(tail_offsets) R(tail_total) R(tail_logprob) R(tail_entropy) \
      R(flat) R(tail_saved) /* of a step: which order it takes; what forward lists */ \
      R(target_row) R(target_place) R(target_block) R(target_score) R(target_sums) /* K targets, by row and target */ \
      R(target_weight) R(target_gradient) R(target_exact) R(target_offsets) R(target_total) /* backward */ \
      R(score_lse) R(score_mean) R(score_grad_lse) R(score_grad_mean) R(score_any) /* of a step whose loss reads them */ \
      R(score_each) R(score_stats) R(mean_part) R(mean_weight) \
      R(mean_record) R(mean_scale) R(mean_partial) R(mean_dz) R(mean_dz_part) /* where it takes a pass */ \
      R(top_low) R(top_floor) R(top_mark) R(top_count) R(top_above) R(top_lost) R(top_column) R(top_score) /* best, rank */ \
      R(statistics_part) /* of forward's partials */ \
      R(operand_hidden) R(operand_bias) R(operand_weight) /* of another dtype, as products take them */ \
      R(lora_u) R(lora_scaled) R(lora_sum) R(lora_gradient) R(lora_a_acc) R(lora_b_acc) /* an adapter */

/* The arrays as numbers, FLP_REGION_index and so on. */
typedef enum flp_region {
#define FLP_REGION_ID(name) FLP_REGION_##name,
  FLP_REGION_LIST(FLP_REGION_ID)
#undef FLP_REGION_ID
      FLP_REGION_ID_COUNT
} flp_region;

/* Numbers that kernels and launches share: FLP_LEAF_COLUMNS here, k.abi.LEAF_COLUMNS in a template.
 *
 * Leaves and groups are the order in which a row's scores are summed, a part of what the kernels promise and never
 * tuned: leaves of columns are summed from first to last column, folded left to right in groups, and the groups left
 * to right. */
#define FLP_ABI_CONSTANT_LIST(C)                                                                      \
  C(LEAF_COLUMNS, 768)                                                                                \
  C(GROUP_LEAVES, 4)                                                                                  \
  C(GROUP_COLUMNS, FLP_LEAF_COLUMNS * FLP_GROUP_LEAVES)                                               \
  C(ROW_ACTIVE, 0)         /* row_class, as prepare fills it */                                       \
  C(ROW_LEFT_OUT, 1)                                                                                  \
  C(ROW_BAD, 2)                                                                                       \
  C(SCORE_LIMIT, 1 << 30)  /* of a row's largest score in log2 units, see flp_execute */                \
  C(GATHER_ROWS, 64)       /* gather, keep_gather: zeros follow up to a multiple */                   \
  C(COMBINE_LANES, 64)     /* combine: threads of an active row */                                    \
  C(DZ_BOX_ROWS, 16)       /* rows of the boxes in which dz and kept leave */                         \
  C(PRODUCT_WANTED, 1)     /* products_map: bits of hidden_flags and weight_flags */                  \
  C(PRODUCT_READ_ACC, 2)                                                                              \
  C(PRODUCT_WRITE_ACC, 4)                                                                             \
  C(PRODUCT_WRITE_OUT, 8)                                                                             \
  C(PRODUCT_OUT_F32, 16)   /* out is f32, else of the operand dtype */                                \
  C(PRODUCT_IF_ANY, 32)    /* wanted where any row is active */                                       \
  C(KEPT_BLOCK_ROWS, 1024) /* active rows that are redone together */                                 \
  C(EXPAND_COLUMNS, 2048)  /* keep_expand: columns of a CTA */                                        \
  C(LIST_DIGIT_BITS, 9)    /* list_digits, list_place: of a column, at a time */                      \
  C(LIST_DIGITS, 1 << FLP_LIST_DIGIT_BITS)                                                            \
  C(LIST_BLOCK, 4096)      /* list_digits, list_place: entries of a CTA */                            \
  C(LIST_WIDE, 64)         /* list_weight leaves columns of so many entries or more to list_weight_wide */ \
  C(LIST_SLICE, 256)       /* list_weight_wide: columns of D of a CTA */                              \
  C(EMIT_BINS, 8)          /* of the columns that part emit lists of a row */                      \
  C(EMIT_BIN_WIDTH, 3)     /* log2 units */                                                           \
  C(EMIT_MOST, 1024)       /* columns of a row's list */                                              \
  C(LIST_ELSEWHERE, -2)    /* list_length of a row whose gradients other kernels make */              \
  C(TARGET_PLACES, 512)    /* FLP_TARGETS_MAX of flp.h */                                             \
  C(TARGET_COLUMNS, 64)    /* of a bit of target_block; tiles of forward have whole ones */   \
  C(TARGET_BITS, 24)       /* of a word of it: whole leaves */                                        \
  C(TARGET_NONE, 0x7fffffff) /* in list_column, behind a row's targets: above every column */         \
  C(TAIL_SAMPLES, 1024)    /* tail_mean: rows of weight */                                            \
  C(TOP_MOST, 128)         /* FLP_TOPK_MAX */                                                         \
  C(TOP_PLACES_MOST, 2048) /* of a row's list of columns that may be among its best */                \
  C(MEAN_FOLD_COLUMNS, 32) /* mean_fold: columns of a CTA */                                          \
  C(MEAN_HEAD_ROWS, 64)    /* score_head: rows of weight of a CTA */                                   \
  C(MEAN_ADDED, 4)         /* words of scale_pair before what products add, and behind each vector */   \
  C(DIVERGE_WORDS, 64)     /* FLP_DIVERGE_STATE */                                                    \
  C(TAIL_VECTORS, 32)      /* tail_mean: vectors of a CTA, of 16 bytes or of one element as key.alignment allows */
#define FLP_ABI_CONSTANT(name, value) FLP_##name = (value),
enum { FLP_ABI_CONSTANT_LIST(FLP_ABI_CONSTANT) };
#undef FLP_ABI_CONSTANT

/* What the kernel of forward makes beside partials, or takes beside hidden and weight: P(ID, name), in the order of
 * names and parameters. Any set of parts is a kernel, named by them: forward, forward_keep, forward_keep_top. */
#define FLP_FORWARD_PARTS(P) \
  P(KEEP, keep) P(EMIT, emit) P(TARGETS, targets) P(TOP, top) P(COLUMNS, columns) P(STATISTICS, statistics) \
  P(RAW, raw) P(LORA, lora) P(SHORT, short)
typedef enum flp_part_bit {
#define FLP_PART_BIT(ID, name) FLP_PART_BIT_##ID,
  FLP_FORWARD_PARTS(FLP_PART_BIT)
#undef FLP_PART_BIT
      FLP_PART_BITS
} flp_part_bit;
enum flp_part {
#define FLP_PART(ID, name) FLP_PART_##ID = 1 << FLP_PART_BIT_##ID,
  FLP_FORWARD_PARTS(FLP_PART)
#undef FLP_PART
      FLP_FORWARD_SETS = 1 << FLP_PART_BITS
};

/* N(set, name) for every set of parts. */
#define FLP_FORWARD_NAMES(N, name)           \
  FLP_NAMES_FROM_EMIT(N, 0, name)            \
  FLP_NAMES_FROM_EMIT(N, FLP_PART_KEEP, name "_keep")
#define FLP_NAMES_FROM_EMIT(N, set, name)    \
  FLP_NAMES_FROM_TARGETS(N, set, name)       \
  FLP_NAMES_FROM_TARGETS(N, (set) | FLP_PART_EMIT, name "_emit")
#define FLP_NAMES_FROM_TARGETS(N, set, name) \
  FLP_NAMES_FROM_TOP(N, set, name)           \
  FLP_NAMES_FROM_TOP(N, (set) | FLP_PART_TARGETS, name "_targets")
#define FLP_NAMES_FROM_TOP(N, set, name)     \
  FLP_NAMES_FROM_COLUMNS(N, set, name)       \
  FLP_NAMES_FROM_COLUMNS(N, (set) | FLP_PART_TOP, name "_top")
#define FLP_NAMES_FROM_COLUMNS(N, set, name) \
  FLP_NAMES_FROM_STATISTICS(N, set, name)    \
  FLP_NAMES_FROM_STATISTICS(N, (set) | FLP_PART_COLUMNS, name "_columns")
#define FLP_NAMES_FROM_STATISTICS(N, set, name) \
  FLP_NAMES_FROM_RAW(N, set, name)              \
  FLP_NAMES_FROM_RAW(N, (set) | FLP_PART_STATISTICS, name "_statistics")
#define FLP_NAMES_FROM_RAW(N, set, name)     \
  FLP_NAMES_FROM_LORA(N, set, name)          \
  FLP_NAMES_FROM_LORA(N, (set) | FLP_PART_RAW, name "_raw")
#define FLP_NAMES_FROM_LORA(N, set, name)    \
  FLP_NAMES_FROM_SHORT(N, set, name)         \
  FLP_NAMES_FROM_SHORT(N, (set) | FLP_PART_LORA, name "_lora")
#define FLP_NAMES_FROM_SHORT(N, set, name)   \
  N(set, name)                               \
  N((set) | FLP_PART_SHORT, name "_short")

/* What kernels read that read rows of the head by themselves; first, where key.lora says that there is an adapter (see
 * "a low-rank adapter" below), u by active row, and B. */
#define FLP_HEAD_PARAMS(P)                                                 \
  P(region_or_null, lora_u) P(arg(ptr), lora_b) P(arg(i64), lora_b_stride) P(call(i32), rank) \
  P(arg(ptr), hidden) P(arg(i64), hidden_stride)                           \
  P(ptr, weight) P(i64, weight_stride) /* all of it, see key.weight_form */ \
  P(arg(ptr), bias) /* (V) operand dtype or null */

/* module rows: entry prepare, one CTA. Classifies each row (row_class, FLP_ROW_*), compacts the active ones and
 * fills the outputs of the others: left out -> 0, bad -> NaN (partial: maximum -SCORE_LIMIT or NaN, sums 0, target -inf).
 * A row is left out if its target is ignore_index, if `rows` is given and lacks it, or (backward) if both upstream
 * gradients that are given are zero. It is bad if its target is outside [0, vocab_total), or its temperature is
 * not > 0, or it or unit/T is not a normal number; of unit 0, unit/T is 0. Row ids outside [0,n) count in the error
 * word and are skipped. */
#define FLP_PARAMS_prepare(P)                                                                                 \
  P(ptr, target)      /* (n) target dtype */                                                                  \
  P(ptr, temperature) /* (n) f32 or null */                                                                   \
  P(f32, row_scale)   /* used when temperature is null: unit/T */                                             \
  P(f32, unit)        /* a·log2(e), or softcap·log2(e) */                                                   \
  P(arg(ptr), rows)        /* (row_count) i32 or null */                                                      \
  P(arg(i64), row_count)                                                                                      \
  P(arg(i64), n)                                                                                              \
  P(arg(i64), ignore_index)                                                                                   \
  P(arg(i64), vocab_offset)                                                                                   \
  P(i64, vocab_valid)                                                                                         \
  P(arg(i64), vocab_total)                                                                                    \
  P(ptr, grad_logprob) /* (n) f32 or null */                                                                  \
  P(ptr, grad_entropy) /* (n) f32 or null */                                                                  \
  P(ptr, logprob)      /* outputs to fill for inactive rows, each may be null */                              \
  P(ptr, entropy)                                                                                             \
  P(ptr, stats)           /* (n,4) */                                                                         \
  P(ptr, partial)         /* (n,4) */                                                                         \
  P(region, row_class)    /* (n) u8 out */                                                                    \
  P(region, index)        /* (n) i32 out: row of each active row */                                           \
  P(region, local_target) /* (n) i32 out, by active row: target - vocab_offset, or -1 if not in this shard */ \
  P(region, scale)        /* (n) f32 out, by active row: row_scale */                                         \
  P(region, count)        /* (1) i32 out: active rows */                                                      \
  P(call(ptr), error_word)      /* (1) i32, added to: bad rows and bad row ids */

/* module forward: entry forward. One CTA a unit: a panel of tile_rows of the active rows [row_begin, row_end) x
 * unit_columns columns.
 * part: [unit column group][3][capacity] f32 by a - row_begin: maximum, sum, weighted sum of the group in log2 units.
 * zy: (n) f32 by active row: raw score z + b of the target (before cap and scale), written by the one CTA that meets
 * it. */
#define FLP_FORWARD_PARAMS(P)                                              \
  P(arg(ptr), hidden)       /* (n,D) */                                    \
  P(arg(i64), hidden_stride)                                               \
  P(ptr, weight)       /* (V,D) */                                         \
  P(i64, weight_stride)                                                    \
  P(ptr, bias)         /* (V) or null */                                   \
  P(region, index) P(region, local_target) P(region, scale) P(region, count) \
  P(call(f32), cap_in)       /* a/softcap; unused without softcap */       \
  P(i32, depth)        /* D */                                             \
  P(i32, vocab_valid)                                                      \
  P(i32, row_begin) P(i32, row_end)                                        \
  P(i32, bands)        /* ceil((row_end - row_begin) / tile_rows) */       \
  P(i32, groups)       /* ceil(vocab_valid / unit_columns) */              \
  P(region, part) P(i64, capacity) P(region, zy)

/* module forward: entry forward_map, in place of forward where operands come through tensor maps (CUtensorMap). A grid
 * of any size whose clusters of tile.cluster CTAs take the units in order: tile_rows·cluster active rows x one or two
 * neighbouring leaves of FLP_LEAF_COLUMNS columns. Boxes: tile_depth x tile_rows of hidden, tile_depth x
 * tile_columns/cluster of weight, 128-byte swizzle. part: [leaf][3][capacity], else as above.
 * Where every row is active rows are read from hidden itself, else from what gather put together. */
#define FLP_FORWARD_MAP_PARAMS(P)                                          \
  P(map, hidden_map)   /* (n,D) */                                         \
  P(map, gathered_map) /* (row_end - row_begin, D) */                      \
  P(map, weight_map)   /* (vocab_valid,D) */                               \
  P(ptr, bias)         /* (V) or null */                                   \
  P(region, local_target) P(region, scale) P(region, count)                \
  P(call(f32), cap_in) P(i32, depth) P(i32, vocab_valid)                   \
  P(i32, n) P(i32, row_begin) P(i32, row_end)                              \
  P(region, part) P(i64, capacity) P(region, zy)                           \
  P(region, turn) /* (1) i32, 0 before and after the launch: the next unit */

/* module rows: entry gather, one warp a row of [row_begin, row_end): copies hidden[index[a]] of each active row to
 * out[a - row_begin] and zeroes what follows up to a multiple of FLP_GATHER_ROWS, unless every row is active; and sets
 * *turn to 0. hidden and out allow 16-byte accesses. */
#define FLP_PARAMS_gather(P)                                               \
  P(arg(ptr), hidden) P(arg(i64), hidden_stride) P(region, index) P(region, count) \
  P(i32, n) P(i32, row_begin) P(i32, row_end) P(i32, depth)                \
  P(ptr, out) P(i64, out_stride) P(region, turn)

/* module rows: entry combine, FLP_COMBINE_LANES threads an active row of [row_begin, row_end). Folds `parts`
 * partials of one shard in order, first the `fold` (1 or FLP_GROUP_LEAVES) of a group, then the groups; writes logprob,
 * entropy, stats, or partial; each may be null. Target score zy is read only where local_target >= 0. A row whose
 * largest score is beyond FLP_SCORE_LIMIT gets NaN in the outputs and counts in the error word. */
#define FLP_PARAMS_combine(P)                                              \
  P(region, part) P(i64, capacity) P(i32, parts) P(i32, fold) P(region, zy) \
  P(region, index) P(region, local_target) P(region, scale) P(region, count) \
  P(i32, row_begin) P(i32, row_end)                                        \
  P(call(f32), cap_in) P(call(i32), capped) /* capped: 1 if softcap applies to zy */ \
  P(ptr, logprob) P(ptr, entropy) P(ptr, stats) P(ptr, partial)            \
  P(call(ptr), error_word) /* (1) i32, added to: rows beyond FLP_SCORE_LIMIT */

/* module rows: entry merge, one thread an active row. Folds the partials of all shards in rank order; else as combine. */
#define FLP_PARAMS_merge(P)                                                \
  P(arg(ptr), partial) /* (shard_count, n, 4) */                           \
  P(arg(i64), shard_count) P(arg(i64), n)                                  \
  P(region, index) P(region, scale) P(region, count)                       \
  P(call(f32), cap_in) P(call(i32), capped)                                \
  P(arg(ptr), logprob) P(arg(ptr), entropy) P(arg(ptr), stats)             \
  P(call(ptr), error_word) /* as in combine */

/* module rows: entry record, one thread an active row of [row_begin, row_end): the four numbers that the dz epilogue
 * needs, {m, A, B, dz_y} with dz = 2^u·(A + B·u), u = t - m; and bound, an upper bound of |dz| over the row. A row whose
 * upstream gradients are zero has A = B = dz_y = 0, whatever its stats, and dz 0, whatever its scores. */
#define FLP_PARAMS_record(P)                                               \
  P(arg(ptr), stats) P(ptr, grad_logprob) P(arg(ptr), grad_entropy)        \
  P(region, index) P(region, scale) P(region, count)                       \
  P(i32, row_begin) P(i32, row_end)                                        \
  P(call(f32), cap_in) P(call(i32), capped)                                \
  P(region, record) /* (n,4) f32 */                                        \
  P(region, bound)  /* (n) f32 */

/* module rows: entry dz_scale, one CTA. fp16 only: the power of two that brings the largest bound to 2^14.
 * scale_pair: {scale, 1/scale} f32; {1, 1} when every bound is 0. */
#define FLP_PARAMS_dz_scale(P) P(region, bound) P(region, count) P(region, scale_pair)

/* module dz: entry dz. One CTA a tile of active rows [row_begin, row_end) x columns [column_begin, column_end):
 * recomputes the scores and stores their gradient, dz[a - row_begin][v - column_begin], in the operand dtype.
 * bias_part: [tile row][column_end - column_begin] f32 column sums, null if the bias needs no gradient. */
#define FLP_PARAMS_dz(P)                                                   \
  P(arg(ptr), hidden) P(arg(i64), hidden_stride)                           \
  P(arg(ptr), weight) P(arg(i64), weight_stride)                           \
  P(arg(ptr), bias)                                                        \
  P(region, index) P(region, local_target) P(region, scale) P(ptr, count)  \
  P(region, record)                                                        \
  P(call(f32), cap_in) P(i32, depth)                                       \
  P(i32, row_begin) P(i32, row_end) P(i32, column_begin) P(i32, column_end) \
  P(i32, tiles_m) /* ceil((row_end - row_begin)/tile_rows) */              \
  P(i32, tiles_n) /* ceil((column_end - column_begin)/tile_columns) */     \
  P(ptr, dz) P(i64, dz_stride)                                             \
  P(region_or_null, scale_pair) /* fp16: dz is stored times scale_pair[0]; else null */ \
  P(ptr, bias_part)

/* module dz: entry dz_map, in place of dz where operands come through tensor maps. A grid of any size whose clusters of
 * tile.cluster CTAs take the units in order: tile_rows·cluster active rows x one or two tiles of columns. Boxes:
 * tile_depth x tile_rows of hidden, tile_depth x tile_columns/cluster of weight, 128-byte swizzle; dz leaves in boxes of
 * 128 bytes x FLP_DZ_BOX_ROWS rows. Rows behind the last active one are stored as zeros up to the end of their row
 * panel. The rest as in dz. */
#define FLP_PARAMS_dz_map(P)                                                \
  P(map, hidden_map)   /* (row_end - row_begin, D): rows of the chunk */    \
  P(map, gathered_map) /* (row_end - row_begin, D): its active rows */      \
  P(map, weight_map)   /* (column_end - column_begin, D) */                 \
  P(map, dz_map)       /* (row_end - row_begin, column_end - column_begin) */ \
  P(arg(ptr), bias)                                                         \
  P(region, local_target) P(region, scale) P(ptr, count) P(region, record)  \
  P(call(f32), cap_in) P(i32, depth) P(i32, n)                              \
  P(i32, row_begin) P(i32, row_end) P(i32, column_begin) P(i32, column_end) \
  P(region_or_null, scale_pair) P(ptr, bias_part)                           \
  P(region, turn) /* (1) i32, 0 before and after the launch: the next unit */

/* module products: entry products_map, in place of grad_hidden and grad_weight where operands come through tensor maps:
 * both products of a chunk in one launch, or one of them. A grid of any size whose clusters take the units in order,
 * first those of grad_hidden: tile_rows·cluster rows of a result x tile_columns of D. All boxes are 64 x 64, those of
 * fp32 32 x 32, 128-byte swizzle. acc and out point at row 0 of the whole tensor; flags: FLP_PRODUCT_*. Accumulators
 * are f32, but those of a weight_out in bf16: see sums of 20 and 24 bits below. */
#define FLP_PARAMS_products_map(P)                                          \
  P(map, dz_map)       /* (row_end - row_begin, column_end - column_begin) */ \
  P(map, weight_map)   /* (column_end - column_begin, D): rows of the chunk */ \
  P(map, hidden_map)   /* (row_end - row_begin, D) */                       \
  P(map, gathered_map) /* (row_end - row_begin, D) */                       \
  P(region, index) P(region, count)                                         \
  P(ptr, factor) /* (n) f32 by active row, of grad_hidden's sums; null: 1. lora_columns leaves rows of 0 out */ \
  P(i32, depth) P(i32, n)                                                   \
  P(i32, row_begin) P(i32, row_end) P(i32, column_begin) P(i32, column_end) \
  P(region_or_null, scale_pair)                                             \
  P(ptr, hidden_acc) P(i64, hidden_acc_stride) P(ptr, hidden_out) P(i64, hidden_out_stride) P(i32, hidden_flags) \
  P(ptr, weight_acc) P(i64, weight_acc_stride) P(ptr, weight_out) P(i64, weight_out_stride) P(i32, weight_flags) \
  P(region, turn) /* (1) i32, 0 before and after the launch: the next unit */

/* modules grad_hidden and grad_weight share one list.
 * grad_hidden: out[index[a]][d] = Σ_v dz[a][v]·weight[v][d]  (M = active rows, K = columns, N = D);
 *              acc is (n,D) f32 by active row.
 * grad_weight: out[v][d] = Σ_a dz[a][v]·hidden[index[a]][d]  (M = columns, K = active rows, N = D); acc is (V,D) f32,
 *              but where out is bf16: see sums of 20 and 24 bits below.
 * operand, out and acc point at row 0 / column 0 of the whole tensor; dz at the chunk's own origin.
 * result = Σ·scale_pair[1]·factor[a] + (read_acc ? acc : 0); stored to acc if write_acc, to out if write_out.
 *
 * key.bias: what the derivative by the mean score adds (templates/common/added.lua) is added to what is stored to an out of
 * 16 bits: to grad_hidden each[a]·weight_sums[d], to grad_weight hidden_sums[d]. All f32, behind FLP_MEAN_ADDED words of
 * scale_pair: hidden_sums and weight_sums, of D + FLP_MEAN_ADDED words each, then each (n) by active row.
 *
 * Sums of 20 or 24 bits, of grad_weight where out is bf16 (templates/common/sums.lua): between two chunks out itself
 * holds the upper 16 bits of a sum, an f32 rounded to so many bits, and acc (region weight_low) the next 4 or 8, as
 * acc_stride says, for each element of the whole tiles that cover (V,D), in the kernel's own order. A chunk has all
 * columns, and column_begin is 0: it writes either acc with the upper bits, or out. */
#define FLP_PARAMS_grad_hidden(P)                                          \
  P(ptr, dz) P(i64, dz_stride)                                             \
  P(ptr, operand) P(i64, operand_stride) /* weight (V,D) or hidden (n,D) */ \
  P(ptr, index) /* null in grad_weight: operand holds the chunk's active rows one after the other */ \
  P(region, count)                                                         \
  P(ptr, factor) /* (n) f32 by active row, of grad_hidden's sums; null: 1 */ \
  P(i32, depth)                                                            \
  P(i32, row_begin) P(i32, row_end) P(i32, column_begin) P(i32, column_end) \
  P(i32, tiles_m) P(i32, tiles_n)                                          \
  P(region_or_null, scale_pair)                                            \
  P(ptr, acc) P(i64, acc_stride) P(ptr, out) P(i64, out_stride)            \
  P(i32, read_acc) P(i32, write_acc) P(i32, write_out)                     \
  P(i32, if_any) /* 1: without active rows nothing is written */

/* module rows: entry bias_reduce, one thread a column of the chunk: sums bias_part over its tile rows, in order.
 * result = Σ + (read_acc ? acc[v] : 0), stored to acc[v] if write_acc, to out[v] (operand dtype) if write_out. */
#define FLP_PARAMS_bias_reduce(P)                                          \
  P(region, bias_part) P(region, count)                                    \
  P(i32, row_begin) P(i32, row_end) P(i32, tile_rows)                      \
  P(i32, column_begin) P(i32, column_end)                                  \
  P(ptr, acc) P(ptr, out)                                                  \
  P(i32, read_acc) P(i32, write_acc) P(i32, write_out)

/* module rows: entry fill, one warp a row: writes grad_hidden rows that have no work: 0, or NaN for bad rows. */
#define FLP_PARAMS_fill(P)                                                 \
  P(region, row_class) P(ptr, out) P(i64, out_stride) P(call(i32), depth) P(arg(i64), n) \
  P(i32, out_is_f32) /* 1: out is f32, 0: operand dtype */

/* module select: scores that exist already, (n,V) in the operand dtype; "numbers" are f32, or f64 where that is it.
 * Entry select, one CTA a row: log-softmax of k targets a row, and the row's entropy and stats {reference m, log2 of the
 * sum of 2^(t - m), entropy}, where t = z·log2(e)/T and m = t at the largest z, for f64 that z itself. A target that is
 * ignore_index gives 0, one outside [0, vocab) NaN and counts in the error word; a row of which all are ignored is not
 * read and gives 0 everywhere. */
#define FLP_PARAMS_select(P)                                              \
  P(ptr, scores) P(i64, scores_stride)                                    \
  P(ptr, target)    /* (n,k) target dtype */                              \
  P(i32, k) P(i32, vocab)                                                 \
  P(i64, ignore_index)                                                    \
  P(f64, inverse)   /* 1/T */                                             \
  P(ptr, logprob)   /* (n,k) numbers out; this and the next two may be null */ \
  P(ptr, entropy)   /* (n) */                                             \
  P(ptr, stats)     /* (n,3) */                                           \
  P(ptr, error_word) /* (1) i32, added to: bad targets, rows beyond FLP_SCORE_LIMIT (not for f64) */

/* module select: entry select_grad, one CTA a row: the gradient of the scores, which may take their place.
 * dz_v = [Σ_j g_j·(δ(v,y_j) - p_v) - e·p_v·(log p_v + H)]/T, g = grad_logprob, e = grad_entropy. */
#define FLP_PARAMS_select_grad(P)                                         \
  P(ptr, scores) P(i64, scores_stride)                                    \
  P(ptr, target) P(i32, k) P(i32, vocab)                                  \
  P(i64, ignore_index) P(f64, inverse)                                    \
  P(ptr, logprob)      /* (n,k) numbers, of select */                     \
  P(ptr, stats)        /* (n,3) */                                        \
  P(ptr, grad_logprob) /* (n,k) numbers or null */                        \
  P(ptr, grad_entropy) /* (n) or null */                                  \
  P(ptr, grad_scores) P(i64, grad_scores_stride) /* (n,V) operand dtype out */

/* module scale: entry scale: values (n,columns) in the operand dtype, each times factor[0], in f32 and rounded once; a factor
 * of 1 leaves them unread. CTAs take rows in turn, however many there are. */
#define FLP_PARAMS_scale(P) P(ptr, values) P(i64, values_stride) P(i32, n) P(i32, columns) P(ptr, factor)

/* module diverge: entry diverge, one CTA a row: how far q, the softmax of a·x, is from p, that of b·y: a loss program
 * over targets compiled, whose targets are all columns, with weight 1. a and b are scale and teacher_scale, or the
 * row's. values: {what the program gives, log-sum-exps of a·x and b·y, entropy of q, Σ min(p, q), whether both have one
 * best column}. A row beyond FLP_SCORE_LIMIT is NaN everywhere, and counts in the error word if there are values.
 * dx_v = a·(u·(G_v - q_v·Σ G/Σ q) + g·([v = y] - q_v) - e·q_v·(log q_v + H)), G = ∂value/∂log q; 0, whatever the row
 * holds, where its upstream gradients u, g and e are. state: {log-sum-exps in log2 units, sums}: written, or, if
 * resumes, read in the place of all passes but that of dx. */
#define FLP_PARAMS_diverge(P)                                                 \
  P(ptr, scores) P(i64, scores_stride)   /* x (n,V) f32 */                    \
  P(ptr, teacher) P(i64, teacher_stride) /* y (n,V) f32 */                    \
  P(i32, vocab)                                                               \
  P(f32, scale) P(ptr, scale_rows)                 /* (n) f32, or null */     \
  P(f32, teacher_scale) P(ptr, teacher_scale_rows)                            \
  P(f64, parameter0) P(f64, parameter1) P(f64, parameter2) P(f64, parameter3) \
  P(f64, parameter4) P(f64, parameter5) P(f64, parameter6) P(f64, parameter7) \
  P(ptr, upstream) /* (n) f32, or null: 1 */                                  \
  P(ptr, values)   /* (n,6) f32 out, or null */                               \
  P(ptr, grad_scores) P(i64, grad_scores_stride) /* (n,V) key.out_dtype out, or null */ \
  P(ptr, target)                                 /* y (n) i64, or null */     \
  P(ptr, grad_logprob) P(ptr, grad_entropy)      /* g, e (n) f32, or null: 0 */ \
  P(ptr, state) P(i32, resumes)                  /* (n,FLP_DIVERGE_WORDS) f64, or null */ \
  P(ptr, partial) P(ptr, teacher_partial)        /* (n,4) f32 as combine writes them, or null both */ \
  P(ptr, error_word) /* (1) i32, added to */

/* ---- saved exponentials: save, stream and direction modes ----
 *
 * kept[a - row_begin][v] = 2^(t - k_a), in the operand dtype (bf16), with one reference k_a a row, reference[a]: while
 * -66 <= lse - k_a <= 100 in log2 units, every probability above 2^-60 is a normal number of bf16 and products of kept
 * with weight stay far inside f32. The gradient of the raw scores follows without a second product h·W^T:
 *
 *   dz = 2^(t - m)·(A + B·(t - m))      {m, A, B, dz_y} from record; at the target dz_y
 *
 * Plain form, where B is 0: dz = factor_a·kept with factor_a = A·2^(k_a - m), if the target's own element is exchanged for
 * expm1(logprob)·2^(lse - k_a), which does not depend on the upstream gradient: grad_hidden is a row scale of kept·W,
 * grad_weight is kept^T·(factor_a·h_a). With softcap kept is times 1 - tanh² then. Expanded form: one pass turns kept into
 * dz, in place. With key.entropy kept has a sign in this form, from which follows the exact score of the row's largest
 * (templates/common/largest.lua).
 *
 * Rows whose lse is out of that range are redone, decided on the device, in blocks of FLP_KEPT_BLOCK_ROWS active rows:
 * dz recomputes the block from hidden and weight, in the place of kept, and its rows have factor 1. So are rows of the
 * expanded form whose target, with a gradient of its own, has vanished from kept: its score is needed for the slope of
 * a softcap; rows of the plain form with such a target so near the cap that stats do not give its slope; rows of a
 * softcap with a row_scale below 4, whose slopes the rounding of kept would move, or in the plain form 2^-9; and for
 * the same reason rows of the expanded form whose mean score is near the cap. */

/* A part whose launch may cover some columns alone, from column_begin on, a multiple of unit_columns: weight, bias and
 * what it stores by column start there, and vocab_valid counts from there; local_target and part are of the whole. */
#define FLP_SLICE_PARAMS(P) P(i32, column_begin)

/* Part keep: stores kept too. Rows behind the last active one are stored as zeros up to the end of their row panel
 * where they exist in kept; columns from vocab_valid on as zeros up to kept_stride, vocab_valid rounded up to 64
 * (forward_map: left out, as outside the map). kept leaves forward_map in boxes of 128 bytes x FLP_DZ_BOX_ROWS rows.
 * part, zy: the bits that forward gives. */
#define FLP_KEEP_PARAMS(P)                                                 \
  P(ptr, reference) /* (n) f32 by active row */                            \
  P(f32, slope)     /* 1 in the plain form, 0 in the expanded one      */ \
  P(ptr, kept) P(i64, kept_stride) /* row 0: active row row_begin */
#define FLP_KEEP_MAP_PARAMS(P)                                             \
  P(ptr, reference) /* (n) f32 by active row */                            \
  P(f32, slope)     /* as above */                                         \
  P(map, kept_map)  /* (row_end - row_begin, vocab_valid) */

/* Part emit: lists the columns of a row above a floor: v with t - floor[a] > 0, exact but for the one rounding of a
 * fused multiply-add. They go to one of FLP_EMIT_BINS bins, by how far above they are, FLP_EMIT_BIN_WIDTH a bin and
 * all the rest in the last. A bin has its share of the row's emit_capacity places (templates/common/bins.lua);
 * emit_count has how many came to it, or more than its places where a bin is so crowded within 64 columns that it
 * overflows if a part of the row is alike (emission.lua). emit_gate rises over the lower bins as it turns out that a
 * row needs them not: when a bin overflows, over that one, and when a leaf's part of the LSE puts log2_threshold above
 * a bin, over that. What is below the gate need not be listed. When it rises depends on timing; but of the bins from
 * that of the row's LSE plus log2_threshold on, the highest that overflows depends on nothing but the row, and so does
 * what the bins above it hold, but for its order. floor: at least -FLP_SCORE_LIMIT, or NaN: nothing is listed. part,
 * zy: the bits that forward gives. */
#define FLP_EMIT_PARAMS(P)                                                 \
  P(ptr, floor)       /* (n) f32 by active row, log2 units */              \
  P(ptr, emit_gate)   /* (n) f32 by active row, above the floor, 0 before */ \
  P(ptr, emit_count)  /* (n,FLP_EMIT_BINS) i32 by active row, 0 before */  \
  P(ptr, emit_entry)  /* (n,emit_capacity,2) by active row, out: column i32; t - floor[a] f32 */ \
  P(i32, emit_capacity) /* a multiple of 32, at most FLP_EMIT_MOST */      \
  P(f32, log2_threshold) /* negative */                                    \
  P(i32, columns)     /* of all launches over the row's columns */
/* module emitted: entry emit_floor, one thread an active row of [row_begin, row_end): floor[a] = log2_threshold above
 * the largest of what is given: the maximum of the first partial of a forward over the first columns; the LSE of a
 * policy near this one; the target's score, where this shard has the target and zy is given, and that less the logprob
 * which such a policy gave it, unless that is infinite. At least -FLP_SCORE_LIMIT; NaN where one of them is, or a score
 * of the first columns is. Sets the row's emit_gate and emit_count to 0. */
#define FLP_PARAMS_emit_floor(P)                                           \
  P(ptr, part) P(i64, capacity) /* [3][capacity] f32 by a - row_begin, or null */ \
  P(arg(ptr), old_lse) /* (n) f32 by row, nats, or null */                 \
  P(ptr, zy)      /* (n) f32 by active row, raw score of the target, or null */ \
  P(ptr, old_logprob) /* (n) f32 by row, nats, or null */                  \
  P(region, index) P(region, local_target) P(region, scale) P(region, count) \
  P(call(f32), cap_in) P(call(i32), capped) /* capped: 1 if softcap applies to zy */ \
  P(i32, row_begin) P(i32, row_end)                                        \
  P(f32, log2_threshold)                                                   \
  P(ptr, floor)      /* (n) f32 by active row, out */                      \
  P(ptr, emit_gate)  /* (n) f32 by active row, out */                      \
  P(ptr, emit_count) /* (n,FLP_EMIT_BINS) i32 by active row, out */

/* module emitted: entry emit_sort, one CTA an active row: makes one list of the row's bins from that of its LSE plus
 * log2_threshold on, above the highest of them that has overflowed: sorted by column, from the row's first place on.
 * tail_floor is the floor of the lowest that is in it, which scores are above there; tail_found how many columns there
 * are, or emit_capacity + 1 where the highest bin has overflowed. */
#define FLP_PARAMS_emit_sort(P)                                            \
  P(region, count) P(region, index)                                        \
  P(ptr, partial) /* (n,4) f32 by row: what forward summed of the columns that it listed */ \
  P(f32, log2_threshold)                                                   \
  P(ptr, floor) P(ptr, emit_count) P(ptr, emit_entry) P(i32, emit_capacity) \
  P(region, tail_floor)  /* (n) f32 out by active row */                   \
  P(region, tail_found)  /* (n) i32 out */                                 \
  P(region, tail_column) /* (n,emit_capacity) i32 out */                   \
  P(region, tail_score)  /* (n,emit_capacity) f32 out: t - tail_floor[a] */

/* A step with a tail takes one of two orders of launches: with lists, or the exact one of stream mode, where most rows
 * are so flat that lists would not serve them. Both are launched; in the one that is not taken no row is active.
 * flat: (2) i32: how many rows are flat, and 1 where the exact order is taken.
 *
 * module emitted: entry flat_rows, one thread an active row of [row_begin, row_end): adds to flat[0] how many rows have
 * a log2 sum of 2^t over the columns of part, a sample, that is more than floor[a] + above. NaN is not. */
#define FLP_PARAMS_flat_rows(P)                                            \
  P(region, part) P(i64, capacity) /* [3][capacity] f32 by a - row_begin */ \
  P(ptr, floor)   /* (n) f32 by active row */                              \
  P(f32, above)                                                            \
  P(region, count) P(i32, row_begin) P(i32, row_end)                       \
  P(ptr, flat)

/* module emitted: entry flat_gate, one CTA: sets count to 0 where flat[1] is not `wants`. decides: 1: sets flat[1]
 * first, to 1 if two thirds of the active rows or more are flat. report: flp_args.tail_report of an order that is taken
 * without lists, or null: as many dense rows as are active, zeros beside them. */
#define FLP_PARAMS_flat_gate(P) P(ptr, flat) P(i32, wants) P(i32, decides) P(region, count) P(ptr, report)

/* ---- tail mode (spec.tail; FLP_MODE_TAIL) ----
 *
 * Part emit lists the columns of a row whose score is within log2_threshold of a bound of its LSE. Backward keeps of
 * these the ones with t - lse > log2_threshold, and the target, and bounds what that leaves out. Rows are then served by
 * their lists, or dense: left to the kernels of recompute mode, for which the upstream gradients of all other rows are
 * 0. Which is which follows from the call's own rows; over all of them Σ|dz left out| <= tail·Σ|dz|. The kernels of
 * listed columns take the lists from there (list_hidden, listed_weight). A vocab shard does this for its own columns,
 * with sums of its own: what holds for every shard holds for the whole.
 *
 * modules tail and top: entries tail_target and top_target, one warp 8 active rows of [row_begin, row_end): zy[a] =
 * h·w_y + b with the bits of forward, where this shard has the target. hidden, weight allow accesses of key.alignment
 * bytes. */
#define FLP_PARAMS_tail_target(P)                                          \
  FLP_HEAD_PARAMS(P)                                                       \
  P(region, index) P(region, local_target) P(region, count)                \
  P(call(i32), depth) P(i32, row_begin) P(i32, row_end)                    \
  P(region, zy)

/* module tail: entry tail_mean, one CTA 32 vectors of D: tail_mean = the mean of every so many rows of weight, of
 * FLP_TAIL_SAMPLES, or of all where there are fewer. */
#define FLP_PARAMS_tail_mean(P)                                            \
  P(arg(ptr), weight) P(arg(i64), weight_stride)                           \
  P(call(i32), vocab_valid) P(call(i32), depth)                            \
  P(region, tail_mean) /* (D) f32 out */

/* What tail_rows and tail_entries read of a row, and of its list, sorted (emit_sort). With softcap dz is times
 * 1 - (t/scale)². */
#define FLP_TAIL_LIST_PARAMS(P)                                            \
  P(region, tail_floor)  /* (n) f32 by active row */                       \
  P(region, tail_found)  /* (n) i32 by active row */                       \
  P(region, tail_column) /* (n,emit_capacity) i32 by active row */         \
  P(region, tail_score)  /* (n,emit_capacity) f32: t - tail_floor[a] */    \
  P(i32, emit_capacity)                                                    \
  P(arg(ptr), stats) /* (n,4) f32 by row */                                \
  P(region, record) P(region, index) P(region, local_target) P(region, scale) P(region, count) \
  P(call(i32), capped)                                                     \
  P(f32, log2_threshold)

/* module tail: entry tail_rows, one warp an active row: what its list keeps and lacks.
 * tail_left: an upper bound of Σ|dz| over the columns of this shard that the list does not keep, with allowances for
 * the roundings of forward's sums (templates/common/tail.lua); +inf where the list does not serve: more columns than
 * emit_capacity, a floor that is not 1 to 64 below lse, a softcap with a row_scale below 1 or a kept score so near the
 * cap that t/scale does not give its slope, or NaN. tail_sum: Σ|dz|, from below: of those that it keeps, or of what is
 * known without a list; 0 where that is not finite. tail_missed: Σ dz of what it does not keep; 0 with softcap. list_length: how many it keeps, the target among them where this shard has it; 0 where it does not
 * serve. A row without upstream gradient keeps nothing and lacks nothing, unless its stats hold NaN. */
#define FLP_PARAMS_tail_rows(P)                                            \
  FLP_TAIL_LIST_PARAMS(P)                                                  \
  P(ptr, partial) /* (n,4) f32 by row, of this shard */                    \
  P(region, tail_left)   /* (n) f32 out by active row */                   \
  P(region, tail_sum)    /* (n) f32 out by active row */                   \
  P(region, tail_missed) /* (n) f32 out by active row */                   \
  P(region, list_length) /* (n) i32 out by active row */

/* module tail: entry tail_choose, one CTA: rows become dense in falling order of tail_left, those with equal upper 12
 * bits together and never those of 0, until the others' sum is at most tail·Σ tail_sum, and the root of their squares'
 * sum at most tail times that of tail_sum; then those with the longest lists, until the others have at most
 * list_capacity entries. list_length, at most FLP_EMIT_MOST + 1, becomes
 * FLP_LIST_ELSEWHERE in dense rows. Sums are in a fixed order. report: Σ tail_left of rows that are not dense, Σ
 * tail_sum, dense rows, entries. */
#define FLP_PARAMS_tail_choose(P)                                          \
  P(region, tail_left) P(region, tail_sum) P(region, index) P(region, count) \
  P(f32, tail) P(i32, list_capacity)                                       \
  P(arg(ptr), grad_logprob) P(arg(ptr), grad_entropy) /* (n) f32 by row, or null */ \
  P(region, list_length)  /* in and out */                                 \
  P(region, tail_offsets) /* (n) i64 out by row: the first entry of an active row */ \
  P(region, tail_total)   /* (1) i32 out: entries */                       \
  P(region_or_null, tail_logprob) /* (n) f32 out by row, of active rows: grad_logprob of dense ones, 0 of others */ \
  P(region_or_null, tail_entropy) /* (n) f32 out by row: the same of grad_entropy */ \
  P(ptr, report) /* flp_args.tail_report or null */

/* module tail: entry tail_entries, one warp an active row: list_column, list_row and list_dz of its entries, in ascending
 * columns; none of a dense row. */
#define FLP_PARAMS_tail_entries(P)                                         \
  FLP_TAIL_LIST_PARAMS(P)                                                  \
  P(region, tail_offsets) P(region, list_length)                           \
  P(region, list_column) /* (list_capacity) i32 out */                     \
  P(region, list_row)    /* (list_capacity) i32 out: active row */         \
  P(region, list_dz)     /* (list_capacity) f32 out */

/* ---- the best columns of a row, and the rank of its target (spec.topk, spec.rank) ----
 *
 * Arrays over rows have row r = a - row_begin of the chunk. A row lists columns with t >= top_floor; NaN: none.
 * top_low: the lower of top_floor and top_mark, which is the least score above the target's, NaN without one. Forward runs
 * over slices of the vocabulary in ascending order, and between them top_floor keeps the best K of each list and raises
 * the floor above the K-th: of equal scores the lowest columns are best. The first slice is small, lists every column, and
 * is a part of the next one, which lists from there on. A list of more than top_places columns in a slice is lost: top_redo
 * makes it anew, over the whole vocabulary. Whether that happens depends on the row alone. t is scale·x, or with softcap
 * scale·tanh(cap_in·x), rounded once.
 *
 * Part top: lists columns, and counts those with t >= top_mark in top_above. part, zy: the bits that forward gives. */
#define FLP_TOP_LIST_PARAMS(P)                                              \
  P(region_or_null, top_column) /* (chunk,top_places) i32: rows of weight */ \
  P(region_or_null, top_score)  /* (chunk,top_places) f32: t */             \
  P(call(i32), top_places)                                                  \
  P(region, top_count) /* (chunk) i32: columns that came to the list, which may be more than there are places */ \
  P(region, top_low) P(region, top_floor) P(region, top_mark) /* (chunk) f32 */ \
  P(region, top_above) /* (chunk) i32 */
#define FLP_CONTENDER_PARAMS(P)                                             \
  P(i32, top_from) /* lists columns from this one of the launch on, a multiple of 64 */ \
  FLP_TOP_LIST_PARAMS(P)

/* module top: entry top_begin, one thread an active row: empty lists, floors that only -inf is below (best > 0), marks from zy
 * (ranks 1), of a target on another shard from target_score, or NULL; no lost rows. */
#define FLP_PARAMS_top_begin(P)                                             \
  P(region, local_target) P(region, scale) P(region, count) P(region, zy)   \
  P(call(f32), cap_in) P(call(i32), capped)                                 \
  P(i32, row_begin) P(i32, row_end)                                         \
  P(call(i32), best)  /* K */                                               \
  P(i32, ranks) /* 1: rank is wanted */                                     \
  P(region, index) P(ptr, target_score)                                     \
  P(region, top_count) P(region, top_low) P(region, top_floor) P(region, top_mark) P(region, top_above) \
  P(region, top_lost) /* (1 + chunk) i32: how many rows are lost, and which r */

/* module top: entry top_floor, one CTA an active row: keeps the best K of its list, if it has as many, and raises its
 * floor; or adds it to top_lost, once. is_first: 1 sets top_above to 0; is_last: 1 leaves lists as they are. */
#define FLP_PARAMS_top_floor(P)                                             \
  P(region, count) P(i32, row_begin) P(i32, row_end)                        \
  P(call(i32), best) P(i32, is_first) P(i32, is_last)                       \
  FLP_TOP_LIST_PARAMS(P)                                                    \
  P(region, top_lost)

/* module top: entry top_redo, a grid of any size: the lists of lost rows get the best K of each of `segments` parts of the
 * vocabulary; column -1 stands for none. segments·best <= top_places. */
#define FLP_PARAMS_top_redo(P)                                              \
  FLP_HEAD_PARAMS(P)                                                        \
  P(region, index) P(region, scale)                                         \
  P(call(f32), cap_in) P(call(i32), capped)                                 \
  P(call(i32), depth) P(call(i32), vocab_valid) P(i32, row_begin)           \
  P(call(i32), best) P(i32, segments)                                       \
  P(region_or_null, top_column) P(region_or_null, top_score) P(call(i32), top_places) \
  P(region, top_count) P(region, top_lost)

/* module top: entry top_listed, one warp an active row of [row_begin, row_end): of a row's listed columns the best K, in
 * its list, and how many have t >= top_mark. list_score: as list_scores writes it, times scale is t. */
#define FLP_PARAMS_top_listed(P)                                            \
  P(call(ptr), offsets)                                                     \
  P(region, list_column) P(region, list_length) P(region, list_score)       \
  P(region, index) P(region, scale) P(region, count)                        \
  P(i32, row_begin) P(i32, row_end) P(call(i32), best)                      \
  P(region_or_null, top_column) P(region_or_null, top_score) P(call(i32), top_places) \
  P(region, top_count) P(region, top_mark) P(region, top_above)

/* module top: entry top_finish, one CTA an active row: what flp_args names so; each may be null. stats: (n,4) f32 by row,
 * as combine writes it; null: of a shard of a larger vocabulary, which has partial (n,4) f32 by row. */
#define FLP_PARAMS_top_finish(P)                                            \
  P(region, count) P(region, index)                                         \
  P(i32, row_begin) P(i32, row_end)                                         \
  P(call(i32), best) P(call(i32), vocab_valid) P(arg(i64), vocab_offset)    \
  P(region_or_null, top_column) P(region_or_null, top_score) P(call(i32), top_places) \
  P(region, top_count) P(region, top_mark) P(region, top_above)             \
  P(ptr, stats) P(arg(ptr), partial)                                        \
  P(arg(ptr), top_ids) P(arg(ptr), top_logprob) P(ptr, top_rest) P(arg(ptr), rank)

/* module top: entry top_others, one warp a row: the outputs of rows that are not computed. */
#define FLP_PARAMS_top_others(P)                                            \
  P(arg(i64), n) P(region, row_class) P(call(i32), best)                    \
  P(arg(ptr), top_ids) P(arg(ptr), top_logprob) P(arg(ptr), top_rest) P(arg(ptr), rank)

/* module kept: entry keep_reference, one thread an active row of [row_begin, row_end): chooses k_a before scores are kept:
 * from part, the first partial of a forward over the first columns (its maximum never exceeds lse), or, where old_lse is
 * not null, from the LSE of a policy near this one. */
#define FLP_PARAMS_keep_reference(P)                                       \
  P(ptr, part)    /* [3][capacity] f32 by a - row_begin, or null */        \
  P(arg(ptr), old_lse) /* (n) f32 by row, nats, or null */                 \
  P(region, index) P(region, count) P(i32, row_begin) P(i32, row_end)      \
  P(ptr, reference) /* (n) f32 by active row, out */

/* module kept: entry keep_finish, one CTA a block of FLP_KEPT_BLOCK_ROWS active rows of [row_begin, row_end): fills
 * factor, and redo[block] with *count if the block is to be redone, else 0. Where plain is 1, exchanges the target's
 * elements of blocks that are not. A row without upstream gradient becomes zeros if its scores hold a NaN. */
#define FLP_PARAMS_keep_finish(P)                                          \
  P(ptr, stats)  /* (n,4) f32 by row */                                    \
  P(region, record) P(ptr, reference)                                      \
  P(region, index) P(region, local_target) P(region, scale) P(region, count) \
  P(call(i32), capped) /* 1: softcap */                                    \
  P(i32, row_begin) P(i32, row_end) P(call(i32), vocab_valid) P(i32, plain) \
  P(ptr, kept) P(i64, kept_stride)                                         \
  P(region, factor) /* (n) f32 by active row, out: 0 without upstream gradient; 1 if expanded or redone */ \
  P(region, redo)   /* (blocks) i32 out: a `count` for dz */

/* module kept: entry keep_expand: kept becomes dz, in place, in blocks that are not redone; and column sums of each
 * tile_rows active rows (a divisor of FLP_KEPT_BLOCK_ROWS) go to bias_part [tile][vocab_valid], if not null. One CTA
 * FLP_EXPAND_COLUMNS columns of tile_rows rows: ceil(vocab_valid / FLP_EXPAND_COLUMNS) CTAs a tile of rows. */
#define FLP_PARAMS_keep_expand(P)                                          \
  P(ptr, kept) P(i64, kept_stride)                                         \
  P(ptr, reference) P(region, record) P(region, scale) P(region, local_target) \
  P(region, count) P(region, redo)                                         \
  P(call(i32), capped) /* 1: softcap, times 1 - tanh² */                   \
  P(i32, row_begin) P(i32, row_end) P(call(i32), vocab_valid) P(i32, tile_rows) \
  P(region_or_null, bias_part)

/* module kept: entry keep_gather, one warp a row of [row_begin, row_end): out[a - row_begin] = factor[a]·hidden[index[a]],
 * zeros up to a multiple of FLP_GATHER_ROWS; always, also where every row is active. */
#define FLP_PARAMS_keep_gather(P)                                          \
  P(arg(ptr), hidden) P(arg(i64), hidden_stride) P(region, index) P(region, count) \
  P(region, factor)                                                        \
  P(i32, row_begin) P(i32, row_end) P(call(i32), depth)                    \
  P(ptr, out) P(i64, out_stride)

/* module kept, direction mode (direction.lua): kept without the target's element times weight is the sum S_a that forward
 * makes of a row, from chunks of columns, before any upstream gradient is known.
 *
 * entry direction_strike, one thread an active row of [row_begin, row_end): zeroes the target's element of kept where it is
 * among the columns [column_begin, column_end). */
#define FLP_PARAMS_direction_strike(P)                                     \
  P(region, local_target) P(region, count)                                 \
  P(i32, row_begin) P(i32, row_end) P(i32, column_begin) P(i32, column_end) \
  P(ptr, kept) P(i64, kept_stride) /* row 0: active row row_begin, column 0: column_begin */

/* module kept: entry direction_finish, one CTA a block of FLP_KEPT_BLOCK_ROWS active rows of [row_begin, row_end): fills
 * slope, and redo[block] as keep_finish does, from the sums of this shard alone. Rows of a block to be redone get their maximum as
 * reference, and the record with which dz makes 2^(t - m) in the place of kept, 0 at the target. */
#define FLP_PARAMS_direction_finish(P)                                     \
  P(ptr, partial) /* (n,4) f32 by row, of this shard */                    \
  P(ptr, reference) /* (n) f32 by active row, in and out */                \
  P(ptr, slope)   /* (n) f32 by active row, out: 1 - tanh² at the target, 1 without softcap */ \
  P(call(f32), cap_in)                                                     \
  P(region, record) P(region, index) P(region, scale) P(region, count)     \
  P(call(i32), capped) P(i32, row_begin) P(i32, row_end)                   \
  P(region, redo)

/* module kept: entry direction_rows, one warp an active row: grad_hidden[index[a]] = A·2^(k_a - m)·sums[a] +
 * dz_y·slope[a]·weight[y], the latter 0 where the target is on another shard. {m, A, 0, dz_y} from record; a row without
 * upstream gradient gets zeros. */
#define FLP_PARAMS_direction_rows(P)                                       \
  P(ptr, sums)      /* (n,D) f32 by active row */                          \
  P(ptr, reference) P(ptr, slope) /* (n) f32 by active row */              \
  P(region, record) P(region, index) P(region, local_target) P(region, count) \
  P(arg(ptr), weight) P(arg(i64), weight_stride)                           \
  P(call(i32), depth)                                                      \
  P(ptr, out) P(i64, out_stride)                                           \
  P(i32, out_is_f32) /* 1: out is f32, 0: operand dtype */

/* module loss_rows: entry loss_rows: a loss program (loss.h) compiled, with its derivatives by logprob and entropy, one
 * thread a row. index null: rows [0, n); else rows index[a] of the active rows a of [row_begin, row_end), a < *count; all
 * arrays are by row. row_class not null: nothing is computed; rows that are left out get 0 in loss and metrics, bad ones
 * NaN. Inputs that the program does not read may be null; weight null: 1; old_logprob null: logprob itself, as a
 * constant. A row of weight 0 gets zeros, whatever its inputs are. Outputs may be null. */
#define FLP_PARAMS_loss_rows(P)                                            \
  P(arg(ptr), logprob) P(arg(ptr), entropy) P(arg(ptr), old_logprob) P(arg(ptr), ref_logprob) \
  P(arg(ptr), advantage) P(ptr, weight)                                    \
  P(ptr, vector0) P(ptr, vector1) P(ptr, vector2) P(ptr, vector3)          \
  P(ptr, vector4) P(ptr, vector5) P(ptr, vector6) P(ptr, vector7)          \
  P(f64, parameter0) P(f64, parameter1) P(f64, parameter2) P(f64, parameter3) \
  P(f64, parameter4) P(f64, parameter5) P(f64, parameter6) P(f64, parameter7) \
  P(arg(i64), n)                                                           \
  P(ptr, index) P(ptr, count) P(i32, row_begin) P(i32, row_end)            \
  P(ptr, row_class)                                                        \
  P(arg(ptr), loss) P(ptr, grad_logprob) P(ptr, grad_entropy) /* (n) f32 */ \
  P(arg(ptr), metrics) /* (metric_count, n) f32 */                         \
  P(ptr, program) /* flp_loss_code, where key.loss is 0 and the kernel for any program; else unused */

/* module loss_scores: entry loss_scores: as loss_rows, of a program that reads values of all scores of a row. */
#define FLP_PARAMS_loss_scores(P)                                          \
  FLP_PARAMS_loss_rows(P)                                                  \
  P(ptr, lse) P(ptr, mean_score)     /* (n) f32, nats */                   \
  P(ptr, grad_lse) P(ptr, grad_mean) /* (n) f32 out */                     \
  P(ptr, grad_any) /* (n) f32 out or null: not 0 where one of the four derivatives is not */

/* ---- values of all scores of a row: losses that read lse or mean_score (templates/common/mean.lua) ----
 *
 * The mean of a row's scores is a product of its hidden with one vector, the sum of the weight's rows. Its derivative,
 * the same for all columns, is in no dz: products add it to gradients of 16 bits before they round them (key.bias),
 * score_hidden and score_head to those of fp32, behind all products. With a softcap, an adapter or a weight in slices,
 * and of listed columns, the mean takes a pass of forward, and of dz.
 *
 * module mean: entry mean_sums, one CTA slab_rows rows x 256 vectors of D (as in tail_mean): the sums of factor[a] times
 * row index[a] of a matrix, and as one column more those of the factors, or without any those of bias. */
#define FLP_PARAMS_mean_sums(P)                                            \
  P(ptr, matrix) P(i64, stride) /* operand dtype */                        \
  P(ptr, index)  /* (rows) i32, null: a itself */                          \
  P(ptr, count)  /* (1) i32: at most so many rows; null: all */            \
  P(ptr, factor) /* (rows) f32, null: 1; rows of factor 0 may hold anything */ \
  P(ptr, bias)   /* (rows) operand dtype or null: 0 */                     \
  P(i32, rows) P(call(i32), depth) P(i32, slab_rows)                       \
  P(ptr, part)   /* (ceil(rows/slab_rows), depth + 1) f32 out */

/* module mean: entry mean_fold, one CTA FLP_MEAN_FOLD_COLUMNS columns: sums of the parts, in an order that follows from their
 * number. */
#define FLP_PARAMS_mean_fold(P) P(ptr, part) P(i32, parts) P(i32, width) P(ptr, sums)

/* module mean: entry score_rows, one warp an active row of [row_begin, row_end): lse and mean_score in nats, by row. */
#define FLP_PARAMS_score_rows(P)                                           \
  P(arg(ptr), stats)                                                       \
  P(arg(ptr), hidden) P(arg(i64), hidden_stride)                           \
  P(ptr, sums) /* (depth + 1) f32 of weight and bias; null: mean_score is 0, as nothing reads it */ \
  P(region, index) P(region, scale) P(region, count)                       \
  P(region_or_null, list_length) /* columns that the mean is of; null: vocab_valid */ \
  P(call(i32), depth) P(call(i32), vocab_valid) P(i32, row_begin) P(i32, row_end) \
  P(ptr, partial) /* (n,4) f32 by row, where the mean takes a pass: {m, s, q, -} of scores times 2^-40; or null */ \
  P(ptr, lse) P(ptr, mean_score)

/* module mean: entry score_record: record with a derivative by lse; and each[a], what the one by mean_score is of every
 * column's raw score. kept_stats: stats as keep_finish takes them, of rows that saved exponentials do not serve with log2 s
 * out of its range; or null. */
#define FLP_PARAMS_score_record(P)                                         \
  P(arg(ptr), stats) P(arg(ptr), grad_logprob) P(arg(ptr), grad_entropy) P(ptr, grad_lse) P(ptr, grad_mean) \
  P(region, index) P(region, scale) P(region, count) P(region_or_null, list_length) \
  P(i32, row_begin) P(i32, row_end) P(call(i32), vocab_valid)              \
  P(call(f32), cap_in) P(call(i32), capped)                                \
  P(region, record) P(region, bound)                                       \
  P(ptr, each) /* (n) f32 by active row */                                 \
  P(ptr, each_record) P(ptr, each_scale) /* (n,4), (n) f32 by active row or null: a record and a scale of 0, with which dz is \
                                            each[a] */ \
  P(ptr, kept_stats) /* (n,4) f32 by row */

/* module mean: entry score_target, one thread an active row, behind keep_finish in the plain form without a softcap: in the
 * place of the target's saved exponential dz_y over the row's factor. */
#define FLP_PARAMS_score_target(P)                                         \
  P(region, local_target) P(region, count) P(region, record) P(region, factor) P(region, redo) \
  P(i32, row_begin) P(i32, row_end)                                        \
  P(ptr, kept) P(i64, kept_stride)

/* module mean: entry score_add, where the mean takes a pass: dz += other, and bias_part += other_part, of a chunk of
 * `elements` and `parts` elements. */
#define FLP_PARAMS_score_add(P)                                            \
  P(ptr, dz) P(ptr, other) P(i64, elements)                                \
  P(ptr, bias_part) P(ptr, other_part) P(i64, parts)

/* module mean: entry score_list, one warp an active row, behind list_dz: list_dz += each[a], times 1 - tanh² with softcap;
 * not of a row whose stats hold NaN. */
#define FLP_PARAMS_score_list(P)                                           \
  P(region, index) P(region, count) P(call(ptr), offsets) P(region, list_length) P(region, list_score) \
  P(arg(ptr), stats) P(ptr, each)                                          \
  P(call(i32), capped)                                                     \
  P(region, list_dz)

/* module mean: entry score_hidden, one warp an active row: out += each[a]·sums, of an out of fp32. */
#define FLP_PARAMS_score_hidden(P)                                         \
  P(ptr, each) P(ptr, sums)                                                \
  P(region, index) P(region, count)                                        \
  P(call(i32), depth)                                                      \
  P(ptr, out) P(i64, out_stride)

/* module mean: entry score_head, one CTA FLP_MEAN_HEAD_ROWS columns: adds sums to each row of weight, and sums[depth] to
 * each element of bias, both of fp32; either may be null. */
#define FLP_PARAMS_score_head(P)                                           \
  P(ptr, sums) P(call(i32), depth) P(i32, vocab_valid)                     \
  P(ptr, weight) P(i64, weight_stride) P(ptr, bias)

/* module loss_targets: entry loss_targets: a loss program over targets compiled, one warp a row; rows, row_class, null
 * and weight 0 as for loss_rows. Targets that are ignore_index take no part, and get 0 in grad_logprob. */
#define FLP_PARAMS_loss_targets(P)                                         \
  P(arg(ptr), entropy) P(arg(ptr), advantage) P(ptr, weight)               \
  P(ptr, vector0) P(ptr, vector1) P(ptr, vector2) P(ptr, vector3)          \
  P(ptr, vector4) P(ptr, vector5) P(ptr, vector6) P(ptr, vector7)          \
  P(f64, parameter0) P(f64, parameter1) P(f64, parameter2) P(f64, parameter3) \
  P(f64, parameter4) P(f64, parameter5) P(f64, parameter6) P(f64, parameter7) \
  P(arg(ptr), target) /* (n,K) target dtype */                             \
  P(call(i32), targets) P(arg(i64), ignore_index)                          \
  P(ptr, target_logprob) P(arg(ptr), teacher_logprob) /* (n,K) f32 */      \
  P(arg(i64), n)                                                           \
  P(ptr, index) P(ptr, count) P(i32, row_begin) P(i32, row_end)            \
  P(ptr, row_class)                                                        \
  P(arg(ptr), loss) P(ptr, grad_logprob) P(ptr, grad_entropy) /* (n), (n,K), (n) f32 */ \
  P(arg(ptr), metrics) /* (metric_count, n) f32 */

/* ---- listed columns (spec.listed; FLP_MODE_LISTED) ----
 *
 * An entry e, 0 <= e < list_count, is a place in the caller's list_ids; those of row r are [offsets[r], offsets[r +
 * 1]). list_sort gives the columns of each active row, ascending, each once: list_length[a] of them from e =
 * offsets[row] on; list_column of every other entry is -1, as the launch filled it. Whatever is summed over a list is
 * summed in that order by a fixed tree, so that bits depend on nothing but the row's own columns. A row is bad
 * (list_length -1, no entries) if list_state is not 0, an id of its list is outside [0, vocab_total), or this shard has
 * its target and the list lacks it: NaN in its outputs, 0 in the gradients of the head.
 *
 * x = h·w + b is the bits that forward of sm_80 computes. list_score = x, or with softcap tanh(cap_in·x): t is
 * row_scale times that. */

/* module listed: entry list_check, one thread a row: counts in list_state, 0 before, the rows whose offsets are not
 * 0 <= offsets[r] <= offsets[r + 1] <= list_count. */
#define FLP_PARAMS_list_check(P)                                           \
  P(call(ptr), offsets) P(arg(i64), n) P(arg(i64), list_count)             \
  P(region, list_state) /* (1) i32 */

/* module listed: entry list_sort, one CTA an active row: fills list_column, and where they are not null list_row, of
 * the row's entries, and list_length and list_target: the entry of the target, -1 where it is on another shard or the
 * row is bad. Sorted by setting bits of shared memory, a window of columns at a time. */
#define FLP_PARAMS_list_sort(P)                                            \
  P(call(ptr), offsets) P(call(ptr), ids) /* (list_count) target dtype */  \
  P(arg(i64), vocab_offset) P(arg(i64), vocab_valid) P(arg(i64), vocab_total) \
  P(region, index) P(region, local_target) P(region, count)                \
  P(region, list_state)                                                    \
  P(region, list_column) /* (list_count) i32: this shard's rows of weight */ \
  P(region_or_null, list_row) /* (list_count) i32: the entry's active row; the backward pass needs it */ \
  P(region, list_length) /* (n) i32 by active row */                       \
  P(region, list_target) /* (n) i32 by active row */                       \
  P(region, row_class)   /* (n) u8 by row: FLP_ROW_BAD of bad rows */      \
  P(call(ptr), error_word)     /* (1) i32, added to: bad rows */

/* module listed: entry list_scores, one CTA an active row: list_score of its entries, and x of entry list_target[a] as
 * zy, NaN in a bad row. hidden, weight allow accesses of key.alignment bytes. */
#define FLP_PARAMS_list_scores(P)                                          \
  FLP_HEAD_PARAMS(P)                                                       \
  P(ptr, offsets)                                                          \
  P(region, index) P(region, count)                                        \
  P(region, list_column) P(region, list_length) P(region, list_target)     \
  P(call(f32), cap_in) P(call(i32), capped) P(call(i32), depth)            \
  P(region, list_score) /* (list_count) f32 out */                         \
  P(region, zy) /* (n) f32 out by active row, where this shard has the target */

/* module listed: entry list_reduce, one warp an active row: its maximum, sum and weighted sum as one partial, part
 * [3][capacity] by a; a bad row gets NaN, no entries an empty one (abi of forward). combine takes it with zy. */
#define FLP_PARAMS_list_reduce(P)                                          \
  P(call(ptr), offsets)                                                    \
  P(region, index) P(region, scale) P(region, count)                       \
  P(region, list_length) P(region, list_score)                             \
  P(region, part) P(i64, capacity)

/* module listed: entry list_dz, one warp an active row: list_dz[e] = 2^u·(A + B·u), u = t - m, times 1 - tanh² with
 * softcap, at the target dz_y, {m, A, B, dz_y} from record; 0 in a row whose stats hold NaN. */
#define FLP_PARAMS_list_dz(P)                                              \
  P(call(ptr), offsets) P(arg(ptr), stats)                                 \
  P(region, record) P(region, index) P(region, scale) P(region, count)     \
  P(region, list_length) P(region, list_target) P(region, list_score)      \
  P(call(i32), capped)                                                     \
  P(region, list_dz) /* (list_count) f32 out */

/* module listed: entry list_hidden, one CTA an active row: grad_hidden[index[a]] = Σ list_dz[e]·weight[list_column[e]],
 * NaN where the row's stats hold NaN. add: to what stands in out. A row of list_length FLP_LIST_ELSEWHERE is left
 * alone. In tail mode plus tail_missed[a]·tail_mean. */
#define FLP_PARAMS_list_hidden(P)                                          \
  P(ptr, offsets) P(arg(ptr), stats)                                       \
  P(region, index) P(region, count)                                        \
  P(region, list_column) P(region, list_length) P(region, list_dz)         \
  P(ptr, weight) P(i64, weight_stride) P(i32, depth)                       \
  P(ptr, out) P(i64, out_stride)                                           \
  P(i32, out_is_f32) /* 1: out is f32, 0: operand dtype */                 \
  P(region_or_null, tail_missed) P(region_or_null, tail_mean)              \
  P(i32, add)

/* module listed, of key.lora alone: entry list_adapter, likewise. of_b 1: of lora_b, by active row to lora_sum, 0 in rows
 * that are NaN in hidden's gradient, without means; 0: of weight, plus hidden_acc[a], which is s·G·A. */
#define FLP_PARAMS_list_adapter(P)                                         \
  FLP_PARAMS_list_hidden(P)                                                \
  P(region_or_null, hidden_acc) /* (n,D) f32 by active row */              \
  P(i32, of_b)

/* module listed_weight: entries by column, in a stable order: a radix sort by FLP_LIST_DIGIT_BITS bits of list_column
 * at a time from the lowest on, entries without a column (-1) last. A pass: list_digits, list_scan, list_place, from
 * order `from` to order `to`; from null: entries 0, 1, 2 ... Two passes have 18 bits; the launch makes as many as V
 * needs, V < 2^bits, so that no column has all bits set, as -1 has.
 * list_total, in every entry of the module: null, or how many entries there are on the device; list_count is then the
 * most there can be, which grids and arrays are for. Blocks below are those of the entries there are.
 *
 * entry list_digits, one CTA a block of FLP_LIST_BLOCK places: list_digit[digit][block] = how many entries of the block
 * have that digit, bits [shift, shift + FLP_LIST_DIGIT_BITS) of the column. */
#define FLP_PARAMS_list_digits(P)                                          \
  P(ptr, from) /* (list_count) i32 or null */                              \
  P(region, list_column) P(i32, list_count) P(ptr, list_total) P(i32, shift) \
  P(region, list_digit) /* (FLP_LIST_DIGITS, blocks) i32 out */

/* entry list_scan, one CTA: list_digit becomes the sum of what stands before. */
#define FLP_PARAMS_list_scan(P) P(region, list_digit) P(i32, list_count) P(ptr, list_total)

/* entry list_place, one CTA a block: to[list_digit[digit][block] + those of the same digit before in the block] =
 * entry. */
#define FLP_PARAMS_list_place(P)                                           \
  FLP_PARAMS_list_digits(P)                                                \
  P(ptr, to) /* (list_count) i32 out */

/* module listed_weight: entry list_starts, one thread a column 0 <= v <= vocab_valid: list_start[v], the first place of
 * order whose column is v or more (or -1, which is last). */
#define FLP_PARAMS_list_starts(P)                                          \
  P(ptr, order) P(region, list_column) P(i32, list_count) P(ptr, list_total) P(call(i32), vocab_valid) \
  P(region, list_start) /* (V + 1) i32 out */

/* module listed_weight: entry list_weight, one warp a column of weight with fewer than FLP_LIST_WIDE entries:
 * grad_weight[v] = Σ list_dz[e]·hidden[index[list_row[e]]], in ascending rows (key.lora: grad_lora_b, of lora_u, which is by
 * list_row), and grad_bias[v] = Σ list_dz[e]. Columns without entries become zeros; add, add_bias: are left alone, and
 * others are added to. weight_out, bias_out may be null. */
#define FLP_PARAMS_list_weight(P)                                          \
  P(ptr, order) P(region, list_start) P(region, list_row) P(region, list_dz) \
  P(region, index) P(call(i32), vocab_valid) P(i32, list_count) P(ptr, list_total) \
  P(ptr, hidden) P(i64, hidden_stride) P(i32, depth)                       \
  P(ptr, weight_out) P(i64, weight_out_stride) P(i32, weight_out_is_f32)   \
  P(ptr, bias_out) P(i32, bias_out_is_f32)                                 \
  P(i32, add)      /* to weight_out */                                     \
  P(i32, add_bias) /* to bias_out */

/* module listed_weight: entry list_weight_wide, columns of FLP_LIST_WIDE entries or more: a grid of any
 * size, whose CTAs go over the places j·FLP_LIST_WIDE of order (j < ceil(entries / FLP_LIST_WIDE)) and slices of
 * FLP_LIST_SLICE columns of D, place by place. They take the column of a place if the place is the first such one of the
 * column, and the column is wide.
 * Warps take every so many entries, and their sums are added in order. */
#define FLP_PARAMS_list_weight_wide(P)                                     \
  FLP_PARAMS_list_weight(P)                                                \
  P(region, list_column)

/* ---- K targets a row (spec.targets; 2 to FLP_TARGETS_MAX) ----
 *
 * target, logprob and grad_logprob are (n,K). targets_rows gives each row one target that stands for all of them, for
 * prepare: so a row is left out if all of its targets are ignore_index, and bad if one of the others is outside
 * [0, vocab_total). prepare is told of no columns (vocab_valid 0): local_target is -1 everywhere, and forward, combine and
 * dz do what they do for rows whose target is on another shard. targets_sort gives the columns of each active row,
 * ascending, those of this shard first; a column may stand there more than once. Part targets stores their raw scores,
 * targets_finish makes logprobs of them.
 *
 * Backward: dz_v = factor·(Σ_k g_k·[v = y_k] - G·p_v - e·p_v·(log p_v + H)), G = Σ_k g_k. The dense kernels make all but
 * the first sum, with G in the place of the gradient of one logprob; targets_patch then writes the whole element where
 * there is a target. A row takes part if one of its g_k is not 0, whatever their sum. Targets that are ignore_index have
 * no gradient. What stands in the place of dz may be saved exponentials: the element is over factor[a] then.
 *
 * module targets: entry targets_rows, one warp a row of [0, n): target_row, and where they are not null: -inf as every
 * score, and of the upstream gradients Σ|g_k|, Σ g_k rounded and as it is, sums in f64 in a fixed order. Rounded it is
 * at least 2^-60 of the other in magnitude, so that a row with a gradient has a factor. */
#define FLP_PARAMS_targets_rows(P)                                         \
  P(arg(ptr), target) /* (n,K) target dtype */                             \
  P(call(i32), targets) P(arg(i64), n) P(arg(i64), ignore_index) P(arg(i64), vocab_total) \
  P(ptr, grad_logprob) /* (n,K) f32 or null: zeros */                      \
  P(region, target_row) /* (n) target dtype out */                         \
  P(ptr, score)        /* (n,K) f32 out, or null */                        \
  P(region_or_null, target_weight)   /* (n) f32 out */                     \
  P(region_or_null, target_gradient) /* (n) f32 out */                     \
  P(region_or_null, target_exact)    /* (n) f64 out */

/* module targets: entry targets_sort, one CTA an active row: list_column, ascending, FLP_TARGET_NONE for targets that are
 * not in this shard; target_place, which of the row's K targets it is, ascending where columns are equal. forward:
 * target_block, a bit for every FLP_TARGET_COLUMNS columns, FLP_TARGET_BITS a word: is a target among them. backward:
 * how many there are, what list_scores and listed_weight read; and bound rises by what targets add to |dz|. */
#define FLP_PARAMS_targets_sort(P)                                         \
  P(arg(ptr), target) P(call(i32), targets) P(arg(i64), ignore_index)      \
  P(arg(i64), vocab_offset) P(arg(i64), vocab_valid)                       \
  P(region, index) P(region, scale) P(region, count)                       \
  P(call(f32), cap_in) P(call(i32), capped) P(call(i32), block_words)      \
  P(region, list_column)  /* (n,K) i32 out by active row */                \
  P(region, target_place) /* (n,K) i16 out by active row */                \
  P(region_or_null, target_block)   /* (n, block_words) i32 out by active row */ \
  P(region_or_null, list_length)    /* (n) i32 out by active row */        \
  P(region_or_null, list_target)    /* (n) i32 out by active row: -1 */    \
  P(region_or_null, list_row)       /* (n,K) i32 out: the active row */    \
  P(region_or_null, target_offsets) /* (n) i64 out by row: K times the active row */ \
  P(region_or_null, target_total)   /* (1) i32 out: K times the active rows */ \
  P(region_or_null, target_weight) P(region_or_null, bound) /* both or none */

/* Part targets: stores the raw scores of the columns that rows list, score[row][place] each. part: the bits that
 * forward gives. Lists are as targets_sort writes them; local_target is not read. */
#define FLP_HOLD_PARAMS(P)                                                 \
  P(region, list_column) P(region, target_place) P(region, target_block)   \
  P(ptr, row_of) /* (n) i32: row of each active row */                     \
  P(ptr, score)  /* (n,K) f32 out by row */                                \
  P(call(i32), targets) P(call(i32), block_words)

/* module targets: entry targets_finish, one warp a row, and an active row, of [row_begin, row_end): from the partials of
 * all shards, folded in rank order, and their scores what combine writes: entropy, stats, and logprob of each target, 0 where it is ignore_index. The
 * logprob of stats is the largest of the row's. Rows that are not active get logprob alone, 0 or NaN. Outputs may be null.
 * A row whose largest score is beyond FLP_SCORE_LIMIT is as in combine. */
#define FLP_PARAMS_targets_finish(P)                                       \
  P(arg(ptr), target) P(call(i32), targets) P(arg(i64), n) P(arg(i64), ignore_index) \
  P(ptr, partial) /* (shard_count, n, 4) */                                \
  P(ptr, score)   /* (shard_count, n, K) */                                \
  P(i64, shard_count) P(i32, row_begin) P(i32, row_end)                    \
  P(region, row_class) P(region, index) P(region, scale) P(region, count)  \
  P(call(f32), cap_in) P(call(i32), capped)                                \
  P(arg(ptr), logprob) /* (n,K) */                                         \
  P(arg(ptr), entropy) P(ptr, stats)                                       \
  P(call(ptr), error_word)

/* module targets: entry targets_strike, one warp an active row of [row_begin, row_end): zeros in the place of the saved
 * exponentials of its targets, which so are in no column sum: with 8 bits they would not cancel. */
#define FLP_PARAMS_targets_strike(P)                                       \
  P(region, list_column) P(region, list_length) P(call(i32), targets) P(region, count) \
  P(i32, row_begin) P(i32, row_end)                                        \
  P(ptr, kept) P(i64, kept_stride) /* of the first row */

/* module targets: entry targets_patch, one warp an active row of [row_begin, row_end): writes the elements of dz at its
 * targets in [column_begin, column_end), times scale_pair[0] if that is not null; and list_dz, if not null: at the first
 * of equal columns what the column sums lack of the element, else 0: of rows that are struck all of it. */
#define FLP_PARAMS_targets_patch(P)                                        \
  P(region, list_column) P(region, list_length) P(region, target_place)    \
  P(region_or_null, list_score) /* (n,K) f32: h·w + b, or with softcap its tanh */ \
  P(ptr, score)        /* (n,K) f32 by row, as part targets stores them; null: list_score */ \
  P(region_or_null, factor) /* (n) f32; null: 1 */                         \
  P(region_or_null, redo) /* by block of rows: 0, they are struck; null: none is */ \
  P(call(i32), targets)                                                    \
  P(arg(ptr), grad_logprob) /* (n,K) f32 */                                \
  P(arg(ptr), grad_entropy) /* (n) f32 or null */                          \
  P(arg(ptr), stats)        /* (n,4) f32 */                                \
  P(region, target_exact)                                                  \
  P(region, index) P(region, scale) P(region, count)                       \
  P(call(f32), cap_in) P(call(i32), capped)                                \
  P(i32, row_begin) P(i32, row_end) P(i32, column_begin) P(i32, column_end) \
  P(ptr, dz) P(i64, dz_stride) /* operand dtype, of the chunk's first row and column */ \
  P(region_or_null, scale_pair)                                            \
  P(region_or_null, list_dz)

/* module targets: entry targets_bias, one warp a column of [column_begin, column_end): adds list_dz of its entries of
 * active rows [row_begin, row_end), in a fixed order, to the first row of bias_part. */
#define FLP_PARAMS_targets_bias(P)                                         \
  P(region, list_order) P(region, list_start) P(region, list_row) P(region, list_dz) \
  P(i32, row_begin) P(i32, row_end) P(i32, column_begin) P(i32, column_end) \
  P(region, bias_part)

/* ---- operands of two dtypes (spec.mixed) ----
 *
 * Products take spec.dtype. An operand of another dtype becomes one term of it, or two side by side: the rounded operand
 * and its rounded rest. With two terms D of a product of scores is 2·D, and the other operand stands twice side by side.
 * hidden and bias are made at once, the weight slice by slice: of columns from a multiple of unit_columns on in forward, of
 * a chunk in backward. Kernels that read rows of the weight by themselves have them as they stand (key.weight_form).
 *
 * module operand_terms: entry operand_terms, one warp a row: out[r][t·depth + d] is term t of source[r][d]; the last row has
 * last_depth elements. source and out allow accesses of key.alignment bytes; source of f32 may begin anywhere. */
#define FLP_PARAMS_operand_terms(P)                                         \
  P(ptr, source) P(i64, source_stride)                                      \
  P(i32, is_wide) /* 1: source is f32; 0: of the operand dtype, and every term is itself */ \
  P(ptr, out) P(i64, out_stride)                                            \
  P(i32, rows) P(i32, depth) P(i32, last_depth)                             \
  P(i32, terms) /* 1 or 2 */

/* Part columns: some columns alone. While it multiplies, forward_map of 16-bit operands makes rows of the weight for
 * the next launch: of ahead_rows of ahead_source (f32) as many terms of ahead_depth columns as depth has, one or two,
 * as operand_terms makes them, to rows of depth in ahead_out. */
#define FLP_AHEAD_MAP_PARAMS(P)                                             \
  P(ptr, ahead_source) P(i64, ahead_stride) P(ptr, ahead_out) P(i32, ahead_rows) \
  P(i32, ahead_depth)

/* ---- a low-rank adapter on the head (spec.lora_rank) ----
 *
 * z = h Wᵀ + u Bᵀ with u = s·(h Aᵀ), by active row, rounded to the operand dtype. Only K of the products grows: behind D
 * columns of hidden and weight the same accumulators take `rank` more of u and B. So where B or u is 0, scores have the
 * bits that they have without it. With G = dz·B the gradients are dB = dzᵀ·u, dh = dz·W + s·G·A and dA = s·Gᵀ·h.
 *
 * Part lora: forward and forward_map of such scores; module dz_lora: entries dz_lora and dz_lora_map likewise. */
#define FLP_LORA_PARAMS(P)                                                 \
  P(region, lora_u) /* (n,rank) by active row */                           \
  P(ptr, lora_b)    /* (V,rank), from where weight begins */               \
  P(i64, lora_b_stride)                                                    \
  P(call(i32), rank)
#define FLP_LORA_MAP_PARAMS(P)                                             \
  P(map, lora_u_map) /* (row_end - row_begin, rank): active rows of the chunk, in boxes as gathered_map's */ \
  P(map, lora_b_map) /* of rank columns, rows and boxes as weight_map's */ \
  P(call(i32), rank)
#define FLP_PARAMS_dz_lora(P)                                              \
  FLP_PARAMS_dz(P)                                                         \
  FLP_LORA_PARAMS(P)
#define FLP_PARAMS_dz_lora_map(P)                                          \
  FLP_PARAMS_dz_map(P)                                                     \
  FLP_LORA_MAP_PARAMS(P)

/* module lora: entry lora_project, one CTA a tile of active rows x rank: lora_u = s·(hidden·lora_aᵀ), zeros where s is 0;
 * and in the rows behind the last active one up to the end of its tile, as far as there are any. */
#define FLP_PARAMS_lora_project(P)                                         \
  P(arg(ptr), hidden) P(arg(i64), hidden_stride)                           \
  P(arg(ptr), lora_a) P(arg(i64), lora_a_stride) /* (rank,D) */            \
  P(region, index) P(region, count)                                        \
  P(arg(f32), lora_scale)                                                  \
  P(call(i32), depth) P(call(i32), rank)                                   \
  P(i32, row_begin) P(i32, row_end)                                        \
  P(i32, tiles_m) P(i32, tiles_n)                                          \
  P(region, lora_u) /* (n,rank) out by active row */

/* module lora: entry lora_bound, one warp an active row: bound = max |s·lora_sum| of the row, for dz_scale (fp16), and of
 * lists the factor of rows in dA;
 * entry lora_round: lora_gradient = s·lora_sum, times scale_pair[0] if that is not null, rounded to the operand dtype. */
#define FLP_PARAMS_lora_bound(P)                                           \
  P(region, lora_sum) /* (n,rank) f32 by active row: G */                  \
  P(region, count) P(arg(f32), lora_scale) P(call(i32), rank)              \
  P(region, bound) /* (n) f32 out */
#define FLP_PARAMS_lora_round(P)                                           \
  P(region, lora_sum)                                                      \
  P(region, count) P(arg(f32), lora_scale) P(call(i32), rank)              \
  P(region_or_null, scale_pair)                                            \
  P(region, lora_gradient) /* (n,rank) out by active row */

/* module lora: entry lora_factor, one warp an active row of [row_begin, row_end): lora_scaled =
 * factor[a]·lora_u[a], rounded to the operand dtype, which dB takes of saved exponentials; 0 where the factor is, and in
 * the rows behind the last active one up to a multiple of FLP_GATHER_ROWS. */
#define FLP_PARAMS_lora_factor(P)                                          \
  P(region, lora_u) P(region, factor) P(region, count) P(call(i32), rank)  \
  P(i32, row_begin) P(i32, row_end)                                        \
  P(region, lora_scaled) /* (chunk,rank) out */

/* module lora: entries lora_rows and lora_columns: grad_hidden and grad_weight of any operands of `depth` columns:
 * lora_rows of dz and lora_b, or of lora_gradient and lora_a; lora_columns of dz and lora_u, or of lora_gradient and
 * hidden. acc is f32 always. In place of both where operands come through tensor maps and dz is one of them, module
 * lora_products: entry lora_products_map, products_map with lora_b in the place of weight and lora_u in that of hidden. */

/* ---- statistics of a row (spec.statistics; templates/common/statistics.lua) ----
 *
 * Part statistics of forward: of each unit of its partials Σ 4^(t-m) and Σ y, t = scale·y: [unit][2][capacity]. */
#define FLP_STATISTICS_PARAMS(P) P(region, statistics_part)

/* module statistics: entry statistics, one warp a row of [row_begin, row_end): `out` of active rows and of the others,
 * or of a shard partial_statistics (flp.h), where that is given. */
#define FLP_PARAMS_statistics(P)                                           \
  P(region, part) P(region, statistics_part) P(i64, capacity) P(i32, parts) \
  P(region, index) P(region, count) P(region, row_class) P(region, scale)  \
  P(region, zy) P(region, local_target)                                    \
  P(ptr, scores) P(call(i32), targets) /* (n,targets) f32 by row, raw scores of several targets; null: zy */ \
  P(region_or_null, list_length) P(call(i32), vocab_valid)                 \
  P(call(f32), cap_in) P(call(i32), capped) P(i32, row_begin) P(i32, row_end) \
  P(ptr, stats) P(arg(ptr), partial)                                       \
  P(ptr, out) P(ptr, partial_statistics)

/* module statistics: entry statistics_merge, one warp a row: `out` from what all shards have. */
#define FLP_PARAMS_statistics_merge(P)                                     \
  P(arg(ptr), partial) P(arg(ptr), partial_statistics) P(arg(i64), shard_count) P(arg(i64), n) \
  P(region, row_class) P(ptr, stats) P(ptr, out)

/* module statistics: entry statistics_list, one warp an active row: the part of listed columns, behind list_scores. */
#define FLP_PARAMS_statistics_list(P)                                      \
  P(region, part) P(region, statistics_part) P(i64, capacity)              \
  P(region, index) P(region, count) P(region, scale)                       \
  P(call(ptr), offsets) P(region, list_length) P(region, list_score)       \
  P(i32, row_begin) P(i32, row_end)

/* Part raw of forward: stores the raw scores of every column, as they are multiplied and with the bias. */
#define FLP_RAW_PARAMS(P)                                                  \
  P(ptr, raw_rows)   /* (n) i32: row of each active row */                 \
  P(ptr, raw_scores) /* (n,V) f32 out by row, from the first column of the launch on, or null */ \
  P(arg(i64), raw_scores_stride)

/* Part short: forward_map for rows that are one row panel, in tiles for few rows. Each CTA of a cluster has box_rows of
 * them, a multiple of 8, the first ones as many as there are. Boxes of hidden, gathered rows and lora_u have so many:
 * what a box has beyond the rows costs the copy engine more than rows do. The same bits as without the part. */
#define FLP_SHORT_MAP_PARAMS(P) P(i32, box_rows)

/* Parameters of forward, list after list: L(P, parts, LIST), one that is there with any of these parts, or 0 always. */
#define FLP_FORWARD_LISTS(L, P)                                               \
  L(P, 0, FLP_FORWARD_PARAMS)                                                 \
  L(P, FLP_PART_KEEP | FLP_PART_TOP | FLP_PART_COLUMNS, FLP_SLICE_PARAMS)     \
  L(P, FLP_PART_KEEP, FLP_KEEP_PARAMS) L(P, FLP_PART_EMIT, FLP_EMIT_PARAMS)   \
  L(P, FLP_PART_TARGETS, FLP_HOLD_PARAMS) L(P, FLP_PART_TOP, FLP_CONTENDER_PARAMS) \
  L(P, FLP_PART_STATISTICS, FLP_STATISTICS_PARAMS) L(P, FLP_PART_RAW, FLP_RAW_PARAMS) \
  L(P, FLP_PART_LORA, FLP_LORA_PARAMS)
#define FLP_FORWARD_MAP_LISTS(L, P)                                           \
  L(P, 0, FLP_FORWARD_MAP_PARAMS)                                             \
  L(P, FLP_PART_KEEP | FLP_PART_TOP | FLP_PART_COLUMNS, FLP_SLICE_PARAMS)     \
  L(P, FLP_PART_KEEP, FLP_KEEP_MAP_PARAMS) L(P, FLP_PART_EMIT, FLP_EMIT_PARAMS) \
  L(P, FLP_PART_TARGETS, FLP_HOLD_PARAMS) L(P, FLP_PART_TOP, FLP_CONTENDER_PARAMS) \
  L(P, FLP_PART_COLUMNS, FLP_AHEAD_MAP_PARAMS) \
  L(P, FLP_PART_STATISTICS, FLP_STATISTICS_PARAMS) L(P, FLP_PART_RAW, FLP_RAW_PARAMS) \
  L(P, FLP_PART_LORA, FLP_LORA_MAP_PARAMS) \
  L(P, FLP_PART_SHORT, FLP_SHORT_MAP_PARAMS)
#define FLP_ABI_WHOLE(P, parts, LIST) LIST(P)
#define FLP_PARAMS_forward(P) FLP_FORWARD_LISTS(FLP_ABI_WHOLE, P)
#define FLP_PARAMS_forward_map(P) FLP_FORWARD_MAP_LISTS(FLP_ABI_WHOLE, P)
#define FLP_FORWARD_ENTRIES(E) E(forward) E(forward_map)

/* All others, and those that have the parameters of another one. */
#define FLP_ENTRY_LIST(E)                                                                                             \
  E(prepare) E(combine) E(gather) E(dz_map) E(products_map) E(merge) E(record) E(dz_scale) E(dz) E(grad_hidden)       \
  E(grad_weight) E(bias_reduce) E(fill) E(select) E(select_grad) E(diverge) E(loss_rows) E(scale)                     \
  E(keep_reference)                                                                                                   \
  E(keep_finish) E(keep_expand) E(keep_gather) E(direction_strike) E(direction_finish) E(direction_rows)              \
  E(list_check) E(list_sort) E(list_scores) E(list_reduce) E(list_dz) E(list_hidden) E(list_adapter)                  \
  E(list_digits) E(list_scan) E(list_place) E(list_starts) E(list_weight) E(list_weight_wide) E(emit_floor)           \
  E(emit_sort) E(flat_rows) E(flat_gate) E(tail_target) E(tail_mean) E(tail_rows) E(tail_choose) E(tail_entries)      \
  E(targets_rows)                                                                                                     \
  E(targets_sort) E(targets_finish) E(targets_strike) E(targets_patch) E(targets_bias) E(loss_targets)                \
  E(loss_scores) E(mean_sums) E(mean_fold) E(score_rows) E(score_record) E(score_target) E(score_hidden)              \
  E(score_head) E(score_add) E(score_list) E(top_target) E(top_begin) E(top_floor) E(top_redo) E(top_listed)          \
  E(top_finish) E(top_others) E(operand_terms) E(dz_lora) E(dz_lora_map) E(lora_project) E(lora_bound)                \
  E(lora_round) E(lora_factor) E(lora_rows) E(lora_columns) E(lora_products_map)                             \
  E(statistics) E(statistics_merge) E(statistics_list)
#define FLP_PARAMS_lora_products_map(P) FLP_PARAMS_products_map(P)
#define FLP_PARAMS_grad_weight(P) FLP_PARAMS_grad_hidden(P)
#define FLP_PARAMS_lora_rows(P) FLP_PARAMS_grad_hidden(P)
#define FLP_PARAMS_lora_columns(P) FLP_PARAMS_grad_hidden(P)
#define FLP_PARAMS_top_target(P) FLP_PARAMS_tail_target(P)

typedef uint64_t flp_abi_ptr;
typedef uint64_t flp_abi_region;
typedef uint64_t flp_abi_region_or_null;
#define flp_abi_arg(type) flp_abi_##type
#define flp_abi_call(type) flp_abi_##type
typedef int64_t flp_abi_i64;
typedef int32_t flp_abi_i32;
typedef float flp_abi_f32;
typedef double flp_abi_f64;
/* A CUtensorMap, passed to the kernel by value. */
typedef struct flp_abi_map {
  _Alignas(64) uint8_t bytes[128];
} flp_abi_map;

/* flp_forward_params and so on: all that a kernel gets. */
#define FLP_ABI_FIELD(kind, name) flp_abi_##kind name;
#define FLP_ABI_STRUCT(entry) \
  typedef struct flp_##entry##_params { FLP_PARAMS_##entry(FLP_ABI_FIELD) } flp_##entry##_params;
FLP_FORWARD_ENTRIES(FLP_ABI_STRUCT) FLP_ENTRY_LIST(FLP_ABI_STRUCT)

/* Some text for each parameter that a launch fills, none for others. */
#define FLP_GIVEN_ptr(...) __VA_ARGS__
#define FLP_GIVEN_i64(...) __VA_ARGS__
#define FLP_GIVEN_i32(...) __VA_ARGS__
#define FLP_GIVEN_f32(...) __VA_ARGS__
#define FLP_GIVEN_f64(...) __VA_ARGS__
#define FLP_GIVEN_map(...) __VA_ARGS__
#define FLP_GIVEN_region(...)
#define FLP_GIVEN_region_or_null(...)
#define FLP_GIVEN_arg(type) FLP_GIVEN_region
#define FLP_GIVEN_call(type) FLP_GIVEN_region

/* flp_forward_given and so on: what a launch fills of an entry's parameters. Nothing is in it that follows from the
 * call, so that none of that can be forgotten, nor set by hand. */
#define FLP_GIVEN_FIELD(kind, name) FLP_GIVEN_##kind(flp_abi_##kind name;)
#define FLP_GIVEN_STRUCT(entry) \
  typedef struct flp_##entry##_given { FLP_PARAMS_##entry(FLP_GIVEN_FIELD) } flp_##entry##_given;
FLP_FORWARD_ENTRIES(FLP_GIVEN_STRUCT) FLP_ENTRY_LIST(FLP_GIVEN_STRUCT)

typedef enum flp_abi_type {
  FLP_ABI_PTR = 'p',
  FLP_ABI_I64 = 'l',
  FLP_ABI_I32 = 'i',
  FLP_ABI_F32 = 'f',
  FLP_ABI_F64 = 'd',
  FLP_ABI_MAP = 'm'
} flp_abi_type;

/* What all launches of a call have under one name, beside the fields of its flp_args. */
typedef struct flp_call_values {
  flp_abi_ptr offsets, ids;     /* flp_args.list_offsets, list_ids */
  flp_abi_ptr error_word;       /* where bad rows are counted */
  int32_t depth, rank, targets; /* of the spec: D, lora_rank, targets */
  int32_t vocab_valid;          /* that of flp_args */
  int32_t best, top_places;     /* how many best columns are wanted; places of a row's list of them */
  int32_t block_words;          /* of target_block, a row */
  float cap_in;                 /* a/softcap; 0 without */
  int32_t capped;               /* 1: softcap */
} flp_call_values;

/* Who fills a parameter; regions are the last. */
typedef enum flp_abi_source {
  FLP_ABI_GIVEN,
  FLP_ABI_ARG,
  FLP_ABI_CALL,
  FLP_ABI_REGION,
  FLP_ABI_REGION_OR_NULL,
} flp_abi_source;

typedef struct flp_abi_param {
  const char *name;
  flp_abi_type type;
  uint32_t offset; /* in the entry's params struct */
  flp_abi_source source;
  uint32_t place; /* offset in the entry's given struct, in flp_args or flp_call_values; or the flp_region */
} flp_abi_param;

enum { FLP_ABI_PARAMS_MAX = 64 };

/* The entries as numbers, FLP_ENTRY_prepare and so on; with parts FLP_ENTRY_forward + parts and FLP_ENTRY_forward_map +
 * parts. */
typedef enum flp_entry_id {
#define FLP_ENTRY_ID(entry) FLP_ENTRY_##entry,
  FLP_ENTRY_LIST(FLP_ENTRY_ID)
#undef FLP_ENTRY_ID
      FLP_ENTRY_forward,
  FLP_ENTRY_forward_map = FLP_ENTRY_forward + FLP_FORWARD_SETS,
  FLP_ENTRY_ID_COUNT = FLP_ENTRY_forward_map + FLP_FORWARD_SETS
} flp_entry_id;

/* Parameters that stand behind each other in a table and come together: parts as in FLP_FORWARD_LISTS. */
typedef struct flp_abi_list {
  uint32_t parts, count;
} flp_abi_list;

typedef struct flp_abi_entry {
  flp_entry_id id;
  const char *name; /* also the PTX symbol, prefixed "flp_" */
  const flp_abi_param *params; /* of any parts: flp_abi_next says which are there */
  uint32_t parts;
  const flp_abi_list *lists; /* up to one of count 0 and parts 0 */
} flp_abi_entry;

const flp_abi_entry *flp_abi_of(flp_entry_id id);
/* The entry of that name, or NULL. thread: any */
const flp_abi_entry *flp_abi_find(const char *name);
/* The first parameter of the entry, the one behind `param`; NULL: there is none. */
const flp_abi_param *flp_abi_first(const flp_abi_entry *entry);
const flp_abi_param *flp_abi_next(const flp_abi_entry *entry, const flp_abi_param *param);
/* One letter a parameter. Returns out. */
const char *flp_abi_signature(const flp_abi_entry *entry, char out[FLP_ABI_PARAMS_MAX + 1]);

#endif
