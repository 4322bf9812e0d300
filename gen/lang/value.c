/* value.c: kernel values as Lua objects, and how arguments of words become them.
 *
 * A value is immutable: an LLVM value, its type and the region that may use it. A Lua number takes the type of the
 * value it meets. */
#include "gen/lang/value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gen/lang/words.h"

enum { VALUES_MAX = 1 << 20 }; /* a kernel of a million instructions is a template gone astray */

static void count_value(lua_State *L) {
  if (++gen_state_get(L)->values > VALUES_MAX)
    gen_fail(L, "the module is larger than %d instructions", (int)VALUES_MAX);
}

/* ---- regions ---- */

void gen_region_enter(lua_State *L) {
  gen_state *g = gen_state_get(L);
  count_value(L);
  if (g->region_count == g->region_capacity) {
    uint32_t capacity = g->region_capacity ? 2 * g->region_capacity : 64;
    uint32_t *grown = realloc(g->region_parent, capacity * sizeof *grown);
    if (!grown) gen_fail(L, "out of memory");
    g->region_parent = grown;
    g->region_capacity = capacity;
    if (g->region_count == 0) g->region_parent[g->region_count++] = 0;
  }
  g->region_parent[g->region_count] = g->region;
  g->region = g->region_count++;
}

void gen_region_leave(gen_state *g) {
  g->region = g->region_parent[g->region];
}

static bool is_visible(const gen_state *g, uint32_t region) {
  for (uint32_t r = g->region; r; r = g->region_parent[r])
    if (r == region) return true;
  return region == 0;
}

/* ---- pushing ---- */

void gen_value_push(lua_State *L, gen_type type, LLVMValueRef ref) {
  gen_state *g = gen_state_get(L);
  count_value(L);
  gen_value *value = lua_newuserdatauv(L, sizeof *value, 0);
  *value = (gen_value){ref, type, LLVMIsConstant(ref) && type != GEN_PTR ? 0 : g->region};
  luaL_setmetatable(L, gen_value_metatable);
}

