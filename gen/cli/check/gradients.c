/* gradients.c: gradients of a result against the oracle; see compare.c for what they may be off.
 *
 * With an adapter the oracle multiplies joined operands: rows [h, u] and columns [W, B], so that one product is
 * h·Wᵀ + u·Bᵀ, one of its gradients [dz·W, G] with G = dz·B, and the other [dzᵀ·h, dzᵀ·u]. dh = dz·W + s·G·A and
 * dA = s·Gᵀ·h follow with s·G rounded to the operands' dtype, as the yardstick has it too. Where shards have a part
 * each their sum is compared. */
#include <math.h>

#include "gen/cli/call/lists.h"
#include "gen/cli/check/compare.h"
#include "runtime/base/status.h"
#include "runtime/kernel/kernel.h"

static const double LN_2 = 0.69314718055994530942;

/* A gradient in parts, whose roundings are their own: rows of hidden or of A, or columns. */
typedef struct gradient {
  flp_array_id id;
  const int64_t *rows; /* (parts) of the array; NULL: all of it */
  int64_t parts, width, stride;
  int64_t shards, of_shard;                /* elements of each shard's own array */
  flp_dtype dtype;                         /* in which it is stored */
  double *exact, *yardstick, *got, *plain; /* (parts, width); plain: recompute mode's, where that ran */
  double *squares;                         /* (parts) of the oracle; zeros with an adapter, which keeps nothing */
} gradient;

static gradient gradient_of(cli_memory *memory, const compare_state *s, flp_array_id id, const int64_t *rows,
                            int64_t parts) {
  const call_problem call = check_problem_call(s->problem);
  const flp_args none = FLP_ARGS_INIT;
  const flp_array *array = &FLP_ARRAY[id];
  int64_t width = flp_size_of(array->columns, &call.spec, &none), stride = call_size(&call, array->columns);
  int64_t count = parts * width;
  double *block = cli_memory_take_zeros(memory, (size_t)(4 * count + parts) * sizeof *block);
  if (!block) return (gradient){0};
  return (gradient){.id = id,
                    .rows = rows,
                    .parts = parts,
                    .width = width,
                    .stride = stride,
                    .shards = array->way == FLP_WAY_EACH ? call.shards : 1,
                    .of_shard = call_size(&call, array->rows) * stride,
                    .dtype = flp_array_dtype(id, &call.spec),
                    .exact = block,
                    .yardstick = block + count,
                    .got = block + 2 * count,
                    .plain = block + 3 * count,
                    .squares = block + 4 * count};
}

/* Of a row of the array: the shards' own sum. */
static double element_of(const call_result *result, const gradient *x, int64_t row, int64_t i) {
  const void *array = call_result_at(result, x->id);
  double sum = 0;
  for (int64_t shard = 0; shard < x->shards; shard++)
    sum += cli_number_at(x->dtype, array, shard * x->of_shard + row * x->stride + i);
  return sum;
}

/* ---- what they may be off ---- */

/* Recompute mode has gradients of its own but of losses that read values of all scores. */
static int has_plain(const compare_state *s) {
  return s->plain && !s->problem->scores;
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
  return dtype == FLP_DTYPE_BF16 ? 0x1p-12 : dtype == FLP_DTYPE_FP16 ? 0x1p-15 : 0x1p-20 + check_sum_rounding(s);
}

/* A row's part of a gradient of weight hangs on the rounding of one number, its dz at the target: of few rows one draw
 * may be lucky, and that of save and stream modes, which round twice, not, nor one of fp32, where it is all there is.
 * Half as much again at 36 rows, a thirtieth at 8192. */
static double luck_of(const compare_state *s) {
  return 1 + 3 / sqrt(fmax((double)s->truth->work_count, 1));
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
    double value = cli_number_at(dtype, base, row * p->stride + d);
    sum += value * value;
  }
  return sum;
}

/* The operand that a score's gradient is multiplied by, or FLP_ARRAY_bias. */
static flp_array_id operand_of(flp_array_id id) {
  if (id == FLP_ARRAY_grad_bias) return FLP_ARRAY_bias;
  return id == FLP_ARRAY_grad_hidden ? FLP_ARRAY_weight : FLP_ARRAY_hidden;
}

/* The square of the most that a row's dz may be, times its operand. id: as operand_of has it */
static double square_of_pull(const check_problem *p, int64_t row, flp_array_id id) {
  double pull = fabs(p->g[row]) + fabs(p->e[row]) + (p->scores ? fabs(p->by_lse[row]) : 0), square = 1;
  double dz = pull * p->c.scale / p->temperature[row];
  if (id == FLP_ARRAY_weight) square = square_of_row(p, p->c.spec.weight_dtype, p->weight, p->target_id[row]);
  if (id == FLP_ARRAY_hidden) square = square_of_row(p, p->c.spec.hidden_dtype, p->hidden, row);
  return isfinite(dz) && isfinite(square) ? dz * dz * square : 0;
}

