/* internal.h: what the files of the generator share, divided by the file that implements it.
 *
 * Invariants: one gen_state owns the LLVM context, module and builder and every C allocation of one generation, so
 * that an error may longjmp out of any template; it is freed after lua_pcall has returned. Lua finds it in the extra
 * space of its state. A gen_value is usable only in its region (a kernel body, a loop body, an arm) and the regions
 * inside it, so every use dominates by construction. */
#ifndef FLPGEN_INTERNAL_H
#define FLPGEN_INTERNAL_H

#include <lauxlib.h>
#include <llvm-c/Core.h>
#include <llvm-c/TargetMachine.h>
#include <lua.h>
#include <stdbool.h>

#include "gen/gen.h"
#include "gen/sources/sources.h"

/* ---- arch.c ---- */

typedef struct gen_arch {
  const char *name;     /* as in the key: "sm_80" */
  const char *cpu;      /* what LLVM calls it, or the newest older one that LLVM knows */
  const char *features; /* lowest PTX version that the cpu accepts */
  const char *folder;   /* templates that replace the portable ones of the same name: "" or "sm_90a/" */
} gen_arch;

/* NULL if the architecture has no templates. */
const gen_arch *gen_arch_find(const char *name);
/* "sm_80, sm_86, ..." for messages. */
void gen_arch_list(char *out, size_t capacity);

/* ---- types.c ---- */

typedef enum gen_type {
  GEN_I1,
  GEN_I8,
  GEN_I16,
  GEN_I32,
  GEN_I64,
  GEN_F16,
  GEN_BF16,
  GEN_F32,
  GEN_F64,
  GEN_PTR,
  GEN_TYPE_COUNT
} gen_type;

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

/* ---- gen.c: one generation ---- */

typedef struct gen_state {
  const flp_kernel_key *key;
  const gen_arch *arch;
  const char *template_dir; /* or NULL: embedded */
  flp_kernel_desc *desc;
  const flp_loss *loss; /* that the module computes, or NULL */
  flp_loss *traced;     /* that is being traced (loss.c), or NULL */

  lua_State *lua;
  size_t lua_bytes;       /* in use, see sandbox.c */
  uint64_t lua_steps;     /* VM instructions run, and what else took as long */
  char *text;             /* template being loaded */
  flp_status fail_status; /* what a Lua error means; 0: COMPILE */

  LLVMContextRef context;
  LLVMModuleRef module;
  LLVMBuilderRef builder;
  LLVMTypeRef types[GEN_TYPE_COUNT];
  LLVMValueRef shared;   /* the dynamic shared memory array, made on first use */
  LLVMValueRef function; /* of the kernel being built, or NULL */
  uint32_t threads;      /* of that kernel */
  uint32_t values;       /* built so far */

  uint32_t *region_parent; /* by region id; 0 is the region of constants */
  uint32_t region_count, region_capacity, region;
  char diagnostic[512]; /* first LLVM error */
} gen_state;

gen_state *gen_state_get(lua_State *L);
/* The state inside a kernel body; word names the caller in the error raised elsewhere. */
gen_state *gen_building(lua_State *L, const char *word);

/* ---- sandbox.c ---- */

