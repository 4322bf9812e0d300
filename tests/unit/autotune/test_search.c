/* test_search.c: the search on a simulated device, held to what search.h promises: what it chooses, what it never
 * does. */
#include "tests/unit/support/search_case.h"

/* ---- what is chosen ---- */

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
  cr_expect_eq(sim.last_groups, 1, "where what is timed beside it is timed, too");
}

Test(search, what_is_wrong_or_broken_is_reported_and_never_timed) {
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

Test(search, prunes_by_factor_and_by_number_and_gives_the_reason) {
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

Test(search, chooses_by_the_rules) {
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
