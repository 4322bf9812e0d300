/* test_planner_top.c: layouts of forward with best columns and ranks: lists by chunk of rows, and slices. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

#include "runtime/api/validate.h"
#include "runtime/planner/planner.h"
#include "tests/unit/support/planner_case.h"

#define MIB ((uint64_t)1 << 20)

/* On an H200 with Hopper's tiles, or with portable ones. */
static flp_planner planner_of(int64_t vocab, int32_t topk, int32_t rank, int mapped) {
  flp_spec spec = FLP_SPEC_INIT, resolved;
  spec.vocab = vocab;
  spec.hidden = 4096;
  spec.topk = topk;
  spec.rank = rank;
  cr_assert_eq(flp_spec_resolve(&spec, &resolved), FLP_OK, "%s", flp_error_detail());
  flp_kernel_desc descs[2] = {{.entry_count = 1}, {.entry_count = 1}};
  for (int i = 0; i < 2; i++) {
    descs[i].key.kind = i ? FLP_KERNEL_FORWARD_TOP : FLP_KERNEL_FORWARD;
    descs[i].tile_rows = 128;
    descs[i].tile_columns = 192;
    descs[i].unit_columns = mapped ? 768 : 3072;
    descs[i].cluster = mapped ? 2 : 0;
    snprintf(descs[i].entries[0].name, sizeof descs[i].entries[0].name, "forward%s%s", i ? "_top" : "",
             mapped ? "_map" : "");
  }
  flp_device device = {
      .multiprocessors = 132, .clock_khz = 1980000, .memory_clock_khz = 2619000, .memory_bus_bits = 6144};
  flp_options options = FLP_OPTIONS_INIT;
  flp_planner p;
  flp_planner_init(&p, &resolved, &options, &device, descs, 2);
  return p;
}

static flp_scheme picked(const flp_planner *p, int64_t n, uint64_t budget) {
  flp_scheme s;
  cr_assert_eq(flp_planner_pick(p, FLP_PASS_FORWARD, n, budget, 1, &s), FLP_OK, "%s", flp_error_detail());
  cr_expect_leq(s.bytes, budget);
  return s;
}

static uint64_t lists_of(const flp_scheme *s) {
  return s->size[FLP_REGION_top_column] + s->size[FLP_REGION_top_score];
}

Test(planner_top, lists_are_within_128_mib) {
  for (int32_t topk = 1; topk <= FLP_TOPK_MAX; topk++) {
    flp_planner p = planner_of(151936, topk, 1, 1);
    flp_scheme s = picked(&p, 8192, 256 * MIB);
    cr_expect(lists_of(&s) > 0 && lists_of(&s) <= 128 * MIB);
    cr_expect(s.size[FLP_REGION_top_above] && s.size[FLP_REGION_top_lost] == 4 * (1 + (uint64_t)s.chunk_rows));
    cr_expect_eq(s.chunks, 1);
  }
}

Test(planner_top, arrays_are_apart_and_of_a_chunk) {
  for (int mapped = 0; mapped < 2; mapped++) {
    flp_planner p = planner_of(151936, 20, 1, mapped);
    flp_scheme whole = picked(&p, 8192, 256 * MIB), parts = picked(&p, 8192, 64 * MIB);
    cr_expect(parts.chunks > whole.chunks && parts.chunk_rows < whole.chunk_rows);
    cr_expect_eq(lists_of(&parts), (uint64_t)parts.chunk_rows * 8 * (uint64_t)flp_planner_top_places(&p.spec));
    cr_expect_eq(parts.size[FLP_REGION_stats], 16 * 8192);
    for (int i = 0; i < FLP_REGION_ID_COUNT; i++)
      for (int j = 0; j < i; j++)
        cr_expect(!parts.size[i] || !parts.size[j] || parts.offset[i] >= parts.offset[j] + parts.size[j] ||
                  parts.offset[j] >= parts.offset[i] + parts.size[i]);
    flp_scheme none;
    cr_expect_eq(flp_planner_pick(&p, FLP_PASS_FORWARD, 8192, MIB / 4, 1, &none), FLP_ERROR_BUDGET);
    cr_expect_eq(picked(&p, 8192, none.smallest_bytes).bytes, none.smallest_bytes);
  }
}

Test(planner_top, without_best_columns_there_are_no_lists) {
  flp_planner rank = planner_of(151936, 0, 1, 1), plain = planner_of(151936, 0, 0, 1);
  flp_scheme ranks = picked(&rank, 8192, 256 * MIB), none = picked(&plain, 8192, 256 * MIB);
  cr_expect(lists_of(&ranks) == 0 && ranks.size[FLP_REGION_top_low] == 4 * 8192);
  cr_expect(none.size[FLP_REGION_top_low] == 0 && none.size[FLP_REGION_stats] == 0);
  cr_expect_eq(ranks.launches, none.launches + 4); /* top_target, top_begin, top_finish; top_others */
}

/* P(Gamma(k) > x): the first k terms of exp(x)·exp(-x). */
static double gamma_tail(int k, double x) {
  double sum = 0;
  for (int i = 0; i < k; i++) sum += exp(i * log(x) - x - lgamma(i + 1.0));
  return sum;
}

/* Of columns in no order once in 10^8 rows, and no vocabulary takes more than a few slices. */
Test(planner_top, lists_overflow_seldom) {
  for (int32_t topk = 1; topk <= FLP_TOPK_MAX; topk++)
    for (int64_t vocab = 128; vocab < 300000; vocab = vocab * 3 / 2) {
      flp_planner p = planner_of(vocab, topk, 0, 1);
      int64_t sample = flp_planner_top_sample(&p.spec, vocab), places = flp_planner_top_places(&p.spec);
      int slices = flp_planner_top_slices(&p.spec, vocab);
      cr_expect(slices >= 1 && slices <= 3);
      cr_expect(sample == 0 ? slices == 1 && vocab <= places : sample == 768 && sample + topk <= places);
      double ratio = sample ? pow((double)vocab / (double)sample, 1.0 / slices) : 1;
      double most = flp_planner_top_ratio(&p.spec);
      cr_expect(ratio <= most && most <= 24 && gamma_tail(topk, (double)places / most) < 1e-8);
    }
}
