/* test_check_metrics.c: the judgement of `flpgen check`: right results pass, results with a planted fault fail. */
#include <criterion/criterion.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "runtime/base/half.h"
#include "tests/unit/support/check_case.h"

Test(check_metrics, ulp_is_the_distance_to_the_next_float) {
  cr_assert_eq(check_ulp(1.0), 0x1p-23);
  cr_assert_eq(check_ulp(-1.5), 0x1p-23);
  cr_assert_eq(check_ulp(10000), 0x1p-10);
}

static check_metric one_row(double got, double wanted, double allowed) {
  const double unit = 0x1p-23;
  return check_metric_rows(&got, &wanted, &unit, &allowed, 1);
}

Test(check_metrics, rows_pass_up_to_their_allowance) {
  check_metric at = one_row(-2.0f + 4 * 0x1p-23f, -2.0, 4 * 0x1p-23),
               above = one_row(-2.0f + 5 * 0x1p-23f, -2.0, 4 * 0x1p-23);
  cr_assert(at.pass && at.max_ulp == 4 && at.bound == 4);
  cr_assert(!above.pass && above.max_ulp == 5);
}

Test(check_metrics, nan_and_infinity_must_be_met) {
  cr_assert(one_row(NAN, NAN, 0).pass);
  cr_assert(!one_row(0, NAN, 1e9).pass);
  cr_assert(!one_row(NAN, 0, 1e9).pass);
  cr_assert(!one_row(-INFINITY, -5, 1e9).pass);
  cr_assert(one_row(-INFINITY, -INFINITY, 0).pass);
  cr_assert(!one_row(-1e30f, -INFINITY, 0).pass);
}

Test(check_metrics, gradients_are_judged_by_the_yardstick) {
  const double wanted[4] = {1, -2, 3, 0}, yardstick[4] = {1.01, -2, 3, 0};
  double got[4] = {1, -2, 3.014, 0};
  cr_assert(check_metric_gradient(got, wanted, yardstick, 4, 1.5, 0).pass); /* 0.014 <= 1.5 * 0.01 */
  got[2] = 3.016;
  check_metric metric = check_metric_gradient(got, wanted, yardstick, 4, 1.5, 0);
  cr_assert(!metric.pass);
  cr_assert_float_eq(metric.rel_l2, 0.016 / sqrt(14), 1e-12);
  got[2] = NAN;
  cr_assert(!check_metric_gradient(got, wanted, yardstick, 4, 1.5, 1).pass);
  const double zeros[4] = {0}, tiny[4] = {0, 1e-30, 0, 0};
  cr_assert(check_metric_gradient(zeros, zeros, zeros, 4, 1.5, 0.1).pass);
  cr_assert(!check_metric_gradient(tiny, zeros, zeros, 4, 1.5, 0.1).pass);
  const double nan_wanted[4] = {NAN, NAN, NAN, NAN};
  cr_assert(check_metric_gradient(nan_wanted, nan_wanted, zeros, 4, 1.5, 0).pass);
  cr_assert(!check_metric_gradient(zeros, nan_wanted, zeros, 4, 1.5, 0).pass);
}

Test(check_metrics, what_kernels_flush_is_no_error) {
  const double wanted[] = {1e-86, -3e-300}, yardstick[] = {0, 0}, got[] = {1.4e-45, 0}, wrong[] = {1e-37, 0};
  cr_expect(check_metric_gradient(got, wanted, yardstick, 2, 1.5, 0).pass);
  cr_expect_not(check_metric_gradient(wrong, wanted, yardstick, 2, 1.5, 0).pass);
}

Test(check_metrics, a_share_is_the_worst_error_over_what_is_allowed_there) {
  const double wanted[] = {-2, -3, 0}, unit[] = {1, 1, 1}, allowed[] = {8, 2, 0};
  check_metric metric = check_metric_rows((double[]){-6, -4.5, 0}, wanted, unit, allowed, 3);
  cr_expect(metric.pass && metric.share == 0.75 && metric.bound == 2 && metric.max_ulp == 4);
  metric = check_metric_rows((double[]){-6, -4.5, 0.5}, wanted, unit, allowed, 3);
  cr_expect(!metric.pass && metric.share == 1.5 && metric.bound == 0, "nothing is allowed: 1 and its ulps");
  cr_expect(isinf(one_row(NAN, 0, 1e9).share) && isinf(one_row(0, NAN, 1e9).share));
  cr_expect(one_row(-2, -2, 0).share == 0 && one_row(NAN, NAN, 0).share == 0);
  cr_expect_float_eq(check_metric_tensor((double[]){1, 2.5}, (double[]){1, 2}, 2, 2).share, 0.25, 1e-12);
  cr_expect(check_metric_bits("abc", "abd", 3).share == 2 && check_metric_bits("abc", "abc", 3).share == 0);
}

