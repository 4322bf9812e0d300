/* test_planner_listed.c: layouts of listed columns: exact, disjoint, growing with rows and ids, the same on query and
 * execute, with every array that the launches name; and how entries come into the order of columns. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/api/validate.h"
#include "runtime/base/status.h"
#include "tests/unit/support/planner_case.h"

#define GIB ((uint64_t)1 << 30)
#define HAS(scheme, region) ((scheme)->size[FLP_REGION_##region] != 0)

/* A planner of the kernels that a listed spec has: none of forward or dz. */
static flp_planner planner_of(int64_t vocab, int64_t hidden, uint32_t grads) {
  flp_spec spec = FLP_SPEC_INIT, resolved;
  spec.vocab = vocab;
  spec.hidden = hidden;
  spec.grads = grads;
  spec.has_bias = (grads & FLP_GRAD_BIAS) != 0;
  spec.listed = 1;
  cr_assert_eq(flp_spec_resolve(&spec, &resolved), FLP_OK, "%s", flp_error_detail());
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  flp_kernel_desc descs[FLP_SPEC_KERNELS_MAX] = {{.entry_count = 0}};
  int count = flp_kernel_keys_for(&resolved, "sm_90a", keys);
  for (int i = 0; i < count; i++) descs[i].key = keys[i];
  flp_device device = {.multiprocessors = 132};
  flp_options options = FLP_OPTIONS_INIT;
  flp_planner p;
  flp_planner_init(&p, &resolved, &options, &device, descs, count);
  return p;
}

static flp_scheme listed(const flp_planner *p, flp_pass pass, int64_t n, int64_t list_count) {
  flp_scheme s;
  cr_assert_eq(flp_planner_pick_listed(p, pass, n, list_count, UINT64_MAX, &s), FLP_OK, "%s", flp_error_detail());
  return s;
}

