/* compare.c: a result against the oracle, output by output, with the bounds of the contract.
 *
 * logprob:  4 ulp of max(|t_y - m|, |logprob|, 1), and, unless every product is exact, ulp(max |t|) and twice the worst
 *           error of a score in an ordinary product that accumulates in fp32: the target's score and the sum may err
 *           apart. (Such a product's own logprobs are off by up to 1.8 times its worst score at D = 7168, whether it
 *           truncates, where errors are towards zero and scores of both signs, or rounds.)
 *           Of a list of the target alone both are 0 but for 1 ulp of 1, unless they come from shards: scores cancel.
 * entropy:  the same, where an error of the scores counts spread times if that is more than 1.
 * lse, log Σ p²: as logprob is, the latter of twice the scores. mean: of scores as large as the row's largest.
 * raw_scores: 4 ulp, and as of logprob; where all products are exact to the bit.
 * is_best:  a target that others are above by more than rounding is not, and one that no other is as near to is.
 * gradients: relative L2 at most 1.5 times (fp32: twice, and 3/sqrt(rows) of it) that of the yardstick, plus a floor.
 *           In save, stream and direction modes what is larger: that of the yardstick or of recompute mode on the same
 *           inputs, whichever is more, and 3/sqrt(rows) of it; or what their own roundings to bf16 add up to, as
 *           independent errors of the terms of the exact sum: of each exponential, of what is made of it, of the
 *           result. Where terms cancel that is many times the relative error of one, and another draw, such as the
 *           yardstick's, may be lucky: of V = 2 its dz of both columns are opposite to the bit.
 *           In tail mode, of the tensor as a whole: half as much again as the exact modes may have, and spec.tail of its
 *           norm. What a call says that it left out is at most spec.tail of what there is.
 *           Of a loss over all scores dz may be all p: where scores are far off the yardstick's error counts twice, as it
 *           does in logprobs.
 *           A gradient that is zero is relative to nothing: its error is held against the yardstick's and the least
 *           normal fp32 number.
 *           Of an adapter (gradients.c): the same, of gradients that go through G = dz·B beside the yardstick's of the same way.
 * Exact products still meet rounding when t = z·log2(e)/T is formed; below |t| = 4 that is inside the 4 ulp. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "gen/cli/check/compare.h"
#include "gen/cli/shared/common.h"
#include "runtime/base/operands.h"
#include "runtime/base/status.h"
#include "runtime/kernel/kernel.h"

/* ---- forward ---- */

static void add(check_numbers *a, float got, double wanted, double unit, double allowed) {
  check_numbers_set(a, a->count++, (double)got, wanted, unit, allowed);
}

/* Sampled active rows, and every row that is left out or bad. Of several targets one that is ignored has 0, whatever its
 * row's scores are. */
static void collect(const compare_state *s, const float *values, int entropy, check_numbers *a) {
  const check_problem *p = s->problem;
  int64_t width = entropy ? 1 : p->targets;
  for (int64_t i = 0; i < s->truth->row_count * width; i++) {
    const oracle_row *row = &s->truth->row_truth[i / width];
    int64_t at = s->truth->rows[i / width] * width + i % width;
    double wanted = entropy ? row->entropy : s->truth->logprob[i];
    double size = fmax(fabs(entropy ? row->log_sum : wanted + row->log_sum), fabs(wanted));
    double unit = check_ulp(fmax(isfinite(size) ? size : 1, 1));
    double allowed = 4 * unit + (entropy ? fmax(row->spread, 1) : 1) * check_score_allowance(row);
    if (check_is_certain(p, s->truth->rows[i / width]) && p->c.shards == 1) allowed = unit;
    if (!entropy && p->target_id[at] == CHECK_IGNORE_INDEX) allowed = 0;
    add(a, values[at], wanted, unit, allowed);
  }
  for (int64_t at = 0; at < p->c.n * width; at++)
    if (p->forward_class[at / width] != CHECK_ACTIVE)
      add(a, values[at], p->forward_class[at / width] == CHECK_BAD ? NAN : 0, check_ulp(1), 0);
}

