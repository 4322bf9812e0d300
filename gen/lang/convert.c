/* convert.c: changes of type.
 *
 * The 16-bit floats convert to and from f32 only, so that no value is rounded twice unseen. */
#include "gen/lang/value.h"
#include "gen/lang/words.h"

static LLVMValueRef int_to_int(gen_state *g, gen_value v, gen_type to) {
  LLVMTypeRef type = g->types[to];
  return gen_types[to].bits < gen_types[v.type].bits ? LLVMBuildTrunc(g->builder, v.ref, type, "")
                                                     : LLVMBuildSExt(g->builder, v.ref, type, "");
}

/* bf16 is the upper half of an f32; sm_80 has no instruction for it and needs none. */
static LLVMValueRef bf16_to_f32(gen_state *g, LLVMValueRef v) {
  LLVMTypeRef i32 = g->types[GEN_I32];
  LLVMValueRef bits = LLVMBuildBitCast(g->builder, v, g->types[GEN_I16], "");
  bits = LLVMBuildShl(g->builder, LLVMBuildZExt(g->builder, bits, i32, ""), LLVMConstInt(i32, 16, 0), "");
  return LLVMBuildBitCast(g->builder, bits, g->types[GEN_F32], "");
}

static LLVMValueRef float_to_float(gen_state *g, gen_value v, gen_type to) {
  if (v.type == GEN_BF16) return bf16_to_f32(g, v.ref);
  LLVMTypeRef type = g->types[to];
  return gen_types[to].bits < gen_types[v.type].bits ? LLVMBuildFPTrunc(g->builder, v.ref, type, "")
                                                     : LLVMBuildFPExt(g->builder, v.ref, type, "");
}

static bool is_allowed(gen_type from, gen_type to) {
  gen_class a = gen_types[from].class, b = gen_types[to].class;
  if (a == GEN_STORED) return to == GEN_F32;
  if (b == GEN_STORED) return from == GEN_F32;
  return a != GEN_ADDRESS && b != GEN_ADDRESS && from != GEN_I1 && to != GEN_I1;
}

static int convert(lua_State *L) {
  gen_state *g = gen_building(L, "k.convert");
  gen_type to = gen_types_check(L, 1, "k.convert: type");
  gen_value v = gen_value_check(L, 2, "k.convert: value");
  gen_class from_class = gen_types[v.type].class, to_class = gen_types[to].class;
  if (v.type == to) {
    lua_settop(L, 2);
    return 1;
  }
  if (!is_allowed(v.type, to))
    gen_fail(L, "k.convert: no conversion from %s to %s%s", gen_types[v.type].name, gen_types[to].name,
             from_class == GEN_ADDRESS || to_class == GEN_ADDRESS ? "; use k.bitcast"
             : v.type == GEN_I1 || to == GEN_I1                   ? "; use k.zext, k.select or k.ne"
                                                                  : "; go through f32");
  LLVMValueRef result;
  if (from_class == GEN_INT && to_class == GEN_INT)
    result = int_to_int(g, v, to);
  else if (from_class == GEN_INT)
    result = LLVMBuildSIToFP(g->builder, v.ref, g->types[to], "");
  else if (to_class == GEN_INT)
    result = LLVMBuildFPToSI(g->builder, v.ref, g->types[to], "");
  else
    result = float_to_float(g, v, to);
  gen_value_push(L, to, result);
  return 1;
}

static int zext(lua_State *L) {
  gen_state *g = gen_building(L, "k.zext");
  gen_type to = gen_types_check(L, 1, "k.zext: type");
  gen_value v = gen_value_check(L, 2, "k.zext: value");
  bool integers = gen_types[v.type].class == GEN_INT && gen_types[to].class == GEN_INT;
  if (!integers || gen_types[to].bits < gen_types[v.type].bits)
    gen_fail(L, "k.zext: cannot widen %s to %s", gen_types[v.type].name, gen_types[to].name);
  gen_value_push(L, to, v.type == to ? v.ref : LLVMBuildZExt(g->builder, v.ref, g->types[to], ""));
  return 1;
}

static int bitcast(lua_State *L) {
  gen_state *g = gen_building(L, "k.bitcast");
  gen_type to = gen_types_check(L, 1, "k.bitcast: type");
  gen_value v = gen_value_check(L, 2, "k.bitcast: value");
  bool from_address = v.type == GEN_PTR, to_address = to == GEN_PTR;
  if (gen_types[v.type].bits != gen_types[to].bits ||
      (from_address != to_address && v.type != GEN_I64 && to != GEN_I64))
    gen_fail(L, "k.bitcast: %s and %s differ in size or kind", gen_types[v.type].name, gen_types[to].name);
  LLVMValueRef result = v.ref;
  if (from_address && !to_address)
    result = LLVMBuildPtrToInt(g->builder, v.ref, g->types[to], "");
  else if (to_address && !from_address)
    result = LLVMBuildIntToPtr(g->builder, v.ref, g->types[to], "");
  else if (v.type != to)
    result = LLVMBuildBitCast(g->builder, v.ref, g->types[to], "");
  gen_value_push(L, to, result);
  return 1;
}

void gen_convert_open(lua_State *L, int words) {
  static const luaL_Reg functions[] = {{"convert", convert}, {"zext", zext}, {"bitcast", bitcast}, {NULL, NULL}};
  lua_pushvalue(L, words);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}
