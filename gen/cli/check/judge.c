/* judge.c: the oracle's results for a problem: all rows and columns, or some; no row is evaluated twice. And what
 * gradients may be off; see compare.c. */
#include <math.h>
#include <stdlib.h>

#include "gen/cli/call/lists.h"
#include "gen/cli/check/compare.h"
#include "runtime/base/half.h"
#include "runtime/base/status.h"

/* Above this many multiplications the oracle samples. unit: rows x columns x depth */
static const double WHOLE_GRADIENTS = 2e9, WHOLE_ROWS = 2e11;
enum { SAMPLE_ROWS = 16, SAMPLE_COLUMNS = 24 };

static void *take(check_truth *truth, int64_t count, size_t bytes) {
  return cli_memory_take(&truth->memory, (size_t)count * bytes);
}

static int64_t *list_class(check_truth *truth, const uint8_t *classes, int64_t n, int64_t *count) {
  int64_t *list = take(truth, n, sizeof *list);
  *count = 0;
  for (int64_t row = 0; list && row < n; row++)
    if (classes[row] == CHECK_ACTIVE) list[(*count)++] = row;
  return list;
}

/* Keeps `most` entries, evenly spread, first and last among them. */
static void thin(int64_t *list, int64_t *count, int64_t most) {
  if (*count <= most) return;
  for (int64_t i = 0; i < most; i++) list[i] = list[i * (*count - 1) / (most - 1)];
  *count = most;
}

/* All columns, or a spread of them with the targets of a few rows. */
static void list_columns(const check_problem *problem, int sampled, check_truth *out) {
  int64_t vocab = problem->c.spec.vocab, *count = &out->column_count, unique = 0;
  int64_t *list = out->columns = take(out, vocab + SAMPLE_COLUMNS, sizeof *list);
  if (!list || !out->work) return;
  for (int64_t v = 0; v < vocab; v++) list[v] = v;
  *count = vocab;
  if (!sampled) return;
  thin(list, count, SAMPLE_COLUMNS / 2);
  for (int64_t i = 0; i < SAMPLE_COLUMNS / 2 && i < out->work_count; i++) {
    int64_t row = out->work[i * out->work_count / (SAMPLE_COLUMNS / 2)];
    int64_t target = problem->target_id[row * problem->targets + i % problem->targets];
    if (target >= 0) list[(*count)++] = target;
  }
  qsort(list, (size_t)*count, sizeof *list, cli_by_value);
  for (int64_t i = 0; i < *count; i++)
    if (i == 0 || list[i] != list[i - 1]) list[unique++] = list[i];
  *count = unique;
}

/* Rows, in order, and the oracle's results for them. */
typedef struct evaluated {
  const int64_t *rows;
  int64_t count;
  const oracle_row *truth; /* or NULL: of none */
} evaluated;

static const oracle_row *find_row(const evaluated *known, int64_t row) {
  const int64_t *at = known->truth ? bsearch(&row, known->rows, (size_t)known->count, sizeof row, cli_by_value) : NULL;
  return at ? &known->truth[at - known->rows] : NULL;
}

/* Evaluates the rows that are not known, in the order of the list. */
static flp_status evaluate(const check_problem *problem, const int64_t *rows, int64_t count, const evaluated *known,
                           check_truth *truth, oracle_row **out) {
  int64_t other_count = 0, next = 0, *others = take(truth, count, sizeof *others);
  oracle_row *made = take(truth, count, sizeof *made);
  *out = take(truth, count, sizeof **out);
  FLP_TRY(cli_memory_status(&truth->memory, "the oracle"));
  for (int64_t i = 0; i < count; i++)
    if (!find_row(known, rows[i])) others[other_count++] = rows[i];
  FLP_TRY(oracle_forward(&problem->oracle, others, other_count, made));
  for (int64_t i = 0; i < count; i++) {
    const oracle_row *found = find_row(known, rows[i]);
    (*out)[i] = found ? *found : made[next++];
  }
  return FLP_OK;
}

