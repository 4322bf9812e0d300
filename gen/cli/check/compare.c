/* compare.c: a result against the oracle, output by output, with the bounds of the contract.
 *
 * logprob:  4 ulp of max(|t_y - m|, |logprob|, 1), and, unless every product is exact, ulp(max |t|) and twice the worst
 *           error of a score in an ordinary product that accumulates in fp32: the target's score and the sum may err
 *           apart. (Such a product's own logprobs are off by up to 1.8 times its worst score at D = 7168, whether it
 *           truncates, where errors are towards zero and scores of both signs, or rounds.)
 *           Of a list of the target alone both are 0 but for 1 ulp of 1, unless they come from shards: scores cancel.
 * entropy:  the same, where an error of the scores counts spread times if that is more than 1.
 * gradients: relative L2 at most 1.5 times (fp32: twice) that of the yardstick, plus a floor. In save, stream and
 *           direction modes what is larger: that of the yardstick or of recompute mode on the same inputs, whichever is
 *           more, and 3/sqrt(rows) of it; or what their own roundings to bf16 add up to, as independent errors of the
 *           terms of the exact sum: of each exponential, of what is made of it, of the result. Where terms cancel that
 *           is many times the relative error of one, and another draw, such as the yardstick's, may be lucky: of V = 2
 *           its dz of both columns are opposite to the bit.
 *           In tail mode, of the tensor as a whole: half as much again as the exact modes may have, and spec.tail of its
 *           norm. What a call says that it left out is at most spec.tail of what there is.
 *           Of a loss over all scores dz may be all p: where scores are far off the yardstick's error counts twice, as it
 *           does in logprobs.
 *           A gradient that is zero is relative to nothing: its error is held against the yardstick's and the least
 *           normal fp32 number.
 *           Of an adapter (lora.c): the same, of gradients that go through G = dz·B beside the yardstick's of the same way.
 * Exact products still meet rounding when t = z·log2(e)/T is formed; below |t| = 4 that is inside the 4 ulp. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/check/compare.h"
#include "runtime/base/half.h"
#include "runtime/base/status.h"

static const double EXACT_LIMIT = 4;
static const double LN_2 = 0.69314718055994530942;

/* ---- forward ---- */

void check_compare_add(const compare_state *s, const char *output, check_metric metric, const char *note) {
  check_report_add(s->report, &s->problem->c, s->rung, output, metric, note);
}

/* Allowance beyond the 4 ulp, from the rounding of scores. */
double check_score_allowance(const oracle_row *row) {
  if (row->product_error == 0 && row->largest <= EXACT_LIMIT) return 0;
  return check_ulp(row->largest) + 2 * row->product_error;
}

typedef struct row_arrays {
  double *got, *wanted, *unit, *allowed;
  int64_t count;
} row_arrays;

static int rows_allocate(row_arrays *a, int64_t n) {
  size_t count = (size_t)n + 1;
  *a = (row_arrays){malloc(count * sizeof(double)), malloc(count * sizeof(double)), malloc(count * sizeof(double)),
                    malloc(count * sizeof(double)), 0};
  return a->got && a->wanted && a->unit && a->allowed;
}

static void rows_free(row_arrays *a) {
  free(a->got);
  free(a->wanted);
  free(a->unit);
  free(a->allowed);
}

static void rows_add(row_arrays *a, float got, double wanted, double unit, double allowed) {
  a->got[a->count] = (double)got;
  a->wanted[a->count] = wanted;
  a->unit[a->count] = unit;
  a->allowed[a->count++] = allowed;
}

/* A row whose list is its target alone. */
static int is_certain(const check_problem *problem, int64_t row) {
  return problem->column_offsets && problem->column_offsets[row + 1] - problem->column_offsets[row] == 1;
}

/* Sampled active rows, and every row that is left out or bad. */
static void collect_rows(const compare_state *s, const float *values, int entropy, row_arrays *a) {
  for (int64_t i = 0; i < s->truth->row_count; i++) {
    const oracle_row *row = &s->truth->row_truth[i];
    double target_distance = row->logprob + row->log_sum;
    double size = entropy ? fmax(row->entropy, row->log_sum) : fmax(fabs(target_distance), fabs(row->logprob));
    double unit = check_ulp(fmax(isfinite(size) ? size : 1, 1));
    double factor = entropy ? fmax(row->spread, 1) : 1;
    double allowed = 4 * unit + factor * check_score_allowance(row);
    if (is_certain(s->problem, s->truth->rows[i]) && s->problem->c.shards == 1) allowed = unit;
    rows_add(a, values[s->truth->rows[i]], entropy ? row->entropy : row->logprob, unit, allowed);
  }
  for (int64_t row = 0; row < s->problem->c.n; row++)
    if (s->problem->forward_class[row] != CHECK_ACTIVE)
      rows_add(a, values[row], s->problem->forward_class[row] == CHECK_BAD ? NAN : 0, check_ulp(1), 0);
}

