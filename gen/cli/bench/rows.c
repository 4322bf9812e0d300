/* rows.c: makes the operands of `--data policy|text|base`: a weight of unit rows, hidden states whose rows have the
 * entropies that were drawn for them, and targets.
 *
 * Each row's number is bisected. A step is one forward pass over all rows, on the device that is measured, of hidden
 * states that the host mixes and rounds. */
#include "gen/cli/bench/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/normal.h"
#include "gen/cli/kernels/parallel.h"
#include "runtime/base/half.h"
#include "runtime/base/operands.h"

/* Steps of a bisection: the interval of 3 ends at 7e-7. Rows that one thread makes at a time; elements of a weight that
 * are uploaded at a time. */
enum { STEPS = 22, ROWS_OF_JOB = 16, BLOCK = 1 << 24 };

/* Streams of random numbers of one seed. */
enum { STREAM_CHANCE, STREAM_SHUFFLE, STREAM_FAVOURED, STREAM_ENTROPY, STREAM_TARGET };

static uint64_t stream_of(uint64_t seed, int which) {
  return cli_hash(cli_hash(seed) + (uint64_t)which);
}

static size_t jobs_of(int64_t rows) {
  return (size_t)((rows + ROWS_OF_JOB - 1) / ROWS_OF_JOB);
}

static int64_t end_of_job(int64_t rows, size_t job) {
  int64_t end = ((int64_t)job + 1) * ROWS_OF_JOB;
  return end < rows ? end : rows;
}

/* ---- the weight ---- */

typedef struct unit_rows {
  const cli_normal *normal; /* fp32 */
  flp_dtype dtype;
  int64_t first, count, depth; /* rows */
  char *block;
} unit_rows;

static flp_status fill_unit_rows(void *context, size_t job) {
  const unit_rows *whole = context;
  int64_t depth = whole->depth;
  float *row = malloc((size_t)depth * sizeof *row);
  if (!row) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the weight");
  for (int64_t r = (int64_t)job * ROWS_OF_JOB; r < end_of_job(whole->count, job); r++) {
    double squares = 0;
    cli_normal_fill(whole->normal, (whole->first + r) * depth, depth, row);
    for (int64_t i = 0; i < depth; i++) squares += (double)row[i] * (double)row[i];
    float factor = (float)(1 / sqrt(squares));
    for (int64_t i = 0; i < depth; i++) row[i] *= factor;
    flp_half_narrow(whole->dtype, row, depth, whole->block + r * depth * flp_half_bytes(whole->dtype));
  }
  free(row);
  return FLP_OK;
}

static flp_status upload_unit_rows(const call_problem *call, const cli_normal *normal, cli_buffer *buffer) {
  int64_t vocab = call->spec.vocab, depth = call->spec.hidden, rows = BLOCK / depth;
  size_t row_bytes = (size_t)(depth * flp_half_bytes(flp_weight_dtype(&call->spec)));
  if (rows > vocab) rows = vocab;
  char *block = malloc((size_t)rows * row_bytes);
  if (!block) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the weight");
  flp_status status = FLP_OK;
  for (int64_t first = 0; first < vocab && status == FLP_OK; first += rows) {
    int64_t some = vocab - first < rows ? vocab - first : rows;
    unit_rows whole = {normal, flp_weight_dtype(&call->spec), first, some, depth, block};
    status = cli_parallel(fill_unit_rows, &whole, jobs_of(some), NULL);
    if (status == FLP_OK)
      status = cli_buffer_upload(buffer, (size_t)first * row_bytes, block, (size_t)some * row_bytes);
  }
  free(block);
  return status;
}

flp_status rows_make_weight(const call_problem *call, uint64_t seed, call_buffers *buffers) {
  cli_normal normal;
  FLP_TRY(call_make(buffers, FLP_ARRAY_weight, call_bytes(call, FLP_ARRAY_weight)));
  FLP_TRY(cli_normal_create(FLP_DTYPE_FP32, 1.0, seed, &normal));
  flp_status status = upload_unit_rows(call, &normal, &buffers->at[FLP_ARRAY_weight].buffer);
  cli_normal_destroy(&normal);
  return status;
}

