/* nvptx_sm90a.c: words of Hopper: tensor copies, which sm_100f has too; wgmma, registers by role.
 *
 * A pipeline stage of wgmma is one piece of inline PTX with every accumulator tied to its output, so that neither LLVM
 * nor ptxas finds a place to move registers while products fly. */
#include <string.h>

#include "gen/lang/call.h"
#include "gen/lang/order.h"
#include "gen/lang/value.h"
#include "gen/target/arch.h"
#include "gen/target/options.h"
#include "gen/target/words.h"

/* ---- setmaxnreg ---- */

static int registers(lua_State *L, const char *word, const char *direction) {
  gen_state *g = gen_building_for(L, word, "sm_90a", NULL);
  lua_Integer n = gen_value_integer(L, 1, 24, 256, word);
  if (n % 8) gen_fail(L, "%s: %d is no multiple of 8", word, (int)n);
  const char *text = lua_pushfstring(L, "setmaxnreg.%s.sync.aligned.u32 %d;", direction, (int)n);
  const gen_asm set = {text, "~{memory}", GEN_ASM_CONVERGENT | GEN_ASM_SIDE_EFFECT};
  gen_call_asm(g, &set, NULL, NULL, 0);
  return 0;
}

static int registers_raise(lua_State *L) {
  return registers(L, "k.registers_raise", "inc");
}

static int registers_lower(lua_State *L) {
  return registers(L, "k.registers_lower", "dec");
}

/* ---- tensor copies ---- */

/* The policies that createpolicy makes for a whole access: a constant each. */
static const struct {
  const char *name;
  uint64_t policy;
} keeps[] = {{"first", 0x12F0000000000000}, {"last", 0x14F0000000000000}};

static LLVMValueRef cache_policy(lua_State *L, int arg) {
  const char *name = gen_word(L, arg);
  for (size_t i = 0; i < sizeof keeps / sizeof keeps[0]; i++)
    if (strcmp(keeps[i].name, name) == 0) return LLVMConstInt(gen_state_get(L)->types[GEN_I64], keeps[i].policy, 0);
  gen_fail(L, "k.tensor_copy: evict: expected \"first\" or \"last\", got %s", gen_describe(L, arg));
}

/* k.tensor_copy(map, shared, mbarrier, x, y, {cast = mask, evict = "first", pair = true}) */
static int tensor_copy(lua_State *L) {
  static const char what[] = "k.tensor_copy";
  gen_state *g = gen_building_for(L, what, "sm_90a", "sm_100f");
  lua_settop(L, 6);
  LLVMValueRef args[7] = {gen_value_of(L, 2, GEN_I32, what), gen_value_of(L, 1, GEN_I64, what),
                          gen_value_of(L, 3, GEN_I32, what), gen_value_of(L, 4, GEN_I32, what),
                          gen_value_of(L, 5, GEN_I32, what)};
  unsigned count = 5;
  const char *cast = "", *pair = "", *hint = "", *operands = "[$0], [$1, {$3, $4}], [$2]", *constraints = "r,l,r,r,r";
  if (!lua_isnil(L, 6)) {
    static const char *const known[] = {"cast", "evict", "pair", NULL};
    luaL_checktype(L, 6, LUA_TTABLE);
    gen_order_refuse_unknown(L, 6, known, "k.tensor_copy: options");
    if (lua_getfield(L, 6, "cast") != LUA_TNIL) {
      lua_Integer mask = gen_value_integer(L, -1, 1, 0xffff, "k.tensor_copy: cast");
      cast = ".multicast::cluster";
      operands = lua_pushfstring(L, "%s, $%d", operands, (int)count);
      constraints = lua_pushfstring(L, "%s,h", constraints);
      args[count++] = LLVMConstInt(g->types[GEN_I16], (unsigned long long)mask, 0);
    }
    lua_getfield(L, 6, "pair");
    if (lua_toboolean(L, -1) && gen_building_for(L, "k.tensor_copy: pair", "sm_100f", NULL)) pair = ".cta_group::2";
    if (lua_getfield(L, 6, "evict") != LUA_TNIL) {
      LLVMValueRef policy = cache_policy(L, -1);
      hint = ".L2::cache_hint";
      operands = lua_pushfstring(L, "%s, $%d", operands, (int)count);
      constraints = lua_pushfstring(L, "%s,l", constraints);
      args[count++] = policy;
    }
  }
  const char *text = lua_pushfstring(
      L, "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes%s%s%s %s;", cast, pair, hint,
      operands);
  const gen_asm copy = {text, lua_pushfstring(L, "%s,~{memory}", constraints),
                        GEN_ASM_CONVERGENT | GEN_ASM_SIDE_EFFECT};
  gen_call_asm(g, &copy, NULL, args, count);
  return 0;
}

