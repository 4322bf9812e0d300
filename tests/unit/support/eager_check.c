/* eager_check.c: what an eager_case has computed beside the long double oracle. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "runtime/base/operands.h"
#include "runtime/kernel/abi.h"
#include "tests/unit/support/eager_case.h"

/* ---- what each row is ---- */

static int in_rows(const flp_args *args, int64_t row) {
  int found = !args->rows;
  for (int64_t i = 0; args->rows && i < args->row_count; i++) found |= args->rows[i] == row;
  return found;
}

/* Fills the oracle's lists of a row. */
static eager_row read_list(eager_case *c, int64_t row) {
  const int64_t *offsets = c->args.list_offsets, columns = eager_case_columns(c);
  uint8_t *listed = c->reference.listed + row * columns;
  if (offsets[0] < 0 || offsets[c->args.n] > c->args.list_count) return EAGER_ROW_BAD_LIST;
  for (int64_t i = 0; i < c->args.n; i++)
    if (offsets[i] > offsets[i + 1]) return EAGER_ROW_BAD_LIST;
  for (int64_t e = offsets[row]; e < offsets[row + 1]; e++) {
    int64_t id = eager_case_id_at(c, c->args.list_ids, e);
    if (id < 0 || id >= columns) return EAGER_ROW_BAD_LIST;
    listed[id] = 1;
  }
  return listed[eager_case_get_target(c, row, 0)] ? EAGER_ROW_ACTIVE : EAGER_ROW_NO_TARGET;
}

static eager_row row_of_ids(eager_case *c, int64_t row) {
  int64_t targets = flp_spec_targets(&c->spec), ignored = 0, bad = 0;
  for (int64_t k = 0; k < targets; k++) {
    int64_t id = eager_case_get_target(c, row, k);
    int is_ignored = id == c->args.ignore_index, is_id = id >= 0 && id < eager_case_columns(c);
    c->reference.target[row * targets + k] = !is_ignored && is_id ? (int)id : -1;
    ignored += is_ignored;
    bad += !is_ignored && !is_id;
  }
  if (ignored == targets || !in_rows(&c->args, row)) return EAGER_ROW_LEFT_OUT;
  float temperature = c->spec.per_row_temperature ? c->temperature[row] : c->args.temperature;
  c->reference.temperature[row] = (long double)temperature;
  if (bad || !(temperature > 0 && isfinite(temperature))) return EAGER_ROW_BAD;
  return c->spec.listed ? read_list(c, row) : EAGER_ROW_ACTIVE;
}

static eager_row row_of_scores(const eager_case *c, int64_t row, long double *t) {
  long double limit = FLP_SCORE_LIMIT, maximum = long_read(&c->reference, (int)row, t).maximum * M_LOG2El;
  int has_nan = maximum == INFINITY;
  for (int64_t v = 0; v < c->reference.vocab; v++) has_nan |= isnan(t[v]);
  if (has_nan) return EAGER_ROW_NAN;
  return maximum > limit || maximum <= -limit ? EAGER_ROW_BEYOND : EAGER_ROW_ACTIVE;
}

void eager_case_sync(eager_case *c) {
  long_problem *p = &c->reference;
  int64_t n = c->args.n, targets = flp_spec_targets(&c->spec);
  p->vocab = (int)eager_case_columns(c);
  p->scale = (long double)c->args.scale;
  p->softcap = (long double)c->spec.softcap;
  p->lora_scale = (long double)c->args.lora_scale;
  free(p->listed);
  p->listed = c->spec.listed ? calloc((size_t)(n * p->vocab) + 1, 1) : NULL;
  long double *t = calloc((size_t)p->vocab, sizeof *t);
  for (int64_t row = 0; row < n; row++) {
    c->kind[row] = (uint8_t)row_of_ids(c, row);
    if (c->kind[row] == EAGER_ROW_ACTIVE) c->kind[row] = (uint8_t)row_of_scores(c, row, t);
    p->left_out[row] = c->kind[row] != EAGER_ROW_ACTIVE;
    for (int64_t at = row * targets; at < (row + 1) * targets; at++)
      p->grad_logprob[at] = (long double)c->grad_logprob[at];
    p->grad_entropy[row] = c->spec.entropy == FLP_ENTROPY_BACKWARD ? (long double)c->grad_entropy[row] : 0;
  }
  free(t);
}

