/* options.h: what words that take a table of options share: k.wgmma{columns = 128, ...}. */
#ifndef FLPGEN_OPTIONS_H
#define FLPGEN_OPTIONS_H

#include <lauxlib.h>
#include <lua.h>

/* Leaves the table alone on the stack. Raises for anything else, and for fields that are not in the list, which ends
 * with NULL. */
void gen_options_open(lua_State *L, const char *word, const char *const *known);
/* A Lua integer in [low, high]. */
int gen_options_integer(lua_State *L, const char *word, const char *field, int low, int high);
/* The field "columns" of a product: a multiple of 8, up to 256. */
int gen_options_columns(lua_State *L, const char *word);
/* 1 for "mn", 0 for "k". */
int gen_options_is_mn_major(lua_State *L, const char *word, const char *field);

/* Adds a text with one number to a buffer. */
void gen_options_add_text(lua_State *L, luaL_Buffer *buffer, const char *format, int number);

#endif
