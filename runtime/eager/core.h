/* core.h: what the files of the eager reference share, divided by the file that implements it.
 *
 * Invariants: every matrix product runs on tiles of one fixed shape, padded with zeros, and everything that is summed
 * is summed in an order that only the spec fixes. So no result depends on threads, workspace, N or a row's position. */
#ifndef FLP_EAGER_CORE_H
#define FLP_EAGER_CORE_H

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "runtime/flp.h"
#include "runtime/kernel/abi.h"
#include "runtime/kernel/op.h"

/* A tile of scores: 64 x 128 keeps packing under 2% of a product at D = 4096 and its fp32 weight tile within 2 MiB. */
enum {
  EAGER_TILE_ROWS = 64,
  EAGER_TILE_COLUMNS = 128,
  EAGER_GROUP_TILES = 4,   /* column tiles that one unit of forward folds into one partial */
  EAGER_DEPTH_BLOCK = 512, /* columns of a gradient that one unit sums: 128 x 512 fp32 stay in the second cache */
  EAGER_THREADS_MAX = 256
};

/* ---- threads.c ---- */

/* Does one unit of a job. worker: 0 <= worker < team->count, for scratch of its own */
typedef void (*eager_work_fn)(void *context, int64_t unit, int worker);

typedef struct eager_team {
  pthread_t threads[EAGER_THREADS_MAX];
  int count; /* workers, the calling thread (worker 0) included */
  pthread_mutex_t lock;
  pthread_cond_t begun, ended;
  uint64_t generation; /* jobs begun */
  int busy;            /* workers still inside the current job */
  int stopping;
  eager_work_fn work;
  void *context;
  int64_t units;
  atomic_llong next;
} eager_team;

/* Starts at most `threads` workers; fewer if the system has no more. */
void eager_team_start(eager_team *team, int threads);
/* Does units 0 .. units-1, in any order, and returns when all are done. */
void eager_team_run(eager_team *team, int64_t units, eager_work_fn work, void *context);
void eager_team_stop(eager_team *team);

/* ---- blas.c, sgemm.c; blas.h has what the files of OpenBLAS share ---- */

/* Opens OpenBLAS on first use; brackets the products of one pass, during which the library runs one thread. */
void eager_blas_enter(void);
void eager_blas_leave(void);
/* To be called on each thread that multiplies (an OpenMP build counts threads per thread). */
void eager_blas_enter_thread(void);
/* What multiplies: "OpenBLAS 0.3.21 for Zen (libopenblas.so.0)" or "plain C"; and why plain C does, or "". Borrowed. */
const char *eager_blas_name(void);
const char *eager_blas_reason(void);

/* A product of row-major fp32 matrices; c <- a·b or c <- c + a·b. */
typedef enum eager_product {
  EAGER_SCORES,      /* c (m,n) <-     a (m,k) · b (n,k)^T */
  EAGER_GRAD_HIDDEN, /* c (m,n) <- c + a (m,k) · b (k,n)   */
  EAGER_GRAD_WEIGHT, /* c (m,n) <- c + a (k,m)^T · b (k,n) */
  EAGER_PRODUCTS
} eager_product;

typedef struct eager_matrices {
  int m, n, k;
  const float *a;
  int64_t a_stride;
  const float *b;
  int64_t b_stride;
  float *c;
  int64_t c_stride;
} eager_matrices;

void eager_multiply(eager_product product, const eager_matrices *x);
/* The same in plain C, whatever library is there. */
void eager_multiply_plain(eager_product product, const eager_matrices *x);

/* Scores of a tile, (EAGER_TILE_ROWS, EAGER_TILE_COLUMNS), of rows and columns of that depth, one after another. */
static inline void eager_tile_scores(const float *rows, const float *columns, int64_t depth, float *scores) {
  eager_matrices x = {
      EAGER_TILE_ROWS, EAGER_TILE_COLUMNS, (int)depth, rows, depth, columns, depth, scores, EAGER_TILE_COLUMNS};
  eager_multiply(EAGER_SCORES, &x);
}

/* What a tile of gradients of scores adds to `width` columns of a gradient: that of its rows (EAGER_GRAD_HIDDEN) or of
 * its columns. x: the other factor, by column or by row of the tile; strides in elements */