static uint64_t aligned(uint64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

/* Arrays that every layout has: of rows, and of entries. */
static uint64_t common_bytes(uint64_t n, uint64_t entries) {
  return aligned(n) + 6 * aligned(4 * n) + 2 * 256 + 2 * aligned(4 * entries);
}

Test(planner_listed, a_spec_has_kernels_of_lists_and_no_other) {
  flp_planner p = planner_of(151936, 4096, 7);
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  cr_assert_eq(flp_kernel_keys_for(&p.spec, "sm_90a", keys), 3);
  static const flp_kernel_kind kinds[] = {FLP_KERNEL_ROWS, FLP_KERNEL_LISTED, FLP_KERNEL_LISTED_WEIGHT};
  for (int i = 0; i < 3; i++) {
    cr_expect_eq(keys[i].kind, kinds[i]);
    cr_expect_str_eq(keys[i].arch, "sm_80");
  }
  p.spec.grads = FLP_GRAD_HIDDEN;
  cr_expect_eq(flp_kernel_keys_for(&p.spec, "sm_80", keys), 2, "a frozen head needs no order by columns");
  cr_expect(!p.is_mapped && p.unit_columns >= 1 && p.bandwidth > 0 && p.flop_rate > 0);
}

Test(planner_listed, forward_is_that_of_the_formula) {
  flp_planner p = planner_of(151936, 4096, 7);
  flp_scheme s = listed(&p, FLP_PASS_FORWARD, 8192, 163840);
  cr_expect_eq(s.mode, FLP_MODE_LISTED);
  cr_expect_eq(s.chunk_rows, 8192);
  cr_expect_eq(s.chunk_vocab, 151936);
  cr_expect_eq(s.chunks, 1);
  cr_expect_eq(s.products, 0);
  cr_expect_eq(s.launches, 6);
  cr_expect_eq(s.size[FLP_REGION_part], 8192 * 12);
  cr_expect_eq(s.size[FLP_REGION_zy], 8192 * 4);
  cr_expect_eq(s.bytes, common_bytes(8192, 163840) + 12 * 8192);
  cr_expect(!HAS(&s, list_row) && !HAS(&s, list_order) && !HAS(&s, list_dz));
  expect_disjoint(&s);
}

Test(planner_listed, backward_is_that_of_the_formula) {
  uint64_t n = 8192, entries = 163840, frozen = common_bytes(n, entries) + 16 * n + 4 * n + 4 * entries;
  flp_planner p = planner_of(151936, 4096, FLP_GRAD_HIDDEN);
  flp_scheme s = listed(&p, FLP_PASS_BACKWARD, 8192, 163840);
  cr_expect_eq(s.mode, FLP_MODE_LISTED);
  cr_expect_eq(s.launches, 8);
  cr_expect_eq(s.bytes, frozen);
  cr_expect(!HAS(&s, list_row) && !HAS(&s, list_order));
  p = planner_of(151936, 4096, 7);
  s = listed(&p, FLP_PASS_BACKWARD, 8192, 163840);
  cr_expect_eq(s.launches, 8 + 2 * 3 + 3);
  cr_expect_eq(s.size[FLP_REGION_list_digit], 40 * 512 * 4, "blocks of 4096 entries");
  cr_expect_eq(s.size[FLP_REGION_list_start], 151937 * 4);
  cr_expect_eq(s.bytes, frozen + 3 * 4 * entries + 40 * 512 * 4 + aligned(151937 * 4));
  expect_disjoint(&s);
  p = planner_of(151936, 4096, FLP_GRAD_WEIGHT);
  cr_expect_eq(listed(&p, FLP_PASS_BACKWARD, 8192, 163840).launches, 6 + 2 * 3 + 3, "neither list_hidden nor fill");
}

/* -1 has all ones: it comes last if they are above every column. */
Test(planner_listed, digits_reach_above_every_column) {
  static const struct {
    int64_t vocab;
    int passes;
  } cases[] = {{2, 1},       {511, 1},           {512, 2},     {151936, 2}, {(1 << 18) - 1, 2},
               {1 << 18, 3}, {(1 << 27) - 1, 3}, {1 << 27, 4}, {1 << 30, 4}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    int passes = flp_planner_list_passes(cases[i].vocab);
    cr_expect_eq(passes, cases[i].passes, "V=%ld: %d", (long)cases[i].vocab, passes);
    cr_expect_lt((passes - 1) * FLP_LIST_DIGIT_BITS, 32, "a shift of 32 bits");
    flp_planner p = planner_of(cases[i].vocab, 64, FLP_GRAD_WEIGHT);
    flp_scheme s = listed(&p, FLP_PASS_BACKWARD, 10, 100);
    cr_expect_eq(HAS(&s, list_other), passes > 1, "V=%ld", (long)cases[i].vocab);
    cr_expect_eq(s.launches, 6 + 3 * passes + 3);
  }
}

Test(planner_listed, arrays_are_disjoint_and_grow) {
  static const int64_t rows[] = {1, 2, 63, 64, 65, 1000, 100000};
  static const int64_t counts[] = {0, 1, 2, 4095, 4096, 4097, 1000000, INT32_MAX};
  for (uint32_t grads = 0; grads < 8; grads++) {
    flp_planner p = planner_of(1000, 64, grads);
    for (int pass = FLP_PASS_FORWARD; pass <= (grads ? FLP_PASS_BACKWARD : FLP_PASS_FORWARD); pass += 2)
      for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        uint64_t before = 0;
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
          flp_scheme s = listed(&p, (flp_pass)pass, rows[r], counts[c]);
          flp_scheme fewer = listed(&p, (flp_pass)pass, rows[r] - (rows[r] > 1), counts[c]);
          expect_disjoint(&s);
          cr_expect(HAS(&s, list_state) && HAS(&s, list_column) && HAS(&s, list_score), "even of empty lists");
          cr_expect_geq(s.bytes, before);
          cr_expect_leq(fewer.bytes, s.bytes);
          cr_expect_eq(s.smallest_bytes, s.bytes);
          before = s.bytes;
        }
      }
  }
}

Test(planner_listed, empty_lists_bring_nothing_into_order) {
  flp_planner p = planner_of(1000, 64, 7);
  flp_scheme s = listed(&p, FLP_PASS_BACKWARD, 10, 0);
  cr_expect(!HAS(&s, list_order) && !HAS(&s, list_digit) && HAS(&s, list_dz));
  cr_expect_eq(s.launches, 8);
}