/* Logprobs of several targets of the rows. */
static flp_status evaluate_targets(const check_problem *problem, check_truth *out) {
  if (problem->targets == 1) return FLP_OK;
  out->logprob = take(out, out->row_count * problem->targets, sizeof *out->logprob);
  FLP_TRY(cli_memory_status(&out->memory, "the oracle"));
  return oracle_targets(&problem->oracle, out->rows, out->row_truth, out->row_count, out->logprob);
}

static flp_status evaluate_all(const check_problem *problem, int sampled, const check_truth *whole, check_truth *out) {
  const flp_spec *spec = &problem->c.spec;
  uint32_t of_rows = FLP_GRAD_WEIGHT | FLP_GRAD_BIAS | FLP_GRAD_LORA_A | FLP_GRAD_LORA_B;
  double work = (double)out->work_count * (double)spec->vocab * (double)spec->hidden;
  int needs_all_rows = (spec->grads & of_rows) != 0 && work <= WHOLE_ROWS;
  evaluated known = {NULL, 0, NULL};
  FLP_TRY(cli_memory_status(&out->memory, "the oracle"));
  if (sampled) thin(out->rows, &out->row_count, SAMPLE_ROWS);
  if (whole) known = (evaluated){whole->rows, whole->row_count, whole->row_truth};
  FLP_TRY(evaluate(problem, out->rows, out->row_count, &known, out, &out->row_truth));
  FLP_TRY(evaluate_targets(problem, out));
  if (!whole) known = (evaluated){out->rows, out->row_count, out->row_truth};
  return needs_all_rows ? evaluate(problem, out->work, out->work_count, &known, out, &out->work_truth) : FLP_OK;
}

flp_status check_truth_create(const check_problem *problem, const check_truth *whole, check_truth *out) {
  const flp_spec *spec = &problem->c.spec;
  *out = (check_truth){0};
  out->rows = list_class(out, problem->forward_class, problem->c.n, &out->row_count);
  out->work = list_class(out, problem->backward_class, problem->c.n, &out->work_count);
  double size = (double)out->row_count * (double)spec->vocab * (double)spec->hidden;
  int sampled = size > WHOLE_GRADIENTS || problem->c.sampled;
  list_columns(problem, sampled, out);
  flp_status status = evaluate_all(problem, sampled, whole, out);
  if (status != FLP_OK) check_truth_clear(out);
  return status;
}

void check_truth_clear(check_truth *truth) {
  cli_memory_free(&truth->memory);
  *truth = (check_truth){0};
}

/* ---- what scores may be off ---- */

static const double EXACT_LIMIT = 4;
static const double LN_2 = 0.69314718055994530942;

void check_compare_add(const compare_state *s, const char *output, check_metric metric, const char *note) {
  check_report_add(s->report, &s->problem->c, s->rung, output, metric, note);
}

/* Allowance beyond the 4 ulp, from the rounding of scores. */
double check_score_allowance(const oracle_row *row) {
  if (row->product_error == 0 && row->largest <= EXACT_LIMIT) return 0;
  return check_ulp(row->largest) + 2 * row->product_error;
}

/* A row whose list is its target alone. */
int check_is_certain(const check_problem *problem, int64_t row) {
  return problem->column_offsets && problem->column_offsets[row + 1] - problem->column_offsets[row] == 1;
}

/* ---- gradients ---- */

double check_element(flp_dtype dtype, const void *base, int64_t index) {
  float value;
  flp_half_widen(dtype, (const char *)base + index * flp_half_bytes(dtype), 1, &value);
  return (double)value;
}