static inline void eager_tile_add(eager_product product, const float *dz, int64_t dz_stride, const float *x,
                                  int64_t x_stride, int width, float *sums, int64_t sums_stride) {
  int by_rows = product == EAGER_GRAD_HIDDEN;
  int m = by_rows ? EAGER_TILE_ROWS : EAGER_TILE_COLUMNS, k = by_rows ? EAGER_TILE_COLUMNS : EAGER_TILE_ROWS;
  eager_matrices all = {m, width, k, dz, dz_stride, x, x_stride, sums, sums_stride};
  eager_multiply(product, &all);
}

/* ---- values of all scores of a row, which a step's loss may read (lse, mean_score) ---- */

/* (n) by row, in nats; out of a forward pass, and the loss's derivatives by them, in of a backward pass; NULL: neither. */
typedef struct eager_scores {
  float *lse, *mean_score;
  const float *grad_lse, *grad_mean;
} eager_scores;

/* ---- rows.c ---- */

/* The scores of one row, t = outer·x, or outer·tanh(inner·x) with softcap, in log2 units; x is z + b. */
typedef struct eager_scale {
  double outer, inner;
  int capped;
} eager_scale;

static inline double eager_score(const eager_scale *scale, double x) {
  return scale->capped ? scale->outer * tanh(scale->inner * x) : scale->outer * x;
}

/* dt/dx without the log2(e) of t, that is: how a gradient of t in nats passes to x. */
double eager_score_slope(const eager_scale *scale, double x);

eager_scale eager_row_scale(const flp_spec *spec, const flp_args *args, int64_t row);
/* One of ids of the target dtype: targets, list_ids. */
int64_t eager_id_at(const flp_spec *spec, const void *ids, int64_t at);
/* Row of weight that holds target k of a row, or -1 if it lies on another shard or is ignored. */
int64_t eager_row_target(const flp_spec *spec, const flp_args *args, int64_t row, int64_t k);
/* 1 if target k of a row is args->ignore_index. */
int eager_is_ignored(const flp_spec *spec, const flp_args *args, int64_t row, int64_t k);
/* Whether a pass reads lists of columns; combine reads partials alone. */
static inline int eager_is_listed(const flp_spec *spec, flp_pass pass) {
  return spec->listed && pass != FLP_PASS_COMBINE;
}

/* Fills row_class (n) and index (n); adds bad rows and row ids to *bad_rows. Returns the number of active rows. */
int64_t eager_rows_classify(const flp_spec *spec, const flp_args *args, const eager_scores *scores, uint8_t *row_class,
                            int32_t *index, uint64_t *bad_rows);
/* Writes logprob, entropy, stats and, in a forward pass, partial and partial_targets of the rows that are not active. */
void eager_rows_fill(const flp_spec *spec, const flp_args *args, const uint8_t *row_class);

/* Softmax of a row so far: maximum, sum and weighted sum in log2 units; sum is 0 while no score was above -inf. And
 * Σ 4^(t - maximum), Σ t. */
typedef struct eager_partial {
  double maximum, sum, weighted, squares, total;
} eager_partial;

typedef struct eager_call eager_call; /* below */

/* The partial of scores in log2 units. A NaN is no maximum, but it reaches the sums. */
eager_partial eager_partial_of(const double *t, int64_t count);
eager_partial eager_partial_merge(eager_partial left, eager_partial right);
/* Moves the reference of a partial from its maximum to another number near it. */
eager_partial eager_partial_move(eager_partial partial, double maximum);
/* Whether fp32 cannot tell a row's scores apart, by its largest one, NaN left out, and its sum. A row with +inf is another
 * matter, and so is one with a NaN whose other scores are low: kernels count neither (S.is_beyond in score.lua).
 * unit: maximum in log2 units */
int eager_is_beyond_limit(double maximum, double sum);
/* Writes a row of args->partial, and of partial_targets where a row has several. The sums are moved to the maximum as
 * stored; beyond the limit they count for nothing, or make the row bad. targets: raw scores, -inf on other shards */
void eager_partial_write(const eager_call *call, int64_t row, eager_partial part, const double *targets);
/* Writes logprob, entropy and stats of a row: NaN, and counts it, if its largest score is beyond FLP_SCORE_LIMIT.
 * targets: raw scores, x */
void eager_row_finish(const eager_call *call, int64_t row, const eager_scale *scale, eager_partial whole,
                      const double *targets);
/* Writes statistics of a row or, of a shard, what they are made of; and, of a call with scores, lse and the mean of
 * these: NaN where they are beyond what fp32 tells apart. columns: how many there are; is_best: whether a target is the
 * best */
void eager_statistics_write(const eager_call *call, int64_t row, eager_partial whole, double columns, int is_best);
/* Whether a target's raw score is as high as the maximum. */
int eager_is_best(const eager_call *call, const eager_scale *scale, eager_partial whole, const double *targets);

