/* loss.h: what the files of `flpgen loss` share: the rows of a check, and the actions. */
#ifndef FLPGEN_CLI_LOSS_H
#define FLPGEN_CLI_LOSS_H

#include "gen/cli/shared/losses.h"

/* ---- rows.c ---- */

/* Row i of the check: ordinary ones, ties (logprob = old_logprob = ref_logprob), far ratios, advantage or weight 0, and
 * logprob beside a kink of the loss; all of them numbers of float32.
 * given: parameters of half of the rows; the others draw theirs within the bounds. */
void cli_loss_draw(const flp_loss *loss, uint64_t seed, int i, const double *given, double inputs[FLP_LOSS_INPUTS_MAX],
                   double parameters[FLP_LOSS_PARAMETERS_MAX]);

/* Whether `claimed` can be the derivative of f at x: it equals the difference quotient of both sides, or where f has a
 * kink that of one side, or lies between them. Quotients are taken at several steps, each extrapolated to 0.
 * error: *nearest is the quotient of both sides that comes nearest */
typedef double (*cli_loss_fn)(double x, const void *context);
int cli_loss_derivative_holds(cli_loss_fn f, const void *context, double x, double claimed, double *nearest);

enum { LOSS_INDENT = 13 }; /* of what is said of a loss, beside labels */

/* ---- the actions ---- */

int cli_loss_list(int argc, char **argv);
int cli_loss_show(int argc, char **argv);
int cli_loss_check(int argc, char **argv);

#endif
