/* test_oracle.c: the fp64 oracle of `flpgen check` against long double, and its yardstick's size. */
#include "gen/cli/call/oracle.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/half.h"
#include "tests/unit/support/long_oracle.h"
#include "tests/unit/support/random.h"

enum { N = 11, VOCAB = 29, DEPTH = 16, STRIDE = 20 };

typedef struct oracle_fixture {
  oracle_problem problem;
  long_problem reference;
  uint16_t hidden[N * STRIDE], weight[VOCAB * STRIDE], bias[VOCAB];
  int64_t target[N], rows[N];
  double temperature[N], g[N], e[N];
} oracle_fixture;

static long double put(uint16_t *out, double value) {
  *out = flp_half_to_bf16((float)value);
  return (long double)flp_half_from_bf16(*out);
}

static void fill_rows(oracle_fixture *f, uint32_t *state) {
  for (int i = 0; i < N; i++) {
    f->rows[i] = i;
    f->target[i] = f->reference.target[i] = (i * 7 + 3) % VOCAB;
    f->temperature[i] = 1.25 + test_random(state);
    f->g[i] = test_random(state);
    f->e[i] = test_random(state);
    f->reference.temperature[i] = (long double)f->temperature[i];
    f->reference.grad_logprob[i] = (long double)f->g[i];
    f->reference.grad_entropy[i] = (long double)f->e[i];
  }
}

static oracle_fixture *create(double softcap, double scale) {
  oracle_fixture *f = calloc(1, sizeof *f);
  uint32_t state = 17;
  long_problem_create(&f->reference, N, VOCAB, DEPTH, 1, 0);
  for (int i = 0; i < N * DEPTH; i++)
    f->reference.hidden[i] = put(&f->hidden[i / DEPTH * STRIDE + i % DEPTH], 1.5 * test_random(&state));
  for (int i = 0; i < VOCAB * DEPTH; i++)
    f->reference.weight[i] = put(&f->weight[i / DEPTH * STRIDE + i % DEPTH], test_random(&state));
  for (int v = 0; v < VOCAB; v++) f->reference.bias[v] = put(&f->bias[v], test_random(&state));
  fill_rows(f, &state);
  f->reference.scale = (long double)scale;
  f->reference.softcap = (long double)softcap;
  f->problem = (oracle_problem){.dtype = FLP_DTYPE_BF16,
                                .n = N,
                                .vocab = VOCAB,
                                .depth = DEPTH,
                                .hidden = f->hidden,
                                .weight = f->weight,
                                .bias = f->bias,
                                .hidden_stride = STRIDE,
                                .weight_stride = STRIDE,
                                .target = f->target,
                                .temperature = f->temperature,
                                .scale = scale,
                                .softcap = softcap,
                                .grad_logprob = f->g,
                                .grad_entropy = f->e,
                                .threads = 2};
  return f;
}

static void destroy(oracle_fixture *f) {
  long_problem_destroy(&f->reference);
  free(f);
}

/* Each exact and by the yardstick; squares: of hidden, weight and bias. */
typedef struct all_gradients {
  double hidden[2][N * DEPTH], weight[2][VOCAB * DEPTH], bias[2][VOCAB], squares[3][VOCAB];
} all_gradients;

/* Stats and gradients of the first n rows and all columns. */
static void evaluate(const oracle_problem *problem, int64_t n, oracle_row *stats, all_gradients *to) {
  int64_t ids[VOCAB];
  const oracle_columns out = {to->weight[0], to->weight[1], to->squares[1], to->bias[0], to->bias[1], to->squares[2]};
  for (int i = 0; i < VOCAB; i++) ids[i] = i;
  cr_assert_eq(oracle_forward(problem, ids, n, stats), FLP_OK);
  cr_assert_eq(oracle_grad_hidden(problem, ids, stats, n, to->hidden[0], to->hidden[1], to->squares[0]), FLP_OK);
  cr_assert_eq(oracle_grad_columns(problem, ids, stats, n, ids, problem->vocab, &out), FLP_OK);
}

