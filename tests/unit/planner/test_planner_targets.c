/* test_planner_targets.c: layouts of K targets a row: what stands by row and target, chunks as without, budgets. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "runtime/api/validate.h"
#include "runtime/loss/loss.h"
#include "tests/unit/support/planner_case.h"

#define GIB ((uint64_t)1 << 30)

static uint8_t program[FLP_LOSS_BYTES_MAX];

/* An H200 with the tiles of portable kernels, or of Hopper's. */
static flp_planner planner_of(int32_t targets, uint32_t grads, const char *loss, int mapped) {
  flp_spec spec = FLP_SPEC_INIT, resolved;
  spec.vocab = 151936;
  spec.hidden = 4096;
  spec.grads = grads;
  spec.has_bias = (grads & FLP_GRAD_BIAS) != 0;
  spec.targets = targets;
  if (loss) {
    cr_assert_eq(flp_loss_builtin_bytes(loss, program, sizeof program, &spec.loss_bytes), FLP_OK);
    spec.loss = program;
  }
  cr_assert_eq(flp_spec_resolve(&spec, &resolved), FLP_OK, "%s", flp_error_detail());
  flp_kernel_kind forward = targets > 1 ? FLP_KERNEL_FORWARD_TARGETS : FLP_KERNEL_FORWARD;
  const flp_kernel_kind kinds[] = {forward, FLP_KERNEL_DZ, mapped ? FLP_KERNEL_PRODUCTS : FLP_KERNEL_GRAD_HIDDEN,
                                   FLP_KERNEL_GRAD_WEIGHT};
  const char *const entries[][2] = {{"forward_targets", "forward_targets_map"},
                                    {"dz", "dz_map"},
                                    {"grad_hidden", "products_map"},
                                    {"grad_weight", "products_map"}};
  flp_kernel_desc descs[4] = {{.entry_count = 0}};
  int count = mapped ? 3 : 4;
  for (int i = 0; i < count; i++) {
    descs[i].key.kind = kinds[i];
    descs[i].entry_count = 1;
    descs[i].tile_rows = 128;
    descs[i].tile_columns = mapped && i < 2 ? 192 : 256;
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

/* The arrays that a pass with targets has beside those without, up to 256 bytes each. */
static uint64_t more_of(const flp_scheme *with, const flp_scheme *without) {
  uint64_t bytes = 0;
  for (int i = 0; i < FLP_REGION_ID_COUNT; i++)
    if (with->size[i] && !without->size[i]) bytes += (with->size[i] + 255) / 256 * 256;
  return bytes;
}

Test(planner_targets, forward_has_lists_and_scores_beside_what_it_has) {
  for (int mapped = 0; mapped < 2; mapped++)
    for (int64_t n = 1; n < 20000; n = n * 90 + 1) {
      uint64_t rows = (uint64_t)n;
      flp_planner p = planner_of(64, 0, NULL, mapped), one = planner_of(0, 0, NULL, mapped);
      flp_scheme s = pick(&p, FLP_PASS_FORWARD, n, 8 * GIB), without = pick(&one, FLP_PASS_FORWARD, n, 8 * GIB);
      expect_disjoint(&s);
      cr_expect_eq(s.chunk_rows, without.chunk_rows);
      cr_expect_eq(s.bytes, without.bytes + more_of(&s, &without));
      cr_expect_eq(s.launches, without.launches + 3);
      cr_expect_eq(s.size[FLP_REGION_list_column], rows * 64 * 4);
      cr_expect_eq(s.size[FLP_REGION_target_place], rows * 64 * 2);
      cr_expect_eq(s.size[FLP_REGION_target_score], rows * 64 * 4);
      cr_expect_eq(s.size[FLP_REGION_target_block], rows * 99 * 4);
      cr_expect_eq(s.size[FLP_REGION_target_sums], rows * 16);
      cr_expect_eq(s.size[FLP_REGION_target_row], rows * 8);
      s = pick(&p, FLP_PASS_COMBINE, n, GIB);
      expect_disjoint(&s);
      cr_expect_eq(s.size[FLP_REGION_target_row], rows * 8);
      cr_expect_eq(s.launches, 3);
    }
}

Test(planner_targets, backward_has_lists_beside_a_layout_of_recompute_mode) {
  for (uint32_t grads = 1; grads < 8; grads++)
    for (int mapped = 0; mapped < 2; mapped++)
      for (uint64_t budget = GIB / 2; budget < 9 * GIB; budget *= 4) {
        flp_planner p = planner_of(64, grads, NULL, mapped), one = planner_of(0, grads, NULL, mapped);
        flp_scheme s, without;
        if (flp_planner_pick(&p, FLP_PASS_BACKWARD, 8192, budget, 1, &s) != FLP_OK) continue;
        int bias = (grads & FLP_GRAD_BIAS) != 0;
        cr_expect_leq(s.bytes, budget);
        expect_disjoint(&s);
        cr_expect_eq(s.size[FLP_REGION_list_score], 8192 * 64 * 4);
        cr_expect_eq(s.size[FLP_REGION_target_exact], 8192 * 8);
        cr_expect_eq(s.size[FLP_REGION_target_block], 0);
        cr_expect_eq(s.size[FLP_REGION_list_dz] > 0, bias);
        cr_expect_eq(s.size[FLP_REGION_list_order] > 0, bias);
        cr_expect_eq(s.size[FLP_REGION_target_total] > 0, bias);
        one.mode = s.mode;
        one.chunk_rows = s.mode == FLP_MODE_RECOMPUTE_VOCAB ? 0 : s.chunk_rows;
        one.chunk_vocab = s.mode == FLP_MODE_RECOMPUTE_ROWS ? 0 : s.chunk_vocab;
        without = pick(&one, FLP_PASS_BACKWARD, 8192, budget);
        int64_t summed = s.mode == FLP_MODE_RECOMPUTE_SPLIT ? (151936 + s.chunk_vocab - 1) / s.chunk_vocab : s.chunks;
        cr_expect_eq(s.launches, without.launches + 3 + s.chunks + bias * (3 * 2 + 1 + summed));
        cr_expect_eq(s.bytes, without.bytes + more_of(&s, &without));
        cr_expect_eq(s.products, without.products);
      }
}

Test(planner_targets, a_step_holds_a_logprob_and_a_gradient_of_each_target) {
  flp_planner p = planner_of(64, 3, "grpo", 1), one = planner_of(0, 3, "grpo", 1);
  flp_scheme s = pick(&p, FLP_PASS_STEP, 8192, 4 * GIB), without = pick(&one, FLP_PASS_STEP, 8192, 4 * GIB);
  cr_expect_eq(s.size[FLP_REGION_logprob], 8192 * 64 * 4);
  cr_expect_eq(s.size[FLP_REGION_grad_logprob], 8192 * 64 * 4);
  cr_expect_eq(without.size[FLP_REGION_logprob], 8192 * 4);
  cr_expect_neq(s.mode, FLP_MODE_STREAM);
  cr_expect_eq(flp_planner_streams(&p), 0);
}

Test(planner_targets, one_target_is_planned_as_none) {
  flp_planner p = planner_of(1, 7, NULL, 1), none = planner_of(0, 7, NULL, 1);
  for (int pass = FLP_PASS_FORWARD; pass <= FLP_PASS_BACKWARD; pass++) {
    flp_scheme a = pick(&p, (flp_pass)pass, 8192, 4 * GIB), b = pick(&none, (flp_pass)pass, 8192, 4 * GIB);
    cr_expect_eq(a.bytes, b.bytes);
    cr_expect_eq(a.launches, b.launches);
    cr_expect_eq(a.seconds, b.seconds);
  }
}

Test(planner_targets, targets_are_counted_in_31_bits) {
  flp_planner p = planner_of(512, 3, NULL, 1);
  int64_t most = flp_planner_targets_rows_max(&p.spec);
  cr_expect_leq(most * 512, INT32_MAX);
  cr_expect_leq(flp_planner_list_blocks(most * 512) * FLP_LIST_BLOCK, INT32_MAX);
  flp_scheme s;
  char want[128];
  snprintf(want, sizeof want, "n is %lld with spec.targets 512 (accepted: up to %lld rows)", (long long)(most + 1),
           (long long)most);
  static const flp_pass passes[] = {FLP_PASS_FORWARD, FLP_PASS_COMBINE, FLP_PASS_BACKWARD};
  for (int i = 0; i < 3; i++) {
    cr_expect_eq(flp_planner_pick(&p, passes[i], most + 1, UINT64_MAX, 1, &s), FLP_ERROR_UNSUPPORTED);
    cr_expect_str_eq(flp_error_detail(), want);
  }
  cr_expect_eq(flp_planner_pick(&p, FLP_PASS_FORWARD, most, UINT64_MAX, 1, &s), FLP_OK, "%s", flp_error_detail());
}

Test(planner_targets, words_hold_whole_leaves) {
  cr_expect_eq(flp_planner_target_words(1), 1);
  cr_expect_eq(flp_planner_target_words(1536), 1);
  cr_expect_eq(flp_planner_target_words(1537), 2);
  cr_expect_eq(flp_planner_target_words(151936), 99);
}
