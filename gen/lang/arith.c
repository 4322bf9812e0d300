/* arith.c: operators, comparisons and mathematical words, as tables from names to LLVM operations.
 *
 * No fast-math flag is ever set, so a multiply and an add stay two roundings unless k.fma is written. */
#include "gen/lang/call.h"
#include "gen/lang/value.h"
#include "gen/lang/words.h"

typedef struct binary {
  const char *name;
  LLVMOpcode on_int, on_float; /* 0: not for this class */
  bool on_i1;
  int identity;  /* right operand that changes nothing; -1: none */
  bool commutes; /* the identity counts on the left too */
  bool is_division, is_shift;
} binary;

static const binary operators[] = {
    {"__add", LLVMAdd, LLVMFAdd, false, 0, true, false, false},
    {"__sub", LLVMSub, LLVMFSub, false, 0, false, false, false},
    {"__mul", LLVMMul, LLVMFMul, false, 1, true, false, false},
    {"__div", (LLVMOpcode)0, LLVMFDiv, false, -1, false, false, false},
    {"__idiv", LLVMSDiv, (LLVMOpcode)0, false, 1, false, true, false},
    {"__mod", LLVMSRem, (LLVMOpcode)0, false, -1, false, true, false},
    {"__band", LLVMAnd, (LLVMOpcode)0, true, -1, false, false, false},
    {"__bor", LLVMOr, (LLVMOpcode)0, true, 0, true, false, false},
    {"__bxor", LLVMXor, (LLVMOpcode)0, true, 0, true, false, false},
    {"__shl", LLVMShl, (LLVMOpcode)0, false, 0, false, false, true},
    {"__shr", LLVMAShr, (LLVMOpcode)0, false, 0, false, false, true},
};

static const binary words[] = {
    {"k.udiv", LLVMUDiv, (LLVMOpcode)0, false, 1, false, true, false},
    {"k.urem", LLVMURem, (LLVMOpcode)0, false, -1, false, true, false},
    {"k.lshr", LLVMLShr, (LLVMOpcode)0, false, 0, false, false, true},
};

/* What a template calls the operator, for messages. */
static const char *printed_name(const binary *op) {
  static const char *const names[] = {"+", "-", "*", "/", "//", "%", "&", "|", "~", "<<", ">>"};
  ptrdiff_t i = op - operators;
  if (i >= 0 && i < (ptrdiff_t)(sizeof names / sizeof names[0])) return names[i];
  return op->name;
}

static bool is_constant(LLVMValueRef value, unsigned long long *out) {
  if (!LLVMIsAConstantInt(value)) return false;
  *out = LLVMConstIntGetZExtValue(value);
  return true;
}

static LLVMOpcode opcode_for(lua_State *L, const binary *op, gen_type type) {
  gen_class class = gen_types[type].class;
  LLVMOpcode code = class == GEN_INT ? op->on_int : class == GEN_FLOAT ? op->on_float : (LLVMOpcode)0;
  if (type == GEN_I1 && !op->on_i1) code = (LLVMOpcode)0;
  if (code) return code;
  const char *advice = type == GEN_I1         ? "; use k.zext"
                       : class == GEN_STORED  ? "; use k.convert to f32"
                       : class == GEN_ADDRESS ? "; use k.offset"
                       : op->on_float         ? "; use //"
                                              : "";
  gen_fail(L, "%s is not defined on %s%s", printed_name(op), gen_types[type].name, advice);
}

/* Raises for what would be poison whatever the other operand. */
static void check_right(lua_State *L, const binary *op, gen_type type, unsigned long long right) {
  if (op->is_division && right == 0) gen_fail(L, "%s by zero", printed_name(op));
  if (op->is_shift && right >= gen_types[type].bits)
    gen_fail(L, "%s by %lld, but %s has %u bits", printed_name(op), (long long)right, gen_types[type].name,
             gen_types[type].bits);
}

