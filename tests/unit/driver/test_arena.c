/* test_arena.c: the arena on host memory: what it hands out, reuses, counts and returns. The device's memory calls are
 * tested through the stand-in driver in the second half. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/support/arena_case.h"

/* With AddressSanitizer, malloc of too much must return NULL as it does without. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);

const char *__asan_default_options(void) {
  return "allocator_may_return_null=1";
}

static flp_arena *arena;

static void open_host(void) {
  arena = open_arena(FLP_DEVICE_HOST);
}

static void close_host(void) {
  flp_arena_destroy(arena);
}

TestSuite(arena, .init = open_host, .fini = close_host);

Test(arena, hands_out_aligned_memory_that_does_not_overlap) {
  char *memory[10];
  for (int i = 0; i < 10; i++) {
    memory[i] = take(arena, 1000, NULL);
    cr_expect_eq((uintptr_t)memory[i] % 256, 0);
    memset(memory[i], i, 1000);
  }
  for (int i = 0; i < 10; i++)
    for (int j = 0; j < 1000; j++) cr_assert_eq(memory[i][j], i);
  flp_arena_stats stats = stats_of(arena);
  cr_expect_eq(stats.reserved_bytes, BLOCK);
  cr_expect_eq(stats.allocated_bytes, 10 * 1024, "rounded to 256 each");
  cr_expect_eq(stats.driver_allocations, 1);
}

Test(arena, no_bytes_need_no_memory) {
  cr_expect_null(take(arena, 0, NULL));
  give_back(arena, NULL, NULL);
  cr_expect_eq(stats_of(arena).driver_allocations, 0);
}

Test(arena, best_fit_takes_the_smallest_hole_that_will_do) {
  char *a = take(arena, 4096, NULL), *wall = take(arena, 256, NULL);
  char *b = take(arena, 1024, NULL), *other_wall = take(arena, 256, NULL);
  give_back(arena, a, NULL);
  give_back(arena, b, NULL);
  cr_expect_eq(take(arena, 1000, NULL), b);
  cr_expect_eq(take(arena, 3000, NULL), a);
  cr_expect_eq(take(arena, 1024, NULL), a + 3072, "what was left of the larger hole");
  (void)wall;
  (void)other_wall;
}

Test(arena, free_neighbours_become_one) {
  /* whatever the order in which they come back */
  static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (int i = 0; i < 6; i++) {
    char *parts[3], *wall;
    for (int j = 0; j < 3; j++) parts[j] = take(arena, 1024, NULL);
    wall = take(arena, BLOCK - 3 * 1024, NULL);
    for (int j = 0; j < 3; j++) give_back(arena, parts[orders[i][j]], NULL);
    char *whole = take(arena, 3 * 1024, NULL);
    cr_expect_eq(whole, parts[0], "order %d", i);
    cr_expect_eq(stats_of(arena).driver_allocations, 1);
    give_back(arena, whole, NULL);
    give_back(arena, wall, NULL);
  }
}

Test(arena, statistics_are_exact) {
  char *a = take(arena, MIB, NULL), *b = take(arena, MIB, NULL);
  flp_arena_stats stats = stats_of(arena);
  cr_expect_eq(stats.reserved_bytes, BLOCK);
  cr_expect_eq(stats.allocated_bytes, BLOCK);
  cr_expect_eq(stats.fragmentation_bytes, 0);

  give_back(arena, a, NULL); /* a hole of 1 MiB cannot serve 1.5 MiB: that is fragmentation */
  char *c = take(arena, MIB + MIB / 2, NULL);
  stats = stats_of(arena);
  cr_expect_eq(stats.reserved_bytes, 2 * BLOCK);
  cr_expect_eq(stats.allocated_bytes, MIB + MIB + MIB / 2);
  cr_expect_eq(stats.fragmentation_bytes, MIB);
  cr_expect_eq(stats.driver_allocations, 2);

  give_back(arena, b, NULL);
  give_back(arena, c, NULL);
  stats = stats_of(arena);
  cr_expect_eq(stats.allocated_bytes, 0);
  cr_expect_eq(stats.peak_allocated_bytes, 2 * MIB + MIB / 2);
  cr_expect_eq(stats.fragmentation_bytes, MIB, "as of the last driver allocation");
  cr_expect_eq(stats.peak_fragmentation_bytes, MIB);

  cr_assert_eq(flp_arena_end_phase(arena, NULL), FLP_OK);
  stats = stats_of(arena);
  cr_expect_eq(stats.reserved_bytes, 0);
  cr_expect_eq(stats.fragmentation_bytes, 0);
  cr_expect_eq(stats.peak_reserved_bytes, 2 * BLOCK);
  cr_expect_eq(stats.phases, 1);
  cr_expect_eq(stats.driver_allocations, 2);

  flp_arena_reset_peaks(arena);
  stats = stats_of(arena);
  cr_expect_eq(stats.peak_reserved_bytes, 0);
  cr_expect_eq(stats.peak_allocated_bytes, 0);
  cr_expect_eq(stats.peak_fragmentation_bytes, 0);
}

Test(arena, outgrown_block_makes_way_for_a_larger_one) {
  for (size_t size = MIB; size <= 16 * MIB; size *= 2) give_back(arena, take(arena, size, NULL), NULL);
  flp_arena_stats stats = stats_of(arena);
  cr_expect_eq(stats.reserved_bytes, 16 * MIB, "one block, not the sum of all");
  cr_expect_eq(stats.fragmentation_bytes, 0);
  give_back(arena, take(arena, 3 * MIB, NULL), NULL);
  cr_expect_eq(stats_of(arena).driver_allocations, stats.driver_allocations, "smaller requests reuse it");
}