static flp_status compare_rows(const compare_state *s, const char *output, const float *values, int entropy) {
  cli_memory memory = {0};
  int64_t count = s->problem->c.n * (entropy ? 1 : s->problem->targets);
  const char *note = NULL;
  if (!values) return FLP_OK;
  check_numbers a = check_numbers_of(&memory, count);
  flp_status status = cli_memory_status(&memory, "rows");
  a.count = 0;
  if (status == FLP_OK) collect(s, values, entropy, &a);
  check_metric metric = check_numbers_judge(&a);
  for (int64_t at = 0; !entropy && at < count; at++)
    if (values[at] > 0) note = "a logprob is above 0";
  if (note) metric.pass = 0;
  if (status == FLP_OK) check_compare_add(s, output, metric, note);
  cli_memory_free(&memory);
  return status;
}

/* ---- what is not a number ---- */

/* Bad rows of a forward pass over the whole head, each once, with the two ids of a row list that are no row. */
static int64_t bad_rows(const compare_state *s) {
  int64_t count = s->problem->rows ? 2 : 0;
  for (int64_t row = 0; row < s->problem->c.n; row++) count += s->problem->forward_class[row] == CHECK_BAD;
  for (int64_t i = 0; i < s->truth->row_count; i++) count += s->truth->row_truth[i].is_beyond;
  return count;
}

static void compare_count(const compare_state *s) {
  const check_case *c = &s->problem->c;
  char note[160];
  if (!c->spec.listed || c->shards > 1 || c->sampled || c->n == 0) return;
  int64_t wanted = bad_rows(s), got = s->result->bad_rows;
  if (got == wanted) return;
  snprintf(note, sizeof note, "%" PRId64 " bad rows were counted where there are %" PRId64, got, wanted);
  check_compare_add(s, "error word", (check_metric){.max_ulp = -1}, note);
}

static void compare_errors(const compare_state *s) {
  char note[160];
  check_metric failed = {.max_ulp = -1, .pass = 0};
  if (s->result->overrun) {
    snprintf(note, sizeof note, "%s was written outside its rows", s->result->overrun);
    check_compare_add(s, "buffers", failed, note);
  }
  compare_count(s);
  int has_bad = s->problem->has_bad;
  for (int64_t i = 0; i < s->truth->row_count; i++) has_bad |= s->truth->row_truth[i].is_beyond;
  if (s->result->data_error == has_bad) return;
  check_compare_add(s, "error word", failed,
                    has_bad ? "bad rows were not reported" : "bad rows were reported where there are none");
}

/* ---- tail mode ---- */

/* The most that the sum of magnitudes of dz may be said to be, which is that a little rounded; infinite where the oracle
 * does not have it: with a softcap, a gradient of the entropy, of shards and of samples. Of a row it is twice that at the
 * target, which is the sum of all others. */
static double most_of(const compare_state *s) {
  const check_problem *p = s->problem;
  const flp_spec *spec = &p->c.spec;
  double sum = 0, whole = 0;
  if (spec->softcap > 0 || spec->entropy == FLP_ENTROPY_BACKWARD || p->c.shards > 1) return INFINITY;
  if (s->truth->column_count < spec->vocab) return INFINITY;
  for (int64_t i = 0; i < s->truth->row_count; i++) {
    int64_t row = s->truth->rows[i];
    double factor = fabs(p->g[row] * p->oracle.scale / p->temperature[row]),
           rest = -expm1(s->truth->row_truth[i].logprob);
    if (p->backward_class[row] != CHECK_ACTIVE || !isfinite(rest)) continue;
    sum += 2 * factor * rest;
    whole += factor;
  }
  return (1 + 0x1p-10) * sum + 0x1p-20 * whole;
}

/* What is wrong with the report of a shard; NULL if nothing is. A kernel that serves the rows of a whole head serves each
 * by its list or anew. */
