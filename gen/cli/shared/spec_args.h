/* spec_args.h: the options that name a specialisation and its kernels' tile configurations, shared by gen, explain,
 * bench and check as an argp child. */
#ifndef FLPGEN_CLI_SPEC_ARGS_H
#define FLPGEN_CLI_SPEC_ARGS_H

#include "gen/cli/shared/common.h"
#include "gen/cli/shared/losses.h"
#include "runtime/base/fields.h"

typedef struct cli_spec_args {
  flp_spec spec;     /* as given; cli_spec_args_resolve fills it in */
  const char *model; /* config.json, or NULL */
  double scale;      /* logit scale of the model, 1 without one; a run-time value */
  uint64_t given;    /* a bit for each of the options that was given, those of fields by flp_field_id */
  const char *tune;  /* for flp_options.tune, parsed once; or NULL */
  int takes_op;      /* the verb accepts other operations than head */
  uint32_t leaves;   /* a bit for each flp_feature that the verb does not accept */
  double kept;       /* of --keep-set: ids of a row's list, on average; 0 without */
  cli_loss_args loss;
} cli_spec_args;

#define CLI_SPEC_ARGS_INIT \
  { .spec = FLP_SPEC_INIT, .scale = 1.0 }

/* The argp child; its input is a cli_spec_args. */
extern const struct argp_child cli_spec_children[];

/* Whether the option of a field was given. */
static inline int cli_spec_args_given(const cli_spec_args *args, flp_field_id field) {
  return (int)(args->given >> field & 1);
}
/* Sets a field as its option says; a LOSS stays. error: ARGUMENT naming the option */
flp_status cli_spec_parse(flp_field_id field, const char *text, flp_spec *spec);

/* The first option given that is none of those whose names are accepted; NULL if there is none. accepted: ends in
 * NULL */
const char *cli_spec_args_other(const cli_spec_args *args, const char *const *accepted);

/* Sets out->tune where --tune was given, else it is NULL, and the rung to the generator's then, unless one is pinned.
 * error: ARGUMENT if that is a rung whose kernels have one tile configuration */
flp_status cli_spec_args_tune(const char *tune, flp_options *out);

/* Whether each kernel that text names is one that a resolved spec has, and is tunable, on an architecture; NULL: on
 * some. field: the option that text is of. error: ARGUMENT naming the kernel */
flp_status cli_spec_check_tiling(const char *field, const char *text, const flp_spec *spec, const char *arch);

/* Sets the field that asks for a mode, of keep, listed and tail, and clears the others; save, direction and tail modes,
 * and listed, are asked for by it. A tail that is set stays. */
void cli_spec_set_mode(flp_spec *spec, flp_mode mode);

/* Save, direction and tail modes set the field of the spec that asks for them. Stream mode needs a loss of one target.
 * Lists have a mode of their own.
 * error: ARGUMENT */
flp_status cli_spec_args_mode(cli_spec_args *args, flp_mode mode);

/* The mode that was given; where --keep or --tail was without one, the mode in which forward then keeps something. */
flp_mode cli_spec_args_kept(const cli_spec_args *args, flp_mode mode);

/* Whether the verb accepts what is asked for, and that goes together. error: ARGUMENT naming the option */
flp_status cli_spec_args_features(const cli_spec_args *args);
/* Whether lists of that mean length fit a vocabulary. error: ARGUMENT naming --keep-set */
flp_status cli_spec_check_kept(double kept, int64_t vocab);

/* Whether direction mode can have the gradients of a resolved spec. error: ARGUMENT naming the option */
flp_status cli_spec_check_direction(const flp_spec *spec);

/* Whether mode and chunks are of a backward pass that there is, and the chunks of that mode; whether the gradients of a
 * resolved spec are direction mode's.
 * mode: 0 for any; chunk sizes: 0 where none was given. error: ARGUMENT naming the option that would do nothing */
flp_status cli_spec_args_backward(const cli_spec_args *args, flp_mode mode, int64_t chunk_rows, int64_t chunk_vocab);

/* For verbs that time what is kept or steps, not both. error: ARGUMENT if both --keep and --loss are given */
flp_status cli_spec_args_one_mode(const cli_spec_args *args);

/* Fills what follows from other options in a spec whose loss, if any, is loaded: the dtype of a gradient that is added
 * to, the entropy that the loss needs. */
void cli_spec_args_complete(const cli_spec_args *args, flp_spec *spec);

/* Fills what was not given from the model and checks the whole, what is asked for beside each other too.
 * error: ARGUMENT naming the field; IO, CORRUPT for the model's file */
flp_status cli_spec_args_resolve(cli_spec_args *args);

#endif
