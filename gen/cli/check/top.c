/* top.c: the best columns of rows, their logprobs, the rest of the mass and the rank of the target, against the oracle.
 *
 * ids: distinct, of falling scores, and no column that is not among them has a score above theirs, but for what rounding
 *      may make of two scores. Behind the last column above -inf stands -1.
 * top_logprob: as logprob is judged, of the column that is named; of a shard t itself.
 * top_rest: 8 ulp of 1 and what the rounding of scores makes of a probability.
 * rank: between the columns that are above the target by more than rounding and those that may be. Where every product is
 *       exact columns of the target's very score are not above it. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/call/lists.h"
#include "gen/cli/check/compare.h"
#include "runtime/base/status.h"
#include "runtime/kernel/abi.h"

static void set(const check_numbers *a, int64_t at, float got, double wanted, double size, double allowed) {
  double unit = check_ulp(fmax(isfinite(size) ? fabs(size) : 1, 1));
  check_numbers_set(a, at, (double)got, wanted, unit, 4 * unit + allowed);
}

typedef struct judge {
  const compare_state *state;
  const check_problem *problem; /* of it, as are the next two */
  const check_truth *truth;
  const call_result *result;
  int64_t topk, n;
  check_numbers logprob, rest;        /* (shards, n, topk), (n) */
  const char **ids_note, **rank_note; /* (n) what is wrong with a row */
  atomic_int *failed;
} judge;

static int64_t id_at(const judge *j, int64_t at) {
  return cli_id_at(j->problem->c.spec.target_dtype, j->result->top_ids, at);
}

/* ---- rows without columns ---- */

/* Of all shards; -1 where one finds the row bad. */
static int64_t rank_of(const judge *j, int64_t row) {
  int64_t sum = 0;
  for (int64_t shard = 0; shard < j->problem->c.shards; shard++) {
    int32_t rank = j->result->rank[shard * j->n + row];
    if (rank < 0) return rank;
    sum += rank;
  }
  return sum;
}

static void judge_empty(const judge *j, int64_t shard, int64_t row, double wanted) {
  for (int64_t i = 0; i < j->topk; i++) {
    int64_t at = (shard * j->n + row) * j->topk + i;
    if (id_at(j, at) != -1) j->ids_note[row] = isnan(wanted) ? "a bad row has ids" : "a row without work has ids";
    set(&j->logprob, at, j->result->top_logprob[at], wanted, 1, 0);
  }
}

static void judge_idle_row(const judge *j, int64_t row, double wanted) {
  for (int64_t shard = 0; shard < j->problem->c.shards; shard++) judge_empty(j, shard, row, wanted);
  if (j->result->top_rest) set(&j->rest, row, j->result->top_rest[row], wanted, 1, 0);
  if (j->result->rank && rank_of(j, row) != -1) j->rank_note[row] = "a row without a rank has one";
}

/* ---- the columns of a row on a shard ---- */

typedef struct range {
  int64_t first, end; /* columns */
  double largest;     /* t */
  int64_t above;      /* columns above -inf */
  int is_nan;
} range;

static range range_of(const judge *j, int64_t shard, const double *t) {
  int64_t first = shard * j->problem->shard_vocab, end = first + j->problem->shard_vocab;
  if (end > j->problem->c.spec.vocab) end = j->problem->c.spec.vocab;
  range r = {.first = first, .end = end, .largest = -INFINITY};
  for (int64_t v = first; v < end; v++) {
    r.is_nan |= isnan(t[v]);
    r.above += t[v] > -INFINITY;
    if (t[v] > r.largest) r.largest = t[v];
  }
  r.is_nan |= r.largest * M_LOG2E > FLP_SCORE_LIMIT;
  return r;
}

/* Marks the columns that are named. Returns what is wrong with them, or NULL. */
static const char *judge_ids(const judge *j, const range *r, int64_t begin, const double *t, double slack,
                             uint8_t *named) {
  double last = INFINITY, least = INFINITY;
  for (int64_t i = 0; i < j->topk; i++) {
    int64_t id = id_at(j, begin + i);
    if (id == -1 && i >= r->above) continue;
    if (i >= r->above) return "an id stands behind the last column above -inf";
    if (id < r->first || id >= r->end) return "an id is no column";
    if (named[id]) return "an id stands twice";
    named[id] = 1;
    if (t[id] > last + slack) return "ids are not in falling order of their scores";
    last = t[id];
    if (t[id] < least) least = t[id];
    if (i > 0 && j->result->top_logprob[begin + i] > j->result->top_logprob[begin + i - 1])
      return "logprobs do not fall";
  }
  for (int64_t v = r->first; v < r->end; v++)
    if (!named[v] && t[v] > least + slack) return "a column that is not named has a higher score";
  return NULL;
}

/* The mass of the columns that are not named. */
static double rest_of(const oracle_row *row, const range *r, const double *t, const uint8_t *named) {
  double sum = 0;
  for (int64_t v = r->first; v < r->end; v++)
    if (!named[v]) sum += exp(t[v] - row->maximum - row->log_sum);
  return sum;
}

