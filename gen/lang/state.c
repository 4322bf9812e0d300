/* state.c: the state of a generation as C functions that Lua calls find it, its errors, and its steps and time. */
#include "gen/lang/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

gen_state *gen_state_get(lua_State *L) {
  return *(gen_state **)lua_getextraspace(L);
}

enum { STEPS_A_WORD = 8 }; /* that the instructions of a word take as long as, with what LLVM makes of them */

gen_state *gen_building(lua_State *L, const char *word) {
  gen_state *g = gen_state_get(L);
  if (!g->function) gen_fail(L, "%s: only inside the body of a kernel", word);
  gen_state_pay(L, STEPS_A_WORD);
  return g;
}

void gen_fail(lua_State *L, const char *format, ...) {
  char message[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  lua_Debug where;
  for (int level = 0; lua_getstack(L, level, &where); level++) {
    lua_getinfo(L, "Sl", &where);
    if (where.currentline <= 0) continue;
    lua_pushfstring(L, "%s:%d: %s", where.short_src, where.currentline, message);
    lua_error(L);
  }
  lua_pushstring(L, message);
  lua_error(L);
  abort(); /* not reached: lua_error does not return */
}

/* ---- what a file may take ---- */

static double seconds_of(clockid_t clock) {
  struct timespec now = {0};
  clock_gettime(clock, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void gen_state_start_clock(gen_state *g) {
  g->wall_start = seconds_of(CLOCK_MONOTONIC);
  g->processor_start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
  g->is_late = false;
}

/* No thread takes more of a processor than of the clock on the wall, which is cheap to read. */
static bool is_late(const gen_state *g) {
  return seconds_of(CLOCK_MONOTONIC) - g->wall_start > GEN_SECONDS_MAX &&
         seconds_of(CLOCK_THREAD_CPUTIME_ID) - g->processor_start > GEN_SECONDS_MAX;
}

static uint64_t steps_max(const gen_state *g) {
  return g->traced ? GEN_LOSS_STEPS_MAX : GEN_TEMPLATE_STEPS_MAX;
}

bool gen_state_is_spent(const gen_state *g) {
  return g->is_late || g->lua_steps > steps_max(g);
}

const char *gen_state_noun(const gen_state *g) {
  return g->traced ? "loss" : "template";
}

void gen_state_say_spent(const gen_state *g, char *out, size_t capacity) {
  if (g->lua_steps > steps_max(g))
    snprintf(out, capacity, "the %s ran %d steps without an end", gen_state_noun(g), (int)steps_max(g));
  else
    snprintf(out, capacity, "the %s took %d seconds of a processor without an end", gen_state_noun(g),
             (int)GEN_SECONDS_MAX);
}

void gen_state_pay(lua_State *L, uint64_t steps) {
  gen_state *g = gen_state_get(L);
  g->lua_steps += steps < steps_max(g) ? steps : steps_max(g) + 1;
  g->is_late = g->is_late || is_late(g);
  if (!gen_state_is_spent(g)) return;
  char text[128];
  gen_state_say_spent(g, text, sizeof text);
  gen_fail(L, "%s", text);
}
