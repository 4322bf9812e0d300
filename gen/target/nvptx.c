/* nvptx.c: everything that is particular to NVIDIA's machine: all inline PTX and every NVPTX intrinsic.
 *
 * Whatever needs the whole warp or CTA at one place is convergent, so that LLVM neither duplicates it nor moves it
 * under a condition. Constraint strings are fixed here and covered by tests: a wrong one is fatal in LLVM. */
#include <string.h>

#include "gen/lang/call.h"
#include "gen/lang/value.h"
#include "gen/target/words.h"

static LLVMValueRef i32_constant(gen_state *g, uint32_t n) {
  return LLVMConstInt(g->types[GEN_I32], n, 0);
}

/* ---- identity of the thread ---- */

typedef struct special {
  const char *name, *intrinsic;
  uint32_t low, high; /* range [low, high) that LLVM may rely on; high 0: the kernel's threads */
} special;

static const special specials[] = {
    {"k.tid", "llvm.nvvm.read.ptx.sreg.tid.x", 0, 0},
    {"k.ctaid", "llvm.nvvm.read.ptx.sreg.ctaid.x", 0, 0x7fffffff},
    {"k.nctaid", "llvm.nvvm.read.ptx.sreg.nctaid.x", 1, 0x80000000},
    {"k.lane", "llvm.nvvm.read.ptx.sreg.laneid", 0, 32},
};

/* The range lets LLVM turn the template's signed divisions into shifts and masks. */
static LLVMValueRef read_special(gen_state *g, const special *s) {
  LLVMValueRef call = gen_call_intrinsic(g, s->intrinsic, NULL, NULL, 0);
  LLVMMetadataRef bounds[2] = {LLVMValueAsMetadata(i32_constant(g, s->low)),
                               LLVMValueAsMetadata(i32_constant(g, s->high ? s->high : g->threads))};
  LLVMMetadataRef node = LLVMMDNodeInContext2(g->context, bounds, 2);
  LLVMSetMetadata(call, LLVMGetMDKindIDInContext(g->context, "range", 5), LLVMMetadataAsValue(g->context, node));
  return call;
}

static int special_word(lua_State *L) {
  const special *s = lua_touserdata(L, lua_upvalueindex(1));
  gen_value_push(L, GEN_I32, read_special(gen_building(L, s->name), s));
  return 1;
}

static int warp(lua_State *L) {
  gen_state *g = gen_building(L, "k.warp");
  LLVMValueRef tid = read_special(g, &specials[0]);
  gen_value_push(L, GEN_I32, LLVMBuildLShr(g->builder, tid, i32_constant(g, 5), ""));
  return 1;
}

/* Volatile reads: LLVM may not keep an earlier read in a register until here instead. */
static int reread(lua_State *L, const char *word, const char *text) {
  const gen_asm read = {text, "=r", GEN_ASM_SIDE_EFFECT};
  gen_state *g = gen_building(L, word);
  gen_value_push(L, GEN_I32, gen_call_asm(g, &read, g->types[GEN_I32], NULL, 0));
  return 1;
}

static int reread_tid(lua_State *L) {
  return reread(L, "k.reread_tid", "mov.u32 $0, %tid.x;");
}

static int reread_ctaid(lua_State *L) {
  return reread(L, "k.reread_ctaid", "mov.u32 $0, %ctaid.x;");
}

static int reread_nctaid(lua_State *L) {
  return reread(L, "k.reread_nctaid", "mov.u32 $0, %nctaid.x;");
}

/* ---- barrier, shuffles, votes ---- */

static int barrier(lua_State *L) {
  gen_call_intrinsic(gen_building(L, "k.barrier"), "llvm.nvvm.barrier0", NULL, NULL, 0);
  return 0;
}

typedef struct shuffle {
  const char *name, *on_i32, *on_f32;
  uint32_t clamp; /* PTX operand c: the last lane of the segment for xor and idx, the first for up */
} shuffle;

static const shuffle shuffles[] = {
    {"k.shuffle_xor", "llvm.nvvm.shfl.sync.bfly.i32", "llvm.nvvm.shfl.sync.bfly.f32", 31},
    {"k.shuffle_up", "llvm.nvvm.shfl.sync.up.i32", "llvm.nvvm.shfl.sync.up.f32", 0},
    {"k.shuffle_idx", "llvm.nvvm.shfl.sync.idx.i32", "llvm.nvvm.shfl.sync.idx.f32", 31},
};

