/* control.c: loops and branches of the kernel; the state they carry becomes phis.
 *
 * Blocks are placed in source order, so that the IR reads like the template. */
#include "gen/lang/nested.h"
#include "gen/lang/value.h"
#include "gen/lang/words.h"

/* The state of one loop or branch, in memory that Lua frees if an error passes. */
typedef struct carried {
  int shape; /* stack index of the object that gives the form */
  int count;
  gen_value *before, *phi, *after;
} carried;

static LLVMBasicBlockRef new_block(gen_state *g, const char *name) {
  return LLVMAppendBasicBlockInContext(g->context, g->function, name);
}

/* Goes on in this block, placed behind all that was built before. */
static void start_block(gen_state *g, LLVMBasicBlockRef block) {
  LLVMBasicBlockRef last = LLVMGetLastBasicBlock(g->function);
  if (last != block) LLVMMoveBasicBlockAfter(block, last);
  LLVMPositionBuilderAtEnd(g->builder, block);
}

/* Reads the state at this index and replaces it by a private copy: a body that keeps the table of the template could
 * change its form while the state is being matched. */
static carried carry(lua_State *L, int shape) {
  carried c = {.shape = shape, .count = gen_nested_count(L, shape)};
  size_t n = (size_t)c.count + 1;
  c.before = lua_newuserdatauv(L, 3 * n * sizeof *c.before, 0);
  c.phi = c.before + n;
  c.after = c.phi + n;
  gen_nested_flatten(L, shape, c.before);
  gen_nested_push(L, shape, c.before);
  lua_replace(L, shape);
  return c;
}

static void make_phis(gen_state *g, const carried *c) {
  for (int i = 0; i < c->count; i++) {
    gen_type type = c->before[i].type;
    c->phi[i] = (gen_value){LLVMBuildPhi(g->builder, g->types[type], ""), type, 0};
  }
}

static void add_incoming(const carried *c, const gen_value *values, LLVMBasicBlockRef from) {
  for (int i = 0; i < c->count; i++) {
    LLVMValueRef value = values[i].ref;
    LLVMAddIncoming(c->phi[i].ref, &value, &from, 1);
  }
}

static void check_function(lua_State *L, int arg, const char *what) {
  if (!lua_isfunction(L, arg)) gen_fail(L, "%s: expected a function, got %s", what, gen_describe(L, arg));
}

/* Calls the function at index f with the state as it is inside the loop; leaves its one result. */
static void call_with_state(lua_State *L, int f, const carried *c, LLVMValueRef counter, gen_type counter_type) {
  luaL_checkstack(L, 8, "loops nest too deeply");
  lua_pushvalue(L, f);
  if (counter) gen_value_push(L, counter_type, counter);
  gen_nested_push(L, c->shape, c->phi);
  lua_call(L, counter ? 2 : 1, 1);
}

/* ---- k.loop ---- */

static gen_type counter_type(lua_State *L) {
  gen_type type = GEN_I32;
  bool found = false;
  for (int i = 1; i <= 3; i++) {
    gen_value v;
    if (!gen_value_test(L, i, &v)) continue;
    if (v.type != GEN_I32 && v.type != GEN_I64)
      gen_fail(L, "k.loop: bounds are i32 or i64, got %s", gen_types[v.type].name);
    if (found && v.type != type)
      gen_fail(L, "k.loop: bounds differ in type, %s and %s; use k.convert", gen_types[type].name,
               gen_types[v.type].name);
    type = v.type;
    found = true;
  }
  return type;
}

static int loop(lua_State *L) {
  gen_state *g = gen_building(L, "k.loop");
  gen_type type = counter_type(L);
  LLVMValueRef from = gen_value_of(L, 1, type, "k.loop: from");
  LLVMValueRef to = gen_value_of(L, 2, type, "k.loop: to");
  LLVMValueRef step = gen_value_of(L, 3, type, "k.loop: step");
  if (lua_isinteger(L, 3)) gen_value_integer(L, 3, 1, INT32_MAX, "k.loop: step");
  check_function(L, 5, "k.loop: body");
  lua_settop(L, 5);
  carried c = carry(L, 4);

  LLVMBasicBlockRef entry = LLVMGetInsertBlock(g->builder);
  LLVMBasicBlockRef head = new_block(g, "loop"), body = new_block(g, "body"), exit = new_block(g, "done");
  LLVMBuildBr(g->builder, head);
  start_block(g, head);
  LLVMValueRef counter = LLVMBuildPhi(g->builder, g->types[type], "");
  LLVMAddIncoming(counter, &from, &entry, 1);
  make_phis(g, &c);
  add_incoming(&c, c.before, entry);
  LLVMBuildCondBr(g->builder, LLVMBuildICmp(g->builder, LLVMIntSLT, counter, to, ""), body, exit);

  start_block(g, body);
  gen_region_enter(L);
  call_with_state(L, 5, &c, counter, type);
  gen_nested_match(L, 4, -1, c.before, c.after);
  gen_region_leave(g);
  LLVMValueRef next = LLVMBuildNSWAdd(g->builder, counter, step, "");
  LLVMBasicBlockRef latch = LLVMGetInsertBlock(g->builder);
  LLVMBuildBr(g->builder, head);
  LLVMAddIncoming(counter, &next, &latch, 1);
  add_incoming(&c, c.after, latch);
  start_block(g, exit);
  gen_nested_push(L, 4, c.phi);
  return 1;
}

