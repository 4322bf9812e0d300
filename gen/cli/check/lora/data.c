/* data.c: the adapter of a problem, and the operands that the oracle multiplies beside those of the head.
 *
 * Invariant: rows of padding behind the vocabulary, and elements between rows of A, hold NaN. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/normal.h"
#include "gen/cli/check/lora/lora.h"
#include "runtime/base/half.h"
#include "runtime/base/status.h"

/* Uniform in (-1, 1). */
static double uniform(uint64_t *state) {
  return ((double)(cli_hash((*state)++) >> 11) + 0.5) * 0x1p-52 - 1.0;
}

static int is_exact(const check_case *c) {
  return c->fill == CHECK_FILL_EXACT || c->fill == CHECK_FILL_EQUAL || c->fill == CHECK_FILL_ONE_HOT;
}

/* Row j of A. Scores of 10^4 and of -16384 come from the first element, which the adapter then leaves alone. */
static void fill_a(const check_case *c, int64_t j, uint64_t *state, float *out) {
  int64_t depth = c->spec.hidden;
  double spread = 1.75 / sqrt((double)depth);
  for (int64_t d = 0; d < depth; d++) {
    double value = uniform(state);
    out[d] = (float)(is_exact(c) ? (d % 8 == j % 8 ? round(2 * value) / 4 : 0) : spread * value);
  }
  if (c->fill == CHECK_FILL_SHIFTED || c->fill == CHECK_FILL_NEGATIVE) out[0] = 0;
  /* of equal scores: where u is 0 rows of B differ, or the gradients of A and B would be 0 but for rounding */
  if (c->fill == CHECK_FILL_EQUAL && j >= c->spec.lora_rank / 2) memset(out, 0, (size_t)depth * sizeof *out);
}

static void fill_b(const check_case *c, uint64_t *state, float *out) {
  uint64_t same = c->seed + 78;
  int64_t rank = c->spec.lora_rank;
  for (int64_t j = 0; j < rank; j++) {
    double value = uniform(c->fill == CHECK_FILL_EQUAL && j < rank / 2 ? &same : state);
    out[j] = (float)(is_exact(c) ? round(2 * value) / 4 : 1.75 / sqrt((double)rank) * value);
    if (c->lora == CHECK_LORA_ZERO) out[j] = 0;
  }
}

/* Both matrices, in the operands' dtype. wide: scratch of a row of either */
static void fill(check_problem *problem, uint64_t seed, float *wide) {
  const check_case *c = &problem->c;
  const flp_spec *spec = &c->spec;
  int64_t element = flp_half_bytes(spec->dtype), rank = spec->lora_rank;
  uint64_t of_a = cli_hash(seed), of_b = cli_hash(seed + 1);
  memset(problem->lora_a, 0xff, (size_t)(rank * problem->stride * element));
  memset(problem->lora_b, 0xff, (size_t)(problem->padded_vocab * rank * element));
  for (int64_t j = 0; j < rank; j++) {
    fill_a(c, j, &of_a, wide);
    flp_half_narrow(spec->dtype, wide, spec->hidden, (char *)problem->lora_a + j * problem->stride * element);
  }
  for (int64_t v = 0; v < spec->vocab; v++) {
    fill_b(c, &of_b, wide);
    flp_half_narrow(spec->dtype, wide, rank, (char *)problem->lora_b + v * rank * element);
  }
}

/* ---- the whole ---- */

flp_status check_lora_project(check_problem *problem) {
  const flp_spec *spec = &problem->c.spec;
  const oracle_lora lora = {.dtype = spec->dtype,
                            .n = problem->c.n,
                            .vocab = spec->vocab,
                            .depth = spec->hidden,
                            .rank = spec->lora_rank,
                            .hidden = problem->hidden,
                            .a = problem->lora_a,
                            .b = problem->lora_b,
                            .hidden_stride = problem->stride,
                            .a_stride = problem->stride,
                            .scale = problem->lora_scale};
  return oracle_lora_project(&lora, problem->lora_u, problem->score_error);
}

flp_status check_lora_create(check_problem *problem, uint64_t seed) {
  const flp_spec *spec = &problem->c.spec;
  size_t element = (size_t)flp_half_bytes(spec->dtype), rank = (size_t)spec->lora_rank, n = (size_t)problem->c.n + 1;
  problem->lora_scale = problem->c.lora == CHECK_LORA_OFF ? 0 : 0.75;
  problem->lora_a = malloc(rank * (size_t)problem->stride * element);
  problem->lora_b = malloc((size_t)problem->padded_vocab * rank * element);
  problem->lora_u = malloc(n * rank * element);
  problem->score_error = malloc(n * sizeof(double));
  float *wide = malloc(((size_t)spec->hidden + rank) * sizeof *wide);
  int all = problem->lora_a && problem->lora_b && problem->lora_u && problem->score_error && wide;
  flp_status status = flp_fail(FLP_ERROR_MEMORY, "out of host memory for an adapter");
  if (all) {
    fill(problem, seed, wide);
    status = check_lora_project(problem);
  }
  free(wide);
  return status;
}

void check_lora_set_oracle(check_problem *problem) {
  oracle_problem *oracle = &problem->oracle;
  if (!problem->c.spec.lora_rank) return;
  oracle->more = problem->c.spec.lora_rank;
  oracle->depth += oracle->more;
  oracle->hidden_more = problem->lora_u;
  oracle->weight_more = problem->lora_b;
  oracle->score_error = problem->score_error;
}

void check_lora_clear(check_problem *problem) {
  void *const blocks[] = {problem->lora_a, problem->lora_b, problem->lora_u, problem->score_error};
  for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) free(blocks[i]);
}
