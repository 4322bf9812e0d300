/* value.c: what a loss file computes with: symbolic values of a row, their operators and the words on them.
 *
 * A value is the number of a node of the program that is being traced (runtime/loss/loss.h). A Lua number becomes a constant
 * where it meets one. */
#include <math.h>

#include "gen/lang/sandbox.h"
#include "gen/lang/types.h"
#include "gen/loss/trace.h"
#include "runtime/base/status.h"

static const char metatable_name[] = "value of a row"; /* as Lua's own functions name what they refuse */

void gen_loss_push_node(lua_State *L, uint16_t node) {
  uint16_t *value = lua_newuserdatauv(L, sizeof *value, 0);
  *value = node;
  luaL_setmetatable(L, metatable_name);
}

bool gen_loss_test(lua_State *L, int arg, uint16_t *out) {
  uint16_t *value = luaL_testudata(L, arg, metatable_name);
  if (value) *out = *value;
  return value != NULL;
}

const char *gen_loss_describe(lua_State *L, int arg) {
  uint16_t node;
  if (!gen_loss_test(L, arg, &node)) return gen_describe(L, arg);
  return flp_loss_is_condition(gen_state_get(L)->traced, node) ? "a condition" : "a value";
}

/* Raises the detail of what failed, behind the word that asked for it. */
static void check(lua_State *L, const char *word, flp_status status) {
  if (status != FLP_OK) gen_fail(L, "%s: %s", word, flp_error_detail());
}

uint16_t gen_loss_node_of(lua_State *L, int arg, bool condition, const char *what) {
  flp_loss *loss = gen_state_get(L)->traced;
  uint16_t node;
  if (!gen_loss_test(L, arg, &node)) {
    if (condition || lua_type(L, arg) != LUA_TNUMBER)
      gen_fail(L, "%s: expected %s, got %s", what, condition ? "a condition, such as lt(a, b)" : "a value or a number",
               gen_loss_describe(L, arg));
    check(L, what, flp_loss_constant(loss, lua_tonumber(L, arg), &node));
  }
  if (flp_loss_is_condition(loss, node) != condition)
    gen_fail(L, "%s: expected %s, got %s", what, condition ? "a condition, such as lt(a, b)" : "a value or a number",
             gen_loss_describe(L, arg));
  return node;
}

static void append(lua_State *L, const char *word, flp_loss_op op, const uint16_t operands[3]) {
  uint16_t node;
  check(L, word, flp_loss_append(gen_state_get(L)->traced, op, operands[0], operands[1], operands[2], &node));
  gen_loss_push_node(L, node);
}

/* ---- operators and words of one operation ---- */

typedef struct word {
  const char *name, *printed_name;
  flp_loss_op op;
  bool swaps, negates; /* a > b is b < a, a ~= b is not a == b */
} word;

static const word operators[] = {
    {"__add", "+", FLP_LOSS_ADD, false, false}, {"__sub", "-", FLP_LOSS_SUB, false, false},
    {"__mul", "*", FLP_LOSS_MUL, false, false}, {"__div", "/", FLP_LOSS_DIV, false, false},
    {"__unm", "-", FLP_LOSS_NEG, false, false}, {"__band", "&", FLP_LOSS_AND, false, false},
    {"__bor", "|", FLP_LOSS_OR, false, false},  {"__bnot", "~", FLP_LOSS_NOT, false, false},
};

static const word words[] = {
    {"abs", "abs", FLP_LOSS_ABS, false, false},       {"exp", "exp", FLP_LOSS_EXP, false, false},
    {"expm1", "expm1", FLP_LOSS_EXPM1, false, false}, {"log", "log", FLP_LOSS_LOG, false, false},
    {"sqrt", "sqrt", FLP_LOSS_SQRT, false, false},    {"detach", "detach", FLP_LOSS_DETACH, false, false},
    {"min", "min", FLP_LOSS_MIN, false, false},       {"max", "max", FLP_LOSS_MAX, false, false},
    {"clamp", "clamp", FLP_LOSS_CLAMP, false, false}, {"where", "where", FLP_LOSS_WHERE, false, false},
    {"lt", "lt", FLP_LOSS_LT, false, false},          {"le", "le", FLP_LOSS_LE, false, false},
    {"gt", "gt", FLP_LOSS_LT, true, false},           {"ge", "ge", FLP_LOSS_LE, true, false},
    {"eq", "eq", FLP_LOSS_EQ, false, false},          {"ne", "ne", FLP_LOSS_EQ, false, true},
    {"sum", "sum", FLP_LOSS_SUM, false, false},
};

