/* value.h: kernel values as Lua objects, and how arguments of words become them. */
#ifndef FLPGEN_VALUE_H
#define FLPGEN_VALUE_H

#include "gen/lang/types.h"

/* Pushes a value of the current region; constants belong to region 0. */
void gen_value_push(lua_State *L, gen_type type, LLVMValueRef ref);
bool gen_value_test(lua_State *L, int arg, gen_value *out); /* checks the region too */
bool gen_value_is(lua_State *L, int arg);                   /* whatever its region */
gen_value gen_value_check(lua_State *L, int arg, const char *what);
/* A value of exactly this type, or a number or boolean made one. */
LLVMValueRef gen_value_of(lua_State *L, int arg, gen_type type, const char *what);
/* i32 or i64 as i64, or an integer; for indices and byte offsets. */
LLVMValueRef gen_value_index(lua_State *L, int arg, const char *what);
/* Two operands of one type, at least one of them a value. */
gen_type gen_value_pair(lua_State *L, int a, int b, const char *what, LLVMValueRef out[2]);
LLVMValueRef gen_value_constant(lua_State *L, int arg, gen_type type, const char *what);
/* A Lua integer in [low, high]. */
lua_Integer gen_value_integer(lua_State *L, int arg, lua_Integer low, lua_Integer high, const char *what);
/* n values of one type from the array at arg; numbers are taken too. */
void gen_value_array(lua_State *L, int arg, gen_type type, int n, const char *what, LLVMValueRef *out);
/* Pushes an array of n values of one type from an LLVM struct. */
void gen_value_push_struct(lua_State *L, gen_type type, LLVMValueRef aggregate, unsigned n);

void gen_region_enter(lua_State *L);
void gen_region_leave(gen_state *g);

#endif
