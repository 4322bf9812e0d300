/* draw.c: what is drawn for a row: its entropy, and the columns that it favours. */
#include <math.h>
#include <stdlib.h>

#include "gen/cli/bench/rows.h"
#include "gen/cli/call/lists.h"
#include "gen/cli/call/normal.h"

enum { KNOTS_MAX = 8 };

const double ROWS_FRACTIONS[ROWS_QUANTILES] = {0.1, 0.5, 0.8, 0.9, 0.95, 0.99};

/* Entropies in nats and the fractions of rows below them; between knots the quantiles are linear. Text and base were
 * measured on one small model's own samples of source code; it is the tail's shape that matters. */
static const struct {
  int count;
  double fraction[KNOTS_MAX], entropy[KNOTS_MAX];
} knots[] = {[CLI_DATA_POLICY] = {7, {0, 0.25, 0.5, 0.8, 0.9, 0.99, 1}, {0, 5e-4, 0.01, 0.672, 1.2, 2.6, 4.5}},
             [CLI_DATA_TEXT] = {8, {0, 0.1, 0.5, 0.8, 0.9, 0.95, 0.99, 1}, {0, 0.008, 0.79, 2.1, 2.9, 3.6, 4.6, 6.0}},
             [CLI_DATA_BASE] = {8, {0, 0.1, 0.5, 0.8, 0.9, 0.95, 0.99, 1}, {0, 0.22, 2.5, 5.4, 6.5, 7.4, 8.7, 9.5}}};

/* Of the entropy of uniform rows, which is reached by no scores that differ. */
#define ENTROPY_MOST 0.9

const char *rows_kind_name(cli_data kind) {
  return CLI_DATA[kind].name;
}

double rows_uniform(uint64_t stream, uint64_t i) {
  return cli_unit(cli_hash(stream + i));
}

double rows_quantile(cli_data kind, double fraction) {
  const double *at = knots[kind].fraction, *value = knots[kind].entropy;
  int i = 0;
  while (i < knots[kind].count - 2 && fraction > at[i + 1]) i++;
  return value[i] + (value[i + 1] - value[i]) * (fraction - at[i]) / (at[i + 1] - at[i]);
}

double rows_entropy(cli_data kind, int64_t vocab, double fraction) {
  return fmin(rows_quantile(kind, fraction), ENTROPY_MOST * log((double)vocab));
}

static int compare_floats(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

void rows_quantiles(float *entropy, int64_t n, double out[ROWS_QUANTILES]) {
  qsort(entropy, (size_t)n, sizeof *entropy, compare_floats);
  for (int i = 0; i < ROWS_QUANTILES; i++) {
    double at = ROWS_FRACTIONS[i] * (double)(n - 1), left = floor(at);
    int64_t low = (int64_t)left, high = low + 1 < n ? low + 1 : low;
    out[i] = (double)entropy[low] + (at - left) * ((double)entropy[high] - (double)entropy[low]);
  }
}

/* A whole number in [0, count). */
static int64_t whole(uint64_t stream, uint64_t i, int64_t count) {
  return (int64_t)(rows_uniform(stream, i) * (double)count);
}

void rows_shuffle(uint64_t stream, int64_t vocab, int64_t *out) {
  for (int64_t i = 0; i < vocab; i++) {
    int64_t j = whole(stream, (uint64_t)i, i + 1);
    out[i] = out[j];
    out[j] = i;
  }
}

int rows_favoured(int64_t vocab) {
  return vocab < ROWS_FAVOURED ? (int)vocab : ROWS_FAVOURED;
}

/* Makes ids that rise differ: each moves up past the one before it, then those beyond the vocabulary back down. */
static void make_different(int64_t *ids, int count, int64_t vocab) {
  for (int k = 1; k < count; k++)
    if (ids[k] <= ids[k - 1]) ids[k] = ids[k - 1] + 1;
  for (int k = count - 1; k >= 0 && ids[k] > vocab - (count - k); k--) ids[k] = vocab - (count - k);
}

/* Id i of the shuffled vocabulary is as frequent as 1 / (i + 1): exp(u log V) has that distribution. Ranks are dealt
 * out at random, so that a row's first column is no more frequent than its last. */
void rows_favour(uint64_t stream, int64_t row, const int64_t *shuffled, int64_t vocab, int64_t *out) {
  int count = rows_favoured(vocab);
  uint64_t own = cli_hash(stream + (uint64_t)row);
  for (int k = 0; k < count; k++) out[k] = (int64_t)exp(rows_uniform(own, (uint64_t)k) * log((double)vocab)) - 1;
  qsort(out, (size_t)count, sizeof *out, cli_by_value);
  make_different(out, count, vocab);
  for (int k = 0; k < count; k++) out[k] = shuffled[out[k]];
  for (int k = count - 1; k > 0; k--) {
    int64_t j = whole(own, (uint64_t)(count + k), k + 1), held = out[k];
    out[k] = out[j];
    out[j] = held;
  }
}