static const char *check_tail(const compare_state *s, const float report[4]) {
  double left = (double)report[0], sum = (double)report[1], dense = (double)report[2], columns = (double)report[3];
  const check_case *c = &s->problem->c;
  int serves = s->rung != FLP_RUNG_EAGER && c->shards == 1 && flp_kernel_spec_emits(&c->spec);
  if (!isfinite(left) || !isfinite(sum) || left < 0 || sum < 0) return "what was left out is no sum of magnitudes";
  if (sum > most_of(s)) return "there is less than the sum that is said to be";
  if (left > (double)s->problem->c.spec.tail * sum) return "more was left out than the tail allows";
  if (!(dense >= 0 && dense <= (double)s->problem->c.n) || dense != floor(dense)) return "recomputed rows are no count";
  if (!(columns >= 0) || columns != floor(columns)) return "listed columns are no count";
  return serves && s->truth->work_count > 0 && !(dense + columns > 0) ? "no row was listed or recomputed" : NULL;
}

static void compare_tail(const compare_state *s) {
  const check_case *c = &s->problem->c;
  check_metric metric = {.max_ulp = -1, .cosine = 1, .bound = (double)c->spec.tail};
  const char *note = NULL;
  double dense = 0, columns = 0;
  char counts[96];
  if (!s->result->tail_report) return;
  for (int shard = 0; shard < c->shards && !note; shard++) {
    const float *report = s->result->tail_report + 4 * shard;
    double left = report[1] > 0 ? (double)report[0] / (double)report[1] : 0;
    note = check_tail(s, report);
    metric.rel_l2 = fmax(metric.rel_l2, left);
    dense += (double)report[2];
    columns += (double)report[3];
  }
  snprintf(counts, sizeof counts, "%.0f rows recomputed, %.0f columns of the others read", dense, columns);
  metric.share = note ? INFINITY : metric.rel_l2 / metric.bound;
  metric.pass = !note;
  check_compare_add(s, "tail_report", metric, note ? note : counts);
}

/* ---- save, stream, direction and tail modes ---- */

check_metric check_result_bits(const check_problem *problem, flp_array_id id, const call_result *a,
                               const call_result *b) {
  call_problem call = check_problem_call(problem);
  return check_metric_bits(call_result_at(a, id), call_result_at(b, id), call_bytes(&call, id));
}

static void compare_bits(const compare_state *s) {
  static const flp_array_id ids[] = {FLP_ARRAY_logprob, FLP_ARRAY_entropy, FLP_ARRAY_stats};
  int has_no_adapter = s->problem->c.lora != CHECK_LORA_ON;
  const char *note = has_no_adapter ? "differs from the head without an adapter" : "differs from mode score";
  for (int i = 0; s->plain && i < (has_no_adapter ? 3 : 2); i++) {
    if (!call_result_at(s->result, ids[i])) continue;
    check_metric metric = check_result_bits(s->problem, ids[i], s->result, s->plain);
    check_compare_add(s, cli_shortly("%s bits", FLP_ARRAY[ids[i]].name).text, metric, metric.pass ? NULL : note);
  }
}

/* The loss of each row, or one of its metrics, at the logprobs and entropy under test, which were compared themselves:
 * double in between, so that little but the rounding to fp32 is left. */
static flp_status compare_loss(const compare_state *s, const char *output, const float *values, int metric) {
  const check_problem *p = s->problem;
  cli_memory memory = {0};
  check_numbers a = check_numbers_of(&memory, p->c.n);
  double logprob[FLP_TARGETS_MAX];
  flp_status status = cli_memory_status(&memory, "a loss");
  for (int64_t row = 0; row < p->c.n && status == FLP_OK; row++) {
    double entropy = s->result->entropy ? (double)s->result->entropy[row] : 0;
    check_problem_logprobs(p, s->result, row, logprob);
    flp_loss_row wanted = check_problem_loss(p, row, logprob, entropy, NULL);
    double value = metric < 0 ? wanted.loss : wanted.metrics[metric];
    if (p->forward_class[row] != CHECK_ACTIVE) value = p->forward_class[row] == CHECK_BAD ? NAN : 0;
    double unit = check_ulp(fmax(isfinite(value) ? fabs(value) : 1, 0x1p-20));
    double slack = check_problem_loss_slack(p, row, logprob, entropy, metric);
    check_numbers_set(&a, row, (double)values[row], value, unit, 2 * unit + slack);
  }
  if (status == FLP_OK) check_compare_add(s, output, check_numbers_judge(&a), NULL);
  cli_memory_free(&memory);
  return status;
}

