/* lora.c: gradients of a head with an adapter.
 *
 * The oracle multiplies joined operands: rows [h, u] and columns [W, B], so that one product is h·Wᵀ + u·Bᵀ, one of its
 * gradients [dz·W, G] with G = dz·B, and the other [dzᵀ·h, dzᵀ·u]. dh = dz·W + s·G·A and dA = s·Gᵀ·h follow with s·G
 * rounded to the operands' dtype, as the yardstick has it too. Where shards have a part each their sum is compared. */
#include <math.h>
#include <string.h>

#include "gen/cli/check/compare.h"
#include "runtime/base/status.h"

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
  double *exact, *yardstick, *squares; /* one block */
} joined;

static joined joined_of(cli_memory *memory, const check_problem *p, int64_t count) {
  int64_t depth = p->c.spec.hidden, rank = p->c.spec.lora_rank, each = count * (depth + rank);
  double *block = cli_memory_take(memory, (size_t)(2 * each + count) * sizeof *block);
  if (!block) return (joined){0};
  return (joined){count, depth, rank, block, block + each, block + 2 * each};
}

/* An operand in fp64. */
static double *widen(cli_memory *memory, const check_problem *p, const void *base, const int64_t *rows, int64_t count) {
  int64_t depth = p->c.spec.hidden;
  double *out = cli_memory_take(memory, (size_t)(count * depth) * sizeof *out);
  for (int64_t i = 0; out && i < count; i++)
    for (int64_t d = 0; d < depth; d++)
      out[i * depth + d] = check_element(p->c.spec.dtype, base, (rows ? rows[i] : i) * p->stride + d);
  return out;
}

/* Adds a product to a sum, in fp32 if its terms are. */
static double add_term(const check_problem *p, double sum, double left, double right) {
  if (p->c.spec.dtype != FLP_DTYPE_FP32) return sum + left * right;
  return (double)((float)sum + (float)left * (float)right);
}

/* Squares say what modes that keep something round; none of them has an adapter. */
static void judge_and_add(const compare_state *s, const char *output, gradient *x, flp_array_id id, const char *note) {
  memset(x->squares, 0, (size_t)x->parts * sizeof *x->squares);
  for (int64_t i = 0; i < x->parts * x->width; i++) x->yardstick[i] = oracle_round(x->dtype, x->yardstick[i]);
  check_gradient_add(s, output, x, id, note);
}

/* ---- hidden ---- */

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

static flp_status compare_hidden_rows(const compare_state *s, const int64_t *rows, const oracle_row *truth,
                                      int64_t count) {
  const check_problem *p = s->problem;
  cli_memory memory = {0};
  gradient x = check_gradient_of(&memory, count, p->c.spec.hidden, p->c.spec.grad_hidden_dtype);
  joined j = joined_of(&memory, p, count);
  const double *a = widen(&memory, p, p->lora_a, NULL, p->c.spec.lora_rank);
  flp_status status = cli_memory_status(&memory, "gradients");
  if (status == FLP_OK) status = oracle_grad_hidden(&p->oracle, rows, truth, count, j.exact, j.yardstick, j.squares);
  if (status == FLP_OK) {
    finish_hidden(s, &j, a, &x);
    check_gradient_take_hidden(s, rows, &x);
    judge_and_add(s, "grad_hidden", &x, FLP_ARRAY_weight, check_inactive_rows(s));
  }
  cli_memory_free(&memory);
  return status;
}

/* ---- A ---- */

/* The shards' parts of an element of the gradient of A. */
static double a_element(const check_problem *p, const call_result *result, int64_t row, int64_t d) {
  double sum = 0;
  for (int64_t shard = 0; shard < p->c.shards; shard++)
    sum += check_element(p->c.spec.grad_lora_dtype, result->grad_lora_a,
                         (shard * p->c.spec.lora_rank + row) * p->stride + d);
  return sum;
}

static void finish_a(const compare_state *s, const joined *j, const double *hidden, gradient *x) {
  const check_problem *p = s->problem;
  memset(x->exact, 0, (size_t)(x->parts * x->width) * sizeof *x->exact);
  memset(x->yardstick, 0, (size_t)(x->parts * x->width) * sizeof *x->yardstick);
  for (int64_t i = 0; i < j->count * j->rank; i++) {
    int64_t row = i / j->rank, k = i % j->rank, at = row * (j->depth + j->rank) + j->depth + k;
    double sum = p->lora_scale * j->exact[at], rounded = round_sum(p->c.spec.dtype, p->lora_scale * j->yardstick[at]);
    if (sum == 0 && rounded == 0) continue; /* the row may be no number where it adds nothing */
    for (int64_t d = 0; d < j->depth; d++) {
      double h = hidden[row * j->depth + d], *of = &x->yardstick[k * j->depth + d];
      x->exact[k * j->depth + d] += sum * h;
      *of = add_term(p, *of, rounded, h);
    }
  }
}