/* 1e-60 is what exact arithmetic leaves of a gradient at a probability of 1; fp32 rounds about 1e-9. */
Test(check_metrics, of_a_zero_reference_errors_are_relative_to_what_is_allowed) {
  const double zeros[] = {0, 0}, tiny[] = {1e-60, -1e-60}, yardstick[] = {1e-9, 0};
  const double *const references[] = {zeros, tiny};
  for (int i = 0; i < 2; i++) {
    check_metric good = check_metric_gradient((double[]){0, 6e-10}, references[i], yardstick, 2, 1.5, 0x1p-12);
    cr_expect(good.pass && good.bound == 1 && good.rel_l2 == good.share && good.cosine == 1);
    cr_expect_float_eq(good.share, 0.4, 1e-12);
    check_metric bad = check_metric_gradient((double[]){0, 3e-9}, references[i], yardstick, 2, 1.5, 0x1p-12);
    cr_expect(!bad.pass && bad.cosine == 0);
    cr_expect_float_eq(bad.rel_l2, 2, 1e-12);
  }
  check_metric none = check_metric_gradient((double[]){1e-30, 0}, zeros, zeros, 2, 1.5, 0.1);
  cr_expect(!none.pass && none.share > 1 && isfinite(none.rel_l2), "the least normal number is all that is allowed");
  double allowed = 4 * 0x1p-23, zero = 0, unit = 0x1p-23, got = 0x1p-23;
  check_metric row = check_metric_rows(&got, &zero, &unit, &allowed, 1);
  cr_expect(row.pass && row.rel_l2 == 0.25 && row.cosine == 1);
}

Test(check_metrics, bits_count_bytes_that_differ) {
  float a[3] = {1, 2, 3}, b[3] = {1, 2, 3};
  cr_assert(check_metric_bits(a, b, sizeof a).pass);
  b[1] = nextafterf(2, 3);
  check_metric metric = check_metric_bits(a, b, sizeof a);
  cr_assert(!metric.pass && metric.max_ulp == 1);
}

/* ---- whole cases with planted faults ---- */

static check_case whole_case(flp_dtype dtype, int64_t n, int64_t vocab, int64_t hidden) {
  check_case c = check_case_default(dtype, n, vocab, hidden);
  c.spec.entropy = FLP_ENTROPY_BACKWARD;
  c.spec.has_bias = 1;
  c.spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT | FLP_GRAD_BIAS;
  return c;
}

/* loss: of a step; NULL for forward and backward */
static void create(check_fixture *f, flp_dtype dtype, check_rows rows, const char *loss) {
  check_case c = whole_case(dtype, 40, 300, 32);
  c.rows = rows;
  c.padding = 8;
  if (loss) cr_assert_eq(cli_loss_keep(loss, &c.spec), FLP_OK, "%s", flp_error_detail());
  check_fixture_open(f, &c, loss != NULL);
}

Test(check_compare, right_results_pass) {
  static const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32, FLP_DTYPE_BF16};
  for (int i = 0; i < 4; i++) {
    check_fixture f;
    create(&f, dtypes[i], CHECK_ROWS_MASKED, i < 3 ? NULL : "grpo+k3+entropy");
    EXPECT_FAILING(&f, "");
    cr_expect_geq(f.report.count, 5);
    check_fixture_close(&f);
  }
}

#define FIELD(name) offsetof(call_result, name), #name

/* Of rows of fp32. In row 1 a masked or a bad one, and none of a list. */
static const struct {
  flp_dtype dtype;
  check_rows rows;
  const char *loss;
  size_t field;
  const char *name;
  int at;
  float factor, value; /* factor 0: the value is set */
  const char *output;  /* NULL: the field's own */
} faults[] = {
    {FLP_DTYPE_BF16, CHECK_ROWS_ALL, NULL, FIELD(logprob), 17, 1.0001f, 0, NULL},
    {FLP_DTYPE_BF16, CHECK_ROWS_MASKED, NULL, FIELD(logprob), 1, 0, 1e-9f, NULL}, /* 1 would be within 4 ulp of it */
    {FLP_DTYPE_BF16, CHECK_ROWS_LIST, NULL, FIELD(logprob), 1, 0, -1, NULL},
    {FLP_DTYPE_BF16, CHECK_ROWS_ALL, NULL, FIELD(entropy), 39, 0, NAN, NULL},
    {FLP_DTYPE_FP32, CHECK_ROWS_BAD, NULL, FIELD(entropy), 1, 0, 0, NULL},
    {FLP_DTYPE_BF16, CHECK_ROWS_MASKED, "grpo+k3", FIELD(loss), 17, 1.00001f, 0, NULL},
    {FLP_DTYPE_BF16, CHECK_ROWS_MASKED, "grpo+k3", FIELD(loss), 1, 0, 1e-6f, NULL},
    {FLP_DTYPE_FP32, CHECK_ROWS_BAD, "ppo", FIELD(metrics), 40, 0, 1, NULL}, /* of a good row; the bad ones are NaN */
    /* one bit, far within what the oracle allows */
    {FLP_DTYPE_BF16, CHECK_ROWS_ALL, "nll", FIELD(entropy), 3, 1 - 0x1p-24f, 0, "entropy bits"},
};