static int shuffle_word(lua_State *L) {
  const shuffle *s = lua_touserdata(L, lua_upvalueindex(1));
  gen_state *g = gen_building(L, s->name);
  gen_value v = gen_value_check(L, 1, s->name);
  if (v.type != GEN_I32 && v.type != GEN_F32)
    gen_fail(L, "%s: expected i32 or f32, got %s", s->name, gen_types[v.type].name);
  LLVMValueRef lane = gen_value_of(L, 2, GEN_I32, s->name);
  LLVMValueRef args[4] = {i32_constant(g, UINT32_MAX), v.ref, lane, i32_constant(g, s->clamp)};
  gen_value_push(L, v.type, gen_call_intrinsic(g, v.type == GEN_I32 ? s->on_i32 : s->on_f32, NULL, args, 4));
  return 1;
}

static int warp_sync(lua_State *L) {
  static const gen_asm sync = {"bar.warp.sync 0xffffffff;", "~{memory}", GEN_ASM_CONVERGENT | GEN_ASM_SIDE_EFFECT};
  gen_call_asm(gen_building(L, "k.warp_sync"), &sync, NULL, NULL, 0);
  return 0;
}

static int ballot(lua_State *L) {
  gen_state *g = gen_building(L, "k.ballot");
  LLVMValueRef args[2] = {i32_constant(g, UINT32_MAX), gen_value_of(L, 1, GEN_I1, "k.ballot")};
  gen_value_push(L, GEN_I32, gen_call_intrinsic(g, "llvm.nvvm.vote.ballot.sync", NULL, args, 2));
  return 1;
}

static int any(lua_State *L) {
  gen_state *g = gen_building(L, "k.any");
  LLVMValueRef args[2] = {i32_constant(g, UINT32_MAX), gen_value_of(L, 1, GEN_I1, "k.any")};
  gen_value_push(L, GEN_I1, gen_call_intrinsic(g, "llvm.nvvm.vote.any.sync", NULL, args, 2));
  return 1;
}

static int popcount(lua_State *L) {
  gen_state *g = gen_building(L, "k.popcount");
  gen_value v = gen_value_check(L, 1, "k.popcount");
  LLVMValueRef args[1] = {gen_value_of(L, 1, GEN_I32, "k.popcount")};
  gen_value_push(L, v.type, gen_call_intrinsic(g, "llvm.ctpop", g->types[GEN_I32], args, 1));
  return 1;
}

/* ---- copies to shared memory ---- */

static int copy_async16(lua_State *L) {
  static const gen_asm whole = {"cp.async.cg.shared.global [$0], [$1], 16;", "r,l,~{memory}",
                                GEN_ASM_CONVERGENT | GEN_ASM_SIDE_EFFECT};
  static const gen_asm part = {"cp.async.cg.shared.global [$0], [$1], 16, $2;", "r,l,r,~{memory}",
                               GEN_ASM_CONVERGENT | GEN_ASM_SIDE_EFFECT};
  gen_state *g = gen_building(L, "k.copy_async16");
  LLVMValueRef args[3] = {gen_value_of(L, 1, GEN_I32, "k.copy_async16: shared address"),
                          gen_value_of(L, 2, GEN_PTR, "k.copy_async16: source"),
                          gen_value_of(L, 3, GEN_I32, "k.copy_async16: bytes")};
  bool is_whole = false;
  if (lua_isinteger(L, 3)) is_whole = gen_value_integer(L, 3, 0, 16, "k.copy_async16: bytes") == 16;
  gen_call_asm(g, is_whole ? &whole : &part, NULL, args, is_whole ? 2 : 3);
  return 0;
}

static int copy_commit(lua_State *L) {
  static const gen_asm commit = {"cp.async.commit_group;", "~{memory}", GEN_ASM_CONVERGENT | GEN_ASM_SIDE_EFFECT};
  gen_state *g = gen_building(L, "k.copy_commit");
  gen_call_asm(g, &commit, NULL, NULL, 0);
  return 0;
}

static int copy_wait(lua_State *L) {
  gen_state *g = gen_building(L, "k.copy_wait");
  lua_Integer pending = gen_value_integer(L, 1, 0, 63, "k.copy_wait: pending groups");
  const char *text = lua_pushfstring(L, "cp.async.wait_group %d;", (int)pending);
  gen_asm wait = {text, "~{memory}", GEN_ASM_CONVERGENT | GEN_ASM_SIDE_EFFECT};
  gen_call_asm(g, &wait, NULL, NULL, 0);
  return 0;
}

/* ---- tensor cores ---- */