int eager_case_has_gradient(const eager_case *c, int64_t row) {
  const long_problem *p = &c->reference;
  int wanted = p->grad_entropy[row] != 0 || p->grad_lse[row] != 0 || p->grad_mean[row] != 0;
  for (int at = (int)row * p->targets; at < ((int)row + 1) * p->targets; at++)
    wanted |= eager_case_get_target(c, row, at % p->targets) != c->args.ignore_index && p->grad_logprob[at] != 0;
  return wanted && c->kind[row] != EAGER_ROW_LEFT_OUT;
}

uint64_t eager_case_bad_rows(const eager_case *c, flp_pass pass) {
  uint64_t count = 0;
  for (int64_t i = 0; i < c->args.row_count; i++) count += c->args.rows[i] < 0 || c->args.rows[i] >= c->args.n;
  for (int64_t row = 0; row < c->args.n; row++) {
    int is_list = c->kind[row] == EAGER_ROW_BAD_LIST || c->kind[row] == EAGER_ROW_NO_TARGET;
    if (pass == FLP_PASS_BACKWARD && !eager_case_has_gradient(c, row)) continue;
    count += c->kind[row] == EAGER_ROW_BAD || (is_list && pass != FLP_PASS_COMBINE) ||
             (c->kind[row] == EAGER_ROW_BEYOND && pass != FLP_PASS_BACKWARD);
  }
  return count;
}

/* ---- beside the oracle ---- */

static void expect_close(const char *what, int64_t i, double got, double wanted, double allowed) {
  cr_assert(got == wanted || fabs(got - wanted) <= allowed, "%s[%ld] is %.9g, the oracle has %.9g", what, (long)i, got,
            wanted);
}

static void expect_near(const char *what, int64_t i, double got, double wanted, double tolerance) {
  expect_close(what, i, got, wanted, tolerance * fmax(1.0, fabs(wanted)));
}

static int compare_scores(const void *left, const void *right, void *t) {
  int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
  long double x = ((const long double *)t)[a], y = ((const long double *)t)[b];
  return x != y ? (x < y) - (x > y) : (a > b) - (a < b);
}

/* The oracle's columns, best first; of equal ones the lowest first. Close ones may be exchanged. */
void eager_case_check_top(const eager_case *c, int64_t row, const long double *t, long double lse, int64_t first,
                          int64_t count) {
  const double slack = 1e-6;
  int64_t topk = c->spec.topk, equal = 0, *order = calloc((size_t)count, sizeof *order);
  char *seen = calloc((size_t)(first + count), 1);
  for (int64_t v = 0; v < count; v++) order[v] = first + v;
  qsort_r(order, (size_t)count, sizeof *order, compare_scores, (void *)(uintptr_t)t);
  for (int64_t i = 0; i < topk; i++) {
    int64_t at = row * topk + i, id = eager_case_id_at(c, c->top_ids, at);
    if (i >= count || t[order[i]] == -INFINITY) {
      cr_assert(id == -1 && c->top_logprob[at] == -INFINITY, "row %ld: id %ld", (long)row, (long)id);
      continue;
    }
    cr_assert(id >= first && id < first + count && !seen[id], "row %ld: id %ld", (long)row, (long)id);
    seen[id] = 1;
    expect_near("score of the best", at, (double)t[id], (double)t[order[i]], c->exact ? 0 : slack);
    if (c->exact) cr_assert_eq(id, order[i], "row %ld: id %ld, not %ld", (long)row, (long)id, (long)order[i]);
    expect_near("top_logprob", at, (double)c->top_logprob[at], (double)(t[id] - lse), slack);
    equal = i > 0 && t[id] == t[eager_case_id_at(c, c->top_ids, at - 1)] ? equal + 1 : 0;
    if (lse == 0 || id != eager_case_get_target(c, row, 0)) continue;
    cr_assert_eq(c->top_logprob[at], c->logprob[row]);
    if (c->spec.rank) cr_assert_eq(c->rank[row], i - equal, "row %ld: rank %d", (long)row, c->rank[row]);
  }
  free(order);
  free(seen);
}