/* The same of several targets: one that is ignored has 0, whatever its row's scores are. */
static void collect_targets(const compare_state *s, const float *values, row_arrays *a) {
  int64_t count = s->problem->targets;
  for (int64_t i = 0; i < s->truth->row_count * count; i++) {
    const oracle_row *row = &s->truth->row_truth[i / count];
    int64_t at = s->truth->rows[i / count] * count + i % count;
    int ignored = s->problem->target_id[at] == CHECK_IGNORE_INDEX;
    double wanted = s->truth->logprob[i], size = fmax(fabs(wanted + row->log_sum), fabs(wanted));
    double unit = check_ulp(fmax(isfinite(size) ? size : 1, 1));
    rows_add(a, values[at], wanted, unit, ignored ? 0 : 4 * unit + check_score_allowance(row));
  }
  for (int64_t at = 0; at < s->problem->c.n * count; at++)
    if (s->problem->forward_class[at / count] != CHECK_ACTIVE)
      rows_add(a, values[at], s->problem->forward_class[at / count] == CHECK_BAD ? NAN : 0, check_ulp(1), 0);
}

static flp_status compare_rows(const compare_state *s, const char *output, const float *values, int entropy) {
  if (!values) return FLP_OK;
  row_arrays a;
  flp_status status = FLP_OK;
  int64_t count = s->problem->c.n * (entropy ? 1 : s->problem->targets);
  if (rows_allocate(&a, count)) {
    if (!entropy && s->problem->targets > 1)
      collect_targets(s, values, &a);
    else
      collect_rows(s, values, entropy, &a);
    check_metric metric = check_metric_rows(a.got, a.wanted, a.unit, a.allowed, a.count);
    const char *note = NULL;
    for (int64_t at = 0; !entropy && at < count; at++)
      if (values[at] > 0) note = "a logprob is above 0";
    if (note) metric.pass = 0;
    check_compare_add(s, output, metric, note);
  } else {
    status = flp_fail(FLP_ERROR_MEMORY, "out of host memory");
  }
  rows_free(&a);
  return status;
}

/* ---- gradients ---- */

static double element(flp_dtype dtype, const void *base, int64_t index) {
  float value;
  flp_half_widen(dtype, (const char *)base + index * flp_half_bytes(dtype), 1, &value);
  return (double)value;
}

/* Recompute mode has gradients of its own but of losses that read values of all scores. */
static int has_plain_gradients(const compare_state *s) {
  return s->plain && !s->problem->scores;
}

/* Adds the squares of what row i of the truth asks of its targets, and of the gradients at them. */
static void add_rounding(const compare_state *s, int64_t i, double *whole, double *real) {
  int64_t count = s->problem->targets, row = s->truth->rows[i];
  const double *g = s->problem->oracle.grad_logprob + row * count;
  double sum = 0;
  for (int64_t k = 0; k < count; k++) sum += g[k];
  for (int64_t k = 0; k < count; k++) {
    double logprob = count > 1 ? s->truth->logprob[i * count + k] : s->truth->row_truth[i].logprob;
    double others = count > 1 ? (sum - g[k]) * exp(logprob) : 0, rest = g[k] * expm1(logprob) + others;
    if (!isfinite(rest)) continue;
    *whole += g[k] * g[k];
    *real += rest * rest;
  }
}

/* Any sum in fp32 knows 1 - p_y to 2^-23 only. Where p_y is near 1 that is all there is of a gradient, and one draw may
 * round well and the next badly: what that can be of the gradients of these rows together. */
static double sum_rounding(const compare_state *s) {
  double whole = 0, real = 0;
  for (int64_t i = 0; i < s->truth->row_count; i++) {
    int64_t row = s->truth->rows[i];
    if (s->problem->backward_class[row] != CHECK_ACTIVE) continue;
    add_rounding(s, i, &whole, &real);
  }
  return real > 0 ? 0x1p-23 * sqrt(whole / real) : 0;
}

/* How much worse than the yardstick a gradient may be, and what exact yardsticks leave for rounding of another order:
 * an eighth of the dtype's own rounding. */
