/* spec.h: what templates read of the kernel that is asked for. */
#ifndef FLPGEN_SPEC_H
#define FLPGEN_SPEC_H

#include <lua.h>

/* Pushes `spec`: the fields of the key. */
void gen_spec_push(lua_State *L);
/* Pushes `k.abi`: the constants of runtime/kernel/abi.h. */
void gen_spec_push_abi(lua_State *L);

#endif
