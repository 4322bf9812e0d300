/* test_planner_tail.c: layouts of tail mode: arrays that do not overlap, the recompute layout behind them, budgets, and
 * steps that take it where it fits. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/api/validate.h"
#include "runtime/base/util.h"
#include "runtime/loss/loss.h"
#include "runtime/planner/planner.h"
#include "tests/unit/support/planner_case.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static uint8_t program[FLP_LOSS_BYTES_MAX];

/* An H200 with the tiles of portable kernels, or of Hopper's. */
static flp_planner planner_of(int64_t vocab, int64_t hidden, uint32_t grads, const char *loss, int mapped) {
  flp_spec spec = FLP_SPEC_INIT, resolved;
  spec.vocab = vocab;
  spec.hidden = hidden;
  spec.grads = grads;
  spec.has_bias = (grads & FLP_GRAD_BIAS) != 0;
  spec.tail = 0x1p-9f;
  if (loss) {
    cr_assert_eq(flp_loss_builtin_bytes(loss, program, sizeof program, &spec.loss_bytes), FLP_OK);
    spec.loss = program;
  }
  cr_assert_eq(flp_spec_resolve(&spec, &resolved), FLP_OK, "%s", flp_error_detail());
  const flp_kernel_kind kinds[] = {FLP_KERNEL_FORWARD, FLP_KERNEL_EMIT, FLP_KERNEL_DZ,
                                   mapped ? FLP_KERNEL_PRODUCTS : FLP_KERNEL_GRAD_HIDDEN, FLP_KERNEL_GRAD_WEIGHT};
  const char *const entries[][2] = {{"forward", "forward_map"},
                                    {"forward_emit", "forward_emit_map"},
                                    {"dz", "dz_map"},
                                    {"grad_hidden", "products_map"},
                                    {"grad_weight", "products_map"}};
  flp_kernel_desc descs[5] = {{.entry_count = 0}};
  int count = mapped ? 4 : 5;
  for (int i = 0; i < count; i++) {
    descs[i].key.kind = kinds[i];
    descs[i].entry_count = 1;
    descs[i].tile_rows = 128;
    descs[i].tile_columns = mapped && i < 3 ? 192 : 256;
    descs[i].unit_columns = mapped ? 768 : 3072;
    descs[i].cluster = mapped ? 2 : 0;
    snprintf(descs[i].entries[0].name, sizeof descs[i].entries[0].name, "%s", entries[i][mapped]);
  }
  flp_device device = {
      .multiprocessors = 132, .clock_khz = 1980000, .memory_clock_khz = 2619000, .memory_bus_bits = 6144};
  flp_options options = FLP_OPTIONS_INIT;
  flp_planner p;
  flp_planner_init(&p, &resolved, &options, &device, descs, count);
  return p;
}

Test(planner_tail, what_is_kept_is_aligned_and_apart) {
  flp_planner p = planner_of(151936, 4096, 3, NULL, 1);
  for (int64_t n = 1; n < 5000; n = n * 3 + 1) {
    flp_tail_saved s = flp_planner_tail_saved(&p.spec, n);
    uint64_t rows = (uint64_t)n;
    cr_expect_eq(s.partial, 0);
    cr_expect_eq((s.floor | s.gate | s.count | s.entry | s.bytes) % 256, 0);
    cr_expect(s.floor >= 16 * rows && s.gate >= s.floor + 4 * rows && s.count >= s.gate + 4 * rows);
    cr_expect_geq(s.entry, s.count + 4 * FLP_EMIT_BINS * rows);
    cr_expect(s.bytes >= s.entry + 8192 * rows);
    cr_expect_lt(s.bytes, (16 + 8 + 4 * FLP_EMIT_BINS + 8192) * rows + 6 * 256);
    cr_expect_eq(flp_planner_saved_bytes(&p.spec, FLP_MODE_TAIL, n), s.bytes);
  }
}

Test(planner_tail, entries_stay_numbers_of_31_bits) {
  cr_expect_eq(flp_planner_tail_entries(1), 320 + 1024);
  cr_expect_eq(flp_planner_tail_entries(8192), 320 * 8192 + 1024);
  for (int64_t n = 1 << 20; n <= INT32_MAX; n = 2 * n + 1) {
    int64_t entries = flp_planner_tail_entries(n);
    cr_expect(entries > 0 && flp_planner_list_blocks(entries) * FLP_LIST_BLOCK <= INT32_MAX, "%lld", (long long)n);
  }
}

