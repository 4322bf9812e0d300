/* test_plan_faults.c: plans and passes where memory runs out, files and threads fail, and the driver refuses a call:
 * each call once. Either the plan is whole, or there is none, nothing is held and the reason is given. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/status.h"
#include "runtime/driver/driver.h"
#include "runtime/plan/plan.h"
#include "tests/unit/faults/faults.h"
#include "tests/unit/support/stage.h"
#include "tests/unit/support/words.h"

enum { ROWS = 300 };

static stage s;
static flp_spec spec;
static flp_options options;
static flp_plan *plan;
static int number; /* of the run */

typedef struct holding {
  size_t bytes;
  int modules, contexts;
} holding;

static holding held_now(void) {
  holding now;
  s.held(&now.bytes, &now.modules, &now.contexts);
  return now;
}

static void expect_held(holding before, const char *failed) {
  holding now = held_now();
  cr_assert(now.bytes == before.bytes && now.modules == before.modules && now.contexts == before.contexts,
            "after %s: %zu bytes, %d modules, %d contexts", failed, now.bytes, now.modules, now.contexts);
}

static void expect_nothing_held(const char *failed) {
  expect_held((holding){0, 0, 0}, failed);
}

/* ---- creating ---- */

static flp_rung wanted; /* where nothing fails */

static flp_status create(void) {
  return flp_plan_create(&spec, &options, &plan);
}

/* A plan that was made is whole: it runs. */
static void check_plan(flp_status status, const char *failed) {
  if (status != FLP_OK) {
    cr_assert_null(plan, "%s", failed);
  } else {
    if (!failed) cr_assert_eq(plan->rung, wanted, "%d", (int)plan->rung);
    if (plan->rung != FLP_RUNG_EAGER) {
      flp_args a = stage_args(&spec, FLP_PASS_FORWARD, ROWS);
      a.workspace_bytes = stage_workspace(plan, FLP_PASS_FORWARD, ROWS, 0);
      stage_execute(&s, plan, &a);
      cr_assert_eq(flp_plan_check(plan, NULL), FLP_OK, "%s", flp_error_detail());
    }
  }
  flp_plan_destroy(plan);
  expect_nothing_held(failed);
}

/* Nothing of it is in memory, and the cache, which else would grow from run to run, is empty. */
static void another_shape(void) {
  char cache[400];
  spec.vocab = 1000 + 8 * ++number;
  snprintf(cache, sizeof cache, "%s/cache%d", s.root, number);
  setenv("FLP_CACHE_DIR", cache, 1);
  s.script("capability=9.0;link=1");
}

static void same_shape(void) {
  s.script("capability=9.0;link=1");
}

static void start(uint32_t grads) {
  stage_open(&s, "capability=9.0;link=1");
  spec = stage_spec(grads);
  options = (flp_options)FLP_OPTIONS_INIT;
}

#define EITHER_PLAN(name_, prepare_) \
  { name_, prepare_, create, check_plan, FAULTS_MAY(MEMORY) }

Test(plan_faults, generating) {
  static const faults_operation operation = EITHER_PLAN("a plan that is generated", another_shape);
  start(1);
  wanted = FLP_RUNG_JIT;
  cr_expect_geq(faults_each(&operation, FAULTS_MEMORY, 0), 20);
  cr_expect_geq(faults_each(&operation, FAULTS_FILES, 0), 100);
  cr_expect_geq(faults_each(&operation, FAULTS_THREAD, 0), 1);
}

Test(plan_faults, reading_a_cache) {
  static const faults_operation operation = EITHER_PLAN("a plan of a cache", same_shape);
  start(3);
  wanted = FLP_RUNG_HEURISTIC;
  cr_assert_eq(create(), FLP_OK);
  flp_plan_destroy(plan);
  cr_expect_geq(faults_each(&operation, FAULTS_MEMORY, 0), 10);
  cr_expect_geq(faults_each(&operation, FAULTS_READ, FAULTS_END), 5);
}

Test(plan_faults, reading_tuned_kernels) {
  static const faults_operation operation = EITHER_PLAN("a plan of tuned kernels", NULL);
  start(3);
  s.script("capability=8.0");
  wanted = FLP_RUNG_TUNED;
  stage_fill_cache(s.cache, &spec, "Fake H200/132/12080"); /* another driver, so all keys are listed */
  cr_expect_geq(faults_each(&operation, FAULTS_MEMORY, 0), 20);
}

