/* model.h: the predicted cost of a tile configuration: enough to leave out what cannot win and to order the rest.
 *
 * A tile of R x C over K takes the tensor cores' clocks, and beside them shares for what moves: operands from shared
 * memory and from L2 (a cluster divides the second), waiting in a cluster, a pipeline that is short, an epilogue that
 * nothing hides. Then come how evenly units fill the clusters, operands that L2 does not keep, and what forward_keep
 * stores: 2 bytes a score at the rate of device memory, as costs add up where power is what binds. The shares are
 * fitted to a record of one H200 at its power limit; it ranks, and predicts times to some percent. Of portable kernels
 * they are the same where something moves, fitted to nothing: it ranks, and its times are rough.
 * source: `autotune/tuning_records.py fit` for the shares */
#ifndef FLP_AUTOTUNE_MODEL_H
#define FLP_AUTOTUNE_MODEL_H

#include "runtime/driver/driver.h"
#include "runtime/kernel/kernel.h"

/* Milliseconds of an architecture's kernel over n rows of a spec's head. dz and products: over all chunks of
 * `chunk_vocab` columns. tune: every field set and accepted. spec: resolved */
double model_ms(const char *arch, flp_kernel_kind kind, const flp_spec *spec, int64_t n, int64_t chunk_vocab,
                const flp_device *device, const flp_tunables *tune);

#endif
