/* store.h: what was found, in a kernel cache. */
#ifndef FLPGEN_CLI_TUNE_STORE_H
#define FLPGEN_CLI_TUNE_STORE_H

#include "gen/cli/tune/session.h"

/* The layout in descriptors where it is not the planner's; 0 for no preference. One chunk of everything is the
 * same in either mode, and prefers nothing where the rows are more. */
typedef struct tune_chunks {
  uint32_t rows, vocab; /* of dz */
  uint32_t step;        /* rows, of forward_keep */
} tune_chunks;
tune_chunks tune_chunks_of(const flp_spec *spec, int64_t rows, flp_mode mode, int64_t chunk_rows, int64_t chunk_vocab);

/* Puts the kernels of a target into a cache directory as tuned for the device; those that were not tuned as they are.
 * directory: NULL for the cache of this user.
 * error: IO, CORRUPT */
flp_status tune_store(const tune_session *session, const char *directory);

#endif
