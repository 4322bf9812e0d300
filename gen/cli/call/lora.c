/* lora.c: what an adapter adds to the oracle's operands; see oracle.h. */
#include <math.h>
#include <stdlib.h>

#include "gen/cli/call/oracle.h"
#include "runtime/base/half.h"
#include "runtime/base/status.h"

/* Sums of a row of h and one of A: exact, and how far off the farther of two is: what fp32 sums one after another, or
 * truncates after every 16 as tensor cores do. */
typedef struct projection {
  double exact, error;
} projection;

static projection project(const float *hidden, const float *first, const float *a, int64_t depth) {
  double exact = 0, truncated = 0, of_first = 0;
  float rounded = 0;
  for (int64_t d = 0; d < depth; d++) {
    exact += (double)hidden[d] * (double)a[d];
    truncated += (double)hidden[d] * (double)a[d];
    rounded += hidden[d] * a[d];
    of_first += (double)first[d] * (double)a[d];
    if (d % 16 != 15 && d != depth - 1) continue;
    float near = (float)truncated;
    truncated = (double)(fabs((double)near) > fabs(truncated) ? nextafterf(near, 0) : near);
  }
  double error = fmax(fabs((double)rounded - exact), fabs(truncated - exact));
  return (projection){exact, fmax(error, fabs(of_first - exact))};
}

/* u of one row, and how far off another sum's may be: by what three times the row's worst error rounds to. a: in fp32 */
static void project_row(const oracle_lora *lora, const float *hidden, const float *first, const float *a, float *u,
                        double *off) {
  double exact[FLP_LORA_RANK_MAX], worst = 0;
  for (int64_t j = 0; j < lora->rank; j++) {
    projection x = project(hidden, first, a + j * lora->depth, lora->depth);
    exact[j] = lora->scale == 0 ? 0 : lora->scale * x.exact;
    double error = fabs(lora->scale) * x.error + fabs((double)(float)exact[j] - exact[j]);
    if (isfinite(error)) worst = fmax(worst, error);
  }
  for (int64_t j = 0; j < lora->rank; j++) {
    double below = oracle_round(lora->dtype, exact[j] - 3 * worst);
    double own = oracle_round(lora->dtype, exact[j]), above = oracle_round(lora->dtype, exact[j] + 3 * worst);
    u[j] = (float)own;
    off[j] = worst > 0 && isfinite(own) ? fmax(fabs(own - below), fabs(above - own)) : 0;
  }
}

static double error_of_scores(const oracle_lora *lora, const double *off) {
  double worst = 0, any = 0;
  for (int64_t j = 0; j < lora->rank; j++) any += off[j];
  for (int64_t v = 0; any > 0 && v < lora->vocab; v++) {
    float b[FLP_LORA_RANK_MAX];
    double sum = 0;
    const char *row = (const char *)lora->b + v * lora->rank * flp_half_bytes(lora->dtype);
    flp_half_widen(lora->dtype, row, lora->rank, b);
    for (int64_t j = 0; j < lora->rank; j++) sum += off[j] * fabs((double)b[j]);
    worst = fmax(worst, sum);
  }
  return worst;
}

/* largest: (rank) */
static void find_largest(const oracle_lora *lora, double *largest) {
  float b[FLP_LORA_RANK_MAX];
  for (int64_t j = 0; j < lora->rank; j++) largest[j] = 0;
  for (int64_t v = 0; v < lora->vocab; v++) {
    flp_half_widen(lora->dtype, (const char *)lora->b + v * lora->rank * flp_half_bytes(lora->dtype), lora->rank, b);
    for (int64_t j = 0; j < lora->rank; j++) largest[j] = fmax(largest[j], fabs((double)b[j]));
  }
}

static double bound_of_scores(const oracle_lora *lora, const double *off, const double *largest) {
  double sum = 0;
  for (int64_t j = 0; j < lora->rank; j++) sum += off[j] > 0 ? off[j] * largest[j] : 0;
  return sum;
}

/* A row of hidden as its terms, and the first of them. */
static void widen_hidden(const oracle_lora *lora, int64_t row, float *out, float *first) {
  flp_dtype dtype = lora->hidden_dtype ? lora->hidden_dtype : lora->dtype;
  int64_t at = row * lora->hidden_stride * flp_half_bytes(dtype);
  flp_half_widen(dtype, (const char *)lora->hidden + at, lora->depth, out);
  for (int64_t d = 0; d < lora->depth; d++) {
    first[d] = (float)oracle_in_terms(lora->dtype, dtype, 1, (double)out[d]);
    out[d] = (float)oracle_in_terms(lora->dtype, dtype, lora->terms, (double)out[d]);
  }
}

flp_status oracle_lora_project(const oracle_lora *lora, void *u, double *score_error) {
  int64_t depth = lora->depth, element = flp_half_bytes(lora->dtype);
  double largest[FLP_LORA_RANK_MAX];
  float *a = malloc((size_t)((lora->rank + 2) * depth) * sizeof *a);
  if (!a) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for an adapter");
  if (lora->is_bounded) find_largest(lora, largest);
  for (int64_t j = 0; j < lora->rank; j++)
    flp_half_widen(lora->dtype, (const char *)lora->a + j * lora->a_stride * element, depth, a + j * depth);
  for (int64_t row = 0; row < lora->n; row++) {
    float made[FLP_LORA_RANK_MAX], *hidden = a + lora->rank * depth;
    double off[FLP_LORA_RANK_MAX];
    widen_hidden(lora, row, hidden, hidden + depth);
    project_row(lora, hidden, hidden + depth, a, made, off);
    flp_half_narrow(lora->dtype, made, lora->rank, (char *)u + row * lora->rank * element);
    score_error[row] = lora->is_bounded ? bound_of_scores(lora, off, largest) : error_of_scores(lora, off);
  }
  free(a);
  return FLP_OK;
}
