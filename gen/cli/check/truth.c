/* truth.c: the oracle's results for a problem: all rows and columns, or some; no row is evaluated twice. */
#include <stdlib.h>
#include <string.h>

#include "gen/cli/check/compare.h"
#include "runtime/base/status.h"

/* Above this many multiplications the oracle samples. unit: rows x columns x depth */
static const double WHOLE_GRADIENTS = 2e9, WHOLE_ROWS = 2e11;
enum { SAMPLE_ROWS = 16, SAMPLE_COLUMNS = 24 };

static int64_t *list_class(const uint8_t *classes, int64_t n, int64_t *count) {
  int64_t *list = malloc(((size_t)n + 1) * sizeof *list);
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

static int by_value(const void *a, const void *b) {
  int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
  return (left > right) - (left < right);
}

/* All columns, or a spread of them with the targets of a few rows. */
static int64_t *list_columns(const check_problem *problem, const int64_t *work, int64_t work_count, int sampled,
                             int64_t *count) {
  int64_t vocab = problem->c.spec.vocab;
  int64_t *list = malloc(((size_t)vocab + SAMPLE_COLUMNS) * sizeof *list);
  if (!list) return NULL;
  for (int64_t v = 0; v < vocab; v++) list[v] = v;
  *count = vocab;
  if (!sampled) return list;
  thin(list, count, SAMPLE_COLUMNS / 2);
  for (int64_t i = 0; i < SAMPLE_COLUMNS / 2 && i < work_count; i++) {
    int64_t row = work[i * work_count / (SAMPLE_COLUMNS / 2)];
    int64_t target = problem->target_id[row * problem->targets + i % problem->targets];
    if (target >= 0) list[(*count)++] = target;
  }
  qsort(list, (size_t)*count, sizeof *list, by_value);
  int64_t unique = 0;
  for (int64_t i = 0; i < *count; i++)
    if (i == 0 || list[i] != list[i - 1]) list[unique++] = list[i];
  *count = unique;
  return list;
}

/* Rows, in order, and the oracle's results for them. */
typedef struct evaluated {
  const int64_t *rows;
  int64_t count;
  const oracle_row *truth; /* or NULL: of none */
} evaluated;

static const oracle_row *find_row(const evaluated *known, int64_t row) {
  const int64_t *at = known->truth ? bsearch(&row, known->rows, (size_t)known->count, sizeof row, by_value) : NULL;
  return at ? &known->truth[at - known->rows] : NULL;
}

/* Evaluates the rows that are not known, in the order of the list. others, truth: scratch, (count) */
static flp_status evaluate_others(const check_problem *problem, const int64_t *rows, int64_t count,
                                  const evaluated *known, int64_t *others, oracle_row *truth, oracle_row *out) {
  int64_t other_count = 0, next = 0;
  for (int64_t i = 0; i < count; i++)
    if (!find_row(known, rows[i])) others[other_count++] = rows[i];
  FLP_TRY(oracle_forward(&problem->oracle, others, other_count, truth));
  for (int64_t i = 0; i < count; i++) {
    const oracle_row *found = find_row(known, rows[i]);
    out[i] = found ? *found : truth[next++];
  }
  return FLP_OK;
}

static flp_status evaluate(const check_problem *problem, const int64_t *rows, int64_t count, const evaluated *known,
                           oracle_row **out) {
  size_t room = (size_t)count + 1;
  int64_t *others = calloc(room, sizeof *others);
  oracle_row *truth = malloc(room * sizeof *truth);
  *out = malloc(room * sizeof **out);
  flp_status status = others && truth && *out ? evaluate_others(problem, rows, count, known, others, truth, *out)
                                              : flp_fail(FLP_ERROR_MEMORY, "out of host memory for the oracle");
  free(others);
  free(truth);
  return status;
}

/* Logprobs of several targets of the rows. */
static flp_status evaluate_targets(const check_problem *problem, check_truth *out) {
  if (problem->targets == 1) return FLP_OK;
  out->logprob = malloc(((size_t)(out->row_count * problem->targets) + 1) * sizeof *out->logprob);
  if (!out->logprob) return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the oracle");
  return oracle_targets(&problem->oracle, out->rows, out->row_truth, out->row_count, out->logprob);
}

flp_status check_truth_create(const check_problem *problem, const check_truth *whole, check_truth *out) {
  const flp_spec *spec = &problem->c.spec;
  *out = (check_truth){0};
  out->rows = list_class(problem->forward_class, problem->c.n, &out->row_count);
  out->work = list_class(problem->backward_class, problem->c.n, &out->work_count);
  double size = (double)out->row_count * (double)spec->vocab * (double)spec->hidden;
  int sampled = size > WHOLE_GRADIENTS || problem->c.sampled;
  if (out->work) out->columns = list_columns(problem, out->work, out->work_count, sampled, &out->column_count);
  if (!out->rows || !out->work || !out->columns) {
    check_truth_clear(out);
    return flp_fail(FLP_ERROR_MEMORY, "out of host memory for the oracle");
  }
  uint32_t of_rows = FLP_GRAD_WEIGHT | FLP_GRAD_BIAS | FLP_GRAD_LORA_A | FLP_GRAD_LORA_B;
  double work = (double)out->work_count * (double)spec->vocab * (double)spec->hidden;
  int needs_all_rows = (spec->grads & of_rows) != 0 && work <= WHOLE_ROWS;
  if (sampled) thin(out->rows, &out->row_count, SAMPLE_ROWS);
  evaluated known = {NULL, 0, NULL};
  if (whole) known = (evaluated){whole->rows, whole->row_count, whole->row_truth};
  flp_status status = evaluate(problem, out->rows, out->row_count, &known, &out->row_truth);
  if (status == FLP_OK) status = evaluate_targets(problem, out);
  if (!whole) known = (evaluated){out->rows, out->row_count, out->row_truth};
  if (status == FLP_OK && needs_all_rows)
    status = evaluate(problem, out->work, out->work_count, &known, &out->work_truth);
  if (status != FLP_OK) check_truth_clear(out);
  return status;
}

void check_truth_clear(check_truth *truth) {
  void *const blocks[] = {truth->rows, truth->columns,    truth->row_truth,
                          truth->work, truth->work_truth, truth->logprob};
  for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) free(blocks[i]);
  *truth = (check_truth){0};
}