Test(plan_faults, reading_generic_kernels) {
  static const faults_operation operation = EITHER_PLAN("a plan of generic kernels", NULL);
  start(3);
  s.script("capability=8.0");
  stage_fill_generic(s.generic, &spec);
  s.provider_script("fail=10;error=no");
  wanted = FLP_RUNG_GENERIC;
  cr_expect_geq(faults_each(&operation, FAULTS_MEMORY, 0), 10);
}

Test(plan_faults, a_loss_of_its_own) {
  static const faults_operation operation = EITHER_PLAN("a plan with a loss", another_shape);
  start(3);
  wanted = FLP_RUNG_JIT;
  words_change_spec(&spec, "loss=grpo");
  cr_expect_geq(faults_each(&operation, FAULTS_MEMORY, 0), 20);
}

Test(plan_faults, on_the_host) {
  static const faults_operation operation = EITHER_PLAN("a plan of the host", NULL);
  start(3);
  options.device = FLP_DEVICE_HOST;
  wanted = FLP_RUNG_EAGER;
  words_change_spec(&spec, "loss=grpo");
  cr_expect_eq(faults_each(&operation, FAULTS_MEMORY, 0), 2, "the plan and its loss");
}

/* A library's own start and each of its calls: the driver is opened anew by another name for it. */
static void another_driver(void) {
  char path[400];
  snprintf(path, sizeof path, "%s/cuda%d.so", s.root, ++number);
  cr_assert_eq(symlink(FLP_TEST_FAKE_CUDA, path), 0);
  setenv("FLP_CUDA_LIBRARY", path, 1);
}

Test(plan_faults, opening_the_driver_and_the_generator) {
  static const faults_operation operation = EITHER_PLAN("a plan that opens the driver", another_driver);
  start(0);
  wanted = FLP_RUNG_HEURISTIC;
  cr_assert_eq(create(), FLP_OK);
  flp_plan_destroy(plan);
  cr_expect_geq(faults_each(&operation, FAULTS_MEMORY, 0), 6);
}

/* ---- passes ---- */

static const struct {
  flp_pass pass;
  const char *words;
} calls[] = {{FLP_PASS_FORWARD, "n=300"},
             {FLP_PASS_BACKWARD, "n=300"},
             {FLP_PASS_FORWARD, "n=300 saved"},
             {FLP_PASS_BACKWARD, "n=300 saved"},
             {FLP_PASS_STEP, "n=300 old_logprob ref_logprob advantage loss"}};
enum { CALLS = sizeof calls / sizeof calls[0] };

/* One that the plan does not do is done. */
static flp_status run_call(int i) {
  flp_args a;
  int keeps = strstr(calls[i].words, "saved") != NULL, is_step = calls[i].pass == FLP_PASS_STEP;
  flp_detail_clear();
  if ((keeps && !stage_saved(plan, ROWS)) || (is_step && !spec.loss)) return FLP_OK;
  cr_assert_eq(words_call(plan, &spec, calls[i].pass, calls[i].words, &a), FLP_OK, "%s", flp_error_detail());
  return is_step ? flp_step(plan, &a) : flp_execute(plan, &a);
}

static flp_status run_check(void) {
  return flp_plan_check(plan, STAGE_STREAM);
}

static flp_status run_arena(void) {
  flp_arena *arena;
  void *memory = NULL, *more = NULL;
  flp_status status = flp_arena_create(0, &arena);
  if (status != FLP_OK) return status;
  status = flp_arena_take(arena, 1000, STAGE_STREAM, &memory);
  if (status == FLP_OK) status = flp_arena_take(arena, 3 << 20, STAGE_STREAM, &more);
  flp_failure held = flp_failure_hold(status);
  if (memory) cr_assert_eq(flp_arena_give_back(arena, memory, STAGE_STREAM), FLP_OK);
  if (more) cr_assert_eq(flp_arena_give_back(arena, more, STAGE_STREAM), FLP_OK);
  if (status == FLP_OK) held = flp_failure_hold(flp_arena_end_phase(arena, STAGE_STREAM));
  flp_arena_destroy(arena);
  flp_detail_clear();
  return flp_failure_restore(&held);
}

/* Calls of passes, then the two others. */
static flp_status run_any(int i) {
  return i < CALLS ? run_call(i) : i == CALLS ? run_check() : run_arena();
}

