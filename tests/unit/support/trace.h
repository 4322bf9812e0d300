/* trace.h: what one call sent to the stand-in driver, as text: its layouts, then launches and memsets in order, each
 * with every parameter by its name in abi.h.
 *
 * Parameters that are 0, and workspace arrays that kernels get by name, are left out. An address is the caller's array
 * (weight+512), or an array of the workspace (@dz), with the layout's name where it is not of the launch's own
 * (@step.stats); a parameter that has its own name as value stands alone. A tensor map is start[rows x columns, bytes
 * from row to row, rows x columns of a box]. */
#ifndef FLP_TEST_TRACE_H
#define FLP_TEST_TRACE_H

#include <stdio.h>

#include "runtime/plan/plan.h"
#include "tests/unit/support/stage.h"

/* Forgets calls, and the layouts that the plan remembers. Before each call that is traced. */
void trace_begin(stage *s, flp_plan *plan);
/* Writes the call that has been made since. Expects that a captured graph could hold it, that it is on STAGE_STREAM,
 * and that each launch has the threads, the shared memory and the cluster that the kernel's descriptor names. */
void trace_write(FILE *out, stage *s, const flp_plan *plan, const flp_args *args);
/* Writes a layout: its mode, rows x columns of a chunk, the number of chunks; then its arrays with their bytes, each
 * behind the one before, up to 256 bytes, or else @offset. */
void trace_layout(FILE *out, const char *name, const flp_scheme *scheme);
/* The layout of the call as a whole. */
const flp_scheme *trace_scheme(const flp_plan *plan);

#endif
