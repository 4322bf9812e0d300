/* types.c: the types of kernel values and the Lua objects that stand for them, and what messages call any object.
 *
 * Each type is one userdata for the life of the state, so that `v.type == k.f32` is plain identity. */
#include "gen/lang/types.h"

#include <string.h>

#include "gen/lang/words.h"

const gen_type_info gen_types[GEN_TYPE_COUNT] = {
    [GEN_I1] = {"i1", GEN_INT, 1},         [GEN_I8] = {"i8", GEN_INT, 8},      [GEN_I16] = {"i16", GEN_INT, 16},
    [GEN_I32] = {"i32", GEN_INT, 32},      [GEN_I64] = {"i64", GEN_INT, 64},   [GEN_F16] = {"f16", GEN_STORED, 16},
    [GEN_BF16] = {"bf16", GEN_STORED, 16}, [GEN_F32] = {"f32", GEN_FLOAT, 32}, [GEN_F64] = {"f64", GEN_FLOAT, 64},
    [GEN_PTR] = {"ptr", GEN_ADDRESS, 64},
};

const char gen_type_metatable[] = "flp.type", gen_value_metatable[] = "flp.value";

void gen_types_init(gen_state *g) {
  LLVMContextRef c = g->context;
  g->types[GEN_I1] = LLVMInt1TypeInContext(c);
  g->types[GEN_I8] = LLVMInt8TypeInContext(c);
  g->types[GEN_I16] = LLVMInt16TypeInContext(c);
  g->types[GEN_I32] = LLVMInt32TypeInContext(c);
  g->types[GEN_I64] = LLVMInt64TypeInContext(c);
  g->types[GEN_F16] = LLVMHalfTypeInContext(c);
  g->types[GEN_BF16] = LLVMBFloatTypeInContext(c);
  g->types[GEN_F32] = LLVMFloatTypeInContext(c);
  g->types[GEN_F64] = LLVMDoubleTypeInContext(c);
  g->types[GEN_PTR] = LLVMPointerTypeInContext(c, 1); /* address space 1 is global memory */
}

static int to_string(lua_State *L) {
  gen_type *type = luaL_checkudata(L, 1, gen_type_metatable);
  lua_pushstring(L, gen_types[*type].name);
  return 1;
}

void gen_types_open(lua_State *L, int words) {
  luaL_newmetatable(L, gen_type_metatable);
  lua_pushcfunction(L, to_string);
  lua_setfield(L, -2, "__tostring");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  for (int i = 0; i < GEN_TYPE_COUNT; i++) {
    gen_type *type = lua_newuserdatauv(L, sizeof *type, 0);
    *type = (gen_type)i;
    luaL_setmetatable(L, gen_type_metatable);
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &gen_types[i]);
    lua_setfield(L, words, gen_types[i].name);
  }
  lua_pop(L, 1);
}

void gen_types_push(lua_State *L, gen_type type) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &gen_types[type]);
}

bool gen_types_test(lua_State *L, int arg, gen_type *out) {
  gen_type *type = luaL_testudata(L, arg, gen_type_metatable);
  if (type) *out = *type;
  return type != NULL;
}

gen_type gen_types_check(lua_State *L, int arg, const char *what) {
  gen_type type;
  if (!gen_types_test(L, arg, &type))
    gen_fail(L, "%s: expected a type such as k.f32, got %s", what, gen_describe(L, arg));
  return type;
}

const char *gen_describe(lua_State *L, int arg) {
  gen_value *value = luaL_testudata(L, arg, gen_value_metatable);
  gen_type type;
  if (value) return gen_types[value->type].name;
  if (gen_types_test(L, arg, &type)) return "a type";
  if (lua_isinteger(L, arg)) return "a Lua integer";
  if (lua_type(L, arg) == LUA_TNUMBER) return "a Lua float";
  if (lua_type(L, arg) == LUA_TSTRING && !gen_text(L, arg)) return "a string with a byte 0";
  return lua_isnone(L, arg) ? "nothing" : luaL_typename(L, arg);
}

const char *gen_text(lua_State *L, int arg) {
  size_t length = 0;
  const char *text = lua_type(L, arg) == LUA_TSTRING ? lua_tolstring(L, arg, &length) : NULL;
  return text && strlen(text) == length ? text : NULL;
}

const char *gen_word(lua_State *L, int arg) {
  const char *text = gen_text(L, arg);
  return text ? text : "";
}
