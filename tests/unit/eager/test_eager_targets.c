/* test_eager_targets.c: several targets of a row on the eager rung are so many calls of one target: their values are the
 * same bits, their gradients add up. Ids that stand twice, that are ignored or no ids, row lists, vocab shards. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/kernel/abi.h"
#include "tests/unit/support/eager_case.h"

enum { ROWS = 70, VOCAB = 300, DEPTH = 24 };

static flp_spec make_spec(int targets) {
  flp_spec spec = FLP_SPEC_INIT;
  spec.dtype = FLP_DTYPE_FP32;
  spec.vocab = VOCAB;
  spec.hidden = DEPTH;
  spec.has_bias = 1;
  spec.entropy = FLP_ENTROPY_BACKWARD;
  spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS;
  spec.targets = targets;
  return spec;
}

static int64_t target_at(const eager_case *c, int64_t row, int64_t k) {
  return ((const int64_t *)c->target)[row * c->spec.targets + k];
}

/* Random ids, some of which stand twice, some at the ends, some ignored; every seventh row has nothing but ignored ids. */
static void draw_targets(eager_case *c, uint32_t seed) {
  uint32_t state = seed;
  int64_t count = c->spec.targets;
  for (int64_t row = 0; row < c->args.n; row++)
    for (int64_t k = 0; k < count; k++) {
      double u = 0.5 + 0.4999 * eager_case_random(&state);
      int64_t id = (int64_t)(u * u * VOCAB);
      if (k == 1 && row % 2) id = target_at(c, row, 0);
      if (k == 0 && row % 3 == 0) id = row % 2 ? 0 : VOCAB - 1;
      if ((row + k) % 5 == 0 || row % 7 == 3) id = -100;
      eager_case_set_targets(c, row, k, id);
      c->grad_logprob[row * count + k] = (row + k) % 5 == 0 ? NAN : (float)eager_case_random(&state);
    }
}

/* A case of one target a row with the operands of c and its targets k. */
static void make_single(const eager_case *c, flp_spec spec, uint32_t seed, int64_t k, eager_case *out) {
  spec.targets = 0;
  eager_case_create(out, &spec, c->args.n, seed);
  out->args.scale = c->args.scale;
  for (int64_t row = 0; row < c->args.n; row++) {
    eager_case_set_target(out, row, target_at(c, row, k));
    out->grad_logprob[row] = c->grad_logprob[row * c->spec.targets + k];
    out->grad_entropy[row] = 0;
  }
}

typedef struct gradients {
  double hidden[ROWS * DEPTH], weight[VOCAB * DEPTH], bias[VOCAB];
} gradients;

static void add_gradients(const eager_case *c, gradients *sum) {
  for (int64_t i = 0; i < c->args.n * DEPTH; i++) sum->hidden[i] += eager_case_grad_hidden(c, i / DEPTH, i % DEPTH);
  for (int64_t i = 0; i < VOCAB * DEPTH; i++) sum->weight[i] += eager_case_grad_weight(c, i / DEPTH, i % DEPTH);
  for (int64_t v = 0; v < VOCAB; v++) sum->bias[v] += eager_case_grad_bias(c, v);
}

static void expect_sums(const char *what, const double *got, const double *wanted, int64_t count, double tolerance) {
  for (int64_t i = 0; i < count; i++)
    cr_assert(fabs(got[i] - wanted[i]) <= tolerance * fmax(1, fabs(wanted[i])), "%s[%ld] is %.9g, the sum is %.9g",
              what, (long)i, got[i], wanted[i]);
}

/* Values of all targets against those of calls of one, and entropy and stats of the rows that both compute. */
static void expect_values(const eager_case *c, const eager_case *single, int64_t k) {
  int64_t count = c->spec.targets;
  for (int64_t row = 0; row < c->args.n; row++) {
    cr_assert_eq(c->logprob[row * count + k], single->logprob[row], "row %ld, target %ld", (long)row, (long)k);
    if (target_at(c, row, k) == -100) continue;
    cr_assert_eq(c->entropy[row], single->entropy[row]);
    cr_assert_eq(c->stats[4 * row], single->stats[4 * row]);
    cr_assert_eq(c->stats[4 * row + 1], single->stats[4 * row + 1]);
    cr_assert_geq(c->stats[4 * row + 2], single->logprob[row], "the largest of the row's");
    cr_assert_eq(c->stats[4 * row + 3], single->stats[4 * row + 3]);
  }
}

