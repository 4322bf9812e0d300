/* backward.c: gradients from recomputed scores, by chunks of columns and panels of rows.
 *
 * With w = t - lse in log2 units, p = 2^w, g and e the upstream gradients and H the entropy:
 *   dt = p·(alpha + beta·w), alpha = -g - e·H, beta = -e·ln 2; at the target
 *   dt_y = -g·expm1(w_y·ln 2) - e·p_y·(w_y·ln 2 + H);   dx = dt·(dt/dx).
 * Where args has dx, dx is that, and no score is computed.
 * Of several targets g is the sum, and where some of them are y, which have g_y,
 *   dt_y = -g_y·expm1(w_y·ln 2) - (g - g_y)·p_y - e·p_y·(w_y·ln 2 + H).
 * Invariants: dh of a row sums its columns tile by tile, dW and db of a column sum their rows tile by tile, both in
 * ascending order whatever the chunks; each sum has one writer. */
#include <string.h>

#include "runtime/base/half.h"
#include "runtime/base/operands.h"
#include "runtime/base/util.h"
#include "runtime/eager/core.h"

static const double ln_2 = 0.69314718055994530942;

typedef struct backward_job {
  const eager_call *call;
  const eager_backward_memory *memory;
  int hidden, weight, bias; /* gradients that this sweep computes */
  int sums, lora_b;         /* and of an adapter: G and what follows from it, that of B */
  int64_t first, count;     /* active rows of the panel */
  int64_t column, columns;  /* columns of the chunk */
  int64_t row_tiles, tiles; /* tiles of the panel and of the chunk */
  int64_t depth_blocks;     /* blocks of EAGER_DEPTH_BLOCK columns of a gradient */
  float *grad_hidden;       /* accumulator of the panel's first row */
  float *lora_sums;         /* G of the panel's first row */
} backward_job;

void eager_backward_carve(const flp_spec *spec, const eager_plan *plan, int64_t n, eager_block *block,
                          eager_backward_memory *out) {
  uint64_t panel = (uint64_t)plan->panel_rows, chunk = (uint64_t)plan->chunk_columns, depth = (uint64_t)spec->hidden;
  uint64_t all = (uint64_t)flp_round_up(n, EAGER_TILE_ROWS);
  *out = (eager_backward_memory){0};
  out->hidden = eager_block_take(block, panel * depth, sizeof(float));
  out->weight = eager_block_take(block, chunk * depth, sizeof(float));
  out->bias = eager_block_take(block, chunk, sizeof(float));
  out->dz = eager_block_take(block, panel * chunk, sizeof(float));
  out->records = eager_block_take(block, panel, sizeof(eager_record));
  if (spec->grads & FLP_GRAD_HIDDEN) {
    uint64_t rows = plan->mode == FLP_MODE_RECOMPUTE_VOCAB ? all : panel;
    out->grad_hidden = eager_block_take(block, rows, depth * sizeof(float));
  }
  if (spec->grads & FLP_GRAD_WEIGHT) out->grad_weight = eager_block_take(block, chunk * depth, sizeof(float));
  if (spec->grads & FLP_GRAD_BIAS) out->grad_bias = eager_block_take(block, chunk, sizeof(double));
  eager_lora_carve_backward(spec, plan, n, block, &out->lora);
}

eager_record eager_record_make(const flp_spec *spec, const flp_args *args, const eager_scores *scores, int64_t columns,
                               int64_t row) {
  const float *stats = args->stats + 4 * row;
  double g = eager_grad_target(spec, args, row, 0);
  for (int64_t k = 1; k < flp_spec_targets(spec); k++) g += eager_grad_target(spec, args, row, k);
  double e = args->grad_entropy && spec->entropy == FLP_ENTROPY_BACKWARD ? (double)args->grad_entropy[row] : 0;
  double entropy = e != 0 ? (double)stats[3] : 0, by_lse = scores ? (double)scores->grad_lse[row] : 0;
  return (eager_record){.scale = eager_row_scale(spec, args, row),
                        .maximum = (double)stats[0],
                        .log_sum = (double)stats[1],
                        .alpha = by_lse - g - e * entropy,
                        .beta = -e * ln_2,
                        .entropy = entropy,
                        .grad_logprob = g,
                        .grad_entropy = e,
                        .grad_lse = by_lse,
                        .each = scores ? (double)scores->grad_mean[row] / (double)columns : 0,
                        .row = row};
}

