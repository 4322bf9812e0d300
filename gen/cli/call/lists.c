/* lists.c: ids by Zipf's law and lists of them; see the header. */
#include "gen/cli/call/lists.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/normal.h"
#include "runtime/base/half.h"
#include "runtime/base/status.h"
#include "runtime/kernel/kernel.h"

/* Draws of an id that a list has not, before the most frequent one that it lacks is taken. */
enum { TRIES = 8 };

/* ---- ids ---- */

flp_status cli_zipf_create(int64_t vocab, uint64_t seed, cli_zipf *out) {
  *out = (cli_zipf){.vocab = vocab, .order = malloc((size_t)vocab * sizeof *out->order)};
  if (!out->order) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the order of the vocabulary");
  for (int64_t i = 0; i < vocab; i++) {
    int64_t other = (int64_t)(cli_hash(seed + (uint64_t)i) % (uint64_t)(i + 1));
    out->order[i] = out->order[other]; /* Fisher and Yates, from the inside */
    out->order[other] = (int32_t)i;
  }
  return FLP_OK;
}

/* Rank r, from 0, has the probability ln((r + 2)/(r + 1)) / ln(vocab + 1), which is nearly 1/(r + 1) of the whole. */
int64_t cli_zipf_draw(const cli_zipf *zipf, uint64_t hash) {
  int64_t rank = (int64_t)pow((double)(zipf->vocab + 1), cli_unit(hash)) - 1;
  return zipf->order[rank < zipf->vocab ? rank : zipf->vocab - 1];
}

void cli_zipf_destroy(cli_zipf *zipf) {
  free(zipf->order);
  *zipf = (cli_zipf){0};
}

void cli_ids_narrow(flp_dtype dtype, const int64_t *ids, int64_t count, void *out) {
  size_t element = flp_dtype_bytes(dtype);
  for (int64_t i = 0; i < count; i++) memcpy((char *)out + (size_t)i * element, &ids[i], element); /* little-endian */
}

int64_t cli_id_at(flp_dtype dtype, const void *ids, int64_t at) {
  int64_t wide = 0;
  int32_t narrow = 0;
  if (dtype == FLP_DTYPE_INT64) memcpy(&wide, (const char *)ids + at * 8, sizeof wide); /* of a file: anywhere */
  if (dtype == FLP_DTYPE_INT32) memcpy(&narrow, (const char *)ids + at * 4, sizeof narrow);
  return dtype == FLP_DTYPE_INT32 ? narrow : wide;
}

double cli_number_at(flp_dtype dtype, const void *numbers, int64_t at) {
  float wide;
  if (dtype == FLP_DTYPE_FP64) return ((const double *)numbers)[at];
  flp_half_widen(dtype, (const char *)numbers + at * flp_half_bytes(dtype), 1, &wide);
  return (double)wide;
}

int cli_by_value(const void *a, const void *b) {
  int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
  return (left > right) - (left < right);
}

/* ---- lists ---- */

/* 4·u³ has a mean of 1. The fraction is rounded up as often as keeps the mean. */
static int64_t draw_length(double mean, int64_t vocab, uint64_t seed) {
  double u = cli_unit(cli_hash(seed)), length = 1 + floor((mean - 1) * 4 * u * u * u + cli_unit(cli_hash(~seed)));
  return length < (double)vocab ? (int64_t)length : vocab;
}

static uint64_t row_seed(uint64_t seed, int64_t row) {
  return cli_hash(seed ^ (uint64_t)row << 20);
}

/* seen: (vocab) the last row, from 1, whose list has the id */
static void draw_list(const cli_zipf *zipf, int64_t target, int64_t row, int64_t length, uint64_t seed, int64_t *seen,
                      int64_t *out) {
  int64_t count = 0, next = 0;
  uint64_t draw = seed;
  if (target >= 0 && target < zipf->vocab) {
    seen[target] = row + 1;
    out[count++] = target;
  }
  while (count < length) {
    int64_t id = cli_zipf_draw(zipf, cli_hash(++draw));
    for (int i = 1; seen[id] == row + 1 && i < TRIES; i++) id = cli_zipf_draw(zipf, cli_hash(++draw));
    while (seen[id] == row + 1) id = zipf->order[next++];
    seen[id] = row + 1;
    out[count++] = id;
  }
  int64_t place = (int64_t)(cli_hash(~seed) % (uint64_t)length), first = out[0];
  out[0] = out[place];
  out[place] = first;
}

flp_status cli_lists_draw(const cli_zipf *zipf, const int64_t *target, int64_t n, double mean, uint64_t seed,
                          cli_lists *out) {
  int64_t *seen = calloc((size_t)zipf->vocab, sizeof *seen);
  *out = (cli_lists){.offsets = malloc(((size_t)n + 1) * sizeof *out->offsets)};
  if (out->offsets) {
    out->offsets[0] = 0;
    for (int64_t row = 0; row < n; row++)
      out->offsets[row + 1] = out->offsets[row] + draw_length(mean, zipf->vocab, row_seed(seed, row));
    out->ids = malloc(((size_t)out->offsets[n] + 1) * sizeof *out->ids);
  }
  int failed = !seen || !out->ids;
  for (int64_t row = 0; row < n && !failed; row++)
    draw_list(zipf, target[row], row, out->offsets[row + 1] - out->offsets[row], row_seed(~seed, row), seen,
              out->ids + out->offsets[row]);
  free(seen);
  if (!failed) return FLP_OK;
  cli_lists_destroy(out);
  return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the lists of %lld rows", (long long)n);
}

void cli_lists_destroy(cli_lists *lists) {
  free(lists->offsets);
  free(lists->ids);
  *lists = (cli_lists){0};
}
