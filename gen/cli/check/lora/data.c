/* data.c: the adapter of a problem, and the operands that the oracle multiplies.
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

/* ---- u ---- */

/* Sums of a row of h and one of A: exact, and the farther off of what fp32 sums one after another, or truncates after
 * every 16 as tensor cores do. */
typedef struct projection {
  double exact, error;
} projection;

static projection project(const float *hidden, const float *a, int64_t depth) {
  double exact = 0, truncated = 0;
  float rounded = 0;
  for (int64_t d = 0; d < depth; d++) {
    exact += (double)hidden[d] * (double)a[d];
    truncated += (double)hidden[d] * (double)a[d];
    rounded += hidden[d] * a[d];
    if (d % 16 != 15 && d != depth - 1) continue;
    float near = (float)truncated;
    truncated = (double)(fabs((double)near) > fabs(truncated) ? nextafterf(near, 0) : near);
  }
  return (projection){exact, fmax(fabs((double)rounded - exact), fabs(truncated - exact))};
}

/* u of one row as the oracle takes it, and how far off another sum's may be: at most three times the row's worst. */
static void project_row(const check_problem *problem, const float *hidden, const float *a, float *u, double *off) {
  const flp_spec *spec = &problem->c.spec;
  double s = problem->lora_scale, exact[FLP_LORA_RANK_MAX], worst = 0;
  for (int64_t j = 0; j < spec->lora_rank; j++) {
    projection x = project(hidden, a + j * spec->hidden, spec->hidden);
    exact[j] = s == 0 ? 0 : s * x.exact;
    double scaled = fabs(s) * x.error + fabs((double)(float)exact[j] - exact[j]);
    if (isfinite(scaled)) worst = fmax(worst, scaled);
  }
  for (int64_t j = 0; j < spec->lora_rank; j++) {
    double below = oracle_round(spec->dtype, exact[j] - 3 * worst), above = oracle_round(spec->dtype, exact[j] + 3 * worst);
    double own = oracle_round(spec->dtype, exact[j]);
    u[j] = (float)own;
    off[j] = worst > 0 && isfinite(own) ? fmax(fabs(own - below), fabs(above - own)) : 0;
  }
}

/* The most that these errors make of a score. */
static double error_of(const check_problem *problem, const double *off) {
  const flp_spec *spec = &problem->c.spec;
  double worst = 0, any = 0;
  for (int64_t j = 0; j < spec->lora_rank; j++) any += off[j];
  for (int64_t v = 0; any > 0 && v < spec->vocab; v++) {
    const char *row = (const char *)problem->lora_b + v * spec->lora_rank * flp_half_bytes(spec->dtype);
    float b[FLP_LORA_RANK_MAX];
    double sum = 0;
    flp_half_widen(spec->dtype, row, spec->lora_rank, b);
    for (int64_t j = 0; j < spec->lora_rank; j++) sum += off[j] * fabs((double)b[j]);
    worst = fmax(worst, sum);
  }
  return worst;
}

/* A in fp32, behind it a row of hidden states. */
static float *widen_a(const check_problem *problem) {
  const flp_spec *spec = &problem->c.spec;
  int64_t depth = spec->hidden, row_bytes = problem->stride * flp_half_bytes(spec->dtype);
  float *a = malloc((size_t)((spec->lora_rank + 1) * depth) * sizeof *a);
  for (int64_t j = 0; a && j < spec->lora_rank; j++)
    flp_half_widen(spec->dtype, (const char *)problem->lora_a + j * row_bytes, depth, a + j * depth);
  return a;
}

flp_status check_lora_project(check_problem *problem) {
  const flp_spec *spec = &problem->c.spec;
  int64_t depth = spec->hidden, element = flp_half_bytes(spec->dtype), joined = (depth + spec->lora_rank) * element;
  float *a = widen_a(problem);
  if (!a) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for an adapter");
  for (int64_t row = 0; row < problem->c.n; row++) {
    const char *from = (const char *)problem->hidden + row * problem->stride * element;
    char *to = (char *)problem->joined_hidden + row * joined;
    float u[FLP_LORA_RANK_MAX], *hidden = a + spec->lora_rank * depth;
    double off[FLP_LORA_RANK_MAX];
    flp_half_widen(spec->dtype, from, depth, hidden);
    project_row(problem, hidden, a, u, off);
    memcpy(to, from, (size_t)(depth * element));
    flp_half_narrow(spec->dtype, u, spec->lora_rank, to + depth * element);
    problem->score_error[row] = error_of(problem, off);
  }
  free(a);
  return FLP_OK;
}

static void join_weight(check_problem *problem) {
  const flp_spec *spec = &problem->c.spec;
  int64_t element = flp_half_bytes(spec->dtype), depth = spec->hidden * element, rank = spec->lora_rank * element;
  for (int64_t v = 0; v < spec->vocab; v++) {
    char *to = (char *)problem->joined_weight + v * (depth + rank);
    memcpy(to, (const char *)problem->weight + v * problem->stride * element, (size_t)depth);
    memcpy(to + depth, (const char *)problem->lora_b + v * rank, (size_t)rank);
  }
}

/* ---- the whole ---- */

flp_status check_lora_create(check_problem *problem, uint64_t seed) {
  const flp_spec *spec = &problem->c.spec;
  size_t element = (size_t)flp_half_bytes(spec->dtype), rank = (size_t)spec->lora_rank;
  size_t joined = ((size_t)spec->hidden + rank) * element, widest = (size_t)spec->hidden + FLP_LORA_RANK_MAX;
  problem->lora_scale = problem->c.lora == CHECK_LORA_OFF ? 0 : 0.75;
  problem->lora_a = malloc(rank * (size_t)problem->stride * element);
  problem->lora_b = malloc((size_t)problem->padded_vocab * rank * element);
  problem->joined_hidden = malloc((size_t)problem->c.n * joined + 1);
  problem->joined_weight = malloc((size_t)spec->vocab * joined);
  problem->score_error = malloc(((size_t)problem->c.n + 1) * sizeof(double));
  float *wide = malloc(widest * sizeof *wide);
  int all = problem->lora_a && problem->lora_b && problem->joined_hidden && problem->joined_weight;
  flp_status status = flp_fail(FLP_ERROR_MEMORY, "out of host memory for an adapter");
  if (all && problem->score_error && wide) {
    fill(problem, seed, wide);
    join_weight(problem);
    status = check_lora_project(problem);
  }
  free(wide);
  return status;
}

void check_lora_set_oracle(check_problem *problem) {
  const flp_spec *spec = &problem->c.spec;
  oracle_problem *oracle = &problem->oracle;
  if (!spec->lora_rank) return;
  oracle->hidden = problem->joined_hidden;
  oracle->weight = problem->joined_weight;
  oracle->depth = oracle->hidden_stride = oracle->weight_stride = spec->hidden + spec->lora_rank;
  oracle->score_error = problem->score_error;
}

void check_lora_clear(check_problem *problem) {
  void *const blocks[] = {problem->lora_a, problem->lora_b, problem->joined_hidden, problem->joined_weight,
                          problem->score_error};
  for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) free(blocks[i]);
}