/* ---- wgmma ---- */

enum { ACCUMULATORS_MAX = 256 };

/* One stage of products: blocks x steps instructions m64 x columns x k16. */
typedef struct stage {
  const char *type; /* of the operands, in PTX */
  int columns, blocks, steps;
  int a_step, b_step, a_block; /* how far descriptors move, in units of 16 bytes */
  int a_transposed, b_transposed;
  int wait; /* products that may stay in flight, in stages */
  int accumulators;
} stage;

static stage read_stage(lua_State *L) {
  stage s = {0};
  lua_getfield(L, 1, "kind");
  const char *kind = gen_word(L, -1);
  if (strcmp(kind, "bf16") == 0) s.type = "bf16";
  if (strcmp(kind, "fp16") == 0) s.type = "f16";
  if (!s.type) gen_fail(L, "k.wgmma: kind: expected \"bf16\" or \"fp16\", got \"%s\"", kind);
  lua_pop(L, 1);
  s.columns = gen_options_columns(L, "k.wgmma");
  s.blocks = gen_options_integer(L, "k.wgmma", "blocks", 1, 4);
  s.steps = gen_options_integer(L, "k.wgmma", "steps", 1, 16);
  s.a_step = gen_options_integer(L, "k.wgmma", "a_step", 1, 16383);
  s.b_step = gen_options_integer(L, "k.wgmma", "b_step", 1, 16383);
  s.a_block = gen_options_integer(L, "k.wgmma", "a_block", 1, 16383);
  s.a_transposed = gen_options_is_mn_major(L, "k.wgmma", "a_major");
  s.b_transposed = gen_options_is_mn_major(L, "k.wgmma", "b_major");
  s.wait = gen_options_integer(L, "k.wgmma", "wait", 0, 7);
  s.accumulators = s.columns / 2 * s.blocks;
  if (s.accumulators > ACCUMULATORS_MAX)
    gen_fail(L, "k.wgmma: %d accumulators a thread; %d are the most", s.accumulators, (int)ACCUMULATORS_MAX);
  return s;
}

/* "=f" for each output, then each input tied to its output. */
static void add_tied(lua_State *L, luaL_Buffer *b, int n) {
  for (int i = 0; i < n; i++) luaL_addstring(b, "=f,");
  for (int i = 0; i < n; i++) gen_options_add_text(L, b, "%d,", i);
}

/* Addresses stand in the low words: adding to those alone spares carries, and registers for the high ones. */
static void add_product(lua_State *L, luaL_Buffer *b, const stage *s, int step, int block) {
  int each = s->columns / 2;
  gen_options_add_text(L, b, "add.u32 low, a_low, %d; mov.b64 da, {low, a_high}; ",
                       step * s->a_step + block * s->a_block);
  gen_options_add_text(L, b, "add.u32 low, b_low, %d; mov.b64 db, {low, b_high}; ", step * s->b_step);
  gen_options_add_text(L, b, "wgmma.mma_async.sync.aligned.m64n%dk16.f32.", s->columns);
  lua_pushfstring(L, "%s.%s {", s->type, s->type);
  luaL_addvalue(b);
  for (int i = 0; i < each; i++) gen_options_add_text(L, b, i ? ",$%d" : "$%d", block * each + i);
  luaL_addstring(b, "}, da, db, ");
  luaL_addstring(b, step ? "1" : "p");
  gen_options_add_text(L, b, ", 1, 1, %d, ", s->a_transposed);
  gen_options_add_text(L, b, "%d; ", s->b_transposed);
}