static void check_forward(double softcap, double scale) {
  oracle_fixture *f = create(softcap, scale);
  oracle_row rows[N];
  int any_error = 0;
  cr_assert_eq(oracle_forward(&f->problem, f->rows, N, rows), FLP_OK);
  for (int i = 0; i < N; i++) {
    long double logprob, entropy, largest = 0;
    long_forward(&f->reference, i, &logprob, &entropy);
    cr_assert_float_eq(rows[i].logprob, (double)logprob, 1e-13);
    cr_assert_float_eq(rows[i].entropy, (double)entropy, 1e-13);
    for (int v = 0; v < VOCAB; v++) largest = fmaxl(largest, fabsl(long_score(&f->reference, i, v)));
    if (softcap == 0) cr_assert_float_eq(rows[i].largest, (double)largest, 1e-12);
    cr_assert(rows[i].largest >= (double)largest * (1 - 1e-12));
    /* sixteen fp32 additions of numbers near 10, over a temperature from 0.25; some rows' are exact */
    cr_assert(rows[i].product_error >= 0 && rows[i].product_error < 2e-5);
    any_error |= rows[i].product_error > 0;
    cr_assert_float_eq(rows[i].yardstick_reference, rows[i].maximum + rows[i].log_sum, 2e-5);
  }
  cr_assert(any_error);
  destroy(f);
}

Test(oracle, forward_is_right_to_thirteen_digits) {
  check_forward(0, 1);
  check_forward(0, -0.75);
  check_forward(3, 1.5);
}

/* A score's gradient in nats of t, of a column but the target, with its probability times 1 + off. */
static long double other_dz(const long_problem *p, int row, int v, long double off) {
  long double logprob, entropy, top = -INFINITY, sum = 0;
  long_forward(p, row, &logprob, &entropy);
  for (int j = 0; j < p->vocab; j++) top = fmaxl(top, long_score(p, row, j));
  for (int j = 0; j < p->vocab; j++) sum += expl(long_score(p, row, j) - top);
  long double log_p = long_score(p, row, v) - top - logl(sum) + log1pl(off);
  return -expl(log_p) * (p->grad_logprob[row] + p->grad_entropy[row] * (log_p + entropy));
}

/* (dz² + (∂dz/∂log p)²) of one score, the latter by a central difference. */
static long double square_of_score(const long_problem *p, int row, int v) {
  long double x = p->scale * long_raw_score(p, row, v), tanh_x = p->softcap > 0 ? tanhl(x / p->softcap) : 0;
  long double slope = p->scale / p->temperature[row] * (1 - tanh_x * tanh_x), dz = other_dz(p, row, v, 0);
  long double moved = (other_dz(p, row, v, 1e-4L) - other_dz(p, row, v, -1e-4L)) / 2e-4L;
  if (v == p->target[row]) {
    dz += p->grad_logprob[row];
    moved = 0;
  }
  return slope * slope * (dz * dz + moved * moved);
}

static long double size_of(const long double *row) {
  long double sum = 0;
  for (int d = 0; d < DEPTH; d++) sum += row[d] * row[d];
  return sum;
}

static void check_squares(const long_problem *p, const double *hidden, const double *weight, const double *bias) {
  static long double of_row[N], of_column[VOCAB], plain[VOCAB];
  for (int i = 0; i < N; i++) of_row[i] = 0;
  for (int v = 0; v < VOCAB; v++) of_column[v] = plain[v] = 0;
  for (int i = 0; i < N; i++)
    for (int v = 0; v < VOCAB; v++) {
      long double square = square_of_score(p, i, v);
      of_row[i] += square * size_of(p->weight + v * DEPTH);
      of_column[v] += square * size_of(p->hidden + i * DEPTH);
      plain[v] += square;
    }
  for (int i = 0; i < N; i++) cr_assert_float_eq(hidden[i] / (double)of_row[i], 1, 1e-6);
  for (int v = 0; v < VOCAB; v++) cr_assert_float_eq(weight[v] / (double)of_column[v], 1, 1e-6);
  for (int v = 0; v < VOCAB; v++) cr_assert_float_eq(bias[v] / (double)plain[v], 1, 1e-6);
}