/* ---- block.c ---- */

/* Carves arrays out of one block; with base NULL it only counts. */
typedef struct eager_block {
  char *base;
  uint64_t used; /* UINT64_MAX once a size has overflowed */
} eager_block;

void *eager_block_take(eager_block *block, uint64_t count, uint64_t element_bytes);

/* ---- memory.c ---- */

/* Sizes of one pass. */
typedef struct eager_plan {
  flp_mode mode;
  int threads;
  int64_t panel_rows;    /* rows that are worked on at a time, a multiple of EAGER_TILE_ROWS */
  int64_t chunk_columns; /* columns that backward works on at a time, a multiple of EAGER_TILE_COLUMNS */
  int products;
  uint64_t bytes, smallest_bytes;
} eager_plan;

/* Picks the first plan, from fast to small, whose bytes fit; planning for its own bytes gives the same plan.
 * error: BUDGET naming the smallest that would do */
flp_status eager_plan_pick(const flp_spec *spec, flp_pass pass, int64_t n, uint64_t budget_bytes, int threads,
                           eager_plan *out);

/* ---- pass.c, step.c ---- */

/* flp_eager_execute with values of all scores of a row. scores: NULL for none */
flp_status eager_execute(const flp_spec *spec, const flp_args *args, const eager_scores *scores, int threads,
                         uint64_t *bad_rows);
/* Threads of a pass for what the options ask; 0: all. */
int eager_thread_count(int threads);
void eager_layout_of(const flp_spec *spec, flp_pass pass, int64_t n, const eager_plan *plan, flp_layout *layout);
/* The plan of a pass, over lists of so many ids if the spec has such. error: BUDGET naming the smallest */
flp_status eager_pick(const flp_spec *spec, flp_pass pass, int64_t n, int64_t list_count, uint64_t budget_bytes,
                      int threads, eager_plan *out);
/* The layout of a step, as flp_eager_layout gives it. */
flp_status eager_step_layout(const flp_spec *spec, int64_t n, int64_t list_count, uint64_t budget_bytes, int threads,
                             flp_layout *layout);

/* ---- panel.c ---- */

/* Arrays that every pass has. */
typedef struct eager_rows {
  uint8_t *row_class; /* (n) */
  int32_t *index;     /* (n) row of each active row */
  int64_t count;      /* active rows */
} eager_rows;

void eager_rows_carve(eager_block *block, int64_t n, eager_rows *out);

/* Widens `rows` active rows from `first` on to fp32 (EAGER_TILE_ROWS, D), the rest zeros. */
void eager_widen_hidden(const flp_spec *spec, const flp_args *args, const eager_rows *rows, int64_t first,
                        int64_t count, float *out);
/* Widens `count` elements of an operand (hidden, weight, bias) from element `at` on. */
void eager_widen_part(const flp_spec *spec, flp_dtype stored, const void *operand, int64_t at, int64_t count,
                      float *out);
/* Widens columns [first, min(first + 128, vocab_valid)) to fp32 (EAGER_TILE_COLUMNS, D), the rest zeros, and their
 * biases (zeros without). */
void eager_widen_weight(const flp_spec *spec, const flp_args *args, int64_t first, float *out, float *bias);

/* ---- forward.c, top.c, combine.c, backward.c ---- */

struct eager_call {
  const flp_spec *spec;
  const flp_args *args;
  const eager_plan *plan;
  eager_team *team;
  const eager_scores *scores; /* NULL: no loss reads any */
  eager_rows rows;
  atomic_ullong *bad_rows; /* added to: rows whose scores are beyond the limit */
};

typedef struct eager_top_entry {
  double t; /* in log2 units */
  int32_t column;
} eager_top_entry;

/* Of spec.topk and spec.rank: what each worker has met of the rows of a panel. */
typedef struct eager_top {
  int64_t topk, panel_rows;
  int64_t workers;       /* 0: those of the team */
  eager_top_entry *best; /* (threads, panel, topk) */
  int32_t *above;        /* (threads, panel) columns above the target */
  double *target;        /* (panel) t of the target */
} eager_top;

void eager_top_carve(const flp_spec *spec, const eager_plan *plan, eager_block *block, eager_top *out);
/* Whether the target's score must be known before the others. */
int eager_top_wants_rank(const flp_spec *spec, const flp_args *args);
/* Forgets what was met of the first `count` rows of a panel. */
void eager_top_clear(const eager_call *call, const eager_top *top, int64_t count);
/* t of a row's target: its own, or where that is -INFINITY what the call says of another shard's. */
double eager_top_target(const flp_args *args, int64_t row, double own);
/* Scores of columns from `column` on, of one row. */
void eager_top_add(const eager_call *call, const eager_top *top, int worker, int64_t in_panel, int64_t column,
                   const double *t, int64_t count);
