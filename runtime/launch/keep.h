/* keep.h: saved exponentials, from a chunk's scores to its gradients: what save, stream and direction modes share. */
#ifndef FLP_LAUNCH_KEEP_H
#define FLP_LAUNCH_KEEP_H

#include "runtime/launch/launch.h"

/* Where save mode saves those of active rows from `first` on: in args.saved. */
flp_keep_sink flp_keep_saved(const flp_call *call, int64_t first);

/* References of a chunk's rows. Rows have been gathered where kernels want that. */
flp_status flp_launch_reference(const flp_call *call, flp_row_range rows, const flp_keep_sink *keep);

/* Partials and exponentials of some columns, range after range; and lists, where best columns or ranks are asked for. */
flp_status flp_launch_kept_scores(const flp_call *call, flp_row_range rows, flp_column_range columns,
                                  const flp_keep_sink *keep);

/* References, then these of all columns. */
flp_status flp_launch_keep(const flp_call *call, flp_row_range rows, const flp_keep_sink *keep);

/* The gradients of a chunk, from its exponentials. first, last: among the chunks of the call */
flp_status flp_launch_kept(const flp_call *call, flp_row_range rows, const flp_keep_sink *keep, int first, int last);

#endif
