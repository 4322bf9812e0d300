/* budget.c: the memory of a Lua state, the hook that counts its steps, and calls into it.
 *
 * A step of the VM may work on a whole string (a comparison), chain (a key of a table) or stack: the sizes of these are
 * bounded, so that a step is. */
#include "gen/lang/budget.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

enum { HOOK_STEPS = 1 << 10, DEPTH_MAX = 1000 };
enum { STEP_BYTES = 16 }; /* that are made, or visited, in the time of a step */
enum { MEMORY_MIB = 64, BLOCK_KIB = 256, STRING_KIB = 16, MESSAGE_BYTES_MAX = 4096 };

void gen_budget_explain(const gen_state *g, const char *where, char *error, size_t capacity) {
  char text[160];
  if (gen_state_is_spent(g))
    gen_state_say_spent(g, text, sizeof text);
  else
    snprintf(text, sizeof text,
             "the %s needs more memory than it may have: %d MiB, %d KiB in a table, %d KiB in a string",
             gen_state_noun(g), MEMORY_MIB, BLOCK_KIB, STRING_KIB);
  snprintf(error, capacity, "%s: %s", where, text);
}

/* Of a new block, old_bytes is the type of the object that it is for. */
static bool is_too_large(const gen_state *g, bool is_new, size_t old_bytes, size_t new_bytes) {
  if (is_new && old_bytes == LUA_TSTRING && new_bytes > (STRING_KIB << 10) + MESSAGE_BYTES_MAX) return true;
  return new_bytes > BLOCK_KIB << 10 || g->lua_bytes - (is_new ? 0 : old_bytes) + new_bytes > (size_t)MEMORY_MIB << 20;
}

/* Where it gives nothing, Lua collects its garbage, visiting all that it has, and asks once more. */
static void *allocate(void *user, void *block, size_t old_bytes, size_t new_bytes) {
  gen_state *g = user;
  size_t had = block ? old_bytes : 0;
  if (new_bytes == 0) {
    free(block);
    g->lua_bytes -= had;
    return NULL;
  }
  if (new_bytes > had) {
    g->lua_steps += new_bytes / STEP_BYTES;
    bool is_refused = is_too_large(g, !block, old_bytes, new_bytes);
    if (is_refused) g->lua_steps += g->lua_bytes / STEP_BYTES;
    if (is_refused || (new_bytes > MESSAGE_BYTES_MAX && gen_state_is_spent(g))) return NULL;
  }
  void *result = realloc(block, new_bytes);
  if (result) g->lua_bytes = g->lua_bytes - had + new_bytes;
  return result;
}

static void count_steps(lua_State *L, lua_Debug *activation) {
  lua_Debug deepest;
  (void)activation;
  gen_state_pay(L, HOOK_STEPS);
  if (lua_getstack(L, DEPTH_MAX, &deepest)) gen_fail(L, "stack overflow: calls nest deeper than %d", (int)DEPTH_MAX);
}

lua_State *gen_budget_open(gen_state *g) {
  lua_State *L = lua_newstate(allocate, g);
  if (!L) return NULL;
  *(gen_state **)lua_getextraspace(L) = g;
  lua_sethook(L, count_steps, LUA_MASKCOUNT, HOOK_STEPS);
  return L;
}

int gen_budget_call(gen_state *g, int arguments) {
  locale_t plain = newlocale(LC_ALL_MASK, "C", NULL), before = uselocale(plain); /* Lua compares and prints by it */
  gen_state_start_clock(g);
  int result = lua_pcall(g->lua, arguments, 0, 0);
  uselocale(before);
  if (plain) freelocale(plain);
  return result;
}
