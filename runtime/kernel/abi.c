/* abi.c: the tables behind abi.h, expanded from its lists. */
#include "runtime/kernel/abi.h"

#include <string.h>

/* By kind of parameter: its letter, its type and who fills it. */
#define LETTER_ptr "p"
#define LETTER_i64 "l"
#define LETTER_i32 "i"
#define LETTER_f32 "f"
#define LETTER_f64 "d"
#define LETTER_map "m"
#define LETTER_region LETTER_ptr
#define LETTER_region_or_null LETTER_ptr
#define TYPE_ptr FLP_ABI_PTR
#define TYPE_i64 FLP_ABI_I64
#define TYPE_i32 FLP_ABI_I32
#define TYPE_f32 FLP_ABI_F32
#define TYPE_f64 FLP_ABI_F64
#define TYPE_map FLP_ABI_MAP
#define TYPE_region FLP_ABI_PTR
#define TYPE_region_or_null FLP_ABI_PTR
#define GIVEN(name) FLP_ABI_GIVEN, (uint32_t)offsetof(GIVEN_STRUCT, name)
#define SOURCE_ptr GIVEN
#define SOURCE_i64 GIVEN
#define SOURCE_i32 GIVEN
#define SOURCE_f32 GIVEN
#define SOURCE_f64 GIVEN
#define SOURCE_map GIVEN
#define SOURCE_region(name) FLP_ABI_REGION, FLP_REGION_##name
#define SOURCE_region_or_null(name) FLP_ABI_REGION_OR_NULL, FLP_REGION_##name

#define LETTER(kind, name) LETTER_##kind
#define PARAM(kind, name) {#name, TYPE_##kind, (uint32_t)offsetof(STRUCT, name), SOURCE_##kind(name)},

/* A function an entry, so that the names of its structs are known where its list is expanded. */
#define ENTRY(entry, LIST)                                                                                  \
  static const flp_abi_entry *entry##_entry(void) {                                                         \
    typedef flp_##entry##_params STRUCT;                                                                    \
    typedef flp_##entry##_given GIVEN_STRUCT __attribute__((unused));                                       \
    static const flp_abi_param params[] = {LIST(PARAM)};                                                    \
    static const flp_abi_entry self = {FLP_ENTRY_##entry, #entry, params, sizeof params / sizeof params[0], \
                                       "" LIST(LETTER)};                                                    \
    return &self;                                                                                           \
  }
FLP_ENTRY_LIST(ENTRY)

const flp_abi_entry *flp_abi_find(const char *name) {
#define FUNCTION(entry, LIST) entry##_entry,
  static const flp_abi_entry *(*const entries[])(void) = {FLP_ENTRY_LIST(FUNCTION)};
  for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
    if (strcmp(entries[i]()->name, name) == 0) return entries[i]();
  return NULL;
}