static double factor_of(flp_dtype dtype) {
  return dtype == FLP_DTYPE_FP32 ? 2 : 1.5;
}

/* What a sum of other terms, in another order, may be off more than exact modes may. */
static const double TAIL_FACTOR = 1.5;

static double floor_of(const compare_state *s) {
  flp_dtype dtype = s->problem->c.spec.dtype;
  return dtype == FLP_DTYPE_BF16 ? 0x1p-12 : dtype == FLP_DTYPE_FP16 ? 0x1p-15 : 0x1p-20 + sum_rounding(s);
}

/* A row's part of a gradient of weight hangs on the rounding of one number, its dz at the target: of few rows one draw
 * may be lucky, and that of save and stream modes, which round twice, not. Half as much again at 36 rows, a thirtieth
 * at 8192. */
static double luck_of(const compare_state *s) {
  return 1 + 3 / sqrt(fmax((double)s->truth->work_count, 1));
}

flp_status check_gradient_create(int64_t parts, int64_t width, flp_dtype dtype, gradient *out) {
  size_t count = (size_t)(parts * width);
  *out = (gradient){.parts = parts, .width = width, .dtype = dtype};
  out->exact = malloc((4 * count + (size_t)parts + 1) * sizeof(double));
  if (!out->exact) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for gradients");
  out->yardstick = out->exact + count;
  out->got = out->yardstick + count;
  out->plain = out->got + count;
  out->squares = out->plain + count;
  return FLP_OK;
}

/* What the roundings of save, stream and direction modes make of a gradient's error, relative to its size: the root of
 * its mean square and ten standard deviations of that square. The latter as if all errors of a part were one, so that
 * few parts, which are few draws, get more: two of a size may err by 3.3 times the root mean square, a thousand by 1.2
 * times. A number whose mantissa is log-uniform errs by 2^-8/sqrt(8 ln 2), root mean square, where it is rounded to
 * bf16, half of whose last place is 2^-8. */
static double kept_rounding(const gradient *x) {
  double mean = 0, variance = 0, size = 0;
  for (int64_t part = 0; part < x->parts; part++) {
    double own = 0;
    for (int64_t i = part * x->width; i < (part + 1) * x->width; i++) own += x->exact[i] * x->exact[i];
    double square = x->squares[part] + (x->dtype == FLP_DTYPE_FP32 ? 0 : own);
    if (!isfinite(square)) continue;
    size += own;
    mean += square;
    variance += 2 * square * square;
  }
  return size > 0 ? 0x1p-8 * sqrt((mean + 10 * sqrt(variance)) / (8 * LN_2 * size)) : 0;
}

static double square_of_row(const check_problem *p, flp_dtype dtype, const void *base, int64_t row) {
  double sum = 0;
  for (int64_t d = 0; d < p->c.spec.hidden; d++) {
    double value = element(dtype, base, row * p->stride + d);
    sum += value * value;
  }
  return sum;
}

/* The square of the most that a row's dz may be, times its operand. id: the operand that a score's gradient is
 * multiplied by, or FLP_ARRAY_bias */
static double square_of_pull(const check_problem *p, int64_t row, flp_array_id id) {
  double pull = fabs(p->g[row]) + fabs(p->e[row]) + (p->scores ? fabs(p->by_lse[row]) : 0), square = 1;
  double dz = pull * p->c.scale / p->temperature[row];
  if (id == FLP_ARRAY_weight) square = square_of_row(p, p->c.spec.weight_dtype, p->weight, p->target_id[row]);
  if (id == FLP_ARRAY_hidden) square = square_of_row(p, p->c.spec.hidden_dtype, p->hidden, row);
  return isfinite(dz) && isfinite(square) ? dz * dz * square : 0;
}

/* Where a probability is 1 the row's gradients are 0, of terms that are not: what is left is to be one rounding in fp32 of
 * these. */
static double certain_rounding(const compare_state *s, flp_array_id id) {
  double sum = 0;
  for (int64_t i = 0; i < s->truth->work_count; i++)
    if (is_certain(s->problem, s->truth->work[i])) sum += square_of_pull(s->problem, s->truth->work[i], id);
  return 0x1p-23 * sqrt(sum);
}

/* A loss over all scores may pull at p alone, as a z-loss of scores near 1e4 does. The gradient is then off, relative to its
 * size, by what scores are, which hangs on the order of their sums: at most this, were all of a row's errors one. */
