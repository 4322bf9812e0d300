/* listed_backward.c: gradients of listed columns: those of the scores row by row, then sums of them.
 *
 * Invariants: dh of a row sums its columns in ascending order, dW and db of a column its rows in ascending order, in
 * double; each sum has one writer. A row that is bad, or whose stats hold NaN, is in no sum. */
#include <string.h>

#include "runtime/base/half.h"
#include "runtime/base/util.h"
#include "runtime/eager/core.h"

enum { COLUMN_BLOCK = 16 }; /* columns of the weight's gradient that one unit sums */

/* A matrix in memory. */
typedef struct matrix {
  flp_dtype dtype;
  void *base;
  int64_t stride, depth;
} matrix;

typedef struct listed_job {
  const eager_call *call;
  const eager_listed_memory *memory;
  int64_t depth_blocks;  /* blocks of EAGER_DEPTH_BLOCK columns of D */
  int64_t column_blocks; /* blocks of COLUMN_BLOCK columns of the vocabulary */
  matrix rows, to;       /* hidden and the gradient of weight, of an adapter u and that of B */
} listed_job;

static int holds_nan(const float *stats) {
  return isnan(stats[0]) || isnan(stats[1]) || isnan(stats[2]) || isnan(stats[3]);
}

/* G = dz·B of one row. */
static void sum_adapter(const eager_call *call, const eager_list *list, double *sums) {
  float b[FLP_LORA_RANK_MAX];
  for (int64_t i = 0; i < list->count; i++) {
    eager_list_widen_b(call, list->column[i], b);
    for (int64_t j = 0; j < call->spec->lora_rank; j++) sums[j] += list->value[i] * (double)b[j];
  }
}

/* Scores of one row, turned into their gradients. */
static void grad_row(void *context, int64_t active, int worker) {
  (void)worker;
  const listed_job *job = context;
  const eager_call *call = job->call;
  int64_t row = call->rows.index[active];
  eager_list list;
  int64_t rank = call->spec->lora_rank;
  double *sums = job->memory->sums ? job->memory->sums + active * rank : NULL;
  job->memory->length[active] = -1;
  if (sums) memset(sums, 0, (size_t)rank * sizeof *sums);
  if (holds_nan(call->args->stats + 4 * row)) return;
  eager_list_read(call, &job->memory->lists, row, &list);
  eager_record record = eager_record_make(call->spec, call->args, call->scores, list.count, row);
  for (int64_t i = 0; i < list.count; i++)
    list.value[i] = eager_grad_score(&record, list.value[i], i == list.target ? &record.grad_logprob : NULL);
  job->memory->length[active] = (int32_t)list.count;
  if (sums) sum_adapter(call, &list, sums);
}

/* Counting sort of all entries by column: start[c + 2] counts the entries of c; once these are summed up, start[c + 1]
 * is the next place of c, and in the end where c + 1 starts. */
static void order_by_column(const listed_job *job) {
  const eager_listed_memory *memory = job->memory;
  const eager_call *call = job->call;
  int32_t *start = memory->start;
  int64_t columns = call->args->vocab_valid;
  memset(start, 0, (size_t)(columns + 2) * sizeof *start);
  for (int64_t a = 0; a < call->rows.count; a++) {
    int64_t begin = call->args->list_offsets[call->rows.index[a]];
    for (int64_t i = 0; i < memory->length[a]; i++) start[memory->lists.column[begin + i] + 2]++;
  }
  for (int64_t c = 2; c < columns + 2; c++) start[c] += start[c - 1];
  for (int64_t a = 0; a < call->rows.count; a++) {
    int32_t row = call->rows.index[a];
    int64_t begin = call->args->list_offsets[row];
    for (int64_t i = 0; i < memory->length[a]; i++) {
      int32_t place = start[memory->lists.column[begin + i] + 1]++;
      memory->place_row[place] = row;
      memory->place_value[place] = memory->lists.value[begin + i];
    }
  }
}

/* ---- sums ---- */

/* One block of D of a gradient's row: a sum in double and what it is rounded to. */
typedef struct block {
  int64_t begin, width;
  double sums[EAGER_DEPTH_BLOCK];
  float values[EAGER_DEPTH_BLOCK];
} block;

static void block_start(block *b, int64_t index, int64_t depth) {
  b->begin = index * EAGER_DEPTH_BLOCK;
  b->width = flp_min(depth - b->begin, EAGER_DEPTH_BLOCK);
  memset(b->sums, 0, (size_t)b->width * sizeof *b->sums);
}

/* sums += factor · row of an operand */
static void block_add(block *b, const flp_spec *spec, flp_dtype stored, const void *operand, int64_t row,
                      int64_t stride, double factor) {
  eager_widen_part(spec, stored, operand, row * stride + b->begin, b->width, b->values);
  for (int64_t d = 0; d < b->width; d++) b->sums[d] += factor * (double)b->values[d];
}

static void block_round(block *b) {
  for (int64_t d = 0; d < b->width; d++) b->values[d] = (float)b->sums[d];
}

static char *element_of(void *base, flp_dtype dtype, int64_t at) {
  return (char *)base + at * flp_half_bytes(dtype);
}

