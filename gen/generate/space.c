/* space.c: the tile configurations of one kernel, asked of its architecture's tune.lua in a Lua state that stays open.
 *
 * tune.lua returns {choose = function(spec) -> {schedule =, rows =, ..., shared_bytes =}, axes = {schedule = {...},
 * ...}}; choose raises why a configuration cannot be built. Kernels call it themselves when they are built, so an answer
 * here is theirs. No word that builds is there, and no LLVM. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/gen.h"
#include "gen/generate/generate.h"
#include "gen/generate/spec.h"
#include "gen/generate/template.h"
#include "gen/lang/budget.h"
#include "gen/lang/types.h"
#include "runtime/base/status.h"

struct flpgen_space {
  gen_state state;
  gen_arch target;
  flp_kernel_key key;
  flpgen_axes axes;
};

static const char choose_key = 'c'; /* its address is the key in the registry */

/* ---- values of tunables ---- */

/* The value on the top as tunable i, and pops it. */
static uint32_t read_value(lua_State *L, int i, const char *where) {
  const char *name = gen_tunables[i].name, *text = gen_word(L, -1);
  uint32_t value = 0;
  if (i > 0 && lua_isinteger(L, -1) && lua_tointeger(L, -1) > 0 && lua_tointeger(L, -1) <= INT32_MAX)
    value = (uint32_t)lua_tointeger(L, -1);
  for (uint32_t j = 1; i == 0 && j < GEN_SCHEDULES; j++)
    if (strcmp(gen_schedules[j], text) == 0) value = j;
  if (!value)
    gen_fail(L, "tune.lua: %s: %s: expected %s, got %s", where, name, i ? "a positive integer" : "a schedule",
             gen_describe(L, -1));
  lua_pop(L, 1);
  return value;
}

static void *tunable_of(void *base, int i, size_t each) {
  return (char *)base + gen_tunables[i].offset / sizeof(uint32_t) * each;
}

/* The field of the table at index 1 as an axis: fields of flpgen_axes stand in the order of flp_tunables. */
static void read_axis(lua_State *L, int i, flpgen_axes *axes) {
  flpgen_axis *axis = tunable_of(axes, i, sizeof(flpgen_axis));
  if (lua_getfield(L, 1, gen_tunables[i].name) != LUA_TTABLE || lua_rawlen(L, -1) > FLPGEN_AXIS_MAX)
    gen_fail(L, "tune.lua: axes: %s: expected an array of at most %d values", gen_tunables[i].name, FLPGEN_AXIS_MAX);
  for (axis->count = 0; lua_rawgeti(L, -1, axis->count + 1) != LUA_TNIL; axis->count++)
    axis->values[axis->count] = read_value(L, i, "axes");
  lua_pop(L, 2);
}

/* ---- under lua_pcall ---- */

/* Argument: the space. */
static int prepare(lua_State *L) {
  flpgen_space *space = lua_touserdata(L, 1);
  lua_settop(L, 0);
  gen_template_prepare(L, false);
  gen_template_run(L, "tune");
  if (!lua_istable(L, 1) || lua_getfield(L, 1, "choose") != LUA_TFUNCTION || lua_getfield(L, 1, "axes") != LUA_TTABLE)
    gen_fail(L, "tune.lua: expected a table with the function 'choose' and the table 'axes'");
  lua_replace(L, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &choose_key);
  for (int i = 0; i < GEN_TUNABLES; i++) read_axis(L, i, &space->axes);
  return 0;
}

/* Argument: the tile to fill. */
static int choose(lua_State *L) {
  flpgen_tile *tile = lua_touserdata(L, 1);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &choose_key);
  gen_spec_push(L);
  lua_call(L, 1, 1);
  luaL_checktype(L, -1, LUA_TTABLE);
  for (int i = 0; i < GEN_TUNABLES; i++) {
    lua_getfield(L, -1, gen_tunables[i].name);
    *(uint32_t *)tunable_of(&tile->tune, i, sizeof(uint32_t)) = read_value(L, i, "choose");
  }
  lua_getfield(L, -1, "shared_bytes");
  tile->shared_bytes = (uint32_t)luaL_checkinteger(L, -1);
  return 0;
}

/* ---- entry points ---- */

static flp_status call(flpgen_space *space, lua_CFunction function, void *argument, char *error, size_t capacity) {
  gen_state *g = &space->state;
  char sink[8];
  g->lua_steps = 0;
  lua_settop(g->lua, 0);
  lua_pushcfunction(g->lua, function);
  lua_pushlightuserdata(g->lua, argument);
  return gen_template_call(g, 1, error ? error : sink, error ? capacity : sizeof sink);
}

static flp_status open_space(flpgen_space *space, const flpgen_options *options, char *error, size_t capacity) {
  gen_state *g = &space->state;
  flpgen_tile tile;
  g->key = &space->key;
  g->arch = &space->target;
  g->template_dir = options ? options->template_dir : NULL;
  FLP_TRY(gen_generate_check(&space->key, &space->target, error, capacity));
  flp_kernel_key_canonicalise(&space->key);
  if (!flp_kind_has(space->key.kind, FLP_KIND_TUNE)) {
    snprintf(error, capacity, "key: kernel %s leaves no choice of a tile configuration",
             flp_kernel_kind_name(space->key.kind));
    return FLP_ERROR_UNSUPPORTED;
  }
  space->key.tune = (flp_tunables){0};
  g->lua = gen_budget_open(g);
  if (!g->lua) return FLP_ERROR_MEMORY;
  FLP_TRY(call(space, prepare, space, error, capacity));
  return call(space, choose, &tile, error, capacity);
}

flp_status flpgen_space_open(const flp_kernel_key *key, const flpgen_options *options, flpgen_space **out, char *error,
                             size_t error_capacity) {
  char sink[8];
  if (!error || error_capacity == 0) {
    error = sink;
    error_capacity = sizeof sink;
  }
  error[0] = 0;
  flpgen_space *space = calloc(1, sizeof *space);
  flp_status status = FLP_ERROR_MEMORY;
  if (space) {
    space->key = *key;
    status = open_space(space, options, error, error_capacity);
  }
  if (status == FLP_ERROR_MEMORY && !error[0]) snprintf(error, error_capacity, "out of memory");
  if (status != FLP_OK) {
    flpgen_space_close(space);
    space = NULL;
  }
  *out = space;
  return status;
}

void flpgen_space_close(flpgen_space *space) {
  if (!space) return;
  if (space->state.lua) lua_close(space->state.lua);
  free(space->state.text);
  free(space);
}

const flpgen_axes *flpgen_space_axes(const flpgen_space *space) {
  return &space->axes;
}

flp_status flpgen_space_ask(flpgen_space *space, const flp_tunables *tune, flpgen_tile *out, char *error,
                            size_t error_capacity) {
  flpgen_tile tile;
  FLP_TRY(gen_generate_check_tune(tune, error, error ? error_capacity : 0));
  space->key.tune = *tune;
  FLP_TRY(call(space, choose, &tile, error, error_capacity));
  if (out) *out = tile;
  return FLP_OK;
}