/* ---- the rows ---- */

void rows_order(const rows_request *request, int64_t *out) {
  rows_shuffle(stream_of(request->seed, STREAM_SHUFFLE), request->call->spec.vocab, out);
}

void rows_favourites(const rows_request *request, int64_t row, const int64_t *order, int64_t *out) {
  rows_favour(stream_of(request->seed, STREAM_FAVOURED), row, order, request->call->spec.vocab, out);
}

typedef struct making {
  const rows_request *request;
  call_buffers *buffers;
  rows_plan plan;
  cli_normal chance;
  char *weight, *bias, *hidden; /* host, dtype; bias NULL for none */
  float *temperature;           /* (n) or NULL */
  int64_t *shuffled;            /* (V) */
  float *parts;                 /* (n, ROWS_PARTS, D) */
  double *low, *high, *number;  /* (n) of the bisections */
} making;

static const flp_spec *spec_of(const making *m) {
  return &m->request->call->spec;
}

static uint64_t stream(const making *m, int which) {
  return stream_of(m->request->seed, which);
}

/* What an array holds; *out stays NULL if that is nothing. */
static flp_status take(const making *m, flp_array_id id, void *out) {
  const cli_buffer *buffer = &m->buffers->at[id].buffer;
  if (!buffer->data) return FLP_OK;
  void *copy = malloc(buffer->bytes);
  if (!copy) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for rows: %zu bytes were asked for", buffer->bytes);
  memcpy(out, &copy, sizeof copy);
  return cli_buffer_download(buffer, 0, copy, buffer->bytes);
}

static flp_status allocate(making *m) {
  size_t n = (size_t)m->request->call->n, depth = (size_t)spec_of(m)->hidden;
  m->hidden = malloc(call_bytes(m->request->call, FLP_ARRAY_hidden) + 1);
  m->shuffled = malloc((size_t)spec_of(m)->vocab * sizeof *m->shuffled);
  m->parts = malloc(n * ROWS_PARTS * depth * sizeof *m->parts + 1);
  m->low = malloc(3 * n * sizeof *m->low + 1);
  if (!m->hidden || !m->shuffled || !m->parts || !m->low)
    return flp_fail(FLP_ERROR_MEMORY, "out of host memory for %zu rows: they take %zu bytes of it; fewer --rows do", n,
                    n * depth * (ROWS_PARTS * sizeof(float) + (size_t)flp_half_bytes(spec_of(m)->dtype)));
  m->high = m->low + n;
  m->number = m->high + n;
  return FLP_OK;
}

static flp_status prepare(making *m) {
  const call_problem *call = m->request->call;
  FLP_TRY(allocate(m));
  FLP_TRY(call_make(m->buffers, FLP_ARRAY_hidden, call_bytes(call, FLP_ARRAY_hidden)));
  FLP_TRY(take(m, FLP_ARRAY_weight, &m->weight));
  FLP_TRY(take(m, FLP_ARRAY_bias, &m->bias));
  FLP_TRY(take(m, FLP_ARRAY_temperature_rows, &m->temperature));
  FLP_TRY(cli_normal_create(FLP_DTYPE_FP32, ROWS_SIGMA, stream(m, STREAM_CHANCE), &m->chance));
  rows_order(m->request, m->shuffled);
  for (int64_t row = 0; row < call->n; row++) {
    m->low[row] = ROWS_LEAST;
    m->high[row] = ROWS_MOST;
  }
  return rows_plan_create(m->request, m->buffers, &m->plan);
}

/* values: (D) to work in */
static void make_parts(const making *m, int64_t row, rows_columns *columns, float *values) {
  const flp_spec *spec = spec_of(m);
  int64_t favoured[ROWS_FAVOURED], row_bytes = spec->hidden * flp_half_bytes(flp_weight_dtype(spec));
  rows_favourites(m->request, row, m->shuffled, favoured);
  for (int k = 0; k < columns->count; k++) {
    flp_half_widen(flp_weight_dtype(spec), m->weight + favoured[k] * row_bytes, spec->hidden, values);
    rows_columns_set(columns, k, values);
  }
  cli_normal_fill(&m->chance, row * spec->hidden, spec->hidden, values);
  rows_parts(columns, values, m->parts + row * ROWS_PARTS * spec->hidden);
}

