/* metrics.c: how far a result is off: ulps with an allowance per row, relative L2 and cosine of tensors. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "gen/cli/check/check.h"

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

/* Of two tensors of zeros the error is 0; against zeros anything else is infinitely off. */
static double relative_l2(const moments *m) {
  if (m->error == 0) return 0;
  return m->wanted > 0 ? sqrt(m->error / m->wanted) : INFINITY;
}

static double cosine(const moments *m) {
  if (m->wanted == 0 && m->got == 0) return 1;
  return m->wanted > 0 && m->got > 0 ? m->dot / sqrt(m->wanted * m->got) : 0;
}

check_metric check_metric_rows(const double *got, const double *wanted, const double *unit, const double *allowed,
                               int64_t count) {
  check_metric metric = {.pass = 1};
  moments m = {0};
  double worst = -1;
  for (int64_t i = 0; i < count; i++) {
    double value = got[i];
    if (!isfinite(wanted[i])) {
      int met = isnan(wanted[i]) ? isnan(value) : value == wanted[i];
      if (!met) metric.pass = 0;
      continue;
    }
    double error = isfinite(value) ? fabs(value - wanted[i]) : INFINITY;
    if (!(error <= allowed[i])) metric.pass = 0;
    if (isfinite(value)) add_moments(&m, value, wanted[i]);
    double ulps = error == 0 ? 0 : error / unit[i];
    if (ulps > metric.max_ulp) metric.max_ulp = ulps;
    double share = error == 0 ? 0 : error / allowed[i];
    if (share <= worst) continue;
    worst = share;
    metric.bound = unit[i] > 0 ? allowed[i] / unit[i] : 0;
  }
  metric.rel_l2 = relative_l2(&m);
  metric.cosine = cosine(&m);
  return metric;
}

/* What differs by less than the least normal fp32 number is the same: kernels flush what is smaller. */
static double near(double got, double wanted) {
  return fabs(got - wanted) < (double)FLT_MIN ? wanted : got;
}

check_metric check_metric_gradient(const double *got, const double *wanted, const double *yardstick, int64_t count,
                                   double factor, double floor) {
  check_metric metric = {.max_ulp = -1, .pass = 1};
  moments m = {0}, own = {0};
  for (int64_t i = 0; i < count; i++) {
    if (!isfinite(wanted[i])) {
      if (isfinite(got[i])) metric.pass = 0;
      continue;
    }
    if (!isfinite(got[i])) {
      metric.pass = 0;
      continue;
    }
    add_moments(&m, near(got[i], wanted[i]), wanted[i]);
    if (isfinite(yardstick[i])) add_moments(&own, near(yardstick[i], wanted[i]), wanted[i]);
  }
  metric.rel_l2 = relative_l2(&m);
  metric.cosine = cosine(&m);
  metric.bound = factor * relative_l2(&own) + floor;
  if (!(metric.rel_l2 <= metric.bound)) metric.pass = 0;
  return metric;
}

check_metric check_metric_bits(const void *a, const void *b, size_t bytes) {
  const unsigned char *left = a, *right = b;
  int64_t differ = 0;
  for (size_t i = 0; i < bytes; i++) differ += left[i] != right[i];
  return (check_metric){.max_ulp = (double)differ, .cosine = 1, .pass = differ == 0};
}
