/* modes.c: see modes.h. */
#include "runtime/base/modes.h"

#include <strings.h>

static const struct {
  const char *name, *alias;
} modes[] = {[0] = {"-", "-"},
             [FLP_MODE_SCORE] = {"score", "F"},
             [FLP_MODE_RECOMPUTE_VOCAB] = {"recompute-vocab", "R_VOCAB"},
             [FLP_MODE_RECOMPUTE_ROWS] = {"recompute-rows", "R_ROWS"},
             [FLP_MODE_RECOMPUTE_SPLIT] = {"recompute-split", "R2"},
             [FLP_MODE_SAVE] = {"save", "S"},
             [FLP_MODE_STREAM] = {"stream", "P"}};

static int is_mode(flp_mode mode) {
  return mode >= FLP_MODE_SCORE && mode <= FLP_MODE_STREAM;
}

const char *flp_mode_name(flp_mode mode) {
  return modes[is_mode(mode) ? mode : 0].name;
}

const char *flp_mode_alias(flp_mode mode) {
  return modes[is_mode(mode) ? mode : 0].alias;
}

flp_mode flp_mode_find(const char *text) {
  for (int mode = FLP_MODE_SCORE; mode <= FLP_MODE_STREAM; mode++)
    if (strcasecmp(text, modes[mode].name) == 0 || strcasecmp(text, modes[mode].alias) == 0) return (flp_mode)mode;
  return (flp_mode)0;
}