static flp_status compare_losses(const compare_state *s) {
  if (!s->result->loss) return FLP_OK;
  FLP_TRY(compare_loss(s, "loss", s->result->loss, -1));
  for (uint32_t i = 0; s->result->metrics && i < s->problem->loss->metric_count; i++)
    FLP_TRY(compare_loss(s, "metrics", s->result->metrics + (int64_t)i * s->problem->c.n, (int)i));
  return FLP_OK;
}

/* ---- scores as a whole ---- */

enum { LSE, MEAN, SQUARES, BEST, VALUES };
static const char *const names[VALUES] = {"lse", "mean_score", "log_squares", "is_best"};

typedef struct judge {
  const compare_state *state;
  check_numbers of[BEST]; /* (n) each */
  const char **note;      /* (n) what is wrong with is_best */
} judge;

static void set(const judge *j, int value, int64_t row, double wanted, double size, double allowed) {
  double unit = check_ulp(fmax(isfinite(size) ? fabs(size) : 1, 1));
  float got = j->state->result->statistics[VALUES * row + value];
  check_numbers_set(&j->of[value], row, (double)got, wanted, unit, allowed < 0 ? 0 : 4 * unit + allowed);
}

static void judge_idle_row(const judge *j, int64_t row, double wanted) {
  for (int value = 0; value < BEST; value++) set(j, value, row, wanted, 1, -1);
  if (j->state->result->statistics[VALUES * row + BEST] != 0) j->note[row] = "a row without work has a best target";
}

static void judge_best(const judge *j, int64_t row, const oracle_row *truth, const double *t) {
  const check_problem *p = j->state->problem;
  int must = 0, may = 0, is_best = j->state->result->statistics[VALUES * row + BEST] == 1;
  for (int64_t k = 0; k < p->targets; k++) {
    int64_t target = p->target_id[row * p->targets + k];
    if (target == CHECK_IGNORE_INDEX) continue;
    check_above of_target = check_above_of(p, truth, t, target);
    must |= of_target.possible == 0;
    may |= of_target.certain == 0;
  }
  if (is_best && !may) j->note[row] = "a column is above each target";
  if (!is_best && must) j->note[row] = "no column is above a target";
}

static void judge_row(void *context, int64_t index, const double *t) {
  const judge *j = context;
  const check_problem *p = j->state->problem;
  const oracle_row *truth = &j->state->truth->row_truth[index];
  int64_t row = j->state->truth->rows[index];
  double lse = truth->maximum + truth->log_sum, allowance = check_score_allowance(truth), squares = 0;
  if (isnan(truth->log_sum)) {
    judge_idle_row(j, row, NAN);
    return;
  }
  for (int64_t v = 0; v < p->c.spec.vocab; v++) squares += exp(2 * (t[v] - truth->maximum));
  double renyi = log(squares) - 2 * truth->log_sum;
  set(j, LSE, row, lse, fmax(fabs(truth->maximum), fabs(lse)), allowance);
  set(j, MEAN, row, truth->mean, truth->largest, allowance);
  set(j, SQUARES, row, renyi, fmax(2 * truth->log_sum, fabs(renyi)), 2 * allowance);
  judge_best(j, row, truth, t);
}

static flp_status judge_all(judge *j) {
  const check_problem *p = j->state->problem;
  const check_truth *truth = j->state->truth;
  for (int64_t row = 0; row < p->c.n; row++)
    if (p->forward_class[row] != CHECK_ACTIVE) judge_idle_row(j, row, p->forward_class[row] == CHECK_BAD ? NAN : 0);
  FLP_TRY(oracle_visit(&p->oracle, truth->rows, truth->row_count, judge_row, j));
  for (int value = 0; value < BEST; value++)
    check_compare_add(j->state, names[value], check_numbers_judge(&j->of[value]), NULL);
  const char *note = NULL;
  for (int64_t row = 0; row < p->c.n && !note; row++) note = j->note[row];
  check_metric metric = {.share = note ? INFINITY : 0, .max_ulp = -1, .cosine = 1, .pass = !note};
  check_compare_add(j->state, names[BEST], metric, note);
  return FLP_OK;
}

