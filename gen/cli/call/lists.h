/* lists.h: kept sets drawn from a seed: of each row a list of columns, such as the mask of a sampler's top-p leaves.
 *
 * Lengths have a mean and run from 1 to about four times that; most are below it. Ids fall off by Zipf's law over a
 * vocabulary in an order of its own, so that frequent ones stand in the lists of many rows. In one list each id stands
 * once, in no order. */
#ifndef FLPGEN_CLI_LISTS_H
#define FLPGEN_CLI_LISTS_H

#include <stdint.h>

#include "runtime/flp.h"

typedef struct cli_zipf {
  int64_t vocab;
  int32_t *order; /* owned: (vocab) ids from the most frequent on */
} cli_zipf;

/* error: MEMORY */
flp_status cli_zipf_create(int64_t vocab, uint64_t seed, cli_zipf *out);
/* The id that the bits of a hash stand for. */
int64_t cli_zipf_draw(const cli_zipf *zipf, uint64_t hash);
/* A zeroed one is fine. */
void cli_zipf_destroy(cli_zipf *zipf);

typedef struct cli_lists {
  int64_t *offsets; /* owned: (n + 1) */
  int64_t *ids;     /* owned: (offsets[n]) */
} cli_lists;

/* Draws n lists. target: (n) ids that their lists hold; one outside the vocabulary is left out. mean: 1 to vocab, which
 * no list is longer than. error: MEMORY */
flp_status cli_lists_draw(const cli_zipf *zipf, const int64_t *target, int64_t n, double mean, uint64_t seed,
                          cli_lists *out);
/* A zeroed one is fine. */
void cli_lists_destroy(cli_lists *lists);

/* For qsort and bsearch. */
int cli_by_value(const void *a, const void *b);
/* Writes ids as a dtype of targets, and reads one. */
void cli_ids_narrow(flp_dtype dtype, const int64_t *ids, int64_t count, void *out);
int64_t cli_id_at(flp_dtype dtype, const void *ids, int64_t at);
/* Reads a number of a dtype of operands, fp64 among them. */
double cli_number_at(flp_dtype dtype, const void *numbers, int64_t at);

#endif
