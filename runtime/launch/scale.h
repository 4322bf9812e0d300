/* scale.h: the launch of flp_scale. */
#ifndef FLP_LAUNCH_SCALE_H
#define FLP_LAUNCH_SCALE_H

#include "runtime/launch/launch.h"

flp_status flp_launch_scale(const flp_call *call, const flp_scale_args *args);

#endif
