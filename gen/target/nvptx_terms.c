/* nvptx_terms.c: k.wgmma_terms: products of Hopper whose first operand stands in registers, in several terms.
 *
 * One piece of inline PTX holds every product of a k16, so that neither LLVM nor ptxas finds a place to move registers
 * while they fly; who reads the result waits with k.wgmma_wait. ptxas knows that they read their registers until
 * then. */
#include "gen/lang/call.h"
#include "gen/lang/value.h"
#include "gen/target/options.h"
#include "gen/target/words.h"

enum { TERMS_MAX = 8, PAIRS_MAX = 16, FRAGMENT = 4 };

typedef struct terms {
  int columns, a_terms, b_terms, pairs, b_transposed;
  int b_at[TERMS_MAX];    /* of each term of B behind the first, in units of 16 bytes */
  int pair[PAIRS_MAX][2]; /* terms of A and of B, from 0 */
} terms;

static const char word[] = "k.wgmma_terms";

/* Leaves the array in that field on the stack; its length is in [1, most]. */
static int array_field(lua_State *L, const char *name, int most) {
  lua_getfield(L, 1, name);
  if (!lua_istable(L, -1)) gen_fail(L, "%s: %s: expected an array, got %s", word, name, gen_describe(L, -1));
  lua_Integer n = (lua_Integer)lua_rawlen(L, -1);
  if (n < 1 || n > most) gen_fail(L, "%s: %s: %d elements; 1 to %d are accepted", word, name, (int)n, most);
  return (int)n;
}

/* Element i of the array on the top. */
static int array_integer(lua_State *L, int i, lua_Integer low, lua_Integer high, const char *name) {
  lua_rawgeti(L, -1, i);
  lua_Integer result = gen_value_integer(L, -1, low, high, name);
  lua_pop(L, 1);
  return (int)result;
}

static void read_pairs(lua_State *L, terms *t) {
  t->pairs = array_field(L, "pairs", PAIRS_MAX);
  for (int i = 0; i < t->pairs; i++) {
    lua_rawgeti(L, -1, i + 1);
    if (!lua_istable(L, -1)) gen_fail(L, "%s: pairs: expected {term of a, term of b}", word);
    t->pair[i][0] = array_integer(L, 1, 1, t->a_terms, "k.wgmma_terms: pairs: term of a") - 1;
    t->pair[i][1] = array_integer(L, 2, 1, t->b_terms, "k.wgmma_terms: pairs: term of b") - 1;
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* The terms of A as arguments; the rest of the fields as constants. */
static terms read_terms(lua_State *L, LLVMValueRef *args) {
  terms t = {0};
  t.columns = gen_options_columns(L, word);
  t.b_transposed = gen_options_is_mn_major(L, word, "b_major");
  t.a_terms = array_field(L, "a", TERMS_MAX);
  for (int i = 0; i < t.a_terms; i++) {
    lua_rawgeti(L, -1, i + 1);
    gen_value_array(L, -1, GEN_I32, FRAGMENT, "k.wgmma_terms: a", args + FRAGMENT * i);
    lua_pop(L, 1);
  }
  t.b_terms = array_field(L, "b_at", TERMS_MAX);
  for (int i = 0; i < t.b_terms; i++) t.b_at[i] = array_integer(L, i + 1, 0, 16383, "k.wgmma_terms: b_at");
  lua_settop(L, 1);
  read_pairs(L, &t);
  return t;
}

/* The first product starts from zero. */
static void add_product(lua_State *L, luaL_Buffer *b, const terms *t, int i) {
  int sums = t->columns / 2, a = sums + FRAGMENT * t->pair[i][0];
  gen_options_add_text(L, b, "add.u32 low, b_low, %d; mov.b64 db, {low, b_high}; ", t->b_at[t->pair[i][1]]);
  gen_options_add_text(L, b, "wgmma.mma_async.sync.aligned.m64n%dk16.f32.bf16.bf16 {", t->columns);
  for (int j = 0; j < sums; j++) gen_options_add_text(L, b, j ? ",$%d" : "$%d", j);
  luaL_addstring(b, "}, {");
  for (int j = 0; j < FRAGMENT; j++) gen_options_add_text(L, b, j ? ",$%d" : "$%d", a + j);
  gen_options_add_text(L, b, "}, db, %d", i > 0);
  gen_options_add_text(L, b, ", 1, 1, %d; ", t->b_transposed);
}

static const char *products_text(lua_State *L, const terms *t) {
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  gen_options_add_text(L, &b, "{ .reg .b64 db; .reg .b32 low, b_low, b_high; mov.b64 {b_low, b_high}, $%d; ",
                       t->columns / 2 + FRAGMENT * t->a_terms);
  luaL_addstring(&b, "wgmma.fence.sync.aligned; ");
  for (int i = 0; i < t->pairs; i++) add_product(L, &b, t, i);
  luaL_addstring(&b, "wgmma.commit_group.sync.aligned; }");
  luaL_pushresult(&b);
  return lua_tostring(L, -1);
}

static const char *constraints_text(lua_State *L, const terms *t) {
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  for (int i = 0; i < t->columns / 2; i++) luaL_addstring(&b, "=&f,");
  for (int i = 0; i < FRAGMENT * t->a_terms; i++) luaL_addstring(&b, "r,");
  luaL_addstring(&b, "l,~{memory}");
  luaL_pushresult(&b);
  return lua_tostring(L, -1);
}

/* k.wgmma_terms{columns, a, b, b_at, b_major, pairs} -> columns/2 sums, in flight */
static int wgmma_terms(lua_State *L) {
  static const char *const known[] = {"columns", "a", "b", "b_at", "b_major", "pairs", NULL};
  gen_state *g = gen_building_for(L, word, "sm_90a", NULL);
  gen_options_open(L, word, known);
  LLVMValueRef args[TERMS_MAX * FRAGMENT + 1];
  terms t = read_terms(L, args);
  unsigned count = (unsigned)(FRAGMENT * t.a_terms);
  lua_getfield(L, 1, "b");
  args[count++] = gen_value_of(L, -1, GEN_I64, "k.wgmma_terms: b");
  const char *text = products_text(L, &t);
  const gen_asm products = {text, constraints_text(L, &t), GEN_ASM_CONVERGENT | GEN_ASM_SIDE_EFFECT};
  unsigned sums = (unsigned)t.columns / 2;
  gen_value_push_struct(L, GEN_F32, gen_call_asm(g, &products, gen_call_struct(g, GEN_F32, sums), args, count), sums);
  return 1;
}

void gen_terms_open(lua_State *L, int words) {
  lua_pushvalue(L, words);
  lua_pushcfunction(L, wgmma_terms);
  lua_setfield(L, -2, "wgmma_terms");
  lua_pop(L, 1);
}
