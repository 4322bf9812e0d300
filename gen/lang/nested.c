/* nested.c: the state of loops and branches, nested tables of values, as flat lists in a fixed order and back.
 *
 * Order: array part, other numbers, strings, booleans (order.c), depth first. Errors name the path, "state.m[3]". */
#include "gen/lang/nested.h"

#include <stdio.h>

#include "gen/lang/order.h"
#include "gen/lang/value.h"

enum { DEPTH_MAX = 16, PATH_MAX_BYTES = 200 };

typedef struct path {
  const struct path *up; /* NULL at the root */
  int key;               /* stack index of the key */
  int depth;
} path;

/* Writes "state.m[3]" and returns the bytes used. */
static size_t path_write(lua_State *L, const path *p, char *out, size_t capacity) {
  if (!p) return (size_t)snprintf(out, capacity, "state");
  size_t used = path_write(L, p->up, out, capacity);
  if (used >= capacity) return used;
  int n;
  if (lua_type(L, p->key) == LUA_TSTRING)
    n = snprintf(out + used, capacity - used, ".%s", lua_tostring(L, p->key));
  else if (lua_isinteger(L, p->key))
    n = snprintf(out + used, capacity - used, "[%lld]", (long long)lua_tointeger(L, p->key));
  else if (lua_type(L, p->key) == LUA_TNUMBER)
    n = snprintf(out + used, capacity - used, "[%g]", lua_tonumber(L, p->key));
  else
    n = snprintf(out + used, capacity - used, "[%s]", lua_toboolean(L, p->key) ? "true" : "false");
  return used + (n > 0 ? (size_t)n : 0);
}

static const char *path_text(lua_State *L, const path *p) {
  char text[PATH_MAX_BYTES];
  path_write(L, p, text, sizeof text);
  return lua_pushstring(L, text); /* stays on the stack until the error is raised */
}

static path path_down(lua_State *L, const path *up, int key) {
  path p = {up, key, up ? up->depth + 1 : 1};
  if (p.depth > DEPTH_MAX) gen_fail(L, "state nests deeper than %d tables", (int)DEPTH_MAX);
  luaL_checkstack(L, 12, "state nests too deeply");
  return p;
}

/* ---- reading ---- */

static void visit(lua_State *L, int arg, const path *p, gen_value *out, int *n) {
  arg = lua_absindex(L, arg);
  gen_value value;
  if (gen_value_test(L, arg, &value)) {
    if (out) out[*n] = value;
    ++*n;
    return;
  }
  if (lua_type(L, arg) == LUA_TNUMBER)
    gen_fail(L, "%s: %s has no kernel type; use k.const", path_text(L, p), gen_describe(L, arg));
  if (!lua_istable(L, arg))
    gen_fail(L, "%s: expected a kernel value or a table of them, got %s", path_text(L, p), gen_describe(L, arg));
  gen_order_keys(L, arg);
  int keys = lua_gettop(L);
  for (lua_Integer i = 1; lua_rawgeti(L, keys, i) != LUA_TNIL; i++) {
    path down = path_down(L, p, lua_gettop(L));
    lua_pushvalue(L, -1);
    lua_rawget(L, arg);
    visit(L, -1, &down, out, n);
    lua_settop(L, keys);
  }
  lua_settop(L, keys - 1);
}

int gen_nested_count(lua_State *L, int arg) {
  int n = 0;
  if (!lua_isnoneornil(L, arg)) visit(L, arg, NULL, NULL, &n);
  return n;
}

void gen_nested_flatten(lua_State *L, int arg, gen_value *out) {
  int n = 0;
  if (!lua_isnoneornil(L, arg)) visit(L, arg, NULL, out, &n);
}

/* ---- comparing ---- */

static void match_value(lua_State *L, int arg, const path *p, gen_type type, gen_value *out) {
  const char *name = path_text(L, p);
  *out = (gen_value){gen_value_of(L, arg, type, name), type, 0};
  lua_pop(L, 1);
}

/* Raises for a key of the table at arg that the one at shape lacks. */
static void refuse_extra(lua_State *L, int shape, int arg, const path *p) {
  gen_order_keys(L, arg);
  int keys = lua_gettop(L);
  for (lua_Integer i = 1; lua_rawgeti(L, keys, i) != LUA_TNIL; i++) {
    path down = path_down(L, p, lua_gettop(L));
    lua_pushvalue(L, -1);
    if (lua_rawget(L, shape) == LUA_TNIL) gen_fail(L, "%s: not part of the state before", path_text(L, &down));
    lua_settop(L, keys);
  }
  lua_settop(L, keys - 1);
}

static void match(lua_State *L, int shape, int arg, const path *p, const gen_value *like, gen_value *out, int *n) {
  if (gen_value_is(L, shape)) {
    match_value(L, arg, p, like[*n].type, &out[*n]);
    ++*n;
    return;
  }
  if (!lua_istable(L, arg)) gen_fail(L, "%s: expected a table, got %s", path_text(L, p), gen_describe(L, arg));
  gen_order_keys(L, shape);
  int keys = lua_gettop(L);
  for (lua_Integer i = 1; lua_rawgeti(L, keys, i) != LUA_TNIL; i++) {
    path down = path_down(L, p, lua_gettop(L));
    lua_pushvalue(L, down.key);
    lua_rawget(L, shape);
    lua_pushvalue(L, down.key);
    lua_rawget(L, arg);
    match(L, down.key + 1, down.key + 2, &down, like, out, n);
    lua_settop(L, keys);
  }
  lua_settop(L, keys - 1);
  refuse_extra(L, shape, arg, p);
}

void gen_nested_match(lua_State *L, int shape, int arg, const gen_value *like, gen_value *out) {
  int n = 0;
  shape = lua_absindex(L, shape);
  arg = lua_absindex(L, arg);
  if (!lua_isnoneornil(L, shape))
    match(L, shape, arg, NULL, like, out, &n);
  else if (!lua_isnil(L, arg))
    gen_fail(L, "state: expected nil, got %s", gen_describe(L, arg));
}

/* ---- rebuilding ---- */

static void push(lua_State *L, int shape, const gen_value *values, int *n) {
  if (gen_value_is(L, shape)) {
    gen_value_push(L, values[*n].type, values[*n].ref);
    ++*n;
    return;
  }
  luaL_checkstack(L, 12, "state nests too deeply");
  lua_newtable(L);
  int result = lua_gettop(L);
  gen_order_keys(L, shape);
  for (lua_Integer i = 1; lua_rawgeti(L, result + 1, i) != LUA_TNIL; i++) {
    lua_pushvalue(L, -1);
    lua_rawget(L, shape);
    push(L, lua_gettop(L), values, n);
    lua_remove(L, -2);
    lua_rawset(L, result);
  }
  lua_settop(L, result);
}

void gen_nested_push(lua_State *L, int shape, const gen_value *values) {
  int n = 0;
  shape = lua_absindex(L, shape);
  if (lua_isnoneornil(L, shape))
    lua_pushnil(L);
  else
    push(L, shape, values, &n);
}