static double score_rounding(const compare_state *s, flp_array_id id) {
  double worst = 0, sum = 0;
  if (!s->problem->scores) return 0;
  for (int64_t i = 0; i < s->truth->row_count; i++)
    if (isfinite(s->truth->row_truth[i].log_sum)) worst = fmax(worst, check_score_allowance(&s->truth->row_truth[i]));
  for (int64_t i = 0; i < s->truth->work_count; i++) {
    double own = s->truth->work_truth ? check_score_allowance(&s->truth->work_truth[i]) : worst;
    if (isfinite(own)) sum += own * own * square_of_pull(s->problem, s->truth->work[i], id);
  }
  return sqrt(sum);
}

/* A gradient beside the yardstick's error and, if there is one, recompute mode's own. id: as above */
check_metric check_gradient_judge(const compare_state *s, const gradient *x, flp_array_id id) {
  flp_dtype dtype = s->problem->c.spec.dtype;
  int64_t count = x->parts * x->width;
  /* Products of gradients take the first of two terms, whose rounding adds to that of dz. Scores of an adapter are two
   * sums in one accumulator, of which a kernel may begin with either. */
  double more = s->problem->c.spec.mixed == FLP_MIXED_SPLIT ? 1.5 : s->problem->c.spec.lora_rank ? 1.25 : 1;
  double factor = factor_of(dtype) * more,
         norm = check_metric_norm(x->exact, count);
  double allowed = factor * check_metric_error(x->yardstick, x->exact, count), tail = (double)s->problem->c.spec.tail;
  if (tail > 0) {
    allowed += floor_of(s) * norm + certain_rounding(s, id);
    return check_metric_tensor(x->got, x->exact, count, TAIL_FACTOR * allowed + tail * norm);
  }
  if (has_plain_gradients(s))
    allowed = luck_of(s) * fmax(allowed, factor * check_metric_error(x->plain, x->exact, count));
  if (s->plain && dtype == FLP_DTYPE_BF16) allowed = fmax(allowed, kept_rounding(x) * norm);
  allowed += fmin(allowed, score_rounding(s, id)) + floor_of(s) * norm + certain_rounding(s, id);
  return check_metric_tensor(x->got, x->exact, count, allowed);
}

/* dh of a row: the shards' own sum. */
static double hidden_element(const compare_state *s, const call_result *result, int64_t row, int64_t d) {
  const check_problem *p = s->problem;
  double sum = 0;
  for (int64_t shard = 0; shard < p->c.shards; shard++)
    sum += element(p->c.spec.grad_hidden_dtype, result->grad_hidden, (shard * p->c.n + row) * p->stride + d);
  return sum;
}

/* Inactive rows hold zeros, bad ones NaN. */
const char *check_inactive_rows(const compare_state *s) {
  for (int64_t row = 0; row < s->problem->c.n; row++)
    for (int64_t d = 0; s->problem->backward_class[row] != CHECK_ACTIVE && d < s->problem->c.spec.hidden; d++) {
      double value = hidden_element(s, s->result, row, d);
      if (s->problem->backward_class[row] == CHECK_BAD && !isnan(value)) return "a bad row has a gradient but NaN";
      if (s->problem->backward_class[row] == CHECK_LEFT_OUT && value != 0) return "an inactive row is not 0";
    }
  return NULL;
}

/* Rows that the oracle has evaluated and that have work in backward. */
static int64_t rows_with_work(const compare_state *s, int64_t *rows, oracle_row *truth) {
  int64_t count = 0;
  for (int64_t i = 0; i < s->truth->row_count; i++) {
    if (s->problem->backward_class[s->truth->rows[i]] != CHECK_ACTIVE) continue;
    rows[count] = s->truth->rows[i];
    truth[count++] = s->truth->row_truth[i];
  }
  return count;
}

void check_gradient_take_hidden(const compare_state *s, const int64_t *rows, gradient *x) {
  for (int64_t i = 0; i < x->parts * x->width; i++) {
    x->got[i] = hidden_element(s, s->result, rows[i / x->width], i % x->width);
    if (has_plain_gradients(s)) x->plain[i] = hidden_element(s, s->plain, rows[i / x->width], i % x->width);
  }
}

