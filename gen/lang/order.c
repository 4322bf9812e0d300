/* order.c: the one order in which templates see the keys of a table, and a sort that keeps ties in order.
 *
 * Lua leaves the order of its hash part open (it follows string seeds) and picks sort pivots by the clock; generated
 * code must depend on neither. */
#include "gen/lang/order.h"

#include <string.h>

#include "gen/lang/types.h"

/* ---- stable merge sort of the array at stack index 1 by the function at 2, through the scratch table at 3 ---- */

enum { STEPS_A_MERGE = 8, STEPS_A_TABLE = 256 }; /* that an element of a merge, and a table's free places, take */

static bool goes_before(lua_State *L, lua_Integer a, lua_Integer b) {
  lua_pushvalue(L, 2);
  lua_rawgeti(L, 1, a);
  lua_rawgeti(L, 1, b);
  lua_call(L, 2, 1);
  bool result = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return result;
}

/* Merges [low, middle) and [middle, high). */
static void merge(lua_State *L, lua_Integer low, lua_Integer middle, lua_Integer high) {
  lua_Integer a = low, b = middle;
  for (lua_Integer i = low; i < high; i++) {
    bool take_b = b < high && (a >= middle || goes_before(L, b, a));
    lua_rawgeti(L, 1, take_b ? b++ : a++);
    lua_rawseti(L, 3, i);
  }
  for (lua_Integer i = low; i < high; i++) {
    lua_rawgeti(L, 3, i);
    lua_rawseti(L, 1, i);
  }
}

static int default_before(lua_State *L) {
  lua_pushboolean(L, lua_compare(L, 1, 2, LUA_OPLT));
  return 1;
}

int gen_order_sort(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 2);
  if (lua_isnil(L, 2)) {
    lua_pushcfunction(L, default_before);
    lua_replace(L, 2);
  }
  luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_newtable(L);
  lua_Integer n = (lua_Integer)lua_rawlen(L, 1);
  for (lua_Integer width = 1; width < n; width *= 2) {
    gen_state_pay(L, STEPS_A_MERGE * (uint64_t)n);
    for (lua_Integer low = 1; low + width <= n; low += 2 * width)
      merge(L, low, low + width, low + 2 * width <= n ? low + 2 * width : n + 1);
  }
  return 0;
}

/* ---- keys ---- */

/* Sort class of a key: numbers, then strings, then booleans; others have no order. */
static int rank(lua_State *L, int index) {
  switch (lua_type(L, index)) {
    case LUA_TNUMBER:
      return 0;
    case LUA_TSTRING:
      return 1;
    case LUA_TBOOLEAN:
      return 2;
    default:
      gen_fail(L, "a table with a %s as key has no fixed order", gen_describe(L, index));
  }
}

/* Compares bytes: Lua's own order of strings follows the locale. */
static bool string_before(lua_State *L) {
  size_t na, nb;
  const char *a = lua_tolstring(L, 1, &na), *b = lua_tolstring(L, 2, &nb);
  int order = memcmp(a, b, na < nb ? na : nb);
  return order ? order < 0 : na < nb;
}

static int key_before(lua_State *L) {
  int a = rank(L, 1), b = rank(L, 2);
  bool result;
  if (a != b)
    result = a < b;
  else if (a == 1)
    result = string_before(L);
  else if (a == 0)
    result = lua_compare(L, 1, 2, LUA_OPLT);
  else
    result = !lua_toboolean(L, 1) && lua_toboolean(L, 2);
  lua_pushboolean(L, result);
  return 1;
}

void gen_order_keys(lua_State *L, int index) {
  index = lua_absindex(L, index);
  luaL_checkstack(L, 8, "table nests too deeply");
  lua_newtable(L);
  int keys = lua_gettop(L);
  lua_Integer count = (lua_Integer)lua_rawlen(L, index), others = 0;
  gen_state_pay(L, STEPS_A_TABLE + (uint64_t)count);
  for (lua_Integer i = 1; i <= count; i++) {
    lua_pushinteger(L, i);
    lua_rawseti(L, keys, i);
  }
  lua_pushcfunction(L, gen_order_sort);
  lua_newtable(L);
  for (lua_pushnil(L); lua_next(L, index);) {
    lua_pop(L, 1);
    rank(L, -1);
    if (lua_isinteger(L, -1) && lua_tointeger(L, -1) >= 1 && lua_tointeger(L, -1) <= count) continue;
    lua_pushvalue(L, -1);
    lua_rawseti(L, keys + 2, ++others);
  }
  lua_pushvalue(L, keys + 2);
  lua_insert(L, keys + 1);
  lua_pushcfunction(L, key_before);
  lua_call(L, 2, 0);
  for (lua_Integer i = 1; i <= others; i++) {
    lua_rawgeti(L, keys + 1, i);
    lua_rawseti(L, keys, count + i);
  }
  lua_settop(L, keys);
}

const char *gen_order_unknown_key(lua_State *L, int index, const char *const *known) {
  gen_order_keys(L, index);
  int keys = lua_gettop(L);
  for (lua_Integer i = 1; lua_rawgeti(L, keys, i) != LUA_TNIL; i++) {
    const char *text = gen_text(L, -1), *name = text ? text : gen_describe(L, -1);
    int j = 0;
    while (known[j] && strcmp(known[j], name) != 0) j++;
    if (!known[j]) return name;
    lua_settop(L, keys);
  }
  return NULL;
}

void gen_order_refuse_unknown(lua_State *L, int index, const char *const *known, const char *what) {
  int top = lua_gettop(L);
  const char *name = gen_order_unknown_key(L, index, known), *accepted = known[0];
  if (name) {
    for (int i = 1; known[i]; i++) accepted = lua_pushfstring(L, "%s, %s", accepted, known[i]);
    gen_fail(L, "%s: unknown field '%s'; %s %s", what, name, known[1] ? "accepted are" : "accepted is", accepted);
  }
  lua_settop(L, top);
}

/* Upvalues: the table, its keys, the position. */
static int step(lua_State *L) {
  lua_Integer i = lua_tointeger(L, lua_upvalueindex(3));
  for (;;) {
    lua_pushinteger(L, ++i);
    lua_replace(L, lua_upvalueindex(3));
    if (lua_rawgeti(L, lua_upvalueindex(2), i) == LUA_TNIL) return 1;
    lua_pushvalue(L, -1);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 2;
    lua_pop(L, 2); /* removed since the iteration began */
  }
}

int gen_order_pairs(lua_State *L) {
  luaL_checkany(L, 1);
  if (luaL_getmetafield(L, 1, "__pairs") != LUA_TNIL) {
    lua_pushvalue(L, 1);
    lua_call(L, 1, 3);
    return 3;
  }
  if (!lua_istable(L, 1)) gen_fail(L, "pairs: expected a table, got %s", gen_describe(L, 1));
  lua_settop(L, 1);
  gen_order_keys(L, 1);
  lua_pushinteger(L, 0);
  lua_pushcclosure(L, step, 3);
  return 1;
}
