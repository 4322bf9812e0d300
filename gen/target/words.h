/* words.h: the words of templates that are NVIDIA's: each function adds some to the table at index words.
 *
 * All inline PTX and every NVPTX intrinsic stands in the files behind this header. */
#ifndef FLPGEN_TARGET_WORDS_H
#define FLPGEN_TARGET_WORDS_H

#include "gen/lang/state.h"

void gen_kernel_open(lua_State *L, int words);
void gen_nvptx_open(lua_State *L, int words);
void gen_plain_open(lua_State *L, int words);
void gen_shared_open(lua_State *L, int words);
void gen_sm90a_open(lua_State *L, int words);
void gen_sm100f_open(lua_State *L, int words);
void gen_terms_open(lua_State *L, int words);

/* Raises unless every entry that the key's kind needs was defined. */
void gen_kernel_finish(lua_State *L, const char *file);
/* The state inside a kernel body for an architecture that has the word, first or second (NULL: no other); word names
 * the caller in the error raised elsewhere. */
gen_state *gen_building_for(lua_State *L, const char *word, const char *first, const char *second);

#endif
