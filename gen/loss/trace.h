/* trace.h: what the files that trace a loss share. */
#ifndef FLPGEN_TRACE_H
#define FLPGEN_TRACE_H

#include "gen/lang/state.h"

/* Adds the words of losses to the table at index environment, and the metatable of their values. */
void gen_loss_value_open(lua_State *L, int environment);
/* Pushes a value: a node of the program that is traced. */
void gen_loss_push_node(lua_State *L, uint16_t node);
/* True, with *out, if the Lua object is a value. */
bool gen_loss_test(lua_State *L, int arg, uint16_t *out);
/* The node of a value, or of a Lua number made a constant; what names the argument in the error raised elsewhere. */
uint16_t gen_loss_node_of(lua_State *L, int arg, bool condition, const char *what);
/* "a value", "a condition", "table", ... for messages; borrowed. */
const char *gen_loss_describe(lua_State *L, int arg);

#endif
