/* heads.h: the specialisations that are tuned. */
#ifndef FLPGEN_CLI_TUNE_HEADS_H
#define FLPGEN_CLI_TUNE_HEADS_H

#include "gen/cli/tune/tune.h"

typedef struct tune_head {
  flp_spec spec; /* resolved */
  double scale;
  char model[64]; /* name of the preset, file of the model, or "" */
  char text[TUNE_TEXT_BYTES];
} tune_head;

typedef struct tune_heads {
  tune_head *items; /* owned */
  int count;
} tune_heads;

/* The specialisations that the arguments name. error: ARGUMENT, IO, CORRUPT */
flp_status tune_heads_create(const tune_args *args, tune_heads *out);
void tune_heads_clear(tune_heads *targets);
/* The architecture whose kernels are tuned: the first that plans of the target try on such a device. clusters: whether
 * the driver launches them. error: UNAVAILABLE if there is none */
flp_status tune_head_arch(const tune_args *args, const tune_head *target, const flp_device *device, int driver,
                          int clusters, const char **out);

#endif
