/* call.h: calls of LLVM intrinsics and of inline PTX. */
#ifndef FLPGEN_CALL_H
#define FLPGEN_CALL_H

#include "gen/lang/state.h"

enum { GEN_ASM_CONVERGENT = 1, GEN_ASM_SIDE_EFFECT = 2 };

typedef struct gen_asm {
  const char *text, *constraints;
  int flags; /* without GEN_ASM_SIDE_EFFECT it reads and writes no memory */
} gen_asm;

/* Calls inline PTX with at most GEN_ASM_ARGS_MAX arguments. result: NULL for none */
enum { GEN_ASM_ARGS_MAX = 288 };
LLVMValueRef gen_call_asm(gen_state *g, const gen_asm *a, LLVMTypeRef result, LLVMValueRef *args, unsigned count);
/* A struct of n (at most 256) elements of one type, as inline PTX returns them. */
LLVMTypeRef gen_call_struct(gen_state *g, gen_type type, unsigned n);
/* Calls an LLVM intrinsic; overload NULL if the name is not overloaded. */
LLVMValueRef gen_call_intrinsic(gen_state *g, const char *name, LLVMTypeRef overload, LLVMValueRef *args,
                                unsigned count);

#endif
