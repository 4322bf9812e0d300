/* select.c: the eager rung of flp_select: a row at a time, sums in double, rows shared among the threads. */
#include "runtime/eager/select.h"

#include <stdatomic.h>

#include "runtime/base/half.h"
#include "runtime/base/util.h"
#include "runtime/eager/core.h"

enum { BLOCK = 1024 }; /* columns that are widened at a time */

typedef struct job {
  const flp_spec *spec;
  const flp_select_args *args;
  atomic_ullong bad_rows;
} job;

static double number_at(const flp_spec *spec, const void *numbers, int64_t i) {
  return spec->dtype == FLP_DTYPE_FP64 ? ((const double *)numbers)[i] : (double)((const float *)numbers)[i];
}

static void set_number(const flp_spec *spec, void *numbers, int64_t i, double value) {
  if (!numbers) return;
  if (spec->dtype == FLP_DTYPE_FP64)
    ((double *)numbers)[i] = value;
  else
    ((float *)numbers)[i] = (float)value;
}

static int64_t element_bytes(const flp_spec *spec) {
  return spec->dtype == FLP_DTYPE_FP64 ? 8 : flp_half_bytes(spec->dtype);
}

static void widen(const flp_spec *spec, const char *row, int64_t first, int64_t count, double *out) {
  const char *source = row + first * element_bytes(spec);
  float narrow[BLOCK];
  if (spec->dtype != FLP_DTYPE_FP64) flp_half_widen(spec->dtype, source, count, narrow);
  for (int64_t i = 0; i < count; i++)
    out[i] = spec->dtype == FLP_DTYPE_FP64 ? ((const double *)source)[i] : (double)narrow[i];
}

static void store(const flp_spec *spec, char *row, int64_t first, int64_t count, const double *values) {
  char *target = row + first * element_bytes(spec);
  float narrow[BLOCK];
  for (int64_t i = 0; i < count; i++) {
    if (spec->dtype == FLP_DTYPE_FP64)
      ((double *)target)[i] = values[i];
    else
      narrow[i] = (float)values[i];
  }
  if (spec->dtype != FLP_DTYPE_FP64) flp_half_narrow(spec->dtype, narrow, count, target);
}

static double score_at(const flp_spec *spec, const char *row, int64_t column) {
  double value;
  widen(spec, row, column, 1, &value);
  return value;
}

static int64_t target_at(const job *j, int64_t row, int64_t i) {
  int64_t at = row * j->args->k + i;
  return j->spec->target_dtype == FLP_DTYPE_INT32 ? ((const int32_t *)j->args->target)[at]
                                                  : ((const int64_t *)j->args->target)[at];
}

static int is_inside(const job *j, int64_t id) {
  return id >= 0 && id < j->spec->vocab;
}

static int is_wanted(const job *j, int64_t row) {
  for (int64_t i = 0; i < j->args->k; i++)
    if (target_at(j, row, i) != j->args->ignore_index) return 1;
  return 0;
}

/* ---- forward ---- */

/* Partial sums of a row, in nats: its largest score, NaN left out, Σ e^u and Σ u·e^u with u = (z - top)/T. sum: 0 with
 * no score above -inf, NaN with a NaN or +inf */
typedef struct row_sum {
  double top, sum, weighted;
} row_sum;

static double top_of(const job *j, const char *row, int *has_nan) {
  double values[BLOCK], top = -INFINITY;
  *has_nan = 0;
  for (int64_t first = 0; first < j->spec->vocab; first += BLOCK) {
    int64_t count = flp_min(j->spec->vocab - first, BLOCK);
    widen(j->spec, row, first, count, values);
    for (int64_t i = 0; i < count; i++) {
      *has_nan |= isnan(values[i]) != 0;
      if (values[i] > top) top = values[i];
    }
  }
  return top;
}

