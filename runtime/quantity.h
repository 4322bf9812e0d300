/* quantity.h: the one way in which amounts of memory are written: FLP_BUDGET, --budget, --workspace, --keep. */
#ifndef FLP_QUANTITY_H
#define FLP_QUANTITY_H

#include "flp.h"

/* For errors and help texts; flp.h has the same words. */
#define FLP_BYTES_FORMS "decimal, a fraction too, with or without a suffix K, M, G, T or KiB, MiB, GiB, TiB (1024 each)"

#endif
