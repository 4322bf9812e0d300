/* template.c: finds, lints and runs template files, and hands them the words `k` and the key `spec`. */
#include "gen/generate/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/generate/spec.h"
#include "gen/lang/budget.h"
#include "gen/lang/chunk.h"
#include "gen/lang/sandbox.h"
#include "gen/lang/types.h"
#include "gen/lang/words.h"
#include "gen/sources/sources.h"
#include "gen/target/arch.h"
#include "gen/target/words.h"

/* Registry keys: addresses of these. */
static const char modules_key = 'm', loading_mark = 'l';

/* ---- files ---- */

static void check_name(lua_State *L, const char *name) {
  size_t length = strlen(name);
  if (length == 0 || length > 64 || strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_/") != length || name[0] == '/')
    gen_fail(L, "k.import: '%s' is no name of a template (a-z, 0-9, _ and / only)", name);
}

/* Reads folder/name.lua into g->text and pushes its name for messages. Returns that name, or NULL if there is none. */
static const char *read_file(lua_State *L, const char *folder, const char *name, size_t *length) {
  gen_state *g = gen_state_get(L);
  const char *file = lua_pushfstring(L, "%s%s.lua", folder, name);
  free(g->text);
  g->text = NULL;
  flp_status status = gen_sources_read(g->template_dir, file, &g->text, length);
  if (status != FLP_OK) {
    g->fail_status = status;
    gen_fail(L, "template %s cannot be read", file);
  }
  if (g->text) return file;
  lua_pop(L, 1);
  return NULL;
}

/* A name is a role. Its file stands in the architecture's folder, in that of the one that it is like, else in
 * portable/, else in common/; what is common is so for every architecture: a second file of that name is a mistake. A
 * name with a folder is that file. */
static const char *find_file(lua_State *L, const char *name, size_t *length) {
  const char *const *folders = gen_state_get(L)->arch->folders, *own = NULL;
  if (strchr(name, '/')) {
    const char *file = read_file(L, "", name, length);
    if (!file) gen_fail(L, "there is no template %s.lua", name);
    return file;
  }
  const char *common = read_file(L, "common/", name, length);
  for (int i = 0; i < 2 && !own; i++)
    if (folders[i][0]) own = read_file(L, folders[i], name, length);
  if (!own) own = read_file(L, "portable/", name, length);
  if (own && common) gen_fail(L, "%s cannot take the place of %s", own, common);
  if (own) return own;
  if (!common)
    gen_fail(L, "there is no template %s.lua in %s%s%s%sportable/ or common/", name, folders[0],
             folders[0][0] ? ", " : "", folders[1], folders[1][0] ? ", " : "");
  return read_file(L, "common/", name, length);
}

void gen_template_run(lua_State *L, const char *name) {
  int top = lua_gettop(L);
  luaL_checkstack(L, 12, "templates import too deeply");
  lua_rawgetp(L, LUA_REGISTRYINDEX, &modules_key);
  if (lua_getfield(L, top + 1, name) != LUA_TNIL) {
    if (lua_touserdata(L, -1) == (const void *)&loading_mark) gen_fail(L, "k.import: '%s' imports itself", name);
    lua_replace(L, top + 1);
    lua_settop(L, top + 1);
    return;
  }
  lua_pushlightuserdata(L, (void *)&loading_mark);
  lua_setfield(L, top + 1, name);
  size_t length;
  gen_state *g = gen_state_get(L);
  const char *file = find_file(L, name, &length);
  if (!g->file[0]) snprintf(g->file, sizeof g->file, "%s", file);
  gen_chunk_load(L, file, length);
  lua_call(L, 0, 1);
  if (lua_isnil(L, -1)) {
    lua_pushfstring(L, "%s:1: the file returns nothing", file);
    lua_error(L);
  }
  lua_pushvalue(L, -1);
  lua_setfield(L, top + 1, name);
  lua_replace(L, top + 1);
  lua_settop(L, top + 1);
}

static int import(lua_State *L) {
  const char *name = gen_text(L, 1);
  if (!name) gen_fail(L, "k.import: expected a name, got %s", gen_describe(L, 1));
  check_name(L, name);
  gen_template_run(L, name);
  return 1;
}

/* ---- what templates see ---- */

static void add_building_words(lua_State *L, int words) {
  gen_types_open(L, words);
  gen_value_open(L, words);
  gen_arith_open(L, words);
  gen_convert_open(L, words);
  gen_control_open(L, words);
  gen_memory_open(L, words);
  gen_kernel_open(L, words);
  gen_nvptx_open(L, words);
  gen_shared_open(L, words);
  gen_plain_open(L, words);
  gen_sm90a_open(L, words);
  gen_sm100f_open(L, words);
  gen_terms_open(L, words);
}

void gen_template_prepare(lua_State *L, bool builds) {
  gen_sandbox_push(L);
  lua_newtable(L);
  if (builds) add_building_words(L, lua_gettop(L));
  lua_pushcfunction(L, import);
  lua_setfield(L, -2, "import");
  gen_spec_push_abi(L);
  lua_setfield(L, -2, "abi");
  gen_sandbox_freeze(L, "k", "word");
  lua_setfield(L, -2, "k");
  gen_sandbox_freeze(L, "the sandbox", "global");
  gen_chunk_environment(L);
  lua_newtable(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &modules_key);
}

int gen_template_main(lua_State *L) {
  gen_state *g = gen_state_get(L);
  gen_template_prepare(L, true);
  gen_template_run(L, flp_kernel_kind_name(flp_kind_base(g->key->kind)));
  if (!lua_isfunction(L, -1)) {
    lua_pushfstring(L, "%s:1: a template returns a function of k and spec, not %s", g->file, gen_describe(L, -1));
    lua_error(L);
  }
  gen_chunk_push_environment(L);
  lua_getfield(L, -1, "k");
  lua_remove(L, -2);
  gen_spec_push(L);
  lua_call(L, 2, 0);
  gen_kernel_finish(L, g->file);
  return 0;
}

flp_status gen_template_call(gen_state *g, int arguments, char *error, size_t capacity) {
  int result = gen_budget_call(g, arguments);
  if (result == LUA_OK) return FLP_OK;
  const char *file = g->file[0] ? g->file : flp_kernel_kind_name(g->key->kind);
  bool is_full = result == LUA_ERRMEM, is_text = lua_type(g->lua, -1) == LUA_TSTRING;
  if (is_full)
    gen_budget_explain(g, file, error, capacity);
  else if (is_text)
    snprintf(error, capacity, "%s", lua_tostring(g->lua, -1));
  else
    snprintf(error, capacity, "%s: the template raised a %s instead of a message", file, luaL_typename(g->lua, -1));
  return !is_full && g->fail_status != FLP_OK ? g->fail_status : FLP_ERROR_COMPILE;
}
