/* nested.h: nested tables of values as flat lists. */
#ifndef FLPGEN_NESTED_H
#define FLPGEN_NESTED_H

#include "gen/lang/types.h"

/* Number of values in the state at arg: a value, or tables of values and tables; 0 for nil. */
int gen_nested_count(lua_State *L, int arg);
/* The values in their fixed order; out has room for gen_nested_count of them. */
void gen_nested_flatten(lua_State *L, int arg, gen_value *out);
/* The values of the object at arg, which must have the shape of the one at index shape and the types of like. */
void gen_nested_match(lua_State *L, int shape, int arg, const gen_value *like, gen_value *out);
/* Pushes an object of that shape holding these values, now of the current region. */
void gen_nested_push(lua_State *L, int shape, const gen_value *values);

#endif
