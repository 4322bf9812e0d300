/* cost.c: what a layout costs in seconds, from tiles, waves and bytes.
 *
 * A product of M x N x K runs ceil(tiles / multiprocessors) waves of one tile a multiprocessor, so padding and the last
 * partial wave count as work; it is never faster than its operands come from memory. Chunks add their launches.
 * Where clusters take their units in order and a launch makes several products, all multiprocessors are busy until the
 * last units: all tiles shared out evenly, and half of the longest unit for the end. */
#include <math.h>

#include "runtime/base/operands.h"
#include "runtime/base/util.h"
#include "runtime/kernel/abi.h"
#include "runtime/planner/internal.h"

typedef struct product {
  int64_t m, n, k;
  int64_t tile_m, tile_n;
  int unit_tiles; /* tiles that a cluster takes at a time */
  int halves;     /* 1: a last wave that is at most half full takes half the time, its tiles divided */
} product;

static double element_bytes(const flp_planner *p) {
  return p->spec.dtype == FLP_DTYPE_FP32 ? 4.0 : 2.0;
}

static int64_t tiles_of(const product *x) {
  return flp_ceil_div(x->m, x->tile_m) * flp_ceil_div(x->n, x->tile_n);
}

static double tile_flops(const product *x) {
  return 2.0 * (double)x->tile_m * (double)x->tile_n * (double)x->k;
}

static double memory_seconds(const flp_planner *p, const product *x) {
  double m = (double)x->m, n = (double)x->n, k = (double)x->k;
  return (m * k + n * k + m * n) * element_bytes(p) / p->bandwidth;
}

static double waves_of(const flp_planner *p, const product *x) {
  int64_t tiles = tiles_of(x), rest = tiles % p->multiprocessors;
  double last = rest == 0 ? 0 : x->halves && 2 * rest <= p->multiprocessors ? 0.5 : 1;
  return (double)(tiles / p->multiprocessors) + last;
}

static double product_cost(const flp_planner *p, const product *x) {
  return fmax(waves_of(p, x) * tile_flops(x) / p->flop_rate, memory_seconds(p, x)) + planner_launch_seconds;
}

/* One launch that makes `count` products, unit by unit. */
static double shared_out_cost(const flp_planner *p, const product *x, int count) {
  double flops = 0, longest = 0, memory = 0;
  for (int i = 0; i < count; i++) {
    flops += (double)tiles_of(&x[i]) * tile_flops(&x[i]);
    longest = fmax(longest, tile_flops(&x[i]) * x[i].unit_tiles / (p->flop_rate * p->dz_cluster));
    memory += memory_seconds(p, &x[i]);
  }
  double compute = fmax(flops / (p->flop_rate * p->multiprocessors) + longest / 2, longest);
  return fmax(compute, memory) + planner_launch_seconds;
}

/* K of the product of scores. */
static int64_t scores_depth(const flp_planner *p) {
  return p->spec.hidden * flp_operand_terms(&p->spec);
}

static product dz_of(const flp_planner *p, int64_t rows, int64_t columns) {
  return (product){rows, columns, scores_depth(p), p->dz_unit_rows, p->dz_columns, p->dz_unit_tiles, 0};
}

static product grad_hidden_of(const flp_planner *p, int64_t rows, int64_t columns) {
  return (product){rows, p->spec.hidden, columns, p->hidden_rows, p->hidden_columns, 1, 0};
}

static product grad_weight_of(const flp_planner *p, int64_t rows, int64_t columns) {
  return (product){columns, p->spec.hidden, rows, p->weight_rows, p->weight_columns, 1, 0};
}

