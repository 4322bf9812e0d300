/* test_planner_keep.c: layouts of save and stream modes and of a step: exact, disjoint, monotonic in the budget, the
 * same on query and execute, and in chunks that a cost model would take. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/api/validate.h"
#include "runtime/loss/loss.h"
#include "runtime/planner/planner.h"
#include "tests/unit/support/planner_case.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static uint8_t program[FLP_LOSS_BYTES_MAX];

typedef struct asked {
  int64_t vocab, hidden;
  uint32_t grads;
  const char *loss;
  flp_entropy entropy;
  flp_dtype grad_weight_dtype;
} asked;

/* An H200 with the tiles of Hopper's kernels, or of the portable ones. */
static flp_planner planner_of(const asked *a, int mapped) {
  flp_spec spec = FLP_SPEC_INIT, resolved;
  spec.vocab = a->vocab;
  spec.hidden = a->hidden;
  spec.grads = a->grads;
  spec.has_bias = (a->grads & FLP_GRAD_BIAS) != 0;
  spec.entropy = a->entropy;
  spec.keep = 1;
  spec.grad_weight_dtype = a->grad_weight_dtype;
  if (a->loss) {
    cr_assert_eq(flp_loss_builtin_bytes(a->loss, program, sizeof program, &spec.loss_bytes), FLP_OK);
    spec.loss = program;
  }
  cr_assert_eq(flp_spec_resolve(&spec, &resolved), FLP_OK, "%s", flp_error_detail());
  const char *const entries[][2] = {{"forward", "forward_map"},
                                    {"dz", "dz_map"},
                                    {"forward_keep", "forward_keep_map"},
                                    {"grad_hidden", "products_map"},
                                    {"grad_weight", "products_map"}};
  const flp_kernel_kind kinds[] = {FLP_KERNEL_FORWARD, FLP_KERNEL_DZ, FLP_KERNEL_KEEP,
                                   mapped ? FLP_KERNEL_PRODUCTS : FLP_KERNEL_GRAD_HIDDEN, FLP_KERNEL_GRAD_WEIGHT};
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

static const asked grpo = {151936, 4096, 3, "grpo+k3", FLP_ENTROPY_NONE, FLP_DTYPE_FP32};

Test(planner_keep, what_is_saved_is_references_and_rows) {
  flp_planner p = planner_of(&grpo, 1);
  cr_expect_eq(flp_planner_references_bytes(100), 512);
  cr_expect_eq(flp_planner_saved_bytes(&p.spec, FLP_MODE_SAVE, 100), 512 + 100 * 151936 * 2);
  p.spec.vocab = 1001;
  cr_expect_eq(flp_planner_saved_bytes(&p.spec, FLP_MODE_SAVE, 100), 512 + 100 * 1024 * 2,
               "rows in whole lines of 128 bytes");
}

Test(planner_keep, saved_backward_holds_rows_and_no_exponentials) {
  flp_planner p = planner_of(&grpo, 1);
  uint64_t n = 8192, saved = 4 * n + 2 * n * 151936;
  flp_scheme s = pick(&p, FLP_PASS_BACKWARD_SAVED, 8192, 3 * GIB);
  cr_expect_eq(s.mode, FLP_MODE_SAVE);
  cr_expect_eq(s.products, 2);
  cr_expect_eq(s.bytes, n + 3 * 4 * n + 256 + 16 * n + 4 * n + 4 * n + 256 + n * 4096 * 2 + 256);
  cr_expect_eq(s.launches, 3 + 4 + 8, "prepare, gather, fill; record, finish, keep_gather, products; 8 blocks");
  expect_disjoint(&s);
  cr_expect_eq(s.saved_bytes, saved);
  flp_scheme less;
  cr_expect_eq(flp_planner_pick(&p, FLP_PASS_BACKWARD_SAVED, 8192, saved + s.bytes, 1, &less), FLP_OK);
  cr_expect_eq(flp_planner_pick(&p, FLP_PASS_BACKWARD_SAVED, 8192, saved + s.bytes - 1, 1, &less), FLP_ERROR_BUDGET);
  cr_expect_eq(less.smallest_bytes, s.bytes);
  char sentence[256];
  snprintf(
      sentence, sizeof sentence,
      "budget: %llu bytes are too few for the backward pass over 8192 rows; %llu bytes or more are accepted, %llu of "
      "them for what forward keeps",
      (unsigned long long)(saved + s.bytes - 1), (unsigned long long)(saved + s.bytes), (unsigned long long)saved);
  cr_expect_str_eq(flp_error_detail(), sentence);
  cr_expect_eq(flp_planner_pick(&p, FLP_PASS_BACKWARD_SAVED, 8192, s.bytes, 0, &less), FLP_OK, "of workspace alone");
  cr_expect_eq(flp_planner_pick(&p, FLP_PASS_BACKWARD_SAVED, 8192, s.bytes - 1, 0, &less), FLP_ERROR_BUDGET);
  p = planner_of(&(asked){1000, 64, 7, NULL, FLP_ENTROPY_NONE, FLP_DTYPE_BF16}, 0);
  s = pick(&p, FLP_PASS_BACKWARD_SAVED, 300, GIB);
  cr_expect_eq(s.size[FLP_REGION_gather], 300 * 64 * 2, "rows times 1, or 0 without a gradient");
  cr_expect_eq(s.size[FLP_REGION_bias_part], 3 * 1000 * 4);
  expect_disjoint(&s);
}

Test(planner_keep, backward_has_room_for_what_was_saved_where_the_budget_does) {
  flp_planner p = planner_of(&(asked){1000, 64, 3, NULL, FLP_ENTROPY_NONE, FLP_DTYPE_BF16}, 0);
  int64_t n = 20000;
  flp_scheme saved = pick(&p, FLP_PASS_BACKWARD_SAVED, n, GIB), r;
  uint64_t all = saved.saved_bytes + saved.bytes;
  for (uint64_t budget = saved.bytes / 2; budget < 2 * all; budget += saved.bytes / 16) {
    if (flp_planner_pick(&p, FLP_PASS_BACKWARD, n, budget, 1, &r) != FLP_OK) continue;
    cr_expect_leq(r.bytes, budget);
    if (budget >= all) cr_expect_geq(r.bytes, saved.bytes);
    flp_scheme again;
    cr_assert_eq(flp_planner_pick(&p, FLP_PASS_BACKWARD, n, r.bytes, 0, &again), FLP_OK);
    cr_expect_eq(memcmp(&again, &r, sizeof r), 0);
  }
}

/* The larger of the two workspaces counts, beside the saved memory; forward takes smaller chunks where it must. */
Test(planner_keep, save_mode_is_taken_where_either_pass_fits_beside_what_it_saves) {
  flp_planner p = planner_of(&(asked){50000, 64, 1, NULL, FLP_ENTROPY_BACKWARD, FLP_DTYPE_BF16}, 0);
  for (int64_t n = 64; n <= 8192; n *= 8) {
    flp_scheme backward = pick(&p, FLP_PASS_BACKWARD_SAVED, n, 2 * GIB), forward;
    cr_assert_eq(flp_planner_pick(&p, FLP_PASS_FORWARD, n, 1, 1, &forward), FLP_ERROR_BUDGET);
    uint64_t least = forward.smallest_bytes > backward.bytes ? forward.smallest_bytes : backward.bytes;
    uint64_t saved = flp_planner_saved_bytes(&p.spec, FLP_MODE_SAVE, n);
    cr_expect_eq(flp_planner_saved(&p, n, saved + least), saved);
    cr_expect_eq(flp_planner_saved(&p, n, saved + least - 1), 0);
    flp_scheme chosen = pick(&p, FLP_PASS_FORWARD_SAVED, n, saved + least);
    cr_expect_leq(chosen.bytes, least);
    cr_expect_eq(chosen.saved_bytes, saved);
  }
  cr_expect_eq(flp_planner_saved(&p, 0, GIB), 0);
  p.mode = FLP_MODE_RECOMPUTE_ROWS;
  cr_expect_eq(flp_planner_saved(&p, 100, GIB), 0);
}

Test(planner_keep, a_step_streams_in_the_issues_budgets) {
  flp_planner p = planner_of(&grpo, 1);
  flp_scheme s = pick(&p, FLP_PASS_STEP, 8192, 1536 * MIB);
  cr_expect_eq(s.mode, FLP_MODE_STREAM);
  cr_expect_eq(s.products, 3);
  cr_expect_eq(s.chunk_rows % 256, 0);
  cr_expect_eq(s.chunks, 2);
  cr_expect_eq(s.size[FLP_REGION_weight_acc], 0, "the caller's buffer is its own accumulator");
  cr_expect_eq(s.size[FLP_REGION_dz], (uint64_t)s.chunk_rows * 151936 * 2);
  expect_disjoint(&s);
  p = planner_of(&(asked){151936, 4096, 1, "grpo+k3", FLP_ENTROPY_NONE, FLP_DTYPE_BF16}, 1);
  s = pick(&p, FLP_PASS_STEP, 8192, 768 * MIB);
  cr_expect_eq(s.mode, FLP_MODE_STREAM);
  cr_expect_eq(s.products, 2);
  cr_expect_eq(s.chunk_rows, 2048, "128 tiles of grad_hidden on 66 clusters: two waves, nearly full");
  p = planner_of(&(asked){248320, 2048, 1, "grpo+k3", FLP_ENTROPY_NONE, FLP_DTYPE_BF16}, 1);
  s = pick(&p, FLP_PASS_STEP, 65536, GIB);
  cr_expect_eq(s.mode, FLP_MODE_STREAM);
  cr_expect_leq(s.bytes, GIB);
}

/* What stays of the sums beside a gradient in bf16 leaves room for chunks of exponentials. */
Test(planner_keep, a_step_that_returns_its_weight_gradient_in_bf16_streams_too) {
  flp_planner p = planner_of(&(asked){151936, 4096, 3, "grpo", FLP_ENTROPY_NONE, FLP_DTYPE_BF16}, 1);
  flp_scheme s = pick(&p, FLP_PASS_STEP, 8192, 1536 * MIB);
  cr_expect_eq(s.mode, FLP_MODE_STREAM);
  cr_expect_eq(s.products, 3);
  cr_expect_eq(s.chunks, 2);
  cr_expect_eq(s.chunk_rows, 4096);
  cr_expect_eq(s.size[FLP_REGION_weight_low], (uint64_t)152064 * 4096 / 2);
  cr_expect_eq(s.size[FLP_REGION_weight_acc], 0);
  expect_disjoint(&s);
  p.spec.grad_weight_dtype = FLP_DTYPE_FP32;
  flp_scheme wide = pick(&p, FLP_PASS_STEP, 8192, 1536 * MIB);
  cr_expect_eq(wide.chunk_rows, s.chunk_rows, "what fp32 sums of its own leave room for");
}

Test(planner_keep, a_step_without_room_for_a_chunk_recomputes) {
  flp_planner p = planner_of(&(asked){151936, 2048, 3, "grpo", FLP_ENTROPY_NONE, FLP_DTYPE_BF16}, 1);
  flp_scheme s = pick(&p, FLP_PASS_STEP, 8192, 3 * GIB);
  cr_expect_eq(s.mode, FLP_MODE_STREAM);
  flp_scheme least = pick(&p, FLP_PASS_STEP, 8192, s.smallest_bytes);
  cr_expect_eq(least.bytes, s.smallest_bytes);
  cr_expect_neq(least.mode, FLP_MODE_STREAM, "its grad_weight needs no accumulator");
  cr_expect_eq(least.products, least.mode == FLP_MODE_RECOMPUTE_SPLIT ? 5 : 4);
  cr_expect_gt(least.passes, 0);
  flp_scheme less;
  cr_expect_eq(flp_planner_pick(&p, FLP_PASS_STEP, 8192, s.smallest_bytes - 1, 1, &less), FLP_ERROR_BUDGET);
  p.mode = FLP_MODE_STREAM;
  cr_expect_eq(flp_planner_pick(&p, FLP_PASS_STEP, 8192, s.smallest_bytes, 1, &less), FLP_ERROR_BUDGET);
  p.mode = FLP_MODE_RECOMPUTE_ROWS;
  cr_expect_eq(pick(&p, FLP_PASS_STEP, 8192, 4 * GIB).mode, FLP_MODE_RECOMPUTE_ROWS);
}

Test(planner_keep, explicit_chunks_are_taken) {
  flp_planner p = planner_of(&grpo, 1);
  p.chunk_rows = 1000;
  p.mode = FLP_MODE_STREAM;
  flp_scheme s = pick(&p, FLP_PASS_STEP, 8192, 1);
  cr_expect_eq(s.chunk_rows, 1000);
  cr_expect_eq(s.chunks, 9);
  cr_expect_eq(s.launches, 1 + 9 * (6 + 4) + 9 + 2, "one block a chunk");
}

/* What tuning preferred goes before the cost model's chunks where it fits, on query and execute alike. */
Test(planner_keep, tuned_chunks_of_a_step_are_taken_where_they_fit) {
  flp_planner own = planner_of(&grpo, 1), p = own;
  p.tuned_step_rows = 3328;
  flp_scheme free = pick(&own, FLP_PASS_STEP, 8192, 1536 * MIB), s = pick(&p, FLP_PASS_STEP, 8192, 1536 * MIB);
  cr_assert_neq(free.chunk_rows, 3328);
  cr_expect_eq(s.chunk_rows, 3328);
  cr_expect_eq(s.smallest_bytes, free.smallest_bytes);
  expect_disjoint(&s);
  flp_scheme again = pick(&p, FLP_PASS_STEP, 8192, s.bytes), less = pick(&p, FLP_PASS_STEP, 8192, s.bytes - 1);
  cr_expect_eq(memcmp(&again, &s, sizeof s), 0);
  flp_scheme wanted = pick(&own, FLP_PASS_STEP, 8192, s.bytes - 1);
  cr_expect_eq(memcmp(&less, &wanted, sizeof less), 0, "without room for them nothing is preferred");
  flp_scheme few = pick(&p, FLP_PASS_STEP, 1000, 1536 * MIB), plain = pick(&own, FLP_PASS_STEP, 1000, 1536 * MIB);
  cr_expect_eq(memcmp(&few, &plain, sizeof few), 0, "one chunk is what it is");
  p.chunk_rows = 1536;
  p.mode = FLP_MODE_STREAM;
  cr_expect_eq(pick(&p, FLP_PASS_STEP, 8192, 1536 * MIB).chunk_rows, 1536, "options come first");
}

Test(planner_keep, tuned_chunks_of_a_step_leave_it_in_recompute_mode_where_that_is_faster) {
  flp_planner own = planner_of(&(asked){1000, 8, 3, "grpo", FLP_ENTROPY_NONE, FLP_DTYPE_BF16}, 1), p = own;
  p.tuned_step_rows = 256;
  flp_scheme s = pick(&p, FLP_PASS_STEP, 2048, GIB), plain = pick(&own, FLP_PASS_STEP, 2048, GIB);
  cr_assert_neq(plain.mode, FLP_MODE_STREAM);
  cr_expect_eq(memcmp(&s, &plain, sizeof s), 0);
}

Test(planner_keep, what_depends_on_the_entropy_expands) {
  flp_planner p = planner_of(&(asked){1000, 64, 3, "grpo+entropy", FLP_ENTROPY_BACKWARD, FLP_DTYPE_BF16}, 0);
  cr_expect(p.step_entropy && p.step_expands && p.saved_expands);
  flp_scheme s = pick(&p, FLP_PASS_STEP, 100, GIB);
  cr_expect_eq(s.size[FLP_REGION_grad_entropy], 400);
  p = planner_of(&(asked){1000, 64, 3, "grpo", FLP_ENTROPY_BACKWARD, FLP_DTYPE_BF16}, 0);
  cr_expect(!p.step_entropy && !p.step_expands && p.saved_expands);
  s = pick(&p, FLP_PASS_STEP, 100, GIB);
  cr_expect_eq(s.size[FLP_REGION_grad_entropy], 0);
  cr_expect_eq(s.size[FLP_REGION_entropy], 400);
}

Test(planner_keep, a_softcap_alone_does_not_expand) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.softcap = 30;
  spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  spec.entropy = FLP_ENTROPY_FORWARD;
  flp_options options = FLP_OPTIONS_INIT;
  flp_device device = {0};
  flp_planner p;
  flp_planner_init(&p, &spec, &options, &device, NULL, 0);
  cr_expect(!p.saved_expands && !p.step_expands);
  spec.grads |= FLP_GRAD_BIAS;
  flp_planner_init(&p, &spec, &options, &device, NULL, 0);
  cr_expect(p.saved_expands && p.step_expands);
}

