/* select.h: the eager rung of flp_select. */
#ifndef FLP_EAGER_SELECT_H
#define FLP_EAGER_SELECT_H

#include "runtime/flp.h"

/* One pass of flp_select. args have been validated and strides filled in. bad_rows: added to, targets outside
 * [0, V) and rows beyond FLP_SCORE_LIMIT */
void flp_eager_select(const flp_spec *spec, const flp_select_args *args, int threads, uint64_t *bad_rows);

#endif