static void compare(flp_spec spec, float scale, uint32_t seed) {
  eager_case c, single;
  eager_case_create(&c, &spec, ROWS, seed);
  draw_targets(&c, seed);
  c.args.scale = scale;
  gradients *sum = calloc(1, sizeof *sum), *all = calloc(1, sizeof *all);
  eager_case_forward(&c);
  for (int64_t k = 0; k < spec.targets; k++) {
    make_single(&c, spec, seed, k, &single);
    eager_case_forward(&single);
    expect_values(&c, &single, k);
    for (int64_t row = 0; k == 0 && row < ROWS; row++) single.grad_entropy[row] = c.grad_entropy[row];
    eager_case_backward(&single);
    add_gradients(&single, sum);
    eager_case_destroy(&single);
  }
  /* a call of one target leaves a row out whose target is ignored, and its entropy with it */
  for (int64_t row = 0; row < ROWS; row++)
    if (target_at(&c, row, 0) == -100) c.grad_entropy[row] = 0;
  eager_case_backward(&c);
  add_gradients(&c, all);
  double tolerance = 1e-6 * spec.targets * (double)scale;
  expect_sums("grad_hidden", all->hidden, sum->hidden, ROWS * DEPTH, tolerance);
  expect_sums("grad_weight", all->weight, sum->weight, VOCAB * DEPTH, tolerance);
  expect_sums("grad_bias", all->bias, sum->bias, VOCAB, tolerance);
  cr_expect_eq(c.bad_rows, 0);
  eager_case_destroy(&c);
  free(sum);
  free(all);
}

Test(eager_targets, values_and_gradients_are_those_of_calls_of_one_target) {
  static const int counts[] = {2, 3, 20, 64};
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) compare(make_spec(counts[i]), 1, 11 + (uint32_t)i);
}

Test(eager_targets, softcap_temperatures_and_scores_that_are_sharp) {
  flp_spec spec = make_spec(7);
  spec.softcap = 3;
  spec.per_row_temperature = 1;
  compare(spec, 1, 21);
  spec.softcap = 0;
  compare(spec, 40, 22); /* the likeliest column has nearly all of a row */
}

Test(eager_targets, every_column_of_a_row_may_be_a_target) {
  flp_spec spec = make_spec(VOCAB);
  eager_case c;
  eager_case_create(&c, &spec, 3, 31);
  for (int64_t row = 0; row < 3; row++)
    for (int64_t k = 0; k < VOCAB; k++) {
      eager_case_set_targets(&c, row, k, row == 1 ? 17 : (k + row) % VOCAB);
      c.grad_logprob[row * VOCAB + k] = 1;
    }
  eager_case_forward(&c);
  for (int64_t row = 0; row < 3; row += 2) {
    double mass = 0;
    for (int64_t k = 0; k < VOCAB; k++) mass += exp((double)c.logprob[row * VOCAB + k]);
    cr_expect_float_eq(mass, 1, 1e-5);
  }
  for (int64_t k = 0; k < VOCAB; k++) cr_expect_eq(c.logprob[VOCAB + k], c.logprob[VOCAB]);
  eager_case_destroy(&c);
}

/* Rows 1 and 3 hold an id that is none; row 2 nothing but ignored ids. */
Test(eager_targets, an_id_outside_the_vocabulary_makes_its_row_nan_and_is_counted_once) {
  flp_spec spec = make_spec(4);
  eager_case c, clean;
  eager_case_create(&c, &spec, 5, 41);
  eager_case_create(&clean, &spec, 5, 41);
  for (int64_t at = 0; at < 20; at++) {
    eager_case_set_targets(&c, at / 4, at % 4, at);
    eager_case_set_targets(&clean, at / 4, at % 4, at / 4 % 2 || at / 4 == 2 ? -100 : at);
    c.grad_logprob[at] = clean.grad_logprob[at] = 0.5f;
  }
  eager_case_set_targets(&c, 1, 2, VOCAB);
  eager_case_set_targets(&c, 3, 0, -1);
  eager_case_set_targets(&c, 3, 1, INT64_MAX);
  eager_case_set_targets(&c, 3, 2, -100);
  for (int64_t k = 0; k < 4; k++) eager_case_set_targets(&c, 2, k, -100);
  eager_case_forward(&c);
  cr_expect_eq(c.bad_rows, 2);
  eager_case_backward(&c);
  cr_expect_eq(c.bad_rows, 4);
  eager_case_forward(&clean);
  eager_case_backward(&clean);
  for (int64_t row = 0; row < 5; row++) {
    int bad = row == 1 || row == 3;
    for (int64_t k = 0; k < 4; k++) cr_expect_eq(!!isnan(c.logprob[4 * row + k]), bad);
    for (int64_t k = 0; k < 4; k++) cr_expect_eq(!!isnan(c.stats[4 * row + k]), bad);
    cr_expect_eq(!!isnan(c.entropy[row]), bad);
    for (int64_t d = 0; d < DEPTH; d++) cr_expect_eq(!!isnan(eager_case_grad_hidden(&c, row, d)), bad);
  }
  for (int64_t k = 0; k < 4; k++) cr_expect_eq(c.logprob[8 + k], 0);
  cr_expect_eq(c.entropy[2], 0);
  for (int64_t i = 0; i < VOCAB * DEPTH; i++)
    cr_expect_eq(eager_case_grad_weight(&c, i / DEPTH, i % DEPTH),
                 eager_case_grad_weight(&clean, i / DEPTH, i % DEPTH));
  eager_case_destroy(&c);
  eager_case_destroy(&clean);
}