/* Where p is 0, so is p·w, and slope·0 even where the slope is unbounded. */
double eager_grad_score(const eager_record *record, double x, const double *own) {
  double w = (eager_score(&record->scale, x) - record->maximum) - record->log_sum;
  double p = exp2(w), dt;
  if (own) {
    double others = record->grad_logprob - *own;
    double entropy_part = p == 0 ? 0 : record->grad_entropy * p * (w * ln_2 + record->entropy);
    dt = -*own * expm1(w * ln_2) - entropy_part;
    if (others != 0 && p != 0) dt -= others * p;
    if (record->grad_lse != 0 && p != 0) dt += record->grad_lse * p;
  } else {
    dt = p == 0 ? 0 : p * (record->alpha + record->beta * w);
    if (p == 0 && record->each == 0) return 0;
  }
  if (record->each != 0) dt += record->each;
  return dt * eager_score_slope(&record->scale, x);
}

static void widen_rows(void *context, int64_t tile, int worker) {
  const backward_job *job = context;
  const eager_call *call = job->call;
  int64_t begin = tile * EAGER_TILE_ROWS, count = flp_min(job->count - begin, EAGER_TILE_ROWS);
  float *hidden = job->memory->hidden + begin * call->spec->hidden;
  eager_widen_hidden(call->spec, call->args, &call->rows, job->first + begin, count, hidden);
  eager_lora_project(call, &job->memory->lora, tile, hidden, worker);
  for (int64_t i = begin; i < begin + count && !call->args->grad_raw_scores; i++)
    job->memory->records[i] = eager_record_make(call->spec, call->args, call->scores, call->args->vocab_valid,
                                                call->rows.index[job->first + i]);
}

static void widen_columns(void *context, int64_t tile, int worker) {
  (void)worker;
  const backward_job *job = context;
  int64_t begin = tile * EAGER_TILE_COLUMNS;
  eager_widen_weight(job->call->spec, job->call->args, job->column + begin,
                     job->memory->weight + begin * job->call->spec->hidden, job->memory->bias + begin);
  const eager_lora *lora = &job->memory->lora;
  eager_lora_widen_b(job->call, lora, job->column + begin, lora->b + begin * lora->rank);
}

static float *dz_tile(const backward_job *job, int64_t row_tile, int64_t tile) {
  return job->memory->dz + (row_tile * job->tiles + tile) * EAGER_TILE_ROWS * EAGER_TILE_COLUMNS;
}

/* By column of a tile, what the targets that it holds are asked for. */
typedef struct tile_targets {
  uint8_t has[EAGER_TILE_COLUMNS];
  double own[EAGER_TILE_COLUMNS];
} tile_targets;

static void find_targets(const eager_call *call, int64_t row, int64_t first_column, int64_t columns,
                         tile_targets *out) {
  memset(out->has, 0, sizeof out->has);
  for (int64_t k = 0; k < flp_spec_targets(call->spec); k++) {
    int64_t at = eager_row_target(call->spec, call->args, row, k) - first_column;
    if (at < 0 || at >= columns) continue;
    double own = eager_grad_target(call->spec, call->args, row, k);
    out->own[at] = out->has[at] ? out->own[at] + own : own;
    out->has[at] = 1;
  }
}

static void grad_tile_row(const backward_job *job, const eager_record *record, int64_t tile, float *scores) {
  const float *bias = job->memory->bias + tile * EAGER_TILE_COLUMNS;
  int64_t columns = flp_min(job->columns - tile * EAGER_TILE_COLUMNS, EAGER_TILE_COLUMNS);
  tile_targets targets;
  find_targets(job->call, record->row, job->column + tile * EAGER_TILE_COLUMNS, columns, &targets);
  for (int64_t j = 0; j < columns; j++) {
    const double *own = targets.has[j] ? &targets.own[j] : NULL;
    scores[j] = (float)eager_grad_score(record, (double)scores[j] + (double)bias[j], own);
  }
  for (int64_t j = columns; j < EAGER_TILE_COLUMNS; j++) scores[j] = 0;
}

