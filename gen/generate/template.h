/* template.h: template files, found and run. */
#ifndef FLPGEN_TEMPLATE_H
#define FLPGEN_TEMPLATE_H

#include <lua.h>

/* Generates every kernel of the module that the key names: the whole of one run under lua_pcall. */
int gen_template_main(lua_State *L);

#endif
