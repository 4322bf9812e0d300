/* test_cli_report.c: parts of `flpgen report`: scales and ticks, numbers, escaping, and breaking of text. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/report/parts/parts.h"
#include "gen/cli/report/parts/svg.h"

static void expect_ticks(report_scale scale, int most, int count, const double *expected) {
  double ticks[REPORT_TICKS_MAX];
  int found = report_scale_ticks(&scale, most, ticks);
  cr_assert_eq(found, count, "%d ticks in %g..%g", found, scale.low, scale.high);
  for (int i = 0; i < count; i++)
    cr_expect_float_eq(ticks[i], expected[i], 1e-9 * fabs(expected[i]) + 1e-12, "tick %d is %g", i, ticks[i]);
}

Test(report, linear_ticks_are_steps_of_1_2_or_5) {
  expect_ticks((report_scale){0, 10, 0, 100, 0}, 6, 6, (double[]){0, 2, 4, 6, 8, 10});
  expect_ticks((report_scale){0.94, 1.06, 0, 100, 0}, 7, 7, (double[]){0.94, 0.96, 0.98, 1, 1.02, 1.04, 1.06});
  expect_ticks((report_scale){-5, 5, 0, 100, 0}, 3, 3, (double[]){-5, 0, 5});
}

Test(report, logarithmic_ticks_thin_out) {
  expect_ticks((report_scale){1, 10, 0, 100, 1}, 9, 9, (double[]){1, 1.5, 2, 3, 4, 5, 6, 8, 10});
  expect_ticks((report_scale){1, 100, 0, 100, 1}, 8, 7, (double[]){1, 2, 5, 10, 20, 50, 100});
  expect_ticks((report_scale){1, 1e4, 0, 100, 1}, 5, 5, (double[]){1, 10, 100, 1000, 1e4});
  expect_ticks((report_scale){1, 1e6, 0, 100, 1}, 4, 4, (double[]){1, 100, 1e4, 1e6});
}

Test(report, ticks_are_few_ascending_and_within_the_scale) {
  srand(1);
  for (int round = 0; round < 20000; round++) {
    double low = pow(10, rand() % 25 - 12) * (1 + rand() % 1000), width = pow(10, rand() % 12 - 6);
    int is_log = rand() % 2, most = 2 + rand() % 12;
    report_scale s = report_scale_make(low, low * (1 + width), is_log, most, 10, 500);
    cr_assert(s.low <= low * (1 + 1e-9) && s.high >= low * (1 + width) * (1 - 1e-9) && s.low < s.high, "%g..%g", low,
              low * (1 + width));
    double ticks[REPORT_TICKS_MAX];
    int count = report_scale_ticks(&s, most, ticks);
    cr_assert(count >= 0 && count <= most);
    for (int i = 0; i < count; i++) {
      double at = report_scale_at(&s, ticks[i]);
      cr_assert(at >= 10 && at <= 500 && (i == 0 || ticks[i] > ticks[i - 1]), "tick %d: %g at %g", i, ticks[i], at);
    }
  }
}

Test(report, scales_of_bad_ends_are_mended) {
  static const double ends[][2] = {{NAN, 1}, {1, INFINITY}, {5, 5},  {9, 1},
                                   {0, 0},   {0, 1e300},    {-1, 1}, {1e-320, 1e-310}};
  for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
    for (int is_log = 0; is_log < 2; is_log++) {
      report_scale s = report_scale_make(ends[i][0], ends[i][1], is_log, 5, 0, 100);
      double ticks[REPORT_TICKS_MAX], at = report_scale_at(&s, 3);
      cr_expect(isfinite(s.low) && isfinite(s.high) && s.low < s.high && (!is_log || s.low > 0), "%zu: %g..%g", i,
                s.low, s.high);
      cr_expect(at >= 0 && at <= 100, "%zu, %d: %g", i, is_log, at);
      cr_expect_leq(report_scale_ticks(&s, 5, ticks), 5);
    }
}

Test(report, scales_map_both_ways_and_keep_inside) {
  report_scale s = {1, 100, 200, 0, 1};
  cr_expect_float_eq(report_scale_at(&s, 1), 200, 1e-9);
  cr_expect_float_eq(report_scale_at(&s, 10), 100, 1e-9);
  cr_expect_float_eq(report_scale_at(&s, 1e9), 0, 1e-9);
  cr_expect_float_eq(report_scale_at(&s, NAN), 200, 1e-9);
}

static void expect_number(double value, int digits, const char *expected) {
  char text[REPORT_NUMBER_BYTES];
  cr_expect_str_eq(report_number(value, digits, text), expected);
}

Test(report, numbers_keep_their_digits) {
  expect_number(14.6586, 4, "14.66");
  expect_number(0.9621, 3, "0.96");
  expect_number(8192, 9, "8192");
  expect_number(20, 2, "20");
  expect_number(0.5, 6, "0.5");
  expect_number(0, 6, "0");
  expect_number(3e-5, 3, "3e-05");
  expect_number(NAN, 4, "\u2013");
  expect_number(INFINITY, 4, "\u2013");
}

static void expect_escaped(const char *text, const char *expected) {
  char *out = NULL;
  size_t bytes = 0;
  FILE *file = open_memstream(&out, &bytes);
  report_escape(file, text);
  fclose(file);
  cr_expect_str_eq(out, expected);
  free(out);
}

Test(report, text_is_escaped) {
  expect_escaped("<b a=\"1\" c='2'>&", "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;");
  expect_escaped("D 4096 \u00d7 \U0001f600", "D 4096 \u00d7 \U0001f600");
  expect_escaped(
      "a\x01"
      "b\nc",
      "a\ufffd"
      "b c");
  expect_escaped("\xff\xc0\xaf\xed\xa0\x80", "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd");
  expect_escaped("cut \xe2\x80", "cut \ufffd\ufffd");
  expect_escaped("\u202egnp.exe", "\ufffd\ufffd\ufffdgnp.exe");
}

Test(report, text_breaks_at_blanks) {
  cr_expect_eq(report_svg_line_count("one two three", 1000, 3), 1);
  cr_expect_eq(report_svg_line_count("one two three", 60, 3), 2);
  cr_expect_eq(report_svg_line_count("one two three four five six", 30, 3), 3, "no more than asked for");
  cr_expect_eq(report_svg_line_count("", 30, 3), 1);
  cr_expect_eq(report_svg_line_count("wwwwwwwwwwwwwwwwwwwwwwwwww", 1, 4), 4, "even where not one letter fits");
}

Test(report, no_two_series_are_alike_and_the_first_shares_nothing) {
  report_series of[REPORT_SERIES];
  for (int i = 0; i < REPORT_SERIES; i++) {
    of[i] = report_series_of(i);
    for (int j = 0; j < i; j++) {
      int shape = of[i].shape == of[j].shape, colour = of[i].colour == of[j].colour, dash = of[i].dash == of[j].dash;
      cr_expect_not(shape && colour, "series %d and %d", i, j);
      cr_expect_not(j == 0 && (shape || colour), "series %d has flp's mark", i);
      cr_expect_not(j == i - 1 && (shape || colour || dash), "series %d is like the one before", i);
    }
  }
  report_series again = report_series_of(REPORT_SERIES);
  cr_expect(again.shape == of[1].shape && again.colour == of[1].colour);
}

Test(report, classes_name_colour_and_dash) {
  char class[REPORT_CLASS_BYTES];
  cr_expect_str_eq(report_series_class("stem", 0, class), "stem s0 d0");
  cr_expect_str_eq(report_series_class("stem", 2, class), "stem s2 d2");
  cr_expect_str_eq(report_series_class("mark", REPORT_NEUTRAL, class), "mark sn");
}

Test(report, bytes_have_units) {
  char text[32];
  cr_expect_str_eq(report_format_bytes(1e9, text), "1 GB");
  cr_expect_str_eq(report_format_bytes(256, text), "256 B");
  cr_expect_str_eq(report_format_bytes(5e5, text), "500 kB");
}
