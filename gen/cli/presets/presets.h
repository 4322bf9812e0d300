/* presets.h: heads of published models, for `flpgen tune` and `flpgen pack build`. */
#ifndef FLPGEN_CLI_PRESETS_H
#define FLPGEN_CLI_PRESETS_H

#include "gen/cli/shared/spec_args.h"

enum { CLI_PRESETS_MAX = 1024 };

typedef struct cli_preset {
  const char *name; /* borrowed */
  int64_t vocab, hidden;
  float softcap; /* 0: none */
  double scale;  /* of the scores; 0: not given */
  int has_bias;
} cli_preset;

typedef flp_status (*cli_preset_fn)(void *context, const cli_preset *preset);

/* Visits the presets of a list of names, or all: NULL, or a name "all". A visit that fails ends it.
 * path:  a file of presets, NULL for the ones built in
 * error: ARGUMENT with the names that there are; IO; CORRUPT naming entry and field; what a visit returned */
flp_status cli_presets_each(const char *path, const char *names, cli_preset_fn visit, void *context);

/* Sets what a preset has of a specification; an option of args comes before it. */
void cli_preset_apply(const cli_preset *preset, const cli_spec_args *args, flp_spec *spec);

/* The file autotune/presets/presets.json, NUL-terminated. */
extern const unsigned char cli_presets_text[];

#endif
