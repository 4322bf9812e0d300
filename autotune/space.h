/* space.h: the ways in which a kernel of sm_90a may be cut: what its template chooses, what it accepts, and the list of
 * all that is worth a look.
 *
 * This is a mirror of templates/sm_90a, asked thousands of times where a template takes milliseconds; the tests
 * hold it to the template's answers. The canonical split of the vocabulary is no tunable and does not appear. */
#ifndef FLP_AUTOTUNE_SPACE_H
#define FLP_AUTOTUNE_SPACE_H

#include "runtime/kernel/kernel.h"

enum { SPACE_REASON_BYTES = 128, SPACE_STAGES_LEAST = 3, SPACE_STAGES_MOST = 8 };

/* 1 for the kinds of kernels that leave a choice: forward, dz, products, forward_keep. */
int space_has(flp_kernel_kind kind);

/* What the template chooses by itself, every field set. spec: resolved */
flp_tunables space_own(flp_kernel_kind kind, const flp_spec *spec);

/* The tunables that are given, and own ones for those that are 0. */
flp_tunables space_over(const flp_tunables *given, const flp_tunables *own);

/* 1 if the template builds it. tune: every field set. reason: NULL, or why not, in the template's words */
int space_accepts(flp_kernel_kind kind, const flp_spec *spec, const flp_tunables *tune,
                  char reason[SPACE_REASON_BYTES]);

/* One way; raster, or cluster and raster, are 0 in ways that are refused whatever these are. */
typedef struct space_point {
  flp_tunables tune;
  int legal;
  char reason[SPACE_REASON_BYTES]; /* why not */
} space_point;

typedef struct space_points {
  space_point *items; /* owned */
  int count;
} space_points;

/* Lists the space of a kind, its own choice among it, in a fixed order: schedule, rows, columns, stages, cluster,
 * raster, each ascending. A tile that is refused is listed once, with the least stages that are refused. error:
 * MEMORY */
flp_status space_list(flp_kernel_kind kind, const flp_spec *spec, space_points *out);
void space_clear(space_points *points);

#endif
