/* metrics.h: how far off a result is. */
#ifndef FLPGEN_CLI_CALL_METRICS_H
#define FLPGEN_CLI_CALL_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "gen/cli/call/memory.h"

typedef struct check_metric {
  double share;   /* worst error over allowed error, at most 1 in what passes; infinite where a number is not finite */
  double max_ulp; /* largest error in units of the row's ulp; -1 where it does not apply */
  double rel_l2, cosine; /* of a reference that is zero: share, and pass */
  double bound;          /* of max_ulp at the worst row, or of rel_l2; 0 for bit identity */
  int pass;
} check_metric;

/* Per-row numbers: error in ulps against an allowance each. A wanted NaN or infinity must be met exactly.
 * unit: value of one ulp; allowed: in the values' unit */
check_metric check_metric_rows(const double *got, const double *wanted, const double *unit, const double *allowed,
                               int64_t count);
/* Such rows while they are collected. */
typedef struct check_numbers {
  double *got, *wanted, *unit, *allowed;
  int64_t count;
} check_numbers;
/* So many, all equal; memory owns them. NULLs where it is short. */
check_numbers check_numbers_of(cli_memory *memory, int64_t count);
void check_numbers_set(const check_numbers *numbers, int64_t at, double got, double wanted, double unit,
                       double allowed);
check_metric check_numbers_judge(const check_numbers *numbers);
/* A tensor: the L2 norm of its error against what is allowed of that, and the least normal fp32 number an element.
 * Where NaN is wanted only NaN will do. */
check_metric check_metric_tensor(const double *got, const double *wanted, int64_t count, double allowed);
/* Gradients: factor times the yardstick's error, plus floor times the norm of what is wanted. */
check_metric check_metric_gradient(const double *got, const double *wanted, const double *yardstick, int64_t count,
                                   double factor, double floor);
/* L2 norms over what is finite: of a tensor, and of a result's error, in which differences below the least normal fp32
 * number count as none and elements of its own NaN as the others do. */
double check_metric_norm(const double *wanted, int64_t count);
double check_metric_error(const double *got, const double *wanted, int64_t count);
/* Bit identity of two arrays; max_ulp is the number of bytes that differ. */
check_metric check_metric_bits(const void *a, const void *b, size_t bytes);
/* One unit in the last place of an fp32 number of this magnitude. */
double check_ulp(double magnitude);

#endif
