/* push.c: a loss program as the Lua table that templates/loss.lua turns into kernel code, and the operations that
 * templates/loss_any.lua knows. */
#include "gen/loss/push.h"

#include <lauxlib.h>
#include <stdbool.h>

static void set_integer(lua_State *L, const char *name, lua_Integer value) {
  lua_pushinteger(L, value);
  lua_setfield(L, -2, name);
}

static void set_flag(lua_State *L, const char *name, bool value) {
  lua_pushboolean(L, value);
  lua_setfield(L, -2, name);
}

/* {op = "mul", [1] = node, [2] = node, by_logprob =, by_entropy =}, of leaves value = or index = instead of nodes. */
static void push_node(lua_State *L, const flp_loss *loss, uint32_t i, unsigned activity) {
  const flp_loss_node *node = &loss->nodes[i];
  int arity = flp_loss_op_arity(node->op);
  lua_newtable(L);
  lua_pushstring(L, flp_loss_op_name(node->op));
  lua_setfield(L, -2, "op");
  for (int j = 0; j < arity; j++) {
    lua_pushinteger(L, node->operands[j] + 1);
    lua_rawseti(L, -2, j + 1);
  }
  if (node->op == FLP_LOSS_CONSTANT) {
    lua_pushnumber(L, loss->constants[node->operands[0]]);
    lua_setfield(L, -2, "value");
  } else if (arity == 0) {
    set_integer(L, "index", node->operands[0] + 1);
  }
  set_flag(L, "by_logprob", activity & FLP_LOSS_BY_LOGPROB);
  set_flag(L, "by_entropy", activity & FLP_LOSS_BY_ENTROPY);
}

void gen_loss_push(lua_State *L, const flp_loss *loss) {
  uint8_t activity[FLP_LOSS_NODES_MAX];
  flp_loss_activity(loss, activity);
  luaL_checkstack(L, 8, "a loss");
  lua_newtable(L);
  set_integer(L, "result", loss->loss + 1);
  set_integer(L, "parameter_count", (lua_Integer)loss->parameter_count);
  lua_newtable(L);
  for (uint32_t i = 0; i < loss->node_count; i++) {
    push_node(L, loss, i, activity[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  lua_setfield(L, -2, "nodes");
  lua_newtable(L);
  for (uint32_t i = 0; i < loss->metric_count; i++) {
    lua_pushinteger(L, loss->metrics[i].node + 1);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  lua_setfield(L, -2, "metrics"); /* their nodes, in the program's order */
}

/* {operations = {{name = "constant", arity = 0, conditions = {}}, ...}}, by their numbers. */
void gen_loss_push_operations(lua_State *L) {
  luaL_checkstack(L, 8, "operations");
  lua_newtable(L);
  lua_newtable(L);
  for (uint32_t op = 0; op < FLP_LOSS_OPS; op++) {
    lua_newtable(L);
    lua_pushstring(L, flp_loss_op_name(op));
    lua_setfield(L, -2, "name");
    set_integer(L, "arity", flp_loss_op_arity(op));
    lua_newtable(L);
    for (int j = 0; j < flp_loss_op_arity(op); j++) {
      lua_pushboolean(L, flp_loss_takes_condition(op, j));
      lua_rawseti(L, -2, j + 1);
    }
    lua_setfield(L, -2, "conditions");
    lua_rawseti(L, -2, (lua_Integer)op + 1);
  }
  lua_setfield(L, -2, "operations");
}
