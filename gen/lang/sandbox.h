/* sandbox.h: the Lua state that templates and losses run in. */
#ifndef FLPGEN_SANDBOX_H
#define FLPGEN_SANDBOX_H

#include "gen/lang/state.h"

/* Opens a state whose memory and running time are bounded. NULL if memory ran out. */
lua_State *gen_sandbox_open(gen_state *g);
/* Explains why Lua had no memory: "<where>: the <what> needs more memory than a template may have", or no steps
 * left. */
void gen_sandbox_explain(const gen_state *g, const char *where, const char *what, char *error, size_t capacity);
/* Leaves the environment of templates on the stack: base, math, string, table. Called once, under lua_pcall. */
void gen_sandbox_push(lua_State *L);
/* Replaces the table on the top by a read-only view; reading a missing field raises "<what> has no <noun> 'x'". */
void gen_sandbox_freeze(lua_State *L, const char *what, const char *noun);

#endif
