/* memory.c: global memory through pointers and 64-bit element indices.
 *
 * A scalar access is aligned to its element, a vector access to the whole vector. */
#include "gen/lang/order.h"
#include "gen/lang/value.h"
#include "gen/lang/words.h"

enum { VECTOR_BYTES_MAX = 16 };

static unsigned bytes_of(lua_State *L, gen_type type, const char *what) {
  if (type == GEN_I1) gen_fail(L, "%s: i1 has no form in memory; use i8 or i32", what);
  return gen_types[type].bits / 8;
}

static LLVMValueRef element(gen_state *g, gen_type type, LLVMValueRef pointer, LLVMValueRef index) {
  return LLVMBuildGEP2(g->builder, g->types[type], pointer, &index, 1, "");
}

/* opts.const: read through the non-coherent path; the memory does not change while the kernel runs. */
static bool is_const_option(lua_State *L, int arg, const char *what) {
  static const char *const known[] = {"const", NULL};
  if (lua_isnoneornil(L, arg)) return false;
  if (!lua_istable(L, arg)) gen_fail(L, "%s: options: expected a table, got %s", what, gen_describe(L, arg));
  gen_order_refuse_unknown(L, arg, known, lua_pushfstring(L, "%s: options", what));
  lua_getfield(L, arg, "const");
  bool result = lua_toboolean(L, -1);
  lua_pop(L, 2);
  return result;
}

static LLVMValueRef build_load(gen_state *g, LLVMTypeRef type, LLVMValueRef pointer, unsigned align, bool is_const) {
  LLVMValueRef load = LLVMBuildLoad2(g->builder, type, pointer, "");
  LLVMSetAlignment(load, align);
  if (is_const) {
    LLVMMetadataRef node = LLVMMDNodeInContext2(g->context, NULL, 0);
    LLVMSetMetadata(load, LLVMGetMDKindIDInContext(g->context, "invariant.load", 14),
                    LLVMMetadataAsValue(g->context, node));
  }
  return load;
}

static int load(lua_State *L) {
  gen_state *g = gen_building(L, "k.load");
  gen_type type = gen_types_check(L, 1, "k.load: type");
  unsigned bytes = bytes_of(L, type, "k.load");
  LLVMValueRef pointer = gen_value_of(L, 2, GEN_PTR, "k.load: pointer");
  LLVMValueRef index = gen_value_index(L, 3, "k.load: index");
  bool is_const = is_const_option(L, 4, "k.load");
  gen_value_push(L, type, build_load(g, g->types[type], element(g, type, pointer, index), bytes, is_const));
  return 1;
}

static int store(lua_State *L) {
  gen_state *g = gen_building(L, "k.store");
  LLVMValueRef pointer = gen_value_of(L, 1, GEN_PTR, "k.store: pointer");
  LLVMValueRef index = gen_value_index(L, 2, "k.store: index");
  gen_value value = gen_value_check(L, 3, "k.store: value");
  unsigned bytes = bytes_of(L, value.type, "k.store");
  is_const_option(L, 4, "k.store");
  LLVMSetAlignment(LLVMBuildStore(g->builder, value.ref, element(g, value.type, pointer, index)), bytes);
  return 0;
}

static int offset(lua_State *L) {
  gen_state *g = gen_building(L, "k.offset");
  LLVMValueRef pointer = gen_value_of(L, 1, GEN_PTR, "k.offset: pointer");
  LLVMValueRef bytes = gen_value_index(L, 2, "k.offset: bytes");
  gen_value_push(L, GEN_PTR, element(g, GEN_I8, pointer, bytes));
  return 1;
}

static int is_null(lua_State *L) {
  gen_state *g = gen_building(L, "k.is_null");
  gen_value_push(L, GEN_I1, LLVMBuildIsNull(g->builder, gen_value_of(L, 1, GEN_PTR, "k.is_null"), ""));
  return 1;
}

static int atomic(lua_State *L, LLVMAtomicRMWBinOp op, const char *word, const char *pointer_of, const char *index_of,
                  const char *value_of) {
  gen_state *g = gen_building(L, word);
  LLVMValueRef pointer = gen_value_of(L, 1, GEN_PTR, pointer_of);
  LLVMValueRef index = gen_value_index(L, 2, index_of);
  LLVMValueRef value = gen_value_of(L, 3, GEN_I32, value_of);
  gen_value_push(L, GEN_I32,
                 LLVMBuildAtomicRMW(g->builder, op, element(g, GEN_I32, pointer, index), value,
                                    LLVMAtomicOrderingMonotonic, 0));
  return 1;
}

