/* llvm_names.c: see llvm_names.h. LLVM itself takes the number 0, which it gives for a name that it does not know. */
#include "gen/lang/llvm_names.h"

#include <string.h>

static _Noreturn void fail_unknown(gen_state *g, const char *kind, const char *name) {
  unsigned major, minor, patch;
  LLVMGetVersion(&major, &minor, &patch);
  gen_fail(g->lua, "LLVM %u.%u.%u has no %s %s", major, minor, patch, kind, name);
}

unsigned gen_llvm_intrinsic(gen_state *g, const char *name, bool is_overloaded) {
  unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
  if (!id || (LLVMIntrinsicIsOverloaded(id) != 0) != is_overloaded)
    fail_unknown(g, is_overloaded ? "overloaded intrinsic" : "intrinsic", name);
  return id;
}

unsigned gen_llvm_attribute(gen_state *g, const char *name) {
  unsigned kind = LLVMGetEnumAttributeKindForName(name, strlen(name));
  if (!kind) fail_unknown(g, "attribute", name);
  return kind;
}
