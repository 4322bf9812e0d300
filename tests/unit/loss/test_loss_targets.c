/* test_loss_targets.c: losses over targets: values and derivatives beside formulas by hand and difference quotients, their
 * bytes, and what is refused. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/unit/support/loss_case.h"
#include "tests/unit/support/random.h"

enum { K = 7 };

/* Log-probabilities of the first count of more outcomes. */
static void draw(uint32_t *state, int count, float *out) {
  double raw[K], sum = 0.2;
  for (int k = 0; k < count; k++) sum += raw[k] = exp(2 + 2 * test_random(state));
  for (int k = 0; k < count; k++) out[k] = (float)log(raw[k] / sum);
}

static flp_loss_row evaluate(const flp_loss *loss, const flp_loss_targets *targets, double weight,
                             const double *parameters, float *grad) {
  double inputs[FLP_LOSS_ALL_INPUTS] = {[FLP_LOSS_ENTROPY] = 1.5, [FLP_LOSS_WEIGHT] = weight}, fallbacks[8];
  flp_loss_plan plan;
  flp_loss_row row;
  for (uint32_t i = 0; i < loss->parameter_count; i++) fallbacks[i] = loss->parameters[i].fallback;
  flp_loss_plan_of(loss, &plan);
  flp_loss_evaluate_targets(loss, &plan, targets, inputs, parameters ? parameters : fallbacks, &row, grad);
  return row;
}

static double part(const char *loss, double mix, double p, double q) {
  double m = mix * p + (1 - mix) * q;
  if (strcmp(loss, "forward_kl") == 0) return p * log(p / q);
  if (strcmp(loss, "reverse_kl") == 0) return q * log(q / p);
  if (strcmp(loss, "skew_kl") == 0) return p * log(p / (0.1 * p + 0.9 * q));
  if (strcmp(loss, "total_variation") == 0) return 0.5 * fabs(p - q);
  return mix * p * log(p / m) + (1 - mix) * q * log(q / m);
}

Test(loss_targets, the_divergences_are_their_formulas) {
  static const char *const names[] = {"forward_kl", "reverse_kl", "jsd", "skew_kl", "total_variation"};
  uint32_t state = 3;
  for (int i = 0; i < 60; i++) {
    const char *name = names[i % 5];
    flp_loss loss = find(name);
    float p[K], q[K], grad[K];
    draw(&state, K, p);
    draw(&state, K, q);
    double rest_p = 1, rest_q = 1, want = 0;
    for (int k = 0; k < K; k++) {
      double share_p = exp((double)p[k]), share_q = exp((double)q[k]);
      rest_p -= share_p, rest_q -= share_q;
      want += part(name, 0.5, share_p, share_q);
    }
    want += part(name, 0.5, rest_p, rest_q);
    const flp_loss_targets targets = {.count = K, .logprob = q, .teacher_logprob = p};
    flp_loss_row row = evaluate(&loss, &targets, 0.25, NULL, grad);
    cr_expect_lt(fabs(row.loss - 0.25 * want), 1e-12, "%s: %g, want %g", name, row.loss, 0.25 * want);
    cr_expect_lt(fabs(row.metrics[0] - want), 1e-12);
    cr_expect_geq(want, 0);
  }
}

/* dz = Σ_k g_k·(1[v = k] − q_v): a teacher that is the student pulls nowhere. */
Test(loss_targets, a_teacher_that_is_the_student_has_no_gradient) {
  static const char *const names[] = {"forward_kl", "reverse_kl", "jsd",     "forward_kl+reverse_kl",
                                      "skew_kl",    "lk",         "total_variation", "neg_log_acceptance"};
  uint32_t state = 5;
  for (int i = 0; i < 40; i++) {
    flp_loss loss = find(names[i % 8]);
    float p[K], grad[K];
    draw(&state, K, p);
    const flp_loss_targets targets = {.count = K, .logprob = p, .teacher_logprob = p};
    flp_loss_row row = evaluate(&loss, &targets, 1, NULL, grad);
    cr_expect_lt(fabs(row.loss), 1e-15);
    double all = 0;
    for (int k = 0; k < K; k++) all += (double)grad[k];
    for (int k = 0; k < K; k++)
      cr_expect_lt(fabs((double)grad[k] - exp((double)p[k]) * all), 1e-6, "%s: target %d", names[i % 8], k);
  }
}

