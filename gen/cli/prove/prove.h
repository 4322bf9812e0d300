/* prove.h: the parts of `flpgen prove`: whether an architecture's kernels are right, and no slower than portable ones,
 * on a GPU that they have never run on.
 *
 * Every kind of kernel has a process of its own, which may hang or die: the command itself makes no context. What it
 * finds is one JSON object on its standard output. */
#ifndef FLPGEN_CLI_PROVE_H
#define FLPGEN_CLI_PROVE_H

#include <jansson.h>

#include "gen/cli/check/cases/case.h"
#include "gen/cli/shared/common.h"
#include "runtime/kernel/kernel.h"

typedef struct prove_args {
  flp_options options; /* arch: NULL for all that are unproven here; device */
  int dtype;           /* 0: all */
  int64_t rows, vocab, hidden;
  int64_t repeats;
  double limit_s; /* of a child */
  int quiet, portable;
  const char *json; /* file, or "-" */
  const char *part; /* of a child: what it is to find out; NULL: all, each in a child */
} prove_args;

/* ---- parts.c: what is proven, one after the other ---- */

enum { PROVE_PARTS_MAX = 64, PROVE_NAME_BYTES = 32, PROVE_KINDS_BYTES = 192 };

/* A specialisation that has the architecture's own kernels of some kinds. */
typedef struct prove_part {
  char name[PROVE_NAME_BYTES];   /* "gradients/bf16" */
  flp_spec spec;                 /* resolved */
  flp_mode mode;                 /* of cases; 0: any */
  char kinds[PROVE_KINDS_BYTES]; /* "forward, dz, products" */
  int has_short;                 /* among them forward for few rows */
} prove_part;

/* Those of an architecture, of all dtypes or one. Returns their number. */
int prove_parts(const char *arch, const prove_args *args, prove_part out[PROVE_PARTS_MAX]);

/* ---- child.c: one of them, in this process ---- */

typedef enum prove_end { PROVE_RIGHT, PROVE_WRONG, PROVE_FAILED, PROVE_DIED, PROVE_HUNG } prove_end;

typedef struct prove_result {
  prove_end end;
  flp_status status; /* of FAILED */
  char reason[FLP_DETAIL_BYTES];
  int64_t checks, repeats;
  double worst;                       /* share of the allowed error */
  double ms, portable_ms;             /* of one call of all passes; 0: not timed */
  double ratio, ratio_low, ratio_high; /* of these, call by call: median and quartiles */
} prove_result;

/* Its numbers, in a child's answer and in a record: N of integers, D of doubles. */
#define PROVE_NUMBERS(N, D) N(checks) N(repeats) D(worst) D(ms) D(portable_ms) D(ratio) D(ratio_low) D(ratio_high)

/* Its reason and numbers, as an object. */
json_t *prove_result_json(const prove_result *r);
/* Compares with fp64 and the portable kernels, repeats, times. Writes what it found. error: IO, MEMORY */
flp_status prove_child(const prove_args *args);

/* ---- spawn.c: one of them in another process ---- */

/* Runs `flpgen prove` for one part, of the architecture's kernels or of portable ones, and ends it at the limit.
 * error: INTERNAL if no process could be started */
flp_status prove_spawn(const prove_args *args, const char *arch, const prove_part *part, int portable,
                       prove_result *out);

#endif
