/* measure.c: bursts of device work between two events, interleaved in random order. */
#include "autotune/measure.h"

#include <stdlib.h>
#include <time.h>

#include "runtime/base/status.h"

/* Limit of repetitions of a burst that was too short because clocks rose since it was sized. */
enum { BURST_TRIES = 4 };

static flp_status check(const measure_clock *clock, CUresult result, const char *what) {
  return flp_driver_status(clock->driver, result, what);
}

flp_status measure_clock_create(const flp_driver *driver, CUstream stream, measure_clock *out) {
  *out = (measure_clock){.driver = driver, .stream = stream};
  flp_status status = check(out, driver->cuEventCreate(&out->start, 0), "cuEventCreate");
  if (status == FLP_OK) status = check(out, driver->cuEventCreate(&out->stop, 0), "cuEventCreate");
  if (status != FLP_OK) measure_clock_destroy(out);
  return status;
}

void measure_clock_destroy(measure_clock *clock) {
  if (clock->start) clock->driver->cuEventDestroy_v2(clock->start);
  if (clock->stop) clock->driver->cuEventDestroy_v2(clock->stop);
  *clock = (measure_clock){0};
}

flp_status measure_burst(measure_clock *clock, const measure_item *item, int64_t repeats, double *out_ms) {
  const flp_driver *driver = clock->driver;
  float milliseconds = 0;
  *out_ms = 0;
  FLP_TRY(check(clock, driver->cuEventRecord(clock->start, clock->stream), "cuEventRecord"));
  for (int64_t i = 0; i < repeats; i++) FLP_TRY(item->enqueue(item->context, clock->stream));
  FLP_TRY(check(clock, driver->cuEventRecord(clock->stop, clock->stream), "cuEventRecord"));
  FLP_TRY(check(clock, driver->cuEventSynchronize(clock->stop), "cuEventSynchronize"));
  FLP_TRY(check(clock, driver->cuEventElapsedTime(&milliseconds, clock->start, clock->stop), "cuEventElapsedTime"));
  *out_ms = (double)milliseconds;
  return FLP_OK;
}

/* Sizes the bursts of an item. An item whose single call fills a burst needs no trial. Others need one call to warm up
 * and, unless that lasts two bursts, one call for an estimate and a quarter of a burst to refine it. */
static flp_status calibrate(measure_clock *clock, const measure_item *item, double burst_ms, int64_t *repeats) {
  double ms = 0;
  *repeats = 1;
  if (item->call_ms >= burst_ms) return FLP_OK;
  FLP_TRY(measure_burst(clock, item, 1, &ms));
  if (ms >= 2 * burst_ms) return FLP_OK;
  FLP_TRY(measure_burst(clock, item, 1, &ms));
  int64_t trial = measure_repeats(ms, 0.25 * burst_ms);
  FLP_TRY(measure_burst(clock, item, trial, &ms));
  *repeats = measure_repeats(ms / (double)trial, burst_ms);
  return FLP_OK;
}

static flp_status take_sample(measure_clock *clock, const measure_item *item, double burst_ms, int64_t *repeats,
                              double *out_call_ms) {
  double ms = 0;
  for (int i = 0; i < BURST_TRIES; i++) {
    FLP_TRY(measure_burst(clock, item, *repeats, &ms));
    *out_call_ms = ms / (double)*repeats;
    if (ms >= burst_ms || *repeats >= MEASURE_REPEATS_MAX) return FLP_OK;
    *repeats = measure_repeats(*out_call_ms, burst_ms);
  }
  return FLP_OK;
}

static flp_status check_run(int count, const measure_options *options) {
  if (count < 1 || count > MEASURE_ITEMS_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "count is %d (accepted: 1 to %d items)", count, MEASURE_ITEMS_MAX);
  if (options->rounds < 1 || options->rounds > MEASURE_ROUNDS_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "rounds is %d (accepted: 1 to %d)", options->rounds, MEASURE_ROUNDS_MAX);
  if (!(options->burst_ms > 0))
    return flp_fail(FLP_ERROR_ARGUMENT, "burst_ms is %g (accepted: more than 0)", options->burst_ms);
  return FLP_OK;
}

/* Bursts of all items in turn until they have worked for long enough. */
static flp_status settle(measure_clock *clock, const measure_item *items, int count, const int64_t *repeats,
                         double settle_ms) {
  double done = 0, ms = 0;
  for (int i = 0; done < settle_ms; i = (i + 1) % count) {
    FLP_TRY(measure_burst(clock, &items[i], repeats[i], &ms));
    done += ms > 0 ? ms : 1;
  }
  return FLP_OK;
}

