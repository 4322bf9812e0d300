/* paths.h: where plans look for kernels, and what was tuned for whom there: a part of `flpgen doctor`. */
#ifndef FLPGEN_CLI_DOCTOR_PATHS_H
#define FLPGEN_CLI_DOCTOR_PATHS_H

#include <jansson.h>

#include "runtime/driver/driver.h"

enum { DOCTOR_PATHS_MAX = 32 };

/* One path of FLP_CACHE_PATH, or the cache. */
typedef struct doctor_path {
  char path[1024];
  int is_pack;
  char name[128];            /* that a pack gives itself */
  char problem[1024];        /* why nothing is taken from it, or "" */
  int is_signed, is_trusted; /* packs; directories are trusted as their owner and mode allow */
  uint64_t entries;
  uint64_t tuned_here, tuned_elsewhere; /* for a device of this machine, by name and SM count; for others */
  uint64_t tuned_before;                /* by a flpgen of other sources: of no use */
} doctor_path;

/* Looks at every path, in the order that plans do. Returns how many there are; more than DOCTOR_PATHS_MAX are left
 * out. */
int doctor_paths_examine(const flp_device *devices, int device_count, doctor_path out[DOCTOR_PATHS_MAX]);

json_t *doctor_paths_json(const doctor_path *paths, int count);
void doctor_paths_print(const doctor_path *paths, int count);

#endif
