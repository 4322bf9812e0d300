/* eager.c: what the eager rung says of itself: the layout of every pass, what multiplies, and its fingerprint. */
#include "runtime/eager/eager.h"

#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/status.h"
#include "runtime/eager/core.h"

flp_status flp_eager_layout(const flp_spec *spec, flp_pass pass, int64_t n, uint64_t budget_bytes, int threads,
                            flp_layout *layout) {
  eager_plan plan;
  if (pass == FLP_PASS_STEP) return eager_step_layout(spec, n, 0, budget_bytes, threads, layout);
  int is_given = pass == FLP_PASS_BACKWARD_GIVEN; /* a backward pass without scores */
  if (is_given) pass = FLP_PASS_BACKWARD;
  FLP_TRY(eager_plan_pick(spec, pass, n, budget_bytes, eager_thread_count(threads), &plan));
  if (is_given) plan.products -= plan.mode == FLP_MODE_RECOMPUTE_SPLIT ? 2 : 1;
  eager_layout_of(spec, pass, n, &plan, layout);
  if (is_given) layout->mode = FLP_MODE_GIVEN;
  return FLP_OK;
}

uint64_t flp_eager_sums_bytes(const flp_spec *spec) {
  int has_sums = (spec->grads & FLP_GRAD_WEIGHT) && spec->grad_weight_dtype != FLP_DTYPE_FP32;
  return has_sums ? (uint64_t)spec->vocab * (uint64_t)spec->hidden * sizeof(float) : 0;
}

flp_status flp_eager_layout_listed(const flp_spec *spec, flp_pass pass, int64_t n, int64_t list_count,
                                   uint64_t budget_bytes, int threads, flp_layout *layout) {
  eager_plan plan;
  uint32_t grads = pass == FLP_PASS_FORWARD ? 0 : spec->grads;
  int sums = 1 + ((grads & FLP_GRAD_HIDDEN) != 0) + ((grads & FLP_GRAD_WEIGHT) != 0); /* scores, gradients */
  if (pass == FLP_PASS_STEP) {
    FLP_TRY(eager_step_layout(spec, n, list_count, budget_bytes, threads, layout));
    sums += grads != 0;
  } else {
    FLP_TRY(eager_listed_pick(spec, pass, n, list_count, budget_bytes, eager_thread_count(threads), &plan));
    eager_layout_of(spec, pass, n, &plan, layout);
  }
  layout->chunks = 1;
  layout->flops = 2.0 * (double)list_count * (double)spec->hidden * sums;
  return FLP_OK;
}

const char *flp_eager_describe(void) {
  static _Thread_local char text[FLP_EAGER_TEXT_BYTES];
  const char *reason = eager_blas_reason();
  int threads = eager_thread_count(0);
  snprintf(text, sizeof text, "%s%s%s%s, %d thread%s", eager_blas_name(), reason[0] ? " (" : "", reason,
           reason[0] ? ")" : "", threads, threads == 1 ? "" : "s");
  return text;
}

const char *flp_eager_products(void) {
  return eager_blas_name();
}

/* ---- the fingerprint ---- */

enum { SAMPLES = 1 << 14 };

/* The next of a sequence of numbers within [-1, 1). */
static float next_sample(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) * 0x1p-23f - 1.0f;
}

static void add_functions(crypto_hash_sha256_state *hash) {
  uint32_t state = 1;
  for (int i = 0; i < SAMPLES; i++) {
    double x = 30.0 * (double)next_sample(&state);
    double values[] = {exp2(x), log2(1.0 + fabs(x)), tanh(x)};
    crypto_hash_sha256_update(hash, (const unsigned char *)values, sizeof values);
  }
}

flp_status flp_eager_fingerprint(int64_t depth, uint8_t out[32]) {
  enum { TILE = EAGER_TILE_ROWS * EAGER_TILE_COLUMNS, DEPTH_MAX = 8192 }; /* deeper ones go on in the same way */
  if (depth > DEPTH_MAX) depth = DEPTH_MAX;
  size_t count = (EAGER_TILE_ROWS + EAGER_TILE_COLUMNS) * (size_t)depth;
  float *operands = malloc((count + TILE) * sizeof *operands);
  if (!operands) return flp_fail(FLP_ERROR_MEMORY, "no memory for a product of depth %lld", (long long)depth);
  uint32_t state = 2;
  for (size_t i = 0; i < count; i++) operands[i] = next_sample(&state);
  float *columns = operands + EAGER_TILE_ROWS * depth, *scores = operands + count;
  crypto_hash_sha256_state hash;
  crypto_hash_sha256_init(&hash);
  add_functions(&hash);
  eager_blas_enter();
  eager_tile_scores(operands, columns, depth, scores);
  eager_blas_leave();
  crypto_hash_sha256_update(&hash, (const unsigned char *)scores, TILE * sizeof *scores);
  crypto_hash_sha256_final(&hash, out);
  free(operands);
  return FLP_OK;
}