static void sum_hidden(const listed_job *job, int64_t active, int64_t index) {
  const flp_spec *spec = job->call->spec;
  const flp_args *args = job->call->args;
  const eager_lists *lists = &job->memory->lists;
  int64_t row = job->call->rows.index[active], begin = args->list_offsets[row];
  int32_t count = job->memory->length[active];
  block b;
  block_start(&b, index, spec->hidden);
  for (int64_t d = 0; count < 0 && d < b.width; d++) b.sums[d] = NAN;
  for (int32_t i = 0; i < count; i++)
    block_add(&b, spec, spec->weight_dtype, args->weight, lists->column[begin + i], args->weight_stride,
              lists->value[begin + i]);
  for (int64_t j = 0; job->memory->sums && j < spec->lora_rank; j++)
    block_add(&b, spec, spec->dtype, args->lora_a, j, args->lora_a_stride,
              (double)args->lora_scale * job->memory->sums[active * spec->lora_rank + j]);
  block_round(&b);
  char *out = element_of(args->grad_hidden, spec->grad_hidden_dtype, row * args->grad_hidden_stride + b.begin);
  flp_half_narrow(spec->grad_hidden_dtype, b.values, b.width, out);
}

/* to[column] = Σ dz·rows of its entries. A column without becomes zeros; accumulated to, it stays as it is. */
static void sum_column(const listed_job *job, int64_t column, int64_t index) {
  const eager_listed_memory *memory = job->memory;
  const matrix *rows = &job->rows, *to = &job->to;
  int accumulates = job->call->spec->accumulate_grad_weight;
  int64_t first = memory->start[column], last = memory->start[column + 1];
  block b;
  block_start(&b, index, to->depth);
  char *out = element_of(to->base, to->dtype, column * to->stride + b.begin);
  if (first == last) {
    if (!accumulates) memset(out, 0, (size_t)(b.width * flp_half_bytes(to->dtype)));
    return;
  }
  for (int64_t place = first; place < last; place++)
    if (memory->place_value[place] != 0) /* the row may be no number where it adds nothing */
      block_add(&b, job->call->spec, rows->dtype, rows->base, memory->place_row[place], rows->stride,
                memory->place_value[place]);
  block_round(&b);
  if (!accumulates)
    flp_half_narrow(to->dtype, b.values, b.width, out);
  else
    for (int64_t d = 0; d < b.width; d++) ((float *)out)[d] += b.values[d];
}

/* One row of A, a block of D: s·Σ G·h over active rows. */
static void sum_lora_a(void *context, int64_t unit, int worker) {
  (void)worker;
  const listed_job *job = context;
  const flp_spec *spec = job->call->spec;
  const flp_args *args = job->call->args;
  int64_t j = unit / job->depth_blocks;
  block b;
  block_start(&b, unit % job->depth_blocks, spec->hidden);
  for (int64_t a = 0; a < job->call->rows.count; a++) {
    double sum = job->memory->sums[a * spec->lora_rank + j];
    if (sum != 0)
      block_add(&b, spec, spec->hidden_dtype, args->hidden, job->call->rows.index[a], args->hidden_stride,
                (double)args->lora_scale * sum);
  }
  block_round(&b);
  flp_half_narrow(spec->grad_lora_dtype, b.values, b.width,
                  element_of(args->grad_lora_a, spec->grad_lora_dtype, j * args->grad_lora_a_stride + b.begin));
}

static void sum_bias(const listed_job *job, int64_t column) {
  flp_dtype dtype = job->call->spec->grad_bias_dtype;
  double sum = 0;
  for (int64_t place = job->memory->start[column]; place < job->memory->start[column + 1]; place++)
    sum += job->memory->place_value[place];
  float value = (float)sum;
  flp_half_narrow(dtype, &value, 1, element_of(job->call->args->grad_bias, dtype, column));
}

static void sum_hidden_unit(void *context, int64_t unit, int worker) {
  (void)worker;
  const listed_job *job = context;
  sum_hidden(job, unit / job->depth_blocks, unit % job->depth_blocks);
}

static void sum_columns_unit(void *context, int64_t unit, int worker) {
  (void)worker;
  const listed_job *job = context;
  uint32_t grads = job->call->spec->grads;
  int64_t first = unit / job->depth_blocks * COLUMN_BLOCK, index = unit % job->depth_blocks;
  int64_t last = flp_min(first + COLUMN_BLOCK, job->call->args->vocab_valid);
  for (int64_t column = first; column < last; column++) {
    if (job->to.base && index * EAGER_DEPTH_BLOCK < job->to.depth) sum_column(job, column, index);
    if ((grads & FLP_GRAD_BIAS) && index == 0) sum_bias(job, column);
  }
}

void eager_listed_backward(const eager_call *call, const eager_listed_memory *memory) {
  listed_job job = {.call = call,
                    .memory = memory,
                    .depth_blocks = flp_ceil_div(call->spec->hidden, EAGER_DEPTH_BLOCK),
                    .column_blocks = flp_ceil_div(call->args->vocab_valid, COLUMN_BLOCK)};
  const flp_spec *spec = call->spec;
  const flp_args *args = call->args;
  uint32_t grads = spec->grads;
  job.rows = (matrix){spec->hidden_dtype, (void *)(uintptr_t)args->hidden, args->hidden_stride, spec->hidden};
  job.to = (matrix){spec->grad_weight_dtype, args->grad_weight, args->grad_weight_stride, spec->hidden};
  if (spec->lora_rank) {
    job.rows = (matrix){FLP_DTYPE_FP32, memory->lists.u, spec->lora_rank, spec->lora_rank};
    job.to = (matrix){spec->grad_lora_dtype, args->grad_lora_b, args->grad_lora_b_stride, spec->lora_rank};
  }
  eager_team_run(call->team, call->rows.count, grad_row, &job);
  if (grads & FLP_GRAD_HIDDEN) eager_team_run(call->team, call->rows.count * job.depth_blocks, sum_hidden_unit, &job);
  if (grads & FLP_GRAD_LORA_A) eager_team_run(call->team, spec->lora_rank * job.depth_blocks, sum_lora_a, &job);
  if (!(grads & EAGER_LISTED_BY_COLUMN)) return;
  order_by_column(&job);
  eager_team_run(call->team, job.column_blocks * job.depth_blocks, sum_columns_unit, &job);
}