/* Where a probability is 1 the row's gradients are 0, of terms that are not: what is left is to be one rounding in fp32
 * of these. */
static double certain_rounding(const compare_state *s, flp_array_id id) {
  double sum = 0;
  for (int64_t i = 0; i < s->truth->work_count; i++)
    if (check_is_certain(s->problem, s->truth->work[i])) sum += square_of_pull(s->problem, s->truth->work[i], id);
  return 0x1p-23 * sqrt(sum);
}

/* A loss over all scores may pull at p alone, as a z-loss of scores near 1e4 does. The gradient is then off, relative
 * to its size, by what scores are, which hangs on the order of their sums: at most this, were all of a row's errors
 * one. */
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

/* 1 if gradients are those of lists: not of a step whose rows are so flat that it has taken the order of stream mode,
 * which reports no sum. */
static int has_lists(const compare_state *s) {
  const flp_spec *spec = &s->problem->c.spec;
  const float *report = s->result->tail_report;
  return flp_kernel_spec_emits(spec) && !(flp_kernel_spec_flat(spec) && report && report[1] == 0);
}

static check_metric judge(const compare_state *s, const gradient *x) {
  flp_array_id id = operand_of(x->id);
  flp_dtype dtype = s->problem->c.spec.dtype;
  int64_t count = x->parts * x->width;
  /* Products of gradients take the first of two terms, whose rounding adds to that of dz. Scores of an adapter are two
   * sums in one accumulator, of which a kernel may begin with either. */
  double more = s->problem->c.spec.mixed == FLP_MIXED_SPLIT ? 1.5 : s->problem->c.spec.lora_rank ? 1.25 : 1;
  double factor = factor_of(dtype) * more, norm = check_metric_norm(x->exact, count);
  double allowed = factor * check_metric_error(x->yardstick, x->exact, count), tail = (double)s->problem->c.spec.tail;
  if (has_lists(s)) {
    allowed += floor_of(s) * norm + certain_rounding(s, id);
    /* dz of a row adds up to 0, its list to what is left out: twice as much of what all rows of B share */
    if (x->id == FLP_ARRAY_grad_lora_a) tail *= 2;
    return check_metric_tensor(x->got, x->exact, count, TAIL_FACTOR * allowed + tail * norm);
  }
  if (has_plain(s)) allowed = fmax(allowed, factor * check_metric_error(x->plain, x->exact, count));
  if (has_plain(s) || dtype == FLP_DTYPE_FP32) allowed *= luck_of(s);
  if (s->plain && dtype == FLP_DTYPE_BF16) allowed = fmax(allowed, kept_rounding(x) * norm);
  allowed += fmin(allowed, score_rounding(s, id)) + floor_of(s) * norm + certain_rounding(s, id);
  return check_metric_tensor(x->got, x->exact, count, allowed);
}

/* ---- findings ---- */

/* What an output started from; an accumulated sum is compared, and the yardstick rounded, with it. */
static double base_of(const compare_state *s, const gradient *x, int64_t row, int64_t i) {
  const float *base = x->id == FLP_ARRAY_grad_weight ? s->problem->weight_base : NULL;
  return base ? (double)base[row * x->stride + i] : 0;
}

/* Adds a finding: beside the yardstick's error and, if there is one, recompute mode's own. note: what is wrong beside
 * the numbers, or NULL */
static void add(const compare_state *s, gradient *x, const char *note) {
  int is_in_plain = has_plain(s) && call_result_at(s->plain, x->id);
  for (int64_t at = 0; at < x->parts * x->width; at++) {
    int64_t part = at / x->width, i = at % x->width, row = x->rows ? x->rows[part] : part;
    double base = base_of(s, x, row, i);
    x->yardstick[at] = oracle_round(x->dtype, base + x->yardstick[at]) - base;
    x->got[at] = element_of(s->result, x, row, i) - base;
    x->plain[at] = is_in_plain ? element_of(s->plain, x, row, i) - base : x->yardstick[at];
  }
  check_metric metric = judge(s, x);
  if (note) metric.pass = 0;
  check_compare_add(s, FLP_ARRAY[x->id].name, metric, note);
}

/* ---- joined gradients ---- */

/* s·G as it is stored: fp16 has a power of two beside it, so no element is too large or too small. */
static double round_sum(flp_dtype dtype, double value) {
  int exponent;
  if (dtype != FLP_DTYPE_FP16 || !isfinite(value)) return oracle_round(dtype, value);
  double mantissa = frexp(value, &exponent);
  return ldexp(nearbyint(ldexp(mantissa, 11)), exponent - 11);
}