static void judge_a(const compare_state *s, gradient *x) {
  for (int64_t i = 0; i < x->parts * x->width; i++) {
    int64_t row = i / x->width, d = i % x->width;
    x->got[i] = a_element(s->problem, s->result, row, d);
    x->plain[i] = s->plain && s->plain->grad_lora_a ? a_element(s->problem, s->plain, row, d) : x->yardstick[i];
  }
  judge_and_add(s, "grad_lora_a", x, FLP_ARRAY_hidden, NULL);
}

/* Of a problem so large that not all of its rows are evaluated the gradient of A is not compared: it is of all. */
static flp_status compare_a(const compare_state *s) {
  const check_problem *p = s->problem;
  int64_t count = s->truth->work_count;
  if (!s->result->grad_lora_a || !s->truth->work_truth) return FLP_OK;
  cli_memory memory = {0};
  gradient x = check_gradient_of(&memory, p->c.spec.lora_rank, p->c.spec.hidden, p->c.spec.grad_lora_dtype);
  joined j = joined_of(&memory, p, count);
  const double *hidden = widen(&memory, p, p->hidden, s->truth->work, count);
  flp_status status = cli_memory_status(&memory, "gradients");
  if (status == FLP_OK)
    status =
        oracle_grad_hidden(&p->oracle, s->truth->work, s->truth->work_truth, count, j.exact, j.yardstick, j.squares);
  if (status == FLP_OK) {
    finish_a(s, &j, hidden, &x);
    judge_a(s, &x);
  }
  cli_memory_free(&memory);
  return status;
}

/* ---- B and bias ---- */

/* Rows of padding are 0. */
static const char *check_padding(const check_problem *p, const void *b) {
  for (int64_t i = p->c.spec.vocab * p->c.spec.lora_rank; i < p->padded_vocab * p->c.spec.lora_rank; i++)
    if (check_element(p->c.spec.grad_lora_dtype, b, i) != 0) return "a row of padding is not 0";
  return NULL;
}

static void compare_b(const compare_state *s, const joined *j, gradient *x) {
  for (int64_t i = 0; i < x->parts * x->width; i++) {
    int64_t part = i / x->width, k = i % x->width, at = part * (j->depth + j->rank) + j->depth + k;
    int64_t index = s->truth->columns[part] * x->width + k;
    x->exact[i] = j->exact[at];
    x->yardstick[i] = j->yardstick[at];
    x->got[i] = check_element(x->dtype, s->result->grad_lora_b, index);
    x->plain[i] =
        s->plain && s->plain->grad_lora_b ? check_element(x->dtype, s->plain->grad_lora_b, index) : x->yardstick[i];
  }
  judge_and_add(s, "grad_lora_b", x, FLP_ARRAY_hidden, check_padding(s->problem, s->result->grad_lora_b));
}

static flp_status compare_columns(const compare_state *s) {
  if (!s->result->grad_lora_b && !s->result->grad_bias) return FLP_OK;
  const check_problem *p = s->problem;
  const check_truth *t = s->truth;
  cli_memory memory = {0};
  gradient b = check_gradient_of(&memory, t->column_count, p->c.spec.lora_rank, p->c.spec.grad_lora_dtype);
  gradient bias = check_gradient_of(&memory, t->column_count, 1, p->c.spec.grad_bias_dtype);
  joined j = joined_of(&memory, p, t->column_count);
  const oracle_row *stats = check_work_stats(&memory, s);
  oracle_columns out = {j.exact, j.yardstick, j.squares, bias.exact, bias.yardstick, bias.squares};
  flp_status status = cli_memory_status(&memory, "gradients");
  if (status == FLP_OK)
    status = oracle_grad_columns(&p->oracle, t->work, stats, t->work_count, t->columns, t->column_count, &out);
  if (status == FLP_OK && s->result->grad_lora_b) compare_b(s, &j, &b);
  if (status == FLP_OK && s->result->grad_bias) check_compare_bias(s, &bias);
  cli_memory_free(&memory);
  return status;
}

flp_status check_compare_lora(const compare_state *s) {
  if (s->result->grad_hidden) FLP_TRY(check_each_hidden(s, compare_hidden_rows));
  FLP_TRY(compare_a(s));
  return compare_columns(s);
}
