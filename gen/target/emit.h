/* emit.h: the LLVM side of one generation. */
#ifndef FLPGEN_EMIT_H
#define FLPGEN_EMIT_H

#include "gen/gen.h"
#include "gen/lang/state.h"

/* error: MEMORY if the process may not have what a generation takes */
flp_status gen_emit_open(gen_state *g);
void gen_emit_close(gen_state *g);
/* Verifies, optimises and emits; fills ptx and, if asked for, the IR before and after the passes. */
flp_status gen_emit_run(gen_state *g, const flpgen_options *options, flpgen_result *out, char *error,
                        size_t error_capacity);

#endif
