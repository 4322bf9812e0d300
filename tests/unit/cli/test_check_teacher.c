/* test_check_teacher.c: losses over several targets in `flpgen check`: teachers by pattern, upstream gradients beside the
 * formula by hand, and planted faults, which are found. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/support/check_case.h"

enum { ROWS = 45, VOCAB = 90, TARGETS = 8 };

static check_case case_of(const char *loss, check_targets targets, check_teacher teacher, check_rows rows) {
  check_case c = check_case_default(FLP_DTYPE_FP32, ROWS, VOCAB, 16);
  c.spec.targets = TARGETS;
  c.spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  c.targets = targets;
  c.teacher = teacher;
  c.rows = rows;
  cr_assert_eq(cli_loss_keep(loss, &c.spec), FLP_OK, "%s", flp_error_detail());
  return c;
}

static check_problem create(const char *loss, check_targets targets, check_teacher teacher, check_rows rows) {
  check_case c = case_of(loss, targets, teacher, rows);
  check_problem problem = check_fixture_problem(&c);
  cr_assert_not_null(problem.teacher);
  return problem;
}

/* ---- teachers ---- */

typedef struct seen {
  double least, most; /* mass on the targets of a row that is not left out */
  int64_t none, nothing, certain, tiny;
} seen;

/* What is not to be read is NaN, and nothing else is. */
static seen look(const check_problem *p) {
  seen s = {.least = 1};
  for (int64_t row = 0; row < ROWS; row++) {
    double sum = 0;
    for (int64_t k = 0; k < TARGETS; k++) {
      int64_t at = row * TARGETS + k;
      int ignored = p->target_id[at] == CHECK_IGNORE_INDEX || p->forward_class[row] == CHECK_LEFT_OUT;
      cr_assert_eq(!!isnan(p->teacher[at]), ignored, "row %ld, target %ld", (long)row, (long)k);
      s.nothing += ignored;
      if (ignored) continue;
      sum += exp((double)p->teacher[at]);
      s.none += p->teacher[at] < -79;
      s.certain += p->teacher[at] >= 0;
      s.tiny += p->teacher[at] <= -20;
    }
    if (p->forward_class[row] == CHECK_LEFT_OUT) continue;
    s.least = fmin(s.least, sum);
    s.most = fmax(s.most, sum);
  }
  cr_assert_leq(s.most, 1, "%.17g", s.most);
  return s;
}

static seen look_at(const char *loss, check_targets targets, check_teacher teacher, check_rows rows) {
  check_problem p = create(loss, targets, teacher, rows);
  seen s = look(&p);
  check_problem_clear(&p);
  return s;
}

Test(check_teacher, patterns_have_what_they_say) {
  enum { ALL = ROWS * TARGETS };
  seen s = look_at("jsd", CHECK_TARGETS_TEACHER, CHECK_TEACHER_DRAWN, CHECK_ROWS_ALL);
  cr_expect(s.least > 0.5 && s.most < 0.99 && s.none == 0 && s.nothing == 0);
  s = look_at("jsd", CHECK_TARGETS_DRAWN, CHECK_TEACHER_CERTAIN, CHECK_ROWS_ALL);
  cr_expect(s.certain == ROWS && s.none == ALL - ROWS - s.nothing && s.nothing > 0 && s.least >= 1);
  s = look_at("jsd", CHECK_TARGETS_TEACHER, CHECK_TEACHER_MISSING, CHECK_ROWS_ALL);
  cr_expect(s.none == ALL / 2 && s.certain == 0);
  s = look_at("jsd", CHECK_TARGETS_TEACHER, CHECK_TEACHER_TAILS, CHECK_ROWS_ALL);
  cr_expect(s.tiny == ALL && s.most < 1e-6);
  s = look_at("jsd", CHECK_TARGETS_TEACHER, CHECK_TEACHER_WHOLE, CHECK_ROWS_ALL);
  cr_expect(s.least > 0.99999 && s.most < 1, "%.17g %.17g", s.least, s.most);
  s = look_at("jsd", CHECK_TARGETS_FEW, CHECK_TEACHER_CERTAIN, CHECK_ROWS_MASKED);
  cr_expect(s.certain == ROWS - ROWS / 3 && s.nothing == ALL - s.certain);
}

