/* cases.c: which cases a spec has, what they are compared with, and on how many rows and columns. */
#include <math.h>
#include <string.h>

#include "gen/cli/bench/bench.h"
#include "runtime/base/half.h"

const char *bench_case_name(bench_case which) {
  static const char *const names[BENCH_CASES] = {"forward", "backward", "forward+backward", "step"};
  return names[which];
}

int bench_case_exists(bench_case which, const flp_spec *spec) {
  if (spec->loss || which == BENCH_STEP) return spec->loss && which == BENCH_STEP;
  return which == BENCH_FORWARD || (spec->grads != 0 && (which == BENCH_BOTH || !(spec->keep || spec->tail > 0)));
}

int bench_case_products(bench_case which, flp_mode mode, const flp_spec *spec, int count[GEMM_PRODUCTS]) {
  memset(count, 0, GEMM_PRODUCTS * sizeof *count);
  if (spec->listed || mode == FLP_MODE_TAIL) return count[GEMM_SCORES] = 1;
  int has_backward = which != BENCH_FORWARD || mode == FLP_MODE_DIRECTION, /* whose forward makes the other product */
      scores_once = mode >= FLP_MODE_SAVE || !spec->grads;
  count[GEMM_SCORES] = which >= BENCH_BOTH && !scores_once ? 2 : 1;
  count[GEMM_GRAD_HIDDEN] = has_backward && (spec->grads & FLP_GRAD_HIDDEN) != 0;
  count[GEMM_GRAD_WEIGHT] = has_backward && (spec->grads & FLP_GRAD_WEIGHT) != 0;
  return count[GEMM_SCORES] + count[GEMM_GRAD_HIDDEN] + count[GEMM_GRAD_WEIGHT];
}

/* Masked rows among the first n. */
static int64_t masked_rows(int64_t n, double masked) {
  return (int64_t)floor((double)n * masked);
}

int64_t bench_active_rows(int64_t n, double masked) {
  return n - masked_rows(n, masked);
}

int bench_row_is_masked(int64_t row, double masked) {
  return masked_rows(row + 1, masked) > masked_rows(row, masked);
}

int64_t bench_host_calls(int launches, int most) {
  return launches > 0 && launches < most ? most / launches : 1;
}

int64_t bench_scores_vocab(const flp_spec *spec, int64_t n, uint64_t free_bytes) {
  enum { STEP = 1024 };
  uint64_t column_bytes = (uint64_t)n * (uint64_t)flp_half_bytes(spec->dtype), columns = free_bytes / column_bytes;
  if (columns >= (uint64_t)spec->vocab) return spec->vocab;
  return (int64_t)(columns / STEP * STEP);
}
