/* spec.h: what templates read of the kernel that is asked for. */
#ifndef FLPGEN_SPEC_H
#define FLPGEN_SPEC_H

#include <lua.h>

#include "runtime/kernel/kernel.h"

/* Pushes `spec`: the fields of the key. */
void gen_spec_push(lua_State *L);
/* Pushes `k.abi`: the constants of runtime/kernel/abi.h. */
void gen_spec_push_abi(lua_State *L);

/* The fields of flp_tunables; the first is the schedule, which templates know by name. */
enum { GEN_TUNABLES = 6, GEN_SCHEDULES = FLP_SCHEDULE_COOPERATIVE + 1 };
typedef struct gen_tunable {
  const char *name;
  size_t offset;
} gen_tunable;
extern const gen_tunable gen_tunables[GEN_TUNABLES];
extern const char *const gen_schedules[GEN_SCHEDULES]; /* by flp_schedule; NULL for 0 */

#endif
