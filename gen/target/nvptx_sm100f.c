/* nvptx_sm100f.c: the words that only Blackwell's data-centre GPUs have: tensor memory, and products into it.
 *
 * A load is one piece of inline PTX with its wait inside, as its registers hold nothing before. */
#include <string.h>

#include "gen/lang/call.h"
#include "gen/lang/value.h"
#include "gen/target/options.h"
#include "gen/target/words.h"

enum { EFFECT = GEN_ASM_CONVERGENT | GEN_ASM_SIDE_EFFECT };
enum { LANES_16 = 16 << 16 }; /* 16 lanes further in tensor memory */

/* ---- products ---- */

/* The instruction descriptor of kind::f16 (PTX ISA): fp32 sums in bits 4 and 5, types of both operands from bits 7 and
 * 10 on, which of them are MN-major in bits 15 and 16, N/8 from bit 17 and M/16 from bit 24 on. */
static int describe(lua_State *L, const char *word, int ctas, int columns) {
  lua_getfield(L, 1, "kind");
  const char *kind = gen_word(L, -1);
  int is_bf16 = strcmp(kind, "bf16") == 0, rows = 128 * ctas;
  if (!is_bf16 && strcmp(kind, "fp16") != 0)
    gen_fail(L, "%s: kind: expected \"bf16\" or \"fp16\", got \"%s\"", word, kind);
  lua_pop(L, 1);
  if (columns % 16) gen_fail(L, "%s: columns: %d is no multiple of 16", word, columns);
  int a_mn = gen_options_is_mn_major(L, word, "a_major"), b_mn = gen_options_is_mn_major(L, word, "b_major");
  return 1 << 4 | is_bf16 << 7 | is_bf16 << 10 | a_mn << 15 | b_mn << 16 | columns / 8 << 17 | rows / 16 << 24;
}

/* Addresses stand in the low words of descriptors, as in wgmma's. */
static const char *products_text(lua_State *L, const char *word) {
  int ctas = gen_options_integer(L, word, "ctas", 1, 2), steps = gen_options_integer(L, word, "steps", 1, 16);
  int a_step = gen_options_integer(L, word, "a_step", 1, 16383);
  int b_step = gen_options_integer(L, word, "b_step", 1, 16383);
  int described = describe(L, word, ctas, gen_options_columns(L, word));
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  luaL_addstring(&b, "{ .reg .pred p, t; .reg .b64 da, db; .reg .b32 id, low, a_low, a_high, b_low, b_high; ");
  gen_options_add_text(L, &b, "mov.b32 id, %d; mov.b64 {a_low, a_high}, $1; mov.b64 {b_low, b_high}, $2; ", described);
  luaL_addstring(&b, "setp.ne.b32 p, $3, 0; setp.eq.b32 t, id, id; ");
  for (int step = 0; step < steps; step++) {
    gen_options_add_text(L, &b, "add.u32 low, a_low, %d; mov.b64 da, {low, a_high}; ", step * a_step);
    gen_options_add_text(L, &b, "add.u32 low, b_low, %d; mov.b64 db, {low, b_high}; ", step * b_step);
    gen_options_add_text(L, &b, "tcgen05.mma.cta_group::%d.kind::f16 [$0], da, db, id, ", ctas);
    luaL_addstring(&b, step ? "t; " : "p; ");
  }
  luaL_addstring(&b, "}");
  luaL_pushresult(&b);
  return lua_tostring(L, -1);
}

/* k.tmem_multiply{ctas, kind, columns, steps, a, b, a_major, b_major, a_step, b_step, keep, into} */
static int multiply(lua_State *L) {
  static const char word[] = "k.tmem_multiply";
  static const char *const known[] = {"ctas",    "kind",   "columns", "steps", "a",    "b", "a_major",
                                      "b_major", "a_step", "b_step",  "keep",  "into", NULL};
  static const struct {
    const char *name;
    gen_type type;
  } values[] = {{"into", GEN_I32}, {"a", GEN_I64}, {"b", GEN_I64}, {"keep", GEN_I1}};
  gen_state *g = gen_building_for(L, word, "sm_100f", NULL);
  gen_options_open(L, word, known);
  const gen_asm products = {products_text(L, word), "r,l,l,r,~{memory}", EFFECT};
  LLVMValueRef args[4];
  for (int i = 0; i < 4; i++) {
    const char *what = lua_pushfstring(L, "%s: %s", word, values[i].name);
    lua_getfield(L, 1, values[i].name);
    args[i] = gen_value_of(L, -1, values[i].type, what);
  }
  args[3] = LLVMBuildZExt(g->builder, args[3], g->types[GEN_I32], "");
  gen_call_asm(g, &products, NULL, args, 4);
  return 0;
}

/* ---- loads ---- */

static const char *load_text(lua_State *L, int columns) {
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  gen_options_add_text(L, &b, "{ .reg .b32 upper; add.u32 upper, $%d, ", columns);
  gen_options_add_text(L, &b, "%d; ", LANES_16);
  for (int half = 0; half < 2; half++) {
    gen_options_add_text(L, &b, "tcgen05.ld.sync.aligned.16x256b.x%d.b32 {", columns / 8);
    for (int i = 0; i < columns / 2; i++) gen_options_add_text(L, &b, i ? ",$%d" : "$%d", half * columns / 2 + i);
    if (half)
      luaL_addstring(&b, "}, [upper]; ");
    else
      gen_options_add_text(L, &b, "}, [$%d]; ", columns);
  }
  luaL_addstring(&b, "tcgen05.wait::ld.sync.aligned; }");
  luaL_pushresult(&b);
  return lua_tostring(L, -1);
}

/* k.tmem_load(address, columns) -> sums of 2 x 16 lanes, as mma and wgmma lay them out */
static int load(lua_State *L) {
  static const char word[] = "k.tmem_load";
  gen_state *g = gen_building_for(L, word, "sm_100f", NULL);
  LLVMValueRef address = gen_value_of(L, 1, GEN_I32, word);
  int columns = (int)gen_value_integer(L, 2, 8, 128, "k.tmem_load: columns");
  if (columns & (columns - 1)) gen_fail(L, "%s: columns: %d is no power of 2", word, columns);
  const char *text = load_text(L, columns);
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  for (int i = 0; i < columns; i++) luaL_addstring(&b, "=&f,");
  luaL_addstring(&b, "r,~{memory}");
  luaL_pushresult(&b);
  const gen_asm loads = {text, lua_tostring(L, -1), EFFECT};
  LLVMValueRef call = gen_call_asm(g, &loads, gen_call_struct(g, GEN_F32, (unsigned)columns), &address, 1);
  gen_value_push_struct(L, GEN_F32, call, (unsigned)columns);
  return 1;
}

void gen_sm100f_open(lua_State *L, int words) {
  static const luaL_Reg functions[] = {{"tmem_multiply", multiply}, {"tmem_load", load}, {NULL, NULL}};
  lua_pushvalue(L, words);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}