/* ---- k.while_ ---- */

static int while_word(lua_State *L) {
  gen_state *g = gen_building(L, "k.while_");
  check_function(L, 2, "k.while_: condition");
  check_function(L, 3, "k.while_: body");
  lua_settop(L, 3);
  carried c = carry(L, 1);
  LLVMBasicBlockRef entry = LLVMGetInsertBlock(g->builder);
  LLVMBasicBlockRef head = new_block(g, "while"), body = new_block(g, "body"), exit = new_block(g, "done");
  LLVMBuildBr(g->builder, head);
  start_block(g, head);
  make_phis(g, &c);
  add_incoming(&c, c.before, entry);
  gen_region_enter(L);
  call_with_state(L, 2, &c, NULL, GEN_I32);
  LLVMBuildCondBr(g->builder, gen_value_of(L, -1, GEN_I1, "k.while_: condition"), body, exit);

  start_block(g, body);
  gen_region_enter(L);
  call_with_state(L, 3, &c, NULL, GEN_I32);
  gen_nested_match(L, 1, -1, c.before, c.after);
  gen_region_leave(g);
  gen_region_leave(g);
  LLVMBasicBlockRef latch = LLVMGetInsertBlock(g->builder);
  LLVMBuildBr(g->builder, head);
  add_incoming(&c, c.after, latch);
  start_block(g, exit);
  gen_nested_push(L, 1, c.phi);
  return 1;
}

/* ---- k.when, k.branch, k.exit_if ---- */

static int when(lua_State *L) {
  gen_state *g = gen_building(L, "k.when");
  LLVMValueRef cond = gen_value_of(L, 1, GEN_I1, "k.when: condition");
  check_function(L, 2, "k.when: body");
  LLVMBasicBlockRef then = new_block(g, "when"), join = new_block(g, "join");
  LLVMBuildCondBr(g->builder, cond, then, join);
  start_block(g, then);
  gen_region_enter(L);
  lua_settop(L, 2);
  lua_call(L, 0, 1);
  if (!lua_isnil(L, -1)) gen_fail(L, "k.when: the body returns %s; use k.branch", gen_describe(L, -1));
  gen_region_leave(g);
  LLVMBuildBr(g->builder, join);
  start_block(g, join);
  return 0;
}

static int branch(lua_State *L) {
  gen_state *g = gen_building(L, "k.branch");
  LLVMValueRef cond = gen_value_of(L, 1, GEN_I1, "k.branch: condition");
  check_function(L, 2, "k.branch: first arm");
  check_function(L, 3, "k.branch: second arm");
  lua_settop(L, 3);
  LLVMBasicBlockRef then = new_block(g, "then"), otherwise = new_block(g, "else"), join = new_block(g, "join");
  LLVMBuildCondBr(g->builder, cond, then, otherwise);

  start_block(g, then);
  gen_region_enter(L);
  lua_pushvalue(L, 2);
  lua_call(L, 0, 1);
  carried c = carry(L, 4);
  gen_region_leave(g);
  LLVMBasicBlockRef then_end = LLVMGetInsertBlock(g->builder);
  LLVMBuildBr(g->builder, join);

  start_block(g, otherwise);
  gen_region_enter(L);
  lua_pushvalue(L, 3);
  lua_call(L, 0, 1);
  gen_nested_match(L, 4, -1, c.before, c.after);
  gen_region_leave(g);
  LLVMBasicBlockRef otherwise_end = LLVMGetInsertBlock(g->builder);
  LLVMBuildBr(g->builder, join);

  start_block(g, join);
  make_phis(g, &c);
  add_incoming(&c, c.before, then_end);
  add_incoming(&c, c.after, otherwise_end);
  gen_nested_push(L, 4, c.phi);
  return 1;
}

static int exit_if(lua_State *L) {
  gen_state *g = gen_building(L, "k.exit_if");
  LLVMValueRef cond = gen_value_of(L, 1, GEN_I1, "k.exit_if: condition");
  LLVMBasicBlockRef leave = new_block(g, "leave"), stay = new_block(g, "stay");
  LLVMBuildCondBr(g->builder, cond, leave, stay);
  start_block(g, leave);
  LLVMBuildRetVoid(g->builder);
  start_block(g, stay);
  return 0;
}

void gen_control_open(lua_State *L, int words) {
  static const luaL_Reg functions[] = {{"loop", loop},     {"while_", while_word}, {"when", when},
                                       {"branch", branch}, {"exit_if", exit_if},   {NULL, NULL}};
  lua_pushvalue(L, words);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}
