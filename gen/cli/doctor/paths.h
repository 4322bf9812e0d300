/* paths.h: where plans look for kernels, and which devices those are tuned for: a part of `flpgen doctor`. */
#ifndef FLPGEN_CLI_DOCTOR_PATHS_H
#define FLPGEN_CLI_DOCTOR_PATHS_H

#include <jansson.h>

#include "runtime/driver/driver.h"
#include "runtime/store/store.h"

enum { DOCTOR_PATHS_MAX = 32 };

/* One path of FLP_CACHE_PATH, or the cache. */
typedef struct doctor_path {
  char path[1024];
  int is_pack;
  char name[128];     /* that a pack gives itself */
  char problem[1024]; /* why nothing is taken from it, or "" */
  char signer[65];    /* packs: the public key in hex; "" if it is not signed */
  int has_keys;       /* FLP_PACK_KEYS names trusted keys, which signers are compared with */
  int is_absent;      /* there is no such directory */
  int is_trusted;     /* it is signed with one of them */
  uint64_t entries;
  uint64_t tuned_here, tuned_elsewhere; /* for a device of this machine, by name and SM count; for others */
  uint64_t other_sources;               /* entries of no use, tuned or not */
  char made[FLP_STORE_MADE_BYTES];      /* by whom these were */
} doctor_path;

/* Looks at every path, in the order that plans do. Returns how many there are; more than DOCTOR_PATHS_MAX are left
 * out. */
int doctor_paths_examine(const flp_device *devices, int device_count, doctor_path out[DOCTOR_PATHS_MAX]);

json_t *doctor_paths_json(const doctor_path *paths, int count);
void doctor_paths_print(const doctor_path *paths, int count);

/* Whether a directory that is not there could be made: the nearest one above it may be written. */
int doctor_path_can_be_made(const char *path);

#endif
