/* quantity.c: see quantity.h.
 *
 * Invariant: no function here depends on the locale of the program, so 1.5G is the same everywhere. */
#include "runtime/base/quantity.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#include "runtime/base/status.h"

/* Enough for the byte of a fraction of a TiB; further digits are read and dropped. */
static const double FRACTION_UNITS = 1e15;

/* Reads digits. Returns 0 if there are none, or if the number is not below 2^63. */
static int read_whole(const char **at, uint64_t *out) {
  uint64_t value = 0;
  if (!isdigit((unsigned char)**at)) return 0;
  for (; isdigit((unsigned char)**at); ++*at) {
    uint64_t digit = (uint64_t)(**at - '0');
    if (value > ((uint64_t)INT64_MAX - digit) / 10) return 0;
    value = 10 * value + digit;
  }
  *out = value;
  return 1;
}

/* Reads a point and digits, if there is a point. Returns 0 if no digit follows it. */
static int read_fraction(const char **at, double *out) {
  double value = 0, units = 1;
  *out = 0;
  if (**at != '.') return 1;
  if (!isdigit((unsigned char)*++*at)) return 0;
  for (; isdigit((unsigned char)**at); ++*at) {
    if (units >= FRACTION_UNITS) continue;
    value = 10 * value + (**at - '0');
    units *= 10;
  }
  *out = value / units;
  return 1;
}

/* The power of two of a suffix; -1 if it is none. */
static int shift_of(const char *suffix) {
  static const char letters[] = "KMGT";
  if (!suffix[0]) return 0;
  const char *letter = strchr(letters, suffix[0]);
  if (!letter || (suffix[1] && strcmp(suffix + 1, "iB") != 0)) return -1;
  return 10 * (int)(letter - letters + 1);
}

static int read_bytes(const char *text, uint64_t *out) {
  uint64_t whole;
  double fraction;
  if (!read_whole(&text, &whole) || !read_fraction(&text, &fraction)) return 0;
  int shift = shift_of(text);
  if (shift < 0 || whole > (uint64_t)INT64_MAX >> shift) return 0;
  *out = (whole << shift) + (uint64_t)(fraction * (double)(UINT64_C(1) << shift));
  return 1;
}

flp_status flp_bytes_parse(const char *name, const char *text, uint64_t least, uint64_t *out_bytes) {
  uint64_t bytes = 0;
  if (text && read_bytes(text, &bytes) && bytes >= least) {
    *out_bytes = bytes;
    return FLP_OK;
  }
  *out_bytes = 0;
  return flp_fail(FLP_ERROR_ARGUMENT, "%.60s is \"%.60s\" (accepted: bytes >= %" PRIu64 ", " FLP_BYTES_FORMS ")", name,
                  text ? text : "", least);
}

uint64_t flp_pass_budget(uint64_t given_bytes, flp_pass pass, uint64_t memory_bytes) {
  const uint64_t scoring = UINT64_C(256) << 20, on_host = UINT64_C(1) << 30, step = UINT64_C(64) << 20;
  if (given_bytes) return given_bytes;
  if (pass < FLP_PASS_BACKWARD) return scoring;
  if (!memory_bytes) return on_host;
  uint64_t share = memory_bytes / 20 / step * step; /* in steps: drivers report a card's memory to within megabytes */
  return share > scoring ? share : scoring;
}
