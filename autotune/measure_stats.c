/* measure_stats.c: statistics of the samples of a measurement, in which order they are taken and how long they last. */
#include <math.h>
#include <stdlib.h>

#include "autotune/measure.h"

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

measure_summary measure_summarise(double *samples, int count) {
  qsort(samples, (size_t)count, sizeof *samples, compare);
  double upper = samples[count / 2], lower = samples[(count - 1) / 2];
  return (measure_summary){.median = 0.5 * (lower + upper), .low = samples[0], .high = samples[count - 1]};
}

/* SplitMix64. source: Steele, Lea, Flood, OOPSLA 2014 */
static uint64_t next_random(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* Fisher and Yates; the bias of the remainder is below 2^-58 for counts that occur. */
void measure_order(int count, uint64_t *state, int *order) {
  for (int i = 0; i < count; i++) order[i] = i;
  for (int i = count - 1; i > 0; i--) {
    int other = (int)(next_random(state) % (uint64_t)(i + 1)), kept = order[i];
    order[i] = order[other];
    order[other] = kept;
  }
}

int64_t measure_repeats(double call_ms, double burst_ms) {
  static const double least_call_ms = 1e-3, spare = 1.1;
  double calls = ceil(spare * burst_ms / fmax(call_ms, least_call_ms));
  if (calls >= MEASURE_REPEATS_MAX) return MEASURE_REPEATS_MAX;
  return calls > 1 ? (int64_t)calls : 1;
}
