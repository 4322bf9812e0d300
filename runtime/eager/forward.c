/* forward.c: scores of a panel of rows, column group by column group, folded into softmax statistics.
 *
 * source: the online softmax of arXiv:1805.02867, in double, with fixed groups that are merged left to right. */
#include "runtime/base/operands.h"
#include "runtime/base/util.h"
#include "runtime/eager/core.h"
#include "runtime/kernel/kernel.h"

typedef struct forward_job {
  const eager_call *call;
  const eager_forward_memory *memory;
  int64_t first, count; /* active rows of this panel */
  int64_t groups;
  int only_targets; /* the targets' scores and nothing else, of the tiles that have one */
} forward_job;

static int64_t group_count(const flp_spec *spec) {
  return flp_ceil_div(spec->vocab, (int64_t)EAGER_TILE_COLUMNS * EAGER_GROUP_TILES);
}

void eager_forward_carve(const flp_spec *spec, const eager_plan *plan, eager_block *block, eager_forward_memory *out) {
  uint64_t panel = (uint64_t)plan->panel_rows, depth = (uint64_t)spec->hidden, threads = (uint64_t)plan->threads;
  out->hidden = eager_block_take(block, panel * depth, sizeof(float));
  out->parts = eager_block_take(block, panel * (uint64_t)group_count(spec), sizeof(eager_partial));
  out->target = eager_block_take(block, panel * (uint64_t)flp_spec_targets(spec), sizeof(double));
  out->weight = eager_block_take(block, threads * EAGER_TILE_COLUMNS * depth, sizeof(float));
  out->scores = eager_block_take(block, threads * EAGER_TILE_ROWS * EAGER_TILE_COLUMNS, sizeof(float));
  out->bias = eager_block_take(block, threads * EAGER_TILE_COLUMNS, sizeof(float));
  eager_top_carve(spec, plan, block, &out->top);
  eager_lora_carve_forward(spec, plan, block, &out->lora);
}

/* One row's scores in one tile, t. */
static void read_tile(const eager_scale *scale, const float *scores, const float *bias, int64_t columns, double *t) {
  for (int64_t j = 0; j < columns; j++) t[j] = eager_score(scale, (double)scores[j] + (double)bias[j]);
}

/* Keeps the raw scores of the row's targets that this tile holds. */
static void take_targets(const forward_job *job, int64_t in_panel, int64_t column, int64_t columns, const float *scores,
                         const float *bias) {
  const eager_call *call = job->call;
  int64_t row = call->rows.index[job->first + in_panel], count = flp_spec_targets(call->spec);
  for (int64_t k = 0; k < count; k++) {
    int64_t target = eager_row_target(call->spec, call->args, row, k) - column;
    if (target >= 0 && target < columns)
      job->memory->target[in_panel * count + k] = (double)scores[target] + (double)bias[target];
  }
}

static void give_raw(const flp_args *args, int64_t row, int64_t column, int64_t columns, const float *scores,
                     const float *bias) {
  float *out = args->raw_scores ? args->raw_scores + row * args->raw_scores_stride + column : NULL;
  for (int64_t i = 0; out && i < columns; i++) out[i] = scores[i] + bias[i];
}

static void fold_tile_rows(const forward_job *job, int64_t group, int64_t column, int64_t subtile, int worker) {
  const eager_call *call = job->call;
  const eager_forward_memory *memory = job->memory;
  const float *scores = memory->scores + worker * EAGER_TILE_ROWS * EAGER_TILE_COLUMNS;
  const float *bias = memory->bias + worker * EAGER_TILE_COLUMNS;
  int64_t columns = flp_min(call->args->vocab_valid - column, EAGER_TILE_COLUMNS);
  for (int64_t i = 0; i < EAGER_TILE_ROWS; i++) {
    int64_t in_panel = subtile * EAGER_TILE_ROWS + i;
    if (in_panel >= job->count) return;
    int64_t row = call->rows.index[job->first + in_panel];
    eager_scale scale = eager_row_scale(call->spec, call->args, row);
    const float *row_scores = scores + i * EAGER_TILE_COLUMNS;
    take_targets(job, in_panel, column, columns, row_scores, bias);
    if (job->only_targets) continue;
    give_raw(call->args, row, column, columns, row_scores, bias);
    double t[EAGER_TILE_COLUMNS];
    read_tile(&scale, row_scores, bias, columns, t);
    eager_partial *part = &memory->parts[in_panel * job->groups + group];
    *part = eager_partial_merge(*part, eager_partial_of(t, columns));
    eager_top_add(call, &memory->top, worker, in_panel, column, t, columns);
  }
}

/* Whether a row of the subtile has its target in the tile from `column` on. */
static int has_target(const forward_job *job, int64_t column, int64_t subtile) {
  const eager_call *call = job->call;
  int64_t end = flp_min(job->count, (subtile + 1) * EAGER_TILE_ROWS);
  for (int64_t i = subtile * EAGER_TILE_ROWS; i < end; i++) {
    int64_t target = eager_row_target(call->spec, call->args, call->rows.index[job->first + i], 0) - column;
    if (target >= 0 && target < EAGER_TILE_COLUMNS) return 1;
  }
  return 0;
}

