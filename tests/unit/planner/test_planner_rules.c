/* test_planner_rules.c: what single functions of the planner promise: costs, and the sizes that kernels and launches
 * share with it. What tuning prefers and what is kept is in tests/golden/planner. */
#include <math.h>
#include <string.h>

#include "tests/unit/support/planner_case.h"

#define HEAD "V=151936 D=4096 grads=hidden,weight"

/* ---- costs ---- */

Test(planner_rules, products_made_together_have_one_end) {
  flp_planner p = planner_of(MAPPED, "V=4096 D=4096 grads=hidden,weight");
  double both = flp_planner_chunks_cost(&p, 4096, 4096, 4096, 3);
  double dz = flp_planner_chunks_cost(&p, 4096, 4096, 4096, 0);
  double hidden = flp_planner_chunks_cost(&p, 4096, 4096, 4096, 1) - dz;
  double weight = flp_planner_chunks_cost(&p, 4096, 4096, 4096, 2) - dz;
  cr_expect(both - dz < hidden + weight && both - dz > hidden && both - dz > weight);
}

Test(planner_rules, chunks_of_the_largest_size_fill_whole_waves) {
  /* 64 row tiles on 132 multiprocessors: 33 column tiles, 8448 columns, are 16 full waves. */
  flp_planner p = planner_of("", HEAD);
  double full = flp_planner_chunks_cost(&p, 8192, 8192, 8448, 3) / 151936;
  double ragged = flp_planner_chunks_cost(&p, 8192, 8192, 8448 + 256, 3) / 151936;
  cr_expect_lt(full, ragged);
}

/* Sums of 20 and 24 bits are read and written in 2.5 and 3 bytes by each chunk but the ends. */
Test(planner_rules, sums_beside_a_gradient_in_bf16_save_their_traffic) {
  flp_planner narrow = planner_of(MAPPED, "V=331 D=72 grads=hidden,weight"), wide = narrow;
  narrow.chunk_rows = wide.chunk_rows = 256;
  wide.spec.grad_weight_dtype = FLP_DTYPE_FP32;
  for (int chunks = 4; chunks <= 5; chunks++) {
    int64_t n = chunks == 4 ? 1000 : 1025;
    flp_scheme s = pick(&narrow, FLP_PASS_BACKWARD, n, GIB), w = pick(&wide, FLP_PASS_BACKWARD, n, GIB);
    double bytes = chunks == 4 ? 2.5 : 3;
    cr_expect_float_eq(w.seconds - s.seconds, 2 * (chunks - 1) * (4 - bytes) * 331 * 72 / narrow.bandwidth, 1e-15);
    cr_expect(s.launches == w.launches && s.bytes == w.bytes + s.size[FLP_REGION_weight_low]);
  }
}

/* Short chunks of columns make more launches for blocks that might be redone, and the model knows. */
Test(planner_rules, launches_of_direction_mode_cost_time) {
  flp_planner p = planner_of(MAPPED, "V=153600 D=8 grads=hidden keep");
  p.chunk_rows = 1024;
  p.chunk_vocab = FLP_GROUP_COLUMNS;
  flp_scheme s = pick(&p, FLP_PASS_FORWARD_SAVED, 1024, GIB);
  cr_expect_geq(s.seconds, s.launches * 4e-6, "%g", s.seconds);
  p = planner_of(MAPPED, "V=248320 D=2048 grads=hidden keep");
  s = pick(&p, FLP_PASS_FORWARD_SAVED, 65536, GIB);
  cr_expect_lt(s.seconds, 1.07 * pick(&p, FLP_PASS_FORWARD_SAVED, 65536, UINT64_MAX).seconds);
}

/* ---- what is kept ---- */

/* A block that may be redone takes the room of the whole chunk's exponentials. */
Test(planner_rules, what_is_redone_has_the_columns_that_there_is_room_for) {
  static const int64_t cases[][3] = {{512, 3072, 3072},         {1024, 3072, 3072},  {2047, 3072, 3072},
                                     {3 * 1024, 3072, 3 * 3072}, {8192, 3072, 20000}, {100, 20000, 20000}};
  flp_planner p = planner_of(MAPPED, "V=20000 grads=hidden keep");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    cr_expect_eq(flp_planner_redo_columns(&p, cases[i][0], cases[i][1]), cases[i][2], "case %zu", i);
}