static int apply_binary(lua_State *L) {
  const binary *op = lua_touserdata(L, lua_upvalueindex(1));
  gen_state *g = gen_building(L, printed_name(op));
  gen_value pointer;
  for (int i = 1; i <= 2; i++)
    if (gen_value_test(L, i, &pointer) && pointer.type == GEN_PTR) opcode_for(L, op, GEN_PTR); /* raises */
  LLVMValueRef v[2];
  gen_type type = gen_value_pair(L, 1, 2, printed_name(op), v);
  LLVMOpcode code = opcode_for(L, op, type);
  unsigned long long c;
  LLVMValueRef result = NULL;
  if (is_constant(v[1], &c)) {
    check_right(L, op, type, c);
    if (op->identity >= 0 && c == (unsigned long long)op->identity) result = v[0];
  } else if (op->commutes && is_constant(v[0], &c) && c == (unsigned long long)op->identity) {
    result = v[1];
  }
  gen_value_push(L, type, result ? result : LLVMBuildBinOp(g->builder, code, v[0], v[1], ""));
  return 1;
}

static int negate(lua_State *L) {
  gen_state *g = gen_building(L, "-");
  gen_value v = gen_value_check(L, 1, "-");
  gen_class class = gen_types[v.type].class;
  if (v.type == GEN_I1 || !(class & (GEN_INT | GEN_FLOAT)))
    gen_fail(L, "- is not defined on %s", gen_types[v.type].name);
  gen_value_push(L, v.type,
                 class == GEN_INT ? LLVMBuildNeg(g->builder, v.ref, "") : LLVMBuildFNeg(g->builder, v.ref, ""));
  return 1;
}

static int complement(lua_State *L) {
  gen_state *g = gen_building(L, "~");
  gen_value v = gen_value_check(L, 1, "~");
  if (gen_types[v.type].class != GEN_INT) gen_fail(L, "~ is not defined on %s", gen_types[v.type].name);
  gen_value_push(L, v.type, LLVMBuildNot(g->builder, v.ref, ""));
  return 1;
}

/* ---- comparisons ---- */

typedef struct comparison {
  const char *name;
  LLVMIntPredicate on_int;
  LLVMRealPredicate on_float; /* LLVMRealPredicateFalse: not for floats */
} comparison;

static const comparison comparisons[] = {
    {"k.eq", LLVMIntEQ, LLVMRealOEQ},
    {"k.ne", LLVMIntNE, LLVMRealUNE},
    {"k.lt", LLVMIntSLT, LLVMRealOLT},
    {"k.le", LLVMIntSLE, LLVMRealOLE},
    {"k.gt", LLVMIntSGT, LLVMRealOGT},
    {"k.ge", LLVMIntSGE, LLVMRealOGE},
    {"k.ult", LLVMIntULT, LLVMRealPredicateFalse},
};

static int compare(lua_State *L) {
  const comparison *c = lua_touserdata(L, lua_upvalueindex(1));
  gen_state *g = gen_building(L, c->name);
  LLVMValueRef v[2];
  gen_type type = gen_value_pair(L, 1, 2, c->name, v);
  gen_class class = gen_types[type].class;
  if (class == GEN_INT)
    gen_value_push(L, GEN_I1, LLVMBuildICmp(g->builder, c->on_int, v[0], v[1], ""));
  else if (class == GEN_FLOAT && c->on_float != LLVMRealPredicateFalse)
    gen_value_push(L, GEN_I1, LLVMBuildFCmp(g->builder, c->on_float, v[0], v[1], ""));
  else
    gen_fail(L, "%s is not defined on %s", c->name, gen_types[type].name);
  return 1;
}

static int is_nan(lua_State *L) {
  gen_state *g = gen_building(L, "k.is_nan");
  gen_value v = gen_value_check(L, 1, "k.is_nan");
  if (gen_types[v.type].class != GEN_FLOAT) gen_fail(L, "k.is_nan is not defined on %s", gen_types[v.type].name);
  gen_value_push(L, GEN_I1, LLVMBuildFCmp(g->builder, LLVMRealUNO, v.ref, v.ref, ""));
  return 1;
}

static int select_word(lua_State *L) {
  gen_state *g = gen_building(L, "k.select");
  LLVMValueRef cond = gen_value_of(L, 1, GEN_I1, "k.select: condition");
  LLVMValueRef v[2];
  gen_type type = gen_value_pair(L, 2, 3, "k.select", v);
  gen_value_push(L, type, LLVMBuildSelect(g->builder, cond, v[0], v[1], ""));
  return 1;
}

