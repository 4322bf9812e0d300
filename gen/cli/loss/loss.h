/* loss.h: what the files of `flpgen loss` share: rows of a check, and the actions. */
#ifndef FLPGEN_CLI_LOSS_H
#define FLPGEN_CLI_LOSS_H

#include "gen/cli/shared/losses.h"

/* ---- rows.c ---- */

/* Row i of the check: ordinary ones, ties (logprob = old_logprob = ref_logprob), far ratios, advantage or weight 0, and
 * logprob beside a kink of the loss; all of them numbers of float32.
 * given: parameters of half of the rows; the others draw theirs within the bounds. */
void cli_loss_draw(const flp_loss *loss, uint64_t seed, int i, const double *given, double inputs[FLP_LOSS_ALL_INPUTS],
                   double parameters[FLP_LOSS_PARAMETERS_MAX]);

/* How far `claimed` is from a derivative of f at x, in units of what is allowed; up to 1 it can be one: it equals the
 * difference quotient of both sides, or where f has a kink that of one side, or lies between them. Quotients are taken
 * at several steps, each extrapolated to 0. *nearest: the quotient of both sides that comes nearest */
typedef double (*cli_loss_fn)(double x, const void *context);
double cli_loss_derivative_error(cli_loss_fn f, const void *context, double x, double claimed, double *nearest);

/* What the seeded rows of a check gave. */
typedef struct cli_loss_tally {
  int failed;
  double worst;    /* error of a derivative, of rows whose values are finite */
  char first[512]; /* what is wrong with the first row that failed */
  json_t *rows;    /* NULL without --json */
} cli_loss_tally;

/* ---- boundary.c ---- */

enum { CLI_LOSS_NATS_MAX = 20 }; /* beyond such a difference of logprobs a ratio may overflow: what trainers clamp to */
/* How many rows at the limits of what training produces there are for this loss: logprob 0, -1e-7 and down to -1e4,
 * old_logprob and ref_logprob likewise, entropy 0 and log V, advantages of 0 and up to 1e4 of either sign, weight 0,
 * vectors of 0 and up to 64. */
int cli_loss_boundary_rows(const flp_loss *loss);
void cli_loss_boundary_draw(const flp_loss *loss, int i, double inputs[FLP_LOSS_ALL_INPUTS]);
/* The greatest difference, in nats, of those of logprob, old_logprob and ref_logprob that the loss reads. */
double cli_loss_difference(const flp_loss *loss, const double inputs[FLP_LOSS_ALL_INPUTS]);

/* ---- targets.c ---- */

/* So many seeded rows of a loss over targets; a row fails whose derivative is wrong, or whose loss is not finite. */
void cli_loss_targets_check(const flp_loss *loss, uint64_t seed, int rows, const double *given, cli_loss_tally *out);

enum { LOSS_INDENT = 13 }; /* of what is said of a loss, beside labels */

/* ---- the actions ---- */

int cli_loss_check(int argc, char **argv);
extern const cli_values cli_loss_list_argp, cli_loss_show_argp, cli_loss_check_argp;

#endif