static void check_gradients(double softcap, double scale) {
  oracle_fixture *f = create(softcap, scale);
  oracle_row stats[N];
  static all_gradients got;
  evaluate(&f->problem, N, stats, &got);
  for (int i = 0; i < N * DEPTH; i++)
    cr_assert_float_eq(got.hidden[0][i], (double)long_derivative(&f->reference, f->reference.hidden + i), 1e-7);
  for (int i = 0; i < VOCAB * DEPTH; i++)
    cr_assert_float_eq(got.weight[0][i], (double)long_derivative(&f->reference, f->reference.weight + i), 1e-7);
  for (int v = 0; v < VOCAB; v++)
    cr_assert_float_eq(got.bias[0][v], (double)long_derivative(&f->reference, f->reference.bias + v), 1e-7);
  check_squares(&f->reference, got.squares[0], got.squares[1], got.squares[2]);
  destroy(f);
}

Test(oracle, gradients_match_central_differences) {
  check_gradients(0, 1);
  check_gradients(3, 1.5);
}

Test(oracle, the_yardstick_errs_as_bf16_does) {
  oracle_fixture *f = create(0, 1);
  oracle_row stats[N];
  static all_gradients got;
  evaluate(&f->problem, N, stats, &got);
  const double *exact = got.hidden[0], *yardstick = got.hidden[1];
  double error = 0, size = 0;
  for (int i = 0; i < N * DEPTH; i++) {
    error += (yardstick[i] - exact[i]) * (yardstick[i] - exact[i]);
    size += exact[i] * exact[i];
  }
  cr_assert(sqrt(error / size) > 0x1p-12 && sqrt(error / size) < 0x1p-8, "%g", sqrt(error / size));
  destroy(f);
}

Test(oracle, a_sample_of_rows_and_columns_is_part_of_the_whole) {
  oracle_fixture *f = create(0, 1);
  oracle_row all[N], some[2];
  static all_gradients whole, part;
  const int64_t rows[2] = {9, 2}, columns[3] = {28, 0, 13};
  const oracle_columns out = {part.weight[0], part.weight[1], part.squares[1],
                              part.bias[0],   part.bias[1],   part.squares[2]};
  evaluate(&f->problem, N, all, &whole);
  oracle_forward(&f->problem, rows, 2, some);
  for (int i = 0; i < 2; i++) cr_assert_eq(some[i].logprob, all[rows[i]].logprob);
  oracle_grad_columns(&f->problem, f->rows, all, N, columns, 3, &out);
  for (int i = 0; i < 3 * DEPTH; i++)
    cr_assert_eq(part.weight[0][i], whole.weight[0][columns[i / DEPTH] * DEPTH + i % DEPTH]);
  for (int i = 0; i < 3; i++) cr_assert_eq(part.bias[0][i], whole.bias[0][columns[i]]);
  for (int i = 0; i < 3; i++) cr_assert_eq(part.squares[1][i], whole.squares[1][columns[i]]);
  destroy(f);
}

Test(oracle, columns_of_minus_infinity_and_rows_of_nothing_else) {
  oracle_fixture *f = create(0, 1);
  for (int v = 0; v < VOCAB; v++)
    if (v % 2) f->reference.bias[v] = put(&f->bias[v], -INFINITY);
  f->target[0] = f->reference.target[0] = 4;
  oracle_row row;
  long double logprob, entropy;
  oracle_forward(&f->problem, f->rows, 1, &row);
  long_forward(&f->reference, 0, &logprob, &entropy);
  cr_assert_float_eq(row.logprob, (double)logprob, 1e-13);
  cr_assert_float_eq(row.entropy, (double)entropy, 1e-13);
  for (int v = 0; v < VOCAB; v++) put(&f->bias[v], -INFINITY);
  oracle_forward(&f->problem, f->rows, 1, &row);
  cr_assert(isnan(row.logprob) && isnan(row.entropy));
  destroy(f);
}

/* ---- targets ---- */

enum { TARGETS = 4 };

/* The row's own target; one that every second row has twice; one that is ignored but in row 0; and column 5. */
static void make_targets(const oracle_fixture *f, int64_t *target, double *g) {
  uint32_t state = 23;
  for (int i = 0; i < N; i++) {
    const int64_t own[TARGETS] = {f->target[i], i % 2 ? f->target[i] : (f->target[i] + 9) % VOCAB, i ? -100 : 7, 5};
    for (int k = 0; k < TARGETS; k++) {
      target[i * TARGETS + k] = own[k];
      g[i * TARGETS + k] = own[k] < 0 ? 0 : test_random(&state);
    }
  }
}

