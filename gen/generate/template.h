/* template.h: template files, found and run. */
#ifndef FLPGEN_TEMPLATE_H
#define FLPGEN_TEMPLATE_H

#include <stdbool.h>

#include "gen/lang/state.h"

/* Makes what templates see: all words, or of `k` only import and abi, for files that decide and do not build. */
void gen_template_prepare(lua_State *L, bool builds);
/* Runs the template of that name once and leaves its value. */
void gen_template_run(lua_State *L, const char *name);
/* Generates every kernel of the module that the key names: the whole of one run under lua_pcall. */
int gen_template_main(lua_State *L);

/* Calls the function below `arguments` values on the top of g->lua, under lua_pcall. error: as flpgen_generate */
flp_status gen_template_call(gen_state *g, int arguments, char *error, size_t capacity);

#endif