static double chunk_cost(const flp_planner *p, int64_t rows, int64_t columns, uint32_t grads) {
  if (rows == 0 || columns == 0) return 0;
  product dz = dz_of(p, rows, columns), made[2];
  int count = 0;
  if (grads & FLP_GRAD_HIDDEN) made[count++] = grad_hidden_of(p, rows, columns);
  if (grads & FLP_GRAD_WEIGHT) made[count++] = grad_weight_of(p, rows, columns);
  double seconds = p->is_mapped ? shared_out_cost(p, &dz, 1) : product_cost(p, &dz);
  if (p->is_mapped && count) seconds += shared_out_cost(p, made, count);
  for (int i = 0; i < count && !p->is_mapped; i++) seconds += product_cost(p, &made[i]);
  if (grads & FLP_GRAD_BIAS) seconds += planner_launch_seconds;
  return seconds;
}

double flp_planner_chunks_cost(const flp_planner *p, int64_t n, int64_t chunk_rows, int64_t chunk_vocab,
                               uint32_t grads) {
  int64_t full_rows = n / chunk_rows, last_rows = n % chunk_rows;
  int64_t full_columns = p->spec.vocab / chunk_vocab, last_columns = p->spec.vocab % chunk_vocab;
  double row_of_chunks = (double)full_columns * chunk_cost(p, chunk_rows, chunk_vocab, grads) +
                         chunk_cost(p, chunk_rows, last_columns, grads);
  double last_row = (double)full_columns * chunk_cost(p, last_rows, chunk_vocab, grads) +
                    chunk_cost(p, last_rows, last_columns, grads);
  return (double)full_rows * row_of_chunks + last_row;
}

double flp_planner_gather_cost(const flp_planner *p, int64_t n, int64_t launches) {
  double bytes = launches ? 2.0 * (double)n * (double)p->spec.hidden * element_bytes(p) : 0;
  return bytes / p->bandwidth + (double)launches * planner_launch_seconds;
}

static double forward_chunk_cost(const flp_planner *p, int64_t rows) {
  product x = {rows, p->spec.vocab, p->spec.hidden, p->forward_rows, p->unit_columns, 1, 0};
  return rows == 0 ? 0 : product_cost(p, &x) + planner_launch_seconds; /* forward and combine */
}

/* Rows times a slice of columns, of which so many are made meanwhile. */
static double slice_cost(const flp_planner *p, int64_t rows, int64_t columns, int64_t made) {
  product x = {rows, columns, scores_depth(p), p->forward_rows, p->unit_columns, 1, p->is_mapped};
  return columns == 0 ? 0 : fmax(product_cost(p, &x), planner_ahead_cost(p, made));
}

/* Slices of so many rows; ahead: only the first is made before. */
static double slices_cost(const flp_planner *p, int64_t rows, const flp_scheme *s) {
  int64_t vocab = p->spec.vocab;
  double seconds = 0;
  for (int64_t begin = 0, end; rows && begin < vocab; begin = end) {
    end = flp_min(flp_planner_slice_end(s, begin), vocab);
    int64_t next = end < vocab ? flp_min(flp_planner_slice_end(s, end), vocab) - end : 0;
    seconds += slice_cost(p, rows, end - begin, s->ahead ? next : 0);
    if (begin == 0 || !s->ahead) seconds += planner_slice_cost(p, end - begin);
  }
  return seconds;
}

double flp_planner_slices_forward_cost(const flp_planner *p, int64_t n, int64_t chunk_rows, const flp_scheme *s) {
  int64_t chunks = flp_ceil_div(n, chunk_rows);
  return (double)(n / chunk_rows) * slices_cost(p, chunk_rows, s) + slices_cost(p, n % chunk_rows, s) +
         (double)(chunks + 1) * planner_launch_seconds;
}

double flp_planner_targets_cost(const flp_planner *p, int64_t n, int64_t launches) {
  double bytes = (double)n * p->spec.targets * (double)p->spec.hidden * element_bytes(p);
  return bytes / p->bandwidth + (double)launches * planner_launch_seconds;
}

double flp_planner_forward_cost(const flp_planner *p, int64_t n, int64_t chunk_rows) {
  return (double)(n / chunk_rows) * forward_chunk_cost(p, chunk_rows) + forward_chunk_cost(p, n % chunk_rows) +
         planner_launch_seconds;
}

