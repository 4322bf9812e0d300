/* abi.c: the tables behind abi.h, expanded from its lists. */
#include "runtime/kernel/abi.h"

#include <string.h>

/* By kind of parameter: its type and who fills it. */
#define TYPE_ptr FLP_ABI_PTR
#define TYPE_i64 FLP_ABI_I64
#define TYPE_i32 FLP_ABI_I32
#define TYPE_f32 FLP_ABI_F32
#define TYPE_f64 FLP_ABI_F64
#define TYPE_map FLP_ABI_MAP
#define TYPE_region FLP_ABI_PTR
#define TYPE_region_or_null FLP_ABI_PTR
#define TYPE_arg(type) TYPE_##type
#define TYPE_call(type) TYPE_##type
#define GIVEN(name) FLP_ABI_GIVEN, (uint32_t)offsetof(GIVEN_STRUCT, name)
#define SOURCE_ptr GIVEN
#define SOURCE_i64 GIVEN
#define SOURCE_i32 GIVEN
#define SOURCE_f32 GIVEN
#define SOURCE_f64 GIVEN
#define SOURCE_map GIVEN
#define SOURCE_region(name) FLP_ABI_REGION, FLP_REGION_##name
#define SOURCE_region_or_null(name) FLP_ABI_REGION_OR_NULL, FLP_REGION_##name
/* Where it is a field of another struct: does not compile unless it is as wide there. */
#define PLACE_IN(type, name) \
  (uint32_t)(offsetof(type, name) + 0 * sizeof(char[sizeof(((STRUCT *)0)->name) == sizeof(((type *)0)->name) ? 1 : -1]))
#define ARG(name) FLP_ABI_ARG, PLACE_IN(flp_args, name)
#define CALL(name) FLP_ABI_CALL, PLACE_IN(flp_call_values, name)
#define SOURCE_arg(type) ARG
#define SOURCE_call(type) CALL

#define PARAM(kind, name) {#name, TYPE_##kind, (uint32_t)offsetof(STRUCT, name), SOURCE_##kind(name)},

#define ONE(kind, name) +1
#define COUNT(P, parts, LIST) {parts, 0 LIST(P)},

/* A function an entry, so that the names of its structs are known where its list is expanded. */
#define ENTRY(entry)                                                                     \
  static const flp_abi_entry *entry##_entry(void) {                                      \
    typedef flp_##entry##_params STRUCT;                                                 \
    typedef flp_##entry##_given GIVEN_STRUCT __attribute__((unused));                    \
    static const flp_abi_param params[] = {FLP_PARAMS_##entry(PARAM)};                   \
    static const flp_abi_list lists[] = {{0, sizeof params / sizeof params[0]}, {0, 0}}; \
    static const flp_abi_entry self = {FLP_ENTRY_##entry, #entry, params, 0, lists};     \
    return &self;                                                                        \
  }
FLP_ENTRY_LIST(ENTRY)

/* And one for all sets of parts of forward in one form. */
#define SET(entry, LISTS)                                                             \
  static const flp_abi_entry *entry##_entry(int parts) {                              \
    typedef flp_##entry##_params STRUCT;                                              \
    typedef flp_##entry##_given GIVEN_STRUCT;                                         \
    static const flp_abi_param params[] = {LISTS(FLP_ABI_WHOLE, PARAM)};              \
    static const flp_abi_list lists[] = {LISTS(COUNT, ONE){0, 0}};                    \
    static const flp_abi_entry self[] = {FLP_FORWARD_NAMES(SELF_##entry, "forward")}; \
    return &self[parts];                                                              \
  }
#define SELF_forward(set, name) [set] = {FLP_ENTRY_forward + (set), name, params, set, lists},
#define SELF_forward_map(set, name) [set] = {FLP_ENTRY_forward_map + (set), name "_map", params, set, lists},
SET(forward, FLP_FORWARD_LISTS)
SET(forward_map, FLP_FORWARD_MAP_LISTS)

const flp_abi_entry *flp_abi_of(flp_entry_id id) {
#define FUNCTION(entry) entry##_entry,
  static const flp_abi_entry *(*const entries[])(void) = {FLP_ENTRY_LIST(FUNCTION)};
#undef FUNCTION
  if (id >= FLP_ENTRY_forward_map) return forward_map_entry((int)id - FLP_ENTRY_forward_map);
  return id >= FLP_ENTRY_forward ? forward_entry((int)id - FLP_ENTRY_forward) : entries[id]();
}

const flp_abi_entry *flp_abi_find(const char *name) {
  for (int id = 0; id < FLP_ENTRY_ID_COUNT; id++)
    if (strcmp(flp_abi_of((flp_entry_id)id)->name, name) == 0) return flp_abi_of((flp_entry_id)id);
  return NULL;
}

/* The parameter at `i`, or the next one behind it that is there. */
static const flp_abi_param *param_from(const flp_abi_entry *entry, uint32_t i) {
  uint32_t begin = 0;
  for (const flp_abi_list *list = entry->lists; list->count; begin += list->count, list++) {
    if ((!list->parts || list->parts & entry->parts) && i < begin + list->count)
      return &entry->params[i > begin ? i : begin];
  }
  return NULL;
}

const flp_abi_param *flp_abi_first(const flp_abi_entry *entry) {
  return param_from(entry, 0);
}

const flp_abi_param *flp_abi_next(const flp_abi_entry *entry, const flp_abi_param *param) {
  return param_from(entry, (uint32_t)(param - entry->params) + 1);
}

const char *flp_abi_signature(const flp_abi_entry *entry, char out[FLP_ABI_PARAMS_MAX + 1]) {
  char *end = out;
  for (const flp_abi_param *p = flp_abi_first(entry); p; p = flp_abi_next(entry, p)) *end++ = (char)p->type;
  *end = 0;
  return out;
}