/* ---- tail mode ---- */

Test(planner_rules, lists_are_aligned_and_apart) {
  flp_planner p = planner_of(MAPPED, HEAD " tail=2^-9");
  for (int64_t n = 1; n < 5000; n = n * 3 + 1) {
    flp_tail_saved s = flp_planner_tail_saved(&p.spec, n);
    uint64_t rows = (uint64_t)n;
    cr_expect_eq(s.partial, 0);
    cr_expect_eq((s.floor | s.gate | s.count | s.entry | s.bytes) % 256, 0);
    cr_expect(s.floor >= 16 * rows && s.gate >= s.floor + 4 * rows && s.count >= s.gate + 4 * rows);
    cr_expect(s.entry >= s.count + 4 * FLP_EMIT_BINS * rows && s.bytes >= s.entry + 8192 * rows);
    cr_expect_lt(s.bytes, (16 + 8 + 4 * FLP_EMIT_BINS + 8192) * rows + 6 * 256);
  }
}

Test(planner_rules, numbers_of_entries_and_targets_have_31_bits) {
  cr_expect_eq(flp_planner_tail_entries(1), 320 + 1024);
  cr_expect_eq(flp_planner_tail_entries(8192), 320 * 8192 + 1024);
  for (int64_t n = 1 << 20; n <= INT32_MAX; n = 2 * n + 1) {
    int64_t entries = flp_planner_tail_entries(n);
    cr_expect(entries > 0 && flp_planner_list_blocks(entries) * FLP_LIST_BLOCK <= INT32_MAX, "%ld", (long)n);
  }
  flp_planner p = planner_of(MAPPED, HEAD " targets=512");
  int64_t most = flp_planner_targets_rows_max(&p.spec);
  cr_expect(most * 512 <= INT32_MAX && flp_planner_list_blocks(most * 512) * FLP_LIST_BLOCK <= INT32_MAX);
}

/* ---- listed columns ---- */

Test(planner_rules, a_listed_spec_has_kernels_of_lists_and_no_other) {
  flp_planner p = planner_of(MAPPED, "listed grads=hidden,weight,bias bias");
  static const flp_kernel_kind kinds[] = {FLP_KERNEL_ROWS, FLP_KERNEL_LISTED, FLP_KERNEL_LISTED_WEIGHT};
  flp_kernel_key keys[FLP_SPEC_KERNELS_MAX];
  cr_expect(!p.is_mapped && p.unit_columns >= 1 && p.bandwidth > 0 && p.flop_rate > 0);
  cr_assert_eq(flp_kernel_keys_for(&p.spec, "sm_90a", keys), 3);
  for (int i = 0; i < 3; i++) cr_expect(keys[i].kind == kinds[i] && strcmp(keys[i].arch, "sm_80") == 0);
  p.spec.grads = FLP_GRAD_HIDDEN;
  cr_expect_eq(flp_kernel_keys_for(&p.spec, "sm_80", keys), 2, "a frozen head needs no order by columns");
}

/* -1 has all ones: it comes last if they are above every column. */
Test(planner_rules, digits_reach_above_every_column) {
  static const struct {
    int64_t vocab;
    int passes;
  } cases[] = {{2, 1},       {511, 1},           {512, 2},     {151936, 2}, {(1 << 18) - 1, 2},
               {1 << 18, 3}, {(1 << 27) - 1, 3}, {1 << 27, 4}, {1 << 30, 4}};
  flp_planner p = planner_of(MAPPED, "listed grads=weight");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    int passes = flp_planner_list_passes(cases[i].vocab);
    cr_expect_eq(passes, cases[i].passes, "V=%ld: %d", (long)cases[i].vocab, passes);
    cr_expect_lt((passes - 1) * FLP_LIST_DIGIT_BITS, 32, "a shift of 32 bits");
    p.spec.vocab = cases[i].vocab;
    flp_scheme s = pick(&p, FLP_PASS_BACKWARD, 10, UINT64_MAX);
    cr_expect_eq(s.size[FLP_REGION_list_other] != 0, passes > 1, "V=%ld", (long)cases[i].vocab);
    cr_expect_eq(s.launches, 6 + 3 * passes + 3);
  }
}