/* One product of a launch, in tiles of equal work: whole waves of them. */
static double waves_cost(const flp_planner *p, const product *x) {
  if (!p->is_mapped) return product_cost(p, x);
  int64_t at_once = flp_max(p->multiprocessors / p->dz_cluster, 1);
  int64_t waves = flp_ceil_div(flp_ceil_div(tiles_of(x), x->unit_tiles), at_once);
  double unit = tile_flops(x) * x->unit_tiles / (p->flop_rate * p->dz_cluster);
  return fmax((double)waves * unit, memory_seconds(p, x)) + planner_launch_seconds;
}

/* The products of rows of exponentials, and what turns those into gradients: blocks that need not be redone launch for
 * nothing; in the expanded form all of them pass through memory. */
static double saved_products_cost(const flp_planner *p, int64_t rows, int expands) {
  int hidden = (p->spec.grads & FLP_GRAD_HIDDEN) != 0, weight = (p->spec.grads & FLP_GRAD_WEIGHT) != 0;
  product made[] = {grad_hidden_of(p, rows, p->spec.vocab), grad_weight_of(p, rows, p->spec.vocab)};
  double seconds = (double)flp_ceil_div(rows, FLP_KEPT_BLOCK_ROWS) * planner_launch_seconds;
  if (hidden && weight && p->is_mapped)
    seconds += shared_out_cost(p, made, 2);
  else
    seconds += (hidden ? waves_cost(p, &made[0]) : 0) + (weight ? waves_cost(p, &made[1]) : 0);
  if (expands) seconds += 2.0 * (double)rows * (double)p->spec.vocab * element_bytes(p) / p->bandwidth;
  if (weight) seconds += flp_planner_gather_cost(p, rows, 1);
  return seconds + 3 * planner_launch_seconds; /* record, keep_finish, keep_expand or bias_reduce */
}

double flp_planner_saved_cost(const flp_planner *p, int64_t n) {
  return saved_products_cost(p, n, p->saved_expands);
}

/* The scores of the first columns, of whose maximum rows have their reference. */
static product reference_of(const flp_planner *p, int64_t rows) {
  int64_t columns = flp_min(FLP_REFERENCE_COLUMNS, p->spec.vocab);
  return (product){rows, columns, p->spec.hidden, p->keep_rows, FLP_REFERENCE_COLUMNS, 1, 0};
}

static double stream_chunk_cost(const flp_planner *p, int64_t rows, int64_t chunks) {
  if (rows == 0) return 0;
  product scores = {rows, p->spec.vocab, p->spec.hidden, p->keep_rows, p->unit_columns, 1, 0};
  product first = reference_of(p, rows);
  double seconds = waves_cost(p, &scores) + waves_cost(p, &first) + saved_products_cost(p, rows, p->step_expands);
  if (p->is_mapped) seconds += flp_planner_gather_cost(p, rows, 1);
  if (chunks > 1 && (p->spec.grads & FLP_GRAD_WEIGHT))
    seconds +=
        2 * flp_planner_weight_sum_bytes(p, chunks) * (double)p->spec.vocab * (double)p->spec.hidden / p->bandwidth;
  return seconds + 3 * planner_launch_seconds; /* keep_reference, combine, loss_rows */
}

double flp_planner_stream_cost(const flp_planner *p, int64_t n, int64_t chunk_rows) {
  int64_t chunks = flp_ceil_div(n, chunk_rows);
  return (double)(n / chunk_rows) * stream_chunk_cost(p, chunk_rows, chunks) +
         stream_chunk_cost(p, n % chunk_rows, chunks) + planner_launch_seconds;
}

/* Of its time in memory, what an operand costs that each chunk of rows reads anew while products run, as power that these
 * lack: between nothing and 0.11 ms a gigabyte on H200s (N = 8192, D = 4096, V = 151936). */
static const double read_again = 0.25;

/* One chunk of exponentials, and what it adds to the sums of its rows: read but for the first chunk, at the end of a tile,
 * where nothing hides the time, which an H200 shows to be about twice that in memory; and written. */