/* What a teacher never says is infinitely far away of reverse_kl alone. */
Test(check_teacher, a_missing_target_is_infinite_where_the_loss_takes_it) {
  static const char *const losses[] = {"forward_kl", "jsd", "reverse_kl", "forward_kl+reverse_kl"};
  for (int i = 0; i < 4; i++) {
    check_problem p = create(losses[i], CHECK_TARGETS_TEACHER, CHECK_TEACHER_MISSING, CHECK_ROWS_ALL);
    cr_expect_eq(!!isinf(p.teacher[1]), i < 2, "%s: %g", losses[i], (double)p.teacher[1]);
    for (int64_t at = 0; at < ROWS * TARGETS; at++) cr_assert(isfinite(p.g[at]), "%s, place %ld", losses[i], (long)at);
    check_problem_clear(&p);
  }
}

/* ---- upstream gradients ---- */

/* forward_kl by hand: d/d log q_k of Σ p (log p − log q) + r_p (log r_p − log r_q), r the rest. */
Test(check_teacher, upstream_gradients_are_those_of_the_formula) {
  check_problem p = create("forward_kl", CHECK_TARGETS_DRAWN, CHECK_TEACHER_DRAWN, CHECK_ROWS_MASKED);
  check_truth truth;
  cr_assert_eq(check_truth_create(&p, NULL, &truth), FLP_OK);
  cr_assert_eq(truth.row_count, ROWS - ROWS / 3);
  for (int64_t i = 0; i < truth.row_count; i++) {
    const double *log_q = truth.logprob + i * TARGETS;
    int64_t row = truth.rows[i], first = row * TARGETS;
    double rest_p = 1, rest_q = 1;
    double weight = p.loss_input[FLP_LOSS_WEIGHT] ? (double)p.loss_input[FLP_LOSS_WEIGHT][row] : 1;
    for (int64_t k = 0; k < TARGETS; k++) {
      if (p.target_id[first + k] == CHECK_IGNORE_INDEX) continue;
      rest_p -= exp((double)p.teacher[first + k]);
      rest_q -= exp(log_q[k]);
    }
    cr_assert(rest_p > 1e-6 && rest_q > 1e-6, "row %ld: at no kink", (long)row);
    for (int64_t k = 0; k < TARGETS; k++) {
      double wanted = weight * (rest_p * exp(log_q[k]) / rest_q - exp((double)p.teacher[first + k]));
      if (p.target_id[first + k] == CHECK_IGNORE_INDEX) wanted = 0;
      cr_assert_float_eq(p.g[first + k], wanted, 1e-6, "row %ld, target %ld", (long)row, (long)k);
    }
  }
  check_truth_clear(&truth);
  check_problem_clear(&p);
}

/* A row of weight 0 has no gradient, whichever of its targets comes first. */
Test(check_teacher, rows_without_gradients_have_none) {
  for (int i = 0; i < 2; i++) {
    check_targets targets = i ? CHECK_TARGETS_FEW : CHECK_TARGETS_DRAWN;
    check_problem p = create("jsd", targets, CHECK_TEACHER_DRAWN, CHECK_ROWS_INACTIVE);
    for (int64_t row = 0; row < ROWS; row++)
      cr_expect_eq(p.backward_class[row], row % 2 ? CHECK_LEFT_OUT : CHECK_ACTIVE, "row %ld", (long)row);
    check_problem_clear(&p);
  }
}

/* Its derivatives hang on what rows give, which are not all known. */
Test(check_teacher, a_problem_that_is_too_large_is_refused) {
  check_case c = case_of("forward_kl", CHECK_TARGETS_DRAWN, CHECK_TEACHER_DRAWN, CHECK_ROWS_ALL);
  check_problem problem;
  c.sampled = 1;
  cr_assert_eq(check_problem_create(&c, &problem), FLP_ERROR_ARGUMENT);
  cr_expect(strstr(flp_error_detail(), "--rows: 45 are not accepted with this loss"), "%s", flp_error_detail());
}

/* ---- faults ---- */

/* One target of one row by another teacher, or another parameter, than what the rung saw. */
Test(check_teacher, each_fault_is_found) {
  for (int fault = 0; fault <= 2; fault++) {
    check_fixture f;
    check_case c = case_of("forward_kl", CHECK_TARGETS_TEACHER, CHECK_TEACHER_DRAWN, CHECK_ROWS_ALL);
    check_fixture_open(&f, &c, 0);
    if (fault == 1) f.problem.teacher[3 * TARGETS] -= 1e-3f;
    if (fault == 2) f.problem.loss_parameters[1] += 0.01; /* rest_weight */
    check_problem_follow(&f.problem, &f.result);
    EXPECT_FAILING(&f, fault ? "loss+metrics+grad_hidden+grad_weight" : "");
    check_fixture_close(&f);
  }
}
