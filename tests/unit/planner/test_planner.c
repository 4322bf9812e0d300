/* test_planner.c: layouts: exact, disjoint, monotonic in the budget, and the same on query and execute. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/api/validate.h"
#include "runtime/base/util.h"
#include "runtime/kernel/kernel.h"
#include "runtime/planner/planner.h"
#include "tests/unit/support/planner_case.h"

enum { MIB = 1 << 20 };
#define GIB ((uint64_t)1 << 30)

/* An H200 with the tiles of the portable path. */
static flp_planner planner_of(int64_t vocab, int64_t hidden, flp_dtype dtype, uint32_t grads) {
  flp_spec spec = FLP_SPEC_INIT, resolved;
  spec.vocab = vocab;
  spec.hidden = hidden;
  spec.dtype = dtype;
  spec.grads = grads;
  spec.has_bias = (grads & FLP_GRAD_BIAS) != 0;
  cr_assert_eq(flp_spec_resolve(&spec, &resolved), FLP_OK, "%s", flp_error_detail());
  return (flp_planner){.spec = resolved,
                       .forward_rows = 128,
                       .unit_columns = 3072,
                       .dz_rows = 128,
                       .dz_columns = 256,
                       .dz_unit_rows = 128,
                       .dz_unit_tiles = 2,
                       .hidden_rows = 128,
                       .hidden_columns = 256,
                       .weight_rows = 128,
                       .weight_columns = 256,
                       .multiprocessors = 132,
                       .flop_rate = 4e12,
                       .bandwidth = 4.8e12};
}

/* The same with kernels that read rows put together in the workspace. */
static flp_planner mapped_of(int64_t vocab, int64_t hidden, flp_dtype dtype, uint32_t grads) {
  flp_planner p = planner_of(vocab, hidden, dtype, grads);
  p.dz_unit_rows = p.hidden_rows = p.weight_rows = 256;
  p.dz_columns = 192;
  p.is_mapped = 1;
  p.dz_cluster = 2;
  return p;
}

/* R2's dz lies over its column sums, which its row chunks do not use. */
static void expect_sound(const flp_scheme *s) {
  int splits = s->mode == FLP_MODE_RECOMPUTE_SPLIT;
  expect_disjoint_but(s, splits ? (uint64_t)1 << FLP_REGION_dz | (uint64_t)1 << FLP_REGION_bias_part : 0);
}

Test(planner, forward_workspace_is_that_of_the_formula) {
  flp_planner p = planner_of(151936, 4096, FLP_DTYPE_BF16, 0);
  flp_scheme s = pick(&p, FLP_PASS_FORWARD, 8192, GIB);
  uint64_t n = 8192, groups = 50; /* ceil(151936 / 3072) */
  cr_expect_eq(s.bytes, n + 4 * 4 * n + 256 + 12 * n * groups);
  cr_expect_eq(s.size[FLP_REGION_part], 12 * n * groups);
  cr_expect_eq(s.mode, FLP_MODE_SCORE);
  cr_expect_eq(s.launches, 3);
  cr_expect_eq(s.products, 1);
  uint64_t panel = 128 * 12 * groups; /* partials of the smallest chunk: one panel of tile_rows */
  cr_expect_eq(s.smallest_bytes, n + 4 * 4 * n + 256 + panel);
  expect_sound(&s);
}

Test(planner, forward_takes_chunks_of_rows_when_the_partials_of_all_do_not_fit) {
  flp_planner p = planner_of(151936, 4096, FLP_DTYPE_BF16, 0);
  int64_t n = 1000000;
  flp_scheme s = pick(&p, FLP_PASS_FORWARD, n, GIB / 4);
  cr_expect_lt(s.chunk_rows, n);
  cr_expect_eq(s.chunks, flp_ceil_div(n, s.chunk_rows));
  cr_expect_eq(s.launches, 1 + 2 * s.chunks);
  cr_expect_eq(s.size[FLP_REGION_part], (uint64_t)s.chunk_rows * 50 * 12);
  cr_expect_leq(s.bytes, GIB / 4);
  expect_sound(&s);
  flp_scheme again = pick(&p, FLP_PASS_FORWARD, n, s.bytes);
  cr_expect_eq(again.chunk_rows, s.chunk_rows);
  cr_expect_eq(flp_planner_pick(&p, FLP_PASS_FORWARD, n, s.smallest_bytes - 1, 1, &again), FLP_ERROR_BUDGET);
}