/* Ignored entries are 0 beside targets that are NaN, in a row whose scores are. */
Test(eager_targets, a_row_of_nan_scores_has_nan_for_each_target_that_is_not_ignored) {
  flp_spec spec = make_spec(2);
  eager_case c;
  eager_case_create(&c, &spec, 2, 51);
  for (int64_t at = 0; at < 4; at++) eager_case_set_targets(&c, at / 2, at % 2, at == 1 ? -100 : at);
  eager_case_set_hidden(&c, 0, 3, NAN);
  eager_case_forward(&c);
  cr_expect(isnan(c.logprob[0]) && c.logprob[1] == 0 && isnan(c.entropy[0]) && isnan(c.stats[2]));
  cr_expect(!isnan(c.logprob[2]) && !isnan(c.logprob[3]) && c.stats[6] == fmaxf(c.logprob[2], c.logprob[3]));
  eager_case_destroy(&c);
}

Test(eager_targets, rows_without_a_gradient_are_left_out_and_row_lists_hold) {
  flp_spec spec = make_spec(3);
  eager_case c;
  const int32_t rows[] = {0, 2, 3};
  eager_case_create(&c, &spec, 5, 61);
  for (int64_t at = 0; at < 15; at++) {
    eager_case_set_targets(&c, at / 3, at % 3, 2 * at);
    c.grad_logprob[at] = at / 3 == 2 ? 0 : 1;
  }
  memset(c.grad_entropy, 0, 5 * sizeof(float));
  eager_case_set_hidden(&c, 2, 0, NAN); /* of a row without a gradient: reaches no sum */
  c.args.rows = rows;
  c.args.row_count = 3;
  eager_case_forward(&c);
  eager_case_backward(&c);
  for (int64_t row = 0; row < 5; row++) {
    int computed = row == 0 || row == 3;
    for (int64_t k = 0; k < 3 && row != 2; k++) cr_expect_eq(c.logprob[3 * row + k] != 0, computed);
    for (int64_t d = 0; d < DEPTH; d++) cr_expect_eq(eager_case_grad_hidden(&c, row, d) != 0, computed);
  }
  for (int64_t v = 0; v < VOCAB; v++) cr_expect(!isnan(eager_case_grad_bias(&c, v)));
  eager_case_destroy(&c);
}

