/* search_case.h: a simulated device for tests of the search, which fails the test if it is asked for what must not be;
 * lists of candidates on it, and a search with a look at what holds for every one that succeeds. */
#ifndef FLP_TEST_SEARCH_CASE_H
#define FLP_TEST_SEARCH_CASE_H

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "autotune/search.h"
#include "runtime/base/status.h"

enum { MOST = 256 };

/* A device whose candidates take known times, give or take noise. */
typedef struct simulated {
  search_candidate list[MOST];
  int count;
  double ms[MOST];
  int wrong[MOST], broken[MOST]; /* found out when made: wrong numbers; cannot be made */
  double noise;                  /* every sample is within +- so much of the time, relative */
  double prepare_s, round_s;     /* of a candidate */
  int beside;                    /* samples of a round beside those of candidates */
  double clock, stop_at;         /* seconds */
  int fail_at;                   /* the so many'th group of bursts fails */
  uint64_t random;
  int verified[MOST], times_timed[MOST], times_prepared[MOST], groups, last_groups;
  double before_last; /* seconds at which the last pass began */
  search_status noted[MOST];
  double progress;
  search_result result;
} simulated;

static simulated sim;

static inline double uniform(void) {
  sim.random = sim.random * 6364136223846793005u + 1442695040888963407u;
  return (double)(sim.random >> 11) / 0x1p53;
}

static inline int place(const search_candidate *c) {
  cr_assert(c >= sim.list && c < sim.list + sim.count);
  return (int)(c - sim.list);
}

static inline flp_status prepare(void *context, search_candidate *const *list, int count) {
  cr_assert_eq(context, &sim);
  for (int i = 0; i < count; i++) {
    int at = place(list[i]);
    search_candidate *c = list[i];
    cr_assert(c->status == SEARCH_WAITING || c->status == SEARCH_TIMED, "%d is %s", at, search_status_name(c->status));
    cr_assert(!c->ready && !sim.verified[at]);
    sim.clock += sim.prepare_s;
    sim.times_prepared[at]++;
    c->ready = sim.verified[at] = !sim.wrong[at] && !sim.broken[at];
    if (c->ready) continue;
    c->status = sim.wrong[at] ? SEARCH_WRONG : SEARCH_FAILED;
    strcpy(c->reason, sim.wrong[at] ? "off by 7" : "does not load");
  }
  return FLP_OK;
}

static inline measure_summary sample(double ms, int rounds) {
  double samples[MEASURE_ROUNDS_MAX];
  for (int i = 0; i < rounds; i++) samples[i] = ms * (1 + sim.noise * (2 * uniform() - 1));
  return measure_summarise(samples, rounds);
}

static inline flp_status time_group(void *context, search_candidate *const *list, int count, int rounds, int is_last,
                                    uint64_t seed, search_sample *out) {
  cr_assert_eq(context, &sim);
  cr_assert_eq(sim.last_groups, 0, "timed after the last pass");
  sim.last_groups += is_last;
  if (is_last) sim.before_last = sim.clock;
  cr_assert(count >= 1 && rounds >= 1);
  sim.random ^= seed * 0x9e3779b97f4a7c15u;
  if (++sim.groups == sim.fail_at) return flp_fail(FLP_ERROR_DRIVER, "the device is gone");
  measure_summary reference = sample(sim.ms[0], rounds);
  sim.clock += sim.beside * rounds * sim.round_s;
  for (int i = 0; i < count; i++) {
    int at = place(list[i]);
    cr_assert(list[i]->ready && sim.verified[at], "%d is timed and was not verified", at);
    for (int j = 0; j < i; j++) cr_assert_neq(list[i], list[j], "twice in one group");
    sim.clock += rounds * sim.round_s;
    sim.times_timed[at]++;
    out[i] = (search_sample){at == 0 ? reference : sample(sim.ms[at], rounds), reference};
  }
  return FLP_OK;
}

static inline double now(void *context) {
  return ((simulated *)context)->clock;
}