/* Writes what the call asks for of a row, whose sums are whole. */
void eager_top_finish(const eager_call *call, const eager_top *top, int64_t in_panel, int64_t row, eager_partial whole);
/* Writes that of the rows that are not active. */
void eager_top_fill(const flp_spec *spec, const flp_args *args, const uint8_t *row_class);

/* ---- lora.c: a low-rank adapter (spec.lora_rank); rank 0: there is none, and what is not below does nothing ---- */

typedef struct eager_lora {
  int64_t rank, padded; /* padded: up to whole tiles of columns */
  float *a;             /* (padded, D), zeros behind the rank */
  float *u;             /* (panel, rank) s·(h Aᵀ) */
  float *b;             /* (threads, 128, rank), in backward (chunk, rank) */
  float *more;          /* (threads, 64, 128) u Bᵀ */
  float *sums;          /* backward: (rows, padded) G = dz·B, later times s; rows as of grad_hidden */
  float *grad_a;        /* (padded, D) */
  float *grad_b;        /* (chunk, rank) */
} eager_lora;

void eager_lora_carve_forward(const flp_spec *spec, const eager_plan *plan, eager_block *block, eager_lora *out);
void eager_lora_carve_backward(const flp_spec *spec, const eager_plan *plan, int64_t n, eager_block *block,
                               eager_lora *out);
/* Whether a gradient follows from G. */
int eager_lora_wants_sums(const flp_spec *spec);
/* Widens A, and clears its gradient. */
void eager_lora_begin(const eager_call *call, const eager_lora *lora);
/* u of a tile of rows of the panel. */
void eager_lora_project(const eager_call *call, const eager_lora *lora, int64_t row_tile, const float *hidden,
                        int worker);
/* Widens a tile of B, from row `column` on, zeros behind the vocabulary. */
void eager_lora_widen_b(const eager_call *call, const eager_lora *lora, int64_t column, float *out);
/* Adds u Bᵀ to a tile of scores. */
void eager_lora_add_scores(const eager_lora *lora, int64_t row_tile, const float *b, int worker, float *scores);
/* The rest is for a rank that is not 0. G of a tile of rows += dz·B of a tile of columns; and times s. */
void eager_lora_add_sums(const eager_lora *lora, const float *dz, const float *b, float *sums);
void eager_lora_scale_sums(const eager_call *call, const eager_lora *lora, float *sums);
/* Columns [begin, begin + width) of the gradients of a tile of rows, and of a tile of rows of A from `first` on. */
void eager_lora_add_grad_hidden(const eager_call *call, const eager_lora *lora, const float *sums, int64_t begin,
                                int width, float *grad_hidden);
void eager_lora_add_grad_a(const eager_call *call, const eager_lora *lora, const float *sums, const float *hidden,
                           int64_t first, int64_t begin, int width);
/* dB of a tile of the chunk's columns += that of a tile of rows. */
void eager_lora_add_grad_b(const eager_lora *lora, const float *dz, int64_t row_tile, int64_t tile);
void eager_lora_write_grad_a(const eager_call *call, const eager_lora *lora);
void eager_lora_write_grad_b(const eager_call *call, const eager_lora *lora, int64_t column, int64_t columns);
/* u of one row, of sums in double; rank floats. */
void eager_lora_project_row(const eager_call *call, int64_t row, float *u);
/* Zeros in rows of grad_lora_b from `first` on, and without rows in grad_lora_a. */
void eager_lora_fill(const flp_spec *spec, const flp_args *args, int64_t first);

/* Takes the arrays of a pass from a block; used to count and to run. */
typedef struct eager_forward_memory {
  float *hidden;        /* (panel, D) */
  eager_partial *parts; /* (panel, groups) */
  double *target;       /* (panel, targets) raw scores */
  double *sums;         /* (panel, groups) of t in log2 units; NULL where no loss reads their mean */
  float *weight;        /* (threads, 128, D) */
  float *scores;        /* (threads, 64, 128) */
  float *bias;          /* (threads, 128) */
  eager_top top;
  eager_lora lora;
} eager_forward_memory;

void eager_forward_carve(const flp_spec *spec, const eager_plan *plan, eager_block *block, eager_forward_memory *out);
void eager_forward(const eager_call *call, const eager_forward_memory *memory);