/* Two shards of 100 and 200 columns, merged, against the whole: forward and both gradients. */
Test(eager_targets, shards_of_a_vocabulary_give_what_the_whole_gives) {
  enum { COUNT = 5, FIRST = 100 };
  flp_spec spec = make_spec(COUNT);
  eager_case whole;
  eager_case_create(&whole, &spec, ROWS, 71);
  draw_targets(&whole, 71);
  eager_case_forward(&whole);
  float *partial = aligned_alloc(16, sizeof(float) * 8 * ROWS), *raw = calloc(2 * ROWS * COUNT, sizeof *raw);
  flp_args args[2];
  for (int s = 0; s < 2; s++) {
    args[s] = whole.args;
    args[s].weight = (const float *)whole.weight + (s ? FIRST * whole.args.weight_stride : 0);
    args[s].bias = (const float *)whole.bias + (s ? FIRST : 0);
    args[s].vocab_offset = s ? FIRST : 0;
    args[s].vocab_valid = s ? VOCAB - FIRST : FIRST;
    args[s].vocab_total = VOCAB;
    args[s].partial = partial + 4 * ROWS * s;
    args[s].partial_targets = raw + (int64_t)ROWS * COUNT * s;
    cr_assert_eq(eager_case_run(&whole, &args[s]), FLP_OK, "%s", flp_error_detail());
  }
  for (int64_t at = 0; at < ROWS * COUNT; at++) {
    int64_t id = target_at(&whole, at / COUNT, at % COUNT);
    int left_out = at / COUNT % 7 == 3 || id == -100;
    cr_expect_eq(raw[at] != -INFINITY, !left_out && id < FIRST);
    cr_expect_eq(raw[ROWS * COUNT + at] != -INFINITY, !left_out && id >= FIRST);
  }
  float *logprob = calloc(ROWS * COUNT, sizeof *logprob);
  flp_args merged = whole.args;
  merged.pass = FLP_PASS_COMBINE;
  merged.vocab_total = VOCAB;
  merged.partial = partial;
  merged.partial_targets = raw;
  merged.shard_count = 2;
  merged.logprob = logprob;
  cr_assert_eq(eager_case_run(&whole, &merged), FLP_OK, "%s", flp_error_detail());
  for (int64_t at = 0; at < ROWS * COUNT; at++)
    cr_expect_float_eq(logprob[at], whole.logprob[at], 2e-6, "%ld", (long)at);
  eager_case_backward(&whole);
  float *grad_hidden = calloc(ROWS * DEPTH, sizeof *grad_hidden), *grad_weight = calloc(VOCAB * DEPTH, sizeof(float));
  double *sum = calloc(ROWS * DEPTH, sizeof *sum);
  for (int s = 0; s < 2; s++) {
    flp_args backward = args[s];
    backward.pass = FLP_PASS_BACKWARD;
    backward.partial = backward.partial_targets = NULL;
    backward.stats = whole.stats;
    backward.grad_logprob = whole.grad_logprob;
    backward.grad_entropy = whole.grad_entropy;
    backward.grad_hidden = grad_hidden;
    backward.grad_weight = grad_weight; /* zeros behind the shard's columns */
    backward.grad_bias = whole.grad_bias;
    backward.grad_hidden_stride = backward.grad_weight_stride = DEPTH;
    cr_assert_eq(eager_case_run(&whole, &backward), FLP_OK, "%s", flp_error_detail());
    for (int64_t i = 0; i < ROWS * DEPTH; i++) sum[i] += (double)grad_hidden[i];
    for (int64_t i = 0; i < args[s].vocab_valid * DEPTH; i++)
      cr_expect_float_eq(grad_weight[i], eager_case_grad_weight(&whole, args[s].vocab_offset + i / DEPTH, i % DEPTH),
                         1e-5);
  }
  for (int64_t i = 0; i < ROWS * DEPTH; i++)
    cr_expect_float_eq(sum[i], eager_case_grad_hidden(&whole, i / DEPTH, i % DEPTH), 1e-5);
  void *const blocks[] = {partial, raw, logprob, grad_hidden, grad_weight, sum};
  for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) free(blocks[i]);
  eager_case_destroy(&whole);
}

/* One target asked for by number is one target: the same sizes and bits. */
Test(eager_targets, one_target_is_what_it_was) {
  flp_spec one = make_spec(1), usual = make_spec(0);
  eager_case a, b;
  flp_layout first = FLP_LAYOUT_INIT, second = FLP_LAYOUT_INIT;
  eager_case_create(&a, &one, ROWS, 81);
  eager_case_create(&b, &usual, ROWS, 81);
  eager_case_forward(&a);
  eager_case_forward(&b);
  cr_expect_arr_eq(a.logprob, b.logprob, ROWS * sizeof(float));
  cr_expect_arr_eq(a.stats, b.stats, 4 * ROWS * sizeof(float));
  eager_case_backward(&a);
  eager_case_backward(&b);
  cr_expect_arr_eq(a.grad_weight, b.grad_weight, (size_t)(VOCAB * a.args.grad_weight_stride) * sizeof(float));
  cr_assert_eq(flp_eager_layout(&a.spec, FLP_PASS_FORWARD, ROWS, 1 << 28, 1, &first), FLP_OK);
  cr_assert_eq(flp_eager_layout(&b.spec, FLP_PASS_FORWARD, ROWS, 1 << 28, 1, &second), FLP_OK);
  cr_expect_eq(first.bytes, second.bytes);
  eager_case_destroy(&a);
  eager_case_destroy(&b);
}

/* Raw scores of the targets of one panel are all that several targets add. */
Test(eager_targets, memory_grows_by_targets_of_a_panel_never_by_columns) {
  flp_spec one = make_spec(1), many = make_spec(FLP_TARGETS_MAX), resolved;
  flp_layout first = FLP_LAYOUT_INIT, second = FLP_LAYOUT_INIT;
  const flp_pass passes[] = {FLP_PASS_FORWARD, FLP_PASS_BACKWARD, FLP_PASS_COMBINE};
  for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++) {
    resolved = one;
    cr_assert_eq(flp_eager_layout(&resolved, passes[i], 4096, 1 << 28, 1, &first), FLP_OK);
    cr_assert_eq(flp_eager_layout(&many, passes[i], 4096, 1 << 28, 1, &second), FLP_OK);
    uint64_t more = passes[i] == FLP_PASS_FORWARD ? 512 * sizeof(double) * (FLP_TARGETS_MAX - 1) : 0;
    cr_expect_eq(second.bytes, first.bytes + more, "pass %d", (int)passes[i]);
  }
}