static double direction_chunk_cost(const flp_planner *p, int64_t rows, int64_t columns, int is_first) {
  if (rows == 0 || columns == 0) return 0;
  product scores = {rows, columns, p->spec.hidden, p->keep_rows, p->keep_columns, 1, 0};
  product made = grad_hidden_of(p, rows, columns);
  double sums = (is_first ? 4.0 : 16.0) * (double)rows * (double)p->spec.hidden / p->bandwidth;
  return waves_cost(p, &scores) + waves_cost(p, &made) + sums + planner_launch_seconds; /* direction_strike */
}

/* Chunks of the same rows, with what is done once for them. redone: pieces of a block of rows that dz would redo */
static double direction_rows_of_chunks_cost(const flp_planner *p, int64_t rows, int64_t chunk_vocab, int64_t redone) {
  if (rows == 0) return 0;
  int64_t pieces = flp_ceil_div(p->spec.vocab, chunk_vocab), last = p->spec.vocab - (pieces - 1) * chunk_vocab;
  product first = reference_of(p, rows);
  double weight = 2.0 * (double)p->spec.vocab * (double)p->spec.hidden * element_bytes(p);
  double seconds = waves_cost(p, &first) + direction_chunk_cost(p, rows, pieces > 1 ? chunk_vocab : last, 1) +
                   read_again * weight / p->bandwidth;
  if (pieces > 1)
    seconds +=
        (double)(pieces - 2) * direction_chunk_cost(p, rows, chunk_vocab, 0) + direction_chunk_cost(p, rows, last, 0);
  if (p->is_mapped) seconds += flp_planner_gather_cost(p, rows, 1);
  /* keep_reference, combine twice, direction_finish; dz and product of blocks that need not be redone */
  return seconds + (4.0 + 2.0 * (double)(flp_ceil_div(rows, FLP_KEPT_BLOCK_ROWS) * redone)) * planner_launch_seconds;
}

double flp_planner_direction_cost(const flp_planner *p, int64_t n, int64_t chunk_rows, int64_t chunk_vocab) {
  int64_t redone = flp_ceil_div(p->spec.vocab, flp_planner_redo_columns(p, chunk_rows, chunk_vocab));
  return (double)(n / chunk_rows) * direction_rows_of_chunks_cost(p, chunk_rows, chunk_vocab, redone) +
         direction_rows_of_chunks_cost(p, n % chunk_rows, chunk_vocab, redone) + planner_launch_seconds;
}

double flp_planner_direction_rows_cost(const flp_planner *p, int64_t n) {
  double elements = (double)n * (double)p->spec.hidden;
  return elements * (4.0 + 2.0 * element_bytes(p)) / p->bandwidth + 4 * planner_launch_seconds;
}

/* Columns that a row's list keeps, by the mean of text; each is a row of weight to read, and for the head's gradient one of
 * hidden. */
static const double tail_columns = 64;

double flp_planner_tail_cost(const flp_planner *p, int64_t n, int64_t launches) {
  int products = ((p->spec.grads & FLP_GRAD_HIDDEN) != 0) + ((p->spec.grads & FLP_GRAD_WEIGHT) != 0);
  double bytes = tail_columns * (double)n * (double)p->spec.hidden * element_bytes(p) * products;
  return bytes / p->bandwidth + (double)launches * planner_launch_seconds;
}

static int grid_fits(const product *x) {
  int64_t tiles = 0;
  return !__builtin_mul_overflow(flp_ceil_div(x->m, x->tile_m), flp_ceil_div(x->n, x->tile_n), &tiles) &&
         tiles <= INT32_MAX;
}

int flp_planner_grids_fit(const flp_planner *p, int64_t rows, int64_t columns) {
  product dz = dz_of(p, rows, columns);
  product hidden = grad_hidden_of(p, rows, columns), weight = grad_weight_of(p, rows, columns);
  return grid_fits(&dz) && (!(p->spec.grads & FLP_GRAD_HIDDEN) || grid_fits(&hidden)) &&
         (!(p->spec.grads & FLP_GRAD_WEIGHT) || grid_fits(&weight));
}