static flp_status compare_hidden_rows(const compare_state *s, const int64_t *rows, const oracle_row *truth,
                                      int64_t count) {
  const flp_spec *spec = &s->problem->c.spec;
  int64_t depth = spec->hidden;
  gradient x;
  FLP_TRY(check_gradient_create(count, depth, spec->grad_hidden_dtype, &x));
  flp_status status = oracle_grad_hidden(&s->problem->oracle, rows, truth, count, x.exact, x.yardstick, x.squares);
  for (int64_t i = 0; i < count * depth; i++) x.yardstick[i] = oracle_round(x.dtype, x.yardstick[i]);
  check_gradient_take_hidden(s, rows, &x);
  check_metric metric = check_gradient_judge(s, &x, FLP_ARRAY_weight);
  const char *note = check_inactive_rows(s);
  if (note) metric.pass = 0;
  if (status == FLP_OK) check_compare_add(s, "grad_hidden", metric, note);
  free(x.exact);
  return status;
}

flp_status check_each_hidden(const compare_state *s, check_hidden_fn compare) {
  size_t most = (size_t)s->truth->row_count + 1;
  int64_t *rows = malloc(most * sizeof *rows);
  oracle_row *truth = malloc(most * sizeof *truth);
  flp_status status = flp_fail(FLP_ERROR_MEMORY, "out of host memory");
  if (rows && truth) status = compare(s, rows, truth, rows_with_work(s, rows, truth));
  free(rows);
  free(truth);
  return status;
}

/* Stats of all rows with work: the oracle's, or, where there are too many, those under test, whose sampled rows have
 * been compared already. */
flp_status check_work_stats(const compare_state *s, oracle_row **out) {
  *out = malloc(((size_t)s->truth->work_count + 1) * sizeof **out);
  if (!*out) return flp_fail(FLP_ERROR_MEMORY, "out of host memory");
  for (int64_t i = 0; i < s->truth->work_count; i++) {
    if (s->truth->work_truth) {
      (*out)[i] = s->truth->work_truth[i];
      continue;
    }
    const call_result *from = s->result->stats ? s->result : s->plain; /* a step gives none */
    const float *stats = from->stats + 4 * s->truth->work[i];
    (*out)[i] = (oracle_row){.maximum = LN_2 * (double)stats[0],
                             .log_sum = LN_2 * (double)stats[1],
                             .entropy = (double)stats[3],
                             .yardstick_entropy = (double)stats[3],
                             .yardstick_reference = LN_2 * ((double)stats[0] + (double)stats[1])};
  }
  return FLP_OK;
}

/* What an output started from; an accumulated sum is compared, and the yardstick rounded, with it. */
static double weight_base(const compare_state *s, int64_t index) {
  return s->problem->weight_base ? (double)s->problem->weight_base[index] : 0;
}

static void compare_weight(const compare_state *s, const gradient *x) {
  for (int64_t i = 0; i < x->parts * x->width; i++) {
    int64_t index = s->truth->columns[i / x->width] * s->problem->stride + i % x->width;
    double base = weight_base(s, index);
    x->got[i] = element(x->dtype, s->result->grad_weight, index) - base;
    if (has_plain_gradients(s)) x->plain[i] = element(x->dtype, s->plain->grad_weight, index) - base;
    x->yardstick[i] = oracle_round(x->dtype, base + x->yardstick[i]) - base;
  }
  check_compare_add(s, "grad_weight", check_gradient_judge(s, x, FLP_ARRAY_hidden), NULL);
}

void check_compare_bias(const compare_state *s, const gradient *x) {
  for (int64_t i = 0; i < x->parts; i++) {
    x->got[i] = element(x->dtype, s->result->grad_bias, s->truth->columns[i]);
    if (has_plain_gradients(s)) x->plain[i] = element(x->dtype, s->plain->grad_bias, s->truth->columns[i]);
    x->yardstick[i] = oracle_round(x->dtype, x->yardstick[i]);
  }
  check_compare_add(s, "grad_bias", check_gradient_judge(s, x, FLP_ARRAY_bias), NULL);
}