/* samples: [item][round] */
static flp_status run_rounds(measure_clock *clock, const measure_item *items, int count, const measure_options *options,
                             double *samples) {
  int64_t repeats[MEASURE_ITEMS_MAX];
  int order[MEASURE_ITEMS_MAX];
  uint64_t state = options->seed;
  for (int i = 0; i < count; i++) FLP_TRY(calibrate(clock, &items[i], options->burst_ms, &repeats[i]));
  FLP_TRY(settle(clock, items, count, repeats, options->settle_ms));
  for (int round = 0; round < options->rounds; round++) {
    measure_order(count, &state, order);
    for (int i = 0; i < count; i++) {
      int item = order[i];
      FLP_TRY(take_sample(clock, &items[item], options->burst_ms, &repeats[item],
                          &samples[item * options->rounds + round]));
    }
  }
  return FLP_OK;
}

flp_status measure_run(measure_clock *clock, const measure_item *items, int count, const measure_options *options,
                       measure_summary *out) {
  FLP_TRY(check_run(count, options));
  double *samples = calloc((size_t)count * (size_t)options->rounds, sizeof *samples);
  if (!samples) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the samples");
  flp_status status = run_rounds(clock, items, count, options, samples);
  for (int i = 0; i < count && status == FLP_OK; i++)
    out[i] = measure_summarise(samples + i * options->rounds, options->rounds);
  free(samples);
  return status;
}

/* Calls of two items in turn, the first and the last of items[0], with an event behind each and before all. */
static flp_status enqueue_turns(measure_clock *clock, const measure_item *const items[2], int calls, CUevent *events) {
  const flp_driver *driver = clock->driver;
  for (int i = 0; i <= calls; i++) {
    FLP_TRY(check(clock, driver->cuEventCreate(&events[i], 0), "cuEventCreate"));
    if (i > 0) FLP_TRY(items[(i - 1) % 2]->enqueue(items[(i - 1) % 2]->context, clock->stream));
    FLP_TRY(check(clock, driver->cuEventRecord(events[i], clock->stream), "cuEventRecord"));
  }
  return check(clock, driver->cuEventSynchronize(events[calls]), "cuEventSynchronize");
}

static flp_status compare_turns(measure_clock *clock, CUevent *events, int pairs, double *ratios) {
  float ms[3] = {0};
  for (int pair = 0; pair < pairs; pair++) {
    for (int i = 0; i < 3; i++)
      FLP_TRY(check(clock,
                    clock->driver->cuEventElapsedTime(&ms[i], events[2 * pair + i], events[2 * pair + i + 1]),
                    "cuEventElapsedTime"));
    ratios[pair] = 2 * (double)ms[1] / ((double)ms[0] + (double)ms[2]);
  }
  return FLP_OK;
}

flp_status measure_in_turn(measure_clock *clock, const measure_item *item, const measure_item *beside, int pairs,
                           measure_summary *out) {
  if (pairs < 1 || pairs > MEASURE_ROUNDS_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "pairs is %d (accepted: 1 to %d)", pairs, MEASURE_ROUNDS_MAX);
  int calls = 2 * pairs + 1;
  const measure_item *const items[2] = {beside, item};
  CUevent *events = calloc((size_t)calls + 1, sizeof *events);
  double *ratios = calloc((size_t)pairs, sizeof *ratios);
  flp_status status = events && ratios ? enqueue_turns(clock, items, calls, events)
                                       : flp_fail(FLP_ERROR_MEMORY, "out of host memory for %d events", calls);
  if (status == FLP_OK) status = compare_turns(clock, events, pairs, ratios);
  if (status == FLP_OK) {
    *out = measure_summarise(ratios, pairs);
    out->low = ratios[pairs / 4];
    out->high = ratios[3 * pairs / 4];
  }
  for (int i = 0; events && i <= calls; i++)
    if (events[i]) clock->driver->cuEventDestroy_v2(events[i]);
  free(events);
  free(ratios);
  return status;
}

static double microseconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

flp_status measure_host(measure_clock *clock, const measure_item *item, int64_t calls, int batches,
                        measure_summary *out) {
  if (calls < 1 || batches < 1 || batches > MEASURE_ROUNDS_MAX)
    return flp_fail(FLP_ERROR_ARGUMENT, "calls is %lld and batches is %d (accepted: at least 1, and 1 to %d)",
                    (long long)calls, batches, MEASURE_ROUNDS_MAX);
  double samples[MEASURE_ROUNDS_MAX];
  for (int batch = -1; batch < batches; batch++) { /* the first, of cold caches, is not kept */
    FLP_TRY(check(clock, clock->driver->cuStreamSynchronize(clock->stream), "cuStreamSynchronize"));
    double start = microseconds_now();
    for (int64_t i = 0; i < calls; i++) FLP_TRY(item->enqueue(item->context, clock->stream));
    if (batch >= 0) samples[batch] = (microseconds_now() - start) / (double)calls;
  }
  *out = measure_summarise(samples, batches);
  return check(clock, clock->driver->cuStreamSynchronize(clock->stream), "cuStreamSynchronize");
}