Test(planner, combine_holds_the_rows_only) {
  flp_planner p = planner_of(151936, 4096, FLP_DTYPE_BF16, 0);
  flp_scheme s = pick(&p, FLP_PASS_COMBINE, 1000, GIB);
  cr_expect_eq(s.bytes, 1024 + 3 * 4096 + 256);
  cr_expect_eq(s.launches, 2);
  cr_expect_eq(s.products, 0);
}

Test(planner, no_rows_need_nothing) {
  flp_planner p = planner_of(1000, 64, FLP_DTYPE_BF16, 7);
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_BACKWARD; pass++) {
    flp_scheme s = pick(&p, (flp_pass)pass, 0, 0);
    cr_expect_eq(s.bytes, 0);
    cr_expect_eq(s.launches, 0);
    cr_expect_eq(s.chunks, 0);
  }
}

Test(planner, one_vocab_chunk_takes_no_accumulator) {
  flp_planner p = planner_of(4096, 1024, FLP_DTYPE_BF16, 3);
  flp_scheme s = pick(&p, FLP_PASS_BACKWARD, 512, GIB);
  cr_expect_eq(s.chunks, 1);
  cr_expect_eq(s.size[FLP_REGION_dz], (uint64_t)512 * 4096 * 2);
  cr_expect_eq(s.size[FLP_REGION_hidden_acc], 0);
  cr_expect_eq(s.size[FLP_REGION_weight_acc], 0);
  cr_expect_eq(s.launches, 2 + 3 + 1);
  cr_expect_eq(s.products, 3);
}

Test(planner, mapped_kernels_gather_their_rows) {
  flp_planner p = mapped_of(4096, 1000, FLP_DTYPE_BF16, 7);
  flp_scheme s = pick(&p, FLP_PASS_BACKWARD, 300, GIB);
  cr_expect_eq(s.chunks, 1);
  cr_expect_eq(s.size[FLP_REGION_gather], (uint64_t)300 * 1000 * 2);
  cr_expect_eq(s.size[FLP_REGION_turn], 4);
  cr_expect_eq(s.size[FLP_REGION_bias_part], (uint64_t)4 * 4096 * 4,
               "whole row panels: the last has a tile without rows");
  cr_expect_eq(s.launches, 2 + 1 + 3 + 1, "prepare, record; gather; dz, products, bias_reduce; fill");
  p.chunk_rows = 256;
  s = pick(&p, FLP_PASS_BACKWARD, 600, GIB);
  cr_expect_eq(s.mode, FLP_MODE_RECOMPUTE_ROWS);
  cr_expect_eq(s.size[FLP_REGION_gather], (uint64_t)256 * 1000 * 2, "those of one chunk");
  cr_expect_eq(s.launches, 2 + 3 * 4 + 1);
  p.chunk_vocab = 1000;
  p.mode = FLP_MODE_RECOMPUTE_SPLIT;
  s = pick(&p, FLP_PASS_BACKWARD, 600, GIB);
  cr_expect_eq(s.size[FLP_REGION_gather], (uint64_t)600 * 1000 * 2);
  cr_expect_eq(s.launches, 2 + 1 + 3 * 2 + 5 * 3 + 1);
}

Test(planner, chunks_of_rows_are_whole_row_panels_of_mapped_kernels) {
  flp_planner p = mapped_of(131072, 4096, FLP_DTYPE_BF16, 1);
  for (uint64_t budget = 128 * MIB; budget < 4 * GIB; budget += budget / 3) {
    flp_scheme s;
    if (flp_planner_pick(&p, FLP_PASS_BACKWARD, 16384, budget, 1, &s) != FLP_OK || s.mode != FLP_MODE_RECOMPUTE_ROWS) continue;
    cr_expect_eq(s.chunk_rows % 256, 0);
    expect_sound(&s);
  }
}

Test(planner, products_made_together_have_one_end) {
  flp_planner p = mapped_of(4096, 4096, FLP_DTYPE_BF16, 3);
  double both = flp_planner_chunks_cost(&p, 4096, 4096, 4096, 3);
  double dz = flp_planner_chunks_cost(&p, 4096, 4096, 4096, 0);
  double hidden = flp_planner_chunks_cost(&p, 4096, 4096, 4096, 1) - dz;
  double weight = flp_planner_chunks_cost(&p, 4096, 4096, 4096, 2) - dz;
  cr_expect_lt(both - dz, hidden + weight);
  cr_expect_gt(both - dz, hidden);
  cr_expect_gt(both - dz, weight);
}

