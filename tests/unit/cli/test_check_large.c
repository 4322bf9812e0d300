/* test_check_large.c: problems that the oracle sees samples of, at small sizes on the CPU: adapters, and losses over all
 * scores, whose lse is then that of the rung's stats. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/half.h"
#include "tests/unit/support/check_case.h"
#include "tests/unit/support/refuse.h"

static void follow_scores(check_fixture *f) {
  check_problem_follow_scores(&f->problem, f->truth.rows, f->truth.row_truth, f->truth.row_count, &f->result, &f->plain);
}

/* A case of the set at another size. rung: the CPU's, which has one mode */
static void run_small(check_fixture *f, check_case c) {
  c.n = 1600, c.spec.vocab = 301, c.spec.hidden = 32;
  cr_assert_eq(c.sampled, 1);
  check_fixture_open(f, &c, cli_loss_of(&c.spec) != NULL);
  cr_assert_lt(f->truth.row_count, 20);
  if (f->problem.loss) follow_scores(f);
}

/* As of a problem whose rows with work are too many. */
static void forget_rows(check_fixture *f) {
  f->truth.work_truth = NULL;
}

/* outputs: those that are compared; failed: the one that fails, or "" */
static void expect(check_fixture *f, const char *outputs, const char *failed) {
  cr_expect_str_eq(check_fixture_outputs(f, 1), outputs);
  EXPECT_FAILING(f, failed);
}

static check_list list_of(flp_dtype dtype, int lora_rank) {
  check_case given = check_case_default(dtype, 67, 0, 0);
  check_list list;
  given.spec.lora_rank = lora_rank;
  cr_assert_eq(check_list_create(CHECK_SET_LARGE, &given, &list), FLP_OK, "%s", flp_error_detail());
  return list;
}

static check_case adapted_case(flp_dtype dtype, int few) {
  check_list list = list_of(dtype, 0);
  check_case found = list.cases[list.count - 2 + few];
  cr_assert(found.spec.lora_rank == 64 && found.n == 8192 && found.spec.vocab == 151936 && found.spec.hidden == 4096);
  cr_assert_eq(found.rows, few ? CHECK_ROWS_FEW : CHECK_ROWS_MASKED);
  check_list_clear(&list);
  return found;
}

static check_case scores_case(flp_dtype dtype, flp_mode mode) {
  check_list list = list_of(dtype, 0);
  check_case found = {0};
  for (int i = 0; i < list.count; i++) {
    const flp_loss *loss = cli_loss_of(&list.cases[i].spec);
    if (loss && flp_loss_is_of_scores(loss) && list.cases[i].mode == mode) found = list.cases[i];
  }
  cr_assert_eq(found.n, 8192);
  check_list_clear(&list);
  return found;
}

static void spoil(flp_dtype dtype, void *base, int64_t index, float factor) {
  float value;
  void *at = (char *)base + index * flp_half_bytes(dtype);
  flp_half_widen(dtype, at, 1, &value);
  value = value * factor + (factor - 1);
  flp_half_narrow(dtype, &value, 1, at);
}

static const flp_dtype dtypes[] = {FLP_DTYPE_BF16, FLP_DTYPE_FP16, FLP_DTYPE_FP32};

/* ---- adapters ---- */

Test(check_large, a_given_rank_is_that_of_all_adapters) {
  check_list list = list_of(FLP_DTYPE_BF16, 16);
  cr_expect_eq(list.cases[list.count - 1].spec.lora_rank, 16);
  cr_expect_eq(list.cases[list.count - 2].spec.lora_rank, 16);
  cr_expect_eq(list.cases[list.count - 3].spec.lora_rank, 0);
  check_list_clear(&list);
}

Test(check_large, of_an_adapter_rows_and_columns_are_compared) {
  for (int d = 0; d < 3; d++) {
    check_fixture f;
    run_small(&f, adapted_case(dtypes[d], 0));
    forget_rows(&f);
    expect(&f, "logprob+entropy+grad_hidden+grad_lora_b", "");
    spoil(dtypes[d], f.result.grad_lora_b, f.truth.columns[3] * 64 + 5, 1.5f);
    expect(&f, "logprob+entropy+grad_hidden+grad_lora_b", "grad_lora_b");
    check_fixture_close(&f);
  }
}