/* For any shape and two budgets: what fits is sound, planning for its own bytes gives it again, more is never
 * dearer. */
Test(planner_keep, properties_hold_for_random_shapes) {
  uint32_t state = 11;
  for (int round = 0; round < 300; round++) {
    uint32_t r[5];
    for (int i = 0; i < 5; i++) r[i] = (state = state * 1664525u + 1013904223u) >> 8;
    asked a = {2 + r[0] % 300000,    8 * (1 + r[1] % 512),
               1 + r[2] % 7,         r[2] % 3 ? "grpo+k3" : "grpo+entropy",
               FLP_ENTROPY_BACKWARD, r[2] % 2 ? FLP_DTYPE_FP32 : FLP_DTYPE_BF16};
    flp_planner p = planner_of(&a, (int)(r[3] % 2));
    int64_t n = 1 + r[4] % 100000;
    uint64_t small = (1 + r[3] % 4096) * MIB, large = small + (r[0] % 2048) * MIB;
    flp_scheme s, l, again;
    if (flp_planner_pick(&p, FLP_PASS_STEP, n, small, 1, &s) != FLP_OK) {
      cr_expect_gt(s.smallest_bytes, small);
      continue;
    }
    expect_disjoint(&s);
    cr_expect_leq(s.bytes, small);
    cr_assert_eq(flp_planner_pick(&p, FLP_PASS_STEP, n, s.bytes, 0, &again), FLP_OK);
    cr_expect_eq(memcmp(&again, &s, sizeof s), 0, "round %d", round);
    l = pick(&p, FLP_PASS_STEP, n, large);
    cr_expect_leq(l.seconds, s.seconds);
    flp_layout layout;
    flp_planner_describe(&p, &s, n, &layout);
    cr_expect_eq(layout.bytes, s.bytes);
    cr_expect_eq(layout.flops, 2.0 * s.products * (double)n * (double)a.vocab * (double)a.hidden);
  }
}