/* The same of what the caller has. row: of the panel */
static void given_tile_row(const backward_job *job, int64_t row, int64_t tile, float *dz) {
  const flp_spec *spec = job->call->spec;
  const flp_args *args = job->call->args;
  int64_t column = tile * EAGER_TILE_COLUMNS, columns = flp_min(job->columns - column, EAGER_TILE_COLUMNS);
  int64_t at = (job->first + row) * args->grad_raw_scores_stride + job->column + column;
  flp_half_widen(spec->dtype, (const char *)args->grad_raw_scores + at * flp_half_bytes(spec->dtype), columns, dz);
  for (int64_t j = columns; j < EAGER_TILE_COLUMNS; j++) dz[j] = 0;
}

/* Scores of one tile, turned into their gradients in place; rows and columns of padding become 0. */
static void grad_tile(void *context, int64_t unit, int worker) {
  const backward_job *job = context;
  const eager_backward_memory *memory = job->memory;
  int64_t row_tile = unit / job->tiles, tile = unit % job->tiles, depth = job->call->spec->hidden;
  int64_t first = row_tile * EAGER_TILE_ROWS, rows = flp_min(job->count - first, EAGER_TILE_ROWS);
  float *dz = dz_tile(job, row_tile, tile);
  const eager_lora *lora = &memory->lora;
  int is_given = job->call->args->grad_raw_scores != NULL;
  if (!is_given) {
    eager_tile_scores(memory->hidden + first * depth, memory->weight + tile * EAGER_TILE_COLUMNS * depth, depth, dz);
    eager_lora_add_scores(lora, row_tile, lora->b + tile * EAGER_TILE_COLUMNS * lora->rank, worker, dz);
  }
  for (int64_t i = 0; i < rows; i++) {
    float *of_row = dz + i * EAGER_TILE_COLUMNS;
    if (is_given)
      given_tile_row(job, first + i, tile, of_row);
    else
      grad_tile_row(job, &memory->records[first + i], tile, of_row);
  }
  memset(dz + rows * EAGER_TILE_COLUMNS, 0, (size_t)((EAGER_TILE_ROWS - rows) * EAGER_TILE_COLUMNS) * sizeof *dz);
}

static int block_width(const backward_job *job, int64_t block) {
  return (int)flp_min(job->call->spec->hidden - block * EAGER_DEPTH_BLOCK, EAGER_DEPTH_BLOCK);
}

/* dh of a row tile += Σ over the chunk's column tiles. */
static void add_grad_hidden(const backward_job *job, int64_t row_tile, int64_t block) {
  int64_t depth = job->call->spec->hidden, begin = block * EAGER_DEPTH_BLOCK;
  for (int64_t tile = 0; tile < job->tiles; tile++)
    eager_tile_add(EAGER_GRAD_HIDDEN, dz_tile(job, row_tile, tile), EAGER_TILE_COLUMNS,
                   job->memory->weight + tile * EAGER_TILE_COLUMNS * depth + begin, depth, block_width(job, block),
                   job->grad_hidden + row_tile * EAGER_TILE_ROWS * depth + begin, depth);
}

/* dW of a column tile += Σ over the panel's row tiles. */
static void add_grad_weight(const backward_job *job, int64_t tile, int64_t block) {
  int64_t depth = job->call->spec->hidden, begin = block * EAGER_DEPTH_BLOCK;
  for (int64_t row_tile = 0; row_tile < job->row_tiles; row_tile++)
    eager_tile_add(EAGER_GRAD_WEIGHT, dz_tile(job, row_tile, tile), EAGER_TILE_COLUMNS,
                   job->memory->hidden + row_tile * EAGER_TILE_ROWS * depth + begin, depth, block_width(job, block),
                   job->memory->grad_weight + tile * EAGER_TILE_COLUMNS * depth + begin, depth);
}

