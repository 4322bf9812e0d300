/* chunk.c: the text of a template or a loss as a Lua function: linted, text only, with the environment of its kind. */
#include "gen/lang/chunk.h"

#include <stdio.h>
#include <string.h>

#include "gen/lang/budget.h"
#include "gen/lint/lint.h"

static const char environment_key = 'e'; /* its address is the key in the registry */

void gen_chunk_environment(lua_State *L) {
  lua_rawsetp(L, LUA_REGISTRYINDEX, &environment_key);
}

void gen_chunk_push_environment(lua_State *L) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &environment_key);
}

/* Raises what the parser says, at the top of the stack. "C stack overflow" comes without a place. */
static void fail_parse(lua_State *L, int result, const char *file) {
  char where[256], text[512];
  snprintf(where, sizeof where, "%.250s:1", file);
  const char *message = lua_tostring(L, -1);
  if (result == LUA_ERRMEM) {
    gen_budget_explain(gen_state_get(L), where, text, sizeof text);
    lua_pushstring(L, text);
  } else if (message && strncmp(message, file, strlen(file)) != 0) {
    lua_pushfstring(L, "%s: %s: it nests too deeply", where, message);
  }
  lua_error(L);
}

void gen_chunk_load(lua_State *L, const char *file, size_t length) {
  gen_state *g = gen_state_get(L);
  char message[256];
  if (length > GEN_FILE_BYTES_MAX) {
    lua_pushfstring(L, "%s:1: the file has %I bytes; up to %d are accepted", file, (LUAI_UACINT)length,
                    (int)GEN_FILE_BYTES_MAX);
    lua_error(L);
  }
  gen_state_pay(L, length); /* it may be loaded again and again */
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
  int result = luaL_loadbufferx(L, g->text, length, chunk, "t");
  if (result != LUA_OK) fail_parse(L, result, file);
  gen_chunk_push_environment(L);
  lua_setupvalue(L, -2, 1); /* _ENV */
}
