/* sandbox.c: the Lua state of templates: bounded in memory and time, blind to the outside, the same on every run.
 *
 * Absent on purpose: load, dofile, loadfile, require, collectgarbage, print, pcall (a caught error would leave a half
 * built kernel), next (no fixed order), rawset (would thaw what is frozen), coroutines, os, io, debug, utf8,
 * math.random, string.dump, and what searches strings by pattern: those run outside the count of steps, for ever if a
 * pattern is made so. What else runs in C pays in steps for what it makes or visits. */
#include "gen/lang/sandbox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lualib.h>

#include "gen/lang/order.h"
#include "gen/lang/types.h"

enum { HOOK_STEPS = 1 << 12, STEP_BYTES = 16 }; /* bytes that are made in the time of a step */
enum { BLOCK_BYTES_MAX = 16 << 20, MESSAGE_BYTES_MAX = 4096, REPEATS_MAX = 1 << 20 };
static const size_t bytes_max = (size_t)512 << 20;

/* ---- bounds ---- */

void gen_sandbox_explain(const gen_state *g, const char *where, const char *what, char *error, size_t capacity) {
  if (gen_state_is_spent(g))
    snprintf(error, capacity, "%s: the template ran %llu steps without an end", where,
             (unsigned long long)GEN_STEPS_MAX);
  else
    snprintf(error, capacity, "%s: the %s needs more memory than a template may have", where, what);
}

static void *allocate(void *user, void *block, size_t old_bytes, size_t new_bytes) {
  gen_state *g = user;
  size_t had = block ? old_bytes : 0;
  if (new_bytes == 0) {
    free(block);
    g->lua_bytes -= had;
    return NULL;
  }
  if (new_bytes > had) {
    g->lua_steps += new_bytes / STEP_BYTES;
    int is_too_large = new_bytes > BLOCK_BYTES_MAX || g->lua_bytes - had + new_bytes > bytes_max;
    if (is_too_large || (new_bytes > MESSAGE_BYTES_MAX && gen_state_is_spent(g))) return NULL;
  }
  void *result = realloc(block, new_bytes);
  if (result) g->lua_bytes = g->lua_bytes - had + new_bytes;
  return result;
}

static void count_steps(lua_State *L, lua_Debug *activation) {
  (void)activation;
  gen_state_pay(L, HOOK_STEPS);
}

lua_State *gen_sandbox_open(gen_state *g) {
  lua_State *L = lua_newstate(allocate, g);
  if (!L) return NULL;
  *(gen_state **)lua_getextraspace(L) = g;
  lua_sethook(L, count_steps, LUA_MASKCOUNT, HOOK_STEPS);
  return L;
}

/* ---- base functions made safe ---- */

/* tostring without addresses, which change from run to run. */
static int to_string(lua_State *L) {
  luaL_checkany(L, 1);
  int type = lua_type(L, 1);
  bool has_text = luaL_getmetafield(L, 1, "__tostring") != LUA_TNIL;
  lua_settop(L, 1);
  if (!has_text && (type == LUA_TTABLE || type == LUA_TFUNCTION || type == LUA_TUSERDATA))
    lua_pushstring(L, lua_typename(L, type));
  else
    luaL_tolstring(L, 1, NULL);
  return 1;
}

/* string.format whose %s sees tables as tostring above does, and without %p. Upvalue: Lua's own. */
static int format(lua_State *L) {
  const char *text = luaL_checkstring(L, 1);
  for (const char *p = strchr(text, '%'); p; p = strchr(p, '%')) {
    p++;
    if (*p == '%') {
      p++;
      continue;
    }
    p += strspn(p, "-+ #0123456789.");
    if (*p == 'p') gen_fail(L, "string.format: %%p is not available: addresses change from run to run");
  }
  int n = lua_gettop(L);
  for (int i = 2; i <= n; i++) {
    int type = lua_type(L, i);
    if (type != LUA_TTABLE && type != LUA_TFUNCTION && type != LUA_TUSERDATA) continue;
    lua_pushcfunction(L, to_string);
    lua_pushvalue(L, i);
    lua_call(L, 1, 1);
    lua_replace(L, i);
  }
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, n, 1);
  return 1;
}

/* Calls Lua's own function, the first upvalue, with all arguments. */
static int call_own(lua_State *L) {
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return lua_gettop(L);
}

/* string.rep: of nothing too, which Lua repeats as often as asked. */
static int repeat(lua_State *L) {
  lua_Integer count = luaL_checkinteger(L, 2);
  if (count > REPEATS_MAX)
    gen_fail(L, "string.rep: %lld times are not accepted, up to %d are", (long long)count, REPEATS_MAX);
  return call_own(L);
}

/* Functions over the elements of a table or string pay for each. Upvalues: Lua's own; the argument that has the first
 * element, the next one the last; 0 where they take all. */
static int visit(lua_State *L) {
  int first = (int)lua_tointeger(L, lua_upvalueindex(2));
  if (luaL_getmetafield(L, 1, "__len") != LUA_TNIL) gen_fail(L, "table: a length of its own (__len) is not accepted");
  lua_Integer low = 1, high = (lua_Integer)lua_rawlen(L, 1);
  if (first) {
    low = luaL_optinteger(L, first, 1);
    high = luaL_optinteger(L, first + 1, high);
  }
  gen_state_pay(L, high > low ? (uint64_t)high - (uint64_t)low : 0);
  return call_own(L);
}