static void add_grad_bias(const backward_job *job, int64_t tile) {
  double *sums = job->memory->grad_bias + tile * EAGER_TILE_COLUMNS;
  for (int64_t i = 0; i < job->count; i++) {
    const float *dz = dz_tile(job, i / EAGER_TILE_ROWS, tile) + (i % EAGER_TILE_ROWS) * EAGER_TILE_COLUMNS;
    for (int64_t j = 0; j < EAGER_TILE_COLUMNS; j++) sums[j] += (double)dz[j];
  }
}

static void add_lora_sums(const backward_job *job, int64_t row_tile) {
  const eager_lora *lora = &job->memory->lora;
  for (int64_t tile = 0; tile < job->tiles; tile++)
    eager_lora_add_sums(lora, dz_tile(job, row_tile, tile), lora->b + tile * EAGER_TILE_COLUMNS * lora->rank,
                        job->lora_sums + row_tile * EAGER_TILE_ROWS * lora->padded);
}

static void add_grad_lora_b(const backward_job *job, int64_t tile) {
  for (int64_t row_tile = 0; row_tile < job->row_tiles; row_tile++)
    eager_lora_add_grad_b(&job->memory->lora, dz_tile(job, row_tile, tile), row_tile, tile);
}

static int64_t units_of(int wanted, int64_t units) {
  return wanted ? units : 0;
}

/* Units: (row tile, block) of dh, then (column tile, block) of dW, then row tiles of G, column tiles of dB and db. */
static void add_product(void *context, int64_t unit, int worker) {
  (void)worker;
  const backward_job *job = context;
  int64_t blocks = job->depth_blocks, hidden_units = units_of(job->hidden, job->row_tiles * blocks);
  int64_t weight_units = units_of(job->weight, job->tiles * blocks), sums_units = units_of(job->sums, job->row_tiles);
  int64_t lora_units = units_of(job->lora_b, job->tiles);
  if (unit < hidden_units) return add_grad_hidden(job, unit / blocks, unit % blocks);
  unit -= hidden_units;
  if (unit < weight_units) return add_grad_weight(job, unit / blocks, unit % blocks);
  unit -= weight_units;
  if (unit < sums_units) return add_lora_sums(job, unit);
  unit -= sums_units;
  if (unit < lora_units) return add_grad_lora_b(job, unit);
  add_grad_bias(job, unit - lora_units);
}

static void set_panel(backward_job *job, int64_t first) {
  const eager_call *call = job->call;
  job->first = first;
  job->count = flp_min(call->rows.count - first, call->plan->panel_rows);
  job->row_tiles = flp_ceil_div(job->count, EAGER_TILE_ROWS);
  eager_team_run(call->team, job->row_tiles, widen_rows, job);
}

static void set_chunk(backward_job *job, int64_t column) {
  const eager_call *call = job->call;
  job->column = column;
  job->columns = flp_min(call->args->vocab_valid - column, call->plan->chunk_columns);
  job->tiles = flp_ceil_div(job->columns, EAGER_TILE_COLUMNS);
  eager_team_run(call->team, job->tiles, widen_columns, job);
}

static void add_products(backward_job *job) {
  eager_team *team = job->call->team;
  eager_team_run(team, job->row_tiles * job->tiles, grad_tile, job);
  int64_t units = units_of(job->hidden, job->row_tiles * job->depth_blocks) +
                  units_of(job->weight, job->tiles * job->depth_blocks) + units_of(job->sums, job->row_tiles) +
                  units_of(job->lora_b, job->tiles) + units_of(job->bias, job->tiles);
  eager_team_run(team, units, add_product, job);
}

static void scale_sums(void *context, int64_t row_tile, int worker) {
  (void)worker;
  const backward_job *job = context;
  const eager_lora *lora = &job->memory->lora;
  eager_lora_scale_sums(job->call, lora, job->lora_sums + row_tile * EAGER_TILE_ROWS * lora->padded);
}

