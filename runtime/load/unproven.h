/* unproven.h: which architectures plans leave out on a device: those that have never run where they are sold, until
 * `flpgen prove` has left a stamp (runtime/store/proof.h). */
#ifndef FLP_UNPROVEN_H
#define FLP_UNPROVEN_H

#include "runtime/driver/driver.h"
#include "runtime/kernel/arch.h"
#include "runtime/store/proof.h"

enum { FLP_UNPROVEN_BYTES = 384 };

/* Architectures that plans leave out, since nobody has proven their kernels on the device, and why. */
typedef struct flp_unproven {
  unsigned arches;                 /* 1 << row (arch.h) */
  char reason[FLP_UNPROVEN_BYTES]; /* of the newest; "" for none */
} flp_unproven;

/* Those that a plan of the spec (NULL: of some) leaves out on a device, which may have no name. clusters: 1 if the
 * driver launches them; driver: as 13000; cache_dir, cache_path: of flp_options, places to look before those of
 * settings. error: MEMORY */
flp_status flp_unproven_find(const flp_device *device, const flp_spec *spec, int clusters, int driver,
                             const char *cache_dir, const char *cache_path, flp_unproven *out);
/* The stamp of one, whether or not plans ask for it; and what its key is. error: MEMORY */
flp_status flp_unproven_proof(const flp_device *device, int driver, const char *cache_dir, const char *cache_path,
                              const flp_arch *arch, flp_proof *out);
flp_proof_of flp_unproven_key(const flp_device *device, int driver, const flp_arch *arch);

#endif