static const char *stage_text(lua_State *L, const stage *s) {
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  luaL_addstring(&b, "{ .reg .pred p; .reg .b64 da, db; .reg .b32 low, a_low, a_high, b_low, b_high; ");
  gen_options_add_text(L, &b, "mov.b64 {a_low, a_high}, $%d; ", 2 * s->accumulators);
  gen_options_add_text(L, &b, "mov.b64 {b_low, b_high}, $%d; ", 2 * s->accumulators + 1);
  gen_options_add_text(L, &b, "setp.ne.b32 p, $%d, 0; wgmma.fence.sync.aligned; ", 2 * s->accumulators + 2);
  for (int step = 0; step < s->steps; step++)
    for (int block = 0; block < s->blocks; block++) add_product(L, &b, s, step, block);
  gen_options_add_text(L, &b, "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned %d; }", s->wait);
  luaL_pushresult(&b);
  return lua_tostring(L, -1);
}

static const char *tied_constraints(lua_State *L, int n, const char *rest) {
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  add_tied(L, &b, n);
  luaL_addstring(&b, rest);
  luaL_pushresult(&b);
  return lua_tostring(L, -1);
}

static int wgmma(lua_State *L) {
  static const char *const known[] = {"kind",    "columns", "blocks", "steps", "a_step", "b_step", "a_block", "a_major",
                                      "b_major", "wait",    "a",      "b",     "keep",   "into",   NULL};
  gen_state *g = gen_building_for(L, "k.wgmma", "sm_90a", NULL);
  gen_options_open(L, "k.wgmma", known);
  stage s = read_stage(L);
  LLVMValueRef args[ACCUMULATORS_MAX + 3];
  lua_getfield(L, 1, "into");
  gen_value_array(L, -1, GEN_F32, s.accumulators, "k.wgmma: into", args);
  lua_getfield(L, 1, "a");
  args[s.accumulators] = gen_value_of(L, -1, GEN_I64, "k.wgmma: a");
  lua_getfield(L, 1, "b");
  args[s.accumulators + 1] = gen_value_of(L, -1, GEN_I64, "k.wgmma: b");
  lua_getfield(L, 1, "keep");
  args[s.accumulators + 2] =
      LLVMBuildZExt(g->builder, gen_value_of(L, -1, GEN_I1, "k.wgmma: keep"), g->types[GEN_I32], "");
  const char *text = stage_text(L, &s);
  const gen_asm products = {text, tied_constraints(L, s.accumulators, "l,l,r,~{memory}"),
                            GEN_ASM_CONVERGENT | GEN_ASM_SIDE_EFFECT};
  LLVMTypeRef result = gen_call_struct(g, GEN_F32, (unsigned)s.accumulators);
  LLVMValueRef call = gen_call_asm(g, &products, result, args, (unsigned)s.accumulators + 3);
  gen_value_push_struct(L, GEN_F32, call, (unsigned)s.accumulators);
  return 1;
}

/* k.wgmma_wait(pending, accumulators) -> the accumulators, complete */
static int wgmma_wait(lua_State *L) {
  gen_state *g = gen_building_for(L, "k.wgmma_wait", "sm_90a", NULL);
  lua_Integer pending = gen_value_integer(L, 1, 0, 7, "k.wgmma_wait: pending stages");
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_Integer n = (lua_Integer)lua_rawlen(L, 2);
  if (n < 1 || n > ACCUMULATORS_MAX) gen_fail(L, "k.wgmma_wait: 1 to %d accumulators are accepted", ACCUMULATORS_MAX);
  LLVMValueRef args[ACCUMULATORS_MAX];
  gen_value_array(L, 2, GEN_F32, (int)n, "k.wgmma_wait", args);
  const char *text = lua_pushfstring(L, "wgmma.wait_group.sync.aligned %d;", (int)pending);
  const gen_asm wait = {text, tied_constraints(L, (int)n, "~{memory}"), GEN_ASM_CONVERGENT | GEN_ASM_SIDE_EFFECT};
  LLVMValueRef call = gen_call_asm(g, &wait, gen_call_struct(g, GEN_F32, (unsigned)n), args, (unsigned)n);
  gen_value_push_struct(L, GEN_F32, call, (unsigned)n);
  return 1;
}

void gen_sm90a_open(lua_State *L, int words) {
  static const luaL_Reg functions[] = {{"registers_raise", registers_raise}, {"registers_lower", registers_lower},
                                       {"tensor_copy", tensor_copy},         {"wgmma", wgmma},
                                       {"wgmma_wait", wgmma_wait},           {NULL, NULL}};
  lua_pushvalue(L, words);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}
