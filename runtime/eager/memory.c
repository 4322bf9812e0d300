/* memory.c: the sizes of a pass: which plan fits a budget.
 *
 * Invariant: one code path counts and places the arrays, so a plan's bytes are exact. */
#include "runtime/base/status.h"
#include "runtime/base/util.h"
#include "runtime/eager/core.h"

/* Plans from fast to small. Wider panels read the weight less often, wider chunks wake the team less often. */
static const struct {
  int panel_rows, chunk_columns;
} sizes[] = {{512, 4096}, {512, 2048}, {256, 2048}, {256, 1024}, {256, 512}, {128, 256}, {64, 128}};
enum { SIZE_COUNT = sizeof sizes / sizeof sizes[0] };

static uint64_t plan_bytes(const flp_spec *spec, flp_pass pass, int64_t n, const eager_plan *plan) {
  if (n == 0) return 0;
  eager_block block = {0};
  eager_rows rows;
  eager_rows_carve(&block, n, &rows);
  if (pass == FLP_PASS_FORWARD) {
    eager_forward_memory memory;
    eager_forward_carve(spec, plan, &block, &memory);
  } else if (pass == FLP_PASS_BACKWARD) {
    eager_backward_memory memory;
    eager_backward_carve(spec, plan, n, &block, &memory);
  }
  return block.used;
}

static eager_plan plan_at(const flp_spec *spec, flp_pass pass, int64_t n, flp_mode mode, int size, int threads) {
  int64_t rows = flp_round_up(flp_max(n, 1), EAGER_TILE_ROWS);
  int64_t columns = flp_round_up(spec->vocab, EAGER_TILE_COLUMNS);
  eager_plan plan = {.mode = mode, .threads = threads};
  plan.panel_rows = flp_min(sizes[size].panel_rows, rows);
  plan.chunk_columns = flp_min(sizes[size].chunk_columns, columns);
  plan.bytes = plan_bytes(spec, pass, n, &plan);
  return plan;
}

/* Products of a backward pass: the scores, again if both gradients are swept for apart, and each gradient. */
static int count_products(const flp_spec *spec, flp_pass pass, flp_mode mode) {
  if (pass == FLP_PASS_COMBINE) return 0;
  if (pass == FLP_PASS_FORWARD) return 1;
  int gradients = ((spec->grads & FLP_GRAD_HIDDEN) != 0) + ((spec->grads & FLP_GRAD_WEIGHT) != 0);
  return 1 + (mode == FLP_MODE_RECOMPUTE_SPLIT) + gradients;
}

/* Modes that a pass may run in, fastest first; returns their number. */
static int list_modes(const flp_spec *spec, flp_pass pass, flp_mode out[2]) {
  int hidden = (spec->grads & (FLP_GRAD_HIDDEN | FLP_GRAD_LORA_A)) != 0; /* gradients that rows are swept for */
  int head = (spec->grads & (FLP_GRAD_WEIGHT | FLP_GRAD_BIAS | FLP_GRAD_LORA_B)) != 0;
  if (pass != FLP_PASS_BACKWARD) {
    out[0] = FLP_MODE_SCORE;
    return 1;
  }
  out[0] = head ? FLP_MODE_RECOMPUTE_VOCAB : FLP_MODE_RECOMPUTE_ROWS;
  out[1] = FLP_MODE_RECOMPUTE_SPLIT;
  return hidden && head ? 2 : 1;
}

static eager_plan pick_fitting(const flp_spec *spec, flp_pass pass, int64_t n, uint64_t budget, int threads) {
  flp_mode modes[2];
  int count = list_modes(spec, pass, modes);
  for (int mode = 0; mode < count; mode++)
    for (int size = 0; size < SIZE_COUNT; size++) {
      eager_plan plan = plan_at(spec, pass, n, modes[mode], size, threads);
      if (plan.bytes <= budget) return plan;
    }
  eager_plan plan = plan_at(spec, pass, n, modes[count - 1], SIZE_COUNT - 1, threads);
  while (plan.bytes > budget && plan.threads > 1)
    plan = plan_at(spec, pass, n, plan.mode, SIZE_COUNT - 1, plan.threads - 1);
  return plan;
}

flp_status eager_plan_pick(const flp_spec *spec, flp_pass pass, int64_t n, uint64_t budget_bytes, int threads,
                           eager_plan *out) {
  *out = pick_fitting(spec, pass, n, budget_bytes, threads);
  out->products = count_products(spec, pass, out->mode);
  /* The last mode at the last size on one thread: no other takes less. */
  flp_mode modes[2];
  int count = list_modes(spec, pass, modes);
  out->smallest_bytes = plan_at(spec, pass, n, modes[count - 1], SIZE_COUNT - 1, 1).bytes;
  if (out->bytes <= budget_bytes && out->bytes != UINT64_MAX) return FLP_OK;
  return flp_fail(FLP_ERROR_BUDGET,
                  "budget: %llu bytes are too few for %lld rows on the eager rung; %llu bytes or more are accepted",
                  (unsigned long long)budget_bytes, (long long)n, (unsigned long long)out->smallest_bytes);
}
