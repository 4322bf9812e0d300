/* kernel.c: k.kernel, from a table of facts and a body to an LLVM function and an entry of the descriptor. */
#include <stdio.h>
#include <string.h>

#include "gen/lang/llvm_names.h"
#include "gen/lang/order.h"
#include "gen/lang/sandbox.h"
#include "gen/lang/value.h"
#include "gen/target/words.h"
#include "runtime/kernel/arch.h"

enum { THREADS_MAX = 1024 };

static bool is_defined(const flp_kernel_desc *desc, const char *name) {
  for (uint32_t i = 0; i < desc->entry_count; i++)
    if (strcmp(desc->entries[i].name, name) == 0) return true;
  return false;
}

/* Whether the entry was defined in either form. */
static bool is_either_defined(const flp_kernel_desc *desc, const flp_kind_entry *entry) {
  return is_defined(desc, flp_entry_name(entry->plain)) || is_defined(desc, flp_entry_name(entry->mapped));
}

void gen_kernel_finish(lua_State *L, const char *file) {
  gen_state *g = gen_state_get(L);
  const flp_kind *kind = flp_kind_of(g->key->kind);
  for (int i = 0; i < kind->entry_count; i++) {
    const flp_kind_entry *entry = &kind->entries[i];
    if ((entry->of_lora && !g->key->lora) || is_either_defined(g->desc, entry)) continue;
    int first = entry->plain != FLP_NO_ENTRY ? entry->plain : entry->mapped;
    lua_pushfstring(L, "%s:1: the file defines no kernel '%s'", file, flp_entry_name(first));
    lua_error(L);
  }
}

/* ---- reading the table ---- */

static lua_Integer integer_field(lua_State *L, const char *name, lua_Integer fallback, lua_Integer low,
                                 lua_Integer high) {
  const char *what = lua_pushfstring(L, "k.kernel: %s", name);
  lua_Integer result = fallback;
  if (lua_getfield(L, 1, name) != LUA_TNIL || fallback < low) result = gen_value_integer(L, -1, low, high, what);
  lua_pop(L, 2);
  return result;
}

/* Tunables live once in the descriptor: kernels of one module that give them must agree. */
static void read_tile(lua_State *L) {
  static const char *const known[] = {"rows", "columns", "depth", "stages", "unit_columns", "raster", "cluster", NULL};
  flp_kernel_desc *d = gen_state_get(L)->desc;
  uint32_t *const fields[] = {&d->tile_rows,    &d->tile_columns, &d->tile_depth, &d->stages,
                              &d->unit_columns, &d->raster,       &d->cluster};
  if (lua_getfield(L, 1, "tile") != LUA_TNIL) {
    if (!lua_istable(L, -1)) gen_fail(L, "k.kernel: tile: expected a table, got %s", gen_describe(L, -1));
    int tile = lua_gettop(L);
    gen_order_refuse_unknown(L, tile, known, "k.kernel: tile");
    for (int i = 0; known[i]; i++) {
      const char *what = lua_pushfstring(L, "k.kernel: tile.%s", known[i]);
      if (lua_getfield(L, tile, known[i]) != LUA_TNIL) {
        uint32_t n = (uint32_t)gen_value_integer(L, -1, 1, INT32_MAX, what);
        if (*fields[i] && *fields[i] != n)
          gen_fail(L, "%s: %d, but an earlier kernel of this module has %d", what, (int)n, (int)*fields[i]);
        *fields[i] = n;
      }
      lua_settop(L, tile);
    }
  }
  lua_pop(L, 1);
}

/* Raises that a module has no entry of that name, with those that it may have. */
static void refuse_entry(lua_State *L, const flp_kind *kind, const char *name) {
  const char *list = "";
  luaL_checkstack(L, 2 * kind->entry_count, "too many entries");
  for (int i = 0; i < 2 * kind->entry_count; i++) {
    const flp_kind_entry *entry = &kind->entries[i / 2];
    const char *other = flp_entry_name(i % 2 ? entry->mapped : entry->plain);
    if (*other) list = lua_pushfstring(L, "%s%s%s", list, *list ? ", " : "", other);
  }
  gen_fail(L, "k.kernel: entry: '%s' is no kernel of module %s; accepted are %s", name, kind->name, list);
}