/* Rows of the joined gradient, exact and by the yardstick, (count, depth + rank) each. */
typedef struct joined {
  int64_t count, depth, rank;
  double *exact, *yardstick, *squares;
} joined;

/* Without an adapter they are the gradient itself. */
static joined joined_of(cli_memory *memory, const check_problem *p, int64_t count, const gradient *x) {
  int64_t depth = p->c.spec.hidden, rank = p->c.spec.lora_rank, each = count * (depth + rank);
  if (!rank) return (joined){count, depth, 0, x->exact, x->yardstick, x->squares};
  double *block = cli_memory_take(memory, (size_t)(2 * each + count) * sizeof *block);
  if (!block) return (joined){0};
  return (joined){count, depth, rank, block, block + each, block + 2 * each};
}

/* An operand in fp64, as the terms that are taken of it. */
static double *widen(cli_memory *memory, const check_problem *p, flp_dtype dtype, const void *base, const int64_t *rows,
                     int64_t count) {
  int64_t depth = p->c.spec.hidden;
  double *out = cli_memory_take(memory, (size_t)(count * depth) * sizeof *out);
  for (int64_t i = 0; out && i < count; i++)
    for (int64_t d = 0; d < depth; d++)
      out[i * depth + d] = oracle_in_terms(p->c.spec.dtype, dtype, p->oracle.terms,
                                           cli_number_at(dtype, base, (rows ? rows[i] : i) * p->stride + d));
  return out;
}

/* Adds a product to a sum, in fp32 if its terms are. */
static double add_term(const check_problem *p, double sum, double left, double right) {
  if (p->c.spec.dtype != FLP_DTYPE_FP32) return sum + left * right;
  return (double)((float)sum + (float)left * (float)right);
}

/* ---- hidden ---- */

/* Inactive rows hold zeros, bad ones NaN. Returns what is wrong with these; NULL if nothing is. */
static const char *inactive_rows(const compare_state *s, const gradient *x) {
  for (int64_t row = 0; row < s->problem->c.n; row++)
    for (int64_t d = 0; s->problem->backward_class[row] != CHECK_ACTIVE && d < x->width; d++) {
      double value = element_of(s->result, x, row, d);
      if (s->problem->backward_class[row] == CHECK_BAD && !isnan(value)) return "a bad row has a gradient but NaN";
      if (s->problem->backward_class[row] == CHECK_LEFT_OUT && value != 0) return "an inactive row is not 0";
    }
  return NULL;
}

/* Rows that the oracle has evaluated and that have work in backward. */
static int64_t rows_with_work(const compare_state *s, int64_t *rows, oracle_row *truth) {
  int64_t count = 0;
  for (int64_t i = 0; rows && truth && i < s->truth->row_count; i++) {
    if (s->problem->backward_class[s->truth->rows[i]] != CHECK_ACTIVE) continue;
    rows[count] = s->truth->rows[i];
    truth[count++] = s->truth->row_truth[i];
  }
  return count;
}

static void finish_hidden(const compare_state *s, const joined *j, const double *a, gradient *x) {
  const check_problem *p = s->problem;
  for (int64_t i = 0; i < j->count * j->depth; i++) {
    int64_t row = i / j->depth, d = i % j->depth;
    const double *exact = j->exact + row * (j->depth + j->rank), *rounded = j->yardstick + row * (j->depth + j->rank);
    x->exact[i] = exact[d];
    x->yardstick[i] = rounded[d];
    for (int64_t k = 0; k < j->rank; k++) {
      double sum = exact[j->depth + k], sum_rounded = round_sum(p->c.spec.dtype, p->lora_scale * rounded[j->depth + k]);
      x->exact[i] += p->lora_scale * sum * a[k * j->depth + d];
      x->yardstick[i] = add_term(p, x->yardstick[i], sum_rounded, a[k * j->depth + d]);
    }
  }
}

static flp_status compare_hidden(const compare_state *s) {
  const check_problem *p = s->problem;
  size_t most = (size_t)s->truth->row_count;
  if (!s->result->grad_hidden) return FLP_OK;
  cli_memory memory = {0};
  int64_t *rows = cli_memory_take(&memory, most * sizeof *rows);
  oracle_row *truth = cli_memory_take(&memory, most * sizeof *truth);
  int64_t count = rows_with_work(s, rows, truth);
  gradient x = gradient_of(&memory, s, FLP_ARRAY_grad_hidden, rows, count);
  joined j = joined_of(&memory, p, count, &x);
  const double *a = widen(&memory, p, p->c.spec.dtype, p->lora_a, NULL, p->c.spec.lora_rank);
  flp_status status = cli_memory_status(&memory, "gradients");
  if (status == FLP_OK) status = oracle_grad_hidden(&p->oracle, rows, truth, count, j.exact, j.yardstick, j.squares);
  if (status == FLP_OK) {
    finish_hidden(s, &j, a, &x);
    add(s, &x, inactive_rows(s, &x));
  }
  cli_memory_free(&memory);
  return status;
}

