/* test_arena.c: what an arena hands out, reuses, counts and returns, on the host and over the stand-in driver, by
 * tests/golden/driver; and what no text can say: foreign memory, a long random run and threads. The memory of the
 * stand-in is malloc'ed, so addresses are real but nothing runs on the streams.
 *
 *   > driver SCRIPT                      libcuda's stand-in anew, without an arena
 *   > library PATH                       libcuda is there
 *   > create DEVICE                      an arena in place of the present one: an ordinal, -1 for the host
 *   > take NAME bytes=COUNT stream=K     memory, which has a letter for its name; without a stream, on the default one
 *   > give NAME stream=K                 gives it back
 *   > where NAME OTHER                   where it is, seen from other memory
 *   > end stream=K                       ends a phase
 *   > stats                              all that are not 0; > reset_peaks
 *   > calls NAME ...                     how often the driver was called so
 *   > held                               what of the device is held
 *   > destroy                            the arena; nothing of the device may be held then */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/support/replay.h"
#include "tests/unit/support/stage.h"
#include "tests/unit/support/words.h"

enum { MIB = 1 << 20, BLOCK = 2 * MIB };

static flp_arena *arena;

static struct {
  stage s;
  char *memory['z' + 1]; /* by name */
  FILE *out;
} scene;

/* Streams are only compared, never entered. */
static void *stream_of(const char *words) {
  return (void *)(uintptr_t)(0x1000 * words_number(words, "stream", 0));
}

static void put_failure(flp_status status) {
  if (status != FLP_OK) fprintf(scene.out, "%s: %s\n", flp_status_name(status), flp_error_detail());
}

static void destroy(const char *words) {
  (void)words;
  flp_arena_destroy(arena);
  arena = NULL;
  if (scene.s.held) stage_expect_nothing_held(&scene.s);
}

static void open_driver(const char *script) {
  destroy(NULL);
  stage_open(&scene.s, script);
}

static void set_library(const char *path) {
  setenv("FLP_CUDA_LIBRARY", path, 1);
}

static void create(const char *device) {
  destroy(NULL);
  flp_status status = flp_arena_create(atoi(device), &arena);
  put_failure(status);
  cr_expect_eq(arena != NULL, status == FLP_OK);
}

static void take_memory(const char *words) {
  void *memory = &scene;
  flp_status status = flp_arena_take(arena, words_number(words, "bytes", 0), stream_of(words), &memory);
  put_failure(status);
  cr_expect(status == FLP_OK || !memory);
  cr_expect_eq((uintptr_t)memory % 256, 0);
  scene.memory[(int)*words] = memory;
}

static void give_memory(const char *words) {
  put_failure(flp_arena_give_back(arena, scene.memory[(int)*words], stream_of(words)));
}

static void where(const char *names) {
  const char *memory = scene.memory[(int)names[0]], *other = scene.memory[(int)names[2]];
  uintptr_t behind = (uintptr_t)memory - (uintptr_t)other;
  if (!memory) fputs("nowhere\n", scene.out);
  else if (behind < BLOCK) fprintf(scene.out, "%c+%zu\n", names[2], (size_t)behind);
  else fputs("elsewhere\n", scene.out);
}

static void end_phase(const char *words) {
  put_failure(flp_arena_end_phase(arena, stream_of(words)));
}