static int tile_has_target(const forward_job *job, int64_t column) {
  for (int64_t subtile = 0; subtile * EAGER_TILE_ROWS < job->count; subtile++)
    if (has_target(job, column, subtile)) return 1;
  return 0;
}

static void fold_group(void *context, int64_t group, int worker) {
  const forward_job *job = context;
  const eager_call *call = job->call;
  int64_t depth = call->spec->hidden, subtiles = flp_ceil_div(job->count, EAGER_TILE_ROWS);
  float *weight = job->memory->weight + worker * EAGER_TILE_COLUMNS * depth;
  float *scores = job->memory->scores + worker * EAGER_TILE_ROWS * EAGER_TILE_COLUMNS;
  float *bias = job->memory->bias + worker * EAGER_TILE_COLUMNS;
  const eager_lora *lora = &job->memory->lora;
  float *lora_b = lora->b + worker * EAGER_TILE_COLUMNS * lora->rank;
  for (int64_t i = 0; i < job->count && !job->only_targets; i++)
    job->memory->parts[i * job->groups + group] = (eager_partial){.maximum = -INFINITY};
  for (int64_t tile = group * EAGER_GROUP_TILES; tile < (group + 1) * EAGER_GROUP_TILES; tile++) {
    int64_t column = tile * EAGER_TILE_COLUMNS;
    if (column >= call->args->vocab_valid) return;
    if (job->only_targets && !tile_has_target(job, column)) continue;
    eager_widen_weight(call->spec, call->args, column, weight, bias);
    eager_lora_widen_b(call, lora, column, lora_b);
    for (int64_t subtile = 0; subtile < subtiles; subtile++) {
      if (job->only_targets && !has_target(job, column, subtile)) continue;
      eager_tile_scores(job->memory->hidden + subtile * EAGER_TILE_ROWS * depth, weight, depth, scores);
      eager_lora_add_scores(lora, subtile, lora_b, worker, scores);
      fold_tile_rows(job, group, column, subtile, worker);
    }
  }
}

static void widen_subtile(void *context, int64_t subtile, int worker) {
  const forward_job *job = context;
  const eager_call *call = job->call;
  int64_t begin = subtile * EAGER_TILE_ROWS, count = flp_min(job->count - begin, EAGER_TILE_ROWS);
  float *hidden = job->memory->hidden + begin * call->spec->hidden;
  eager_widen_hidden(call->spec, call->args, &call->rows, job->first + begin, count, hidden);
  eager_lora_project(call, &job->memory->lora, subtile, hidden, worker);
}

static void finish_row(void *context, int64_t in_panel, int worker) {
  (void)worker;
  const forward_job *job = context;
  const eager_call *call = job->call;
  const eager_partial *parts = job->memory->parts + in_panel * job->groups;
  int64_t row = call->rows.index[job->first + in_panel];
  eager_partial whole = parts[0];
  for (int64_t group = 1; group < job->groups; group++) whole = eager_partial_merge(whole, parts[group]);
  eager_scale scale = eager_row_scale(call->spec, call->args, row);
  const double *targets = job->memory->target + in_panel * flp_spec_targets(call->spec);
  if (call->args->partial) eager_partial_write(call, row, whole, targets);
  eager_row_finish(call, row, &scale, whole, targets);
  eager_top_finish(call, &job->memory->top, in_panel, row, whole);
  eager_statistics_write(call, row, whole, (double)call->args->vocab_valid,
                         eager_is_best(call, &scale, whole, targets));
}

/* A rank is counted against the target's own score, of the same product. */
static void find_targets(forward_job *job) {
  const eager_call *call = job->call;
  if (!eager_top_wants_rank(call->spec, call->args)) return;
  job->only_targets = 1;
  eager_team_run(call->team, job->groups, fold_group, job);
  job->only_targets = 0;
  for (int64_t i = 0; i < job->count; i++) {
    int64_t row = call->rows.index[job->first + i];
    eager_scale scale = eager_row_scale(call->spec, call->args, row);
    double own = job->memory->target[i];
    job->memory->top.target[i] =
        eager_top_target(call->args, row, own == -INFINITY ? own : eager_score(&scale, own));
  }
}

void eager_forward(const eager_call *call, const eager_forward_memory *memory) {
  int64_t panel = call->plan->panel_rows;
  eager_lora_begin(call, &memory->lora);
  for (int64_t first = 0; first < call->rows.count; first += panel) {
    forward_job job = {.call = call, .memory = memory, .first = first, .groups = group_count(call->spec)};
    job.count = flp_min(call->rows.count - first, panel);
    for (int64_t i = 0; i < job.count * flp_spec_targets(call->spec); i++) memory->target[i] = -INFINITY;
    eager_team_run(call->team, flp_ceil_div(job.count, EAGER_TILE_ROWS), widen_subtile, &job);
    find_targets(&job);
    eager_top_clear(call, &memory->top, job.count);
    eager_team_run(call->team, job.groups, fold_group, &job);
    eager_team_run(call->team, job.count, finish_row, &job);
  }
}
