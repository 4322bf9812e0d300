/* diverge.h: the eager rung of flp_diverge. */
#ifndef FLP_EAGER_DIVERGE_H
#define FLP_EAGER_DIVERGE_H

#include "runtime/loss/loss.h"

/* One pass of flp_diverge. args have been validated, strides and parameters filled in. bad_rows: added to, rows beyond
 * FLP_SCORE_LIMIT. error: MEMORY */
flp_status flp_eager_diverge(const flp_spec *spec, const flp_loss *loss, const flp_diverge_args *args, int threads,
                             uint64_t *bad_rows);

#endif