static row_sum sum_of(const job *j, const char *row) {
  int has_nan;
  row_sum r = {.top = top_of(j, row, &has_nan)};
  double values[BLOCK];
  if (has_nan || r.top == INFINITY) return (row_sum){r.top, NAN, NAN};
  if (r.top == -INFINITY) return r;
  for (int64_t first = 0; first < j->spec->vocab; first += BLOCK) {
    int64_t count = flp_min(j->spec->vocab - first, BLOCK);
    widen(j->spec, row, first, count, values);
    for (int64_t i = 0; i < count; i++) {
      double u = (values[i] - r.top) / j->args->temperature, e = exp(u);
      r.sum += e;
      if (e > 0) r.weighted += u * e;
    }
  }
  return r;
}

static void finish_targets(job *j, int64_t row, const char *scores, row_sum r) {
  const flp_select_args *a = j->args;
  for (int64_t i = 0; i < a->k; i++) {
    int64_t id = target_at(j, row, i);
    double logprob = 0;
    if (id != a->ignore_index) {
      logprob = NAN;
      if (!is_inside(j, id))
        atomic_fetch_add(&j->bad_rows, 1);
      else if (r.sum > 0)
        logprob = (score_at(j->spec, scores, id) - r.top) / a->temperature - log(r.sum);
      if (logprob > 0) logprob = 0;
    }
    set_number(j->spec, a->logprob, row * a->k + i, logprob);
  }
}

/* The reference as the kernels keep it: the score itself in fp64, else log2 units. */
static double reference_of(const job *j, double top) {
  if (j->spec->dtype == FLP_DTYPE_FP64) return top;
  return (double)(float)(top * (double)(float)(M_LOG2E / j->args->temperature));
}

static void forward_row(void *context, int64_t row, int worker) {
  job *j = context;
  const flp_select_args *a = j->args;
  (void)worker;
  const char *scores = (const char *)a->scores + row * a->scores_stride * element_bytes(j->spec);
  row_sum r = {0};
  double entropy = 0, log_sum = 0, reference = 0;
  if (is_wanted(j, row)) {
    r = sum_of(j, scores);
    if (j->spec->dtype != FLP_DTYPE_FP64 && eager_is_beyond_limit(reference_of(j, r.top), r.sum)) {
      atomic_fetch_add(&j->bad_rows, 1);
      r.sum = NAN;
    }
    int alive = r.sum > 0;
    entropy = alive ? log(r.sum) - r.weighted / r.sum : NAN;
    if (entropy < 0) entropy = 0;
    reference = alive ? reference_of(j, r.top) : NAN;
    /* about the reference as stored, so that the two agree */
    double moved = j->spec->dtype == FLP_DTYPE_FP64 ? 0 : r.top * M_LOG2E / a->temperature - reference;
    log_sum = alive ? log2(r.sum) + moved : NAN;
  }
  finish_targets(j, row, scores, r);
  set_number(j->spec, a->entropy, row, entropy);
  const double stats[3] = {reference, log_sum, entropy};
  for (int64_t i = 0; i < 3; i++) set_number(j->spec, a->stats, row * 3 + i, stats[i]);
}

/* ---- backward ---- */

/* g of one target; 0 where it is ignored, NaN where its logprob is. */
static double pull_of(const job *j, int64_t row, int64_t i) {
  const flp_select_args *a = j->args;
  if (!a->grad_logprob || target_at(j, row, i) == a->ignore_index) return 0;
  double g = number_at(j->spec, a->grad_logprob, row * a->k + i);
  return g != 0 && isnan(number_at(j->spec, a->logprob, row * a->k + i)) ? NAN : g;
}

typedef struct row_grad {
  double total, entropy_grad, entropy, log_sum; /* log_sum: of e^(t - reference) in nats */
  double reference, unit;                       /* t = unit·z in nats */
} row_grad;

static double slope_at(const row_grad *r, double z, double temperature) {
  double w = (z * r->unit - r->reference) - r->log_sum, p = exp(w);
  double pulled = r->entropy_grad != 0 && p > 0 ? r->entropy_grad * p * (w + r->entropy) : 0;
  return (-r->total * p - pulled) / temperature;
}

