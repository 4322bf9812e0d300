/* judge.c: the oracle's results for a problem: all rows and columns, or some; no row is evaluated twice. And what
 * scores may be off; see compare.c. */
#include <math.h>
#include <stdlib.h>

#include "gen/cli/call/lists.h"
#include "gen/cli/check/compare.h"
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

/* Logprobs of the targets of the rows. */
static flp_status evaluate_targets(const check_problem *problem, check_truth *out) {
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

void check_compare_add(const compare_state *s, const char *output, check_metric metric, const char *note) {
  check_report_add(s->report, &s->problem->c, s->rung, output, metric, note);
}

/* Allowance beyond the 4 ulp, from the rounding of scores. */
double check_score_allowance(const oracle_row *row) {
  if (row->product_error == 0 && row->largest <= EXACT_LIMIT) return 0;
  return check_ulp(row->largest) + 2 * row->product_error;
}

double check_slack(const oracle_row *row) {
  return 4 * check_ulp(fmax(row->largest, 1)) + 2 * row->product_error;
}

check_above check_above_of(const check_problem *problem, const oracle_row *row, const double *t, int64_t target) {
  double slack = check_slack(row), own = t[target];
  int is_exact = check_score_allowance(row) == 0;
  check_above found = {0, 0};
  for (int64_t v = 0; v < problem->c.spec.vocab; v++) {
    found.certain += t[v] > own + slack;
    found.possible += v != target && (is_exact ? t[v] > own : t[v] >= own - slack);
  }
  return found;
}

/* A row whose list is its target alone. */
int check_is_certain(const check_problem *problem, int64_t row) {
  return problem->column_offsets && problem->column_offsets[row + 1] - problem->column_offsets[row] == 1;
}

/* Adds the squares of what row i of the truth asks of its targets, and of the gradients at them. */
static void add_rounding(const compare_state *s, int64_t i, double *whole, double *real) {
  int64_t count = s->problem->targets, row = s->truth->rows[i];
  const double *g = s->problem->oracle.grad_logprob + row * count;
  double sum = 0;
  for (int64_t k = 0; k < count; k++) sum += g[k];
  for (int64_t k = 0; k < count; k++) {
    double logprob = s->truth->logprob[i * count + k];
    double others = count > 1 ? (sum - g[k]) * exp(logprob) : 0, rest = g[k] * expm1(logprob) + others;
    if (!isfinite(rest)) continue;
    *whole += g[k] * g[k];
    *real += rest * rest;
  }
}

/* Any sum in fp32 knows 1 - p_y to 2^-23 only. Where p_y is near 1 that is all there is of a gradient, and one draw may
 * round well and the next badly: what that can be of the gradients of these rows together. */
double check_sum_rounding(const compare_state *s) {
  double whole = 0, real = 0;
  for (int64_t i = 0; i < s->truth->row_count; i++) {
    int64_t row = s->truth->rows[i];
    if (s->problem->backward_class[row] != CHECK_ACTIVE) continue;
    add_rounding(s, i, &whole, &real);
  }
  return real > 0 ? 0x1p-23 * sqrt(whole / real) : 0;
}
