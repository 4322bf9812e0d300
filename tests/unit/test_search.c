/* test_search.c: the search on a simulated device, held to what search.h promises: what it chooses, what it never does,
 * when it ends. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "search.h"
#include "status.h"

enum { MOST = 256 };

/* A device whose candidates take known times, give or take noise. It fails the test if it is asked for what must not be. */
typedef struct simulated {
  search_candidate list[MOST];
  int count;
  double ms[MOST];
  int wrong[MOST], broken[MOST]; /* found out when made: wrong numbers; cannot be made */
  double noise;                  /* every sample is within +- so much of the time, relative */
  double prepare_s, round_s;     /* of a candidate */
  double clock, stop_at;         /* seconds */
  int fail_at;                   /* the so many'th group of bursts fails */
  uint64_t random;
  int verified[MOST], times_timed[MOST], times_prepared[MOST], groups;
  search_status noted[MOST];
  double progress;
  search_result result;
} simulated;

static simulated sim;

static double uniform(void) {
  sim.random = sim.random * 6364136223846793005u + 1442695040888963407u;
  return (double)(sim.random >> 11) / 0x1p53;
}

static int place(const search_candidate *c) {
  cr_assert(c >= sim.list && c < sim.list + sim.count);
  return (int)(c - sim.list);
}

