/* budget.h: Lua states whose memory, steps and time are bounded. */
#ifndef FLPGEN_BUDGET_H
#define FLPGEN_BUDGET_H

#include "gen/lang/state.h"

/* Opens such a state. NULL if memory ran out. */
lua_State *gen_budget_open(gen_state *g);
/* lua_pcall of the function below so many arguments, without results, in the locale "C"; the clock starts anew. */
int gen_budget_call(gen_state *g, int arguments);
/* Explains LUA_ERRMEM: "<where>: the loss needs more memory than it may have ...", or no steps left. */
void gen_budget_explain(const gen_state *g, const char *where, char *error, size_t capacity);

#endif
