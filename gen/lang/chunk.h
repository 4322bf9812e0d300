/* chunk.h: the text of a template or a loss as a Lua function. */
#ifndef FLPGEN_CHUNK_H
#define FLPGEN_CHUNK_H

#include <lua.h>
#include <stddef.h>

/* Takes the table on the top as what files see. */
void gen_chunk_environment(lua_State *L);
/* Pushes that table. */
void gen_chunk_push_environment(lua_State *L);
/* Pushes the function of the file whose text is g->text: linted, and blind to anything but the environment. */
void gen_chunk_load(lua_State *L, const char *file, size_t length);

#endif