static void expect_nothing_taken(uint32_t grads) {
  start(grads);
  spec.keep = 1;
  plan = stage_plan(&spec, NULL);
  for (int i = 0; i <= CALLS; i++) {
    faults_arm(FAULTS_MEMORY | FAULTS_FILES | FAULTS_THREAD, 1, 0);
    flp_status status = run_any(i);
    cr_expect_null(faults_disarm(), "call %d", i);
    cr_expect_eq(status, FLP_OK, "%s", flp_error_detail());
  }
  flp_plan_destroy(plan);
}

Test(plan_faults, passes_allocate_nothing_on_the_host) {
  expect_nothing_taken(7);
}

Test(plan_faults, passes_of_a_frozen_head_allocate_nothing_on_the_host) {
  expect_nothing_taken(1);
}

static void check_arena(flp_status status, const char *failed) {
  cr_assert(status == FLP_OK || status == FLP_ERROR_MEMORY);
  expect_nothing_held(failed);
}

Test(plan_faults, arenas) {
  static const faults_operation operation = {"an arena", NULL, run_arena, check_arena, FAULTS_MAY(MEMORY)};
  start(0);
  cr_expect_geq(faults_each(&operation, FAULTS_MEMORY, 0), 6);
}

/* ---- the driver's calls ---- */

/* Calls whose failure leaves what they should have given back. */
static int gives_back(const char *name) {
  static const char *const names[] = {"cuMemFree_v2", "cuMemFreeAsync", "cuModuleUnload",
                                      "cuDevicePrimaryCtxRelease_v2", "cuCtxPushCurrent_v2"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (strcmp(name, names[i]) == 0) return 1;
  return 0;
}

static void expect_driver_status(flp_status status, const char *name, int k) {
  cr_assert(status == FLP_OK || status == FLP_ERROR_DRIVER || status == FLP_ERROR_UNAVAILABLE, "%s %d: %s: %s", name, k,
            flp_status_name(status), flp_error_detail());
  cr_assert_eq(flp_error_detail()[0] == 0, status == FLP_OK, "%s %d: %s", name, k, flp_error_detail());
}

/* A whole life with call k of that name failing; returns whether there was such a call. */
static int live(const char *base, const char *name, int k, int code) {
  char script[200];
  holding before = held_now();
  snprintf(script, sizeof script, "%s;fail:%s=%d@%d", base, name, code, k);
  another_driver();
  s.script(script);
  flp_status status = create();
  expect_driver_status(status, name, k);
  cr_assert_eq(plan != NULL, status == FLP_OK);
  for (int i = 0; plan && i <= CALLS + 1; i++)
    if (plan->rung != FLP_RUNG_EAGER || i > CALLS) expect_driver_status(run_any(i), name, k);
  flp_plan_destroy(plan);
  int met = s.calls(name) >= k;
  if (!gives_back(name)) expect_held(before, name);
  return met;
}

static void fail_each(const char *base, int code) {
  static const char *const names[] = {
#define NAME(name, args) #name,
      FLP_DRIVER_FUNCTIONS(NAME) FLP_DRIVER_OPTIONAL(NAME)
#undef NAME
  };
  int met = 0;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    for (int k = 1; live(base, names[i], k, code); k++) met++;
  cr_expect_geq(met, 100, "%d", met);
}

/* By script, words of the spec beside its gradients, and the code; 222 is what the ladder takes for PTX that is too
 * new. */
static void fail_life(const char *device, uint32_t grads, const char *words, int code) {
  start(grads);
  words_change_spec(&spec, words);
  options.host_fallback = strstr(device, "link") != NULL;
  fail_each(device, code);
}

Test(plan_faults, driver_of_a_portable_head) {
  fail_life("capability=8.0", 7, "", 2);
}

Test(plan_faults, driver_of_a_mapped_head) {
  fail_life("capability=9.0", 3, "keep", 999);
}

Test(plan_faults, driver_of_a_frozen_mapped_head) {
  fail_life("capability=9.0", 1, "keep", 999);
}

Test(plan_faults, driver_of_a_mapped_step) {
  fail_life("capability=9.0;link=1", 3, "loss=grpo", 2);
}

Test(plan_faults, driver_of_a_portable_step) {
  fail_life("capability=8.0", 3, "loss=grpo", 222);
}