static flp_status parts_job(void *context, size_t job) {
  const making *m = context;
  rows_columns columns;
  float *values = malloc((size_t)spec_of(m)->hidden * sizeof *values);
  flp_status status = rows_columns_create(rows_favoured(spec_of(m)->vocab), spec_of(m)->hidden, &columns);
  if (status == FLP_OK && !values) status = flp_fail(FLP_ERROR_MEMORY, "out of host memory for the columns of a row");
  for (int64_t row = (int64_t)job * ROWS_OF_JOB; status == FLP_OK && row < end_of_job(m->request->call->n, job); row++)
    make_parts(m, row, &columns, values);
  rows_columns_destroy(&columns);
  free(values);
  return status;
}

static flp_status mix_job(void *context, size_t job) {
  const making *m = context;
  const flp_spec *spec = spec_of(m);
  double scale = m->request->call->scale;
  float *values = malloc((size_t)spec->hidden * sizeof *values);
  if (!values) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for hidden states");
  for (int64_t row = (int64_t)job * ROWS_OF_JOB; row < end_of_job(m->request->call->n, job); row++) {
    const float *parts = m->parts + row * ROWS_PARTS * spec->hidden;
    rows_mix(parts, spec->hidden, m->number[row], scale != 0 ? scale : 1, values);
    flp_dtype dtype = flp_hidden_dtype(spec);
    flp_half_narrow(dtype, values, spec->hidden, m->hidden + row * spec->hidden * flp_half_bytes(dtype));
  }
  free(values);
  return FLP_OK;
}

/* Hidden states of the middle of each row's interval, and their entropies. */
static flp_status evaluate(making *m, float *entropy) {
  const call_problem *call = m->request->call;
  for (int64_t row = 0; row < call->n; row++) m->number[row] = (m->low[row] + m->high[row]) / 2;
  FLP_TRY(cli_parallel(mix_job, m, jobs_of(call->n), NULL));
  FLP_TRY(
      cli_buffer_upload(&m->buffers->at[FLP_ARRAY_hidden].buffer, 0, m->hidden, call_bytes(call, FLP_ARRAY_hidden)));
  return rows_plan_entropies(&m->plan, entropy);
}

static flp_status bisect(making *m, float *entropy) {
  const call_problem *call = m->request->call;
  for (int step = 0; step < STEPS; step++) {
    FLP_TRY(evaluate(m, entropy));
    for (int64_t row = 0; row < call->n; row++) {
      double uniform = rows_uniform(stream(m, STREAM_ENTROPY), (uint64_t)row);
      int is_flat = (double)entropy[row] > rows_entropy(m->request->kind, call->spec.vocab, uniform);
      *(is_flat ? &m->low[row] : &m->high[row]) = m->number[row];
    }
  }
  return evaluate(m, entropy);
}

static flp_status draw_targets(making *m, int64_t *target) {
  float *partial = NULL;
  flp_status status = rows_plan_partials(&m->plan, &partial);
  rows_scores scores = {&m->plan.sliced, m->hidden, m->weight, m->bias, m->temperature, partial};
  if (status == FLP_OK) status = rows_draw_targets(&scores, stream(m, STREAM_TARGET), target);
  free(partial);
  return status;
}

static void clear(making *m) {
  void *const arrays[] = {m->weight, m->bias, m->hidden, m->temperature, m->shuffled, m->parts, m->low};
  for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) free(arrays[i]);
  cli_normal_destroy(&m->chance);
  rows_plan_destroy(&m->plan);
}

flp_status rows_make(const rows_request *request, call_buffers *buffers, int64_t *target, float *entropy) {
  making m = {.request = request, .buffers = buffers};
  flp_status status = prepare(&m);
  if (status == FLP_OK) status = cli_parallel(parts_job, &m, jobs_of(request->call->n), NULL);
  if (status == FLP_OK) status = bisect(&m, entropy);
  if (status == FLP_OK) status = draw_targets(&m, target);
  flp_failure held = flp_failure_hold(status);
  clear(&m);
  return flp_failure_restore(&held);
}
