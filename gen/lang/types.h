/* types.h: the types of kernel values, and what a value is. */
#ifndef FLPGEN_TYPES_H
#define FLPGEN_TYPES_H

#include "gen/lang/state.h"

typedef enum gen_class {
  GEN_INT = 1,    /* i1 to i64 */
  GEN_FLOAT = 2,  /* f32, f64: arithmetic */
  GEN_STORED = 4, /* f16, bf16: loads, stores and conversions only */
  GEN_ADDRESS = 8 /* ptr */
} gen_class;

typedef struct gen_type_info {
  const char *name;
  gen_class class;
  unsigned bits; /* of a register; memory rounds up to bytes */
} gen_type_info;

extern const gen_type_info gen_types[GEN_TYPE_COUNT];

typedef struct gen_value {
  LLVMValueRef ref;
  gen_type type;
  uint32_t region;
} gen_value;

/* The metatables of both in Lua's registry. */
extern const char gen_type_metatable[], gen_value_metatable[];

void gen_types_push(lua_State *L, gen_type type);
gen_type gen_types_check(lua_State *L, int arg, const char *what);
void gen_types_init(gen_state *g);
/* True, with *out, if the Lua object is a type. */
bool gen_types_test(lua_State *L, int arg, gen_type *out);

/* "f32", "number", "table", ... for messages; borrowed. */
const char *gen_describe(lua_State *L, int arg);
/* A string, borrowed; NULL for anything else and for one with a byte 0, behind which C would see nothing. */
const char *gen_text(lua_State *L, int arg);
/* As gen_text, "" in place of NULL. */
const char *gen_word(lua_State *L, int arg);

#endif
