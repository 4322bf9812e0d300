/* state.c: the state of a generation as C functions that Lua calls find it, its errors, and its steps. */
#include "gen/lang/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

gen_state *gen_state_get(lua_State *L) {
  return *(gen_state **)lua_getextraspace(L);
}

gen_state *gen_building(lua_State *L, const char *word) {
  gen_state *g = gen_state_get(L);
  if (!g->function) gen_fail(L, "%s: only inside the body of a kernel", word);
  return g;
}

void gen_fail(lua_State *L, const char *format, ...) {
  char message[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  lua_Debug where;
  for (int level = 0; lua_getstack(L, level, &where); level++) {
    lua_getinfo(L, "Sl", &where);
    if (where.currentline <= 0) continue;
    lua_pushfstring(L, "%s:%d: %s", where.short_src, where.currentline, message);
    lua_error(L);
  }
  lua_pushstring(L, message);
  lua_error(L);
  abort(); /* not reached: lua_error does not return */
}

bool gen_state_is_spent(const gen_state *g) {
  return g->lua_steps > GEN_STEPS_MAX;
}

void gen_state_pay(lua_State *L, uint64_t steps) {
  gen_state *g = gen_state_get(L);
  g->lua_steps = steps > GEN_STEPS_MAX ? GEN_STEPS_MAX + 1 : g->lua_steps + steps;
  if (gen_state_is_spent(g))
    gen_fail(L, "the template ran %llu steps without an end", (unsigned long long)GEN_STEPS_MAX);
}