Test(arena, phase_does_not_end_while_memory_is_taken) {
  char *memory = take(arena, 1000, NULL);
  cr_expect_eq(flp_arena_end_phase(arena, NULL), FLP_ERROR_ARGUMENT);
  cr_expect_str_eq(flp_error_detail(), "arena: 1024 bytes are still taken (accepted: 0 at the end of a phase)");
  cr_expect_eq(stats_of(arena).reserved_bytes, BLOCK);
  give_back(arena, memory, NULL);
  cr_expect_eq(flp_arena_end_phase(arena, NULL), FLP_OK);
  take(arena, 1000, NULL);
  cr_expect_eq(stats_of(arena).driver_allocations, 2, "the next phase starts with nothing");
}

Test(arena, bad_arguments_are_refused) {
  char *memory = take(arena, 1000, NULL);
  void *out = memory;
  cr_expect_eq(flp_arena_give_back(arena, memory + 256, NULL), FLP_ERROR_ARGUMENT, "not the start");
  cr_expect_eq(flp_arena_give_back(arena, &out, NULL), FLP_ERROR_ARGUMENT, "foreign");
  give_back(arena, memory, NULL);
  cr_expect_eq(flp_arena_give_back(arena, memory, NULL), FLP_ERROR_ARGUMENT, "twice");
  cr_expect_eq(flp_arena_take(arena, SIZE_MAX, NULL, &out), FLP_ERROR_ARGUMENT);
  cr_expect_null(out);
  cr_expect_eq(flp_arena_take(arena, (size_t)INT64_MAX / 2, NULL, &out), FLP_ERROR_MEMORY);
  cr_expect_eq(flp_arena_take(NULL, 1, NULL, &out), FLP_ERROR_ARGUMENT);
  cr_expect_eq(flp_arena_take(arena, 1, NULL, NULL), FLP_ERROR_ARGUMENT);
  cr_expect_eq(flp_arena_give_back(NULL, memory, NULL), FLP_ERROR_ARGUMENT);
  cr_expect_eq(flp_arena_end_phase(NULL, NULL), FLP_ERROR_ARGUMENT);
  cr_expect_eq(flp_arena_create(FLP_DEVICE_HOST, NULL), FLP_ERROR_ARGUMENT);
  flp_arena_stats stats = FLP_ARENA_STATS_INIT;
  stats.struct_bytes = 4;
  cr_expect_eq(flp_arena_get_stats(arena, &stats), FLP_ERROR_ARGUMENT);
  flp_arena_reset_peaks(NULL);
  flp_arena_destroy(NULL);
}

Test(arena, host_knows_no_streams) {
  char *memory = take(arena, BLOCK, (void *)(uintptr_t)1);
  give_back(arena, memory, (void *)(uintptr_t)2);
  cr_expect_eq(take(arena, BLOCK, (void *)(uintptr_t)3), memory);
}

/* ---- a long random run against a plain model ---- */

Test(arena, random_run_keeps_memory_apart_and_adds_up) {
  enum { SLOTS = 24, STEPS = 20000 };
  struct slot {
    unsigned char *memory;
    size_t bytes;
    unsigned char mark;
  } slots[SLOTS] = {0};
  uint64_t random = 88172645463325252u, allocated = 0;
  for (int step = 0; step < STEPS; step++) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    struct slot *s = &slots[random % SLOTS];
    if (s->memory) {
      cr_assert(s->memory[0] == s->mark && s->memory[s->bytes - 1] == s->mark, "step %d: memory was shared", step);
      give_back(arena, s->memory, NULL);
      allocated -= (s->bytes + 255) / 256 * 256;
      s->memory = NULL;
      continue;
    }
    s->bytes = 1 + (random >> 20) % (random >> 60 ? 5000 : 3 * MIB);
    s->mark = (unsigned char)(random >> 40);
    s->memory = (unsigned char *)take(arena, s->bytes, NULL);
    s->memory[0] = s->memory[s->bytes - 1] = s->mark;
    allocated += (s->bytes + 255) / 256 * 256;
    flp_arena_stats stats = stats_of(arena);
    cr_assert_eq(stats.allocated_bytes, allocated);
    cr_assert_leq(stats.allocated_bytes, stats.reserved_bytes);
    cr_assert_leq(stats.fragmentation_bytes, stats.reserved_bytes);
    cr_assert_leq(stats.fragmentation_bytes, stats.peak_fragmentation_bytes);
  }
  for (int i = 0; i < SLOTS; i++)
    if (slots[i].memory) give_back(arena, slots[i].memory, NULL);
  cr_assert_eq(stats_of(arena).allocated_bytes, 0);
  cr_assert_eq(flp_arena_end_phase(arena, NULL), FLP_OK, "every block is whole again");
}

static void *take_and_give(void *context) {
  for (int i = 0; i < 2000; i++) {
    void *memory;
    if (flp_arena_take(context, 300, NULL, &memory) != FLP_OK) return "take";
    *(int *)memory = i;
    if (*(volatile int *)memory != i) return "shared";
    if (flp_arena_give_back(context, memory, NULL) != FLP_OK) return "give back";
  }
  return NULL;
}

Test(arena, threads_share_one_arena) {
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) cr_assert_eq(pthread_create(&threads[i], NULL, take_and_give, arena), 0);
  for (int i = 0; i < 4; i++) {
    void *failure;
    pthread_join(threads[i], &failure);
    cr_expect_null(failure, "%s", (char *)failure);
  }
  cr_expect_eq(stats_of(arena).allocated_bytes, 0);
  cr_expect_eq(stats_of(arena).driver_allocations, 1);
}