/* Appends the descriptor's entry; returns the parameters of abi.h. */
static const flp_abi_entry *read_entry(lua_State *L) {
  gen_state *g = gen_state_get(L);
  lua_getfield(L, 1, "entry");
  const char *name = gen_text(L, -1);
  if (!name) gen_fail(L, "k.kernel: entry: expected a string, got %s", gen_describe(L, -1));
  const flp_abi_entry *abi = flp_abi_find(name);
  if (!abi || !flp_kind_entry_find(g->key->kind, name)) refuse_entry(L, flp_kind_of(g->key->kind), name);
  if (is_defined(g->desc, name)) gen_fail(L, "k.kernel: entry: '%s' is defined twice", name);
  if (g->desc->entry_count == FLP_ENTRIES_MAX)
    gen_fail(L, "k.kernel: entry: '%s' is one more than the %d that a module may have", name, FLP_ENTRIES_MAX);
  flp_kernel_entry *entry = &g->desc->entries[g->desc->entry_count++];
  snprintf(entry->name, sizeof entry->name, "%s", abi->name);
  char signature[FLP_ABI_PARAMS_MAX + 1];
  snprintf(entry->signature, sizeof entry->signature, "%s", flp_abi_signature(abi, signature));
  g->threads = entry->threads = (uint32_t)integer_field(L, "threads", -1, 32, THREADS_MAX);
  if (entry->threads % 32) gen_fail(L, "k.kernel: threads: %d is no multiple of 32", (int)entry->threads);
  entry->shared_bytes = (uint32_t)integer_field(L, "shared_bytes", 0, 0, flp_arch_find(g->key->arch)->shared_bytes);
  lua_pop(L, 1);
  return abi;
}

/* ---- building the function ---- */

static gen_type type_of(flp_abi_type type) {
  switch (type) {
    case FLP_ABI_I64:
      return GEN_I64;
    case FLP_ABI_I32:
      return GEN_I32;
    case FLP_ABI_F32:
      return GEN_F32;
    case FLP_ABI_F64:
      return GEN_F64;
    case FLP_ABI_MAP: /* its address, as k.tensor_copy takes it */
      return GEN_I64;
    case FLP_ABI_PTR:
      break;
  }
  return GEN_PTR;
}

static void annotate_parts(gen_state *g, LLVMMetadataRef parts[3]) {
  LLVMValueRef node = LLVMMetadataAsValue(g->context, LLVMMDNodeInContext2(g->context, parts, 3));
  LLVMAddNamedMetadataOperand(g->module, "nvvm.annotations", node);
}

/* LLVM 19 reads launch bounds from !nvvm.annotations only, and needs maxntidx to bound registers. */
static void annotate(gen_state *g, LLVMValueRef function, const char *name, uint32_t value) {
  LLVMMetadataRef parts[3] = {LLVMValueAsMetadata(function), LLVMMDStringInContext2(g->context, name, strlen(name)),
                              LLVMValueAsMetadata(LLVMConstInt(g->types[GEN_I32], value, 0))};
  annotate_parts(g, parts);
}

static void add_attribute(gen_state *g, LLVMValueRef function, const char *name, const char *value) {
  LLVMAttributeRef a =
      LLVMCreateStringAttribute(g->context, name, (unsigned)strlen(name), value, (unsigned)strlen(value));
  LLVMAddAttributeAtIndex(function, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, a);
}

/* Tensor maps are passed by value and stay in parameter memory: without grid_constant LLVM copies them to the stack. */
static void declare_maps(gen_state *g, LLVMValueRef function, const flp_abi_entry *abi) {
  LLVMMetadataRef numbers[FLP_ABI_PARAMS_MAX];
  size_t maps = 0;
  unsigned number = 1;
  unsigned by_value = gen_llvm_attribute(g, "byval"), align = gen_llvm_attribute(g, "align");
  LLVMTypeRef map = LLVMArrayType2(LLVMInt8TypeInContext(g->context), sizeof(flp_abi_map));
  for (const flp_abi_param *p = flp_abi_first(abi); p; p = flp_abi_next(abi, p), number++) {
    if (p->type != FLP_ABI_MAP) continue;
    LLVMAddAttributeAtIndex(function, number, LLVMCreateTypeAttribute(g->context, by_value, map));
    LLVMAddAttributeAtIndex(function, number, LLVMCreateEnumAttribute(g->context, align, _Alignof(flp_abi_map)));
    numbers[maps++] = LLVMValueAsMetadata(LLVMConstInt(g->types[GEN_I32], number, 0));
  }
  LLVMMetadataRef parts[3] = {LLVMValueAsMetadata(function), LLVMMDStringInContext2(g->context, "grid_constant", 13),
                              LLVMMDNodeInContext2(g->context, numbers, maps)};
  if (maps) annotate_parts(g, parts);
}

