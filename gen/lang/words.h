/* words.h: the words of templates that every machine has: each function adds some to the table at index words. */
#ifndef FLPGEN_LANG_WORDS_H
#define FLPGEN_LANG_WORDS_H

#include <lua.h>

void gen_types_open(lua_State *L, int words); /* k.i32 and the rest */
void gen_value_open(lua_State *L, int words); /* k.const, and the metatable of values */
void gen_arith_open(lua_State *L, int words); /* behind gen_value_open, whose metatable gets the operators */
void gen_convert_open(lua_State *L, int words);
void gen_control_open(lua_State *L, int words);
void gen_memory_open(lua_State *L, int words);

#endif
