/* keep.h: saved exponentials, from a chunk's scores to its gradients: what save, stream and direction modes share. */
#ifndef FLP_LAUNCH_KEEP_H
#define FLP_LAUNCH_KEEP_H

#include "runtime/launch/launch.h"

/* Where save mode saves those of active rows from `first` on: in args.saved. */
flp_keep_sink flp_keep_saved(const flp_call *call, int64_t first);

/* References of a chunk's rows. Rows have been gathered where kernels want that. */
flp_status flp_launch_reference(const flp_call *call, flp_row_range rows, const flp_keep_sink *keep);

/* References, then partials and exponentials of all columns. */
flp_status flp_launch_keep(const flp_call *call, flp_row_range rows, const flp_keep_sink *keep);

/* The gradients of a chunk, from its exponentials. first, last: among the chunks of the call */
flp_status flp_launch_kept(const flp_call *call, flp_row_range rows, const flp_keep_sink *keep, int first, int last);

#endif
