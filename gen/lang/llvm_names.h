/* llvm_names.h: numbers of LLVM's intrinsics and attributes, which are known by name alone and differ between versions. */
#ifndef FLPGEN_LLVM_NAMES_H
#define FLPGEN_LLVM_NAMES_H

#include "gen/lang/state.h"

/* Raises an error that names the intrinsic if this LLVM has none of that name and kind. */
unsigned gen_llvm_intrinsic(gen_state *g, const char *name, bool is_overloaded);
/* Raises an error that names the attribute if this LLVM has none of that name. */
unsigned gen_llvm_attribute(gen_state *g, const char *name);

#endif