static void put_stats(const char *words) {
  (void)words;
  flp_arena_stats stats = FLP_ARENA_STATS_INIT;
  put_failure(flp_arena_get_stats(arena, &stats));
  const char *before = "";
#define PUT(field)                                                                      \
  if (stats.field) fprintf(scene.out, "%s" #field "=%" PRIu64, before, stats.field); \
  if (stats.field) before = " ";
  PUT(reserved_bytes) PUT(allocated_bytes) PUT(fragmentation_bytes)
  PUT(peak_reserved_bytes) PUT(peak_allocated_bytes) PUT(peak_fragmentation_bytes)
  PUT(driver_allocations) PUT(phases)
#undef PUT
  fputs(*before ? "\n" : "all 0\n", scene.out);
}

static void reset_peaks(const char *words) {
  (void)words;
  flp_arena_reset_peaks(arena);
}

static void put_calls(const char *words) {
  char *names = strdup(words), *rest = names;
  for (char *name; (name = strsep(&rest, " "));) fprintf(scene.out, "%s %d\n", name, scene.s.calls(name));
  free(names);
}

static void put_held(const char *words) {
  (void)words;
  size_t bytes;
  int modules, contexts;
  scene.s.held(&bytes, &modules, &contexts);
  fprintf(scene.out, "%zu bytes, %d modules, %d contexts\n", bytes, modules, contexts);
}

static void run(void *context, const char *command, const char *words, FILE *out) {
  (void)context;
  static const struct {
    const char *name;
    void (*run)(const char *words);
  } commands[] = {{"driver", open_driver}, {"library", set_library}, {"create", create},
                  {"take", take_memory},   {"give", give_memory},    {"where", where},
                  {"end", end_phase},      {"stats", put_stats},     {"reset_peaks", reset_peaks},
                  {"calls", put_calls},    {"held", put_held},       {"destroy", destroy}};
  scene.out = out;
  size_t i = 0;
  while (strcmp(commands[i].name, command) != 0) cr_assert_lt(++i, sizeof commands / sizeof commands[0], "%s", command);
  commands[i].run(words);
}

static void each(const char *name, void *context) {
  replay_file(name, 1, run, context);
  destroy(NULL);
}

Test(arena_golden, is_as_it_was) {
  replay_each("driver", 2, each, NULL);
}

/* ---- on the host, beside the texts ---- */

/* With AddressSanitizer, malloc of too much must return NULL as it does without. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);

const char *__asan_default_options(void) {
  return "allocator_may_return_null=1";
}

static void open_host(void) {
  cr_assert_eq(flp_arena_create(FLP_DEVICE_HOST, &arena), FLP_OK, "%s", flp_error_detail());
}

static void close_host(void) {
  flp_arena_destroy(arena);
}

TestSuite(arena, .init = open_host, .fini = close_host);

static char *take(size_t bytes) {
  void *memory;
  cr_assert_eq(flp_arena_take(arena, bytes, NULL, &memory), FLP_OK, "%s", flp_error_detail());
  return memory;
}

static void give_back(void *memory) {
  cr_assert_eq(flp_arena_give_back(arena, memory, NULL), FLP_OK, "%s", flp_error_detail());
}

static flp_arena_stats stats_of(void) {
  flp_arena_stats stats = FLP_ARENA_STATS_INIT;
  cr_assert_eq(flp_arena_get_stats(arena, &stats), FLP_OK);
  return stats;
}

Test(arena, bad_arguments_are_refused) {
  char *memory = take(1000);
  void *out = memory;
  cr_expect_eq(flp_arena_give_back(arena, memory + 256, NULL), FLP_ERROR_ARGUMENT, "not the start");
  cr_expect_eq(flp_arena_give_back(arena, &out, NULL), FLP_ERROR_ARGUMENT, "foreign");
  give_back(memory);
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

/* Against a plain model. */
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
      give_back(s->memory);
      allocated -= (s->bytes + 255) / 256 * 256;
      s->memory = NULL;
      continue;
    }
    s->bytes = 1 + (random >> 20) % (random >> 60 ? 5000 : 3 * MIB);
    s->mark = (unsigned char)(random >> 40);
    s->memory = (unsigned char *)take(s->bytes);
    s->memory[0] = s->memory[s->bytes - 1] = s->mark;
    allocated += (s->bytes + 255) / 256 * 256;
    flp_arena_stats stats = stats_of();
    cr_assert_eq(stats.allocated_bytes, allocated);
    cr_assert_leq(stats.allocated_bytes, stats.reserved_bytes);
    cr_assert_leq(stats.fragmentation_bytes, stats.reserved_bytes);
    cr_assert_leq(stats.fragmentation_bytes, stats.peak_fragmentation_bytes);
  }
  for (int i = 0; i < SLOTS; i++)
    if (slots[i].memory) give_back(slots[i].memory);
  cr_assert_eq(stats_of().allocated_bytes, 0);
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
  cr_expect_eq(stats_of().allocated_bytes, 0);
  cr_expect_eq(stats_of().driver_allocations, 1);
}
