/* softmax.c: targets drawn from the rows' own softmax.
 *
 * A slice of the vocabulary is drawn by the sums that a forward pass gives for it, a column of the slice by its scores,
 * computed here: exact up to the rounding of fp32, at the cost of one slice's products a row. */
#include <math.h>
#include <stdlib.h>

#include "gen/cli/bench/eight.h"
#include "gen/cli/bench/rows.h"
#include "gen/cli/kernels/parallel.h"
#include "runtime/base/half.h"
#include "runtime/base/operands.h"

enum { ROWS_OF_JOB = 16 };

typedef struct drawing {
  const rows_scores *scores;
  uint64_t stream;
  int64_t *target;
} drawing;

/* What one thread works in. */
typedef struct scratch {
  float *hidden, *weight; /* (D) */
  double *share;          /* (slices or columns of one) */
} scratch;

/* Draws i with probability share[i] / their sum; the last one if they are no numbers. */
static int64_t pick(const double *share, int64_t count, double uniform) {
  double left = 0;
  for (int64_t i = 0; i < count; i++) left += share[i];
  left *= uniform;
  for (int64_t i = 0; i < count - 1; i++)
    if ((left -= share[i]) < 0) return i;
  return count - 1;
}

static int64_t draw_slice(const rows_scores *s, int64_t row, double uniform, double *share) {
  const call_problem *call = s->call;
  float largest = -INFINITY;
  if (!s->partial) return 0;
  for (int i = 0; i < call->shards; i++) largest = fmaxf(largest, s->partial[4 * (i * call->n + row)]);
  for (int i = 0; i < call->shards; i++) {
    const float *part = s->partial + 4 * (i * call->n + row);
    share[i] = (double)part[1] * exp2((double)part[0] - (double)largest);
  }
  return pick(share, call->shards, uniform);
}

static double score_of(const rows_scores *s, int64_t row, int64_t column, const scratch *own) {
  const flp_spec *spec = &s->call->spec;
  flp_dtype dtype = flp_weight_dtype(spec), bias_dtype = flp_bias_dtype(spec);
  double cap = (double)spec->softcap, temperature = s->temperature ? (double)s->temperature[row] : s->call->temperature;
  float bias = 0;
  flp_half_widen(dtype, (const char *)s->weight + column * spec->hidden * flp_half_bytes(dtype), spec->hidden,
                 own->weight);
  if (s->bias) flp_half_widen(bias_dtype, (const char *)s->bias + column * flp_half_bytes(bias_dtype), 1, &bias);
  double z = s->call->scale * (eight_dot(own->hidden, own->weight, spec->hidden) + (double)bias);
  return (cap > 0 ? cap * tanh(z / cap) : z) / temperature;
}

static int64_t draw_target(const rows_scores *s, int64_t row, uint64_t stream, const scratch *own) {
  const flp_spec *spec = &s->call->spec;
  int64_t slice = draw_slice(s, row, rows_uniform(stream, 2 * (uint64_t)row), own->share);
  int64_t first = slice * s->call->shard_vocab, left = spec->vocab - first;
  int64_t count = left < s->call->shard_vocab ? left : s->call->shard_vocab;
  double largest = -INFINITY;
  flp_dtype stored = flp_hidden_dtype(spec);
  flp_half_widen(stored, (const char *)s->hidden + row * spec->hidden * flp_half_bytes(stored), spec->hidden,
                 own->hidden);
  for (int64_t i = 0; i < count; i++) {
    own->share[i] = score_of(s, row, first + i, own);
    largest = fmax(largest, own->share[i]);
  }
  for (int64_t i = 0; i < count; i++) own->share[i] = exp(own->share[i] - largest);
  return first + pick(own->share, count, rows_uniform(stream, 2 * (uint64_t)row + 1));
}

static void draw_rows(const drawing *d, int64_t begin, const scratch *own) {
  for (int64_t row = begin; row < d->scores->call->n && row < begin + ROWS_OF_JOB; row++)
    d->target[row] = draw_target(d->scores, row, d->stream, own);
}

static flp_status draw_job(void *context, size_t i) {
  const drawing *d = context;
  const call_problem *call = d->scores->call;
  size_t depth = (size_t)call->spec.hidden;
  int64_t most = call->shards > call->shard_vocab ? call->shards : call->shard_vocab;
  scratch own = {.hidden = malloc(2 * depth * sizeof(float)), .share = malloc((size_t)most * sizeof(double))};
  flp_status status = FLP_OK;
  if (own.hidden && own.share) {
    own.weight = own.hidden + depth;
    draw_rows(d, (int64_t)i * ROWS_OF_JOB, &own);
  } else {
    status = flp_fail(FLP_ERROR_MEMORY, "out of host memory for the targets");
  }
  free(own.hidden);
  free(own.share);
  return status;
}

flp_status rows_draw_targets(const rows_scores *scores, uint64_t stream, int64_t *target) {
  drawing d = {scores, stream, target};
  return cli_parallel(draw_job, &d, (size_t)((scores->call->n + ROWS_OF_JOB - 1) / ROWS_OF_JOB), NULL);
}
