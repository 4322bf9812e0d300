/* proof.h: stamps that `flpgen prove` leaves in the kernel cache: that an architecture's kernels are right and fast on
 * a GPU, or why they are not.
 *
 * A stamp counts for GPUs of one name and capability, one driver, one architecture and these sources alone. A proof of
 * one's own, in the writable directory, counts before those of read-only ones; packs hold none. */
#ifndef FLP_PROOF_H
#define FLP_PROOF_H

#include "runtime/store/store.h"

typedef enum flp_verdict { FLP_VERDICT_NONE, FLP_VERDICT_PROVEN, FLP_VERDICT_REFUTED } flp_verdict;

/* What was proven. */
typedef struct flp_proof_of {
  const char *gpu, *arch; /* name of the GPU, as the driver has it */
  int capability, driver; /* as 90 and 13000 */
} flp_proof_of;

enum { FLP_PROOF_REASON_BYTES = 256 };
typedef struct flp_proof {
  flp_verdict verdict;    /* NONE: there is no stamp */
  int64_t time;           /* of the proof, seconds since the epoch */
  double ms, portable_ms; /* of the calls that were timed, together, and of portable kernels'; 0: none was timed */
  char reason[FLP_PROOF_REASON_BYTES]; /* of REFUTED */
} flp_proof;

/* "proven", "refuted", "unproven". */
const char *flp_verdict_name(flp_verdict verdict);

/* Looks for a stamp. A corrupt one counts as none, and is renamed away in the writable directory. */
void flp_proof_find(const flp_store *store, const flp_proof_of *of, flp_proof *out);

/* Writes a stamp to the writable directory, in the place of the one that was there. verdict: PROVEN or REFUTED
 * error: IO with the reason; MEMORY */
flp_status flp_proof_write(const flp_store *store, const flp_proof_of *of, const flp_proof *proof);

#endif
