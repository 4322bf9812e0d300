/* test_planner_direction.c: layouts of direction mode: exact, disjoint, monotonic in the budget, the same on query and
 * execute, in chunks of rows and columns that a cost model would take; and which specs and modes keep what. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/api/validate.h"
#include "runtime/planner/planner.h"
#include "tests/unit/support/planner_case.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static flp_spec frozen(int64_t vocab, int64_t hidden) {
  flp_spec spec = FLP_SPEC_INIT, resolved;
  spec.vocab = vocab;
  spec.hidden = hidden;
  spec.grads = FLP_GRAD_HIDDEN;
  spec.keep = 1;
  cr_assert_eq(flp_spec_resolve(&spec, &resolved), FLP_OK, "%s", flp_error_detail());
  return resolved;
}

/* An H200 with the tiles of Hopper's kernels, or of the portable ones. */
static flp_planner planner_of(flp_spec spec, int mapped) {
  const struct {
    flp_kernel_kind kind;
    const char *name;
    uint32_t columns;
  } rows[] = {{FLP_KERNEL_FORWARD, mapped ? "forward_map" : "forward", mapped ? 192 : 256},
              {FLP_KERNEL_DZ, mapped ? "dz_map" : "dz", mapped ? 192 : 256},
              {FLP_KERNEL_KEEP, mapped ? "forward_keep_map" : "forward_keep", mapped ? 192 : 256},
              {mapped ? FLP_KERNEL_PRODUCTS : FLP_KERNEL_GRAD_HIDDEN, mapped ? "products_map" : "grad_hidden", 256}};
  enum { COUNT = sizeof rows / sizeof rows[0] };
  flp_kernel_desc descs[COUNT] = {{.entry_count = 0}};
  for (int i = 0; i < COUNT; i++) {
    descs[i].key.kind = rows[i].kind;
    descs[i].tile_rows = 128;
    descs[i].tile_columns = rows[i].columns;
    descs[i].unit_columns = mapped ? 768 : 3072;
    descs[i].cluster = mapped ? 2 : 0;
    descs[i].entry_count = 1;
    snprintf(descs[i].key.arch, sizeof descs[i].key.arch, "%s", mapped ? "sm_90a" : "sm_80");
    snprintf(descs[i].entries[0].name, sizeof descs[i].entries[0].name, "%s", rows[i].name);
  }
  flp_device device = {
      .multiprocessors = 132, .clock_khz = 1980000, .memory_clock_khz = 2619000, .memory_bus_bits = 6144};
  flp_options options = FLP_OPTIONS_INIT;
  flp_planner p;
  flp_planner_init(&p, &spec, &options, &device, descs, COUNT);
  cr_assert_eq(p.is_mapped, mapped);
  return p;
}

/* Executing in a workspace of the layout's own bytes gives the layout; but for what only a query tells. */
static void expect_again(const flp_planner *p, int64_t n, flp_scheme s) {
  flp_scheme again;
  cr_assert_eq(flp_planner_pick(p, FLP_PASS_FORWARD_SAVED, n, s.bytes, 0, &again), FLP_OK, "%s", flp_error_detail());
  s.saved_bytes = 0;
  cr_expect_eq(memcmp(&again, &s, sizeof s), 0);
}

/* Chunks of columns begin with a unit of forward_keep; what is redone fits the buffer of exponentials, and so does a chunk. */
static void expect_chunks(const flp_planner *p, const flp_scheme *s, int64_t n) {
  int64_t vocab = p->spec.vocab, rows = s->chunk_rows < FLP_KEPT_BLOCK_ROWS ? s->chunk_rows : FLP_KEPT_BLOCK_ROWS;
  int64_t redone = flp_planner_redo_columns(p, s->chunk_rows, s->chunk_vocab);
  cr_expect(s->chunk_rows >= 1 && s->chunk_rows <= n && s->chunk_vocab >= 1 && s->chunk_vocab <= vocab);
  cr_expect(s->chunk_vocab == vocab || s->chunk_vocab % p->unit_columns == 0, "%lld", (long long)s->chunk_vocab);
  cr_expect_eq(s->size[FLP_REGION_dz], (uint64_t)(s->chunk_rows * flp_planner_dz_stride(s->chunk_vocab)) * 2);
  cr_expect_leq((uint64_t)(rows * flp_planner_dz_stride(redone)) * 2, s->size[FLP_REGION_dz]);
  cr_expect(redone == vocab || (redone >= s->chunk_vocab && redone % 64 == 0), "%lld", (long long)redone);
  cr_expect_eq(s->size[FLP_REGION_redo], (uint64_t)((s->chunk_rows + 1023) / 1024 * 4));
}

/* ---- what is kept ---- */

