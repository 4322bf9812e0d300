/* test_check_targets.c: several targets a row in `flpgen check`: patterns as a rung and the oracle get them, and planted
 * faults, which are found. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cli/check/compare.h"
#include "gen/cli/check/run.h"
#include "gen/cli/check/problem.h"

enum { ROWS = 45, VOCAB = 90, TARGETS = 8 };

static check_problem create(check_targets targets, check_rows rows, flp_dtype target_dtype) {
  check_case c = check_case_default(FLP_DTYPE_FP32, ROWS, VOCAB, 16);
  check_problem problem;
  c.spec.targets = TARGETS;
  c.spec.target_dtype = target_dtype;
  c.spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  c.targets = targets;
  c.rows = rows;
  cr_assert_eq(check_problem_create(&c, &problem), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(problem.targets, TARGETS);
  cr_assert_eq(problem.oracle.targets, TARGETS);
  return problem;
}

static int64_t id_at(const check_problem *p, int64_t at) {
  return p->c.spec.target_dtype == FLP_DTYPE_INT32 ? ((int32_t *)p->target)[at] : ((int64_t *)p->target)[at];
}

typedef struct seen {
  int64_t ignored, foreign, repeated, ends;
} seen;

/* What the rung gets is what the oracle has; an ignored target has a NaN as upstream gradient, which nobody reads. */
static seen look(const check_problem *p) {
  seen s = {0};
  for (int64_t at = 0; at < ROWS * TARGETS; at++) {
    int64_t id = id_at(p, at), row = at / TARGETS;
    cr_assert_eq(id, p->target_id[at]);
    cr_assert_eq(!!isnan(p->grad_logprob[at]), id == CHECK_IGNORE_INDEX);
    if (id == CHECK_IGNORE_INDEX)
      cr_assert_eq(p->g[at], 0);
    else
      cr_assert_eq((double)p->grad_logprob[at], p->g[at]);
    s.ignored += id == CHECK_IGNORE_INDEX;
    s.foreign += id != CHECK_IGNORE_INDEX && (id < 0 || id >= VOCAB);
    s.ends += id == 0 || id == VOCAB - 1;
    for (int64_t other = row * TARGETS; other < at; other++)
      if (id >= 0 && id_at(p, other) == id) {
        s.repeated++;
        break;
      }
  }
  return s;
}

Test(check_targets, patterns_have_what_they_say) {
  for (int i = 0; i < 2; i++) {
    flp_dtype dtype = i ? FLP_DTYPE_INT32 : FLP_DTYPE_INT64;
    check_problem p = create(CHECK_TARGETS_DRAWN, CHECK_ROWS_ALL, dtype);
    seen s = look(&p);
    cr_expect(s.ignored > 0 && s.ignored < ROWS && s.repeated >= ROWS / 2 && s.foreign == 0);
    check_problem_clear(&p);
    p = create(CHECK_TARGETS_TEACHER, CHECK_ROWS_ALL, dtype);
    s = look(&p);
    cr_expect(s.ignored == 0 && s.foreign == 0 && s.repeated < ROWS);
    for (int64_t k = 1; k < TARGETS; k++) cr_expect_eq(id_at(&p, k), id_at(&p, 3 * TARGETS + k));
    check_problem_clear(&p);
    p = create(CHECK_TARGETS_SAME, CHECK_ROWS_ALL, dtype);
    cr_expect_eq(look(&p).repeated, ROWS * (TARGETS - 1));
    check_problem_clear(&p);
    p = create(CHECK_TARGETS_ENDS, CHECK_ROWS_ALL, dtype);
    cr_expect_geq(look(&p).ends, ROWS * (TARGETS - 1));
    check_problem_clear(&p);
    p = create(CHECK_TARGETS_FEW, CHECK_ROWS_ALL, dtype);
    cr_expect_eq(look(&p).ignored, ROWS * (TARGETS - 1));
    for (int64_t row = 0; row < ROWS; row++) cr_expect_geq(id_at(&p, row * TARGETS + row * 7 % TARGETS), 0);
    check_problem_clear(&p);
  }
}

Test(check_targets, one_bad_id_makes_its_row_bad) {
  check_problem p = create(CHECK_TARGETS_BAD, CHECK_ROWS_ALL, FLP_DTYPE_INT64);
  int64_t bad = 0;
  for (int64_t row = 0; row < ROWS; row++) {
    check_targets_seen s = check_targets_see(&p, row);
    cr_expect_eq(p.forward_class[row], s.has_foreign ? CHECK_BAD : CHECK_ACTIVE);
    bad += s.has_foreign;
  }
  cr_expect_eq(bad, 2 * ROWS / 3);
  cr_expect_eq(look(&p).foreign, bad);
  cr_expect(p.has_bad);
  check_problem_clear(&p);
}