/* The arrays of lists and of the chosen rows, then a whole recompute layout. */
static void expect_backward(const flp_planner *p, int64_t n, const flp_scheme *s) {
  static const flp_region own[] = {FLP_REGION_record,      FLP_REGION_tail_left,    FLP_REGION_tail_sum,
                                   FLP_REGION_tail_total,  FLP_REGION_tail_offsets, FLP_REGION_tail_logprob,
                                   FLP_REGION_list_length, FLP_REGION_list_column,  FLP_REGION_list_row,
                                   FLP_REGION_list_dz};
  flp_scheme dense;
  cr_expect_eq(s->mode, FLP_MODE_TAIL);
  cr_expect_eq(s->products, 0);
  expect_disjoint(s);
  for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
    cr_expect_gt(s->size[own[i]], 0, "array %d", (int)own[i]);
    cr_expect_leq(s->offset[own[i]] + s->size[own[i]], s->passes);
  }
  cr_expect_eq(s->size[FLP_REGION_list_order] > 0, (p->spec.grads & (FLP_GRAD_WEIGHT | FLP_GRAD_BIAS)) != 0);
  cr_expect_eq(s->size[FLP_REGION_tail_entropy] > 0, p->spec.entropy == FLP_ENTROPY_BACKWARD);
  cr_assert_eq(flp_planner_pick_dense(p, n, s->bytes - s->passes, &dense), FLP_OK);
  uint64_t lists = s->offset[FLP_REGION_tail_score] + flp_round_up_u64(s->size[FLP_REGION_tail_score], 256);
  cr_expect_eq(s->bytes, flp_max_u64(s->passes + dense.bytes, lists), "behind are sorted lists, then recompute mode");
  cr_expect_eq(s->offset[FLP_REGION_tail_floor], s->passes);
  cr_expect_eq(dense.chunk_rows, s->chunk_rows);
  cr_expect_eq(dense.chunk_vocab, s->chunk_vocab);
  cr_expect_eq(dense.chunks, s->chunks);
}

Test(planner_tail, backward_has_a_recompute_layout_behind_its_own_arrays) {
  for (uint32_t grads = 1; grads < 8; grads++)
    for (int mapped = 0; mapped < 2; mapped++) {
      flp_planner p = planner_of(grads % 2 ? 151936 : 1000, 1024, grads, NULL, mapped);
      p.spec.entropy = grads % 3 ? FLP_ENTROPY_BACKWARD : FLP_ENTROPY_NONE;
      for (int64_t n = 1; n < 20000; n *= 26)
        for (uint64_t budget = 200 * MIB; budget < 5 * GIB; budget *= 3) {
          flp_scheme s;
          if (flp_planner_pick(&p, FLP_PASS_BACKWARD_SAVED, n, budget, 1, &s) != FLP_OK) continue;
          cr_expect_leq(s.bytes + s.saved_bytes, budget);
          expect_backward(&p, n, &s);
        }
    }
}

/* Chunks of rows would pass all of the weight's gradient through memory, each for a few rows. */
Test(planner_tail, few_rows_are_recomputed_by_chunks_of_the_vocabulary) {
  flp_planner p = planner_of(151936, 4096, 3, NULL, 1);
  flp_scheme s = pick(&p, FLP_PASS_BACKWARD_SAVED, 8192, GIB);
  cr_expect_eq(s.chunk_rows, 8192);
  cr_expect_gt(s.chunks, 1);
  p.tuned_mode = FLP_MODE_RECOMPUTE_ROWS;
  p.tuned_rows = 1024;
  cr_expect_eq(pick(&p, FLP_PASS_BACKWARD_SAVED, 8192, GIB).chunk_rows, 8192, "whatever suits all rows");
  cr_expect_eq(pick(&p, FLP_PASS_BACKWARD, 8192, GIB).chunk_rows, 1024);
}

Test(planner_tail, execute_finds_the_layout_of_the_query) {
  flp_planner p = planner_of(151936, 1024, 3, "grpo", 1);
  static const flp_pass passes[] = {FLP_PASS_FORWARD_SAVED, FLP_PASS_BACKWARD_SAVED, FLP_PASS_STEP, FLP_PASS_BACKWARD};
  for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++)
    for (uint64_t budget = 100 * MIB; budget < 4 * GIB; budget += 211 * MIB) {
      flp_scheme s, again;
      if (flp_planner_pick(&p, passes[i], 4096, budget, 1, &s) != FLP_OK) continue;
      cr_assert_eq(flp_planner_pick(&p, passes[i], 4096, s.bytes, 0, &again), FLP_OK);
      again.saved_bytes = s.saved_bytes;
      cr_expect_eq(memcmp(&again, &s, sizeof s), 0, "pass %d in %llu", (int)passes[i], (unsigned long long)budget);
    }
}

