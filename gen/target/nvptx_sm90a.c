/* nvptx_sm90a.c: words of Hopper: mbarriers, tensor copies and clusters, which sm_100f has too; wgmma,
 * registers by role.
 *
 * A wait is one piece of inline PTX with its loop inside, and a pipeline stage of wgmma is one piece with every
 * accumulator tied to its output, so that neither LLVM nor ptxas finds a place to move registers while products fly. */
#include <string.h>

#include "gen/lang/call.h"
#include "gen/lang/order.h"
#include "gen/lang/value.h"
#include "gen/target/arch.h"
#include "gen/target/options.h"
#include "gen/target/words.h"

gen_state *gen_building_for(lua_State *L, const char *word, const char *first, const char *second) {
  gen_state *g = gen_building(L, word);
  if (strcmp(g->arch->name, first) != 0 && (!second || strcmp(g->arch->name, second) != 0))
    gen_fail(L, "%s: architecture %s does not have it; %s%s%s", word, g->arch->name, first, second ? " and " : " does",
             second ? lua_pushfstring(L, "%s do", second) : "");
  return g;
}

static gen_state *building(lua_State *L, const char *word) {
  return gen_building_for(L, word, "sm_90a", "sm_100f");
}

/* ---- words that are one instruction, or a few ---- */

typedef struct plain_word {
  const char *name, *text, *constraints;
  const char *arguments; /* i: i32, l: i64, p: ptr, b: i1, handed over as 0 or 1 */
  bool gives;            /* an i32 */
} plain_word;

static const plain_word plain_words[] = {
    {"k.mbarrier_init", "mbarrier.init.shared::cta.b64 [$0], $1;", "r,r,~{memory}", "ii", false},
    {"k.mbarrier_fence", "fence.mbarrier_init.release.cluster;", "~{memory}", "", false},
    {"k.mbarrier_expect", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "r,r,~{memory}", "ii", false},
    {"k.mbarrier_wait",
     "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @p bra passed; bra again; passed: }",
     "r,r,~{memory}", "ii", false},
    {"k.mbarrier_arrive", "{ .reg .pred p; setp.ne.b32 p, $1, 0; @p mbarrier.arrive.shared::cta.b64 _, [$0]; }",
     "r,r,~{memory}", "ib", false},
    /* With .release.cluster it costs a full memory barrier a stage; what is handed back was only read. */
    {"k.mbarrier_arrive_there",
     "{ .reg .pred p; setp.ne.b32 p, $1, 0; @p mbarrier.arrive.shared::cluster.b64 _, [$0]; }", "r,r,~{memory}", "ib",
     false},
    {"k.cluster_address", "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", "ii", true},
    {"k.barrier_sync", "bar.sync $0, $1;", "r,r,~{memory}", "ii", false},
    {"k.barrier_arrive", "bar.arrive $0, $1;", "r,r,~{memory}", "ii", false},
    {"k.cluster_sync", "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;", "~{memory}", "",
     false},
    {"k.cluster_rank", "mov.u32 $0, %cluster_ctarank;", "=r", "", true},
    {"k.atomic_next", "atom.relaxed.gpu.global.add.u32 $0, [$1], 1;", "=r,l,~{memory}", "p", true},
    {"k.store_there", "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [$0], $1, [$2];", "r,r,r,~{memory}",
     "iii", false},
    {"k.store_matrix", "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};", "r,r,r,r,r,~{memory}",
     "iiiii", false},
    {"k.proxy_fence", "fence.proxy.async.shared::cta;", "~{memory}", "", false},
    {"k.tensor_store",
     "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [$0, {$2, $3}], [$1]; cp.async.bulk.commit_group;",
     "l,r,r,r,~{memory}", "liii", false},
    {"k.tensor_stores_read", "cp.async.bulk.wait_group.read 0;", "~{memory}", "", false},
    {"k.uniform", "redux.sync.or.b32 $0, $1, 0xffffffff;", "=r,r", "i", true},
};

static LLVMValueRef plain_argument(lua_State *L, int arg, char letter, const char *word) {
  gen_state *g = gen_state_get(L);
  switch (letter) {
    case 'b':
      return LLVMBuildZExt(g->builder, gen_value_of(L, arg, GEN_I1, word), g->types[GEN_I32], "");
    case 'p':
      return gen_value_of(L, arg, GEN_PTR, word);
    case 'l':
      return gen_value_of(L, arg, GEN_I64, word);
    default:
      return gen_value_of(L, arg, GEN_I32, word);
  }
}

static int plain(lua_State *L) {
  const plain_word *w = lua_touserdata(L, lua_upvalueindex(1));
  gen_state *g = building(L, w->name);
  const gen_asm text = {w->text, w->constraints, GEN_ASM_CONVERGENT | GEN_ASM_SIDE_EFFECT};
  LLVMValueRef args[5];
  unsigned count = 0;
  for (; w->arguments[count]; count++) args[count] = plain_argument(L, (int)count + 1, w->arguments[count], w->name);
  LLVMValueRef result = gen_call_asm(g, &text, w->gives ? g->types[GEN_I32] : NULL, args, count);
  if (w->gives) gen_value_push(L, GEN_I32, result);
  return w->gives;
}

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
  gen_state *g = building(L, what);
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
  for (size_t i = 0; i < sizeof plain_words / sizeof plain_words[0]; i++) {
    lua_pushlightuserdata(L, (void *)&plain_words[i]);
    lua_pushcclosure(L, plain, 1);
    lua_setfield(L, -2, plain_words[i].name + 2);
  }
  lua_pop(L, 1);
}