static void check_rank_and_rest(const eager_case *c, int64_t row, const long double *t, long double lse) {
  int64_t target = eager_case_get_target(c, row, 0), above = 0, topk = c->spec.topk;
  long double rest = 1;
  for (int64_t i = row * topk; i < (row + 1) * topk; i++)
    if (eager_case_id_at(c, c->top_ids, i) >= 0) rest -= expl(t[eager_case_id_at(c, c->top_ids, i)] - lse);
  if (topk) expect_close("top_rest", row, (double)c->top_rest[row], (double)rest, 1e-6);
  if (!c->spec.rank) return;
  for (int64_t v = 0; v < c->reference.vocab; v++) above += t[v] > t[target];
  cr_assert_eq(c->rank[row], above, "row %ld: %d, not %ld", (long)row, c->rank[row], (long)above);
}

static void check_active(const eager_case *c, int64_t row, double tolerance, long double *t) {
  const long_problem *p = &c->reference;
  long_row read = long_read(p, (int)row, t);
  const float *stats = c->stats + 4 * row;
  double shift = c->product / (double)p->temperature[row], largest = -INFINITY;
  for (int64_t at = row * p->targets; at < (row + 1) * p->targets; at++) {
    double wanted = p->target[at] < 0 ? 0 : (double)(t[p->target[at]] - read.lse), got = (double)c->logprob[at];
    expect_close("logprob", at, got, wanted, wanted == 0 && !c->merged ? 0 : tolerance * fmax(1, fabs(wanted)) + shift);
    cr_assert_leq(got, 0.0);
    if (p->target[at] >= 0) largest = fmax(largest, got);
  }
  double entropy = (double)read.entropy;
  if (c->entropy) expect_close("entropy", row, (double)c->entropy[row], entropy,
                               tolerance * fmax(1, entropy) + 4 * shift * entropy);
  expect_near("row maximum", row, (double)stats[0], (double)(read.maximum * M_LOG2El), fmax(tolerance, 1e-6) + shift);
  expect_near("log2 of the sum", row, (double)stats[0] + (double)stats[1], (double)(read.lse * M_LOG2El),
              fmax(tolerance, 1e-6) + 2 * shift);
  cr_assert_eq(stats[2], (float)largest);
  if (c->entropy) cr_assert_eq(stats[3], c->entropy[row]);
  if (c->spec.topk) eager_case_check_top(c, row, t, read.lse, 0, p->vocab);
  check_rank_and_rest(c, row, t, read.lse);
}

static void expect_all(const char *what, int64_t row, const float *values, int64_t count, int is_nan) {
  for (int64_t i = 0; values && i < count; i++)
    cr_assert(is_nan ? isnan(values[i]) : values[i] == 0, "%s %ld of row %ld is %g", what, (long)i, (long)row,
              (double)values[i]);
}

/* A row without scores, or whose scores are NaN. */
static void check_inactive(const eager_case *c, int64_t row) {
  int64_t targets = c->reference.targets, topk = c->spec.topk;
  int is_nan = c->kind[row] != EAGER_ROW_LEFT_OUT, has_ids = c->kind[row] >= EAGER_ROW_BEYOND;
  for (int64_t at = row * targets; at < (row + 1) * targets; at++)
    expect_all("logprob", row, c->logprob + at, 1, is_nan && !(has_ids && c->reference.target[at] < 0));
  expect_all("entropy", row, c->entropy ? c->entropy + row : NULL, 1, is_nan);
  int holds_maximum = c->kind[row] == EAGER_ROW_NAN; /* of the scores that are numbers */
  expect_all("stats", row, c->stats + 4 * row + holds_maximum, 4 - holds_maximum, is_nan);
  expect_all("top_logprob", row, topk ? c->top_logprob + row * topk : NULL, topk, is_nan);
  expect_all("top_rest", row, topk ? c->top_rest + row : NULL, 1, is_nan);
  for (int64_t i = 0; i < topk; i++) cr_assert_eq(eager_case_id_at(c, c->top_ids, row * topk + i), -1);
  if (c->spec.rank) cr_assert_eq(c->rank[row], -1);
}

