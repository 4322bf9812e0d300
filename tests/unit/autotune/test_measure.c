/* test_measure.c: statistics, order and burst lengths of measurements; bursts on a device whose time is simulated. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "autotune/measure.h"
#include "runtime/base/status.h"
#include "tests/unit/support/clock_case.h"
#include "tests/unit/support/refuse.h"

/* ---- statistics ---- */

Test(measure, median_of_an_odd_count_is_the_middle_whatever_the_order) {
  double samples[] = {9, 1, 5, 1000, 2};
  measure_summary s = measure_summarise(samples, 5);
  cr_expect_eq(s.median, 5, "neither the mean, 203.4, nor the sample in the middle of the list");
  cr_expect_eq(s.low, 1);
  cr_expect_eq(s.high, 1000);
}

Test(measure, median_of_an_even_count_is_the_mean_of_the_middle_two) {
  double samples[] = {8, 1, 2, 4}, one[] = {3};
  cr_expect_eq(measure_summarise(samples, 4).median, 3);
  measure_summary s = measure_summarise(one, 1);
  cr_expect(s.median == 3 && s.low == 3 && s.high == 3);
}

Test(measure, an_outlier_moves_the_spread_and_not_the_median) {
  double calm[] = {10, 11, 12, 13, 14, 15, 16}, wild[] = {10, 11, 12, 13, 14, 15, 9999};
  measure_summary a = measure_summarise(calm, 7), b = measure_summarise(wild, 7);
  cr_expect_eq(a.median, b.median);
  cr_expect_eq(b.high, 9999);
}

/* ---- order ---- */

static int order_code(int count, uint64_t *state) {
  int order[4], seen = 0, code = 0;
  measure_order(count, state, order);
  for (int i = 0; i < count; i++) {
    cr_assert(order[i] >= 0 && order[i] < count);
    seen |= 1 << order[i];
    code = code * count + order[i];
  }
  cr_assert_eq(seen, (1 << count) - 1, "every item once");
  return code;
}

Test(measure, orders_are_permutations_all_equally_likely) {
  enum { DRAWS = 24000 };
  static int counts[256];
  uint64_t state = 1;
  for (int i = 0; i < DRAWS; i++) counts[order_code(4, &state)]++;
  int kinds = 0;
  for (int i = 0; i < 256; i++) {
    if (counts[i] == 0) continue;
    kinds++;
    /* 1000 expected, standard deviation 31 */
    cr_expect(counts[i] > 850 && counts[i] < 1150, "order %d came %d times", i, counts[i]);
  }
  cr_expect_eq(kinds, 24);
}

Test(measure, a_seed_gives_the_same_order_again) {
  uint64_t a = 7, b = 7, c = 8;
  int first[8], second[8], third[8];
  measure_order(8, &a, first);
  measure_order(8, &b, second);
  measure_order(8, &c, third);
  cr_expect_eq(memcmp(first, second, sizeof first), 0);
  cr_expect_neq(memcmp(first, third, sizeof first), 0);
}

Test(measure, repeats_fill_a_burst_with_a_tenth_to_spare) {
  cr_expect_eq(measure_repeats(10, 75), 9); /* 8.25 */
  cr_expect_eq(measure_repeats(0.1, 75), 825);
  cr_expect_eq(measure_repeats(500, 75), 1);
  cr_expect_eq(measure_repeats(0, 75), 82500, "a call takes 1 us at least");
  cr_expect_eq(measure_repeats(1e-9, 1e9), MEASURE_REPEATS_MAX);
}

/* ---- a device with a simulated clock ---- */

enum { PIECES = 3, CALLS_MAX = 100000 };

static double speed = 1;
static int call_of[CALLS_MAX], calls, fail_after = -1;

typedef struct piece {
  int id;
  double ms;
} piece;

static flp_status work(void *context, CUstream stream) {
  (void)stream;
  const piece *p = context;
  if (calls == fail_after) return flp_fail(FLP_ERROR_DRIVER, "the piece failed");
  cr_assert_lt(calls, CALLS_MAX);
  call_of[calls++] = p->id;
  now_ms += p->ms / speed;
  return FLP_OK;
}

static piece pieces[PIECES] = {{0, 4.0}, {1, 0.5}, {2, 90.0}};
static const measure_item items[PIECES] = {{work, &pieces[0], 0}, {work, &pieces[1], 0}, {work, &pieces[2], 0}};

/* Of every test. */
static measure_clock measuring;
static measure_options options;
static measure_summary out[PIECES];

static void open_all(void) {
  measuring = open_clock();
  options = (measure_options){75, 3, 1, 0};
}

/* At the end of every test: what fails in a fini fails no test. */
static void close_all(void) {
  measure_clock_destroy(&measuring);
  cr_expect_eq(events_alive, 0);
}

TestSuite(measure_run, .init = open_all);

Test(measure_run, times_each_piece_for_what_it_is) {
  options = (measure_options){75, 5, 3, 0};
  cr_assert_eq(measure_run(&measuring, items, PIECES, &options, out), FLP_OK);
  for (int i = 0; i < PIECES; i++) {
    cr_expect_float_eq(out[i].median, pieces[i].ms, 1e-5);
    cr_expect(out[i].low <= out[i].median && out[i].median <= out[i].high);
  }
  close_all();
}