/* Σ_k s_k·(a_k − Σ_j s_j·a_j)²·H, a sum that reads sums that read sums. */
static flp_loss nested(void) {
  flp_loss loss;
  cr_assert_eq(flp_loss_start(&loss, "nested"), FLP_OK);
  uint16_t a = append(&loss, FLP_LOSS_INPUT, FLP_LOSS_TARGET_LOGPROB, 0, 0);
  uint16_t h = append(&loss, FLP_LOSS_INPUT, FLP_LOSS_ENTROPY, 0, 0), e = append(&loss, FLP_LOSS_EXP, a, 0, 0);
  uint16_t s = append(&loss, FLP_LOSS_DIV, e, append(&loss, FLP_LOSS_SUM, e, 0, 0), 0);
  uint16_t scaled = append(&loss, FLP_LOSS_MUL, append(&loss, FLP_LOSS_MUL, s, a, 0), h, 0);
  uint16_t off = append(&loss, FLP_LOSS_SUB, a, append(&loss, FLP_LOSS_SUM, scaled, 0, 0), 0);
  uint16_t square = append(&loss, FLP_LOSS_MUL, off, off, 0), term = append(&loss, FLP_LOSS_MUL, s, square, 0);
  uint16_t all = append(&loss, FLP_LOSS_MUL, append(&loss, FLP_LOSS_SUM, term, 0, 0), h, 0);
  cr_assert_eq(flp_loss_finish(&loss, all), FLP_OK, "%s", flp_error_detail());
  return loss;
}

static double nested_at(const double *a, double h) {
  double total = 0, mean = 0, all = 0;
  for (int k = 0; k < K; k++) total += exp(a[k]);
  for (int k = 0; k < K; k++) mean += exp(a[k]) / total * a[k] * h;
  for (int k = 0; k < K; k++) all += exp(a[k]) / total * (a[k] - mean) * (a[k] - mean);
  return all * h;
}

Test(loss_targets, sums_may_read_sums) {
  flp_loss loss = nested();
  float a[K], grad[K];
  double at[K];
  uint32_t state = 9;
  draw(&state, K, a);
  for (int k = 0; k < K; k++) at[k] = (double)a[k];
  flp_loss_plan plan;
  flp_loss_plan_of(&loss, &plan);
  cr_expect_eq(plan.sum_count, 3);
  cr_expect_eq(plan.level_count, 3);
  const flp_loss_targets targets = {.count = K, .logprob = a};
  flp_loss_row row = evaluate(&loss, &targets, 1, NULL, grad);
  cr_expect_lt(fabs(row.loss - nested_at(at, 1.5)), 1e-12);
  for (int k = 0; k < K; k++) {
    double kept = at[k], up, down;
    at[k] = kept + 1e-5, up = nested_at(at, 1.5);
    at[k] = kept - 1e-5, down = nested_at(at, 1.5);
    at[k] = kept;
    cr_expect_lt(fabs((double)grad[k] - (up - down) / 2e-5), 1e-6 * (1 + fabs((double)grad[k])), "target %d", k);
  }
  double slope = (nested_at(at, 1.5 + 1e-5) - nested_at(at, 1.5 - 1e-5)) / 2e-5;
  cr_expect_lt(fabs(row.grad_entropy - slope), 1e-6 * (1 + fabs(slope)));
}