/* ---- functions of one type ---- */

typedef struct function {
  const char *name;
  int operands;
  const char *on_int, *on_f32, *on_f64; /* LLVM intrinsics, NULL: not for this class */
  bool overloaded;
} function;

static const function functions[] = {
    {"k.min", 2, "llvm.smin", "llvm.minnum", "llvm.minnum", true},
    {"k.max", 2, "llvm.smax", "llvm.maxnum", "llvm.maxnum", true},
    {"k.max_nan", 2, NULL, "llvm.maximum", NULL, true},
    {"k.abs", 1, "llvm.abs", "llvm.fabs", "llvm.fabs", true},
    {"k.fma", 3, NULL, "llvm.fma", "llvm.fma", true},
    {"k.sqrt", 1, NULL, "llvm.sqrt", "llvm.sqrt", true},
    {"k.exp2", 1, NULL, "llvm.nvvm.ex2.approx.ftz.f", NULL, false},
    {"k.log2", 1, NULL, "llvm.nvvm.lg2.approx.ftz.f", NULL, false},
    {"k.rcp", 1, NULL, "llvm.nvvm.rcp.rn.ftz.f", NULL, false},
    {"k.rcp_approx", 1, NULL, "llvm.nvvm.rcp.approx.ftz.f", NULL, false},
};

/* The type of the first operand that is a value. */
static gen_type type_of_first(lua_State *L, const function *f) {
  gen_value v;
  for (int i = 1; i <= f->operands; i++)
    if (gen_value_test(L, i, &v)) return v.type;
  gen_fail(L, "%s: expected a kernel value, got %s", f->name, gen_describe(L, 1));
}

static int apply_function(lua_State *L) {
  const function *f = lua_touserdata(L, lua_upvalueindex(1));
  gen_state *g = gen_building(L, f->name);
  gen_type type = type_of_first(L, f);
  const char *intrinsic = gen_types[type].class == GEN_INT && type != GEN_I1 ? f->on_int
                          : type == GEN_F32                                  ? f->on_f32
                          : type == GEN_F64                                  ? f->on_f64
                                                                             : NULL;
  if (!intrinsic) gen_fail(L, "%s is not defined on %s", f->name, gen_types[type].name);
  LLVMValueRef v[3];
  unsigned count = (unsigned)f->operands;
  for (unsigned i = 0; i < count; i++) v[i] = gen_value_of(L, (int)i + 1, type, f->name);
  if (intrinsic == f->on_int && count == 1) v[count++] = LLVMConstInt(g->types[GEN_I1], 0, 0); /* abs of the minimum */
  gen_value_push(L, type, gen_call_intrinsic(g, intrinsic, f->overloaded ? g->types[type] : NULL, v, count));
  return 1;
}

/* ---- registration ---- */

static void add(lua_State *L, int table, const char *name, const void *entry, lua_CFunction f) {
  lua_pushlightuserdata(L, (void *)entry);
  lua_pushcclosure(L, f, 1);
  lua_setfield(L, table, name);
}

static void add_operators(lua_State *L) {
  luaL_getmetatable(L, gen_value_metatable);
  int metatable = lua_gettop(L);
  for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++)
    add(L, metatable, operators[i].name, &operators[i], apply_binary);
  lua_pushcfunction(L, negate);
  lua_setfield(L, metatable, "__unm");
  lua_pushcfunction(L, complement);
  lua_setfield(L, metatable, "__bnot");
  lua_pop(L, 1);
}

void gen_arith_open(lua_State *L, int table) {
  add_operators(L);
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) add(L, table, words[i].name + 2, &words[i], apply_binary);
  for (size_t i = 0; i < sizeof comparisons / sizeof comparisons[0]; i++)
    add(L, table, comparisons[i].name + 2, &comparisons[i], compare);
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
    add(L, table, functions[i].name + 2, &functions[i], apply_function);
  static const luaL_Reg others[] = {{"is_nan", is_nan}, {"select", select_word}, {NULL, NULL}};
  lua_pushvalue(L, table);
  luaL_setfuncs(L, others, 0);
  lua_pop(L, 1);
}
