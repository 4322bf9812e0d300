/* losses.h: a loss by name or from a file, the options that name one, and its texts. */
#ifndef FLPGEN_CLI_LOSSES_H
#define FLPGEN_CLI_LOSSES_H

#include <jansson.h>

#include "gen/cli/shared/common.h"
#include "gen/gen.h"

typedef struct cli_loss {
  flp_loss program;
  char formula[512], source[256]; /* those of a sum divided by "; " */
} cli_loss;

/* A built-in loss, a file that ends in .lua, or a sum of such terms: "grpo", "my.lua", "grpo+k3".
 * error: ARGUMENT for an unknown name, IO, COMPILE with "file:LINE: message" */
flp_status cli_loss_load(const char *text, cli_loss *out);

/* Reads "name=value", the value of option `field`, into the parameters of a program.
 * error: ARGUMENT naming what is accepted */
flp_status cli_loss_set(const flp_loss *loss, const char *field, const char *text,
                        double parameters[FLP_LOSS_PARAMETERS_MAX]);

/* Lists for people: "logprob, weight", "clip_low 0.2 in [0, 1]", "ratio", "logprob". "-" for none. Returns buffer. */
enum { CLI_LOSS_TEXT_BYTES = 768 };
const char *cli_loss_inputs_text(const flp_loss *loss, char buffer[CLI_LOSS_TEXT_BYTES]);
const char *cli_loss_parameters_text(const flp_loss *loss, char buffer[CLI_LOSS_TEXT_BYTES]);
const char *cli_loss_metrics_text(const flp_loss *loss, char buffer[CLI_LOSS_TEXT_BYTES]);
const char *cli_loss_gradients_text(const flp_loss *loss, char buffer[CLI_LOSS_TEXT_BYTES]);

/* The whole of a loss: texts, what it reads and reports, operations, bytes in hex and their SHA-256. */
json_t *cli_loss_json(const cli_loss *loss);

/* ---- losses_kept.c ---- */

/* Loads a loss and keeps it until the program ends: spec->loss borrows its bytes. Not for several threads.
 * error: as cli_loss_load; MEMORY */
flp_status cli_loss_keep(const char *text, flp_spec *spec);
/* The program that was kept with this SHA-256 of its bytes, or whose bytes a spec borrows; NULL if there is none. */
const flp_loss *cli_loss_kept(const uint8_t digest[32]);
const flp_loss *cli_loss_of(const flp_spec *spec);
/* What the loss of a spec needs of its entropy at least. */
flp_entropy cli_loss_entropy(const flp_spec *spec);

/* --loss and its --loss-parameter, in any order. */
typedef struct cli_loss_args {
  const char *name; /* NULL without a loss */
  const char *sets[FLP_LOSS_PARAMETERS_MAX];
  int set_count;
  double parameters[FLP_LOSS_PARAMETERS_MAX]; /* of flp_args.loss_parameters, once resolved */
} cli_loss_args;
#define CLI_LOSS_PARAMETER_HELP \
  "a parameter of the loss, e.g. beta=0.04; may be repeated; the others keep their defaults"
/* error: ARGUMENT for more than a loss has */
flp_status cli_loss_args_add(const char *text, void *args);
/* Keeps the loss for spec, whose targets it goes with, and fills the parameters; without one only refuses parameters.
 * error: as cli_loss_keep, cli_loss_set; ARGUMENT naming --targets */
flp_status cli_loss_args_resolve(cli_loss_args *args, flp_spec *spec);

#endif