void gen_value_push_struct(lua_State *L, gen_type type, LLVMValueRef aggregate, unsigned n) {
  gen_state *g = gen_state_get(L);
  lua_createtable(L, (int)n, 0);
  for (unsigned i = 0; i < n; i++) {
    gen_value_push(L, type, LLVMBuildExtractValue(g->builder, aggregate, i, ""));
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
}

/* ---- reading arguments ---- */

bool gen_value_is(lua_State *L, int arg) {
  return luaL_testudata(L, arg, gen_value_metatable) != NULL;
}

bool gen_value_test(lua_State *L, int arg, gen_value *out) {
  gen_value *value = luaL_testudata(L, arg, gen_value_metatable);
  if (!value) return false;
  if (!is_visible(gen_state_get(L), value->region))
    gen_fail(L, "this %s was made inside a loop, arm or kernel that has ended; return it as state",
             gen_types[value->type].name);
  *out = *value;
  return true;
}

gen_value gen_value_check(lua_State *L, int arg, const char *what) {
  gen_value value;
  if (!gen_value_test(L, arg, &value)) gen_fail(L, "%s: expected a kernel value, got %s", what, gen_describe(L, arg));
  return value;
}

lua_Integer gen_value_integer(lua_State *L, int arg, lua_Integer low, lua_Integer high, const char *what) {
  if (!lua_isinteger(L, arg)) gen_fail(L, "%s: expected a Lua integer, got %s", what, gen_describe(L, arg));
  lua_Integer n = lua_tointeger(L, arg);
  if (n < low || n > high)
    gen_fail(L, "%s: %lld is not in [%lld, %lld]", what, (long long)n, (long long)low, (long long)high);
  return n;
}

static LLVMValueRef integer_constant(lua_State *L, int arg, gen_type type, const char *what) {
  gen_state *g = gen_state_get(L);
  unsigned bits = gen_types[type].bits;
  if (lua_type(L, arg) == LUA_TBOOLEAN && type == GEN_I1)
    return LLVMConstInt(g->types[type], (unsigned long long)lua_toboolean(L, arg), 0);
  if (!lua_isinteger(L, arg)) gen_fail(L, "%s: %s cannot become %s", what, gen_describe(L, arg), gen_types[type].name);
  lua_Integer n = lua_tointeger(L, arg);
  if (bits < 64 && (n < -((lua_Integer)1 << (bits - 1)) || n >= (lua_Integer)1 << bits))
    gen_fail(L, "%s: %lld does not fit %s", what, (long long)n, gen_types[type].name);
  return LLVMConstInt(g->types[type], (unsigned long long)n, 1);
}

LLVMValueRef gen_value_constant(lua_State *L, int arg, gen_type type, const char *what) {
  gen_state *g = gen_state_get(L);
  if (gen_types[type].class == GEN_INT) return integer_constant(L, arg, type, what);
  if (gen_types[type].class == GEN_ADDRESS || lua_type(L, arg) != LUA_TNUMBER)
    gen_fail(L, "%s: %s cannot become %s", what, gen_describe(L, arg), gen_types[type].name);
  double number = lua_tonumber(L, arg);
  /* the sign of 0/0 differs between machines */
  return LLVMConstReal(g->types[type], isnan(number) ? (double)NAN : number);
}

LLVMValueRef gen_value_of(lua_State *L, int arg, gen_type type, const char *what) {
  gen_value value;
  if (gen_value_test(L, arg, &value)) {
    if (value.type != type)
      gen_fail(L, "%s: expected %s, got %s", what, gen_types[type].name, gen_types[value.type].name);
    return value.ref;
  }
  int kind = lua_type(L, arg);
  if (kind != LUA_TNUMBER && !(kind == LUA_TBOOLEAN && type == GEN_I1))
    gen_fail(L, "%s: expected %s, got %s", what, gen_types[type].name, gen_describe(L, arg));
  return gen_value_constant(L, arg, type, what);
}

LLVMValueRef gen_value_index(lua_State *L, int arg, const char *what) {
  gen_state *g = gen_state_get(L);
  gen_value value;
  if (!gen_value_test(L, arg, &value)) {
    if (!lua_isinteger(L, arg))
      gen_fail(L, "%s: expected i32, i64 or a Lua integer, got %s", what, gen_describe(L, arg));
    return LLVMConstInt(g->types[GEN_I64], (unsigned long long)lua_tointeger(L, arg), 1);
  }
  if (value.type == GEN_I64) return value.ref;
  if (value.type != GEN_I32) gen_fail(L, "%s: expected i32 or i64, got %s", what, gen_types[value.type].name);
  return LLVMBuildSExt(g->builder, value.ref, g->types[GEN_I64], "");
}

gen_type gen_value_pair(lua_State *L, int a, int b, const char *what, LLVMValueRef out[2]) {
  gen_value va, vb;
  bool is_a = gen_value_test(L, a, &va), is_b = gen_value_test(L, b, &vb);
  if (!is_a && !is_b)
    gen_fail(L, "%s: expected a kernel value, got %s and %s", what, gen_describe(L, a), gen_describe(L, b));
  if (is_a && is_b && va.type != vb.type)
    gen_fail(L, "%s: operands differ in type, %s and %s; use k.convert", what, gen_types[va.type].name,
             gen_types[vb.type].name);
  gen_type type = is_a ? va.type : vb.type;
  out[0] = is_a ? va.ref : gen_value_of(L, a, type, what);
  out[1] = is_b ? vb.ref : gen_value_of(L, b, type, what);
  return type;
}

void gen_value_array(lua_State *L, int arg, gen_type type, int n, const char *what, LLVMValueRef *out) {
  arg = lua_absindex(L, arg);
  if (!lua_istable(L, arg))
    gen_fail(L, "%s: expected an array of %d %s, got %s", what, n, gen_types[type].name, gen_describe(L, arg));
  if ((int)lua_rawlen(L, arg) != n)
    gen_fail(L, "%s: expected an array of %d %s, got one of %d", what, n, gen_types[type].name,
             (int)lua_rawlen(L, arg));
  for (int i = 0; i < n; i++) {
    const char *name = lua_pushfstring(L, "%s[%d]", what, i + 1);
    lua_rawgeti(L, arg, i + 1);
    out[i] = gen_value_of(L, -1, type, name);
    lua_pop(L, 2);
  }
}

/* ---- the Lua object ---- */

static int index_field(lua_State *L) {
  gen_value *value = luaL_checkudata(L, 1, gen_value_metatable);
  const char *field = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : gen_describe(L, 2);
  if (lua_type(L, 2) != LUA_TSTRING || field[0] != 't' || strcmp(field, "type") != 0)
    gen_fail(L, "a value (%s) has no field '%s', only 'type'", gen_types[value->type].name, field);
  gen_types_push(L, value->type);
  return 1;
}

static int to_string(lua_State *L) {
  gen_value *value = luaL_checkudata(L, 1, gen_value_metatable);
  lua_pushfstring(L, "%s value", gen_types[value->type].name);
  return 1;
}

/* Lua would turn the result of a comparison into a boolean. */
static int refuse_comparison(lua_State *L) {
  gen_fail(L, "kernel values cannot be compared by Lua's %s; use k.%s", lua_tostring(L, lua_upvalueindex(1)),
           lua_tostring(L, lua_upvalueindex(2)));
}

static int refuse_concat(lua_State *L) {
  gen_fail(L, "a kernel value cannot be part of a string");
}

static int refuse_length(lua_State *L) {
  gen_fail(L, "a kernel value has no length");
}

static int constant(lua_State *L) {
  gen_type type = gen_types_check(L, 1, "k.const: type");
  gen_value_push(L, type, gen_value_constant(L, 2, type, "k.const"));
  return 1;
}

void gen_value_open(lua_State *L, int words) {
  static const char *const refused[][3] = {
      {"__eq", "== or ~=", "eq or k.ne"}, {"__lt", "< or >", "lt or k.gt"}, {"__le", "<= or >=", "le or k.ge"}};
  static const luaL_Reg methods[] = {{"__index", index_field},
                                     {"__tostring", to_string},
                                     {"__concat", refuse_concat},
                                     {"__len", refuse_length},
                                     {NULL, NULL}};
  luaL_newmetatable(L, gen_value_metatable);
  luaL_setfuncs(L, methods, 0);
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    lua_pushstring(L, refused[i][1]);
    lua_pushstring(L, refused[i][2]);
    lua_pushcclosure(L, refuse_comparison, 2);
    lua_setfield(L, -2, refused[i][0]);
  }
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_pop(L, 1);
  lua_pushcfunction(L, constant);
  lua_setfield(L, words, "const");
}