static void judge_columns(const judge *j, int64_t shard, int64_t row, const oracle_row *truth, const double *t,
                          uint8_t *named) {
  range r = range_of(j, shard, t);
  int whole = j->problem->c.shards == 1;
  int64_t begin = (shard * j->n + row) * j->topk;
  if (whole ? isnan(truth->log_sum) : r.is_nan) {
    judge_empty(j, shard, row, NAN);
    if (j->result->top_rest) set(&j->rest, row, j->result->top_rest[row], NAN, 1, 0);
    return;
  }
  const char *wrong = judge_ids(j, &r, begin, t, check_slack(truth), named);
  if (wrong) {
    j->ids_note[row] = wrong;
    return;
  }
  double allowance = check_score_allowance(truth);
  for (int64_t i = 0; i < j->topk; i++) {
    int64_t id = id_at(j, begin + i);
    double score = id < 0 ? -INFINITY : t[id];
    double wanted = whole ? (score - truth->maximum) - truth->log_sum : score;
    double size = whole ? fmax(fabs(score - truth->maximum), fabs(wanted)) : fabs(score);
    set(&j->logprob, begin + i, j->result->top_logprob[begin + i], wanted, size, allowance);
  }
  if (!j->result->top_rest) return;
  double rest = (double)j->result->top_rest[row];
  set(&j->rest, row, (float)rest, rest_of(truth, &r, t, named), 1, 4 * check_ulp(1) + allowance);
  if (!(rest >= 0 && rest <= 1)) j->ids_note[row] = "the mass of the others is not from 0 to 1";
}

static void judge_rank(const judge *j, int64_t row, const oracle_row *truth, const double *t) {
  int64_t rank = rank_of(j, row);
  if (isnan(truth->log_sum)) {
    if (rank != -1) j->rank_note[row] = "a row that is not a number has a rank";
    return;
  }
  check_above above = check_above_of(j->problem, truth, t, j->problem->target_id[row]);
  if (rank < above.certain) j->rank_note[row] = "more columns are above the target";
  if (rank > above.possible) j->rank_note[row] = "fewer columns are above the target";
}

static void judge_row(void *context, int64_t index, const double *t) {
  const judge *j = context;
  const oracle_row *truth = &j->truth->row_truth[index];
  int64_t row = j->truth->rows[index], vocab = j->problem->c.spec.vocab;
  uint8_t *named = calloc((size_t)vocab, 1);
  if (!named) atomic_store(j->failed, 1);
  for (int64_t shard = 0; named && j->topk && shard < j->problem->c.shards; shard++)
    judge_columns(j, shard, row, truth, t, named);
  free(named);
  if (j->result->rank) judge_rank(j, row, truth, t);
}

/* ---- findings ---- */

static void add_notes(const judge *j, const char *output, const char *const *notes) {
  const char *note = NULL;
  for (int64_t row = 0; row < j->n && !note; row++) note = notes[row];
  check_metric metric = {.share = note ? INFINITY : 0, .max_ulp = -1, .cosine = 1, .pass = !note};
  check_compare_add(j->state, output, metric, note);
}

static flp_status judge_all(judge *j) {
  atomic_int failed = 0;
  j->failed = &failed;
  for (int64_t row = 0; row < j->n; row++)
    if (j->problem->forward_class[row] != CHECK_ACTIVE)
      judge_idle_row(j, row, j->problem->forward_class[row] == CHECK_BAD ? NAN : 0);
  FLP_TRY(oracle_visit(&j->problem->oracle, j->truth->rows, j->truth->row_count, judge_row, j));
  if (atomic_load(&failed)) return flp_fail(FLP_ERROR_MEMORY, "out of host memory");
  if (j->topk) add_notes(j, "top_ids", j->ids_note);
  if (j->topk) check_compare_add(j->state, "top_logprob", check_numbers_judge(&j->logprob), NULL);
  if (j->result->top_rest) check_compare_add(j->state, "top_rest", check_numbers_judge(&j->rest), NULL);
  if (j->result->rank) add_notes(j, "rank", j->rank_note);
  return FLP_OK;
}

flp_status check_compare_top(const compare_state *s) {
  int64_t n = s->problem->c.n, topk = s->result->top_ids ? s->problem->c.spec.topk : 0;
  if (!topk && !s->result->rank) return FLP_OK;
  cli_memory memory = {0};
  judge j = {s,
             s->problem,
             s->truth,
             s->result,
             topk,
             n,
             check_numbers_of(&memory, s->problem->c.shards * n * topk),
             check_numbers_of(&memory, n),
             .ids_note = cli_memory_take_zeros(&memory, 2 * (size_t)n * sizeof(char *))};
  j.rank_note = j.ids_note + n;
  flp_status status = cli_memory_status(&memory, "best columns");
  if (status == FLP_OK) status = judge_all(&j);
  cli_memory_free(&memory);
  return status;
}
