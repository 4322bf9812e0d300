/* order.h: the one order in which templates see the keys of a table. */
#ifndef FLPGEN_ORDER_H
#define FLPGEN_ORDER_H

#include <lua.h>

/* Pushes an array of the keys of the table at index in their fixed order: 1 to n, other numbers, strings, booleans. */
void gen_order_keys(lua_State *L, int index);
/* The first key of the table that is not in the list, which ends with NULL; NULL if all are. Leaves values behind. */
const char *gen_order_unknown_key(lua_State *L, int index, const char *const *known);
/* Raises "<what>: unknown field 'x'; accepted are ..." for such a key. */
void gen_order_refuse_unknown(lua_State *L, int index, const char *const *known, const char *what);
/* pairs() in that order, and table.sort with ties kept in order. */
int gen_order_pairs(lua_State *L);
int gen_order_sort(lua_State *L);

#endif