/* Gradients of one target alone, added to those of the others; the entropy's part comes with the first. */
static void add_target(const oracle_problem *all, int k, const double *logprob, all_gradients *sum) {
  static all_gradients own;
  oracle_problem one = *all;
  oracle_row stats[N];
  int64_t target[N];
  double g[N], zeros[N] = {0};
  for (int i = 0; i < N; i++) {
    int64_t id = all->target[i * TARGETS + k];
    target[i] = id < 0 ? 0 : id;
    g[i] = all->grad_logprob[i * TARGETS + k];
  }
  one.targets = 0;
  one.target = target;
  one.grad_logprob = g;
  if (k) one.grad_entropy = zeros;
  evaluate(&one, N, stats, &own);
  for (int i = 0; i < N; i++)
    cr_assert_eq(logprob[i * TARGETS + k], all->target[i * TARGETS + k] < 0 ? 0 : stats[i].logprob, "row %d", i);
  for (int i = 0; i < N * DEPTH; i++) sum->hidden[0][i] += own.hidden[0][i];
  for (int i = 0; i < VOCAB * DEPTH; i++) sum->weight[0][i] += own.weight[0][i];
  for (int v = 0; v < VOCAB; v++) sum->bias[0][v] += own.bias[0][v];
}

static void check_targets(double softcap, double scale) {
  oracle_fixture *f = create(softcap, scale);
  static all_gradients got, sum;
  int64_t target[N * TARGETS];
  double g[N * TARGETS], logprob[N * TARGETS];
  oracle_row stats[N];
  oracle_problem all = f->problem;
  memset(&sum, 0, sizeof sum);
  make_targets(f, target, g);
  all.targets = TARGETS;
  all.target = target;
  all.grad_logprob = g;
  evaluate(&all, N, stats, &got);
  cr_assert_eq(oracle_targets(&all, f->rows, stats, N, logprob), FLP_OK);
  for (int k = 0; k < TARGETS; k++) add_target(&all, k, logprob, &sum);
  for (int i = 0; i < N * DEPTH; i++) cr_assert_float_eq(got.hidden[0][i], sum.hidden[0][i], 1e-13);
  for (int i = 0; i < N * DEPTH; i++) cr_assert_float_eq(got.hidden[1][i], sum.hidden[0][i], 0.05);
  for (int i = 0; i < VOCAB * DEPTH; i++) cr_assert_float_eq(got.weight[0][i], sum.weight[0][i], 1e-13);
  for (int v = 0; v < VOCAB; v++) cr_assert_float_eq(got.bias[0][v], sum.bias[0][v], 1e-13);
  destroy(f);
}

Test(oracle, several_targets_are_so_many_problems_of_one) {
  check_targets(0, 1);
  check_targets(0, -0.75);
  check_targets(3, 1.5);
}

/* ---- lists ---- */

typedef struct listed {
  int64_t offsets[N + 1], columns[N * VOCAB];
} listed;

/* Lists of 1, 4, 7 ... columns with the target; the last has all. */
static void make_lists(const oracle_fixture *f, listed *lists) {
  int64_t count = 0;
  for (int i = 0; i < N; i++) {
    lists->offsets[i] = count;
    for (int64_t v = 0; v < VOCAB; v++)
      if (v == f->target[i] || (v * 11 + i * 5) % VOCAB < 3 * i || i == N - 1) lists->columns[count++] = v;
  }
  lists->offsets[N] = count;
}

/* The one row i over a head of the columns of its list alone. */
static oracle_problem restricted(const oracle_fixture *f, const listed *lists, int i, uint16_t *weight, uint16_t *bias,
                                 int64_t *target) {
  oracle_problem problem = f->problem;
  int64_t begin = lists->offsets[i], count = lists->offsets[i + 1] - begin;
  for (int64_t j = 0; j < count; j++) {
    int64_t column = lists->columns[begin + j];
    memcpy(weight + j * STRIDE, f->weight + column * STRIDE, STRIDE * sizeof *weight);
    bias[j] = f->bias[column];
    if (column == f->target[i]) *target = j;
  }
  problem.n = 1;
  problem.vocab = count;
  problem.hidden = f->hidden + i * STRIDE;
  problem.weight = weight;
  problem.bias = bias;
  problem.target = target;
  problem.temperature = f->temperature + i;
  problem.grad_logprob = f->g + i;
  problem.grad_entropy = f->e + i;
  return problem;
}