/* Raises "file.lua:LINE: message" at the innermost template line. */
_Noreturn void gen_fail(lua_State *L, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Opens a state whose memory and running time are bounded. NULL if memory ran out. */
lua_State *gen_sandbox_open(gen_state *g);
/* Counts steps that a template's call took outside the VM. Raises an error once it has none left. */
void gen_sandbox_pay(lua_State *L, uint64_t steps);
bool gen_sandbox_is_spent(const gen_state *g);
/* Says why Lua had no memory: "<where>: the <what> needs more memory than a template may have", or no steps left. */
void gen_sandbox_explain(const gen_state *g, const char *where, const char *what, char *error, size_t capacity);
/* Leaves the environment of templates on the stack: base, math, string, table. Called once, under lua_pcall. */
void gen_sandbox_push(lua_State *L);
/* Replaces the table on the top by a read-only view; reading a missing field raises "<what> has no <noun> 'x'". */
void gen_sandbox_freeze(lua_State *L, const char *what, const char *noun);

/* ---- order.c ---- */

/* Pushes an array of the keys of the table at index in their fixed order: 1 to n, other numbers, strings, booleans. */
void gen_order_keys(lua_State *L, int index);
/* The first key of the table that is not in the list, which ends with NULL; NULL if all are. Leaves values behind. */
const char *gen_order_unknown_key(lua_State *L, int index, const char *const *known);
/* Raises "<what>: unknown field 'x'" for such a key. */
void gen_order_refuse_unknown(lua_State *L, int index, const char *const *known, const char *what);
/* pairs() in that order, and table.sort with ties kept in order. */
int gen_order_pairs(lua_State *L);
int gen_order_sort(lua_State *L);

/* ---- template.c ---- */

/* Generates every kernel of the module that the key names: the whole of one run under lua_pcall. */
int gen_template_main(lua_State *L);
/* Takes the table on the top as what files see. They load from g->text: linted, and blind to anything else. */
void gen_template_environment(lua_State *L);
void gen_template_load(lua_State *L, const char *file, size_t length);

/* ---- lint.c ---- */

/* Finds truth tests and comparisons that a kernel value, or in a loss file a value of a row, cannot take part in.
 * Returns 0, or the line of the first fault with a message. */
int gen_lint_check(const char *text, size_t length, bool is_loss, char *message, size_t capacity);

/* ---- types.c ---- */

void gen_types_open(lua_State *L, int words); /* adds k.i32 and the rest to the table at index words */
void gen_types_push(lua_State *L, gen_type type);
gen_type gen_types_check(lua_State *L, int arg, const char *what);
void gen_types_init(gen_state *g);
/* True, with *out, if the Lua object is a type. */
bool gen_types_test(lua_State *L, int arg, gen_type *out);

/* ---- value.c ---- */

typedef struct gen_value {
  LLVMValueRef ref;
  gen_type type;
  uint32_t region;
} gen_value;

void gen_value_open(lua_State *L, int words);
/* Pushes a value of the current region; constants belong to region 0. */
void gen_value_push(lua_State *L, gen_type type, LLVMValueRef ref);
bool gen_value_test(lua_State *L, int arg, gen_value *out); /* checks the region too */
bool gen_value_is(lua_State *L, int arg);                   /* whatever its region */
gen_value gen_value_check(lua_State *L, int arg, const char *what);
/* A value of exactly this type, or a number or boolean made one. */
LLVMValueRef gen_value_of(lua_State *L, int arg, gen_type type, const char *what);
/* i32 or i64 as i64, or an integer; for indices and byte offsets. */
LLVMValueRef gen_value_index(lua_State *L, int arg, const char *what);
/* Two operands of one type, at least one of them a value. */
gen_type gen_value_pair(lua_State *L, int a, int b, const char *what, LLVMValueRef out[2]);
LLVMValueRef gen_value_constant(lua_State *L, int arg, gen_type type, const char *what);
/* "f32", "number", "table", ... for messages; borrowed. */
const char *gen_value_describe(lua_State *L, int arg);
/* A Lua integer in [low, high]. */
lua_Integer gen_value_integer(lua_State *L, int arg, lua_Integer low, lua_Integer high, const char *what);
/* n values of one type from the array at arg; numbers are taken too. */
void gen_value_array(lua_State *L, int arg, gen_type type, int n, const char *what, LLVMValueRef *out);
/* Pushes an array of n values of one type from an LLVM struct. */
void gen_value_push_struct(lua_State *L, gen_type type, LLVMValueRef aggregate, unsigned n);

void gen_region_enter(lua_State *L);
void gen_region_leave(gen_state *g);

/* ---- arith.c, convert.c ---- */

void gen_arith_open(lua_State *L, int words);
void gen_arith_operators(lua_State *L, int metatable);
void gen_convert_open(lua_State *L, int words);

/* ---- nested.c: nested tables of values as flat lists ---- */

/* Number of values in the state at arg: a value, or tables of values and tables; 0 for nil. */
int gen_nested_count(lua_State *L, int arg);
/* The values in their fixed order; out has room for gen_nested_count of them. */
void gen_nested_flatten(lua_State *L, int arg, gen_value *out);
/* The values of the object at arg, which must have the shape of the one at index shape and the types of like. */
void gen_nested_match(lua_State *L, int shape, int arg, const gen_value *like, gen_value *out);
/* Pushes an object of that shape holding these values, now of the current region. */
void gen_nested_push(lua_State *L, int shape, const gen_value *values);

/* ---- control.c, kernel.c, memory.c ---- */

void gen_control_open(lua_State *L, int words);
void gen_kernel_open(lua_State *L, int words);
void gen_memory_open(lua_State *L, int words);
/* Raises unless every entry that the key's kind needs was defined. */
void gen_kernel_finish(lua_State *L, const char *file);

/* ---- nvptx.c, nvptx_sm90a.c, nvptx_terms.c: all inline PTX and every NVPTX intrinsic ---- */

enum { GEN_ASM_CONVERGENT = 1, GEN_ASM_SIDE_EFFECT = 2 };

typedef struct gen_asm {
  const char *text, *constraints;
  int flags; /* without GEN_ASM_SIDE_EFFECT it reads and writes no memory */
} gen_asm;

void gen_nvptx_open(lua_State *L, int words);
void gen_sm90a_open(lua_State *L, int words);
void gen_terms_open(lua_State *L, int words);
/* The state inside a kernel body for sm_90a; word names the caller in the error raised elsewhere. */
gen_state *gen_sm90a_building(lua_State *L, const char *word);
/* Calls inline PTX with at most GEN_ASM_ARGS_MAX arguments. result: NULL for none */
enum { GEN_ASM_ARGS_MAX = 288 };
LLVMValueRef gen_nvptx_asm(gen_state *g, const gen_asm *a, LLVMTypeRef result, LLVMValueRef *args, unsigned count);
/* A struct of n (at most 256) elements of one type, as inline PTX returns them. */
LLVMTypeRef gen_nvptx_struct(gen_state *g, gen_type type, unsigned n);
/* Calls an LLVM intrinsic; overload NULL if the name is not overloaded. */
LLVMValueRef gen_nvptx_call(gen_state *g, const char *name, LLVMTypeRef overload, LLVMValueRef *args, unsigned count);
/* Shared memory by 32-bit byte address; types of 8 to 64 bits. */
LLVMValueRef gen_nvptx_shared_load(gen_state *g, gen_type type, LLVMValueRef address);
void gen_nvptx_shared_store(gen_state *g, gen_type type, LLVMValueRef address, LLVMValueRef value);
/* n (2 or 4) neighbouring words of type i32 or f32, aligned to all of them: loaded as a struct, or stored. */
LLVMValueRef gen_nvptx_shared_load_vector(gen_state *g, gen_type type, unsigned n, LLVMValueRef address);
void gen_nvptx_shared_store_vector(gen_state *g, gen_type type, unsigned n, LLVMValueRef address,
                                   const LLVMValueRef *values);

/* ---- loss/push.c ---- */

/* Pushes a loss program as the table that templates/loss.lua reads. */
void gen_loss_push(lua_State *L, const flp_loss *loss);
/* Pushes what templates/loss_any.lua has to know of the operations of programs. */
void gen_loss_push_operations(lua_State *L);

/* ---- emit.c ---- */

flp_status gen_emit_open(gen_state *g);
void gen_emit_close(gen_state *g);
/* Verifies, optimises and emits; fills ptx and, if asked for, the IR before and after the passes. */
flp_status gen_emit_run(gen_state *g, const flpgen_options *options, flpgen_result *out, char *error,
                        size_t error_capacity);

#endif