/* Units: (row tile, block) of dh += G·A, then (tile of A's rows, block) of dA += Gᵀ·h. */
static void add_from_sums(void *context, int64_t unit, int worker) {
  (void)worker;
  const backward_job *job = context;
  const eager_lora *lora = &job->memory->lora;
  int64_t depth = job->call->spec->hidden, hidden_units = units_of(job->hidden, job->row_tiles * job->depth_blocks);
  int64_t inside = unit < hidden_units ? unit : unit - hidden_units;
  int64_t tile = inside / job->depth_blocks, block = inside % job->depth_blocks, begin = block * EAGER_DEPTH_BLOCK;
  if (unit < hidden_units) {
    int64_t row = tile * EAGER_TILE_ROWS;
    eager_lora_add_grad_hidden(job->call, lora, job->lora_sums + row * lora->padded, begin, block_width(job, block),
                               job->grad_hidden + row * depth + begin);
    return;
  }
  for (int64_t row = 0; row < job->row_tiles * EAGER_TILE_ROWS; row += EAGER_TILE_ROWS)
    eager_lora_add_grad_a(job->call, lora, job->lora_sums + row * lora->padded, job->memory->hidden + row * depth,
                          tile * EAGER_TILE_COLUMNS, begin, block_width(job, block));
}

/* What follows from G of a panel, when it is whole. */
static void finish_sums(backward_job *job) {
  const eager_lora *lora = &job->memory->lora;
  if (!job->sums) return;
  eager_team_run(job->call->team, job->row_tiles, scale_sums, job);
  int64_t units = units_of(job->hidden, job->row_tiles * job->depth_blocks) +
                  units_of(lora->grad_a != NULL, lora->padded / EAGER_TILE_COLUMNS * job->depth_blocks);
  eager_team_run(job->call->team, units, add_from_sums, job);
}

static void clear_sums(const backward_job *job, int64_t rows) {
  const eager_lora *lora = &job->memory->lora;
  if (job->sums) memset(lora->sums, 0, (size_t)(rows * lora->padded) * sizeof(float));
}

static void write_grad_hidden(const backward_job *job) {
  const flp_spec *spec = job->call->spec;
  const flp_args *args = job->call->args;
  for (int64_t i = 0; i < job->count; i++) {
    int64_t row = job->call->rows.index[job->first + i];
    char *out = (char *)args->grad_hidden + row * args->grad_hidden_stride * flp_half_bytes(spec->grad_hidden_dtype);
    flp_half_narrow(spec->grad_hidden_dtype, job->grad_hidden + i * spec->hidden, spec->hidden, out);
  }
}

static void write_grad_weight(void *context, int64_t column, int worker) {
  (void)worker;
  const backward_job *job = context;
  const flp_spec *spec = job->call->spec;
  const flp_args *args = job->call->args;
  float *sum = job->memory->grad_weight + column * spec->hidden;
  int64_t row = job->column + column;
  char *out = (char *)args->grad_weight + row * args->grad_weight_stride * flp_half_bytes(spec->grad_weight_dtype);
  float *between = args->sums ? (float *)args->sums + row * spec->hidden : (float *)out;
  if (spec->accumulate_grad_weight || (args->sums_bits & FLP_SUMS_CONTINUE))
    for (int64_t d = 0; d < spec->hidden; d++) sum[d] += between[d];
  if (args->sums_bits & FLP_SUMS_LEAVE)
    memcpy(between, sum, (size_t)spec->hidden * sizeof *sum);
  else
    flp_half_narrow(spec->grad_weight_dtype, sum, spec->hidden, out);
}

static void write_grad_bias(const backward_job *job) {
  flp_dtype dtype = job->call->spec->grad_bias_dtype;
  char *out = (char *)job->call->args->grad_bias + job->column * flp_half_bytes(dtype);
  for (int64_t j = 0; j < job->columns; j++) {
    float sum = (float)job->memory->grad_bias[j];
    flp_half_narrow(dtype, &sum, 1, out + j * flp_half_bytes(dtype));
  }
}