#define ATOMIC(name, op)                                                                                   \
  static int name(lua_State *L) {                                                                          \
    return atomic(L, op, "k." #name, "k." #name ": pointer", "k." #name ": index", "k." #name ": value"); \
  }
ATOMIC(atomic_add, LLVMAtomicRMWBinOpAdd)
ATOMIC(atomic_max, LLVMAtomicRMWBinOpMax)
#undef ATOMIC

/* ---- vectors: n elements travel as words, so that 16-bit elements need no 16-bit registers ---- */

typedef struct vector {
  gen_type type;
  unsigned n, bytes;
  unsigned parts, per_part; /* registers, and elements in each */
  LLVMTypeRef part, whole;
} vector;

static vector vector_of(lua_State *L, gen_type type, lua_Integer n, const char *what) {
  gen_state *g = gen_state_get(L);
  vector v = {.type = type, .n = (unsigned)n};
  unsigned size = bytes_of(L, type, what);
  v.bytes = size * v.n;
  if (v.bytes & (v.bytes - 1) || v.bytes > VECTOR_BYTES_MAX)
    gen_fail(L, "%s: %u %s are %u bytes; a vector has 1, 2, 4, 8 or 16", what, v.n, gen_types[type].name, v.bytes);
  unsigned part_bytes = size >= 4 ? size : v.bytes >= 4 ? 4 : v.bytes;
  v.per_part = part_bytes / size;
  v.parts = v.bytes / part_bytes;
  v.part = v.per_part > 1 ? LLVMIntTypeInContext(g->context, 8 * part_bytes) : g->types[type];
  v.whole = v.parts > 1 ? LLVMVectorType(v.part, v.parts) : v.part;
  return v;
}

/* Element e of a part, moved to the low bits. */
static LLVMValueRef unpack(gen_state *g, const vector *v, LLVMValueRef part, unsigned e) {
  unsigned bits = gen_types[v->type].bits;
  if (v->per_part == 1) return part;
  LLVMValueRef shifted = e ? LLVMBuildLShr(g->builder, part, LLVMConstInt(v->part, e * bits, 0), "") : part;
  LLVMValueRef low = LLVMBuildTrunc(g->builder, shifted, LLVMIntTypeInContext(g->context, bits), "");
  return LLVMBuildBitCast(g->builder, low, g->types[v->type], "");
}

static LLVMValueRef pack_part(gen_state *g, const vector *v, const LLVMValueRef *elements) {
  unsigned bits = gen_types[v->type].bits;
  if (v->per_part == 1) return elements[0];
  LLVMValueRef part = NULL;
  for (unsigned e = 0; e < v->per_part; e++) {
    LLVMValueRef raw = LLVMBuildBitCast(g->builder, elements[e], LLVMIntTypeInContext(g->context, bits), "");
    raw = LLVMBuildZExt(g->builder, raw, v->part, "");
    if (e) raw = LLVMBuildShl(g->builder, raw, LLVMConstInt(v->part, e * bits, 0), "");
    part = part ? LLVMBuildOr(g->builder, part, raw, "") : raw;
  }
  return part;
}

static LLVMValueRef vector_element(gen_state *g, const vector *v, LLVMValueRef pointer, LLVMValueRef index) {
  LLVMTypeRef bytes = LLVMArrayType2(LLVMInt8TypeInContext(g->context), v->bytes);
  return LLVMBuildGEP2(g->builder, bytes, pointer, &index, 1, "");
}

static int load_vector(lua_State *L) {
  gen_state *g = gen_building(L, "k.load_vector");
  gen_type type = gen_types_check(L, 1, "k.load_vector: type");
  lua_Integer n = gen_value_integer(L, 2, 1, VECTOR_BYTES_MAX, "k.load_vector: n");
  LLVMValueRef pointer = gen_value_of(L, 3, GEN_PTR, "k.load_vector: pointer");
  LLVMValueRef index = gen_value_index(L, 4, "k.load_vector: index");
  bool is_const = is_const_option(L, 5, "k.load_vector");
  vector v = vector_of(L, type, n, "k.load_vector");
  LLVMValueRef whole = build_load(g, v.whole, vector_element(g, &v, pointer, index), v.bytes, is_const);
  lua_createtable(L, (int)n, 0);
  for (unsigned i = 0; i < v.n; i++) {
    LLVMValueRef at = LLVMConstInt(g->types[GEN_I32], i / v.per_part, 0);
    LLVMValueRef part = v.parts > 1 ? LLVMBuildExtractElement(g->builder, whole, at, "") : whole;
    gen_value_push(L, type, unpack(g, &v, part, i % v.per_part));
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

static int store_vector(lua_State *L) {
  gen_state *g = gen_building(L, "k.store_vector");
  LLVMValueRef pointer = gen_value_of(L, 1, GEN_PTR, "k.store_vector: pointer");
  LLVMValueRef index = gen_value_index(L, 2, "k.store_vector: index");
  luaL_checktype(L, 3, LUA_TTABLE);
  lua_Integer n = (lua_Integer)lua_rawlen(L, 3);
  if (n < 1 || n > VECTOR_BYTES_MAX) gen_fail(L, "k.store_vector: an array of 1 to 16 values is needed");
  lua_rawgeti(L, 3, 1);
  vector v = vector_of(L, gen_value_check(L, -1, "k.store_vector: value[1]").type, n, "k.store_vector");
  LLVMValueRef elements[VECTOR_BYTES_MAX];
  gen_value_array(L, 3, v.type, (int)n, "k.store_vector: value", elements);
  LLVMValueRef whole = v.parts > 1 ? LLVMGetPoison(v.whole) : NULL;
  for (unsigned i = 0; i < v.parts; i++) {
    LLVMValueRef part = pack_part(g, &v, elements + i * v.per_part), at = LLVMConstInt(g->types[GEN_I32], i, 0);
    whole = v.parts > 1 ? LLVMBuildInsertElement(g->builder, whole, part, at, "") : part;
  }
  LLVMSetAlignment(LLVMBuildStore(g->builder, whole, vector_element(g, &v, pointer, index)), v.bytes);
  return 0;
}

void gen_memory_open(lua_State *L, int words) {
  static const luaL_Reg functions[] = {
      {"load", load},
      {"store", store},
      {"offset", offset},
      {"is_null", is_null},
      {"atomic_add", atomic_add},
      {"atomic_max", atomic_max},
      {"load_vector", load_vector},
      {"store_vector", store_vector},
      {NULL, NULL},
  };
  lua_pushvalue(L, words);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}
