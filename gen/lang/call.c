/* call.c: calls of LLVM intrinsics and of inline PTX. */
#include "gen/lang/call.h"

#include <string.h>

#include "gen/lang/llvm_names.h"

/* ---- intrinsics ---- */

LLVMValueRef gen_call_intrinsic(gen_state *g, const char *name, LLVMTypeRef overload, LLVMValueRef *args,
                                unsigned count) {
  unsigned id = gen_llvm_intrinsic(g, name, overload != NULL);
  size_t overloads = overload ? 1 : 0;
  LLVMValueRef function = LLVMGetIntrinsicDeclaration(g->module, id, &overload, overloads);
  LLVMTypeRef type = LLVMIntrinsicGetType(g->context, id, &overload, overloads);
  return LLVMBuildCall2(g->builder, type, function, args, count, "");
}

/* ---- inline PTX ---- */

static void add_attribute(gen_state *g, LLVMValueRef call, const char *name) {
  LLVMAttributeRef attribute = LLVMCreateEnumAttribute(g->context, gen_llvm_attribute(g, name), 0);
  LLVMAddCallSiteAttribute(call, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, attribute);
}

LLVMValueRef gen_call_asm(gen_state *g, const gen_asm *a, LLVMTypeRef result, LLVMValueRef *args, unsigned count) {
  LLVMTypeRef types[GEN_ASM_ARGS_MAX];
  if (!result) result = LLVMVoidTypeInContext(g->context);
  for (unsigned i = 0; i < count; i++) types[i] = LLVMTypeOf(args[i]);
  LLVMTypeRef type = LLVMFunctionType(result, types, count, 0);
  LLVMValueRef code = LLVMGetInlineAsm(type, a->text, strlen(a->text), a->constraints, strlen(a->constraints),
                                       (a->flags & GEN_ASM_SIDE_EFFECT) != 0, 0, LLVMInlineAsmDialectATT, 0);
  LLVMValueRef call = LLVMBuildCall2(g->builder, type, code, args, count, "");
  add_attribute(g, call, "nounwind");
  if (a->flags & GEN_ASM_CONVERGENT) add_attribute(g, call, "convergent");
  if (!(a->flags & GEN_ASM_SIDE_EFFECT)) {
    add_attribute(g, call, "memory"); /* value 0: none */
    add_attribute(g, call, "willreturn");
  }
  return call;
}

LLVMTypeRef gen_call_struct(gen_state *g, gen_type type, unsigned n) {
  LLVMTypeRef elements[256];
  for (unsigned i = 0; i < n; i++) elements[i] = g->types[type];
  return LLVMStructTypeInContext(g->context, elements, n, 0);
}