static void write_slopes(const job *j, const row_grad *r, const char *scores, char *out) {
  double values[BLOCK];
  for (int64_t first = 0; first < j->spec->vocab; first += BLOCK) {
    int64_t count = flp_min(j->spec->vocab - first, BLOCK);
    widen(j->spec, scores, first, count, values);
    for (int64_t i = 0; i < count; i++) values[i] = slope_at(r, values[i], j->args->temperature);
    store(j->spec, out, first, count, values);
  }
}

/* At a target: -Σg·expm1(logprob) of those that name the column, p·Σg of the others, and the entropy's part. */
static void correct_targets(const job *j, int64_t row, const row_grad *r, char *out) {
  const flp_select_args *a = j->args;
  for (int64_t i = 0; i < a->k; i++) {
    int64_t id = target_at(j, row, i);
    if (id == a->ignore_index || !is_inside(j, id)) continue;
    double here = 0, elsewhere = 0, logprob = number_at(j->spec, a->logprob, row * a->k + i), p = exp(logprob);
    for (int64_t other = 0; other < a->k; other++) {
      double g = pull_of(j, row, other);
      if (target_at(j, row, other) == id)
        here += g;
      else
        elsewhere += g;
    }
    double pulled = r->entropy_grad != 0 && p > 0 ? r->entropy_grad * p * (logprob + r->entropy) : 0;
    double dz = (-here * expm1(logprob) - p * elsewhere - pulled) / a->temperature;
    store(j->spec, out, id, 1, &dz);
  }
}

static void clear_row(const job *j, char *out) {
  static const double zeros[BLOCK];
  for (int64_t first = 0; first < j->spec->vocab; first += BLOCK)
    store(j->spec, out, first, flp_min(j->spec->vocab - first, BLOCK), zeros);
}

static void backward_row(void *context, int64_t row, int worker) {
  job *j = context;
  const flp_select_args *a = j->args;
  int64_t bytes = element_bytes(j->spec);
  (void)worker;
  const char *scores = (const char *)a->scores + row * a->scores_stride * bytes;
  char *out = (char *)a->grad_scores + row * a->grad_scores_stride * bytes;
  int wide = j->spec->dtype == FLP_DTYPE_FP64;
  row_grad r = {.unit = 1 / a->temperature, .reference = number_at(j->spec, a->stats, row * 3)};
  r.reference *= wide ? r.unit : M_LN2;
  r.log_sum = number_at(j->spec, a->stats, row * 3 + 1) * M_LN2;
  r.entropy = number_at(j->spec, a->stats, row * 3 + 2);
  if (a->grad_entropy) r.entropy_grad = number_at(j->spec, a->grad_entropy, row);
  for (int64_t i = 0; i < a->k; i++) r.total += pull_of(j, row, i);
  int idle = r.entropy_grad == 0;
  for (int64_t i = 0; i < a->k; i++) idle &= pull_of(j, row, i) == 0;
  if (idle || !is_wanted(j, row)) {
    clear_row(j, out);
    return;
  }
  write_slopes(j, &r, scores, out);
  correct_targets(j, row, &r, out);
}

/* More threads than one per quarter of a million scores would only wait. */
static int useful_threads(const flp_spec *spec, const flp_select_args *args, int threads) {
  int most = eager_thread_count(threads);
  double work = (double)args->n * (double)spec->vocab / 262144;
  return work < most ? 1 + (int)work : most;
}

void flp_eager_select(const flp_spec *spec, const flp_select_args *args, int threads, uint64_t *bad_rows) {
  if (args->n == 0) return;
  job j = {.spec = spec, .args = args};
  eager_team team;
  eager_team_start(&team, useful_threads(spec, args, threads));
  eager_team_run(&team, args->n, args->pass == FLP_PASS_FORWARD ? forward_row : backward_row, &j);
  eager_team_stop(&team);
  *bad_rows += atomic_load(&j.bad_rows);
}
