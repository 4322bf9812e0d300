/* test_cli_losses.c: which numbers the check of a loss takes for a derivative, and the rows that it draws. */
#include <criterion/criterion.h>
#include <math.h>

#include "gen/cli/loss/loss.h"

static double smooth(double x, const void *context) {
  (void)context;
  return exp(x) + x * x;
}

static double kink(double x, const void *context) {
  return fabs(x) + *(const double *)context * x;
}

static double jump(double x, const void *context) {
  (void)context;
  return x < 1 ? x : x + 5;
}

static int holds(cli_loss_fn f, double x, double claimed, double slope) {
  double nearest;
  return cli_loss_derivative_error(f, &slope, x, claimed, &nearest) <= 1;
}

Test(cli_losses, a_derivative_of_a_smooth_function_is_one_number) {
  for (double x = -3; x < 3; x += 0.37) {
    double right = exp(x) + 2 * x, nearest;
    cr_expect(holds(smooth, x, right, 0), "x = %g", x);
    cr_expect_not(holds(smooth, x, right + 1e-3 * (1 + fabs(right)), 0), "x = %g", x);
    cr_expect_gt(cli_loss_derivative_error(smooth, NULL, x, -right - 1, &nearest), 1);
    cr_expect_lt(fabs(nearest - right), 1e-4 * (1 + fabs(right)), "%g is returned for %g", nearest, right);
  }
}

Test(cli_losses, at_a_kink_each_side_and_what_lies_between_hold) {
  for (double slope = -1; slope <= 1; slope += 0.5) {
    for (int i = -2; i <= 2; i++) cr_expect(holds(kink, 0, slope + 0.5 * i, slope), "%g + %g", slope, 0.5 * i);
    cr_expect_not(holds(kink, 0, slope + 1.01, slope));
    cr_expect_not(holds(kink, 0, slope - 1.01, slope));
    cr_expect_not(holds(kink, 0.5, slope, slope), "beside the kink");
    cr_expect(holds(kink, 5e-5, slope + 1, slope), "close to the kink");
  }
}

Test(cli_losses, a_jump_is_no_kink) {
  cr_expect(holds(jump, 1, 1, 0), "the side that is continuous");
  cr_expect_not(holds(jump, 1, 3, 0));
  cr_expect_not(holds(jump, 1, 100, 0));
}

Test(cli_losses, rows_are_seeded_and_of_every_kind) {
  flp_loss loss;
  cr_assert_eq(flp_loss_find("ppo+k3", &loss), FLP_OK);
  const double given[] = {0.2, 0.3, 0.04};
  int tied = 0, idle = 0, far = 0, drawn = 0, above = 0, below = 0;
  for (int i = 0; i < 256; i++) {
    double a[FLP_LOSS_ALL_INPUTS], b[FLP_LOSS_ALL_INPUTS], p[FLP_LOSS_PARAMETERS_MAX], q[FLP_LOSS_PARAMETERS_MAX];
    cli_loss_draw(&loss, 7, i, given, a, p);
    cli_loss_draw(&loss, 7, i, given, b, q);
    cr_expect_arr_eq(a, b, sizeof a);
    cr_assert_eq(flp_loss_check_parameters(&loss, p), FLP_OK, "%s", flp_error_detail());
    double ratio = exp(a[FLP_LOSS_LOGPROB] - a[FLP_LOSS_OLD_LOGPROB]);
    for (int j = 0; j < FLP_LOSS_INPUTS_MAX; j++) cr_expect_eq(a[j], (double)(float)a[j]);
    above += fabs(ratio - 1 - p[0]) < 4e-6 * ratio; /* beside a bound of clamp */
    below += fabs(ratio - 1 + p[1]) < 4e-6 * ratio;
    tied += a[FLP_LOSS_LOGPROB] == a[FLP_LOSS_OLD_LOGPROB];
    far += fabs(a[FLP_LOSS_LOGPROB] - a[FLP_LOSS_OLD_LOGPROB]) > 3;
    idle += a[FLP_LOSS_ADVANTAGE] == 0 || a[FLP_LOSS_WEIGHT] == 0;
    drawn += p[0] != given[0];
    cli_loss_draw(&loss, 8, i, given, b, q);
    cr_expect_neq(a[FLP_LOSS_LOGPROB], b[FLP_LOSS_LOGPROB]);
  }
  cr_expect(tied > 20 && far > 10 && idle > 20 && drawn > 100 && drawn < 156 && above > 5 && below > 5);
}
