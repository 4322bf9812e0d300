/* loss.c: from a Lua file that describes a per-row loss to its program: its function runs once, on symbolic values.
 *
 * A file returns function(row, p) ... return loss [, metrics] end, or a table {loss = that function, parameters =
 * {name = default or {default =, min =, max =}}, vectors = {names}, name =, formula =, source =}. It sees the sandbox
 * of templates (sandbox.c), the words of value.c in place of k, and import, which gives what a built-in file
 * returns. */
#include "gen/loss/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/gen.h"
#include "gen/lang/budget.h"
#include "gen/lang/chunk.h"
#include "gen/lang/order.h"
#include "gen/lang/sandbox.h"
#include "gen/lang/types.h"
#include "gen/sources/sources.h"

/* What one trace reads and writes; on the stack of flpgen_loss_trace. */
typedef struct tracing {
  const char *file;
  flpgen_loss *out;
} tracing;

/* ---- fields of the table ---- */

/* Raises a message that has no line of its own: at the head of the file. */
static _Noreturn void fail_file(lua_State *L, const tracing *t, const char *message) {
  lua_pushfstring(L, "%s:1: %s", t->file, message);
  lua_error(L);
  abort(); /* not reached: lua_error does not return */
}

static void check(lua_State *L, const tracing *t, flp_status status) {
  if (status != FLP_OK) fail_file(L, t, flp_error_detail());
}

static void refuse_unknown(lua_State *L, const tracing *t, int table, const char *const *known, const char *what) {
  int top = lua_gettop(L);
  const char *name = gen_order_unknown_key(L, table, known), *names = known[0];
  if (name) {
    for (int j = 1; known[j]; j++) names = lua_pushfstring(L, "%s, %s", names, known[j]);
    fail_file(L, t, lua_pushfstring(L, "%s has no field '%s'; accepted are %s", what, name, names));
  }
  lua_settop(L, top);
}

/* A number, or the fallback if the field is missing. */
static double number_field(lua_State *L, const tracing *t, int table, const char *field, const char *parameter,
                           double fallback, bool is_needed) {
  double value = fallback;
  int type = lua_getfield(L, table, field);
  if (type == LUA_TNUMBER)
    value = lua_tonumber(L, -1);
  else if (type != LUA_TNIL || is_needed)
    fail_file(L, t,
              lua_pushfstring(L, "parameter '%s': %s: expected a number, got %s", parameter, field,
                              gen_loss_describe(L, -1)));
  lua_pop(L, 1);
  return value;
}

/* The parameter whose key and value are the two on top. */
static void read_parameter(lua_State *L, const tracing *t) {
  static const char *const known[] = {"default", "min", "max", NULL};
  int value = lua_gettop(L), key = value - 1;
  const char *name = gen_text(L, key);
  if (!name)
    fail_file(L, t, lua_pushfstring(L, "parameters: a name is %s; strings are accepted", gen_loss_describe(L, key)));
  flp_loss_parameter parameter = {.low = -HUGE_VAL, .high = HUGE_VAL};
  if (strlen(name) >= sizeof parameter.name)
    fail_file(L, t, lua_pushfstring(L, "parameters: '%s' is longer than %d letters", name, FLP_LOSS_NAME_BYTES - 1));
  memcpy(parameter.name, name, strlen(name));
  if (lua_type(L, value) == LUA_TNUMBER) {
    parameter.fallback = lua_tonumber(L, value);
  } else if (lua_istable(L, value)) {
    refuse_unknown(L, t, value, known, lua_pushfstring(L, "parameter '%s'", name));
    parameter.fallback = number_field(L, t, value, "default", name, 0, true);
    parameter.low = number_field(L, t, value, "min", name, parameter.low, false);
    parameter.high = number_field(L, t, value, "max", name, parameter.high, false);
  } else {
    fail_file(L, t,
              lua_pushfstring(L, "parameter '%s': expected a number or {default =, min =, max =}, got %s", name,
                              gen_loss_describe(L, value)));
  }
  uint32_t index;
  check(L, t, flp_loss_declare_parameter(&t->out->program, &parameter, &index));
}

