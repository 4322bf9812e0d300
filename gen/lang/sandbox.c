/* sandbox.c: the environment of templates and losses: blind to the outside, the same on every run.
 *
 * Absent on purpose: load, dofile, loadfile, require, collectgarbage, print, pcall (a caught error would leave a half
 * built kernel), next (no fixed order), rawset (would thaw what is frozen), metatables (a key, a length or a text that
 * is a function runs inside C functions, at each of their elements), arithmetic on strings, coroutines, os, io, debug,
 * utf8, math.random, string.dump, and what searches strings by pattern: those run outside the count of steps, for ever
 * if a pattern is made so. What else runs in C pays in steps for what it reads, makes or visits. */
#include "gen/lang/sandbox.h"

#include <string.h>

#include <lualib.h>

#include "gen/lang/order.h"
#include "gen/lang/types.h"

enum { TEXT_BYTES = 4 };      /* of a string that a C function reads in the time of a step */
enum { STEPS_A_NUMBER = 64 }; /* that a long one takes to be written */
enum { VALUES_MAX = 256 };    /* that a call may give: each call that passes them on copies them */
enum { NAMES_BYTES = 320 };   /* of a list in a message */

/* ---- functions made safe ---- */

/* Runs Lua's own function, the first upvalue, in its place; it pays for strings, as numbers too, and values. */
static int call_own(lua_State *L) {
  uint64_t bytes = 0;
  for (int i = lua_gettop(L); i > 0; i--) bytes += lua_type(L, i) == LUA_TSTRING ? lua_rawlen(L, i) : 1;
  gen_state_pay(L, bytes / TEXT_BYTES);
  return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

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
  gen_state_pay(L, STEPS_A_NUMBER * (uint64_t)n);
  for (int i = 2; i <= n; i++) {
    int type = lua_type(L, i);
    if (type != LUA_TTABLE && type != LUA_TFUNCTION && type != LUA_TUSERDATA) continue;
    lua_pushcfunction(L, to_string);
    lua_pushvalue(L, i);
    lua_call(L, 1, 1);
    lua_replace(L, i);
  }
  return call_own(L);
}

/* string.rep: of nothing too, which Lua repeats as often as asked. */
static int repeat(lua_State *L) {
  lua_Integer count = luaL_checkinteger(L, 2);
  if (count > 0) gen_state_pay(L, (uint64_t)count);
  return call_own(L);
}

/* Functions over a range of a table or string pay for each element. Second upvalue: the argument that has the first
 * one; the next argument has the last. Of a string, negative places count from its end and others are inside it. */
static uint64_t pay_range(lua_State *L) {
  int first = (int)lua_tointeger(L, lua_upvalueindex(2)), is_text = lua_type(L, 1) == LUA_TSTRING;
  lua_Integer length = (lua_Integer)lua_rawlen(L, 1), low = luaL_optinteger(L, first, 1);
  lua_Integer high = luaL_optinteger(L, first + 1, is_text ? low : length);
  if (is_text && high < 0) high += length + 1;
  if (is_text && low < 0) low += length + 1;
  if (is_text && low < 1) low = 1;
  if (is_text && high > length) high = length;
  uint64_t count = high >= low ? (uint64_t)high - (uint64_t)low + 1 : 0;
  gen_state_pay(L, count);
  return count;
}

static int visit(lua_State *L) {
  pay_range(L);
  return call_own(L);
}

static int give(lua_State *L) {
  uint64_t count = pay_range(L);
  if (count > VALUES_MAX)
    gen_fail(L, "%llu values at once are not accepted, up to %d are", (unsigned long long)count, (int)VALUES_MAX);
  return call_own(L);
}

/* table.insert and table.remove at a place move what is behind it. Second upvalue: arguments where a place is one. */
static int shift(lua_State *L) {
  if (lua_gettop(L) >= (int)lua_tointeger(L, lua_upvalueindex(2))) gen_state_pay(L, lua_rawlen(L, 1));
  return call_own(L);
}

/* ---- frozen tables ---- */

/* "; there are a, b, c": the names in the frozen table; "" if it has none, or more than a message holds. */
static const char *names_of(lua_State *L) {
  const char *list = lua_pushliteral(L, "");
  gen_order_keys(L, lua_upvalueindex(1));
  int keys = lua_gettop(L);
  for (lua_Integer i = 1; lua_rawgeti(L, keys, i) == LUA_TSTRING; i++) {
    list = lua_pushfstring(L, "%s%s%s", list, *list ? ", " : "; there are ", lua_tostring(L, -1));
    lua_replace(L, keys - 1);
    lua_settop(L, keys);
    if (strlen(list) > NAMES_BYTES) return "";
  }
  return list;
}

