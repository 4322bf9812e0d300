/* quantity.h: amounts of memory: the one way in which they are written (FLP_BUDGET, --budget, --workspace, --keep), and
 * what a pass takes by default. */
#ifndef FLP_QUANTITY_H
#define FLP_QUANTITY_H

#include "runtime/flp.h"

/* For errors and help texts; flp.h has the same words. */
#define FLP_BYTES_FORMS "decimal, a fraction too, with or without a suffix K, M, G, T or KiB, MiB, GiB, TiB (1024 each)"

/* The workspace budget of a pass: what was given, or where that is 0 what a plan takes by itself. unit: bytes */
uint64_t flp_pass_budget(uint64_t given_bytes, flp_pass pass);

#endif
