/* tuned.h: the tuned kernels that caches hold for one device, and which of them serve a kernel that was not tuned
 * itself.
 *
 * Two questions are asked. Was this very kernel tuned with another driver? PTX is portable, and the best tile
 * configuration depends on the hardware far more than on the driver, so such an entry serves. Else: which tuned kernel
 * is the most alike? That is nearest-neighbour prediction: the tunables of the tuned kernel at the least distance
 * (flp_tuned_distance) are taken over. They change the time that a kernel takes and none of its forward bits, so a poor
 * guess costs speed only. Invariants: a list holds key texts that are unchecked yet: an entry that
 * turns out to be unreadable is marked bad and the next one is asked for; equal caches, devices and drivers give equal
 * answers in every process. */
#ifndef FLP_TUNED_H
#define FLP_TUNED_H

#include "runtime/driver/driver.h"
#include "runtime/store/store.h"

typedef struct flp_tuned_entry {
  flp_kernel_key key;
  int driver; /* it was tuned with, as cuDriverGetVersion counts: 13000 */
  int bad;    /* set by the user of the list */
  char *text; /* its key bytes, owned */
} flp_tuned_entry;

/* Zeroed before its first use. */
typedef struct flp_tuned {
  flp_tuned_entry *items; /* owned */
  size_t count, capacity;
  int is_read;
  uint64_t others;  /* entries of other sources, for any device */
  char sources[65]; /* of the first of them */
} flp_tuned;

/* The tile configurations that the nearest neighbours give a spec's kernels. */
typedef struct flp_tuned_tiling {
  flp_tuning tuning;
  flp_kernel_key from[FLP_KERNEL_KINDS]; /* by kind: the neighbour, where the tuning is not the template's own */
  uint8_t is[FLP_KERNEL_KINDS];          /* by kind: 1 if there is one */
} flp_tuned_tiling;

/* Writes "<device name>/<SM count>/<driver>", as keys name what a kernel was tuned for. */
enum { FLP_TUNED_FOR_BYTES = 192 };
void flp_tuned_for(const flp_device *device, int driver, char out[FLP_TUNED_FOR_BYTES]);

/* Lists the tuned entries of this library's sources for a device of that name and SM count, with any driver; once, then
 * the list stays as it is. Reads keys alone. error: MEMORY */
flp_status flp_tuned_read(flp_tuned *tuned, flp_store *store, const flp_device *device);
void flp_tuned_clear(flp_tuned *tuned);

/* The entry of this very kernel: of the newest driver not newer than this one, else of the oldest newer one. NULL:
 * none */
flp_tuned_entry *flp_tuned_find(flp_tuned *tuned, const flp_kernel_key *key, int driver);

/* The entry of the same kind, architecture, dtype and alignment at the least distance; of those at the same one, by
 * driver as above, then the first by key bytes. NULL: none */
flp_tuned_entry *flp_tuned_nearest(flp_tuned *tuned, const flp_kernel_key *key, int driver);

/* Likely distance of the best tile configurations of two kernels of one kind, in 1/4096 of a factor e of D. */
int64_t flp_tuned_distance(const flp_kernel_key *a, const flp_kernel_key *b);

/* Names the neighbours of the kinds that are 1: "V=151936 D=4096", or where they differ "forward V=… D=…, products
 * D=…". */
enum { FLP_TUNED_SHAPE_BYTES = 192 };
void flp_tuned_shape(const flp_tuned_tiling *tiling, const uint8_t kinds[FLP_KERNEL_KINDS],
                     char out[FLP_TUNED_SHAPE_BYTES]);

#endif
