/* test_gen_llvm_names.c: what another LLVM does not know is an error that names it. The LLVM here is a stand-in, which
 * knows nothing but llvm.known, llvm.overloaded and the attribute cold. */
#include <criterion/criterion.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include "gen/lang/llvm_names.c"

static jmp_buf failed;
static char message[128];

void gen_fail(lua_State *L, const char *format, ...) {
  (void)L;
  va_list list;
  va_start(list, format);
  vsnprintf(message, sizeof message, format, list);
  va_end(list);
  longjmp(failed, 1);
}

unsigned LLVMLookupIntrinsicID(const char *name, size_t length) {
  return strncmp(name, "llvm.known", length) == 0 ? 1 : strncmp(name, "llvm.overloaded", length) == 0 ? 2 : 0;
}

LLVMBool LLVMIntrinsicIsOverloaded(unsigned id) {
  cr_assert_neq(id, 0, "the number of no intrinsic is used");
  return id == 2;
}

unsigned LLVMGetEnumAttributeKindForName(const char *name, size_t length) {
  return strncmp(name, "cold", length) == 0 ? 3 : 0;
}

void LLVMGetVersion(unsigned *major, unsigned *minor, unsigned *patch) {
  *major = 99;
  *minor = 1;
  *patch = 2;
}

static gen_state state;

#define EXPECT_FAILS(call, text)                   \
  do {                                             \
    message[0] = 0;                                \
    if (setjmp(failed) == 0) (void)(call);         \
    cr_expect_str_eq(message, text);               \
  } while (0)

Test(gen_llvm_names, what_is_known_has_its_number) {
  cr_expect_eq(gen_llvm_intrinsic(&state, "llvm.known", false), 1);
  cr_expect_eq(gen_llvm_intrinsic(&state, "llvm.overloaded", true), 2);
  cr_expect_eq(gen_llvm_attribute(&state, "cold"), 3);
}

Test(gen_llvm_names, what_is_not_is_named) {
  EXPECT_FAILS(gen_llvm_intrinsic(&state, "llvm.none", false), "LLVM 99.1.2 has no intrinsic llvm.none");
  EXPECT_FAILS(gen_llvm_intrinsic(&state, "llvm.known", true), "LLVM 99.1.2 has no overloaded intrinsic llvm.known");
  EXPECT_FAILS(gen_llvm_intrinsic(&state, "llvm.overloaded", false), "LLVM 99.1.2 has no intrinsic llvm.overloaded");
  EXPECT_FAILS(gen_llvm_attribute(&state, "hot"), "LLVM 99.1.2 has no attribute hot");
}
