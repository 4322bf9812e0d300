/* api_truth.c: the operation of flp.h in double, with bounds of what fp32 products and stored numbers may err by; see
 * api.h.
 *
 * Bounds. A score in fp32 errs by at most (D + 2)·2^-24·Σ|h·w| + 2^-24·|b| before it is scaled; softcap's slope is at
 * most 1. A logprob errs by twice the worst of its row, entropy by (2 + ln V) times as much, and what is stored in fp32
 * adds ulps. A gradient sums terms that each err so, relative to their own size. */
#include <math.h>
#include <string.h>

#include "tests/drivers/api.h"

static const double UNIT = 0x1p-24;

api_class api_class_of(const api_case *c, int64_t row, const float *g, const float *e, int is_backward) {
  const flp_args *args = &c->shard_args[0];
  double temperature = c->temperature[row];
  if (!c->listed[row] || c->target[row] == args->ignore_index) return API_LEFT_OUT;
  if (is_backward && !(g && g[row] != 0) && !(e && e[row] != 0)) return API_LEFT_OUT;
  int is_bad = c->target[row] < 0 || c->target[row] >= c->total || !(temperature > 0) || !isfinite(temperature);
  return is_bad ? API_BAD : API_ACTIVE;
}

int api_bad_count(const api_case *c, const float *g, const float *e, int is_backward) {
  int count = c->bad_ids;
  for (int64_t row = 0; row < c->n; row++) count += api_class_of(c, row, g, e, is_backward) == API_BAD;
  return count;
}

/* Softmax statistics of one row in nats. */
typedef struct row_truth {
  double log_sum, logprob, entropy; /* log_sum: log Σ exp t */
  double error, largest;            /* of its scores: the worst error, the largest |t| */
} row_truth;

typedef struct score {
  double t, slope, error; /* slope: dt/dx of the raw score x */
} score;

/* Column v counts over all shards. */
static score score_of(const api_case *c, int64_t row, int64_t v) {
  double x = c->bias[v], size = fabs(x), scale = (double)c->shard_args[0].scale, cap = (double)c->spec.softcap;
  for (int64_t i = 0; i < c->depth; i++) {
    double term = c->hidden[row * c->depth + i] * c->weight[v * c->depth + i];
    x += term;
    size += fabs(term);
  }
  double z = scale * x, slope = scale / c->temperature[row];
  double error = fabs(slope) * size * ((double)c->depth + 2) * UNIT;
  if (cap > 0) {
    double bent = tanh(z / cap);
    z = cap * bent;
    slope *= (1 - bent) * (1 + bent);
  }
  return (score){z / c->temperature[row], slope, error};
}

static row_truth truth_of(const api_case *c, int64_t row) {
  row_truth r = {-INFINITY, 0, 0, 0, 0};
  double top = -INFINITY, sum = 0, weighted = 0;
  for (int64_t v = 0; v < c->total; v++) {
    score s = score_of(c, row, v);
    top = fmax(top, s.t);
    r.error = fmax(r.error, s.error);
    r.largest = fmax(r.largest, fabs(s.t));
  }
  for (int64_t v = 0; v < c->total; v++) {
    double u = score_of(c, row, v).t - top;
    sum += exp(u);
    weighted += u * exp(u);
  }
  r.log_sum = top + log(sum);
  r.logprob = score_of(c, row, c->target[row]).t - r.log_sum;
  r.entropy = log(sum) - weighted / sum;
  return r;
}

static void compare(const char *what, int64_t row, double got, double wanted, double allowed) {
  api_count.values++;
  API_EXPECT(fabs(got - wanted) <= allowed, "%s of row %ld is %.9g, in double %.9g, allowed %.3g", what, (long)row, got,
             wanted, allowed);
}

/* Of rows whose values no bound is known for: at most 0, or NaN. */
static void compare_wild(int64_t row, float logprob) {
  API_EXPECT(isnan(logprob) || logprob <= 0, "logprob of row %ld is %g, above 0", (long)row, (double)logprob);
}

void api_compare_rows(const api_case *c, const float *logprob, const float *entropy) {
  const struct {
    const char *name;
    const float *values;
  } outputs[] = {{"logprob", logprob}, {"entropy", entropy}};
  for (int64_t row = 0; row < c->n; row++) {
    api_class class = api_class_of(c, row, NULL, NULL, 0);
    row_truth r = class == API_ACTIVE && !c->wild ? truth_of(c, row) : (row_truth){0};
    double allowed = 2 * r.error + 4 * UNIT * (r.largest + fabs(r.logprob) + 2);
    for (int i = 0; i < 2; i++) {
      if (!outputs[i].values) continue;
      float got = outputs[i].values[row];
      if (class == API_BAD) API_EXPECT(isnan(got), "%s of bad row %ld is %g", outputs[i].name, (long)row, (double)got);
      if (class == API_LEFT_OUT) compare(outputs[i].name, row, (double)got, 0, 0);
      if (class != API_ACTIVE) continue;
      if (c->wild && i == 0) compare_wild(row, got);
      if (c->wild) continue;
      double wanted = i ? r.entropy : r.logprob;
      compare(outputs[i].name, row, (double)got, wanted, i ? allowed * (2 + log((double)c->total)) : allowed);
    }
  }
}

/* ---- gradients ---- */

/* Sums of a gradient, and of what its terms may err by. Rows of hidden, then columns of weight, then bias. */
typedef struct sums {
  double *value, *error;
} sums;

static void add(sums *s, int64_t at, double term, double error) {
  s->value[at] += term;
  s->error[at] += error;
}