static inline int stopped(void *context) {
  (void)context;
  return sim.stop_at > 0 && sim.clock >= sim.stop_at;
}

static inline void release(void *context, search_candidate *c) {
  (void)context;
  cr_assert(sim.verified[place(c)], "released and not held");
  sim.verified[place(c)] = 0;
}

static inline void note(void *context, search_candidate *c) {
  (void)context;
  sim.noted[place(c)] = c->status;
}

static inline void progress(void *context, double fraction) {
  (void)context;
  cr_expect(fraction >= 0 && fraction <= 1, "%g", fraction);
  sim.progress = fraction;
}

/* ---- lists ---- */

static inline void add(double predicted_ms, double ms) {
  cr_assert_lt(sim.count, MOST);
  sim.list[sim.count] = (search_candidate){.kind = FLP_KERNEL_FORWARD,
                                           .is_default = sim.count == 0,
                                           .tune = {.raster = (uint32_t)sim.count + 1},
                                           .predicted_ms = predicted_ms,
                                           .error = -1,
                                           .clock_mhz = -1,
                                           .power_w = -1};
  sim.ms[sim.count++] = ms;
}

/* The default at 1 ms and so many others that are predicted a little better, in no order, and are no faster. */
static inline void start(int others, uint64_t seed) {
  sim = (simulated){.random = seed, .noise = 0.002, .prepare_s = 0.01, .round_s = 0.01};
  add(1, 1);
  for (int i = 0; i < others; i++) add(0.9 + 0.1 * uniform(), 1 + 0.3 * uniform());
}

static inline flp_status try_search(const search_options *options) {
  search_device device = {.context = &sim,
                          .prepare = prepare,
                          .time = time_group,
                          .now = now,
                          .stopped = stopped,
                          .release = release,
                          .note = note,
                          .progress = progress};
  return search_run(sim.list, sim.count, options, &device, &sim.result);
}

/* Searches and returns the place of what is chosen, after a look at what holds for every search that succeeds. */
static inline int search(search_effort effort, double budget_s, uint64_t seed) {
  search_options options = search_options_of(effort);
  options.budget_s = budget_s;
  options.seed = seed;
  cr_assert_eq(try_search(&options), FLP_OK, "%s", flp_error_detail());
  int at = sim.result.chosen, timed = 0;
  cr_assert(at >= 0 && at < sim.count);
  cr_expect(sim.times_timed[at] > 0 || sim.list[at].rounds > 0, "chosen and not timed");
  cr_expect(!sim.wrong[at] && !sim.broken[at]);
  for (int i = 0; i < sim.count; i++) {
    const search_candidate *c = &sim.list[i];
    cr_expect_eq(c->status == SEARCH_CHOSEN, i == at, "%d is %s", i, search_status_name(c->status));
    cr_expect(i == 0 || (!c->ready && !sim.verified[i]), "%d is still held", i);
    if (sim.times_prepared[i])
      cr_expect_eq(sim.noted[i], c->status, "%d: noted as %s", i, search_status_name(sim.noted[i]));
    timed += c->status == SEARCH_TIMED || c->status == SEARCH_CHOSEN;
  }
  cr_expect_eq(sim.result.timed, timed);
  cr_expect_eq(sim.progress, 1);
  return at;
}

/* So little that two medians never differ by what the search at least takes for noise. */
static const double calm = 0.0009;

/* So many candidates are equally fast, and predicted otherwise than they are listed. Returns the first by
 * prediction. */
static inline int start_ties(int ties, uint64_t seed, double noise) {
  start(80, 5); /* the same list whatever the seed */
  sim.random = seed * 77;
  sim.noise = noise;
  for (int i = 1; i <= ties; i++) {
    int at = 3 * i % 80 + 1;
    sim.ms[at] = 0.8;
    sim.list[at].predicted_ms = 0.93 - 1e-4 * i;
  }
  return 3 * ties % 80 + 1;
}

#endif
