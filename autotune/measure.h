/* measure.h: times pieces of device work against each other in one run.
 *
 * Each piece is repeated in bursts long enough for clocks and power to settle, one burst of every piece a round, in an
 * order that is random and new each round: in a fixed order a slow piece would favour the one that follows it. The
 * median over the rounds stands for a piece, least and greatest for the noise. */
#ifndef FLP_AUTOTUNE_MEASURE_H
#define FLP_AUTOTUNE_MEASURE_H

#include "runtime/driver/driver.h"

enum { MEASURE_ITEMS_MAX = 64, MEASURE_ROUNDS_MAX = 1000, MEASURE_REPEATS_MAX = 1000000 };

/* A piece of work: enqueues itself once on the stream and returns without waiting. */
typedef struct measure_item {
  flp_status (*enqueue)(void *context, CUstream stream);
  void *context;
  double call_ms; /* that a call takes, about, where it has run before; 0: not known */
} measure_item;

typedef struct measure_options {
  double burst_ms; /* least length of a burst, > 0 */
  int rounds;      /* 1 to MEASURE_ROUNDS_MAX */
  uint64_t seed;   /* of the order */
  double settle_ms; /* work that is done before the first round, at least, so that clocks and power are those of work */
} measure_options;

#define MEASURE_OPTIONS_INIT \
  { 75.0, 7, 1, 0.0 }

/* unit: milliseconds a call, unless stated otherwise */
typedef struct measure_summary {
  double median, low, high; /* over the rounds; low and high are the least and the greatest */
} measure_summary;

/* ---- measure_stats.c: pure ---- */

/* Sorts the samples. count >= 1; the median of an even count is the mean of the two in the middle. */
measure_summary measure_summarise(double *samples, int count);

/* Writes a permutation of 0..count-1, every one equally likely. state: of the generator, advanced */
void measure_order(int count, uint64_t *state, int *order);

/* Calls that fill a burst with a tenth to spare, as clocks rise while they run. unit: milliseconds
 * A call is taken to last 1 us at least: nothing can be launched faster. */
int64_t measure_repeats(double call_ms, double burst_ms);

/* ---- measure.c: on a device, whose context is current on this thread ---- */

typedef struct measure_clock {
  const flp_driver *driver;
  CUstream stream;
  CUevent start, stop;
} measure_clock;

/* error: DRIVER */
flp_status measure_clock_create(const flp_driver *driver, CUstream stream, measure_clock *out);
/* A zeroed clock is fine. */
void measure_clock_destroy(measure_clock *clock);

/* Time on the stream of that many calls in a row, together. unit: milliseconds
 * error: DRIVER; the item's own */
flp_status measure_burst(measure_clock *clock, const measure_item *item, int64_t repeats, double *out_ms);

/* Times every item in bursts; out: one summary an item. error: ARGUMENT; as measure_burst */
flp_status measure_run(measure_clock *clock, const measure_item *items, int count, const measure_options *options,
                       measure_summary *out);

/* How much longer one item takes than another, call by call in turn without a pause, so that clocks, power and heat are
 * the same for both: over the pairs, a call of `item` over the mean of the calls of `beside` before and behind it. out:
 * low and high are the quartiles. pairs: 1 to MEASURE_ROUNDS_MAX. unit: none. error: ARGUMENT, MEMORY; as measure_burst */
flp_status measure_in_turn(measure_clock *clock, const measure_item *item, const measure_item *beside, int pairs,
                           measure_summary *out);

/* What a call costs the host: the time until it returns, over batches of calls short enough not to fill the launch
 * queue, each begun with the stream idle. unit: microseconds a call. error: ARGUMENT; as measure_burst */
flp_status measure_host(measure_clock *clock, const measure_item *item, int64_t calls, int batches,
                        measure_summary *out);

#endif