static LLVMValueRef declare(gen_state *g, const flp_abi_entry *abi, uint32_t min_ctas) {
  LLVMTypeRef types[FLP_ABI_PARAMS_MAX];
  unsigned count = 0, number = 0;
  for (const flp_abi_param *p = flp_abi_first(abi); p; p = flp_abi_next(abi, p))
    types[count++] = p->type == FLP_ABI_MAP ? LLVMPointerTypeInContext(g->context, 0) : g->types[type_of(p->type)];
  char symbol[64];
  snprintf(symbol, sizeof symbol, "flp_%s", abi->name);
  LLVMTypeRef type = LLVMFunctionType(LLVMVoidTypeInContext(g->context), types, count, 0);
  LLVMValueRef function = LLVMAddFunction(g->module, symbol, type);
  for (const flp_abi_param *p = flp_abi_first(abi); p; p = flp_abi_next(abi, p))
    LLVMSetValueName2(LLVMGetParam(function, number++), p->name, strlen(p->name));
  LLVMAddAttributeAtIndex(function, (LLVMAttributeIndex)LLVMAttributeFunctionIndex,
                          LLVMCreateEnumAttribute(g->context, gen_llvm_attribute(g, "nounwind"), 0));
  add_attribute(g, function, "denormal-fp-math-f32", "preserve-sign,preserve-sign");
  annotate(g, function, "kernel", 1);
  annotate(g, function, "maxntidx", g->threads);
  if (min_ctas) annotate(g, function, "minctasm", min_ctas);
  declare_maps(g, function, abi);
  return function;
}

/* Pushes the table `p` of the kernel's parameters. */
static void push_parameters(lua_State *L, const flp_abi_entry *abi) {
  gen_state *g = gen_state_get(L);
  unsigned number = 0;
  lua_newtable(L);
  for (const flp_abi_param *p = flp_abi_first(abi); p; p = flp_abi_next(abi, p)) {
    LLVMValueRef value = LLVMGetParam(g->function, number++);
    if (p->type == FLP_ABI_MAP) value = LLVMBuildPtrToInt(g->builder, value, g->types[GEN_I64], p->name);
    gen_value_push(L, type_of(p->type), value);
    lua_setfield(L, -2, p->name);
  }
  const char *what = lua_pushfstring(L, "kernel '%s'", abi->name);
  lua_insert(L, -2);
  gen_sandbox_freeze(L, what, "parameter");
  lua_remove(L, -2);
}

static int kernel(lua_State *L) {
  static const char *const known[] = {"entry", "threads", "min_ctas", "shared_bytes", "tile", "body", NULL};
  gen_state *g = gen_state_get(L);
  if (g->function) gen_fail(L, "k.kernel: a kernel cannot be defined inside another");
  if (!lua_istable(L, 1)) gen_fail(L, "k.kernel: expected a table, got %s", gen_describe(L, 1));
  lua_settop(L, 1);
  gen_order_refuse_unknown(L, 1, known, "k.kernel");
  if (lua_getfield(L, 1, "body") != LUA_TFUNCTION)
    gen_fail(L, "k.kernel: body: expected a function, got %s", gen_describe(L, -1));
  uint32_t min_ctas = (uint32_t)integer_field(L, "min_ctas", 0, 0, 32);
  const flp_abi_entry *abi = read_entry(L);
  read_tile(L);

  g->function = declare(g, abi, min_ctas);
  LLVMPositionBuilderAtEnd(g->builder, LLVMAppendBasicBlockInContext(g->context, g->function, "entry"));
  gen_region_enter(L);
  lua_pushvalue(L, 2);
  push_parameters(L, abi);
  lua_call(L, 1, 0);
  gen_region_leave(g);
  LLVMBuildRetVoid(g->builder);
  g->function = NULL;
  return 0;
}

void gen_kernel_open(lua_State *L, int words) {
  lua_pushcfunction(L, kernel);
  lua_setfield(L, words, "kernel");
}
