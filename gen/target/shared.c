/* shared.c: shared memory through 32-bit byte addresses. */
#include <string.h>

#include "gen/lang/call.h"
#include "gen/lang/value.h"
#include "gen/target/words.h"

/* ---- instructions ---- */

typedef struct shared_access {
  gen_asm load, store;
  gen_type as; /* register type that the constraint takes */
} shared_access;

#define SHARED(suffix, letter, as_type)                                                            \
  {                                                                                                \
    {"ld.shared." suffix " $0, [$1];", "=" letter ",r,~{memory}", GEN_ASM_SIDE_EFFECT},            \
        {"st.shared." suffix " [$0], $1;", "r," letter ",~{memory}", GEN_ASM_SIDE_EFFECT}, as_type \
  }

static const shared_access shared_accesses[GEN_TYPE_COUNT] = {
    [GEN_I8] = SHARED("b8", "h", GEN_I16),   [GEN_I16] = SHARED("b16", "h", GEN_I16),
    [GEN_I32] = SHARED("b32", "r", GEN_I32), [GEN_I64] = SHARED("b64", "l", GEN_I64),
    [GEN_F16] = SHARED("b16", "h", GEN_I16), [GEN_BF16] = SHARED("b16", "h", GEN_I16),
    [GEN_F32] = SHARED("f32", "f", GEN_F32), [GEN_F64] = SHARED("f64", "d", GEN_F64),
    [GEN_PTR] = SHARED("b64", "l", GEN_PTR),
};

static LLVMValueRef build_load(gen_state *g, gen_type type, LLVMValueRef address) {
  const shared_access *access = &shared_accesses[type];
  LLVMValueRef raw = gen_call_asm(g, &access->load, g->types[access->as], &address, 1);
  if (access->as == type) return raw;
  if (type == GEN_I8) return LLVMBuildTrunc(g->builder, raw, g->types[type], "");
  return LLVMBuildBitCast(g->builder, raw, g->types[type], "");
}

static void build_store(gen_state *g, gen_type type, LLVMValueRef address, LLVMValueRef value) {
  const shared_access *access = &shared_accesses[type];
  LLVMValueRef raw = value;
  if (type == GEN_I8)
    raw = LLVMBuildZExt(g->builder, value, g->types[access->as], "");
  else if (access->as != type)
    raw = LLVMBuildBitCast(g->builder, value, g->types[access->as], "");
  LLVMValueRef args[2] = {address, raw};
  gen_call_asm(g, &access->store, NULL, args, 2);
}

typedef struct shared_vector {
  gen_type type;
  unsigned n;
  gen_asm load, store;
} shared_vector;

static const shared_vector shared_vectors[] = {
    {GEN_I32,
     2,
     {"ld.shared.v2.b32 {$0,$1}, [$2];", "=r,=r,r,~{memory}", GEN_ASM_SIDE_EFFECT},
     {"st.shared.v2.b32 [$0], {$1,$2};", "r,r,r,~{memory}", GEN_ASM_SIDE_EFFECT}},
    {GEN_I32,
     4,
     {"ld.shared.v4.b32 {$0,$1,$2,$3}, [$4];", "=r,=r,=r,=r,r,~{memory}", GEN_ASM_SIDE_EFFECT},
     {"st.shared.v4.b32 [$0], {$1,$2,$3,$4};", "r,r,r,r,r,~{memory}", GEN_ASM_SIDE_EFFECT}},
    {GEN_F32,
     2,
     {"ld.shared.v2.f32 {$0,$1}, [$2];", "=f,=f,r,~{memory}", GEN_ASM_SIDE_EFFECT},
     {"st.shared.v2.f32 [$0], {$1,$2};", "r,f,f,~{memory}", GEN_ASM_SIDE_EFFECT}},
    {GEN_F32,
     4,
     {"ld.shared.v4.f32 {$0,$1,$2,$3}, [$4];", "=f,=f,=f,=f,r,~{memory}", GEN_ASM_SIDE_EFFECT},
     {"st.shared.v4.f32 [$0], {$1,$2,$3,$4};", "r,f,f,f,f,~{memory}", GEN_ASM_SIDE_EFFECT}},
};

static const shared_vector *shared_vector_of(gen_type type, unsigned n) {
  size_t i = 0;
  while (shared_vectors[i].type != type || shared_vectors[i].n != n) i++;
  return &shared_vectors[i];
}

static LLVMValueRef build_load_vector(gen_state *g, gen_type type, unsigned n, LLVMValueRef address) {
  return gen_call_asm(g, &shared_vector_of(type, n)->load, gen_call_struct(g, type, n), &address, 1);
}

static void build_store_vector(gen_state *g, gen_type type, unsigned n, LLVMValueRef address,
                               const LLVMValueRef *values) {
  LLVMValueRef args[5] = {address};
  memcpy(args + 1, values, n * sizeof *values);
  gen_call_asm(g, &shared_vector_of(type, n)->store, NULL, args, n + 1);
}