static flp_status prepare(void *context, search_candidate *const *list, int count) {
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

static measure_summary sample(double ms, int rounds) {
  double samples[MEASURE_ROUNDS_MAX];
  for (int i = 0; i < rounds; i++) samples[i] = ms * (1 + sim.noise * (2 * uniform() - 1));
  return measure_summarise(samples, rounds);
}

static flp_status time_group(void *context, search_candidate *const *list, int count, int rounds, uint64_t seed,
                             search_sample *out) {
  cr_assert_eq(context, &sim);
  cr_assert(count >= 1 && rounds >= 1);
  sim.random ^= seed * 0x9e3779b97f4a7c15u;
  if (++sim.groups == sim.fail_at) return flp_fail(FLP_ERROR_DRIVER, "the device is gone");
  measure_summary reference = sample(sim.ms[0], rounds);
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

static double now(void *context) {
  return ((simulated *)context)->clock;
}

static int stopped(void *context) {
  (void)context;
  return sim.stop_at > 0 && sim.clock >= sim.stop_at;
}

static void release(void *context, search_candidate *c) {
  (void)context;
  cr_assert(sim.verified[place(c)], "released and not held");
  sim.verified[place(c)] = 0;
}

static void note(void *context, search_candidate *c) {
  (void)context;
  sim.noted[place(c)] = c->status;
}

static void progress(void *context, double fraction) {
  (void)context;
  cr_expect(fraction >= 0 && fraction <= 1, "%g", fraction);
  sim.progress = fraction;
}

/* ---- lists ---- */

static void add(double predicted_ms, double ms) {
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
static void start(int others, uint64_t seed) {
  sim = (simulated){.random = seed, .noise = 0.002, .prepare_s = 0.01, .round_s = 0.01};
  add(1, 1);
  for (int i = 0; i < others; i++) add(0.9 + 0.1 * uniform(), 1 + 0.3 * uniform());
}

static flp_status try_search(const search_options *options) {
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
static int search(search_effort effort, double budget_s, uint64_t seed) {
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

/* ---- what is chosen ---- */

/* So little that two medians never differ by what the search at least takes for noise. */
static const double calm = 0.0009;

static const search_effort efforts[] = {SEARCH_QUICK, SEARCH_NORMAL, SEARCH_EXHAUSTIVE};

Test(search, finds_the_planted_best) {
  for (int i = 0; i < 30; i++) {
    start(200, (uint64_t)i);
    int best = 1 + (i * 37) % 200;
    sim.list[best].predicted_ms = 0.9;
    sim.ms[best] = 0.93;
    sim.ms[(best + 1) % 200 + 1] = 0.96;
    cr_expect_eq(search(efforts[i % 3], 0, (uint64_t)i), best, "%s", search_effort_name(efforts[i % 3]));
    cr_expect_float_eq(sim.result.ms, 0.93, 0.01);
    cr_expect_float_eq(sim.list[best].ratio, 0.93, 0.01);
    cr_expect(sim.result.noise > 0 && sim.result.noise < 0.02, "%g", sim.result.noise);
  }
}

Test(search, the_default_stays_where_nothing_is_faster) {
  for (uint64_t seed = 1; seed <= 20; seed++) {
    start(60, seed);
    sim.noise = calm;
    for (int i = 1; i < sim.count; i++) sim.ms[i] = i % 2 ? 1 : 1.2;
    cr_expect_eq(search(SEARCH_NORMAL, 0, seed), 0);
    cr_expect_eq(sim.list[0].ratio, 1);
  }
}

Test(search, what_is_chosen_is_never_slower_than_the_default_by_more_than_the_noise) {
  for (uint64_t seed = 1; seed <= 60; seed++) {
    start(60, seed);
    sim.noise = 0.01;
    for (int i = 1; i < sim.count; i++) sim.ms[i] = 0.995 + 0.05 * uniform();
    int at = search(efforts[seed % 3], 0, seed);
    cr_expect_leq(sim.ms[at], 1.01, "seed %d: %g", (int)seed, sim.ms[at]);
  }
}

Test(search, a_list_of_the_default_alone_is_fine) {
  start(0, 1);
  cr_expect_eq(search(SEARCH_NORMAL, 60, 1), 0);
}

Test(search, what_is_wrong_or_broken_is_told_and_never_timed) {
  for (uint64_t seed = 1; seed <= 6; seed++) {
    start(60, seed);
    for (int i = 1; i <= 10; i++) sim.list[i].predicted_ms = 0.9;
    for (int i = 1; i <= 9; i++) sim.ms[i] = 0.5;
    for (int i = 1; i <= 5; i++) sim.wrong[i] = 1;
    for (int i = 6; i <= 9; i++) sim.broken[i] = 1;
    sim.ms[10] = 0.8;
    cr_expect_eq(search(efforts[seed % 3], 0, seed), 10);
    for (int i = 1; i <= 9; i++) {
      cr_expect_eq(sim.list[i].status, i <= 5 ? SEARCH_WRONG : SEARCH_FAILED);
      cr_expect_str_eq(sim.list[i].reason, i <= 5 ? "off by 7" : "does not load");
      cr_expect_eq(sim.times_timed[i], 0);
    }
  }
}

Test(search, nothing_but_the_default_may_work) {
  start(40, 1);
  for (int i = 1; i < sim.count; i++) sim.broken[i] = 1;
  cr_expect_eq(search(SEARCH_NORMAL, 0, 1), 0);
}

Test(search, a_default_that_is_wrong_ends_it) {
  start(40, 1);
  sim.wrong[0] = 1;
  search_options options = search_options_of(SEARCH_NORMAL);
  cr_expect_eq(try_search(&options), FLP_ERROR_INTERNAL);
  cr_expect(strstr(flp_error_detail(), "wrong") && strstr(flp_error_detail(), "off by 7"), "%s", flp_error_detail());
}

/* ---- ties ---- */

/* So many candidates are equally fast, and predicted otherwise than they are listed. Returns the first by prediction. */
static int start_ties(int ties, uint64_t seed, double noise) {
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

Test(search, ties_break_by_prediction_whatever_the_seed) {
  for (uint64_t seed = 1; seed <= 20; seed++)
    for (int ties = 1; ties <= 6; ties += 5) {
      int first = start_ties(ties, seed, calm);
      cr_expect_eq(search(seed % 2 ? SEARCH_NORMAL : SEARCH_EXHAUSTIVE, 0, seed), first, "%d of %d ties, seed %d",
                   sim.result.chosen, ties, (int)seed);
    }
}

Test(search, more_ties_than_finalists_break_by_prediction_whatever_the_seed) {
  for (uint64_t seed = 1; seed <= 20; seed++) {
    int first = start_ties(40, seed, calm);
    cr_expect_eq(search(seed % 2 ? SEARCH_NORMAL : SEARCH_EXHAUSTIVE, 0, seed), first, "%d, not %d, seed %d",
                 sim.result.chosen, first, (int)seed);
  }
}

Test(search, under_noise_one_of_the_fastest_is_chosen) {
  for (uint64_t seed = 1; seed <= 20; seed++) {
    start_ties(10, seed, 0.01);
    int at = search(SEARCH_NORMAL, 0, seed);
    cr_expect_eq(sim.ms[at], 0.8, "seed %d: %g", (int)seed, sim.ms[at]);
  }
}

Test(search, ties_in_prediction_break_by_the_place_in_the_list) {
  for (uint64_t seed = 1; seed <= 10; seed++) {
    start(30, 3);
    sim.random = seed;
    sim.noise = calm;
    for (int i = 7; i <= 10; i++) sim.ms[i] = sim.list[i].predicted_ms = 0.85;
    cr_expect_eq(search(SEARCH_NORMAL, 0, seed), 7);
  }
}

Test(search, the_order_of_the_list_does_not_matter_where_predictions_differ) {
  for (uint64_t seed = 1; seed <= 10; seed++) {
    start(60, 9); /* the same list, shuffled */
    sim.noise = calm;
    sim.ms[20] = sim.ms[30] = 0.8;
    sim.list[20].predicted_ms = 0.91;
    sim.list[30].predicted_ms = 0.92;
    uint64_t state = seed;
    int order[60];
    simulated before = sim;
    measure_order(60, &state, order);
    for (int i = 0; i < 60; i++) {
      sim.list[1 + i] = before.list[1 + order[i]];
      sim.ms[1 + i] = before.ms[1 + order[i]];
    }
    cr_expect_eq(sim.list[search(SEARCH_NORMAL, 0, 1)].tune.raster, before.list[20].tune.raster);
  }
}

/* ---- when it ends ---- */

Test(search, the_deadline_is_kept) {
  for (int i = 0; i < 12; i++) {
    double budget = 2 + 3 * i;
    start(200, (uint64_t)i);
    sim.prepare_s = 0.2;
    sim.round_s = 0.1;
    int best = 50;
    for (int c = 1; c < sim.count; c++)
      if (sim.list[c].predicted_ms < sim.list[best].predicted_ms) best = c;
    sim.ms[best] = 0.7;
    cr_expect_eq(search(SEARCH_EXHAUSTIVE, budget, 1), best, "what is predicted to be the best is tried first");
    cr_expect(sim.result.out_of_time && !sim.result.stopped);
    /* a group that has begun is ended, and the finalists are always timed */
    cr_expect(sim.clock < budget + 16 * (0.2 + 2 * 0.1) + 9 * (0.2 + 9 * 0.1), "%g s of %g", sim.clock, budget);
    int waiting = 0;
    for (int c = 0; c < sim.count; c++) waiting += sim.list[c].status == SEARCH_WAITING;
    cr_expect_gt(waiting, 0, "what was not tried is still waiting");
  }
}

Test(search, without_a_budget_everything_is_tried) {
  start(200, 1);
  sim.prepare_s = 1000;
  search(SEARCH_EXHAUSTIVE, 0, 1);
  cr_expect(!sim.result.out_of_time);
  for (int i = 0; i < sim.count; i++) cr_expect_neq(sim.list[i].status, SEARCH_WAITING);
}

Test(search, what_was_found_until_it_is_stopped_is_kept) {
  for (int i = 1; i <= 30; i++) {
    start(100, 4);
    for (int c = 1; c < sim.count; c++) sim.ms[c] = 0.9;
    sim.stop_at = 0.1 * i;
    int at = search(SEARCH_EXHAUSTIVE, 0, 1);
    cr_expect(sim.result.stopped && !sim.result.out_of_time);
    cr_expect_eq(at > 0, sim.result.timed > 1, "one of %d that were timed", sim.result.timed);
    cr_expect_lt(sim.clock, sim.stop_at + 10 * (0.01 + 9 * 0.01));
  }
}

Test(search, one_that_is_stopped_at_once_keeps_the_default) {
  start(100, 4);
  sim.stop_at = 1e-9;
  cr_expect_eq(search(SEARCH_NORMAL, 60, 1), 0);
  cr_expect_eq(sim.result.stopped, 1);
  cr_expect_eq(sim.groups, 1);
}

/* Where candidates take long to make, the group that is made whatever the deadline is what passes it. */
Test(search, a_quick_one_begins_with_a_small_group) {
  double end[2];
  for (int i = 0; i < 2; i++) {
    search_options options = search_options_of(SEARCH_QUICK);
    start(60, 1);
    sim.prepare_s = 1;
    options.budget_s = 5;
    cr_expect_eq(options.group, 8);
    if (i == 1) options.group = 0;
    cr_assert_eq(try_search(&options), FLP_OK, "%s", flp_error_detail());
    cr_expect_eq(sim.result.tried, i == 0 ? 7 : 15);
    end[i] = sim.clock;
  }
  cr_expect_lt(end[0], 0.7 * end[1], "%g s of %g s", end[0], end[1]);
}

Test(search, an_error_of_the_device_ends_it_and_nothing_is_held) {
  for (int fail_at = 1; fail_at <= 12; fail_at++) {
    start(60, 1);
    sim.fail_at = fail_at;
    search_options options = search_options_of(SEARCH_NORMAL);
    options.budget_s = 0;
    flp_status status = try_search(&options);
    if (fail_at <= 8) cr_expect_eq(status, FLP_ERROR_DRIVER);
    if (status != FLP_OK) cr_expect_str_eq(flp_error_detail(), "the device is gone");
    for (int i = 1; i < sim.count; i++) cr_expect(!sim.verified[i]);
  }
}

/* ---- going on ---- */

static void came_timed(int i, double ratio, int rounds) {
  search_candidate *c = &sim.list[i];
  c->status = SEARCH_TIMED;
  c->rounds = rounds;
  c->ratio = ratio;
  c->ms = (measure_summary){ratio, ratio, ratio};
}

Test(search, what_came_timed_is_timed_again_among_the_finalists_only) {
  start(60, 2);
  for (int i = 1; i <= 30; i++) came_timed(i, 1.1 + 0.01 * i, 1);
  came_timed(5, 0.7, 7);
  sim.ms[5] = 0.7;
  cr_expect_eq(search(SEARCH_NORMAL, 0, 1), 5);
  cr_expect_gt(sim.times_prepared[5], 0, "verified in this process too");
  int again = 0;
  for (int i = 1; i <= 30; i++) again += sim.times_timed[i] > 0;
  cr_expect_lt(again, 20, "%d of 30", again);
}

Test(search, what_came_timed_and_is_wrong_now_is_not_chosen) {
  start(60, 2);
  came_timed(5, 0.7, 7);
  sim.wrong[5] = 1;
  sim.ms[6] = 0.8;
  cr_expect_eq(search(SEARCH_NORMAL, 0, 1), 6);
  cr_expect_eq(sim.list[5].status, SEARCH_WRONG);
}

Test(search, what_came_rejected_is_left_alone) {
  static const search_status rejected[] = {SEARCH_WRONG, SEARCH_FAILED, SEARCH_ILLEGAL};
  start(60, 2);
  for (int i = 1; i <= 3; i++) {
    sim.list[i].status = rejected[i - 1];
    sim.list[i].predicted_ms = 0.1; /* would it count, all others were pruned */
    strcpy(sim.list[i].reason, "as before");
  }
  sim.list[3].predicted_ms = 0;
  search(SEARCH_EXHAUSTIVE, 0, 1);
  for (int i = 1; i <= 3; i++) {
    cr_expect_eq(sim.list[i].status, rejected[i - 1]);
    cr_expect_str_eq(sim.list[i].reason, "as before");
    cr_expect_eq(sim.times_prepared[i], 0);
  }
}

/* ---- pure parts ---- */

Test(search, prunes_by_factor_and_by_number_and_says_why) {
  search_options options = {.prune_factor = 1.5, .most = 3};
  sim = (simulated){0};
  const double predicted[] = {9, 1, 1.6, 1.2, 1.1, 1.3, 0};
  for (int i = 0; i < 7; i++) add(predicted[i], 1);
  sim.list[6].status = SEARCH_ILLEGAL;
  cr_assert_eq(search_prune(sim.list, sim.count, &options), FLP_OK);
  const search_status want[] = {SEARCH_WAITING, SEARCH_WAITING, SEARCH_PRUNED, SEARCH_WAITING,
                                SEARCH_WAITING, SEARCH_PRUNED,  SEARCH_ILLEGAL};
  for (int i = 0; i < 7; i++) {
    cr_expect_eq(sim.list[i].status, want[i], "%d is %s", i, search_status_name(sim.list[i].status));
    cr_expect_eq(sim.list[i].reason[0] != 0, want[i] == SEARCH_PRUNED);
  }
}

typedef struct choice {
  double ratio[4], predicted[4], noise;
  int rounds[4], chosen;
} choice;

/* The first is the default. */
static const choice choices[] = {
    {{1, 0.9, 0.95, 1.1}, {1, 1, 1, 1}, 0.01, {7, 7, 7, 7}, 1},
    {{1, 0.991, 0.995, 1.1}, {1, 1, 1, 1}, 0.01, {7, 7, 7, 7}, 0}, /* within the noise of the default */
    {{1, 0.9, 0.905, 0.895}, {1, 3, 2, 4}, 0.02, {7, 7, 7, 7}, 2}, /* least predicted of those within the noise */
    {{1, 0.9, 0.9, 0.9}, {1, 2, 2, 2}, 0.02, {7, 7, 7, 7}, 1},     /* place in the list */
    {{1, 0.5, 0.9, 0.95}, {1, 1, 1, 1}, 0.01, {7, 1, 7, 7}, 2},    /* too few rounds */
    {{1, 0.5, 0.9, 0.95}, {1, 1, 1, 1}, 0.01, {7, 1, 1, 1}, 1},    /* unless none has more */
    {{1, 0.5, 0.4, 0.3}, {1, 1, 1, 1}, 0.01, {7, 0, 0, 0}, 0},     /* never timed */
};

Test(search, chooses_as_the_rules_say) {
  for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
    const choice *x = &choices[i];
    sim = (simulated){0};
    for (int c = 0; c < 4; c++) {
      add(x->predicted[c], 1);
      if (x->rounds[c]) came_timed(c, x->ratio[c], x->rounds[c]);
    }
    cr_expect_eq(search_choose(sim.list, sim.count, x->noise, 7), x->chosen, "case %zu", i);
  }
}

Test(search, names_are_read_back) {
  for (int i = SEARCH_WAITING; i <= SEARCH_CHOSEN; i++)
    cr_expect_eq(search_status_of(search_status_name((search_status)i)), i);
  cr_expect_eq(search_status_of("fast"), -1);
  cr_expect_str_eq(search_effort_name(SEARCH_EXHAUSTIVE), "exhaustive");
}