/* setmetatable without finalisers and weak tables, whose moment the collector chooses. */
static int set_metatable(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  if (!lua_isnoneornil(L, 2)) luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  if (luaL_getmetafield(L, 1, "__metatable") != LUA_TNIL) gen_fail(L, "setmetatable: this table is protected");
  if (lua_istable(L, 2)) {
    static const char *const refused[] = {"__gc", "__mode"};
    for (int i = 0; i < 2; i++)
      if (lua_getfield(L, 2, refused[i]) != LUA_TNIL) gen_fail(L, "setmetatable: %s is not available", refused[i]);
  }
  lua_settop(L, 2);
  lua_setmetatable(L, 1);
  return 1;
}

/* ---- frozen tables ---- */

/* Upvalues: the table, what it is, what its fields are. */
static int read_frozen(lua_State *L) {
  lua_settop(L, 2);
  lua_pushvalue(L, 2);
  if (lua_rawget(L, lua_upvalueindex(1)) == LUA_TNIL)
    gen_fail(L, "%s has no %s '%s'", lua_tostring(L, lua_upvalueindex(2)), lua_tostring(L, lua_upvalueindex(3)),
             lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : gen_describe(L, 2));
  return 1;
}

static int write_frozen(lua_State *L) {
  gen_fail(L, "%s is read-only: '%s' cannot be set", lua_tostring(L, lua_upvalueindex(1)),
           lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : gen_describe(L, 2));
}

/* pairs() of a view visits the table behind it. */
static int pairs_frozen(lua_State *L) {
  lua_pushcfunction(L, gen_order_pairs);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_call(L, 1, 3);
  return 3;
}

void gen_sandbox_freeze(lua_State *L, const char *what, const char *noun) {
  int table = lua_gettop(L);
  lua_newtable(L); /* the view */
  lua_newtable(L); /* its metatable */
  lua_pushvalue(L, table);
  lua_pushstring(L, what);
  lua_pushstring(L, noun);
  lua_pushcclosure(L, read_frozen, 3);
  lua_setfield(L, -2, "__index");
  lua_pushstring(L, what);
  lua_pushcclosure(L, write_frozen, 1);
  lua_setfield(L, -2, "__newindex");
  lua_pushvalue(L, table);
  lua_pushcclosure(L, pairs_frozen, 1);
  lua_setfield(L, -2, "__pairs");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_setmetatable(L, -2);
  lua_replace(L, table);
}

/* ---- the environment ---- */

static void copy_fields(lua_State *L, int from, int to, const char *const *names) {
  for (int i = 0; names[i]; i++) {
    lua_getfield(L, from, names[i]);
    lua_setfield(L, to, names[i]);
  }
}

/* Opens one of Lua's libraries and leaves its table. */
static int open_library(lua_State *L, const char *name, lua_CFunction open) {
  luaL_requiref(L, name, open, 0);
  return lua_gettop(L);
}

/* Replaces a function of the table on the top by one that has it, and a number, as upvalues. */
static void replace(lua_State *L, const char *name, lua_CFunction by, int number) {
  lua_getfield(L, -1, name);
  lua_pushinteger(L, number);
  lua_pushcclosure(L, by, 2);
  lua_setfield(L, -2, name);
}

static void bound_table(lua_State *L) {
  replace(L, "concat", visit, 3);
  replace(L, "unpack", visit, 2);
  replace(L, "move", visit, 2);
  replace(L, "insert", visit, 0);
  replace(L, "remove", visit, 0);
  lua_pushcfunction(L, gen_order_sort);
  lua_setfield(L, -2, "sort");
}

static void bound_string(lua_State *L) {
  replace(L, "format", format, 0);
  replace(L, "rep", repeat, 0);
  replace(L, "byte", visit, 0);
}

static void add_library(lua_State *L, int environment, const char *name, lua_CFunction open,
                        const char *const *dropped) {
  int library = open_library(L, name, open);
  for (int i = 0; dropped[i]; i++) {
    lua_pushnil(L);
    lua_setfield(L, library, dropped[i]);
  }
  if (open == luaopen_string) bound_string(L);
  if (open == luaopen_table) bound_table(L);
  gen_sandbox_freeze(L, name, "function");
  lua_setfield(L, environment, name);
}

void gen_sandbox_push(lua_State *L) {
  static const char *const base[] = {"assert", "error",  "getmetatable", "ipairs", "rawequal", "rawget",
                                     "rawlen", "select", "tonumber",     "type",   NULL};
  static const char *const from_math[] = {"random", "randomseed", NULL};
  static const char *const from_string[] = {"dump", "find",   "match",    "gmatch", "gsub",
                                            "pack", "unpack", "packsize", NULL};
  static const char *const from_table[] = {NULL};
  static const luaL_Reg own[] = {
      {"pairs", gen_order_pairs}, {"tostring", to_string}, {"setmetatable", set_metatable}, {NULL, NULL}};
  lua_newtable(L);
  int environment = lua_gettop(L);
  copy_fields(L, open_library(L, LUA_GNAME, luaopen_base), environment, base);
  lua_settop(L, environment);
  luaL_setfuncs(L, own, 0);
  add_library(L, environment, LUA_MATHLIBNAME, luaopen_math, from_math);
  add_library(L, environment, LUA_STRLIBNAME, luaopen_string, from_string);
  add_library(L, environment, LUA_TABLIBNAME, luaopen_table, from_table);
  /* methods of strings, ("x"):rep(2), go through the metatable that all strings share */
  lua_pushliteral(L, "");
  lua_getmetatable(L, -1);
  lua_getfield(L, environment, LUA_STRLIBNAME);
  lua_setfield(L, -2, "__index");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_settop(L, environment);
}