typedef struct gradients {
  sums hidden, weight, bias;
} gradients;

static sums make(int64_t count) {
  size_t bytes = (size_t)(count + 1) * sizeof(double);
  return (sums){api_block(bytes, 0, 0), api_block(bytes, 0, 0)};
}

/* Adds one score's part to all three. */
static void add_score(const api_case *c, int64_t row, int64_t local, int64_t v, double dx, double error,
                      gradients *out) {
  for (int64_t i = 0; i < c->depth; i++) {
    double w = c->weight[v * c->depth + i], h = c->hidden[row * c->depth + i];
    add(&out->hidden, row * c->depth + i, dx * w, error * fabs(w));
    add(&out->weight, local * c->depth + i, dx * h, error * fabs(h));
  }
  add(&out->bias, local, dx, error);
}

static void add_row(const api_case *c, int64_t row, int shard, double g, double e, gradients *out) {
  row_truth r = truth_of(c, row);
  int64_t columns = shard == c->shards - 1 ? c->valid : c->vocab;
  double unit = 2 * r.error + 8 * UNIT * (r.largest + fabs(r.log_sum) + 4); /* of a logprob and of stored stats */
  for (int64_t local = 0; local < columns; local++) {
    int64_t v = shard * c->vocab + local;
    score s = score_of(c, row, v);
    double w = s.t - r.log_sum, p = exp(w), is_target = v == c->target[row];
    double dt = g * (is_target - p) - e * p * (w + r.entropy);
    if (is_target) dt = -g * expm1(w) - e * p * (w + r.entropy);
    double size = fabs(g) * p + fabs(e) * p * (fabs(w) + r.entropy + 2 + log((double)c->total));
    double error = size * unit * 2 + fabs(g) * is_target * unit + fabs(dt) * 4 * UNIT;
    if (c->spec.softcap > 0) error += (fabs(dt) + size) * s.error * 4 / (double)c->spec.softcap * c->temperature[row];
    add_score(c, row, local, v, dt * s.slope, error * fabs((double)c->shard_args[0].scale) / c->temperature[row], out);
  }
}

/* What rounding to the dtype adds. */
static double rounding_of(flp_dtype dtype, double value) {
  double relative = dtype == FLP_DTYPE_BF16 ? 0x1p-8 : dtype == FLP_DTYPE_FP16 ? 0x1p-11 : 0x1p-22;
  return fabs(value) * relative + (dtype == FLP_DTYPE_FP16 ? 0x1p-24 : 0x1p-120);
}

static void compare_sum(const api_case *c, const char *what, flp_dtype dtype, const void *base, int64_t at, int64_t row,
                        double wanted, double error, double added) {
  double got = api_element(dtype, base, at);
  int64_t terms = c->n + c->vocab + 8;
  compare(what, row, got, added + wanted,
          rounding_of(dtype, wanted) + rounding_of(dtype, added) * (added != 0) + error * 1.5 +
              (double)terms * UNIT * error + fabs(wanted) * (double)terms * UNIT);
}

static void compare_hidden(const api_case *c, const flp_args *args, const api_class *class, const sums *s) {
  flp_dtype dtype = api_grad_dtype(c->spec.grad_hidden_dtype, c->spec.dtype);
  int64_t stride = args->grad_hidden_stride ? args->grad_hidden_stride : c->depth;
  for (int64_t i = 0; i < c->n * c->depth; i++) {
    int64_t row = i / c->depth, at = row * stride + i % c->depth;
    double got = api_element(dtype, args->grad_hidden, at);
    if (class[row] == API_BAD) API_EXPECT(isnan(got), "grad_hidden of bad row %ld is %g", (long)row, got);
    if (class[row] == API_LEFT_OUT) compare("grad_hidden", row, got, 0, 0);
    if (class[row] == API_ACTIVE && !c->wild)
      compare_sum(c, "grad_hidden", dtype, args->grad_hidden, at, row, s->value[i], s->error[i], 0);
  }
}

/* Rows of weight beyond the real ones have no gradient. */
static void compare_weight(const api_case *c, const flp_args *args, const sums *s, const float *start) {
  flp_dtype dtype = api_grad_dtype(c->spec.grad_weight_dtype, c->spec.dtype);
  int64_t stride = args->grad_weight_stride ? args->grad_weight_stride : c->depth;
  for (int64_t i = 0; i < c->vocab * c->depth; i++) {
    int64_t at = i / c->depth * stride + i % c->depth;
    compare_sum(c, "grad_weight", dtype, args->grad_weight, at, i / c->depth, s->value[i], s->error[i],
                start ? (double)start[at] : 0);
  }
}

void api_compare_gradients(const api_case *c, const flp_args *args, int shard, const double *g, const double *e,
                           const api_class *class, const float *weight_base) {
  gradients out = {make(c->n * c->depth), make(c->vocab * c->depth), make(c->vocab)};
  for (int64_t row = 0; row < c->n; row++)
    if (class[row] == API_ACTIVE && !c->wild) add_row(c, row, shard, g[row], e ? e[row] : 0, &out);
  if (args->grad_hidden) compare_hidden(c, args, class, &out.hidden);
  if (c->wild) return;
  if (args->grad_weight) compare_weight(c, args, &out.weight, weight_base);
  for (int64_t v = 0; args->grad_bias && v < c->vocab; v++)
    compare_sum(c, "grad_bias", c->spec.dtype, args->grad_bias, v, v, out.bias.value[v], out.bias.error[v], 0);
}
