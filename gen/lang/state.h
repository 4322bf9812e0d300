/* state.h: what one generation owns, and how it fails.
 *
 * Invariants: one gen_state owns the LLVM context, module and builder and every C allocation of one generation, so
 * that an error may longjmp out of any template; it is freed after lua_pcall has returned. Lua finds it in the extra
 * space of its state. A gen_value is usable only in its region (a kernel body, a loop body, an arm) and the regions
 * inside it, so every use dominates by construction. */
#ifndef FLPGEN_STATE_H
#define FLPGEN_STATE_H

#include <lauxlib.h>
#include <llvm-c/Core.h>
#include <lua.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/kernel/kernel.h"
#include "runtime/loss/loss.h"

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

typedef struct gen_state {
  const flp_kernel_key *key;
  const struct gen_arch *arch; /* target/arch.h */
  const char *template_dir;    /* or NULL: embedded */
  flp_kernel_desc *desc;
  const flp_loss *loss; /* that the module computes, or NULL */
  flp_loss *traced;     /* that is being traced (loss/loss.c), or NULL */

  lua_State *lua;
  size_t lua_bytes;                   /* in use, see budget.c */
  uint64_t lua_steps;                 /* VM instructions run, and what else took as long */
  double wall_start, processor_start; /* seconds, when Lua was called */
  bool is_late;                       /* it took longer than it may */
  char *text;                         /* template being loaded */
  char file[96];                      /* the module's own template, for messages; "" until it was found */
  flp_status fail_status;             /* what a Lua error means; 0: COMPILE */

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

/* Raises "file.lua:LINE: message" at the innermost template line. */
_Noreturn void gen_fail(lua_State *L, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What a file may take. Steps end it on every machine at the same place; a step in the VM takes a few nanoseconds, so
 * the seconds are for what takes far longer. They are of the thread, not on the wall: a busy machine does not matter.
 * The largest template of the tree takes 100 thousand steps and 10 ms, the largest loss 6 thousand steps. */
enum { GEN_TEMPLATE_STEPS_MAX = 20 * 1000 * 1000, GEN_LOSS_STEPS_MAX = 2 * 1000 * 1000, GEN_SECONDS_MAX = 10 };
enum { GEN_FILE_BYTES_MAX = 64 << 10 };

void gen_state_start_clock(gen_state *g);
/* Counts steps that a file's call took outside the VM, and looks at the clock. Raises an error if too much is taken. */
void gen_state_pay(lua_State *L, uint64_t steps);
/* Whether steps or seconds are spent; for good. */
bool gen_state_is_spent(const gen_state *g);
/* "the loss ran 20000000 steps without an end", or took so many seconds. */
void gen_state_say_spent(const gen_state *g, char *out, size_t capacity);
/* "loss" or "template". */
const char *gen_state_noun(const gen_state *g);

#endif
