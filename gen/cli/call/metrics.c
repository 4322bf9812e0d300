/* metrics.c: how far a result is off: worst error over allowed error, and for the record ulps, relative L2 and cosine.
 *
 * What differs by less than the least normal fp32 number is the same, as kernels flush what is smaller: so much is
 * always allowed of a tensor, and a tensor of no more than that is zero. Nothing is relative to zero: there relative L2
 * is that to the allowed error. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "gen/cli/call/metrics.h"

double check_ulp(double magnitude) {
  float value = (float)fabs(magnitude);
  if (!isfinite(value)) return INFINITY;
  return (double)nextafterf(value, INFINITY) - (double)value;
}

/* Sums over the elements that are finite in both. */
typedef struct moments {
  double error, wanted, got, dot;
} moments;

static void add_moments(moments *m, double got, double wanted) {
  m->error += (got - wanted) * (got - wanted);
  m->wanted += wanted * wanted;
  m->got += got * got;
  m->dot += got * wanted;
}

/* A tensor no larger than this is zero. */
static double zero_norm(int64_t count) {
  return (double)FLT_MIN * sqrt((double)count);
}

/* The figures of a record. share: worst error over allowed error, set before */
static void set_relative(check_metric *metric, const moments *m, double zero) {
  int is_zero = !(sqrt(m->wanted) > zero);
  metric->rel_l2 = is_zero ? metric->share : sqrt(m->error / m->wanted);
  if (is_zero)
    metric->cosine = metric->pass;
  else
    metric->cosine = m->got > 0 ? m->dot / sqrt(m->wanted * m->got) : 0;
}

/* Where no error is allowed, 1 more than its ulps. */
static double share_of(double error, double allowed, double unit) {
  if (error == 0) return 0;
  return allowed > 0 ? error / allowed : 1 + error / unit;
}

check_metric check_metric_rows(const double *got, const double *wanted, const double *unit, const double *allowed,
                               int64_t count) {
  check_metric metric = {.pass = 1};
  moments m = {0};
  for (int64_t i = 0; i < count; i++) {
    double value = got[i];
    if (!isfinite(wanted[i])) {
      int met = isnan(wanted[i]) ? isnan(value) : value == wanted[i];
      if (!met) metric.share = INFINITY;
      continue;
    }
    double error = isfinite(value) ? fabs(value - wanted[i]) : INFINITY;
    if (isfinite(value)) add_moments(&m, value, wanted[i]);
    double ulps = error == 0 ? 0 : error / unit[i], share = share_of(error, allowed[i], unit[i]);
    if (ulps > metric.max_ulp) metric.max_ulp = ulps;
    if (i > 0 && share <= metric.share) continue;
    metric.share = fmax(share, metric.share);
    metric.bound = unit[i] > 0 ? allowed[i] / unit[i] : 0;
  }
  metric.pass = metric.share <= 1;
  set_relative(&metric, &m, zero_norm(count));
  return metric;
}

check_numbers check_numbers_of(cli_memory *memory, int64_t count) {
  double *block = cli_memory_take_zeros(memory, 4 * (size_t)count * sizeof *block);
  if (!block) return (check_numbers){0};
  return (check_numbers){block, block + count, block + 2 * count, block + 3 * count, count};
}

void check_numbers_set(const check_numbers *a, int64_t at, double got, double wanted, double unit, double allowed) {
  a->got[at] = got;
  a->wanted[at] = wanted;
  a->unit[at] = unit;
  a->allowed[at] = allowed;
}

check_metric check_numbers_judge(const check_numbers *a) {
  return check_metric_rows(a->got, a->wanted, a->unit, a->allowed, a->count);
}

static double near(double got, double wanted) {
  return fabs(got - wanted) < (double)FLT_MIN ? wanted : got;
}

double check_metric_norm(const double *wanted, int64_t count) {
  double squares = 0;
  for (int64_t i = 0; i < count; i++)
    if (isfinite(wanted[i])) squares += wanted[i] * wanted[i];
  return sqrt(squares);
}

double check_metric_error(const double *got, const double *wanted, int64_t count) {
  moments m = {0};
  for (int64_t i = 0; i < count; i++)
    if (isfinite(wanted[i]) && isfinite(got[i])) add_moments(&m, near(got[i], wanted[i]), wanted[i]);
  double norm = check_metric_norm(wanted, count);
  return m.wanted > 0 ? sqrt(m.error / m.wanted) * norm : sqrt(m.error);
}

check_metric check_metric_tensor(const double *got, const double *wanted, int64_t count, double allowed) {
  check_metric metric = {.max_ulp = -1};
  moments m = {0};
  int is_met = 1; /* what is not finite */
  for (int64_t i = 0; i < count; i++) {
    if (isfinite(wanted[i]) && isfinite(got[i]))
      add_moments(&m, near(got[i], wanted[i]), wanted[i]);
    else
      is_met &= isfinite(wanted[i]) == isfinite(got[i]);
  }
  double zero = zero_norm(count), norm = sqrt(m.wanted);
  allowed += zero;
  metric.share = !is_met ? INFINITY : m.error > 0 ? sqrt(m.error) / allowed : 0;
  metric.pass = metric.share <= 1;
  metric.bound = norm > zero ? allowed / norm : 1;
  set_relative(&metric, &m, zero);
  return metric;
}

check_metric check_metric_gradient(const double *got, const double *wanted, const double *yardstick, int64_t count,
                                   double factor, double floor) {
  double allowed = factor * check_metric_error(yardstick, wanted, count) + floor * check_metric_norm(wanted, count);
  return check_metric_tensor(got, wanted, count, allowed);
}

check_metric check_metric_bits(const void *a, const void *b, size_t bytes) {
  const unsigned char *left = a, *right = b;
  int64_t differ = 0;
  for (size_t i = 0; i < bytes; i++) differ += left[i] != right[i];
  return (check_metric){
      .share = differ ? 1 + (double)differ : 0, .max_ulp = (double)differ, .cosine = 1, .pass = differ == 0};
}