Test(check_compare, a_number_that_is_off_fails) {
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
    check_fixture f;
    create(&f, faults[i].dtype, faults[i].rows, faults[i].loss);
    if (faults[i].rows == CHECK_ROWS_LIST) cr_assert_eq(f.truth.row_count, 14); /* 39, 36, ..., 0 */
    EXPECT_FAILING(&f, "");
    float *x = *(float **)(void *)((char *)&f.result + faults[i].field) + faults[i].at;
    *x = faults[i].factor > 0 ? *x * faults[i].factor : faults[i].value;
    EXPECT_FAILING(&f, faults[i].output ? faults[i].output : faults[i].name);
    check_fixture_close(&f);
  }
}

/* Multiplies rows of a bf16 matrix. */
static void scale_rows(const check_fixture *f, void *matrix, int64_t first, int64_t count, float factor) {
  for (int64_t row = first; row < first + count; row++) {
    uint16_t *bits = (uint16_t *)matrix + row * f->problem.stride;
    for (int d = 0; d < 32; d++) bits[d] = flp_half_to_bf16(factor * flp_half_from_bf16(bits[d]));
  }
}

Test(check_compare, gradients_that_are_off_fail) {
  check_fixture f;
  create(&f, FLP_DTYPE_BF16, CHECK_ROWS_ALL, NULL);
  scale_rows(&f, f.result.grad_hidden, 5, 1, 2);
  EXPECT_FAILING(&f, "grad_hidden");
  scale_rows(&f, f.result.grad_hidden, 5, 1, 0.5f);
  EXPECT_FAILING(&f, "");
  scale_rows(&f, f.result.grad_hidden, 0, 40, 1.01f);
  EXPECT_FAILING(&f, "grad_hidden");
  check_fixture_run(&f);
  scale_rows(&f, f.result.grad_weight, f.problem.target_id[3], 1, 0);
  EXPECT_FAILING(&f, "grad_weight");
  check_fixture_run(&f);
  uint16_t *bias = f.result.grad_bias;
  memmove(bias + 1, bias, 299 * sizeof *bias); /* of another column */
  EXPECT_FAILING(&f, "grad_bias");
  check_fixture_run(&f);
  f.result.overrun = "workspace";
  EXPECT_FAILING(&f, "buffers");
  check_fixture_close(&f);
  create(&f, FLP_DTYPE_BF16, CHECK_ROWS_ALL, "grpo+k3");
  scale_rows(&f, f.result.grad_hidden, 0, 40, 1.01f);
  EXPECT_FAILING(&f, "grad_hidden");
  check_fixture_close(&f);
  create(&f, FLP_DTYPE_BF16, CHECK_ROWS_MASKED, NULL);
  ((uint16_t *)f.result.grad_hidden)[1 * f.problem.stride + 30] = flp_half_to_bf16(1e-20f);
  EXPECT_FAILING(&f, "grad_hidden");
  check_fixture_close(&f);
}

Test(check_compare, bad_rows_that_are_not_reported_fail) {
  check_fixture f;
  create(&f, FLP_DTYPE_BF16, CHECK_ROWS_BAD, NULL);
  cr_assert(f.result.data_error);
  f.result.data_error = 0;
  EXPECT_FAILING(&f, "error word");
  check_fixture_close(&f);
}

/* dz of the target and of the other column of two, as save and stream modes form them: the other from p·2^k, an
 * exponential relative to some reference, in bf16. */