Test(check_large, of_few_rows_with_work_the_gradient_of_a_is_compared) {
  for (int d = 0; d < 3; d++) {
    check_fixture f;
    run_small(&f, adapted_case(dtypes[d], 1));
    cr_assert_eq(f.truth.work_count, 4);
    expect(&f, "logprob+entropy+grad_hidden+grad_lora_a+grad_lora_b", "");
    spoil(dtypes[d], f.result.grad_lora_a, 63 * f.problem.stride + 31, 1.5f);
    expect(&f, "logprob+entropy+grad_hidden+grad_lora_a+grad_lora_b", "grad_lora_a");
    check_fixture_close(&f);
  }
}

Test(check_large, a_bound_of_an_adapters_scores_is_no_less_than_their_error) {
  for (int d = 0; d < 3; d++) {
    check_case c = check_case_default(dtypes[d], 60, 301, 32);
    double off = 0, most = 0;
    c.spec.lora_rank = 16;
    check_problem exact = check_fixture_problem(&c);
    c.sampled = 1;
    check_problem bounded = check_fixture_problem(&c);
    cr_expect_arr_eq(exact.lora_u, bounded.lora_u, (size_t)(60 * 16 * flp_half_bytes(dtypes[d])));
    for (int row = 0; row < 60; row++) {
      cr_expect_leq(exact.score_error[row], bounded.score_error[row]);
      off += exact.score_error[row], most += bounded.score_error[row];
    }
    cr_expect(most > 0 && most < 3 * off, "%g of %g", most, off);
    check_problem_clear(&exact);
    check_problem_clear(&bounded);
  }
}

/* ---- losses over all scores ---- */

Test(check_large, a_step_over_all_scores_is_compared_with_the_stats_of_the_rung) {
  static const char outputs[] =
      "logprob bits+entropy bits+loss+metrics+logprob+entropy+grad_hidden+grad_weight";
  for (int d = 0; d < 3; d++) {
    check_fixture f;
    run_small(&f, scores_case(dtypes[d], FLP_MODE_RECOMPUTE_VOCAB));
    cr_assert_eq(f.problem.is_guessed, 1);
    forget_rows(&f);
    expect(&f, outputs, "");
    int64_t row = 0;
    while (f.problem.forward_class[row] != CHECK_ACTIVE || row == f.truth.rows[0] || row == f.truth.rows[1]) row++;
    float good = f.result.loss[row];
    f.result.loss[row] *= 1.0001f;
    expect(&f, outputs, "loss");
    f.result.loss[row] = good;
    spoil(f.problem.c.spec.grad_weight_dtype, f.result.grad_weight, f.truth.columns[3] * f.problem.stride, 1.5f);
    expect(&f, outputs, "grad_weight");
    check_fixture_close(&f);
  }
}

/* An lse that is off in the rung's stats makes another loss of every row that the oracle has not seen. */
Test(check_large, stats_that_are_off_show) {
  check_fixture f;
  run_small(&f, scores_case(FLP_DTYPE_BF16, FLP_MODE_STREAM));
  for (int64_t row = 0; row < f.problem.c.n; row++) f.plain.stats[4 * row + 1] += 0.01f;
  follow_scores(&f);
  cr_expect_str_neq(check_fixture_outputs(&f, 0), "");
  check_fixture_close(&f);
}

Test(check_large, with_a_softcap_the_mean_is_of_all_scores_and_refused) {
  check_case c = scores_case(FLP_DTYPE_BF16, FLP_MODE_STREAM);
  check_problem problem;
  c.n = 40, c.spec.vocab = 301, c.spec.hidden = 32;
  c.spec.softcap = 20;
  expect_refused_with(check_problem_create(&c, &problem), "--rows: 40 are not accepted with this loss at this shape");
  c.sampled = 0;
  problem = check_fixture_problem(&c);
  check_problem_clear(&problem);
}

Test(check_large, means_are_those_of_all_scores) {
  check_case c = check_case_default(FLP_DTYPE_FP32, 9, 77, 16);
  oracle_row rows[9];
  double means[9];
  const int64_t ids[9] = {8, 7, 6, 5, 4, 3, 2, 1, 0};
  c.spec.has_bias = c.spec.per_row_temperature = 1;
  c.temperature = 3;
  c.scale = -0.5;
  check_problem p = check_fixture_problem(&c);
  cr_assert_eq(oracle_forward(&p.oracle, ids, 9, rows), FLP_OK);
  cr_assert_eq(oracle_means(&p.oracle, ids, 9, means), FLP_OK);
  for (int i = 0; i < 9; i++) cr_expect_float_eq(means[i], rows[i].mean, 1e-12);
  check_problem_clear(&p);
}