static flp_status compare_statistics(const compare_state *s) {
  int64_t n = s->problem->c.n;
  if (!s->result->statistics) return FLP_OK;
  cli_memory memory = {0};
  judge j = {.state = s, .note = cli_memory_take_zeros(&memory, (size_t)n * sizeof(char *))};
  for (int value = 0; value < BEST; value++) j.of[value] = check_numbers_of(&memory, n);
  flp_status status = cli_memory_status(&memory, "statistics");
  if (status == FLP_OK) status = judge_all(&j);
  cli_memory_free(&memory);
  return status;
}

/* ---- raw scores ---- */

/* The oracle's scores of scale and temperature 1, without a softcap. Infinite ones of products in terms may be NaN.
 * Rows without work, and columns behind a shard's own, hold what they held. */
typedef struct raw_judge {
  const compare_state *state;
  const oracle_row *truth; /* of the raw scores; by place, as the next one: (rows, vocab) */
  check_numbers scores;
  int64_t stride;
  int is_split, is_exact; /* products are in terms; all of them are exact, and so are scores */
} raw_judge;

static const float *raw_row(const raw_judge *j, int64_t shard, int64_t row) {
  return j->state->result->raw_scores + (shard * j->state->problem->c.n + row) * j->stride;
}

static void judge_raw_row(void *context, int64_t index, const double *x) {
  const raw_judge *j = context;
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
static const char *find_stray(const raw_judge *j) {
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

/* What the worst of a few scores is off is a matter of luck: there that of all rows counts. */
static double settle_errors(const check_problem *p, oracle_row *rows, int64_t count) {
  enum { FEW = 64 };
  double worst = 0;
  for (int64_t i = 0; i < count; i++) worst = fmax(worst, rows[i].product_error);
  for (int64_t i = 0; i < count && p->c.spec.vocab < FEW; i++) rows[i].product_error = worst;
  return worst;
}

static flp_status judge_raw(raw_judge *j, double *temperature, oracle_row *rows) {
  const check_truth *t = j->state->truth;
  oracle_problem oracle = oracle_of(j->state->problem, temperature);
  FLP_TRY(oracle_forward(&oracle, t->rows, t->row_count, rows));
  j->is_exact = check_is_zero(settle_errors(j->state->problem, rows, t->row_count));
  FLP_TRY(oracle_visit(&oracle, t->rows, t->row_count, judge_raw_row, j));
  const char *note = find_stray(j);
  check_metric metric = check_numbers_judge(&j->scores);
  if (note) metric.pass = 0;
  check_compare_add(j->state, "raw_scores", metric, note);
  return FLP_OK;
}

static flp_status compare_raw(const compare_state *s) {
  const check_problem *p = s->problem;
  int64_t count = s->truth->row_count;
  if (!s->result->raw_scores || p->c.n == 0) return FLP_OK;
  cli_memory memory = {0};
  call_problem call = check_problem_call(p);
  double *temperature = cli_memory_take(&memory, (size_t)p->c.n * sizeof *temperature);
  oracle_row *rows = cli_memory_take(&memory, (size_t)count * sizeof *rows);
  raw_judge j = {.state = s,
                 .truth = rows,
                 .scores = check_numbers_of(&memory, count * p->c.spec.vocab),
                 .stride = (int64_t)call_array_of(&call, FLP_ARRAY_raw_scores).stride,
                 .is_split = p->c.spec.dtype == FLP_DTYPE_FP32 || flp_operand_terms(&p->c.spec) > 1};
  flp_status status = cli_memory_status(&memory, "raw scores");
  if (status == FLP_OK) status = judge_raw(&j, temperature, rows);
  cli_memory_free(&memory);
  return status;
}

flp_status check_compare(const check_problem *problem, const check_truth *truth, const call_result *result,
                         const call_result *plain, flp_rung rung, check_report *report) {
  compare_state s = {problem, truth, result, plain, rung, report};
  compare_errors(&s);
  compare_bits(&s);
  compare_tail(&s);
  FLP_TRY(compare_losses(&s));
  FLP_TRY(compare_rows(&s, "logprob", result->logprob, 0));
  FLP_TRY(compare_rows(&s, "entropy", result->entropy, 1));
  FLP_TRY(check_compare_top(&s));
  FLP_TRY(compare_statistics(&s));
  FLP_TRY(compare_raw(&s));
  return check_compare_gradients(&s);
}
