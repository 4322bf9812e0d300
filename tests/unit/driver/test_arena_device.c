/* test_arena_device.c: the arena over the stand-in driver: streams, contexts, what is allocated and freed, and
 * failures. The stand-in's device memory is malloc'ed, so the addresses are real but nothing runs on the streams. */
#include <criterion/criterion.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/support/arena_case.h"
#include "tests/unit/support/stage.h"

static stage s;

/* Streams are only compared, never entered. */
static void *const one = (void *)(uintptr_t)0x1000, *const two = (void *)(uintptr_t)0x2000;

static flp_arena *arena;

static void open_device(const char *script) {
  stage_open(&s, script);
  arena = open_arena(0);
}

static int calls(const char *function) {
  return s.calls(function);
}

static size_t held_bytes(int wanted_contexts) {
  size_t bytes;
  int modules, contexts;
  s.held(&bytes, &modules, &contexts);
  cr_expect_eq(contexts, wanted_contexts);
  return bytes;
}

/* At the end of every test: what fails in a fini fails no test. */
static void close_device(void) {
  flp_arena_destroy(arena);
  cr_expect_eq(held_bytes(0), 0);
}

Test(arena_device, memory_is_allocated_and_freed_in_stream_order) {
  open_device("");
  char *memory = take(arena, 1000, one);
  cr_expect_eq(calls("cuMemAllocAsync"), 1);
  cr_expect_eq(calls("cuMemAlloc_v2"), 0);
  cr_expect_eq(held_bytes(1), BLOCK);
  give_back(arena, memory, one);
  cr_expect_eq(held_bytes(1), BLOCK, "kept for the next head");
  cr_assert_eq(flp_arena_end_phase(arena, one), FLP_OK);
  cr_expect_eq(calls("cuMemFreeAsync"), 1);
  cr_expect_eq(held_bytes(1), 0);
  cr_expect_eq(calls("cuCtxPushCurrent_v2"), calls("cuCtxPopCurrent_v2"));
  close_device();
  cr_expect_eq(calls("cuStreamSynchronize"), 0, "nothing here waits for the device");
}

Test(arena_device, memory_is_reused_on_its_own_stream_only) {
  open_device("");
  char *memory = take(arena, BLOCK, one);
  give_back(arena, memory, one);
  char *other = take(arena, BLOCK, two);
  cr_expect_neq(other, memory, "work on stream one may still use it");
  cr_expect_eq(take(arena, BLOCK, one), memory);
  cr_expect_eq(stats_of(arena).fragmentation_bytes, BLOCK, "what another stream holds free cannot serve either");
  /* given back on another stream, it belongs to that one */
  give_back(arena, memory, two);
  cr_expect_eq(take(arena, BLOCK, two), memory);
  cr_expect_eq(calls("cuMemAllocAsync"), 2);
  close_device();
}

Test(arena_device, neighbours_of_different_streams_stay_apart) {
  open_device("");
  char *a = take(arena, MIB, one), *b = take(arena, MIB, one);
  give_back(arena, a, one);
  give_back(arena, b, two);
  take(arena, BLOCK, one);
  cr_expect_eq(calls("cuMemAllocAsync"), 2, "two halves of two streams are not one block");
  cr_expect_eq(calls("cuMemFreeAsync"), 0, "nor may the block go while another stream may use it");
  close_device();
}

Test(arena_device, outgrown_block_of_another_stream_stays) {
  open_device("");
  give_back(arena, take(arena, MIB, one), one);
  give_back(arena, take(arena, MIB, two), two);
  give_back(arena, take(arena, 2 * BLOCK, two), two);
  cr_expect_eq(calls("cuMemFreeAsync"), 1);
  cr_expect_eq(stats_of(arena).reserved_bytes, BLOCK + 2 * BLOCK);
  cr_expect_eq(held_bytes(1), BLOCK + 2 * BLOCK);
  close_device();
}

Test(arena_device, device_without_pools_is_served_by_plain_allocations) {
  open_device("fail:cuMemAllocAsync=801");
  give_back(arena, take(arena, 1000, one), one);
  cr_expect_eq(calls("cuMemAlloc_v2"), 1);
  cr_assert_eq(flp_arena_end_phase(arena, one), FLP_OK, "%s", flp_error_detail());
  cr_expect_eq(calls("cuMemFreeAsync"), 0);
  cr_expect_eq(calls("cuMemFree_v2"), 1);
  cr_expect_eq(held_bytes(1), 0);
  close_device();
}

Test(arena_device, full_device_is_an_error_that_leaves_the_arena_sound) {
  open_device("fail:cuMemAllocAsync=2@2");
  char *memory = take(arena, 1000, one);
  void *out = &out;
  cr_expect_eq(flp_arena_take(arena, BLOCK, one, &out), FLP_ERROR_DRIVER);
  cr_expect_str_eq(flp_error_detail(), "cuMemAllocAsync (arena) failed: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
  cr_expect_null(out);
  flp_arena_stats stats = stats_of(arena);
  cr_expect_eq(stats.reserved_bytes, BLOCK);
  cr_expect_eq(stats.allocated_bytes, 1024);
  cr_expect_eq(stats.driver_allocations, 1);
  give_back(arena, memory, one);
  take(arena, BLOCK, one);
  cr_expect_eq(calls("cuCtxPushCurrent_v2"), calls("cuCtxPopCurrent_v2"));
  close_device();
}

Test(arena_device, failure_to_free_is_reported_and_counts_nothing_as_freed) {
  open_device("fail:cuMemFreeAsync=700@1");
  give_back(arena, take(arena, 1000, one), one);
  cr_expect_eq(flp_arena_end_phase(arena, one), FLP_ERROR_DRIVER);
  cr_expect_not_null(strstr(flp_error_detail(), "cuMemFreeAsync (arena) failed: CUDA_ERROR_ILLEGAL_ADDRESS"));
  cr_expect_eq(stats_of(arena).reserved_bytes, BLOCK);
  cr_expect_eq(stats_of(arena).phases, 0);
  cr_expect_eq(flp_arena_end_phase(arena, one), FLP_OK);
  cr_expect_eq(stats_of(arena).phases, 1);
  close_device();
}

Test(arena_device, lost_context_is_reported) {
  open_device("fail:cuCtxPushCurrent_v2=201@1");
  void *out;
  cr_expect_eq(flp_arena_take(arena, 1000, one, &out), FLP_ERROR_DRIVER);
  cr_expect_eq(calls("cuCtxPopCurrent_v2"), 0, "what was not pushed is not popped");
  close_device();
}

Test(arena_device, create_fails_with_the_reason) {
  open_device("devices=1");
  flp_arena_destroy(arena);
  cr_expect_eq(flp_arena_create(7, &arena), FLP_ERROR_ARGUMENT);
  cr_expect_null(arena);
  s.script("fail:cuDevicePrimaryCtxRetain=2");
  cr_expect_eq(flp_arena_create(0, &arena), FLP_ERROR_DRIVER);
  cr_expect_null(arena);
  setenv("FLP_CUDA_LIBRARY", "/nonexistent/libcuda.so", 1);
  cr_expect_eq(flp_arena_create(0, &arena), FLP_ERROR_UNAVAILABLE);
  close_device();
}
