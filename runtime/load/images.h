/* images.h: what one rung of the ladder has for a spec: a kernel image for every kernel, or a reason.
 *
 * Invariant: images handed out were checked against their key, this library's abi.h and the device's limits. */
#ifndef FLP_IMAGES_H
#define FLP_IMAGES_H

#include "runtime/load/tuned.h"

typedef struct flp_images {
  int count;
  flp_kernel_image image[FLP_SPEC_KERNELS_MAX];
  uint8_t key_hash[FLP_SPEC_KERNELS_MAX][32]; /* SHA-256 of the key bytes that it was found or made under */
  int driver[FLP_SPEC_KERNELS_MAX];           /* TUNED: that it was tuned with; 0 for a kernel that cannot be tuned */
  uint8_t nearest[FLP_KERNEL_KINDS];          /* by kind: 1 if it has the tiling of request->nearest */
  flp_store *store;                           /* owned: that they came from or went to; NULL if none was opened */
} flp_images;

/* What a rung works from. */
typedef struct flp_images_request {
  const flp_spec *spec; /* resolved */
  const flp_device *device;
  int driver_version;
  const char *arch;
  const char *cache_dir, *cache_path; /* of flp_options */
  const flp_tuning *tuning;
  int has_tuning; /* the options give tile configurations, if only the defaults */
  flp_tuned *tuned;             /* TUNED: where to look for what was tuned with other drivers; read if need be */
  const flp_tuned_tiling *nearest; /* HEURISTIC, JIT: tilings where tuning leaves the default; or NULL */
} flp_images_request;

/* Collects the images of a rung, TUNED to GENERIC. *out is to be cleared, also on failure.
 * error: UNAVAILABLE if there is none, with the reason; ARGUMENT if a template refuses the tiling of request->tuning
 * for its
 *        kernel; COMPILE, UNSUPPORTED, CORRUPT, MEMORY */
flp_status flp_images_collect(flp_rung rung, const flp_images_request *request, flp_images *out);
void flp_images_clear(flp_images *images);

/* Finds the tile configurations of the nearest tuned neighbours of request->spec's kernels on this device.
 * error: MEMORY, INTERNAL */
flp_status flp_images_nearest(const flp_images_request *request, flp_tuned_tiling *out);

#endif
