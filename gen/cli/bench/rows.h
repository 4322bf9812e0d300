/* rows.h: operands whose softmax rows are as sharp as a trained model's, from a seed, in the parts that make them.
 *
 * Random operands give nearly uniform rows, which no trained model has. Here a row favours ROWS_FAVOURED columns, drawn
 * by Zipf's law over a shuffled vocabulary: they score ROWS_TOP - fall * log(rank) nats, all others what chance gives.
 * The row gets the entropy that was drawn for it by one of three means, in this order: its first column is raised, by
 * at most ROWS_RAISE (one column far above an ordinary tail); fall goes from ROWS_FALL down to 0; all scores shrink. One
 * number of a row, from ROWS_LEAST to ROWS_MOST, stands for the three: the larger, the lower the entropy.
 * Chance gives more where D is small: a row that scores so at its columns has a norm near 140, and others deviate by
 * that over √D, 2.2 nats at D = 4096 and 3.1 at 2048. Entropies are as they were drawn at any D; tails are not: five
 * times as heavy there.
 *
 *   kind     entropies of the rows in nats
 *   policy   of a reasoning policy on its own samples: half of the tokens below 0.01, a fifth above 0.672
 *            source: arXiv:2506.01939, section 3
 *   text     of a small model on source code that it did not see, at temperature 0.6
 *   base     of the same model at temperature 1
 *
 * Invariants: weight has rows of norm 1; entropies are those that a forward plan of the same head gives for operands
 * that are rounded to their dtype, with bias, softcap, scale and temperature; the same seed gives the same elements,
 * whatever the number of threads. */
#ifndef FLPGEN_CLI_BENCH_ROWS_H
#define FLPGEN_CLI_BENCH_ROWS_H

#include "gen/cli/call/call.h"
#include "gen/cli/shared/common.h"

enum { ROWS_FAVOURED = 160, ROWS_QUANTILES = 6 };
#define ROWS_TOP 20.0
#define ROWS_FALL 2.4
#define ROWS_RAISE 24.0
#define ROWS_SIGMA 0.8 /* of the scores that chance gives */
#define ROWS_LEAST -2.0
#define ROWS_MOST 1.0

/* What rows are made of. */
typedef struct rows_request {
  cli_data kind; /* not RANDOM */
  uint64_t seed;
  const call_problem *call;   /* of the whole head: its spec, n, scale, and whether temperatures go by row */
  const flp_options *options; /* device and rung of the plan that gives entropies */
} rows_request;

/* ---- rows.c ---- */

/* Makes the weight of the call in its id. error: MEMORY, DRIVER */
flp_status rows_make_weight(const call_problem *call, uint64_t seed, call_buffers *buffers);
/* Makes the hidden states in their id; weight, bias and temperatures are in theirs.
 * target:  (n) drawn from the row's own softmax
 * entropy: (n) of the rows as they are, nats
 * error:   MEMORY, DRIVER, any of flp_plan_create and flp_execute; UNAVAILABLE if only the CPU could compute a GPU's
 *          rows */
flp_status rows_make(const rows_request *request, call_buffers *buffers, int64_t *target, float *entropy);

/* The ids of the vocabulary by how many rows favour them; and the columns that a row favours, best first.
 * out: (V); (rows_favoured) */
void rows_order(const rows_request *request, int64_t *out);
void rows_favourites(const rows_request *request, int64_t row, const int64_t *order, int64_t *out);

/* ---- draw.c: what is drawn for a row; pure ---- */

/* "random", "policy", "text", "base" */
const char *rows_kind_name(cli_data kind);
/* Number i of a stream, in [0, 1). */
double rows_uniform(uint64_t stream, uint64_t i);
/* The entropy below which a fraction of the rows of a kind lies, nats. */
double rows_quantile(cli_data kind, double fraction);
/* The same, of a vocabulary that can hold it. */
double rows_entropy(cli_data kind, int64_t vocab, double fraction);
/* The fractions that are reported, rising, and the entropies that they are of. Sorts entropy (n); n > 0 */
extern const double ROWS_FRACTIONS[ROWS_QUANTILES];
void rows_quantiles(float *entropy, int64_t n, double out[ROWS_QUANTILES]);
/* All ids of a vocabulary in random order. out: (vocab) */
void rows_shuffle(uint64_t stream, int64_t vocab, int64_t *out);
/* Columns that a row favours: ROWS_FAVOURED, or all of a small vocabulary. */
int rows_favoured(int64_t vocab);
/* Which, by rank: different ones. out: (rows_favoured) */
void rows_favour(uint64_t stream, int64_t row, const int64_t *shuffled, int64_t vocab, int64_t *out);

/* ---- mixture.c: hidden states with given scores ---- */

enum { ROWS_BLOCK = 64, ROWS_PARTS = 3 };

/* The columns of one row, side by side in blocks of ROWS_BLOCK elements, the last one filled up with zeros. */
typedef struct rows_columns {
  int count;
  int64_t depth; /* D */
  float *block;  /* (blocks, count, ROWS_BLOCK) */
} rows_columns;

/* error: MEMORY */
flp_status rows_columns_create(int count, int64_t depth, rows_columns *out);
void rows_columns_destroy(rows_columns *columns);
/* Column k. values: (D) */
void rows_columns_set(rows_columns *columns, int k, const float *values);

/* The parts of hidden states: level, whose scores at the columns are ROWS_TOP and elsewhere those of chance; slope,
 * log(rank); first, 1 at the first column and 0 at the others. chance: (D). out: (ROWS_PARTS, D) */
void rows_parts(const rows_columns *columns, const float *chance, float *out);
/* The hidden states of a number from ROWS_LEAST to ROWS_MOST. parts: as rows_parts has them. out: (D) */
void rows_mix(const float *parts, int64_t depth, double number, double scale, float *out);

/* ---- softmax.c ---- */

/* The scores of the rows of a head, by slices of its vocabulary. */
typedef struct rows_scores {
  const call_problem *call;           /* whose shards are the slices */
  const void *hidden, *weight, *bias; /* host, dtype; bias NULL for none */
  const float *temperature;           /* (n) or NULL: the call's */
  const float *partial;               /* (shards, n, 4) as forward gives them; NULL for one slice */
} rows_scores;

/* Draws the target of each row from its softmax: first a slice, by the sums of forward, then a column of it, by scores
 * that are computed here. stream: of two numbers a row. error: MEMORY */
flp_status rows_draw_targets(const rows_scores *scores, uint64_t stream, int64_t *target);

/* ---- entropies.c: a forward plan of the head ---- */

typedef struct rows_plan {
  flp_plan *plan;
  call_problem whole, sliced; /* the same rows, in one call or in a call for each slice */
  call_buffers buffers;       /* operands are borrowed */
} rows_plan;

/* Makes the plan and what its passes write; the operands' buffers outlive it. error: as rows_make */
flp_status rows_plan_create(const rows_request *request, const call_buffers *operands, rows_plan *out);
void rows_plan_destroy(rows_plan *plan);
/* Entropies (n) of what the id of hidden states holds now. error: DRIVER */
flp_status rows_plan_entropies(rows_plan *plan, float *out);
/* Partial results by slice, malloc'ed; NULL where there is one. error: MEMORY, DRIVER */
flp_status rows_plan_partials(rows_plan *plan, float **out);

#endif
