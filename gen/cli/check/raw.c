/* raw.c: raw scores against the oracle, whose scores of scale and temperature 1, without a softcap, they are.
 *
 * A score may be off by what check_score_allowance says of these and by 4 ulp of its own; by nothing where all products
 * are exact.
 * Infinite ones of products in terms may be NaN. Rows without work, columns behind a shard's own and elements between rows
 * hold what they held. */
#include <math.h>

#include "gen/cli/check/compare.h"
#include "runtime/base/operands.h"
#include "runtime/base/status.h"

typedef struct judge {
  const compare_state *state;
  const oracle_row *truth; /* of the raw scores; by place, as the next one: (rows, vocab) */
  check_numbers scores;
  int64_t stride;
  int is_split, is_exact; /* products are in terms; all of them are exact */
} judge;

static const float *raw_row(const judge *j, int64_t shard, int64_t row) {
  return j->state->result->raw_scores + (shard * j->state->problem->c.n + row) * j->stride;
}

static void judge_row(void *context, int64_t index, const double *x) {
  const judge *j = context;
  const check_problem *p = j->state->problem;
  int64_t vocab = p->c.spec.vocab, row = j->state->truth->rows[index];
  double allowance = check_score_allowance(&j->truth[index]);
  for (int64_t v = 0; v < vocab; v++) {
    double got = (double)raw_row(j, v / p->shard_vocab, row)[v % p->shard_vocab];
    double unit = check_ulp(fmax(isfinite(x[v]) ? fabs(x[v]) : 1, 1));
    double wanted = j->is_split && isinf(x[v]) && isnan(got) ? NAN : x[v];
    check_numbers_set(&j->scores, index * vocab + v, got, wanted, unit, j->is_exact ? 0 : 4 * unit + allowance);
  }
}

/* What was written and should not have been, or NULL. */
static const char *find_stray(const judge *j) {
  const check_problem *p = j->state->problem;
  size_t element = sizeof(float), width = (size_t)j->stride * element;
  for (int64_t shard = 0; shard < p->c.shards; shard++) {
    int64_t left = p->c.spec.vocab - shard * p->shard_vocab, valid = left < p->shard_vocab ? left : p->shard_vocab;
    for (int64_t row = 0; row < p->c.n; row++) {
      int has_work = p->forward_class[row] == CHECK_ACTIVE;
      if (call_has_gaps(raw_row(j, shard, row), 1, has_work ? (size_t)valid * element : 0, width)) continue;
      return has_work ? "a column behind the last was written" : "a row without work was written";
    }
  }
  return NULL;
}

/* temperature: (n) */
static oracle_problem oracle_of(const check_problem *p, double *temperature) {
  oracle_problem oracle = p->oracle;
  for (int64_t row = 0; row < p->c.n; row++) temperature[row] = 1;
  oracle.temperature = temperature;
  oracle.scale = 1;
  oracle.softcap = 0;
  return oracle;
}

static flp_status judge_all(judge *j, double *temperature, oracle_row *rows) {
  const check_truth *t = j->state->truth;
  oracle_problem oracle = oracle_of(j->state->problem, temperature);
  FLP_TRY(oracle_forward(&oracle, t->rows, t->row_count, rows));
  j->is_exact = 1;
  for (int64_t i = 0; i < t->row_count; i++) j->is_exact &= check_is_zero(rows[i].product_error);
  FLP_TRY(oracle_visit(&oracle, t->rows, t->row_count, judge_row, j));
  const char *note = find_stray(j);
  check_metric metric = check_numbers_judge(&j->scores);
  if (note) metric.pass = 0;
  check_compare_add(j->state, "raw_scores", metric, note);
  return FLP_OK;
}

flp_status check_compare_raw(const compare_state *s) {
  const check_problem *p = s->problem;
  int64_t count = s->truth->row_count;
  if (!s->result->raw_scores || p->c.n == 0) return FLP_OK;
  cli_memory memory = {0};
  call_problem call = check_problem_call(p);
  double *temperature = cli_memory_take(&memory, (size_t)p->c.n * sizeof *temperature);
  oracle_row *rows = cli_memory_take(&memory, (size_t)count * sizeof *rows);
  judge j = {.state = s,
             .truth = rows,
             .scores = check_numbers_of(&memory, count * p->c.spec.vocab),
             .stride = (int64_t)call_array_of(&call, FLP_ARRAY_raw_scores).stride,
             .is_split = p->c.spec.dtype == FLP_DTYPE_FP32 || flp_operand_terms(&p->c.spec) > 1};
  flp_status status = cli_memory_status(&memory, "raw scores");
  if (status == FLP_OK) status = judge_all(&j, temperature, rows);
  cli_memory_free(&memory);
  return status;
}