static void read_parameters(lua_State *L, const tracing *t, int table) {
  int top = lua_gettop(L);
  int type = lua_getfield(L, table, "parameters");
  if (type != LUA_TNIL && type != LUA_TTABLE)
    fail_file(L, t, lua_pushfstring(L, "parameters: expected a table, got %s", gen_loss_describe(L, -1)));
  if (type == LUA_TTABLE) {
    gen_order_keys(L, top + 1);
    for (lua_Integer i = 1; lua_rawgeti(L, top + 2, i) != LUA_TNIL; i++) {
      lua_pushvalue(L, -1);
      lua_gettable(L, top + 1);
      read_parameter(L, t);
      lua_settop(L, top + 2);
    }
  }
  lua_settop(L, top);
}

static void read_vectors(lua_State *L, const tracing *t, int table) {
  int top = lua_gettop(L);
  int type = lua_getfield(L, table, "vectors");
  if (type != LUA_TNIL && type != LUA_TTABLE)
    fail_file(L, t, lua_pushfstring(L, "vectors: expected an array of names, got %s", gen_loss_describe(L, -1)));
  for (lua_Integer i = 1; type == LUA_TTABLE && i <= (lua_Integer)lua_rawlen(L, top + 1); i++) {
    uint32_t index;
    lua_rawgeti(L, top + 1, i);
    const char *name = gen_text(L, -1);
    if (!name)
      fail_file(L, t,
                lua_pushfstring(L, "vectors: expected an array of names, got one of %s", gen_loss_describe(L, -1)));
    check(L, t, flp_loss_declare_vector(&t->out->program, name, &index));
    if (index != i - 1) fail_file(L, t, lua_pushfstring(L, "vectors: '%s' is there twice", name));
    lua_pop(L, 1);
  }
  lua_settop(L, top);
}

/* Copies a string field, truncated to its capacity; false if it is missing. */
static bool read_text(lua_State *L, const tracing *t, int table, const char *field, char *out, size_t capacity) {
  bool is_there = lua_getfield(L, table, field) != LUA_TNIL;
  const char *text = gen_text(L, -1);
  if (text)
    snprintf(out, capacity, "%s", text);
  else if (is_there)
    fail_file(L, t, lua_pushfstring(L, "%s: expected a string, got %s", field, gen_loss_describe(L, -1)));
  lua_pop(L, 1);
  return is_there;
}

/* ---- row and p ---- */

/* Pushes a read-only table of the leaves of one kind. Of inputs those of targets and of all scores follow the vectors. */
static void push_leaves(lua_State *L, flp_loss_op op, uint32_t count, const char *what, const char *noun) {
  flp_loss *loss = gen_state_get(L)->traced;
  lua_newtable(L);
  uint32_t others = op == FLP_LOSS_INPUT ? FLP_LOSS_ALL_INPUTS - FLP_LOSS_TARGET_LOGPROB : 0;
  for (uint32_t i = 0; i < count + others; i++) {
    uint32_t at = i < count ? i : FLP_LOSS_TARGET_LOGPROB + i - count;
    const char *name = op == FLP_LOSS_INPUT ? flp_loss_input_name(loss, at) : loss->parameters[at].name;
    uint16_t node;
    if (flp_loss_append(loss, op, at, 0, 0, &node) != FLP_OK) gen_fail(L, "%s", flp_error_detail());
    gen_loss_push_node(L, node);
    lua_setfield(L, -2, name);
  }
  gen_sandbox_freeze(L, what, noun);
}

/* ---- results ---- */

