/* space.h: the tile configurations of a kernel that a search may try: the list, each with the template's refusal if it
 * cannot be built.
 *
 * What a kernel chooses, what it accepts and what is worth a look is asked of its template (gen.h). The canonical split
 * of the vocabulary is no tunable and does not appear. */
#ifndef FLP_AUTOTUNE_SPACE_H
#define FLP_AUTOTUNE_SPACE_H

#include "runtime/kernel/kernel.h"

enum { SPACE_REASON_BYTES = 128 };

/* The space of one kernel. */
typedef struct tile_space tile_space;

/* spec: resolved. error: UNSUPPORTED if the spec needs no such kernel on that architecture, or one without a choice;
 * otherwise as flpgen_space_open
 * thread: safe; a space serves one thread at a time */
flp_status space_open(flp_kernel_kind kind, const flp_spec *spec, const char *arch, tile_space **out);
void space_close(tile_space *space); /* NULL is fine */

/* Refuses what takes more shared memory than a CTA of the device at hand may have, where that is less than its
 * architecture's. bytes: 0 for no limit */
void space_limit_shared(tile_space *space, int bytes);

/* The template's default, every field set. */
flp_tunables space_default(const tile_space *space);

/* The tunables that are given, and defaults for those that are 0. */
flp_tunables space_over(const flp_tunables *given, const flp_tunables *defaults);

/* 1 if the template builds it. reason: NULL, or why not, in the template's words */
int space_accepts(const tile_space *space, const flp_tunables *tune, char reason[SPACE_REASON_BYTES]);

/* One configuration; raster, or cluster and raster, are 0 in those that are refused whatever these are. */
typedef struct space_point {
  flp_tunables tune;
  int legal;
  char reason[SPACE_REASON_BYTES]; /* why not */
} space_point;

typedef struct space_points {
  space_point *items; /* owned */
  int count;
} space_points;

/* Lists what is worth a look, the template's own raster among the others', in a fixed order: schedule, rows, columns,
 * stages, cluster, raster, each ascending. A tile that is refused is listed once, with the least stages that are
 * refused. error: MEMORY */
flp_status space_list(const tile_space *space, space_points *out);
void space_clear(space_points *points);

#endif