/* Runs of equal calls: how often each piece's bursts begin, and their lengths. */
Test(measure_run, bursts_are_long_enough_and_interleaved) {
  options = (measure_options){75, 20, 3, 0};
  cr_assert_eq(measure_run(&measuring, items, PIECES, &options, out), FLP_OK);
  int begins[PIECES] = {0}, follows[PIECES][PIECES] = {{0}}, before = -1;
  for (int i = 0; i < calls;) {
    int id = call_of[i], length = 0;
    while (i < calls && call_of[i] == id) {
      i++;
      length++;
    }
    if (begins[id]++ > 0) cr_expect_geq(length * pieces[id].ms, 75, "a burst of %d calls of piece %d", length, id);
    if (before >= 0) follows[before][id]++;
    before = id;
  }
  for (int a = 0; a < PIECES; a++)
    for (int b = 0; b < PIECES; b++) cr_expect(a == b || follows[a][b] > 0, "%d never follows %d", b, a);
  close_all();
}

Test(measure_run, a_burst_that_came_out_short_is_taken_again) {
  double ms = 0;
  piece slow_at_first = {0, 2.0};
  measure_item item = {work, &slow_at_first, 0};
  /* Clocks rise threefold between the sizing of bursts and their use: each call of the first five costs 2 ms. */
  cr_assert_eq(measure_burst(&measuring, &item, 5, &ms), FLP_OK);
  cr_expect_float_eq(ms, 10, 1e-5);
  speed = 3;
  cr_assert_eq(measure_run(&measuring, &item, 1, &options, out), FLP_OK);
  cr_expect_float_eq(out[0].median, 2.0 / 3, 1e-5);
  close_all();
}

Test(measure_run, a_call_that_is_known_to_fill_a_burst_is_made_once_a_round) {
  measure_item item = items[2];
  cr_assert_eq(measure_run(&measuring, &item, 1, &options, out), FLP_OK);
  cr_expect_eq(calls, 3 + 3, "to warm up, to guess, to know");
  calls = 0;
  item.call_ms = 88;
  cr_assert_eq(measure_run(&measuring, &item, 1, &options, out), FLP_OK);
  cr_expect_eq(calls, 3);
  cr_expect_float_eq(out[0].median, 90, 1e-5);
  calls = 0;
  speed = 3; /* it was known wrongly: bursts of one came out short */
  cr_assert_eq(measure_run(&measuring, &item, 1, &options, out), FLP_OK);
  cr_expect_eq(calls, 1 + 3 * 3, "a short burst is taken again, and the next are as long");
  cr_expect_float_eq(out[0].median, 30, 1e-5);
  close_all();
}

Test(measure_run, failures_and_bad_options_are_reported) {
  fail_after = 40;
  cr_expect_eq(measure_run(&measuring, items, PIECES, &options, out), FLP_ERROR_DRIVER);
  cr_expect_str_eq(flp_error_detail(), "the piece failed");
  options.rounds = 0;
  expect_refused(measure_run(&measuring, items, PIECES, &options, out), "rounds is 0 (accepted: 1 to 1000)");
  options = (measure_options){NAN, 3, 1, 0};
  cr_expect_eq(measure_run(&measuring, items, PIECES, &options, out), FLP_ERROR_ARGUMENT);
  options = (measure_options)MEASURE_OPTIONS_INIT;
  expect_refused(measure_run(&measuring, items, 0, &options, out), "count is 0 (accepted: 1 to 64 items)");
  close_all();
}

/* In turn, the second of the pair between two of the other; quartiles stand around the median. */
Test(measure_run, pieces_in_turn_are_compared_call_by_call) {
  cr_assert_eq(measure_in_turn(&measuring, &items[1], &items[0], 12, out), FLP_OK);
  cr_assert_eq(calls, 25);
  for (int i = 0; i < calls; i++) cr_expect_eq(call_of[i], i % 2);
  cr_expect_float_eq(out[0].median, pieces[1].ms / pieces[0].ms, 1e-5);
  cr_expect(out[0].low <= out[0].median && out[0].median <= out[0].high);
  fail_after = calls + 7;
  cr_expect_eq(measure_in_turn(&measuring, &items[1], &items[0], 12, out), FLP_ERROR_DRIVER);
  expect_refused(measure_in_turn(&measuring, &items[1], &items[0], 0, out), "pairs is 0 (accepted: 1 to 1000)");
  close_all();
}

Test(measure_run, host_time_is_that_of_a_call_and_not_of_a_batch) {
  cr_assert_eq(measure_host(&measuring, &items[0], 50, 4, out), FLP_OK);
  cr_expect_eq(calls, 250, "four batches and one to warm up");
  cr_expect(out[0].median > 0 && out[0].median < 1000 && out[0].low <= out[0].median && out[0].median <= out[0].high);
  cr_expect_eq(measure_host(&measuring, &items[0], 0, 4, out), FLP_ERROR_ARGUMENT);
  close_all();
}