/* Upvalues: the table, what it is, what its fields are. */
static int read_frozen(lua_State *L) {
  lua_settop(L, 2);
  lua_pushvalue(L, 2);
  if (lua_rawget(L, lua_upvalueindex(1)) == LUA_TNIL)
    gen_fail(L, "%s has no %s '%s'%s", lua_tostring(L, lua_upvalueindex(2)), lua_tostring(L, lua_upvalueindex(3)),
             lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : gen_describe(L, 2), names_of(L));
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

void gen_sandbox_push_frozen(lua_State *L, int view) {
  luaL_getmetafield(L, view, "__index");
  lua_getupvalue(L, -1, 1);
  lua_remove(L, -2);
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

typedef struct safe {
  const char *name;
  lua_CFunction by;
  int argument; /* its second upvalue */
} safe;

static const safe base_functions[] = {{"select", call_own, 0}, {"tonumber", call_own, 0}, {NULL, NULL, 0}};
static const safe string_functions[] = {{"format", format, 0},  {"rep", repeat, 0},       {"byte", give, 2},
                                        {"char", call_own, 0},  {"len", call_own, 0},     {"lower", call_own, 0},
                                        {"upper", call_own, 0}, {"reverse", call_own, 0}, {"sub", call_own, 0},
                                        {NULL, NULL, 0}};
static const safe table_functions[] = {{"concat", visit, 3}, {"unpack", give, 2},  {"move", visit, 2},
                                       {"insert", shift, 3}, {"remove", shift, 2}, {"pack", call_own, 0},
                                       {NULL, NULL, 0}};
static const safe math_functions[] = {
    {"abs", call_own, 0},   {"acos", call_own, 0}, {"asin", call_own, 0},      {"atan", call_own, 0},
    {"ceil", call_own, 0},  {"cos", call_own, 0},  {"deg", call_own, 0},       {"exp", call_own, 0},
    {"floor", call_own, 0}, {"fmod", call_own, 0}, {"log", call_own, 0},       {"max", call_own, 0},
    {"min", call_own, 0},   {"modf", call_own, 0}, {"rad", call_own, 0},       {"sin", call_own, 0},
    {"sqrt", call_own, 0},  {"tan", call_own, 0},  {"tointeger", call_own, 0}, {"type", call_own, 0},
    {"ult", call_own, 0},   {NULL, NULL, 0}};

/* Sets safe forms of functions of the table at from in the one at to. */
static void add_safe(lua_State *L, int from, int to, const safe *functions) {
  for (const safe *f = functions; f->name; f++) {
    lua_getfield(L, from, f->name);
    lua_pushinteger(L, f->argument);
    lua_pushcclosure(L, f->by, 2);
    lua_setfield(L, to, f->name);
  }
}

/* Adds one of Lua's libraries to the environment: these functions of it, and these constants. */
static void add_library(lua_State *L, int environment, const char *name, lua_CFunction open, const safe *functions,
                        const char *const *constants) {
  int library = open_library(L, name, open);
  lua_newtable(L);
  add_safe(L, library, library + 1, functions);
  copy_fields(L, library, library + 1, constants);
  if (open == luaopen_table) {
    lua_pushcfunction(L, gen_order_sort);
    lua_setfield(L, library + 1, "sort");
  }
  gen_sandbox_freeze(L, name, "function");
  lua_setfield(L, environment, name);
  lua_settop(L, environment);
}

/* Methods of strings, ("x"):rep(2), go through the metatable that all strings share. */
static void add_methods(lua_State *L, int environment) {
  lua_pushliteral(L, "");
  lua_newtable(L);
  lua_getfield(L, environment, LUA_STRLIBNAME);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
  lua_settop(L, environment);
}

void gen_sandbox_push(lua_State *L) {
  static const char *const from_base[] = {"assert", "error", "ipairs", "type", NULL};
  static const char *const from_math[] = {"huge", "maxinteger", "mininteger", "pi", NULL};
  static const char *const none[] = {NULL};
  static const luaL_Reg own[] = {{"pairs", gen_order_pairs}, {"tostring", to_string}, {NULL, NULL}};
  lua_newtable(L);
  int environment = lua_gettop(L);
  int base = open_library(L, LUA_GNAME, luaopen_base);
  copy_fields(L, base, environment, from_base);
  add_safe(L, base, environment, base_functions);
  lua_settop(L, environment);
  luaL_setfuncs(L, own, 0);
  add_library(L, environment, LUA_MATHLIBNAME, luaopen_math, math_functions, from_math);
  add_library(L, environment, LUA_STRLIBNAME, luaopen_string, string_functions, none);
  add_library(L, environment, LUA_TABLIBNAME, luaopen_table, table_functions, none);
  add_methods(L, environment);
}