/* The node of a result, whose errors stand at the line of the function. */
static uint16_t result_node(lua_State *L, const tracing *t, int arg, int line, const char *what) {
  uint16_t node;
  if (gen_loss_test(L, arg, &node)) return node;
  if (lua_type(L, arg) != LUA_TNUMBER) {
    lua_pushfstring(L, "%s:%d: %s is %s; a value or a number is accepted", t->file, line, what,
                    gen_loss_describe(L, arg));
    lua_error(L);
  }
  check(L, t, flp_loss_constant(&t->out->program, lua_tonumber(L, arg), &node));
  return node;
}

static void read_metrics(lua_State *L, const tracing *t, int arg, int line) {
  if (lua_isnil(L, arg)) return;
  int top = lua_gettop(L);
  if (!lua_istable(L, arg)) {
    lua_pushfstring(L, "%s:%d: the second result is %s; a table of metrics by name is accepted", t->file, line,
                    gen_loss_describe(L, arg));
    lua_error(L);
  }
  gen_order_keys(L, arg);
  for (lua_Integer i = 1; lua_rawgeti(L, top + 1, i) != LUA_TNIL; i++) {
    const char *name = gen_text(L, -1);
    if (!name)
      fail_file(L, t, lua_pushfstring(L, "metrics: a name is %s; strings are accepted", gen_loss_describe(L, -1)));
    const char *what = lua_pushfstring(L, "metric '%s'", name);
    lua_getfield(L, arg, name);
    uint16_t node = result_node(L, t, lua_gettop(L), line, what);
    check(L, t, flp_loss_declare_metric(&t->out->program, name, node));
    lua_settop(L, top + 1);
  }
  lua_settop(L, top);
}

/* Calls the function at the top of the stack. */
static void run_function(lua_State *L, const tracing *t) {
  flp_loss *loss = &t->out->program;
  lua_Debug where;
  lua_pushvalue(L, -1);
  lua_getinfo(L, ">S", &where);
  push_leaves(L, FLP_LOSS_INPUT, FLP_LOSS_FIRST_VECTOR + loss->vector_count, "a row", "value");
  push_leaves(L, FLP_LOSS_PARAMETER, loss->parameter_count, "p", "parameter");
  lua_call(L, 2, 2);
  int metrics = lua_gettop(L), line = where.linedefined;
  uint16_t node = result_node(L, t, metrics - 1, line, "the loss");
  read_metrics(L, t, metrics, line);
  check(L, t, flp_loss_finish(loss, node));
  if (flp_loss_is_active(loss)) return;
  lua_pushfstring(L, "%s:%d: the loss has no derivative by logprob, entropy, lse or mean_score", t->file, line);
  lua_error(L);
}

/* ---- files ---- */

static int import(lua_State *L) {
  gen_state *g = gen_state_get(L);
  const char *name = gen_text(L, 1);
  if (!name) gen_fail(L, "import: expected a name, got %s", gen_loss_describe(L, 1));
  const char *file = lua_pushfstring(L, "losses/%s.lua", name);
  size_t length;
  free(g->text);
  if (gen_sources_read(NULL, file, &g->text, &length) != FLP_OK || !g->text)
    gen_fail(L, "import: there is no built-in loss '%s'", name);
  gen_chunk_load(L, file, length);
  lua_call(L, 0, 1);
  return 1;
}

static void prepare(lua_State *L) {
  gen_sandbox_push(L);
  gen_loss_value_open(L, lua_gettop(L));
  lua_pushcfunction(L, import);
  lua_setfield(L, -2, "import");
  gen_sandbox_freeze(L, "the sandbox", "global");
  gen_chunk_environment(L);
}

/* Names the program and keeps what is in it: values that the file made outside its function. */
static void read_name(lua_State *L, const tracing *t, int table) {
  char name[2 * FLP_LOSS_TITLE_BYTES];
  flp_loss named;
  if (!read_text(L, t, table, "name", name, sizeof name)) return;
  check(L, t, flp_loss_start(&named, name));
  memcpy(t->out->program.name, named.name, sizeof named.name);
}

