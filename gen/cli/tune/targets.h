/* targets.h: the specialisations that are tuned. */
#ifndef FLPGEN_CLI_TUNE_TARGETS_H
#define FLPGEN_CLI_TUNE_TARGETS_H

#include "gen/cli/tune/tune.h"

typedef struct tune_target {
  flp_spec spec; /* resolved */
  double scale;
  char model[64]; /* name of the preset, file of the model, or "" */
  char text[TUNE_TEXT_BYTES];
} tune_target;

typedef struct tune_targets {
  tune_target *items; /* owned */
  int count;
} tune_targets;

/* The specialisations that the arguments name. error: ARGUMENT, IO, CORRUPT */
flp_status tune_targets_create(const tune_args *args, tune_targets *out);
void tune_targets_clear(tune_targets *targets);

#endif