static flp_status compare_columns(const compare_state *s) {
  if (!s->result->grad_weight && !s->result->grad_bias) return FLP_OK;
  const flp_spec *spec = &s->problem->c.spec;
  int64_t count = s->truth->column_count;
  gradient weight, bias = {0};
  oracle_row *stats = NULL;
  FLP_TRY(check_gradient_create(count, spec->hidden, spec->grad_weight_dtype, &weight));
  flp_status status = check_gradient_create(count, 1, spec->grad_bias_dtype, &bias);
  if (status == FLP_OK) status = check_work_stats(s, &stats);
  if (status == FLP_OK) {
    oracle_columns out = {weight.exact, weight.yardstick, weight.squares, bias.exact, bias.yardstick, bias.squares};
    status = oracle_grad_columns(&s->problem->oracle, s->truth->work, stats, s->truth->work_count, s->truth->columns,
                                 count, &out);
  }
  if (status == FLP_OK && s->result->grad_weight) compare_weight(s, &weight);
  if (status == FLP_OK && s->result->grad_bias) check_compare_bias(s, &bias);
  free(stats);
  free(bias.exact);
  free(weight.exact);
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
  check_compare_add(s, "error word", failed, has_bad ? "bad rows were not reported" : "bad rows were reported where there are none");
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
  int has_work = s->truth->work_count > 0 && s->problem->c.shards == 1 && s->rung != FLP_RUNG_EAGER;
  if (!isfinite(left) || !isfinite(sum) || left < 0 || sum < 0) return "what was left out is no sum of magnitudes";
  if (sum > most_of(s)) return "there is less than the sum that is said to be";
  if (left > (double)s->problem->c.spec.tail * sum) return "more was left out than the tail allows";
  if (!(dense >= 0 && dense <= (double)s->problem->c.n) || dense != floor(dense)) return "recomputed rows are no count";
  if (!(columns >= 0) || columns != floor(columns)) return "listed columns are no count";
  return has_work && !(dense + columns > 0) ? "no row was listed or recomputed" : NULL;
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
  if (!s->plain) return;
  int has_no_adapter = s->problem->c.lora != CHECK_LORA_ON;
  const char *note = has_no_adapter ? "differs from the head without an adapter" : "differs from mode score";
  check_metric metric = check_result_bits(s->problem, FLP_ARRAY_logprob, s->result, s->plain);
  check_compare_add(s, "logprob bits", metric, metric.pass ? NULL : note);
  if (s->result->entropy) {
    metric = check_result_bits(s->problem, FLP_ARRAY_entropy, s->result, s->plain);
    check_compare_add(s, "entropy bits", metric, metric.pass ? NULL : note);
  }
  if (!has_no_adapter || !s->result->stats) return;
  metric = check_result_bits(s->problem, FLP_ARRAY_stats, s->result, s->plain);
  check_compare_add(s, "stats bits", metric, metric.pass ? NULL : note);
}

/* The loss of each row, or one of its metrics, at the logprobs and entropy under test, which were compared themselves:
 * double in between, so that little but the rounding to fp32 is left. */
static flp_status compare_loss(const compare_state *s, const char *output, const float *values, int metric) {
  const check_problem *p = s->problem;
  row_arrays a;
  double logprob[FLP_TARGETS_MAX];
  flp_status status = rows_allocate(&a, p->c.n) ? FLP_OK : flp_fail(FLP_ERROR_MEMORY, "out of host memory");
  for (int64_t row = 0; row < p->c.n && status == FLP_OK; row++) {
    double entropy = s->result->entropy ? (double)s->result->entropy[row] : 0;
    check_problem_logprobs(p, s->result, row, logprob);
    flp_loss_row wanted = check_problem_loss(p, row, logprob, entropy, NULL);
    double value = metric < 0 ? wanted.loss : wanted.metrics[metric];
    if (p->forward_class[row] != CHECK_ACTIVE) value = p->forward_class[row] == CHECK_BAD ? NAN : 0;
    double unit = check_ulp(fmax(isfinite(value) ? fabs(value) : 1, 0x1p-20));
    double slack = check_problem_loss_slack(p, row, logprob, entropy, metric);
    rows_add(&a, values[row], value, unit, 2 * unit + slack);
  }
  if (status == FLP_OK) check_compare_add(s, output, check_metric_rows(a.got, a.wanted, a.unit, a.allowed, a.count), NULL);
  rows_free(&a);
  return status;
}

static flp_status compare_losses(const compare_state *s) {
  if (!s->result->loss) return FLP_OK;
  FLP_TRY(compare_loss(s, "loss", s->result->loss, -1));
  for (uint32_t i = 0; s->result->metrics && i < s->problem->loss->metric_count; i++)
    FLP_TRY(compare_loss(s, "metrics", s->result->metrics + (int64_t)i * s->problem->c.n, (int)i));
  return FLP_OK;
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
  FLP_TRY(check_compare_top(problem, truth, result, rung, report));
  if (problem->c.spec.lora_rank) return check_compare_lora(&s);
  if (result->grad_hidden) FLP_TRY(check_each_hidden(&s, compare_hidden_rows));
  return compare_columns(&s);
}
