/* chunk.c: the text of a template or a loss as a Lua function: linted, text only, with the environment of its kind. */
#include "gen/lang/chunk.h"

#include "gen/lang/state.h"
#include "gen/lint/lint.h"

static const char environment_key = 'e'; /* its address is the key in the registry */

void gen_chunk_environment(lua_State *L) {
  lua_rawsetp(L, LUA_REGISTRYINDEX, &environment_key);
}

void gen_chunk_push_environment(lua_State *L) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &environment_key);
}

void gen_chunk_load(lua_State *L, const char *file, size_t length) {
  gen_state *g = gen_state_get(L);
  char message[256];
  int line = gen_lint_check(g->text, length, g->traced != NULL, message, sizeof message);
  if (line) {
    lua_pushfstring(L, "%s:%d: %s", file, line, message);
    lua_error(L);
  }
  if (length && g->text[0] == LUA_SIGNATURE[0]) {
    lua_pushfstring(L, "%s:1: a template is text, not a binary chunk", file);
    lua_error(L);
  }
  const char *chunk = lua_pushfstring(L, "@%s", file);
  if (luaL_loadbufferx(L, g->text, length, chunk, "t") != LUA_OK) lua_error(L);
  gen_chunk_push_environment(L);
  lua_setupvalue(L, -2, 1); /* _ENV */
}