/* As many as there are places and slices of D, and no more than a few for each multiprocessor. */
Test(planner_rules, grid_of_wide_columns) {
  static const struct {
    int64_t hidden, count, ctas;
    int multiprocessors;
  } cases[] = {{520, 1, 3, 132},           {520, 64, 3, 132},           {520, 65, 6, 132},
               {520, 64 * 704, 2112, 132}, {520, 64 * 705, 2112, 132}, {1 << 20, INT32_MAX, 2112, 132},
               {1 << 20, INT32_MAX, 16, 1}};
  flp_planner p = planner_of("", "V=1000 listed grads=weight");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    p.spec.hidden = cases[i].hidden;
    p.multiprocessors = cases[i].multiprocessors;
    flp_scheme s;
    cr_expect_eq(flp_planner_list_wide(&p, cases[i].count), cases[i].ctas, "case %zu", i);
    cr_expect_eq(flp_planner_pick_listed(&p, FLP_PASS_BACKWARD, 1, cases[i].count, UINT64_MAX, &s), FLP_OK);
  }
}

/* ---- K targets ---- */

Test(planner_rules, words_of_targets_hold_whole_leaves) {
  static const int64_t cases[][2] = {{1, 1}, {1536, 1}, {1537, 2}, {151936, 99}};
  for (int i = 0; i < 4; i++) cr_expect_eq(flp_planner_target_words(cases[i][0]), cases[i][1]);
}

/* ---- best columns ---- */

/* P(Gamma(k) > x): the first k terms of exp(x)·exp(-x). */
static double gamma_tail(int k, double x) {
  double sum = 0;
  for (int i = 0; i < k; i++) sum += exp(i * log(x) - x - lgamma(i + 1.0));
  return sum;
}

/* Of columns in no order once in 10^8 rows, no vocabulary takes more than a few slices, and lists are within 128 MiB. */
Test(planner_rules, lists_of_best_columns_overflow_seldom) {
  flp_planner p = planner_of(MAPPED, "V=151936 D=4096 topk=20 rank");
  for (p.spec.topk = 1; p.spec.topk <= FLP_TOPK_MAX; p.spec.topk++) {
    p.spec.vocab = 151936;
    flp_scheme s = pick(&p, FLP_PASS_FORWARD, 8192, 256 * MIB);
    uint64_t lists = s.size[FLP_REGION_top_column] + s.size[FLP_REGION_top_score];
    int64_t places = flp_planner_top_places(&p.spec);
    cr_expect(lists == 8 * 8192 * (uint64_t)places && lists <= 128 * MIB && s.chunks == 1);
    for (p.spec.vocab = 128; p.spec.vocab < 300000; p.spec.vocab = p.spec.vocab * 3 / 2) {
      int64_t sample = flp_planner_top_sample(&p.spec, p.spec.vocab);
      int slices = flp_planner_top_slices(&p.spec, p.spec.vocab);
      cr_expect(slices >= 1 && slices <= 3);
      cr_expect(sample == 0 ? slices == 1 && p.spec.vocab <= places : sample == 768 && sample + p.spec.topk <= places);
      double ratio = sample ? pow((double)p.spec.vocab / (double)sample, 1.0 / slices) : 1;
      double most = flp_planner_top_ratio(&p.spec);
      cr_expect(ratio <= most && most <= 24 && gamma_tail(p.spec.topk, (double)places / most) < 1e-8);
    }
  }
}

/* ---- operands of two dtypes ---- */

/* Slices follow each other to the end, none is wider than the workspace has room for, and each is whole units. */
Test(planner_rules, slices_grow_from_the_first) {
  flp_planner p = planner_of(MAPPED, "V=151936 D=4096 mixed=round weight=fp32");
  for (int64_t units = 1; units < 40; units++)
    for (int64_t few = 1; few <= units; few++) {
      flp_scheme s = {.slice = units * p.unit_columns, .first = few * p.unit_columns, .ahead = 1};
      int64_t before = 0, begin = 0;
      for (int number = 0; begin < p.spec.vocab; number++) {
        int64_t end = flp_planner_slice_end(&s, begin), width = end - begin;
        cr_assert(width > 0 && width <= s.slice && width % p.unit_columns == 0);
        cr_assert(number == 0 || number > 1 || width <= 2 * before);
        cr_assert(number != 0 || end == s.first);
        before = width;
        begin = end;
      }
    }
}