void eager_case_check_forward(eager_case *c, double tolerance) {
  eager_case_sync(c);
  long double *t = calloc((size_t)c->reference.vocab, sizeof *t);
  for (int64_t row = 0; row < c->args.n; row++) {
    if (c->kind[row] == EAGER_ROW_ACTIVE)
      check_active(c, row, tolerance, t);
    else
      check_inactive(c, row);
  }
  free(t);
}

/* Every derivative costs two losses of `rows` rows, so a large tensor is looked at in some places. */
static int64_t step_of(const eager_case *c, int64_t count, int64_t rows) {
  const long_problem *p = &c->reference;
  double cost = 2.0 * (double)rows * p->vocab * (p->depth + p->rank + 50);
  double places = fmin(fmax(2e7 / (cost + 1), 4), 600);
  return (double)count <= places ? 1 : (int64_t)((double)count / places) | 1;
}

/* No row gives the column anything: not a rounding error either. */
static int is_untouched(const eager_case *c, int64_t column) {
  const long_problem *p = &c->reference;
  if (column >= p->vocab || p->bias[column] == -INFINITY) return 1;
  for (int64_t row = 0; row < c->args.n; row++)
    if (eager_case_has_gradient(c, row) && !p->left_out[row] && (!p->listed || p->listed[row * p->vocab + column]))
      return 0;
  return 1;
}

/* Rows of NaN scores reach every column but those that no row lists. */
static int is_head_nan(const eager_case *c) {
  int found = 0;
  for (int64_t row = 0; row < c->args.n; row++)
    found |= !c->spec.listed && c->kind[row] >= EAGER_ROW_BEYOND && eager_case_has_gradient(c, row);
  return found;
}

typedef enum expectation { ZERO, IS_NAN, DERIVATIVE } expectation;

static expectation expect_of(const eager_case *c, uint32_t grad, int64_t row) {
  if (grad == FLP_GRAD_HIDDEN && !eager_case_has_gradient(c, row)) return ZERO;
  if (grad == FLP_GRAD_HIDDEN) return c->kind[row] == EAGER_ROW_ACTIVE ? DERIVATIVE : IS_NAN;
  if (grad == FLP_GRAD_LORA_A && c->args.n == 0) return ZERO;
  if (is_head_nan(c) && (grad == FLP_GRAD_LORA_A || row < c->reference.vocab)) return IS_NAN;
  return grad != FLP_GRAD_LORA_A && is_untouched(c, row) ? ZERO : DERIVATIVE;
}

void eager_case_check_backward(eager_case *c, double tolerance) {
  eager_case_sync(c);
  for (const eager_output *out = c->outputs; out < c->outputs + EAGER_OUTPUTS; out++) {
    if (!(out->grad & c->spec.grads)) continue;
    int64_t step = step_of(c, out->rows * out->width, out->grad == FLP_GRAD_HIDDEN ? 1 : c->args.n);
    for (int64_t row = 0; row < out->rows; row++) {
      expectation expected = expect_of(c, out->grad, row);
      for (int64_t d = 0, i = row * out->width; d < out->width; d++, i++) {
        double got = eager_case_grad(c, out->grad, row, d);
        if (expected != DERIVATIVE)
          cr_assert(expected == ZERO ? got == 0 : isnan(got), "%s[%ld] is %g", out->name, (long)i, got);
        else if (i % step == 0)
          expect_near(out->name, i, got, (double)long_derivative(&c->reference, out->of + i), tolerance);
      }
    }
  }
}