static void expect_round_trip(const flp_planner *p, int64_t n, uint64_t budget) {
  flp_scheme query, execute;
  flp_status status = flp_planner_pick(p, FLP_PASS_BACKWARD, n, budget, 1, &query);
  if (status == FLP_ERROR_BUDGET) {
    cr_expect_gt(query.smallest_bytes, budget);
    return;
  }
  cr_assert_eq(status, FLP_OK, "%s", flp_error_detail());
  cr_expect_leq(query.bytes, budget);
  cr_assert_eq(flp_planner_pick(p, FLP_PASS_BACKWARD, n, query.bytes, 0, &execute), FLP_OK);
  cr_expect_eq(memcmp(&query, &execute, sizeof query), 0, "n %ld budget %lu: mode %d/%d bytes %lu/%lu", (long)n,
               (unsigned long)budget, query.mode, execute.mode, (unsigned long)query.bytes,
               (unsigned long)execute.bytes);
  expect_sound(&query);
}

static const struct {
  int64_t vocab, hidden;
  flp_dtype dtype;
  uint32_t grads;
} shapes[] = {
    {151936, 4096, FLP_DTYPE_BF16, 3}, {151936, 4096, FLP_DTYPE_BF16, 1}, {151936, 1024, FLP_DTYPE_FP16, 7},
    {128256, 2048, FLP_DTYPE_FP32, 7}, {32000, 4096, FLP_DTYPE_BF16, 2},  {50257, 768, FLP_DTYPE_BF16, 4},
    {1000, 64, FLP_DTYPE_FP16, 5},     {2, 8, FLP_DTYPE_FP32, 7},         {151936, 4096, FLP_DTYPE_BF16, 6},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Each shape with portable kernels, then, but for fp32, with mapped ones. */
static flp_planner shape_at(size_t i) {
  size_t j = i % SHAPES;
  int is_mapped = i >= SHAPES && shapes[j].dtype != FLP_DTYPE_FP32;
  return (is_mapped ? mapped_of : planner_of)(shapes[j].vocab, shapes[j].hidden, shapes[j].dtype, shapes[j].grads);
}

static const int64_t row_counts[] = {1, 2, 127, 128, 129, 1000, 4096, 8192, 16384, 100003};

Test(planner, a_query_and_the_execute_after_it_agree) {
  for (size_t i = 0; i < 2 * SHAPES; i++) {
    flp_planner p = shape_at(i);
    for (size_t j = 0; j < sizeof row_counts / sizeof row_counts[0]; j++)
      for (uint64_t budget = 4096; budget < 64 * GIB; budget += budget / 3)
        expect_round_trip(&p, row_counts[j], budget);
  }
}

Test(planner, a_larger_budget_is_never_dearer) {
  for (size_t i = 0; i < 2 * SHAPES; i++) {
    flp_planner p = shape_at(i);
    double last = 1e300;
    for (uint64_t budget = 4096; budget < 64 * GIB; budget += budget / 5) {
      flp_scheme s;
      if (flp_planner_pick(&p, FLP_PASS_BACKWARD, 8192, budget, 1, &s) != FLP_OK) continue;
      cr_expect_leq(s.seconds, last);
      last = s.seconds;
    }
    cr_expect_lt(last, 1e300);
  }
}

Test(planner, the_smallest_budget_is_named_and_exact) {
  for (size_t i = 0; i < 2 * SHAPES; i++) {
    flp_planner p = shape_at(i);
    flp_scheme any = pick(&p, FLP_PASS_BACKWARD, 1000, UINT64_MAX), s;
    cr_assert_eq(flp_planner_pick(&p, FLP_PASS_BACKWARD, 1000, any.smallest_bytes, 1, &s), FLP_OK);
    cr_expect_eq(s.bytes, any.smallest_bytes);
    cr_assert_eq(flp_planner_pick(&p, FLP_PASS_BACKWARD, 1000, any.smallest_bytes - 1, 1, &s), FLP_ERROR_BUDGET);
    char expected[256];
    snprintf(
        expected, sizeof expected,
        "budget: %lu bytes are too few for the backward pass over 1000 rows; %lu bytes or more are accepted",
        (unsigned long)(any.smallest_bytes - 1), (unsigned long)any.smallest_bytes);
    cr_expect_str_eq(flp_error_detail(), expected);
  }
}

Test(planner, modes_of_the_design_at_real_size) {
  /* Both gradients: the vocab axis, whose accumulator traffic is 1.4% of the products where rows cost 11%. */
  flp_planner p = planner_of(131072, 4096, FLP_DTYPE_BF16, 3);
  flp_scheme s = pick(&p, FLP_PASS_BACKWARD, 16384, GIB);
  cr_expect_eq(s.mode, FLP_MODE_RECOMPUTE_VOCAB);
  cr_expect_gt(s.chunks, 1);
  cr_expect_eq(s.size[FLP_REGION_hidden_acc], (uint64_t)16384 * 4096 * 4);
  /* A frozen head by rows needs a chunk and no accumulator. */
  p = planner_of(131072, 4096, FLP_DTYPE_BF16, 1);
  s = pick(&p, FLP_PASS_BACKWARD, 16384, 512 * MIB);
  cr_expect_eq(s.mode, FLP_MODE_RECOMPUTE_ROWS);
  cr_expect_eq(s.products, 2);
  cr_expect_eq(s.size[FLP_REGION_weight_acc], 0);
  /* A budget that holds no accumulator at all: R2. */
  p = planner_of(131072, 4096, FLP_DTYPE_BF16, 3);
  s = pick(&p, FLP_PASS_BACKWARD, 16384, 200 * MIB);
  cr_expect_eq(s.mode, FLP_MODE_RECOMPUTE_SPLIT);
  cr_expect_eq(s.products, 4);
}

Test(planner, accumulators_appear_where_they_must) {
  flp_planner p = planner_of(10000, 512, FLP_DTYPE_BF16, 7);
  p.chunk_rows = 100;
  flp_scheme s = pick(&p, FLP_PASS_BACKWARD, 1000, 1);
  cr_expect_eq(s.mode, FLP_MODE_RECOMPUTE_ROWS);
  cr_expect_eq(s.chunks, 10);
  cr_expect_eq(s.size[FLP_REGION_dz], (uint64_t)100 * 10048 * 2, "columns rounded up to 64");
  cr_expect_eq(s.size[FLP_REGION_weight_low], (uint64_t)10112 * 512, "a byte of each element of whole tiles");
  cr_expect_eq(s.size[FLP_REGION_weight_acc], 0);
  cr_expect_eq(s.size[FLP_REGION_bias_acc], (uint64_t)10000 * 4);
  cr_expect_eq(s.size[FLP_REGION_bias_part], (uint64_t)10000 * 4, "one tile of rows");
  expect_sound(&s);
  p.spec.grad_weight_dtype = FLP_DTYPE_FP32;
  s = pick(&p, FLP_PASS_BACKWARD, 1000, 1);
  cr_expect_eq(s.size[FLP_REGION_weight_acc], 0, "grad_weight is its own accumulator");
  cr_expect_eq(s.size[FLP_REGION_weight_low], 0);
  cr_expect_eq(s.size[FLP_REGION_bias_acc], (uint64_t)10000 * 4);
  p.spec.grad_bias_dtype = FLP_DTYPE_FP32;
  s = pick(&p, FLP_PASS_BACKWARD, 1000, 1);
  cr_expect_eq(s.size[FLP_REGION_bias_acc], 0, "so is grad_bias");
  p.spec.grad_weight_dtype = FLP_DTYPE_FP16;
  s = pick(&p, FLP_PASS_BACKWARD, 1000, 1);
  cr_expect_eq(s.size[FLP_REGION_weight_acc], (uint64_t)10000 * 512 * 4, "fp16 has not the range of the sums");
  cr_expect_eq(s.size[FLP_REGION_weight_low], 0);
  expect_sound(&s);
}

/* Sums of 20 and 24 bits are in whole tiles of the kernel, and read and written in 2.5 and 3 bytes by each chunk but the
 * ends. */
Test(planner, sums_for_a_weight_gradient_in_bf16_take_a_nibble_or_a_byte) {
  flp_planner narrow = mapped_of(331, 72, FLP_DTYPE_BF16, 3), wide = narrow;
  narrow.chunk_rows = wide.chunk_rows = 256;
  wide.spec.grad_weight_dtype = FLP_DTYPE_FP32;
  flp_scheme s = pick(&narrow, FLP_PASS_BACKWARD, 1000, GIB), w = pick(&wide, FLP_PASS_BACKWARD, 1000, GIB);
  cr_assert_eq(s.mode, FLP_MODE_RECOMPUTE_ROWS);
  cr_expect_eq(s.size[FLP_REGION_weight_low], 512 * 256 / 2, "four chunks");
  cr_expect_eq(s.bytes, w.bytes + (uint64_t)512 * 256 / 2);
  cr_expect_float_eq(w.seconds - s.seconds, 2 * 3 * (4 - 2.5) * 331 * 72 / narrow.bandwidth, 1e-15);
  cr_expect_eq(s.launches, w.launches);
  s = pick(&narrow, FLP_PASS_BACKWARD, 1025, GIB);
  w = pick(&wide, FLP_PASS_BACKWARD, 1025, GIB);
  cr_expect_eq(s.size[FLP_REGION_weight_low], 512 * 256, "five");
  cr_expect_float_eq(w.seconds - s.seconds, 2 * 4 * (4 - 3) * 331 * 72 / narrow.bandwidth, 1e-15);
  narrow.chunk_rows = 1000;
  s = pick(&narrow, FLP_PASS_BACKWARD, 1000, GIB);
  cr_expect_eq(s.size[FLP_REGION_weight_low], 0, "one chunk has no sums");
}

Test(planner, an_explicit_chunk_overrides_the_budget_of_a_query_only) {
  flp_planner p = planner_of(10000, 512, FLP_DTYPE_BF16, 3);
  p.chunk_vocab = 3000;
  flp_scheme s = pick(&p, FLP_PASS_BACKWARD, 1000, 1);
  cr_expect_eq(s.mode, FLP_MODE_RECOMPUTE_VOCAB);
  cr_expect_eq(s.chunk_vocab, 3000);
  cr_expect_eq(s.chunks, 4);
  flp_scheme refused;
  cr_expect_eq(flp_planner_pick(&p, FLP_PASS_BACKWARD, 1000, s.bytes - 1, 0, &refused), FLP_ERROR_BUDGET);
  cr_expect_eq(flp_planner_pick(&p, FLP_PASS_BACKWARD, 1000, s.bytes, 0, &refused), FLP_OK);
  p.chunk_rows = 5000; /* more rows than there are */
  for (int64_t n = 1; n < 20000; n = 3 * n + 1) {
    expect_round_trip(&p, n, UINT64_MAX);
    s = pick(&p, FLP_PASS_BACKWARD, n, 1);
    cr_expect_leq(s.chunk_rows, n);
    cr_expect(s.mode == FLP_MODE_RECOMPUTE_ROWS ? s.chunk_vocab == 10000 : s.chunk_vocab == 3000);
  }
}

Test(planner, an_explicit_mode_is_kept) {
  flp_planner p = planner_of(10000, 512, FLP_DTYPE_BF16, 7);
  for (p.mode = FLP_MODE_RECOMPUTE_VOCAB; p.mode <= FLP_MODE_RECOMPUTE_SPLIT; p.mode++)
    for (uint64_t budget = 16 * MIB; budget < 4 * GIB; budget *= 4) {
      flp_scheme s;
      if (flp_planner_pick(&p, FLP_PASS_BACKWARD, 3000, budget, 1, &s) != FLP_OK) continue;
      cr_expect_eq(s.mode, p.mode);
      expect_sound(&s);
    }
  p.mode = FLP_MODE_RECOMPUTE_SPLIT;
  cr_expect_eq(pick(&p, FLP_PASS_BACKWARD, 3000, 4 * GIB).mode, FLP_MODE_RECOMPUTE_SPLIT);
}

Test(planner, r2_without_both_gradients_is_never_picked) {
  for (uint32_t grads = 1; grads < 8; grads++) {
    flp_planner p = planner_of(131072, 1024, FLP_DTYPE_BF16, grads);
    for (uint64_t budget = MIB; budget < 4 * GIB; budget *= 2) {
      flp_scheme s;
      if (flp_planner_pick(&p, FLP_PASS_BACKWARD, 8192, budget, 1, &s) != FLP_OK) continue;
      cr_expect((grads & 3) == 3 || s.mode != FLP_MODE_RECOMPUTE_SPLIT);
      cr_expect_eq(s.products, s.mode == FLP_MODE_RECOMPUTE_SPLIT ? 4 : 1 + (int)(grads & 1) + (int)(grads >> 1 & 1));
    }
  }
}

Test(planner, chunks_of_the_largest_size_fill_whole_waves) {
  /* 64 row tiles on 132 multiprocessors: 33 column tiles, 8448 columns, are 16 full waves. */
  flp_planner p = planner_of(151936, 4096, FLP_DTYPE_BF16, 3);
  double full = flp_planner_chunks_cost(&p, 8192, 8192, 8448, 3) / 151936;
  double ragged = flp_planner_chunks_cost(&p, 8192, 8192, 8448 + 256, 3) / 151936;
  cr_expect_lt(full, ragged);
}

Test(planner, grids_and_sizes_at_the_limits) {
  flp_planner p = planner_of(FLP_COUNT_MAX, 8, FLP_DTYPE_BF16, 3);
  flp_scheme s;
  s = pick(&p, FLP_PASS_FORWARD, FLP_COUNT_MAX, UINT64_MAX);
  int64_t units = flp_ceil_div(s.chunk_rows, p.forward_rows) * flp_ceil_div(FLP_COUNT_MAX, p.unit_columns);
  cr_expect_leq(units, INT32_MAX);
  cr_expect_lt(s.chunk_rows, FLP_COUNT_MAX);
  expect_sound(&s);
  s = pick(&p, FLP_PASS_BACKWARD, FLP_COUNT_MAX, UINT64_MAX);
  cr_expect(flp_planner_grids_fit(&p, s.chunk_rows, s.chunk_vocab));
  expect_sound(&s);
}

Test(planner, the_layout_that_users_see) {
  flp_planner p = planner_of(1000, 64, FLP_DTYPE_BF16, 3);
  flp_scheme s = pick(&p, FLP_PASS_BACKWARD, 100, GIB);
  flp_layout layout;
  flp_planner_describe(&p, &s, 100, &layout);
  cr_expect_eq(layout.struct_bytes, sizeof layout);
  cr_expect_eq(layout.bytes, s.bytes);
  cr_expect_eq(layout.smallest_bytes, s.smallest_bytes);
  cr_expect_eq(layout.chunk_rows, 100);
  cr_expect_eq(layout.chunk_vocab, 1000);
  cr_expect_float_eq(layout.flops, 3 * 2.0 * 100 * 64 * 1000, 1);
}

/* ---- layouts that tuning preferred ---- */

static flp_planner tuned_to(flp_mode mode, int64_t rows, int64_t columns) {
  flp_planner p = mapped_of(151936, 4096, FLP_DTYPE_BF16, 3);
  p.tuned_mode = mode;
  p.tuned_rows = rows;
  p.tuned_vocab = columns;
  return p;
}

static void expect_layout(const flp_scheme *s, flp_mode mode, int64_t rows, int64_t columns) {
  cr_expect_eq(s->mode, mode, "mode %d", (int)s->mode);
  cr_expect_eq(s->chunk_rows, rows, "chunk_rows %ld", (long)s->chunk_rows);
  cr_expect_eq(s->chunk_vocab, columns, "chunk_vocab %ld", (long)s->chunk_vocab);
}

Test(planner, takes_the_layout_that_tuning_preferred) {
  flp_planner own = mapped_of(151936, 4096, FLP_DTYPE_BF16, 3);
  flp_scheme s = pick(&own, FLP_PASS_BACKWARD, 8192, GIB);
  cr_expect(s.mode != FLP_MODE_RECOMPUTE_SPLIT && s.chunk_vocab != 20000, "the case is no case");
  flp_planner p = tuned_to(FLP_MODE_RECOMPUTE_VOCAB, 0, 20000);
  s = pick(&p, FLP_PASS_BACKWARD, 8192, GIB);
  expect_layout(&s, FLP_MODE_RECOMPUTE_VOCAB, 8192, 20000);
  expect_sound(&s);
  p = tuned_to(FLP_MODE_RECOMPUTE_ROWS, 1536, 0);
  s = pick(&p, FLP_PASS_BACKWARD, 8192, 4 * GIB);
  expect_layout(&s, FLP_MODE_RECOMPUTE_ROWS, 1536, 151936);
  p = tuned_to(FLP_MODE_RECOMPUTE_SPLIT, 1024, 9000);
  s = pick(&p, FLP_PASS_BACKWARD, 8192, GIB);
  expect_layout(&s, FLP_MODE_RECOMPUTE_SPLIT, 1024, 9000);
  expect_sound(&s);
}

Test(planner, a_preferred_chunk_shrinks_until_it_fits) {
  flp_planner p = tuned_to(FLP_MODE_RECOMPUTE_VOCAB, 0, 20000);
  int64_t before = 20000;
  for (uint64_t budget = 600 * (uint64_t)MIB; budget > 256 * (uint64_t)MIB; budget -= 8 * (uint64_t)MIB) {
    flp_scheme s = pick(&p, FLP_PASS_BACKWARD, 8192, budget), again;
    cr_expect_eq(s.mode, FLP_MODE_RECOMPUTE_VOCAB);
    cr_expect_leq(s.chunk_vocab, before);
    cr_expect_leq(s.bytes, budget);
    before = s.chunk_vocab;
    again = pick(&p, FLP_PASS_BACKWARD, 8192, s.bytes);
    cr_expect_eq(again.chunk_vocab, s.chunk_vocab, "query and execute agree");
  }
  cr_expect_lt(before, 10000);
  flp_planner own = mapped_of(151936, 4096, FLP_DTYPE_BF16, 3);
  flp_scheme s = pick(&p, FLP_PASS_BACKWARD, 8192, 200 * (uint64_t)MIB),
             t = pick(&own, FLP_PASS_BACKWARD, 8192, 200 * (uint64_t)MIB);
  expect_layout(&s, t.mode, t.chunk_rows, t.chunk_vocab); /* no room for its accumulator: the planner's own */
  cr_expect_eq(s.smallest_bytes, t.smallest_bytes);
}

Test(planner, a_preferred_chunk_that_fills_no_device_is_no_preference) {
  flp_planner p = tuned_to(FLP_MODE_RECOMPUTE_VOCAB, 0, 20000), own = mapped_of(151936, 4096, FLP_DTYPE_BF16, 3);
  flp_scheme s = pick(&p, FLP_PASS_BACKWARD, 100, GIB), t = pick(&own, FLP_PASS_BACKWARD, 100, GIB);
  expect_layout(&s, t.mode, t.chunk_rows, t.chunk_vocab);
  s = pick(&p, FLP_PASS_BACKWARD, 256, GIB); /* two rows of 105 tiles */
  expect_layout(&s, FLP_MODE_RECOMPUTE_VOCAB, 256, 20000);
}

Test(planner, options_override_the_preference_of_a_descriptor) {
  flp_spec spec = mapped_of(151936, 4096, FLP_DTYPE_BF16, 3).spec;
  flp_kernel_desc dz = {.key.kind = FLP_KERNEL_DZ, .tile_rows = 128, .tile_columns = 192, .cluster = 2};
  snprintf(dz.entries[0].name, sizeof dz.entries[0].name, "dz_map");
  dz.chunk_vocab = 20000;
  flp_options options = FLP_OPTIONS_INIT;
  flp_device device = {.multiprocessors = 132};
  flp_planner p;
  flp_planner_init(&p, &spec, &options, &device, &dz, 1);
  cr_expect_eq(p.tuned_mode, FLP_MODE_RECOMPUTE_VOCAB);
  cr_expect_eq(p.tuned_vocab, 20000);
  options.mode = FLP_MODE_RECOMPUTE_VOCAB;
  flp_planner_init(&p, &spec, &options, &device, &dz, 1);
  cr_expect_eq(p.tuned_mode, FLP_MODE_RECOMPUTE_VOCAB, "the same mode is no objection");
  options.mode = FLP_MODE_RECOMPUTE_SPLIT;
  flp_planner_init(&p, &spec, &options, &device, &dz, 1);
  cr_expect_eq(p.tuned_mode, 0);
  options.mode = (flp_mode)0;
  options.chunk_rows = 512;
  flp_planner_init(&p, &spec, &options, &device, &dz, 1);
  cr_expect_eq(p.tuned_mode, 0);
  options.chunk_rows = 0;
  dz.chunk_rows = 700;
  flp_planner_init(&p, &spec, &options, &device, &dz, 1);
  cr_expect_eq(p.tuned_mode, FLP_MODE_RECOMPUTE_SPLIT);
  spec.grads = FLP_GRAD_HIDDEN;
  flp_planner_init(&p, &spec, &options, &device, &dz, 1);
  cr_expect_eq(p.tuned_mode, 0, "R2 is for both products");
  dz.chunk_vocab = 0;
  flp_planner_init(&p, &spec, &options, &device, &dz, 1);
  cr_expect_eq(p.tuned_mode, FLP_MODE_RECOMPUTE_ROWS);
}