/* The whole of a trace under lua_pcall. Argument: the length of g->text. */
static int trace(lua_State *L) {
  static const char *const known[] = {"loss", "parameters", "vectors", "name", "formula", "source", NULL};
  const tracing *t = lua_touserdata(L, 1);
  size_t length = (size_t)lua_tointeger(L, 2);
  prepare(L);
  gen_chunk_load(L, t->file, length);
  lua_call(L, 0, 1);
  int value = lua_gettop(L);
  if (lua_istable(L, value)) {
    refuse_unknown(L, t, value, known, "a loss");
    read_name(L, t, value);
    read_text(L, t, value, "formula", t->out->formula, sizeof t->out->formula);
    read_text(L, t, value, "source", t->out->source, sizeof t->out->source);
    read_parameters(L, t, value);
    read_vectors(L, t, value);
    lua_getfield(L, value, "loss");
  }
  if (!lua_isfunction(L, -1) || lua_iscfunction(L, -1))
    fail_file(L, t,
              lua_pushfstring(L, "a file returns a function of row and p, or a table with it as 'loss', not %s",
                              gen_loss_describe(L, -1)));
  run_function(L, t);
  return 0;
}

/* "policies/my_loss.lua" -> "my_loss", or "loss" where that is no name. */
static flp_status start(flp_loss *loss, const char *file) {
  const char *base = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
  char name[FLP_LOSS_TITLE_BYTES];
  snprintf(name, sizeof name, "%.*s", (int)strcspn(base, "."), base);
  return flp_loss_start(loss, name) == FLP_OK ? FLP_OK : flp_loss_start(loss, "loss");
}

static flp_status run(gen_state *g, const tracing *t, size_t length, char *error, size_t capacity) {
  g->lua = gen_budget_open(g);
  if (!g->lua) return FLP_ERROR_MEMORY;
  lua_pushcfunction(g->lua, trace);
  lua_pushlightuserdata(g->lua, (void *)t);
  lua_pushinteger(g->lua, (lua_Integer)length);
  int result = gen_budget_call(g, 2);
  if (result == LUA_OK) return FLP_OK;
  char first_line[256];
  snprintf(first_line, sizeof first_line, "%.250s:1", t->file);
  if (result == LUA_ERRMEM)
    gen_budget_explain(g, first_line, error, capacity);
  else if (lua_type(g->lua, -1) == LUA_TSTRING)
    snprintf(error, capacity, "%s", lua_tostring(g->lua, -1));
  else
    snprintf(error, capacity, "%s:1: the file raised a %s instead of a message", t->file, luaL_typename(g->lua, -1));
  return FLP_ERROR_COMPILE;
}

flp_status flpgen_loss_trace(const char *file, const char *text, size_t length, flpgen_loss *out, char *error,
                             size_t error_capacity) {
  memset(out, 0, sizeof *out);
  const tracing t = {file, out};
  gen_state g = {.traced = &out->program, .text = malloc(length + 1)};
  flp_status status = g.text ? start(&out->program, file) : FLP_ERROR_MEMORY;
  if (status == FLP_OK) {
    memcpy(g.text, text, length);
    g.text[length] = 0;
    status = run(&g, &t, length, error, error_capacity);
  }
  if (g.lua) lua_close(g.lua);
  free(g.text);
  if (status == FLP_ERROR_MEMORY) snprintf(error, error_capacity, "out of memory");
  return status;
}

flp_status flpgen_loss_builtin(const char *name, flpgen_loss *out, char *error, size_t error_capacity) {
  char file[128], *text = NULL;
  size_t length = 0;
  snprintf(file, sizeof file, "losses/%s.lua", name);
  flp_status status = gen_sources_read(NULL, file, &text, &length);
  if (status == FLP_OK && !text) {
    snprintf(error, error_capacity, "there is no built-in loss '%s'", name);
    status = FLP_ERROR_ARGUMENT;
  }
  if (status == FLP_OK) status = flpgen_loss_trace(file, text, length, out, error, error_capacity);
  free(text);
  return status;
}