Test(planner_direction, what_is_kept_is_references_slopes_and_sums) {
  flp_spec spec = frozen(151936, 4096);
  cr_expect_eq(flp_planner_saved_bytes(&spec, FLP_MODE_DIRECTION, 100), 2 * 512 + 100 * 4096 * 4);
  cr_expect_eq(flp_planner_saved_bytes(&spec, FLP_MODE_DIRECTION, 0), 0);
  cr_expect_eq(flp_planner_saved_bytes(&spec, FLP_MODE_STREAM, 100), 0);
  cr_expect_eq(flp_planner_saved_bytes(&spec, (flp_mode)0, 100), 0);
}

Test(planner_direction, only_a_frozen_head_without_an_entropy_gradient_keeps_directions) {
  static const struct {
    uint32_t grads;
    flp_entropy entropy;
    int keep;
    flp_mode pinned, kept;
  } cases[] = {
      {1, FLP_ENTROPY_NONE, 1, (flp_mode)0, FLP_MODE_DIRECTION},
      {1, FLP_ENTROPY_FORWARD, 1, (flp_mode)0, FLP_MODE_DIRECTION},
      {1, FLP_ENTROPY_BACKWARD, 1, (flp_mode)0, FLP_MODE_SAVE},
      {2, FLP_ENTROPY_NONE, 1, (flp_mode)0, FLP_MODE_SAVE},
      {3, FLP_ENTROPY_NONE, 1, (flp_mode)0, FLP_MODE_SAVE},
      {5, FLP_ENTROPY_NONE, 1, (flp_mode)0, FLP_MODE_SAVE},
      {1, FLP_ENTROPY_NONE, 0, (flp_mode)0, (flp_mode)0},
      {1, FLP_ENTROPY_NONE, 1, FLP_MODE_SAVE, FLP_MODE_SAVE},
      {1, FLP_ENTROPY_NONE, 1, FLP_MODE_DIRECTION, FLP_MODE_DIRECTION},
      {1, FLP_ENTROPY_NONE, 1, FLP_MODE_STREAM, FLP_MODE_DIRECTION},
      {1, FLP_ENTROPY_NONE, 1, FLP_MODE_RECOMPUTE_ROWS, (flp_mode)0},
      {1, FLP_ENTROPY_NONE, 1, FLP_MODE_RECOMPUTE_VOCAB, (flp_mode)0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    flp_spec spec = frozen(1000, 64);
    spec.grads = cases[i].grads;
    spec.entropy = cases[i].entropy;
    spec.keep = cases[i].keep;
    flp_planner p = planner_of(spec, 1);
    p.mode = cases[i].pinned;
    cr_expect_eq(flp_planner_keeps(&p), cases[i].kept, "case %zu: %d", i, (int)flp_planner_keeps(&p));
    int has = cases[i].grads == 1 && cases[i].entropy != FLP_ENTROPY_BACKWARD && cases[i].keep;
    cr_expect_eq(flp_planner_has_direction(&spec), has, "case %zu", i);
  }
}

Test(planner_direction, a_mode_that_keeps_leaves_what_recomputes_as_it_is) {
  flp_planner p = planner_of(frozen(50000, 64), 1);
  flp_scheme free = pick(&p, FLP_PASS_BACKWARD, 3000, 64 * MIB);
  p.mode = FLP_MODE_DIRECTION;
  flp_scheme pinned = pick(&p, FLP_PASS_BACKWARD, 3000, 64 * MIB);
  cr_expect_eq(memcmp(&free, &pinned, sizeof free), 0);
  p.mode = FLP_MODE_SAVE;
  cr_expect_eq(pick(&p, FLP_PASS_FORWARD_SAVED, 3000, GIB).mode, FLP_MODE_SCORE);
  cr_expect_eq(pick(&p, FLP_PASS_BACKWARD_SAVED, 3000, GIB).mode, FLP_MODE_SAVE);
}

/* ---- layouts ---- */

Test(planner_direction, the_backward_pass_is_rows_alone) {
  flp_planner p = planner_of(frozen(151936, 4096), 1);
  uint64_t n = 8192, saved = 2 * 4 * n + n * 4096 * 4;
  flp_scheme s = pick(&p, FLP_PASS_BACKWARD_SAVED, 8192, GIB), less;
  cr_expect_eq(s.mode, FLP_MODE_DIRECTION);
  cr_expect_eq(s.products, 0);
  cr_expect_eq(s.launches, 4);
  cr_expect_eq(s.bytes, n + 3 * 4 * n + 256 + 16 * n + 4 * n);
  cr_expect_eq(s.saved_bytes, saved);
  cr_expect_eq(flp_planner_pick(&p, FLP_PASS_BACKWARD_SAVED, 8192, saved + s.bytes - 1, 1, &less), FLP_ERROR_BUDGET);
  char sentence[256];
  snprintf(
      sentence, sizeof sentence,
      "budget: %llu bytes are too few for the backward pass over 8192 rows; %llu bytes or more are accepted, %llu of "
      "them for what forward keeps",
      (unsigned long long)(saved + s.bytes - 1), (unsigned long long)(saved + s.bytes), (unsigned long long)saved);
  cr_expect_str_eq(flp_error_detail(), sentence);
  expect_disjoint(&s);
}

Test(planner_direction, nothing_has_a_mode_too) {
  flp_planner p = planner_of(frozen(1000, 64), 0);
  cr_expect_eq(pick(&p, FLP_PASS_FORWARD_SAVED, 0, 1).mode, FLP_MODE_DIRECTION);
  cr_expect_eq(pick(&p, FLP_PASS_BACKWARD_SAVED, 0, 1).mode, FLP_MODE_DIRECTION);
  cr_expect_eq(pick(&p, FLP_PASS_FORWARD, 0, 1).mode, FLP_MODE_SCORE);
  cr_expect_eq(flp_planner_saved(&p, 0, GIB), 0);
}

/* The issue's two heads, in its budgets beyond the outputs. */
Test(planner_direction, the_issues_budgets_hold_what_is_kept_and_chunks) {
  static const struct {
    int64_t n, hidden, vocab;
    uint64_t budget;
  } cases[] = {{8192, 4096, 151936, 512 * MIB}, {65536, 2048, 248320, GIB}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    flp_planner p = planner_of(frozen(cases[i].vocab, cases[i].hidden), 1);
    flp_scheme s = pick(&p, FLP_PASS_FORWARD_SAVED, cases[i].n, cases[i].budget);
    cr_expect_eq(s.mode, FLP_MODE_DIRECTION);
    cr_expect_eq(s.products, 2);
    cr_expect_eq(s.saved_bytes, flp_planner_saved_bytes(&p.spec, FLP_MODE_DIRECTION, cases[i].n));
    cr_expect_leq(s.bytes + s.saved_bytes, cases[i].budget);
    cr_expect_eq(flp_planner_saved(&p, cases[i].n, cases[i].budget), s.saved_bytes);
    flp_scheme all = pick(&p, FLP_PASS_FORWARD_SAVED, cases[i].n, UINT64_MAX);
    cr_expect_lt(s.seconds, 1.07 * all.seconds, "%g of %g", s.seconds, all.seconds);
    expect_disjoint(&s);
    expect_chunks(&p, &s, cases[i].n);
  }
}

/* What is kept counts in the budget, beside the larger of the two workspaces. */
Test(planner_direction, directions_are_taken_where_either_pass_fits_beside_them) {
  for (int64_t n = 1; n <= 5000; n *= 8) {
    flp_planner p = planner_of(frozen(50000, 64), (int)(n % 3 == 1));
    flp_scheme any = pick(&p, FLP_PASS_FORWARD_SAVED, n, GIB), backward = pick(&p, FLP_PASS_BACKWARD_SAVED, n, GIB);
    uint64_t saved = flp_planner_saved_bytes(&p.spec, FLP_MODE_DIRECTION, n);
    cr_assert_leq(backward.bytes, any.smallest_bytes);
    cr_expect_eq(flp_planner_saved(&p, n, saved + any.smallest_bytes), saved);
    cr_expect_eq(flp_planner_saved(&p, n, saved + any.smallest_bytes - 1), 0);
    flp_scheme least = pick(&p, FLP_PASS_FORWARD_SAVED, n, saved + any.smallest_bytes), less;
    cr_expect_eq(least.bytes, any.smallest_bytes);
    cr_expect_eq(flp_planner_pick(&p, FLP_PASS_FORWARD_SAVED, n, any.smallest_bytes - 1, 0, &less), FLP_ERROR_BUDGET);
    cr_expect_eq(less.smallest_bytes, any.smallest_bytes);
    expect_chunks(&p, &least, n);
    expect_again(&p, n, least);
  }
}

Test(planner_direction, explicit_chunks_are_taken_whatever_the_budget) {
  flp_planner p = planner_of(frozen(151936, 4096), 1);
  p.chunk_rows = 1000;
  p.chunk_vocab = 4000;
  flp_scheme s = pick(&p, FLP_PASS_FORWARD_SAVED, 8192, 1), less;
  cr_expect_eq(s.chunk_rows, 1000);
  cr_expect_eq(s.chunk_vocab, 6 * FLP_LEAF_COLUMNS, "up to whole units");
  cr_expect_eq(s.chunks, 9 * 33);
  cr_expect_eq(s.launches, 1 + 9 * (6 + 3 * 33) + 9 * 33 * 2,
               "a block a chunk of rows, redone by chunks of columns: %d", s.launches);
  expect_chunks(&p, &s, 8192);
  expect_again(&p, 8192, s);
  cr_expect_eq(flp_planner_pick(&p, FLP_PASS_FORWARD_SAVED, 8192, s.bytes - 1, 0, &less), FLP_ERROR_BUDGET);
  cr_expect_gt(flp_planner_saved(&p, 8192, GIB), 0);
  p.chunk_vocab = 0;
  s = pick(&p, FLP_PASS_FORWARD_SAVED, 8192, 1);
  cr_expect_eq(s.chunk_rows, 1000);
  expect_chunks(&p, &s, 8192);
  p.chunk_rows = 0;
  p.chunk_vocab = 1 << 20;
  s = pick(&p, FLP_PASS_FORWARD_SAVED, 100, 1);
  cr_expect(s.chunk_rows == 100 && s.chunk_vocab == 151936, "at most all");
}

/* A block that may be redone takes the room of the whole chunk's exponentials. */
Test(planner_direction, what_is_redone_has_the_columns_that_there_is_room_for) {
  flp_planner p = planner_of(frozen(20000, 64), 1);
  cr_expect_eq(flp_planner_redo_columns(&p, 512, 3072), 3072);
  cr_expect_eq(flp_planner_redo_columns(&p, 1024, 3072), 3072);
  cr_expect_eq(flp_planner_redo_columns(&p, 2047, 3072), 3072);
  cr_expect_eq(flp_planner_redo_columns(&p, 3 * 1024, 3072), 3 * 3072);
  cr_expect_eq(flp_planner_redo_columns(&p, 8192, 3072), 20000);
  cr_expect_eq(flp_planner_redo_columns(&p, 100, 20000), 20000);
}

/* Short chunks of columns make more launches for blocks that might be redone, and the model knows. */
Test(planner_direction, launches_of_blocks_that_might_be_redone_cost_time) {
  flp_planner p = planner_of(frozen(50 * FLP_GROUP_COLUMNS, 8), 1);
  p.chunk_rows = 1024;
  p.chunk_vocab = FLP_GROUP_COLUMNS;
  flp_scheme s = pick(&p, FLP_PASS_FORWARD_SAVED, 1024, GIB);
  cr_expect_eq(s.launches, 1 + 6 + 3 * 50 + 2 * 50, "%d", s.launches);
  cr_expect_geq(s.seconds, s.launches * 4e-6, "%g", s.seconds);
}

/* For any shape and two budgets: what fits is sound, planning for its own bytes gives it again, more is never dearer,
 * and the least that is told does not depend on the budget. */
Test(planner_direction, properties_hold_for_random_shapes) {
  uint32_t state = 5;
  int found = 0;
  for (int round = 0; round < 400; round++) {
    uint32_t r[5];
    for (int i = 0; i < 5; i++) r[i] = (state = state * 1664525u + 1013904223u) >> 8;
    flp_planner p = planner_of(frozen(2 + r[0] % 300000, 8 * (1 + r[1] % 512)), (int)(r[3] % 2));
    int64_t n = 1 + r[4] % (round % 2 ? 100000 : 3000);
    uint64_t small = (1 + r[3] % 4096) * MIB, large = small + (1 + r[0] % 2048) * MIB;
    if (r[2] % 4 == 0) p.chunk_rows = 1 + r[2] % 9000;
    if (r[2] % 5 == 0) p.chunk_vocab = 1 + r[2] % 90000;
    flp_scheme s, l;
    flp_status status = flp_planner_pick(&p, FLP_PASS_FORWARD_SAVED, n, small, 0, &s);
    cr_assert_eq(flp_planner_pick(&p, FLP_PASS_FORWARD_SAVED, n, UINT64_MAX, 0, &l), FLP_OK, "%s", flp_error_detail());
    cr_expect_eq(l.smallest_bytes, s.smallest_bytes, "round %d", round);
    cr_assert_eq(status, s.smallest_bytes <= small ? FLP_OK : FLP_ERROR_BUDGET);
    if (status != FLP_OK) continue;
    found++;
    expect_disjoint(&s);
    expect_chunks(&p, &s, n);
    expect_again(&p, n, s);
    cr_expect_leq(s.bytes, small);
    cr_assert_eq(flp_planner_pick(&p, FLP_PASS_FORWARD_SAVED, n, large, 0, &l), FLP_OK);
    cr_expect_leq(l.seconds, s.seconds, "round %d", round);
  }
  cr_expect_gt(found, 200, "%d", found);
}
