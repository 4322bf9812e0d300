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
#include "tests/unit/support/rows.h"
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

static void start(const char *words) {
  stage_open(&s, "capability=9.0;link=1");
  spec = words_spec(words);
  options = (flp_options)FLP_OPTIONS_INIT;
}

/* A library's own start and each of its calls: the driver is opened anew by another name for it. */
static void another_driver(void) {
  char path[400];
  snprintf(path, sizeof path, "%s/cuda%d.so", s.root, ++number);
  cr_assert_eq(symlink(FLP_TEST_FAKE_CUDA, path), 0);
  setenv("FLP_CUDA_LIBRARY", path, 1);
}

static void make_one(void) {
  cr_assert_eq(create(), FLP_OK);
  flp_plan_destroy(plan);
}

/* Tuned with another driver, so that all keys are listed. */
static void fill_tuned(void) {
  s.script("capability=8.0");
  stage_fill_cache(s.cache, &spec, "Fake H200/132/12080");
}

static void fill_generic(void) {
  s.script("capability=8.0");
  stage_fill_generic(s.generic, &spec);
  s.provider_script("fail=10;error=no");
}

static void on_the_host(void) {
  options.device = FLP_DEVICE_HOST;
}

/* Calls of such kinds fail, so many at least. */
typedef struct fault {
  unsigned kinds;
  int error, least;
} fault;

static const struct creation {
  const char *name, *words; /* words: of the spec */
  flp_rung wanted;
  void (*set_up)(void), (*prepare)(void); /* once; before every plan */
  fault faults[3];
} creations[] = {
    {"a plan that is generated", "grads=hidden", FLP_RUNG_JIT, NULL, another_shape,
     {{FAULTS_MEMORY, 0, 20}, {FAULTS_FILES, 0, 100}, {FAULTS_THREAD, 0, 1}}},
    {"a plan of a cache", "grads=hidden,weight", FLP_RUNG_HEURISTIC, make_one, same_shape,
     {{FAULTS_MEMORY, 0, 10}, {FAULTS_READ, FAULTS_END, 5}}},
    {"a plan of tuned kernels", "grads=hidden,weight", FLP_RUNG_TUNED, fill_tuned, NULL, {{FAULTS_MEMORY, 0, 20}}},
    {"a plan of generic kernels", "grads=hidden,weight", FLP_RUNG_GENERIC, fill_generic, NULL,
     {{FAULTS_MEMORY, 0, 10}}},
    {"a plan with a loss", "grads=hidden,weight loss=grpo", FLP_RUNG_JIT, NULL, another_shape,
     {{FAULTS_MEMORY, 0, 20}}},
    {"a plan of the host", "grads=hidden,weight loss=grpo", FLP_RUNG_EAGER, on_the_host, NULL,
     {{FAULTS_MEMORY, 0, 2}}}, /* the plan and its loss */
    {"a plan that opens the driver", "", FLP_RUNG_HEURISTIC, make_one, another_driver, {{FAULTS_MEMORY, 0, 6}}},
};

ParameterizedTestParameters(plan_faults, creating) {
  return rows_numbered(sizeof creations / sizeof creations[0]);
}

ParameterizedTest(const int *row, plan_faults, creating) {
  const struct creation *c = &creations[*row];
  const faults_operation operation = {c->name, c->prepare, create, check_plan, FAULTS_MAY(MEMORY)};
  start(c->words);
  wanted = c->wanted;
  if (c->set_up) c->set_up();
  for (int i = 0; i < 3 && c->faults[i].kinds; i++)
    cr_expect_geq(faults_each(&operation, c->faults[i].kinds, c->faults[i].error), c->faults[i].least, "%s", c->name);
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

static void expect_nothing_taken(const char *words) {
  start(words);
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
  expect_nothing_taken("grads=hidden,weight,bias bias keep");
  expect_nothing_taken("grads=hidden keep");
}

static void check_arena(flp_status status, const char *failed) {
  cr_assert(status == FLP_OK || status == FLP_ERROR_MEMORY);
  expect_nothing_held(failed);
}

Test(plan_faults, arenas) {
  static const faults_operation operation = {"an arena", NULL, run_arena, check_arena, FAULTS_MAY(MEMORY)};
  start("");
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

/* The code 222 is what the ladder takes for PTX that is too new. */
static const struct life {
  const char *device, *words;
  int code;
} lives[] = {{"capability=8.0", "grads=hidden,weight,bias bias", 2},
             {"capability=9.0", "grads=hidden,weight keep", 999},
             {"capability=9.0", "grads=hidden keep", 999},
             {"capability=9.0;link=1", "grads=hidden,weight loss=grpo", 2},
             {"capability=8.0", "grads=hidden,weight loss=grpo", 222}};

ParameterizedTestParameters(plan_faults, driver) {
  return rows_numbered(sizeof lives / sizeof lives[0]);
}

ParameterizedTest(const int *row, plan_faults, driver) {
  const struct life *l = &lives[*row];
  static const char *const names[] = {
#define NAME(name, args) #name,
      FLP_DRIVER_FUNCTIONS(NAME) FLP_DRIVER_OPTIONAL(NAME)
#undef NAME
  };
  int met = 0;
  start(l->words);
  options.host_fallback = strstr(l->device, "link") != NULL;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    for (int k = 1; live(l->device, names[i], k, l->code); k++) met++;
  cr_expect_geq(met, 100, "%d", met);
}