void eager_combine(const eager_call *call);

/* What the gradient of one row's scores needs: dx = slope·(2^w·(alpha + beta·w) + each) off its targets. */
typedef struct eager_record {
  eager_scale scale;
  double maximum, log_sum; /* w = (t - maximum) - log_sum */
  double alpha, beta, entropy;
  double grad_logprob, grad_entropy; /* grad_logprob: the sum over the row's targets */
  double grad_lse, each;             /* each: the derivative by the mean score over the number of columns */
  int64_t row;
} eager_record;

/* columns: that the mean is of */
eager_record eager_record_make(const flp_spec *spec, const flp_args *args, const eager_scores *scores, int64_t columns,
                               int64_t row);
/* Upstream gradient of target k of a row: 0 where there is none, or the target is ignored. */
double eager_grad_target(const flp_spec *spec, const flp_args *args, int64_t row, int64_t k);
/* The gradient of the row's loss by one raw score x. own: NULL, or of a target's score the upstream gradients of the
 * targets that are that column, summed */
double eager_grad_score(const eager_record *record, double x, const double *own);

typedef struct eager_backward_memory {
  float *hidden;         /* (panel, D) */
  float *weight;         /* (chunk, D) */
  float *bias;           /* (chunk) */
  float *dz;             /* (panel/64, chunk/128) tiles of (64,128) */
  eager_record *records; /* (panel) */
  float *grad_hidden;    /* (rows, D) by active row; rows = panel, or all of them in recompute-vocab mode */
  float *grad_weight;    /* (chunk, D) */
  double *grad_bias;     /* (chunk) */
  eager_lora lora;
} eager_backward_memory;

void eager_backward_carve(const flp_spec *spec, const eager_plan *plan, int64_t n, eager_block *block,
                          eager_backward_memory *out);
void eager_backward(const eager_call *call, const eager_backward_memory *memory);
/* Gradients of rows and columns that no sum reaches: zeros, and NaN for bad rows. */
void eager_backward_fill(const flp_spec *spec, const flp_args *args, const uint8_t *row_class);

/* ---- listed.c, listed_backward.c ---- */

/* The lists of a pass. Those of row r lie from list_offsets[r] on, so rows share nothing. */
typedef struct eager_lists {
  int32_t *column; /* (list_count) a row's columns on this shard, ascending, each once */
  double *value;   /* (list_count) their raw scores x, then t, or the gradients of x */
  float *u;        /* (n, rank) of an adapter, by row; else NULL */
} eager_lists;

/* One row's list, within those. */
typedef struct eager_list {
  const int32_t *column;
  double *value;
  int64_t count;
  int64_t target; /* place of the target in the list, -1 where it lies on another shard */
} eager_list;

/* What a backward pass has beside them. A place is one entry of a column: columns ascending, and rows in each. */
typedef struct eager_listed_memory {
  eager_lists lists;
  int32_t *length;     /* (n) entries of each active row, -1: its gradient is NaN */
  int32_t *start;      /* (V + 2) first place of each column; the last element is scratch */
  int32_t *place_row;  /* (list_count) */
  double *place_value; /* (list_count) gradient of x */
  double *sums;        /* (n, rank) G = dz·B of each active row; NULL where nothing follows from it */
} eager_listed_memory;

/* The plan of forward or backward, which has one size whatever the budget. error: BUDGET naming it */
flp_status eager_listed_pick(const flp_spec *spec, flp_pass pass, int64_t n, int64_t list_count, uint64_t budget_bytes,
                             int threads, eager_plan *out);
void eager_listed_carve(const flp_spec *spec, flp_pass pass, int64_t n, int64_t list_count, eager_block *block,
                        eager_listed_memory *out);
/* What takes entries by column. */
#define EAGER_LISTED_BY_COLUMN (FLP_GRAD_WEIGHT | FLP_GRAD_BIAS | FLP_GRAD_LORA_B)
/* Of a multiple of 8 numbers, whose products are exact. */
double eager_dot(const float *a, const float *b, int64_t count);
/* A row of B, of rank floats. */
void eager_list_widen_b(const eager_call *call, int64_t column, float *out);
/* Sorts the list of a row that is active and computes its raw scores. */
void eager_list_read(const eager_call *call, const eager_lists *lists, int64_t row, eager_list *out);

void eager_listed_forward(const eager_call *call, const eager_listed_memory *memory);
void eager_listed_backward(const eager_call *call, const eager_listed_memory *memory);

#endif
