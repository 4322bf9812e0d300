/* scale.h: the eager rung of flp_scale. */
#ifndef FLP_EAGER_SCALE_H
#define FLP_EAGER_SCALE_H

#include "runtime/flp.h"

/* args have been validated and the stride filled in. */
void flp_eager_scale(const flp_spec *spec, const flp_scale_args *args);

#endif