static void add_row(const oracle_fixture *f, const listed *lists, int i, oracle_row *stats, all_gradients *sum) {
  static all_gradients own;
  uint16_t weight[VOCAB * STRIDE], bias[VOCAB];
  int64_t target;
  oracle_problem problem = restricted(f, lists, i, weight, bias, &target);
  evaluate(&problem, 1, stats, &own);
  for (int by = 0; by < 2; by++) memcpy(sum->hidden[by] + i * DEPTH, own.hidden[by], DEPTH * sizeof(double));
  for (int64_t j = 0; j < problem.vocab; j++) {
    int64_t column = lists->columns[lists->offsets[i] + j];
    for (int d = 0; d < DEPTH; d++) sum->weight[0][column * DEPTH + d] += own.weight[0][j * DEPTH + d];
    sum->bias[0][column] += own.bias[0][j];
    sum->squares[1][column] += own.squares[1][j];
    sum->squares[2][column] += own.squares[2][j];
  }
}

static void check_lists(double softcap, double scale) {
  oracle_fixture *f = create(softcap, scale);
  static listed lists;
  static all_gradients got, sum;
  oracle_row stats[N], own[N];
  memset(&sum, 0, sizeof sum);
  make_lists(f, &lists);
  cr_assert_eq(lists.offsets[1], 1);
  for (int i = 0; i < N; i++) add_row(f, &lists, i, &own[i], &sum);
  f->problem.list_offsets = lists.offsets;
  f->problem.list_columns = lists.columns;
  evaluate(&f->problem, N, stats, &got);
  for (int i = 0; i < N; i++) {
    cr_assert_geq(stats[i].product_error, own[i].product_error, "of all columns");
    own[i].product_error = stats[i].product_error;
    cr_assert_eq(memcmp(&stats[i], &own[i], sizeof own[i]), 0, "row %d", i);
  }
  cr_assert_eq(stats[0].logprob, 0);
  cr_assert_eq(stats[0].entropy, 0);
  for (int i = 0; i < N * DEPTH; i++) {
    cr_assert_float_eq(got.hidden[0][i], sum.hidden[0][i], 1e-14);
    cr_assert_float_eq(got.hidden[1][i], sum.hidden[1][i], 1e-14);
  }
  for (int i = 0; i < VOCAB * DEPTH; i++) cr_assert_float_eq(got.weight[0][i], sum.weight[0][i], 1e-14);
  for (int v = 0; v < VOCAB; v++) {
    cr_assert_float_eq(got.bias[0][v], sum.bias[0][v], 1e-14);
    cr_assert_float_eq(got.squares[1][v], sum.squares[1][v], 1e-12);
    cr_assert_float_eq(got.squares[2][v], sum.squares[2][v], 1e-12);
  }
  destroy(f);
}

Test(oracle, a_list_gives_what_a_head_of_its_columns_alone_gives) {
  check_lists(0, 1);
  check_lists(0, -0.75);
  check_lists(3, 1.5);
}

Test(oracle, a_row_that_is_not_a_number_adds_nothing_to_columns_where_it_has_a_list) {
  oracle_fixture *f = create(0, 1);
  static listed lists;
  static all_gradients without, with;
  oracle_row stats[N];
  make_lists(f, &lists);
  f->problem.list_offsets = lists.offsets;
  f->problem.list_columns = lists.columns;
  put(&f->hidden[(N - 1) * STRIDE + 3], NAN);
  evaluate(&f->problem, N - 1, stats, &without);
  evaluate(&f->problem, N, stats, &with);
  cr_assert(isnan(stats[N - 1].logprob));
  cr_assert_arr_eq(without.weight[0], with.weight[0], sizeof with.weight[0]);
  cr_assert_arr_eq(without.bias[0], with.bias[0], sizeof with.bias[0]);
  destroy(f);
}
