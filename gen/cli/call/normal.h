/* normal.h: random data at real size, the same for the same seed on every machine.
 *
 * Element i of a matrix is a table of 65536 normal quantiles looked up by 16 bits of a hash of (seed, i), so that a
 * head of 622 million elements takes about a second to make, in blocks of any size. No element is 0. */
#ifndef FLPGEN_CLI_NORMAL_H
#define FLPGEN_CLI_NORMAL_H

#include <stdint.h>

#include "runtime/flp.h"

enum { CLI_NORMAL_BLOCK = 4 }; /* elements that one hash makes: a fill starts at a multiple */

typedef struct cli_normal {
  flp_dtype dtype; /* BF16, FP16 or FP32 */
  uint64_t seed;
  void *quantiles; /* owned: 65536 numbers in dtype */
} cli_normal;

/* Numbers of mean 0 and standard deviation sigma. error: MEMORY */
flp_status cli_normal_create(flp_dtype dtype, double sigma, uint64_t seed, cli_normal *out);
/* A zeroed one is fine. */
void cli_normal_destroy(cli_normal *normal);

/* Writes elements begin, begin + 1, ... of the stream; begin is a multiple of CLI_NORMAL_BLOCK. */
void cli_normal_fill(const cli_normal *normal, int64_t begin, int64_t count, void *out);

/* A number that is as good as random in each of its bits. */
uint64_t cli_hash(uint64_t x);
/* What the bits of such a one stand for: a number in [0, 1), and one in (-1, 1). */
static inline double cli_unit(uint64_t hash) {
  return (double)(hash >> 11) * 0x1p-53;
}
static inline double cli_uniform(uint64_t hash) {
  return ((double)(hash >> 11) + 0.5) * 0x1p-52 - 1.0;
}

#endif