/* Recompute mode has gradients of its own but of losses that read values of all scores. */
int check_has_plain(const compare_state *s) {
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

gradient check_gradient_of(cli_memory *memory, int64_t parts, int64_t width, flp_dtype dtype) {
  int64_t count = parts * width;
  double *block = cli_memory_take(memory, (size_t)(4 * count + parts) * sizeof *block);
  if (!block) return (gradient){0};
  return (gradient){parts, width, dtype, block, block + count, block + 2 * count, block + 3 * count, block + 4 * count};
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
    double value = check_element(dtype, base, row * p->stride + d);
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
    if (check_is_certain(s->problem, s->truth->work[i])) sum += square_of_pull(s->problem, s->truth->work[i], id);
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

static check_metric judge(const compare_state *s, const gradient *x, flp_array_id id) {
  flp_dtype dtype = s->problem->c.spec.dtype;
  int64_t count = x->parts * x->width;
  /* Products of gradients take the first of two terms, whose rounding adds to that of dz. Scores of an adapter are two
   * sums in one accumulator, of which a kernel may begin with either. */
  double more = s->problem->c.spec.mixed == FLP_MIXED_SPLIT ? 1.5 : s->problem->c.spec.lora_rank ? 1.25 : 1;
  double factor = factor_of(dtype) * more, norm = check_metric_norm(x->exact, count);
  double allowed = factor * check_metric_error(x->yardstick, x->exact, count), tail = (double)s->problem->c.spec.tail;
  if (tail > 0) {
    allowed += floor_of(s) * norm + certain_rounding(s, id);
    return check_metric_tensor(x->got, x->exact, count, TAIL_FACTOR * allowed + tail * norm);
  }
  if (check_has_plain(s)) allowed = luck_of(s) * fmax(allowed, factor * check_metric_error(x->plain, x->exact, count));
  if (s->plain && dtype == FLP_DTYPE_BF16) allowed = fmax(allowed, kept_rounding(x) * norm);
  allowed += fmin(allowed, score_rounding(s, id)) + floor_of(s) * norm + certain_rounding(s, id);
  return check_metric_tensor(x->got, x->exact, count, allowed);
}

void check_gradient_add(const compare_state *s, const char *output, const gradient *x, flp_array_id id,
                        const char *note) {
  check_metric metric = judge(s, x, id);
  if (note) metric.pass = 0;
  check_compare_add(s, output, metric, note);
}

/* dh of a row: the shards' own sum. */
static double hidden_element(const compare_state *s, const call_result *result, int64_t row, int64_t d) {
  const check_problem *p = s->problem;
  double sum = 0;
  for (int64_t shard = 0; shard < p->c.shards; shard++)
    sum += check_element(p->c.spec.grad_hidden_dtype, result->grad_hidden, (shard * p->c.n + row) * p->stride + d);
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
    if (check_has_plain(s)) x->plain[i] = hidden_element(s, s->plain, rows[i / x->width], i % x->width);
  }
}

flp_status check_each_hidden(const compare_state *s, check_hidden_fn compare) {
  cli_memory memory = {0};
  size_t most = (size_t)s->truth->row_count;
  int64_t *rows = cli_memory_take(&memory, most * sizeof *rows);
  oracle_row *truth = cli_memory_take(&memory, most * sizeof *truth);
  flp_status status = cli_memory_status(&memory, "gradients");
  if (status == FLP_OK) status = compare(s, rows, truth, rows_with_work(s, rows, truth));
  cli_memory_free(&memory);
  return status;
}

/* Stats of all rows with work: the oracle's, or, where there are too many, those under test, whose sampled rows have
 * been compared already. */
oracle_row *check_work_stats(cli_memory *memory, const compare_state *s) {
  oracle_row *out = cli_memory_take(memory, (size_t)s->truth->work_count * sizeof *out);
  for (int64_t i = 0; out && i < s->truth->work_count; i++) {
    if (s->truth->work_truth) {
      out[i] = s->truth->work_truth[i];
      continue;
    }
    const call_result *from = s->result->stats ? s->result : s->plain; /* a step gives none */
    const float *stats = from->stats + 4 * s->truth->work[i];
    out[i] = (oracle_row){.maximum = LN_2 * (double)stats[0],
                          .log_sum = LN_2 * (double)stats[1],
                          .entropy = (double)stats[3],
                          .yardstick_entropy = (double)stats[3],
                          .yardstick_reference = LN_2 * ((double)stats[0] + (double)stats[1])};
  }
  return out;
}

void check_compare_bias(const compare_state *s, const gradient *x) {
  for (int64_t i = 0; i < x->parts; i++) {
    x->got[i] = check_element(x->dtype, s->result->grad_bias, s->truth->columns[i]);
    if (check_has_plain(s)) x->plain[i] = check_element(x->dtype, s->plain->grad_bias, s->truth->columns[i]);
    x->yardstick[i] = oracle_round(x->dtype, x->yardstick[i]);
  }
  check_gradient_add(s, "grad_bias", x, FLP_ARRAY_bias, NULL);
}
