/* sandbox.h: the environment that templates and losses run in. */
#ifndef FLPGEN_SANDBOX_H
#define FLPGEN_SANDBOX_H

#include "gen/lang/state.h"

/* Leaves the environment of templates on the stack: base, math, string, table. Called once, under lua_pcall. */
void gen_sandbox_push(lua_State *L);
/* Replaces the table on the top by a read-only view; reading a missing field raises "<what> has no <noun> 'x'". */
void gen_sandbox_freeze(lua_State *L, const char *what, const char *noun);
/* Pushes the table behind such a view. */
void gen_sandbox_push_frozen(lua_State *L, int view);

#endif
