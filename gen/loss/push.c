/* push.c: a loss program as the Lua table that templates/common/loss.lua turns into kernel code, and the operations
 * that templates/common/loss_any.lua knows. */
#include "gen/loss/push.h"

#include <lauxlib.h>
#include <stdbool.h>
#include <stddef.h>

#include "gen/lang/sandbox.h"
#include "runtime/kernel/abi.h"

static void set_integer(lua_State *L, const char *name, lua_Integer value) {
  lua_pushinteger(L, value);
  lua_setfield(L, -2, name);
}

static void set_flag(lua_State *L, const char *name, bool value) {
  lua_pushboolean(L, value);
  lua_setfield(L, -2, name);
}

/* inputs = {"logprob", ...}: the parameters of loss_rows that a program may read, in the order of flp_loss_input. */
static void push_inputs(lua_State *L) {
  const flp_abi_entry *abi = flp_abi_find("loss_rows");
  lua_newtable(L);
  for (int i = 0; i < FLP_LOSS_INPUTS_MAX; i++) {
    lua_pushstring(L, abi->params[i].name);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "inputs");
}
_Static_assert(offsetof(flp_loss_rows_params, parameter0) == FLP_LOSS_INPUTS_MAX * sizeof(flp_abi_ptr),
               "inputs are the first parameters of loss_rows");

/* inputs = {..., [15] = "target_logprob", ... [18] = "mean_score"}: those behind the vectors, too. */
static void push_other_inputs(lua_State *L) {
  lua_getfield(L, -1, "inputs");
  for (uint32_t i = FLP_LOSS_TARGET_LOGPROB; i < FLP_LOSS_ALL_INPUTS; i++) {
    lua_pushstring(L, flp_loss_input_name(NULL, i));
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  lua_pop(L, 1);
}

/* of_scores = true: it has derivatives by_lse and by_mean too; and so have nodes. */
static void push_scores(lua_State *L, const flp_loss *loss, const uint8_t *activity) {
  push_other_inputs(L);
  set_flag(L, "of_scores", true);
  lua_getfield(L, -1, "nodes");
  for (uint32_t i = 0; i < loss->node_count; i++) {
    lua_rawgeti(L, -1, (lua_Integer)i + 1);
    set_flag(L, "by_lse", activity[i] & FLP_LOSS_BY_LSE);
    set_flag(L, "by_mean", activity[i] & FLP_LOSS_BY_MEAN);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* Of a node whether it has a value for each target, its level and what it depends on; sums = {nodes}, levels =: see
 * flp_loss_plan. */
static void push_plan(lua_State *L, const flp_loss *loss) {
  flp_loss_plan plan;
  flp_loss_plan_of(loss, &plan);
  push_other_inputs(L);
  lua_getfield(L, -1, "nodes");
  for (uint32_t i = 0; i < loss->node_count; i++) {
    lua_rawgeti(L, -1, (lua_Integer)i + 1);
    set_flag(L, "of_targets", plan.per_target[i]);
    set_integer(L, "level", plan.level[i]);
    set_integer(L, "active", plan.active[i]);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  lua_newtable(L);
  for (uint32_t j = 0; j < plan.sum_count; j++) {
    lua_pushinteger(L, plan.sums[j] + 1);
    lua_rawseti(L, -2, (lua_Integer)j + 1);
  }
  lua_setfield(L, -2, "sums");
  set_integer(L, "levels", plan.level_count);
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
  push_inputs(L);
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
  if (flp_loss_is_over_targets(loss)) push_plan(L, loss);
  if (flp_loss_is_of_scores(loss)) push_scores(L, loss, activity);
}

/* code = {...}: where the fields of flp_loss_code stand, in bytes, those of a node from its start; and its bounds. */
static void push_code(lua_State *L) {
#define NODE(field) (offsetof(flp_loss_code, nodes[0].field) - offsetof(flp_loss_code, nodes))
  static const struct {
    const char *name;
    size_t value;
  } fields[] = {{"node_count", offsetof(flp_loss_code, node_count)},
                {"result", offsetof(flp_loss_code, result)},
                {"metric_count", offsetof(flp_loss_code, metric_count)},
                {"metrics", offsetof(flp_loss_code, metrics)},
                {"head_bytes", offsetof(flp_loss_code, nodes)},
                {"node_bytes", sizeof((flp_loss_code *)0)->nodes[0]},
                {"op", NODE(op)},
                {"active", NODE(active)},
                {"operands", NODE(operands)},
                {"value", NODE(value)},
                {"nodes_max", FLP_LOSS_NODES_MAX},
                {"parameters_max", FLP_LOSS_PARAMETERS_MAX}};
#undef NODE
  lua_newtable(L);
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
    set_integer(L, fields[i].name, (lua_Integer)fields[i].value);
  gen_sandbox_freeze(L, "spec.loss.code", "field");
  lua_setfield(L, -2, "code");
}

/* {operations = {{name = "constant", arity = 0, conditions = {}}, ...}}, by their numbers. */
void gen_loss_push_operations(lua_State *L, bool of_scores) {
  luaL_checkstack(L, 8, "operations");
  lua_newtable(L);
  push_inputs(L);
  if (of_scores) push_other_inputs(L);
  set_flag(L, "of_scores", of_scores);
  push_code(L);
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
