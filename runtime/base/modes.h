/* modes.h: the names of flp_mode. */
#ifndef FLP_MODES_H
#define FLP_MODES_H

#include "runtime/flp.h"

/* "score", "recompute-vocab", "recompute-rows", "recompute-split", "save", "stream"; "-" for none. */
const char *flp_mode_name(flp_mode mode);

/* The name that the mode had in release 0.1.0, in whose records it stands: "F", "R_VOCAB", "R_ROWS", "R2", "S", "P". */
const char *flp_mode_alias(flp_mode mode);

/* The mode of that name or alias, in letters of either case; 0 if there is none. */
flp_mode flp_mode_find(const char *text);

#endif
