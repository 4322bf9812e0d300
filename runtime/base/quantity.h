/* quantity.h: amounts of memory: their one notation (FLP_BUDGET, --budget, --workspace, --keep), and the
 * default budget of a pass. */
#ifndef FLP_QUANTITY_H
#define FLP_QUANTITY_H

#include "runtime/flp.h"

/* For errors and help texts; flp.h has the same words. */
#define FLP_BYTES_FORMS "decimal, a fraction too, with or without a suffix K, M, G, T or KiB, MiB, GiB, TiB (1024 each)"

/* The workspace budget of a pass: the given one, or if that is 0 a plan's default, for passes with gradients a share of
 * what memory the GPU has. memory_bytes: all of it; 0: on the host. unit: bytes */
uint64_t flp_pass_budget(uint64_t given_bytes, flp_pass pass, uint64_t memory_bytes);

#endif