/* ---- words ---- */

static void refuse_i1(lua_State *L, gen_type type, const char *what) {
  if (type == GEN_I1) gen_fail(L, "%s: i1 has no form in memory; use i8 or i32", what);
}

static int shared(lua_State *L) {
  gen_state *g = gen_building(L, "k.shared");
  unsigned alignment = 0;
  if (!lua_isnoneornil(L, 1)) alignment = (unsigned)gen_value_integer(L, 1, 1, 1024, "k.shared: alignment");
  if (alignment & (alignment - 1)) gen_fail(L, "k.shared: alignment: %d is no power of 2", (int)alignment);
  if (!g->shared) {
    LLVMTypeRef array = LLVMArrayType2(LLVMInt8TypeInContext(g->context), 0);
    g->shared = LLVMAddGlobalInAddressSpace(g->module, array, "flp_shared", 3);
    LLVMSetAlignment(g->shared, 128);
  }
  if (alignment > LLVMGetAlignment(g->shared)) LLVMSetAlignment(g->shared, alignment);
  gen_value_push(L, GEN_I32, LLVMBuildPtrToInt(g->builder, g->shared, g->types[GEN_I32], ""));
  return 1;
}

static int shared_load(lua_State *L) {
  gen_state *g = gen_building(L, "k.shared_load");
  gen_type type = gen_types_check(L, 1, "k.shared_load: type");
  refuse_i1(L, type, "k.shared_load");
  gen_value_push(L, type, build_load(g, type, gen_value_of(L, 2, GEN_I32, "k.shared_load: address")));
  return 1;
}

static int shared_store(lua_State *L) {
  gen_state *g = gen_building(L, "k.shared_store");
  LLVMValueRef address = gen_value_of(L, 1, GEN_I32, "k.shared_store: address");
  gen_value value = gen_value_check(L, 2, "k.shared_store: value");
  refuse_i1(L, value.type, "k.shared_store");
  build_store(g, value.type, address, value.ref);
  return 0;
}

static int shared_atomic_or(lua_State *L) {
  static const gen_asm text = {"red.relaxed.cta.shared.or.b32 [$0], $1;", "r,r,~{memory}", GEN_ASM_SIDE_EFFECT};
  gen_state *g = gen_building(L, "k.shared_atomic_or");
  LLVMValueRef args[2] = {gen_value_of(L, 1, GEN_I32, "k.shared_atomic_or: address"),
                          gen_value_of(L, 2, GEN_I32, "k.shared_atomic_or: value")};
  gen_call_asm(g, &text, NULL, args, 2);
  return 0;
}

static void check_shared_vector(lua_State *L, gen_type type, lua_Integer n, const char *what) {
  if (type != GEN_I32 && type != GEN_F32) gen_fail(L, "%s: expected i32 or f32, got %s", what, gen_types[type].name);
  if (n != 2 && n != 4) gen_fail(L, "%s: %d elements; 2 or 4 are accepted", what, (int)n);
}

static int shared_load_vector(lua_State *L) {
  static const char what[] = "k.shared_load_vector";
  gen_state *g = gen_building(L, what);
  gen_type type = gen_types_check(L, 1, "k.shared_load_vector: type");
  lua_Integer n = gen_value_integer(L, 2, 1, 16, "k.shared_load_vector: n");
  check_shared_vector(L, type, n, what);
  LLVMValueRef address = gen_value_of(L, 3, GEN_I32, "k.shared_load_vector: address");
  gen_value_push_struct(L, type, build_load_vector(g, type, (unsigned)n, address), (unsigned)n);
  return 1;
}

static int shared_store_vector(lua_State *L) {
  static const char what[] = "k.shared_store_vector";
  gen_state *g = gen_building(L, what);
  LLVMValueRef address = gen_value_of(L, 1, GEN_I32, "k.shared_store_vector: address");
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_Integer n = (lua_Integer)lua_rawlen(L, 2);
  lua_rawgeti(L, 2, 1);
  gen_type type = gen_value_check(L, -1, "k.shared_store_vector: value[1]").type;
  check_shared_vector(L, type, n, what);
  LLVMValueRef values[4];
  gen_value_array(L, 2, type, (int)n, "k.shared_store_vector: value", values);
  build_store_vector(g, type, (unsigned)n, address, values);
  return 0;
}

void gen_shared_open(lua_State *L, int words) {
  static const luaL_Reg functions[] = {
      {"shared", shared},
      {"shared_load", shared_load},
      {"shared_store", shared_store},
      {"shared_atomic_or", shared_atomic_or},
      {"shared_load_vector", shared_load_vector},
      {"shared_store_vector", shared_store_vector},
      {NULL, NULL},
  };
  lua_pushvalue(L, words);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}