static int apply(lua_State *L) {
  const word *w = lua_touserdata(L, lua_upvalueindex(1));
  int arity = flp_loss_op_arity(w->op);
  bool is_operator = w->name[0] == '_';
  if (!is_operator && lua_gettop(L) != arity)
    gen_fail(L, "%s: expected %d arguments, got %d", w->printed_name, arity, lua_gettop(L));
  uint16_t operands[3] = {0, 0, 0};
  for (int j = 0; j < arity; j++)
    operands[w->swaps ? arity - 1 - j : j] =
        gen_loss_node_of(L, j + 1, flp_loss_takes_condition(w->op, j), w->printed_name);
  append(L, w->printed_name, w->op, operands);
  if (w->negates)
    append(L, w->printed_name, FLP_LOSS_NOT, (uint16_t[3]){gen_loss_node_of(L, -1, true, w->printed_name), 0, 0});
  return 1;
}

/* x^n by multiplication, for a small whole number n. */
static int power(lua_State *L) {
  uint16_t base = gen_loss_node_of(L, 1, false, "^");
  if (!lua_isinteger(L, 2) || lua_tointeger(L, 2) < 1 || lua_tointeger(L, 2) > 8)
    gen_fail(L, "^: expected a Lua integer from 1 to 8 as exponent, got %s; x^y is exp(y * log(x))",
             gen_loss_describe(L, 2));
  gen_loss_push_node(L, base);
  for (lua_Integer n = lua_tointeger(L, 2); n > 1; n--)
    append(L, "^", FLP_LOSS_MUL, (uint16_t[3]){gen_loss_node_of(L, -1, false, "^"), base, 0});
  return 1;
}

/* ---- what Lua would get wrong in silence ---- */

static int refuse_comparison(lua_State *L) {
  gen_fail(L, "values of a row cannot be compared by Lua's %s; use %s", lua_tostring(L, lua_upvalueindex(1)),
           lua_tostring(L, lua_upvalueindex(2)));
}

static int refuse_index(lua_State *L) {
  gen_fail(L, "a value of a row has no fields");
}

static int refuse_text(lua_State *L) {
  gen_fail(L, "a value of a row cannot be part of a string and has no length");
}

static int to_string(lua_State *L) {
  lua_pushstring(L, gen_loss_describe(L, 1));
  return 1;
}

static void add(lua_State *L, int table, const word *w) {
  lua_pushlightuserdata(L, (void *)w);
  lua_pushcclosure(L, apply, 1);
  lua_setfield(L, table, w->name);
}

/* The second upvalue, a function of Lua's numbers; where a value is among them the first, the word of that name. */
static int word_or_number(lua_State *L) {
  bool is_word = false;
  uint16_t node;
  for (int i = 1; i <= lua_gettop(L); i++) is_word |= gen_loss_test(L, i, &node);
  lua_pushvalue(L, lua_upvalueindex(is_word ? 1 : 2));
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, 1);
  return 1;
}

/* math.exp and the like take values too. */
static void extend_math(lua_State *L, int environment) {
  lua_getfield(L, environment, "math");
  gen_sandbox_push_frozen(L, lua_gettop(L));
  int functions = lua_gettop(L);
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
    lua_getfield(L, environment, words[i].name);
    if (lua_getfield(L, functions, words[i].name) != LUA_TNIL) {
      lua_pushcclosure(L, word_or_number, 2);
      lua_setfield(L, functions, words[i].name);
    }
    lua_settop(L, functions);
  }
  lua_settop(L, functions - 2);
}

void gen_loss_value_open(lua_State *L, int environment) {
  static const char *const refused[][3] = {
      {"__eq", "== or ~=", "eq or ne"}, {"__lt", "< or >", "lt or gt"}, {"__le", "<= or >=", "le or ge"}};
  static const luaL_Reg methods[] = {{"__index", refuse_index}, {"__concat", refuse_text}, {"__len", refuse_text},
                                     {"__tostring", to_string}, {"__pow", power},          {NULL, NULL}};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) add(L, environment, &words[i]);
  extend_math(L, environment);
  luaL_newmetatable(L, metatable_name);
  int metatable = lua_gettop(L);
  luaL_setfuncs(L, methods, 0);
  for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) add(L, metatable, &operators[i]);
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    lua_pushstring(L, refused[i][1]);
    lua_pushstring(L, refused[i][2]);
    lua_pushcclosure(L, refuse_comparison, 2);
    lua_setfield(L, metatable, refused[i][0]);
  }
  lua_pushboolean(L, 0);
  lua_setfield(L, metatable, "__metatable");
  lua_settop(L, metatable - 1);
}
