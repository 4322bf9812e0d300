/* select.h: the launches of flp_select. */
#ifndef FLP_LAUNCH_SELECT_H
#define FLP_LAUNCH_SELECT_H

#include "runtime/launch/launch.h"

flp_status flp_launch_select(const flp_call *call, const flp_select_args *args);

#endif