Test(planner_listed, no_rows_take_nothing) {
  flp_planner p = planner_of(1000, 64, 7);
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_BACKWARD; pass += 2) {
    flp_scheme s = listed(&p, (flp_pass)pass, 0, 17);
    cr_expect_eq(s.mode, FLP_MODE_LISTED);
    cr_expect(s.bytes == 0 && s.chunks == 0 && s.launches == 0);
  }
}

Test(planner_listed, the_least_budget_is_named_and_does) {
  flp_planner p = planner_of(151936, 4096, 7);
  flp_scheme s = listed(&p, FLP_PASS_BACKWARD, 100, 2000), again;
  char expected[300];
  snprintf(expected, sizeof expected,
           "budget: %llu bytes are too few for the backward pass over 100 rows that list 2000 ids; %llu bytes or more "
           "are accepted",
           (unsigned long long)s.bytes - 1, (unsigned long long)s.bytes);
  cr_expect_eq(flp_planner_pick_listed(&p, FLP_PASS_BACKWARD, 100, 2000, s.bytes - 1, &again), FLP_ERROR_BUDGET);
  cr_expect_str_eq(flp_error_detail(), expected);
  cr_expect_eq(again.smallest_bytes, s.bytes);
  cr_assert_eq(flp_planner_pick_listed(&p, FLP_PASS_BACKWARD, 100, 2000, s.bytes, &again), FLP_OK);
  cr_expect_eq(memcmp(&again, &s, sizeof s), 0, "whatever the budget");
}

/* As many as there are places and slices of D, and no more than a few for each of the 132 multiprocessors. */
Test(planner_listed, grid_of_wide_columns) {
  flp_planner p = planner_of(1000, 520, FLP_GRAD_WEIGHT);
  cr_expect_eq(flp_planner_list_wide(&p, 1), 3);
  cr_expect_eq(flp_planner_list_wide(&p, 64), 3);
  cr_expect_eq(flp_planner_list_wide(&p, 65), 6);
  cr_expect_eq(flp_planner_list_wide(&p, 64 * 704), 2112);
  cr_expect_eq(flp_planner_list_wide(&p, 64 * 705), 2112);
  p = planner_of(1000, 1 << 20, FLP_GRAD_WEIGHT);
  cr_expect_eq(flp_planner_list_wide(&p, INT32_MAX), 2112);
  cr_expect_eq(listed(&p, FLP_PASS_BACKWARD, 1, INT32_MAX).mode, FLP_MODE_LISTED, "no grid is too large");
  p.multiprocessors = 1;
  cr_expect_eq(flp_planner_list_wide(&p, INT32_MAX), 16);
}

Test(planner_listed, operations_are_those_of_the_entries) {
  flp_planner p = planner_of(1000, 64, 7);
  flp_scheme s = listed(&p, FLP_PASS_BACKWARD, 10, 300);
  flp_layout layout;
  flp_planner_describe_listed(&p, FLP_PASS_BACKWARD, &s, 10, 300, &layout);
  cr_expect_eq(layout.flops, 2.0 * 300 * 64 * 3);
  cr_expect_eq(layout.mode, FLP_MODE_LISTED);
  cr_expect_eq(layout.products, 0);
  cr_expect_eq(layout.bytes, s.bytes);
  s = listed(&p, FLP_PASS_FORWARD, 10, 300);
  flp_planner_describe_listed(&p, FLP_PASS_FORWARD, &s, 10, 300, &layout);
  cr_expect_eq(layout.flops, 2.0 * 300 * 64);
}

/* The partials of all shards, as of any plan. */
Test(planner_listed, combine_is_as_ever) {
  flp_planner p = planner_of(1000, 64, 7);
  flp_scheme s = pick(&p, FLP_PASS_COMBINE, 100, GIB);
  cr_expect_eq(s.mode, FLP_MODE_SCORE);
  cr_expect_eq(s.launches, 2);
  cr_expect_eq(s.bytes, 256 + 3 * 512 + 256);
}