static void kept_dz(const check_fixture *f, int64_t row, double out[2]) {
  const oracle_problem *o = &f->problem.oracle;
  const oracle_row *truth = &f->truth.work_truth[row];
  double g = o->grad_logprob[row], e = o->grad_entropy[row], factor = o->scale / o->temperature[row];
  double reference = 0.37 + 0.11 * (double)(row % 7), log_y = truth->logprob;
  double kept = oracle_round(FLP_DTYPE_BF16, -expm1(log_y) * exp(reference)), log_p = log(kept) - reference;
  out[0] = oracle_round(FLP_DTYPE_BF16, factor * (-g * expm1(log_y) - e * exp(log_y) * (log_y + truth->entropy)));
  out[1] = oracle_round(FLP_DTYPE_BF16, -factor * exp(log_p) * (g + e * (log_p + truth->entropy)));
}

enum { NO_FAULT, MISSING_ROW, OTHER_TARGET, TWICE };

/* The bias gradient that save and stream modes would leave, with a fault in the row of the largest dz. */
static void put_kept_bias(check_fixture *f, int fault) {
  double sums[2] = {0}, dz[2], largest = 0, worst[2] = {0};
  int64_t at = 0;
  for (int64_t row = 0; row < f->problem.c.n; row++) {
    int64_t target = f->problem.target_id[row];
    kept_dz(f, row, dz);
    sums[target] += dz[0];
    sums[1 - target] += dz[1];
    if (fabs(dz[0]) <= largest) continue;
    largest = fabs(dz[0]);
    at = target;
    memcpy(worst, dz, sizeof worst);
  }
  double swapped = fault == OTHER_TARGET ? 1 : 0;
  for (int v = 0; v < 2 && (fault == MISSING_ROW || fault == OTHER_TARGET); v++)
    sums[v] += swapped * worst[v == at] - worst[v != at];
  for (int v = 0; v < 2; v++)
    ((uint16_t *)f->result.grad_bias)[v] = flp_half_to_bf16((float)(sums[v] * (fault == TWICE ? 2 : 1)));
}

/* Two columns, whose gradients are sums that cancel, and recompute mode's beside them. On some of these draws the yardstick
 * and recompute mode are right by luck. */
Test(check_compare, sums_that_cancel_may_err_as_saved_exponentials_round) {
  for (uint64_t seed = 1; seed <= 32; seed++) {
    check_fixture f;
    check_case c = whole_case(FLP_DTYPE_BF16, 67, 2, 72);
    c.seed = seed;
    check_fixture_open(&f, &c, 1);
    for (int fault = NO_FAULT; fault <= TWICE; fault++) {
      put_kept_bias(&f, fault);
      EXPECT_FAILING(&f, fault == NO_FAULT ? "" : "grad_bias");
    }
    check_fixture_close(&f);
  }
}

static void expect_same_truth(const check_truth *a, const check_truth *b) {
  cr_assert(a->row_count == b->row_count && a->work_count == b->work_count && a->column_count == b->column_count);
  cr_expect_arr_eq(a->rows, b->rows, (size_t)a->row_count * sizeof *a->rows);
  cr_expect_arr_eq(a->row_truth, b->row_truth, (size_t)a->row_count * sizeof *a->row_truth);
  cr_expect_arr_eq(a->work_truth, b->work_truth, (size_t)a->work_count * sizeof *a->work_truth);
}

Test(check_truth, a_sample_of_what_was_evaluated_is_as_if_made_alone) {
  check_fixture f;
  check_truth from_whole, alone;
  create(&f, FLP_DTYPE_BF16, CHECK_ROWS_MASKED, NULL);
  cr_assert_lt(f.truth.work_count, f.problem.c.n, "some rows have no gradient");
  f.problem.c.sampled = 1;
  cr_assert_eq(check_truth_create(&f.problem, &f.truth, &from_whole), FLP_OK);
  cr_assert_eq(check_truth_create(&f.problem, NULL, &alone), FLP_OK);
  cr_expect_lt(alone.row_count, f.truth.row_count);
  expect_same_truth(&from_whole, &alone);
  f.truth.row_truth[0].logprob = 7;
  check_truth_clear(&from_whole);
  cr_assert_eq(check_truth_create(&f.problem, &f.truth, &from_whole), FLP_OK);
  cr_expect_eq(from_whole.row_truth[0].logprob, 7, "it is taken over");
  check_truth_clear(&from_whole);
  check_truth_clear(&alone);
  check_fixture_close(&f);
}