Test(check_targets, patterns_of_rows_are_what_they_are_with_one_target) {
  static const check_rows patterns[] = {CHECK_ROWS_MASKED, CHECK_ROWS_NONE, CHECK_ROWS_INACTIVE, CHECK_ROWS_BAD};
  for (int i = 0; i < 4; i++) {
    check_problem p = create(CHECK_TARGETS_DRAWN, patterns[i], FLP_DTYPE_INT64), one;
    check_case c = p.c;
    c.spec.targets = 1;
    cr_assert_eq(check_problem_create(&c, &one), FLP_OK);
    look(&p);
    cr_expect_arr_eq(p.forward_class, one.forward_class, ROWS);
    cr_expect_arr_eq(p.backward_class, one.backward_class, ROWS);
    for (int64_t row = 0; row < ROWS; row++) cr_expect_eq(id_at(&p, row * TARGETS), id_at(&one, row));
    check_problem_clear(&one);
    check_problem_clear(&p);
  }
}

/* ---- faults ---- */

typedef struct fixture {
  check_problem problem;
  check_truth truth;
  call_result result;
} fixture;

static fixture run(check_targets targets, check_rows rows) {
  fixture f = {.problem = create(targets, rows, FLP_DTYPE_INT64)};
  const check_how how = {.options = {.struct_bytes = sizeof(flp_options), .rung = FLP_RUNG_EAGER, .threads = 1}};
  cr_assert_eq(check_truth_create(&f.problem, NULL, &f.truth), FLP_OK, "%s", flp_error_detail());
  cr_assert_eq(check_run(&f.problem, &how, &f.result), FLP_OK, "%s", flp_error_detail());
  return f;
}

static int64_t failures(fixture *f) {
  check_report report = {0};
  cr_assert_eq(check_compare(&f->problem, &f->truth, &f->result, NULL, FLP_RUNG_EAGER, &report), FLP_OK);
  int64_t failed = report.failed;
  check_report_clear(&report);
  return failed;
}

static void destroy(fixture *f) {
  call_result_clear(&f->result);
  check_truth_clear(&f->truth);
  check_problem_clear(&f->problem);
}

Test(check_targets, each_fault_of_a_logprob_is_found) {
  fixture f = run(CHECK_TARGETS_DRAWN, CHECK_ROWS_MASKED);
  cr_assert_eq(failures(&f), 0);
  int64_t ignored = 0, left_out = 0;
  for (int64_t at = 0; at < ROWS * TARGETS; at += 5) {
    float good = f.result.logprob[at];
    int is_left_out = f.problem.forward_class[at / TARGETS] != CHECK_ACTIVE;
    left_out += is_left_out;
    ignored += !is_left_out && f.problem.target_id[at] == CHECK_IGNORE_INDEX;
    f.result.logprob[at] = good - 1e-4f;
    cr_expect_eq(failures(&f), 1, "place %ld", (long)at);
    f.result.logprob[at] = NAN;
    cr_expect_eq(failures(&f), 1, "place %ld", (long)at);
    f.result.logprob[at] = good;
  }
  cr_expect(ignored > 0 && left_out > 0);
  cr_expect_eq(failures(&f), 0);
  destroy(&f);
}

/* A bad row has NaN for each of its targets; one that was forgotten shows. */
Test(check_targets, a_number_in_a_bad_row_is_found) {
  fixture f = run(CHECK_TARGETS_BAD, CHECK_ROWS_ALL);
  cr_assert_eq(failures(&f), 0);
  f.result.logprob[1 * TARGETS + 3] = 0;
  cr_expect_eq(failures(&f), 1);
  destroy(&f);
}

/* Gradients that count an id that stands twice once, as if its second entry were ignored, are others. */
Test(check_targets, gradients_that_lose_a_target_are_found) {
  fixture f = run(CHECK_TARGETS_SAME, CHECK_ROWS_ALL);
  cr_assert_eq(failures(&f), 0);
  const check_how how = {.options = {.struct_bytes = sizeof(flp_options), .rung = FLP_RUNG_EAGER, .threads = 1}};
  for (int64_t row = 0; row < ROWS; row++) f.problem.grad_logprob[row * TARGETS + 2] = 0;
  call_result_clear(&f.result);
  cr_assert_eq(check_run(&f.problem, &how, &f.result), FLP_OK);
  cr_expect_eq(failures(&f), 2);
  destroy(&f);
}
