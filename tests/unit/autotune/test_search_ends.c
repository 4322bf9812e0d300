/* test_search_ends.c: when a search ends, on a simulated device: deadlines, stopping, errors. */
#include "tests/unit/support/search_case.h"

Test(search_ends, the_deadline_is_kept) {
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

Test(search_ends, without_a_budget_everything_is_tried) {
  start(200, 1);
  sim.prepare_s = 1000;
  search(SEARCH_EXHAUSTIVE, 0, 1);
  cr_expect(!sim.result.out_of_time);
  for (int i = 0; i < sim.count; i++) cr_expect_neq(sim.list[i].status, SEARCH_WAITING);
}

Test(search_ends, what_was_found_until_it_is_stopped_is_kept) {
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

Test(search_ends, one_that_is_stopped_at_once_keeps_the_default) {
  start(100, 4);
  sim.stop_at = 1e-9;
  cr_expect_eq(search(SEARCH_NORMAL, 60, 1), 0);
  cr_expect_eq(sim.result.stopped, 1);
  cr_expect_eq(sim.groups, 1);
}

/* Where candidates take long to make, the group that is made whatever the deadline is what passes it. */
Test(search_ends, a_quick_one_begins_with_a_small_group) {
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

/* A device whose calls take 75 ms, beside a default that is timed twice, and a search with that knowledge. */
static int search_heavy(search_effort effort, double budget_s, int included) {
  search_options options = search_options_of(effort);
  start(100, 3);
  sim.prepare_s = options.make_s = 0.5;
  sim.round_s = options.sample_s = 0.075;
  sim.beside = 2;
  options.budget_s = budget_s;
  if (included) sim.list[included].is_included = 1;
  cr_assert_eq(try_search(&options), FLP_OK, "%s", flp_error_detail());
  return sim.result.chosen;
}

Test(search_ends, where_costs_are_known_a_budget_is_passed_by_the_last_pass_at_most) {
  for (int effort = SEARCH_QUICK; effort <= SEARCH_NORMAL; effort++) {
    int rounds = search_options_of((search_effort)effort).final_rounds, tried = 0;
    for (double budget = 1; budget < 40; budget *= 1.3) {
      search_heavy((search_effort)effort, budget, 0);
      cr_expect_geq(sim.result.tried, tried, "%d of %g s", sim.result.tried, budget);
      if (sim.last_groups) cr_expect_lt(sim.before_last, budget, "%g s", budget);
      cr_expect_lt(sim.clock, budget + (2 + 2 + 1) * rounds * 0.075, "%g s of %g s", sim.clock, budget);
      tried = sim.result.tried;
    }
    cr_expect_gt(tried, 10);
  }
}

Test(search_ends, without_time_the_default_stays_and_what_was_included_is_timed_to_the_end) {
  cr_expect_eq(search_heavy(SEARCH_QUICK, 0.1, 0), 0);
  cr_expect(sim.result.tried == 0 && sim.groups == 1 && sim.result.out_of_time);
  int place = 60;
  search_heavy(SEARCH_QUICK, 0.1, place);
  cr_expect_eq(sim.result.tried, 1);
  cr_expect_eq(sim.last_groups, 1);
  cr_expect_eq(sim.list[place].rounds, search_options_of(SEARCH_QUICK).final_rounds);
  cr_expect_eq(sim.list[0].rounds, sim.list[place].rounds, "beside it");
}

Test(search_ends, finalists_that_there_is_no_time_for_give_way_to_ties_in_their_order) {
  for (uint64_t seed = 1; seed <= 20; seed++) {
    search_options options = search_options_of(SEARCH_NORMAL);
    int first = start_ties(4, seed, calm), last = 0;
    sim.round_s = options.sample_s = 0.075;
    sim.prepare_s = options.make_s = 1e-3;
    options.final_rounds = 40; /* 3 s each: for two finalists of six */
    options.budget_s = 20;
    options.seed = seed;
    cr_assert_eq(try_search(&options), FLP_OK, "%s", flp_error_detail());
    for (int i = 1; i < sim.count; i++) last += sim.list[i].rounds == options.final_rounds;
    cr_expect_eq(last, 2);
    cr_expect_eq(sim.result.chosen, first, "%d, not %d, seed %d", sim.result.chosen, first, (int)seed);
  }
}

Test(search_ends, an_error_of_the_device_ends_it_and_nothing_is_held) {
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