Test(check_run, no_rows_pass_with_every_pattern) {
  for (int rows = CHECK_ROWS_ALL; rows <= CHECK_ROWS_NAN_INACTIVE; rows++) {
    check_fixture f;
    check_case c = check_case_default(FLP_DTYPE_FP32, 0, 20, 8);
    c.rows = (check_rows)rows;
    c.spec.grads = FLP_GRAD_WEIGHT;
    check_fixture_open(&f, &c, 0);
    EXPECT_FAILING(&f, "");
    cr_expect_eq(f.report.count, 2, "pattern %d", rows);
    check_fixture_close(&f);
  }
}

/* ---- tail mode ---- */

enum { LEFT, SUM, DENSE, COLUMNS };

/* What the eager rung gives, and the report of a pass that lists: a thousandth left out of a sum that is as it was. */
static void create_tail(check_fixture *f, float tail) {
  check_case c = whole_case(FLP_DTYPE_BF16, 40, 300, 32);
  c.spec.entropy = FLP_ENTROPY_FORWARD;
  c.mode = FLP_MODE_TAIL;
  c.spec.tail = tail;
  c.fill = CHECK_FILL_SHARP;
  check_fixture_open(f, &c, 1);
  float *report = f->result.tail_report;
  cr_assert(report[LEFT] == 0 && report[SUM] == 0 && report[DENSE] == 0 && report[COLUMNS] == 0,
            "the CPU rung is exact");
  double sum = 0;
  for (int64_t i = 0; i < f->truth.row_count; i++)
    sum -= 2 * fabs(f->problem.g[f->truth.rows[i]]) * expm1(f->truth.row_truth[i].logprob);
  report[SUM] = (float)sum;
  report[LEFT] = 0.001f * report[SUM];
  report[DENSE] = 12;
  report[COLUMNS] = 340;
}

Test(check_tail, each_fault_of_a_report_is_found) {
  static const struct {
    int field;
    float value;
  } faults[] = {{LEFT, -1},   {LEFT, NAN}, {LEFT, INFINITY}, {LEFT, 1e3f}, {SUM, NAN},    {SUM, 1e3f},
                {SUM, 1e-6f}, {DENSE, 41}, {DENSE, 1.5f},    {DENSE, NAN}, {COLUMNS, -1}, {COLUMNS, 0.25f}};
  check_fixture f;
  create_tail(&f, 0x1p-9f);
  EXPECT_FAILING(&f, "");
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
    float *field = &f.result.tail_report[faults[i].field], good = *field;
    *field = faults[i].value;
    EXPECT_FAILING(&f, "tail_report");
    *field = good;
  }
  check_fixture_close(&f);
}

/* Of the whole tensor, whose largest row is as far off as is allowed, and then farther. */
Test(check_tail, gradients_may_be_off_by_the_tail_of_their_norm) {
  static const float tails[] = {0x1p-9f, 0x1p-4f};
  for (int t = 0; t < 2; t++) {
    check_fixture f;
    create_tail(&f, tails[t]);
    scale_rows(&f, f.result.grad_hidden, 0, 40, 1 + 0.875f * tails[t]);
    EXPECT_FAILING(&f, "");
    scale_rows(&f, f.result.grad_hidden, 0, 40, 1 + 2 * tails[t] + 0.015f);
    EXPECT_FAILING(&f, "grad_hidden");
    check_fixture_close(&f);
  }
}

/* A dozen columns carry the mass of the last rows; the first are less sharp, so that lists and recomputing both occur. */
Test(check_tail, sharp_rows_are_sharp_and_less_so_at_first) {
  check_case c = check_case_default(FLP_DTYPE_FP32, 60, 1531, 264);
  check_truth truth;
  c.spec.entropy = FLP_ENTROPY_FORWARD;
  c.fill = CHECK_FILL_SHARP;
  c.sampled = 0;
  check_problem p = check_fixture_problem(&c);
  cr_assert_eq(check_truth_create(&p, NULL, &truth), FLP_OK, "%s", flp_error_detail());
  double first = 0, last = 0;
  for (int64_t i = 0; i < 20; i++) {
    first += truth.row_truth[i].entropy / 20;
    last += truth.row_truth[truth.row_count - 1 - i].entropy / 20;
  }
  cr_expect(first > 2 * last && first < 6, "%g nats", first);
  cr_expect(last < 1, "%g nats", last);
  check_truth_clear(&truth);
  check_problem_clear(&p);
}

Test(check_tail, no_row_is_active_where_all_are_masked) {
  check_case c = check_case_default(FLP_DTYPE_BF16, 9, 40, 16);
  c.rows = CHECK_ROWS_NONE;
  check_problem p = check_fixture_problem(&c);
  for (int64_t row = 0; row < 9; row++) cr_expect_eq(p.forward_class[row], CHECK_LEFT_OUT);
  check_problem_clear(&p);
}