/* What is skipped takes no part, whatever stands there; and a nearly whole distribution stays finite. */
Test(loss_targets, skipped_targets_count_for_nothing) {
  flp_loss loss = find("forward_kl+entropy");
  const float q[] = {-0.5f, NAN, -3}, p[] = {-0.7f, NAN, -2}, q2[] = {-0.5f, -3}, p2[] = {-0.7f, -2};
  const uint8_t skipped[] = {0, 1, 0};
  float grad[3], grad2[2];
  const flp_loss_targets three = {.count = 3, .logprob = q, .teacher_logprob = p, .skipped = skipped};
  const flp_loss_targets two = {.count = 2, .logprob = q2, .teacher_logprob = p2};
  flp_loss_row a = evaluate(&loss, &three, 1, NULL, grad), b = evaluate(&loss, &two, 1, NULL, grad2);
  cr_expect_eq(a.loss, b.loss);
  cr_expect_eq(grad[0], grad2[0]);
  cr_expect_eq(grad[1], 0);
  cr_expect_eq(grad[2], grad2[1]);
  const float whole_p[] = {0, -INFINITY}, whole_q[] = {-0.1f, -2.3f};
  const flp_loss_targets whole = {.count = 2, .logprob = whole_q, .teacher_logprob = whole_p};
  flp_loss_row row = evaluate(&loss, &whole, 1, NULL, grad2);
  cr_expect(isfinite(row.loss) && isfinite(grad2[0]) && isfinite(grad2[1]));
}

Test(loss_targets, a_row_of_weight_0_has_nothing_whatever_it_holds) {
  const char *const names[] = {"forward_kl", "reverse_kl", "jsd", "forward_kl+entropy"};
  const float bad[] = {NAN, -INFINITY, -1}, teacher[] = {-INFINITY, NAN, -2};
  const flp_loss_targets row = {.count = 3, .logprob = bad, .teacher_logprob = teacher};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    flp_loss loss = find(names[i]);
    float grad[3] = {7, 7, 7};
    flp_loss_row got = evaluate(&loss, &row, 0, NULL, grad);
    cr_expect(got.loss == 0 && got.grad_entropy == 0 && got.metrics[0] == 0, "%s: %g", names[i], got.loss);
    for (int k = 0; k < 3; k++) cr_expect_eq(grad[k], 0, "%s", names[i]);
  }
}

Test(loss_targets, bytes_have_their_own_version) {
  uint8_t bytes[FLP_LOSS_BYTES_MAX];
  flp_loss loss = find("forward_kl"), got;
  size_t length = flp_loss_write(&loss, bytes, sizeof bytes);
  cr_expect_eq(bytes[4], FLP_LOSS_FORMAT_TARGETS);
  cr_assert_eq(flp_loss_read(bytes, length, &got), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(memcmp(&got, &loss, sizeof got), 0);
  bytes[4] = FLP_LOSS_FORMAT; /* as a library that knows no targets would be told */
  cr_expect_eq(flp_loss_read(bytes, length, &got), FLP_ERROR_CORRUPT);
  flp_loss_description description = FLP_LOSS_DESCRIPTION_INIT;
  bytes[4] = FLP_LOSS_FORMAT_TARGETS;
  cr_assert_eq(flp_loss_describe(bytes, length, &description), FLP_OK);
  cr_assert_eq(description.input_count, 3);
  cr_expect_str_eq(description.inputs[0], "weight");
  cr_expect_str_eq(description.inputs[1], "target_logprob");
  cr_expect_str_eq(description.inputs[2], "teacher_logprob");
}

Test(loss_targets, a_row_of_one_target_and_one_of_several_do_not_meet) {
  flp_loss sum;
  cr_expect_eq(flp_loss_find("forward_kl+k3", &sum), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(), "loss 'forward_kl+k3' reads values of targets and logprob, which a row has for one "
                                       "target alone");
  float some[] = {0};
  flp_loss loss = find("jsd");
  flp_loss_rows rows = {.n = 1, .targets = 1, .target_logprob = some};
  cr_expect_eq(flp_loss_evaluate(&loss, &rows), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(), "teacher_logprob is NULL; loss jsd needs an array of 1");
}