/* dh and what follows from G alone: rows outside, so that one panel of sums is enough. */
static void sweep_rows(backward_job *job) {
  const eager_call *call = job->call;
  for (int64_t first = 0; first < call->rows.count; first += call->plan->panel_rows) {
    set_panel(job, first);
    int64_t rows = job->row_tiles * EAGER_TILE_ROWS;
    job->grad_hidden = job->memory->grad_hidden;
    job->lora_sums = job->memory->lora.sums;
    if (job->hidden) memset(job->grad_hidden, 0, (size_t)(rows * call->spec->hidden) * sizeof(float));
    clear_sums(job, rows);
    for (int64_t column = 0; column < call->args->vocab_valid; column += call->plan->chunk_columns) {
      set_chunk(job, column);
      add_products(job);
    }
    finish_sums(job);
    if (job->hidden) write_grad_hidden(job);
  }
}

static void clear_chunk(const backward_job *job) {
  size_t columns = (size_t)(job->tiles * EAGER_TILE_COLUMNS);
  if (job->weight) memset(job->memory->grad_weight, 0, columns * (size_t)job->call->spec->hidden * sizeof(float));
  if (job->bias) memset(job->memory->grad_bias, 0, columns * sizeof(double));
  const eager_lora *lora = &job->memory->lora;
  if (job->lora_b) memset(lora->grad_b, 0, columns * (size_t)lora->rank * sizeof(float));
}

/* dW and db, and with them dh if all of its rows fit: columns outside, so that one chunk of sums is enough. */
static void sweep_columns(backward_job *job) {
  const eager_call *call = job->call;
  int64_t depth = call->spec->hidden, padded = flp_round_up(call->rows.count, EAGER_TILE_ROWS);
  if (job->hidden) memset(job->memory->grad_hidden, 0, (size_t)(padded * depth) * sizeof(float));
  clear_sums(job, padded);
  for (int64_t column = 0; column < call->args->vocab_valid; column += call->plan->chunk_columns) {
    set_chunk(job, column);
    clear_chunk(job);
    int last = column + call->plan->chunk_columns >= call->args->vocab_valid;
    for (int64_t first = 0; first < call->rows.count; first += call->plan->panel_rows) {
      set_panel(job, first);
      if (job->hidden) job->grad_hidden = job->memory->grad_hidden + first * depth;
      if (job->sums) job->lora_sums = job->memory->lora.sums + first * job->memory->lora.padded;
      add_products(job);
      if (last) finish_sums(job);
      if (job->hidden && last) write_grad_hidden(job);
    }
    if (job->weight) eager_team_run(call->team, job->columns, write_grad_weight, job);
    if (job->bias) write_grad_bias(job);
    if (job->lora_b) eager_lora_write_grad_b(call, &job->memory->lora, job->column, job->columns);
  }
}

void eager_backward(const eager_call *call, const eager_backward_memory *memory) {
  const flp_spec *spec = call->spec;
  backward_job job = {.call = call,
                      .memory = memory,
                      .depth_blocks = flp_ceil_div(spec->hidden, EAGER_DEPTH_BLOCK),
                      .hidden = (spec->grads & FLP_GRAD_HIDDEN) != 0,
                      .weight = (spec->grads & FLP_GRAD_WEIGHT) != 0,
                      .bias = (spec->grads & FLP_GRAD_BIAS) != 0,
                      .sums = eager_lora_wants_sums(spec),
                      .lora_b = (spec->grads & FLP_GRAD_LORA_B) != 0};
  eager_lora_begin(call, &memory->lora);
  if (call->plan->mode == FLP_MODE_RECOMPUTE_VOCAB) {
    sweep_columns(&job);
  } else {
    backward_job head = job;
    job.weight = job.bias = job.lora_b = 0;
    head.hidden = head.sums = 0;
    if (job.hidden || job.sums) sweep_rows(&job);
    if (head.weight || head.bias || head.lora_b) sweep_columns(&head);
  }
  eager_lora_write_grad_a(call, &memory->lora);
}