/* ---- A ---- */

static void finish_a(const compare_state *s, const joined *j, const double *hidden, gradient *x) {
  const check_problem *p = s->problem;
  for (int64_t i = 0; i < j->count * j->rank; i++) {
    int64_t row = i / j->rank, k = i % j->rank, at = row * (j->depth + j->rank) + j->depth + k;
    double sum = p->lora_scale * j->exact[at], rounded = round_sum(p->c.spec.dtype, p->lora_scale * j->yardstick[at]);
    /* The row may be no number where it adds nothing, as it does to sums of lists. */
    if ((sum == 0 && rounded == 0) || (p->c.spec.listed && isnan(sum))) continue;
    for (int64_t d = 0; d < j->depth; d++) {
      double h = hidden[row * j->depth + d], *of = &x->yardstick[k * j->depth + d];
      x->exact[k * j->depth + d] += sum * h;
      *of = add_term(p, *of, rounded, h);
    }
  }
}

/* Of a problem so large that not all of its rows are evaluated the gradient of A is not compared: it is of all. */
static flp_status compare_a(const compare_state *s) {
  const check_problem *p = s->problem;
  const check_truth *t = s->truth;
  if (!s->result->grad_lora_a || !t->work_truth) return FLP_OK;
  cli_memory memory = {0};
  gradient x = gradient_of(&memory, s, FLP_ARRAY_grad_lora_a, NULL, p->c.spec.lora_rank);
  joined j = joined_of(&memory, p, t->work_count, &x);
  const double *hidden = widen(&memory, p, p->c.spec.hidden_dtype, p->hidden, t->work, t->work_count);
  flp_status status = cli_memory_status(&memory, "gradients");
  if (status == FLP_OK)
    status = oracle_grad_hidden(&p->oracle, t->work, t->work_truth, t->work_count, j.exact, j.yardstick, j.squares);
  if (status == FLP_OK) {
    finish_a(s, &j, hidden, &x);
    add(s, &x, NULL);
  }
  cli_memory_free(&memory);
  return status;
}

/* ---- weight or B, and bias ---- */

/* Stats of all rows with work: the oracle's, or, where there are too many, those under test, whose sampled rows have
 * been compared already. */
static oracle_row *work_stats(cli_memory *memory, const compare_state *s) {
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

/* Rows of padding of the gradient of B are 0. */
static const char *check_padding(const compare_state *s, const gradient *x) {
  for (int64_t row = s->problem->c.spec.vocab; row < s->problem->padded_vocab; row++)
    for (int64_t k = 0; k < x->width; k++)
      if (element_of(s->result, x, row, k) != 0) return "a row of padding is not 0";
  return NULL;
}

static void finish_b(const joined *j, gradient *x) {
  for (int64_t i = 0; i < x->parts * x->width; i++) {
    int64_t at = i / x->width * (j->depth + j->rank) + j->depth + i % x->width;
    x->exact[i] = j->exact[at];
    x->yardstick[i] = j->yardstick[at];
  }
}

static flp_status compare_columns(const compare_state *s) {
  const check_problem *p = s->problem;
  const check_truth *t = s->truth;
  flp_array_id id = p->c.spec.lora_rank ? FLP_ARRAY_grad_lora_b : FLP_ARRAY_grad_weight;
  int is_asked = call_result_at(s->result, id) != NULL;
  if (!is_asked && !s->result->grad_bias) return FLP_OK;
  cli_memory memory = {0};
  gradient x = gradient_of(&memory, s, id, t->columns, t->column_count);
  gradient bias = gradient_of(&memory, s, FLP_ARRAY_grad_bias, t->columns, t->column_count);
  joined j = joined_of(&memory, p, t->column_count, &x);
  const oracle_row *stats = work_stats(&memory, s);
  oracle_columns out = {j.exact, j.yardstick, j.squares, bias.exact, bias.yardstick, bias.squares};
  flp_status status = cli_memory_status(&memory, "gradients");
  if (status == FLP_OK)
    status = oracle_grad_columns(&p->oracle, t->work, stats, t->work_count, t->columns, t->column_count, &out);
  if (status == FLP_OK && j.rank) finish_b(&j, &x);
  if (status == FLP_OK && is_asked) add(s, &x, j.rank ? check_padding(s, &x) : NULL);
  if (status == FLP_OK && s->result->grad_bias) add(s, &bias, NULL);
  cli_memory_free(&memory);
  return status;
}

flp_status check_compare_gradients(const compare_state *s) {
  FLP_TRY(compare_hidden(s));
  FLP_TRY(compare_a(s));
  return compare_columns(s);
}