static int load_matrix(lua_State *L) {
  static const gen_asm plain = {"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0,$1,$2,$3}, [$4];",
                                "=r,=r,=r,=r,r,~{memory}", GEN_ASM_CONVERGENT | GEN_ASM_SIDE_EFFECT};
  static const gen_asm transposed = {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0,$1,$2,$3}, [$4];",
                                     "=r,=r,=r,=r,r,~{memory}", GEN_ASM_CONVERGENT | GEN_ASM_SIDE_EFFECT};
  bool is_transposed = lua_toboolean(L, lua_upvalueindex(1));
  const char *name = is_transposed ? "k.ldmatrix_trans" : "k.ldmatrix";
  gen_state *g = gen_building(L, name);
  LLVMValueRef address = gen_value_of(L, 1, GEN_I32, name);
  const gen_asm *text = is_transposed ? &transposed : &plain;
  gen_value_push_struct(L, GEN_I32, gen_call_asm(g, text, gen_call_struct(g, GEN_I32, 4), &address, 1), 4);
  return 1;
}

typedef struct mma_kind {
  const char *name;
  gen_asm text;
} mma_kind;

#define MMA_TEXT(shape, type)                                 \
  {                                                           \
    "mma.sync.aligned." shape ".row.col.f32." type "." type   \
    ".f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, "            \
    "{$10,$11,$12,$13};",                                     \
        "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", GEN_ASM_CONVERGENT \
  }

static const mma_kind mma_kinds[] = {
    {"bf16", MMA_TEXT("m16n8k16", "bf16")},
    {"fp16", MMA_TEXT("m16n8k16", "f16")},
    {"tf32", MMA_TEXT("m16n8k8", "tf32")},
};

static int mma(lua_State *L) {
  gen_state *g = gen_building(L, "k.mma");
  const char *name = gen_word(L, 1);
  const mma_kind *kind = NULL;
  for (size_t i = 0; i < sizeof mma_kinds / sizeof mma_kinds[0]; i++)
    if (strcmp(mma_kinds[i].name, name) == 0) kind = &mma_kinds[i];
  if (!kind) gen_fail(L, "k.mma: kind: expected \"bf16\", \"fp16\" or \"tf32\", got \"%s\"", name);
  LLVMValueRef args[10];
  gen_value_array(L, 2, GEN_I32, 4, "k.mma: a", args);
  gen_value_array(L, 3, GEN_I32, 2, "k.mma: b", args + 4);
  gen_value_array(L, 4, GEN_F32, 4, "k.mma: c", args + 6);
  gen_value_push_struct(L, GEN_F32, gen_call_asm(g, &kind->text, gen_call_struct(g, GEN_F32, 4), args, 10), 4);
  return 1;
}

/* The first source of cvt.x2 goes to the upper half. */
static int pack(lua_State *L) {
  static const gen_asm bf16 = {"cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", 0};
  static const gen_asm f16 = {"cvt.rn.f16x2.f32 $0, $1, $2;", "=r,f,f", 0};
  gen_state *g = gen_building(L, "k.pack");
  gen_type type = gen_types_check(L, 1, "k.pack: type");
  if (type != GEN_BF16 && type != GEN_F16)
    gen_fail(L, "k.pack: type: expected bf16 or f16, got %s", gen_types[type].name);
  LLVMValueRef args[2] = {gen_value_of(L, 3, GEN_F32, "k.pack: high half"),
                          gen_value_of(L, 2, GEN_F32, "k.pack: low half")};
  gen_value_push(L, GEN_I32, gen_call_asm(g, type == GEN_BF16 ? &bf16 : &f16, g->types[GEN_I32], args, 2));
  return 1;
}

/* ---- registration ---- */

void gen_nvptx_open(lua_State *L, int words) {
  static const luaL_Reg functions[] = {
      {"warp", warp},
      {"reread_tid", reread_tid},
      {"reread_ctaid", reread_ctaid},
      {"reread_nctaid", reread_nctaid},
      {"barrier", barrier},
      {"warp_sync", warp_sync},
      {"ballot", ballot},
      {"any", any},
      {"popcount", popcount},
      {"copy_async16", copy_async16},
      {"copy_commit", copy_commit},
      {"copy_wait", copy_wait},
      {"mma", mma},
      {"pack", pack},
      {NULL, NULL},
  };
  lua_pushvalue(L, words);
  luaL_setfuncs(L, functions, 0);
  for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++) {
    lua_pushlightuserdata(L, (void *)&specials[i]);
    lua_pushcclosure(L, special_word, 1);
    lua_setfield(L, -2, specials[i].name + 2);
  }
  for (size_t i = 0; i < sizeof shuffles / sizeof shuffles[0]; i++) {
    lua_pushlightuserdata(L, (void *)&shuffles[i]);
    lua_pushcclosure(L, shuffle_word, 1);
    lua_setfield(L, -2, shuffles[i].name + 2);
  }
  for (int transposed = 0; transposed < 2; transposed++) {
    lua_pushboolean(L, transposed);
    lua_pushcclosure(L, load_matrix, 1);
    lua_setfield(L, -2, transposed ? "ldmatrix_trans" : "ldmatrix");
  }
  lua_pop(L, 1);
}
