/* normal.c: random data by a table of normal quantiles. */
#include "gen/cli/call/normal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/half.h"
#include "runtime/base/status.h"

enum { QUANTILES = 65536 };

/* SplitMix64. source: Steele, Lea, Flood, OOPSLA 2014 */
uint64_t cli_hash(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

/* quantiles[i] = sigma·Φ⁻¹((i + 1/2)/65536), by Newton from the neighbour nearer to the middle. */
static void fill_quantiles(float quantiles[QUANTILES], double sigma) {
  double x = 0.0;
  for (int i = QUANTILES / 2; i < QUANTILES; i++) {
    double upper = (QUANTILES - i - 0.5) / QUANTILES; /* 1 - p, exact in the tail */
    for (int step = 0; step < 4; step++) {
      double error = 0.5 * erfc(x * M_SQRT1_2) - upper;
      x += error / (exp(-0.5 * x * x) * 0.3989422804014327);
    }
    quantiles[i] = (float)(sigma * x);
    quantiles[QUANTILES - 1 - i] = -quantiles[i];
  }
}

flp_status cli_normal_create(flp_dtype dtype, double sigma, uint64_t seed, cli_normal *out) {
  *out = (cli_normal){.dtype = dtype, .seed = seed};
  float *wide = malloc(QUANTILES * sizeof *wide);
  out->quantiles = malloc(QUANTILES * (size_t)flp_half_bytes(dtype));
  flp_status status = FLP_OK;
  if (wide && out->quantiles) {
    fill_quantiles(wide, sigma);
    flp_half_narrow(dtype, wide, QUANTILES, out->quantiles);
  } else {
    cli_normal_destroy(out);
    status = flp_fail(FLP_ERROR_MEMORY, "out of host memory for random data");
  }
  free(wide);
  return status;
}

void cli_normal_destroy(cli_normal *normal) {
  free(normal->quantiles);
  *normal = (cli_normal){0};
}

/* element: bytes of one, a constant where this is called */
static inline void fill(const char *quantiles, size_t element, uint64_t seed, int64_t begin, int64_t count, char *out) {
  for (int64_t i = 0; i < count; i += CLI_NORMAL_BLOCK) {
    uint64_t bits = cli_hash(seed + (uint64_t)(begin + i) / CLI_NORMAL_BLOCK);
    for (int64_t j = i; j < i + CLI_NORMAL_BLOCK && j < count; j++, bits >>= 16)
      memcpy(out + (size_t)j * element, quantiles + (bits & 0xffff) * element, element);
  }
}

void cli_normal_fill(const cli_normal *normal, int64_t begin, int64_t count, void *out) {
  if (normal->dtype == FLP_DTYPE_FP32)
    fill(normal->quantiles, sizeof(float), normal->seed, begin, count, out);
  else
    fill(normal->quantiles, sizeof(uint16_t), normal->seed, begin, count, out);
}