Test(planner_tail, saved_where_both_passes_fit_beside_it) {
  flp_planner p = planner_of(50000, 256, 3, NULL, 0);
  int64_t n = 2000;
  flp_scheme backward, forward;
  cr_assert_eq(flp_planner_pick(&p, FLP_PASS_BACKWARD_SAVED, n, 1, 1, &backward), FLP_ERROR_BUDGET);
  cr_assert_eq(flp_planner_pick(&p, FLP_PASS_FORWARD_SAVED, n, 1, 1, &forward), FLP_ERROR_BUDGET);
  uint64_t least = backward.smallest_bytes > forward.smallest_bytes ? backward.smallest_bytes : forward.smallest_bytes;
  uint64_t saved = flp_planner_saved_bytes(&p.spec, FLP_MODE_TAIL, n);
  cr_expect_eq(flp_planner_saved(&p, n, saved + least), saved);
  cr_expect_eq(flp_planner_saved(&p, n, saved + least - 1), 0);
  p.chunk_rows = 128;
  cr_expect_eq(flp_planner_saved(&p, n, saved + forward.smallest_bytes), saved, "chunks override backward's budget");
  p.chunk_rows = 0;
  p.mode = FLP_MODE_RECOMPUTE_VOCAB;
  cr_expect_eq(flp_planner_saved(&p, n, GIB), 0);
  p.mode = FLP_MODE_TAIL;
  cr_expect_eq(flp_planner_saved(&p, n, GIB), saved);
  p.emit_rows = 0;
  cr_expect_eq(flp_planner_keeps(&p), 0, "no kernels");
}

Test(planner_tail, backward_has_room_for_lists_where_the_budget_does) {
  flp_planner p = planner_of(1000, 64, 3, NULL, 0);
  int64_t n = 20000;
  flp_scheme saved, r;
  cr_assert_eq(flp_planner_pick(&p, FLP_PASS_BACKWARD_SAVED, n, 1, 1, &saved), FLP_ERROR_BUDGET);
  uint64_t all = saved.smallest_bytes + flp_planner_saved_bytes(&p.spec, FLP_MODE_TAIL, n);
  int with = 0, without = 0;
  for (uint64_t budget = all / 16; budget < 2 * all; budget += all / 16) {
    if (flp_planner_pick(&p, FLP_PASS_BACKWARD, n, budget, 1, &r) != FLP_OK) continue;
    cr_expect_leq(r.bytes, budget);
    with += budget >= all;
    without += budget < all;
    if (budget >= all) cr_expect_geq(r.bytes, saved.smallest_bytes);
  }
  cr_expect(with && without);
}

/* Asked for, so taken where it fits, also where few rows make it no gain. */
Test(planner_tail, a_step_takes_tail_mode_where_it_fits) {
  for (int64_t n = 1; n < 10000; n *= 9) {
    flp_planner p = planner_of(151936, 1024, 3, "grpo", 1);
    flp_scheme s, exact;
    int was_tail = 0, was_exact = 0;
    cr_assert_eq(flp_planner_pick(&p, FLP_PASS_STEP, n, 0, 1, &exact), FLP_ERROR_BUDGET);
    for (uint64_t budget = exact.smallest_bytes; budget < 64 * GIB; budget += budget / 4) {
      s = pick(&p, FLP_PASS_STEP, n, budget);
      cr_expect(s.mode == FLP_MODE_TAIL || !was_tail, "a larger budget gave mode %d", (int)s.mode);
      was_tail |= s.mode == FLP_MODE_TAIL;
      was_exact |= s.mode != FLP_MODE_TAIL;
      if (s.mode == FLP_MODE_TAIL) cr_expect_eq(s.products, 1);
      expect_disjoint(&s);
    }
    cr_expect(was_tail && was_exact, "%lld rows", (long long)n);
  }
}

Test(planner_tail, a_pass_over_no_rows_has_the_mode) {
  flp_planner p = planner_of(1000, 64, 3, "grpo", 0);
  cr_expect_eq(pick(&p, FLP_PASS_FORWARD_SAVED, 0, 1).mode, FLP_MODE_TAIL);
  cr_expect_eq(pick(&p, FLP_PASS_BACKWARD_SAVED, 0, 1).mode, FLP_MODE_TAIL);
  cr_expect_eq(pick(&p, FLP_PASS_STEP, 0, 1).mode, FLP_MODE_TAIL);
  cr_expect_eq(pick(&p, FLP_PASS_BACKWARD, 0, 1).mode, FLP_MODE_RECOMPUTE_VOCAB);
}
