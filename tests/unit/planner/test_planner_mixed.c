/* test_planner_mixed.c: layouts of operands of two dtypes: slices of the weight, and what stands of hidden. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "runtime/api/validate.h"
#include "runtime/planner/planner.h"
#include "tests/unit/support/planner_case.h"

#define MIB ((uint64_t)1 << 20)

enum { V = 151936, D = 4096, N = 8192 };

/* On an H200 with Hopper's tiles, or with portable ones. */
static flp_planner planner_of(flp_mixed mixed, int of_hidden, int mapped) {
  static const flp_kernel_kind kinds[] = {FLP_KERNEL_FORWARD_COLUMNS, FLP_KERNEL_DZ, FLP_KERNEL_PRODUCTS};
  flp_spec spec = FLP_SPEC_INIT, resolved;
  spec.vocab = V;
  spec.hidden = D;
  spec.mixed = mixed;
  spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  *(of_hidden ? &spec.hidden_dtype : &spec.weight_dtype) = FLP_DTYPE_FP32;
  cr_assert_eq(flp_spec_resolve(&spec, &resolved), FLP_OK, "%s", flp_error_detail());
  flp_kernel_desc descs[3] = {0};
  for (int i = 0; i < 3; i++) {
    descs[i].key.kind = kinds[i];
    descs[i].entry_count = 1;
    descs[i].tile_rows = 128;
    descs[i].tile_columns = 192;
    descs[i].unit_columns = i ? 0 : mapped ? 768 : 3072;
    descs[i].cluster = mapped ? 2 : 0;
    snprintf(descs[i].entries[0].name, sizeof descs[i].entries[0].name, "%s%s", i ? "dz" : "forward_columns",
             mapped ? "_map" : "");
  }
  flp_device device = {
      .multiprocessors = 132, .clock_khz = 1980000, .memory_clock_khz = 2619000, .memory_bus_bits = 6144};
  flp_options options = FLP_OPTIONS_INIT;
  flp_planner p;
  flp_planner_init(&p, &resolved, &options, &device, descs, 3);
  return p;
}

Test(planner_mixed, slices_are_whole_units_and_fit_the_budget) {
  for (int mapped = 0; mapped < 2; mapped++)
    for (uint64_t budget = 128 * MIB; budget <= 2048 * MIB; budget *= 2) {
      flp_planner p = planner_of(FLP_MIXED_ROUND, 0, mapped);
      flp_scheme s = pick(&p, FLP_PASS_FORWARD, N, budget);
      expect_disjoint(&s);
      cr_expect_leq(s.bytes, budget);
      cr_expect(s.slice > 0 && (s.slice == V || s.slice % p.unit_columns == 0));
      cr_expect_eq(s.size[FLP_REGION_operand_weight], (s.ahead ? 4u : 2u) * D * (uint64_t)s.slice);
      cr_expect_eq(s.size[FLP_REGION_operand_hidden], 0);
      cr_expect(mapped || !s.ahead);
    }
}

/* In 256 MiB the next slice is made meanwhile, and all rows pass at once; of few rows that would take longer. */
Test(planner_mixed, many_rows_hide_the_next_slice) {
  flp_planner p = planner_of(FLP_MIXED_ROUND, 0, 1);
  flp_scheme s = pick(&p, FLP_PASS_FORWARD, N, 256 * MIB);
  cr_expect_eq(s.ahead, 1);
  cr_expect_eq(s.chunk_rows, N);
  int64_t slices = 0;
  for (int64_t begin = 0; begin < V; begin = flp_planner_slice_end(&s, begin)) slices++;
  cr_expect_eq(s.launches, 1 + 1 + 1 + slices + 1, "prepare, gather, operand_terms, slices, combine");
  cr_expect_eq(pick(&p, FLP_PASS_FORWARD, 256, 256 * MIB).ahead, 0);
  p = planner_of(FLP_MIXED_SPLIT, 0, 1);
  cr_expect_eq(pick(&p, FLP_PASS_FORWARD, N, 2048 * MIB).ahead, 1);
  p = planner_of(FLP_MIXED_SPLIT, 1, 1);
  cr_expect_eq(pick(&p, FLP_PASS_FORWARD, N, 2048 * MIB).ahead, 0, "a weight of 16 bits is copied, not rounded");
}

/* Slices follow each other to the end, none is wider than the workspace has room for, and each but the last is whole units. */
Test(planner_mixed, slices_grow_from_the_first) {
  flp_planner p = planner_of(FLP_MIXED_ROUND, 0, 1);
  for (int64_t units = 1; units < 40; units++)
    for (int64_t few = 1; few <= units; few++) {
      flp_scheme s = {.slice = units * p.unit_columns, .first = few * p.unit_columns, .ahead = 1};
      int64_t before = 0, begin = 0;
      for (int number = 0; begin < V; number++) {
        int64_t end = flp_planner_slice_end(&s, begin), width = end - begin;
        cr_assert(width > 0 && width <= s.slice && width % p.unit_columns == 0);
        cr_assert(number == 0 || number > 1 || width <= 2 * before);
        cr_assert(number != 0 || end == s.first);
        before = width;
        begin = end;
      }
    }
  flp_scheme s = pick(&p, FLP_PASS_FORWARD, N, 1024 * MIB);
  cr_expect(s.ahead && 7 * s.first >= s.slice && 3 * s.first < s.slice, "%lld of %lld", (long long)s.first,
            (long long)s.slice);
}

Test(planner_mixed, two_terms_are_twice_the_depth_and_the_products) {
  for (int of_hidden = 0; of_hidden < 2; of_hidden++) {
    flp_planner p = planner_of(FLP_MIXED_SPLIT, of_hidden, 1);
    flp_scheme s = pick(&p, FLP_PASS_FORWARD, N, 2048 * MIB);
    cr_expect_eq(s.products, 2);
    cr_expect_eq(s.size[FLP_REGION_operand_hidden], (uint64_t)N * 2 * D * 2);
    cr_expect_eq(s.size[FLP_REGION_operand_weight], (uint64_t)s.slice * 2 * D * 2 * (s.ahead ? 2 : 1));
    s = pick(&p, FLP_PASS_BACKWARD, N, 4096 * MIB);
    cr_expect_eq(s.products, 4);
    cr_expect_eq(s.mode, FLP_MODE_RECOMPUTE_VOCAB);
    cr_expect_eq(s.slice, s.chunk_vocab);
    expect_disjoint(&s);
  }
}
