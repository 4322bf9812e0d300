/* test_check_targets.c: several targets a row in `flpgen check`: patterns as a rung and the oracle get them, and planted
 * faults, which are found. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/support/check_case.h"

enum { ROWS = 45, VOCAB = 90, TARGETS = 8 };

static check_case case_of(check_targets targets, check_rows rows, flp_dtype target_dtype) {
  check_case c = check_case_default(FLP_DTYPE_FP32, ROWS, VOCAB, 16);
  c.spec.targets = TARGETS;
  c.spec.target_dtype = target_dtype;
  c.spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  c.targets = targets;
  c.rows = rows;
  return c;
}

static check_problem create(check_targets targets, check_rows rows, flp_dtype target_dtype) {
  check_case c = case_of(targets, rows, target_dtype);
  check_problem problem = check_fixture_problem(&c);
  cr_assert(problem.targets == TARGETS && problem.oracle.targets == TARGETS);
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
  enum { ALL = ROWS * TARGETS, MOST = ROWS * (TARGETS - 1) };
  static const struct {
    check_targets targets;
    seen least, most;
  } patterns[] = {
      {CHECK_TARGETS_DRAWN, {1, 0, ROWS / 2, 0}, {ROWS - 1, 0, ALL, ALL}},
      {CHECK_TARGETS_TEACHER, {0, 0, 0, 0}, {0, 0, ROWS - 1, ALL}},
      {CHECK_TARGETS_SAME, {0, 0, MOST, 0}, {ALL, ALL, MOST, ALL}},
      {CHECK_TARGETS_ENDS, {0, 0, 0, MOST}, {ALL, ALL, ALL, ALL}},
      {CHECK_TARGETS_FEW, {MOST, 0, 0, 0}, {MOST, ALL, ALL, ALL}},
  };
  for (size_t i = 0; i < 2 * sizeof patterns / sizeof patterns[0]; i++) {
    check_targets targets = patterns[i / 2].targets;
    const seen *least = &patterns[i / 2].least, *most = &patterns[i / 2].most;
    check_problem p = create(targets, CHECK_ROWS_ALL, i % 2 ? FLP_DTYPE_INT32 : FLP_DTYPE_INT64);
    seen s = look(&p);
    cr_expect(s.ignored >= least->ignored && s.ignored <= most->ignored, "pattern %d", targets);
    cr_expect(s.foreign >= least->foreign && s.foreign <= most->foreign, "pattern %d", targets);
    cr_expect(s.repeated >= least->repeated && s.repeated <= most->repeated, "pattern %d", targets);
    cr_expect(s.ends >= least->ends && s.ends <= most->ends, "pattern %d", targets);
    for (int64_t k = 1; k < TARGETS && targets == CHECK_TARGETS_TEACHER; k++)
      cr_expect_eq(id_at(&p, k), id_at(&p, 3 * TARGETS + k));
    for (int64_t row = 0; row < ROWS && targets == CHECK_TARGETS_FEW; row++)
      cr_expect_geq(id_at(&p, row * TARGETS + row * 7 % TARGETS), 0);
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
    check_problem p = create(CHECK_TARGETS_DRAWN, patterns[i], FLP_DTYPE_INT64);
    check_case c = p.c;
    c.spec.targets = 1;
    check_problem one = check_fixture_problem(&c);
    look(&p);
    cr_expect_arr_eq(p.forward_class, one.forward_class, ROWS);
    cr_expect_arr_eq(p.backward_class, one.backward_class, ROWS);
    for (int64_t row = 0; row < ROWS; row++) cr_expect_eq(id_at(&p, row * TARGETS), id_at(&one, row));
    check_problem_clear(&one);
    check_problem_clear(&p);
  }
}

/* ---- faults ---- */

static check_fixture run(check_targets targets, check_rows rows) {
  check_fixture f;
  check_case c = case_of(targets, rows, FLP_DTYPE_INT64);
  check_fixture_open(&f, &c, 0);
  EXPECT_FAILING(&f, "");
  return f;
}

Test(check_targets, each_fault_of_a_logprob_is_found) {
  check_fixture f = run(CHECK_TARGETS_DRAWN, CHECK_ROWS_MASKED);
  int64_t ignored = 0, left_out = 0;
  for (int64_t at = 0; at < ROWS * TARGETS; at += 5) {
    float good = f.result.logprob[at];
    int is_left_out = f.problem.forward_class[at / TARGETS] != CHECK_ACTIVE;
    left_out += is_left_out;
    ignored += !is_left_out && f.problem.target_id[at] == CHECK_IGNORE_INDEX;
    f.result.logprob[at] = good - 1e-4f;
    EXPECT_FAILING(&f, "logprob");
    f.result.logprob[at] = NAN;
    EXPECT_FAILING(&f, "logprob");
    f.result.logprob[at] = good;
  }
  cr_expect(ignored > 0 && left_out > 0);
  check_fixture_close(&f);
}

/* A bad row has NaN for each of its targets; one that was forgotten shows. */
Test(check_targets, a_number_in_a_bad_row_is_found) {
  check_fixture f = run(CHECK_TARGETS_BAD, CHECK_ROWS_ALL);
  f.result.logprob[1 * TARGETS + 3] = 0;
  EXPECT_FAILING(&f, "logprob");
  check_fixture_close(&f);
}

/* Gradients that count an id that stands twice once, as if its second entry were ignored, are others. */
Test(check_targets, gradients_that_lose_a_target_are_found) {
  check_fixture f = run(CHECK_TARGETS_SAME, CHECK_ROWS_ALL);
  for (int64_t row = 0; row < ROWS; row++) f.problem.grad_logprob[row * TARGETS + 2] = 0;
  check_fixture_run(&f);
  EXPECT_FAILING(&f, "grad_hidden+grad_weight");
  check_fixture_close(&f);
}
