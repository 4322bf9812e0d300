/* arena_case.h: calls of an arena that must succeed. */
#ifndef FLP_TEST_ARENA_CASE_H
#define FLP_TEST_ARENA_CASE_H

#include <criterion/criterion.h>

#include "runtime/flp.h"

enum { MIB = 1 << 20, BLOCK = 2 * MIB };

static inline flp_arena *open_arena(int device) {
  flp_arena *arena;
  cr_assert_eq(flp_arena_create(device, &arena), FLP_OK, "%s", flp_error_detail());
  return arena;
}

static inline char *take(flp_arena *arena, size_t bytes, void *stream) {
  void *memory;
  cr_assert_eq(flp_arena_take(arena, bytes, stream, &memory), FLP_OK, "%s", flp_error_detail());
  return memory;
}

static inline void give_back(flp_arena *arena, void *memory, void *stream) {
  cr_assert_eq(flp_arena_give_back(arena, memory, stream), FLP_OK, "%s", flp_error_detail());
}

static inline flp_arena_stats stats_of(const flp_arena *arena) {
  flp_arena_stats stats = FLP_ARENA_STATS_INIT;
  cr_assert_eq(flp_arena_get_stats(arena, &stats), FLP_OK);
  return stats;
}

#endif
