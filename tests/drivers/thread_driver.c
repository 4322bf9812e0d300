/* thread_driver.c: many threads that share plans and make their own, for ThreadSanitizer: see --help.
 *
 * Every thread, each round: passes of a shared plan and of its own, whose bits are those of one thread alone; a refused
 * spec, whose detail is the thread's own; a log callback; memory of a shared arena and of its own; plans of the
 * stand-in for libcuda that compile, share a cache and launch; and now and then a fork, whose child runs the shared plan and
 * makes one. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/flp.h"
#include "runtime/kernel/kernel.h"
#include "tests/drivers/draw.h"
#include "tests/unit/fakes/fake_cuda.h"

static const char usage[] =
    "usage: thread_driver [--seed S] [--threads T] [--rounds R]\n"
    "\n"
    "Threads that share plans, arenas and a cache, on the CPU and on the stand-in for libcuda.\n"
    "  --seed S      of all draws (default 1)\n"
    "  --threads T   1 to 256 (default 64)\n"
    "  --rounds R    of each thread (default 2)\n"
    "\n"
    "exit: 0 nothing was found; 1 a thread went wrong; 2 wrong usage; 66 ThreadSanitizer found a race\n";

enum { SHARED = 4, N = 9, V = 100, D = 64, THREADS_MAX = 256, LAUNCH_MEMORY = 1 << 20 };

/* A child of fork may start threads. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
  return "die_after_fork=0";
}

static flp_plan *shared[SHARED], *shared_device;
static flp_arena *shared_arena;
static fake_cuda_reset_fn forget_launches;
static atomic_long rounds_done, calls_done, forks_done;
static unsigned long long seed = 1, threads = 64, rounds = 2;

_Noreturn static void failed(const char *what) {
  fprintf(stderr,
          "thread_driver: %s\n  last detail: %s\n  repeat: thread_driver --seed %llu --threads %llu --rounds %llu\n",
          what, flp_error_detail(), seed, threads, rounds);
  _exit(1);
}

#define EXPECT(condition)                 \
  do {                                    \
    if (!(condition)) failed(#condition); \
  } while (0)

/* ---- on the CPU ---- */

typedef struct outputs {
  _Alignas(16) float stats[4 * N];
  _Alignas(16) float grad_hidden[N * D];
  _Alignas(16) float grad_weight[V * D];
  float logprob[N], entropy[N];
} outputs;

static struct {
  _Alignas(16) float hidden[N * D];
  _Alignas(16) float weight[V * D];
  float grad_logprob[N];
  int64_t target[N];
} operands;
static outputs expected;

static void fill_operands(void) {
  draw d = draw_start(seed, 0);
  for (int i = 0; i < N * D; i++) operands.hidden[i] = (float)draw_real(&d);
  for (int i = 0; i < V * D; i++) operands.weight[i] = (float)draw_real(&d);
  for (int i = 0; i < N; i++) operands.grad_logprob[i] = (float)draw_real(&d);
  for (int i = 0; i < N; i++) operands.target[i] = draw_below(&d, V);
}

static flp_plan *make_plan(int count, int64_t budget) {
  flp_spec spec = FLP_SPEC_INIT;
  flp_options options = FLP_OPTIONS_INIT;
  flp_plan *plan;
  spec.vocab = V;
  spec.hidden = D;
  spec.dtype = FLP_DTYPE_FP32;
  spec.grads = FLP_GRAD_HIDDEN | FLP_GRAD_WEIGHT;
  spec.entropy = FLP_ENTROPY_FORWARD;
  options.device = FLP_DEVICE_HOST;
  options.threads = count;
  options.budget_bytes = (uint64_t)budget;
  EXPECT(flp_plan_create(&spec, &options, &plan) == FLP_OK);
  return plan;
}

static void execute(flp_plan *plan, flp_args *args) {
  size_t bytes;
  EXPECT(flp_plan_workspace(plan, args->pass, N, 0, &bytes) == FLP_OK);
  EXPECT(posix_memalign(&args->workspace, 256, bytes) == 0);
  args->workspace_bytes = bytes;
  EXPECT(flp_execute(plan, args) == FLP_OK);
  free(args->workspace);
  atomic_fetch_add(&calls_done, 1);
}

static void run(flp_plan *plan, outputs *out) {
  flp_args args = FLP_ARGS_INIT;
  args.n = N;
  args.hidden = operands.hidden;
  args.weight = operands.weight;
  args.target = operands.target;
  args.logprob = out->logprob;
  args.entropy = out->entropy;
  args.stats = out->stats;
  execute(plan, &args);
  args.pass = FLP_PASS_BACKWARD;
  args.grad_logprob = operands.grad_logprob;
  args.grad_hidden = out->grad_hidden;
  args.grad_weight = out->grad_weight;
  execute(plan, &args);
}

static void expect_the_same(flp_plan *plan) {
  outputs *out = calloc(1, sizeof *out);
  EXPECT(out);
  run(plan, out);
  EXPECT(memcmp(out, &expected, sizeof expected) == 0);
  free(out);
}

static void own_plan(draw *d) {
  char text[512];
  flp_plan *plan = make_plan(1 + draw_below(d, 3), draw_one_in(d, 2) ? 0 : 1 << 20);
  EXPECT(flp_plan_describe(plan, text, sizeof text) == FLP_OK);
  expect_the_same(plan);
  flp_plan_destroy(plan);
}

/* The detail is the thread's own, whatever the others are refused. */
static void refused_spec(draw *d) {
  static const char *const fields[] = {"spec.hidden", "spec.vocab"};
  flp_spec spec = FLP_SPEC_INIT;
  flp_plan *plan;
  int which = draw_below(d, 2);
  spec.vocab = which ? 1 : 8;
  spec.hidden = which ? 8 : 7;
  EXPECT(flp_plan_create(&spec, NULL, &plan) == FLP_ERROR_ARGUMENT && !plan);
  EXPECT(strstr(flp_error_detail(), fields[which]));
}

static void count_message(flp_log_level level, const char *message, void *user) {
  (void)level;
  if (*message) atomic_fetch_add((atomic_long *)user, 1);
}

static void log_and_arena(draw *d, atomic_long *messages) {
  flp_arena *own;
  void *memory, *second;
  flp_arena_stats stats = FLP_ARENA_STATS_INIT;
  flp_log_set(draw_one_in(d, 2) ? count_message : NULL, messages);
  EXPECT(flp_arena_create(FLP_DEVICE_HOST, &own) == FLP_OK);
  EXPECT(flp_arena_take(own, 1 + (size_t)draw_below(d, 5000), NULL, &memory) == FLP_OK);
  EXPECT(flp_arena_take(shared_arena, 1 + (size_t)draw_below(d, 5000), NULL, &second) == FLP_OK);
  memset(second, 1, 1);
  EXPECT(flp_arena_get_stats(shared_arena, &stats) == FLP_OK);
  EXPECT(flp_arena_give_back(shared_arena, second, NULL) == FLP_OK);
  EXPECT(flp_arena_give_back(own, memory, NULL) == FLP_OK);
  flp_arena_destroy(own);
}

/* ---- on the stand-in for libcuda ---- */

/* cache_dir: NULL for the one that all share, "" for kernels that live in memory. */
static flp_plan *make_device_plan(int64_t vocab, const char *cache_dir) {
  flp_spec spec = FLP_SPEC_INIT;
  flp_options options = FLP_OPTIONS_INIT;
  flp_plan *plan;
  spec.vocab = vocab;
  spec.hidden = D;
  options.rung = FLP_RUNG_JIT;
  options.cache_dir = cache_dir;
  EXPECT(flp_plan_create(&spec, &options, &plan) == FLP_OK);
  return plan;
}

/* Addresses that lead nowhere: the stand-in runs no kernel. */
static void launch(flp_plan *plan) {
  flp_args args = FLP_ARGS_INIT;
  size_t bytes;
  char *nowhere = (char *)(uintptr_t)0x100000000;
  args.n = N;
  args.hidden = nowhere;
  args.weight = nowhere + LAUNCH_MEMORY;
  args.target = nowhere + 2 * LAUNCH_MEMORY;
  args.logprob = (float *)(void *)(nowhere + 3 * LAUNCH_MEMORY);
  args.workspace = nowhere + 4 * LAUNCH_MEMORY;
  EXPECT(flp_plan_workspace(plan, FLP_PASS_FORWARD, N, 0, &bytes) == FLP_OK);
  args.workspace_bytes = bytes;
  forget_launches();
  EXPECT(flp_execute(plan, &args) == FLP_OK);
  EXPECT(flp_plan_check(plan, NULL) == FLP_OK);
  atomic_fetch_add(&calls_done, 1);
}

/* Few sizes, so that threads meet in the cache and in the table of loaded kernels. */
static void own_device_plan(draw *d) {
  char id[17];
  flp_arena *arena;
  void *memory;
  flp_plan *plan = make_device_plan(1000 + 8 * draw_below(d, 3), draw_one_in(d, 2) ? "" : NULL);
  EXPECT(flp_plan_get_id(plan, id) == FLP_OK);
  launch(plan);
  EXPECT(flp_arena_create(0, &arena) == FLP_OK);
  EXPECT(flp_arena_take(arena, 4096, NULL, &memory) == FLP_OK);
  EXPECT(flp_arena_give_back(arena, memory, NULL) == FLP_OK);
  flp_arena_destroy(arena);
  flp_plan_destroy(plan);
}

/* ---- fork ---- */

/* CUDA does not outlive a fork, the rest does. */
static void child(void) {
  flp_args args = FLP_ARGS_INIT;
  expect_the_same(shared[0]);
  flp_plan *plan = make_plan(1, 0);
  expect_the_same(plan);
  flp_plan_destroy(plan);
  EXPECT(flp_plan_check(shared_device, NULL) == FLP_ERROR_UNAVAILABLE);
  EXPECT(flp_execute(shared_device, &args) != FLP_OK);
  _exit(0);
}

/* The sanitizers' allocators keep their locks over a fork: there a fork waits until no thread is in a round. */
static pthread_rwlock_t round_lock = PTHREAD_RWLOCK_INITIALIZER;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const int forks_wait = 1;
#else
static const int forks_wait = 0;
#endif

static void fork_once(void) {
  int status;
  if (forks_wait) pthread_rwlock_wrlock(&round_lock);
  pid_t pid = fork();
  if (pid == 0) child();
  if (forks_wait) pthread_rwlock_unlock(&round_lock);
  EXPECT(pid > 0);
  EXPECT(waitpid(pid, &status, 0) == pid && status == 0);
  atomic_fetch_add(&forks_done, 1);
}

/* ---- threads ---- */

static void *thread(void *argument) {
  uintptr_t number = (uintptr_t)argument;
  draw d = draw_start(seed, number);
  static atomic_long messages; /* what a callback has counted outlives the thread */
  for (unsigned long long round = 0; round < rounds; round++) {
    if (forks_wait) pthread_rwlock_rdlock(&round_lock);
    expect_the_same(shared[draw_below(&d, SHARED)]);
    own_plan(&d);
    refused_spec(&d);
    log_and_arena(&d, &messages);
    launch(shared_device);
    own_device_plan(&d);
    if (forks_wait) pthread_rwlock_unlock(&round_lock);
    if (number % 16 == 1 && round % 4 == 0) fork_once();
    atomic_fetch_add(&rounds_done, 1);
  }
  return NULL;
}

static void *find(void *library, const char *name) {
  void *address = library ? dlsym(library, name) : NULL;
  if (address) return address;
  fprintf(stderr, "thread_driver: no %s: %s\n", name, dlerror());
  exit(1);
}

/* The stand-ins and a cache of this process; nothing of the user's settings holds. */
static void set_stage(char *folder) {
  static const char *const absent[] = {"FLP_CACHE_PATH", "FLP_PACK_KEYS", "FLP_FORCE",
                                       "FLP_STRICT",     "FLP_BUDGET",    "FAKE_CUDA"};
  for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++) unsetenv(absent[i]);
  setenv("FLP_CUDA_LIBRARY", FLP_TEST_FAKE_CUDA, 1);
  setenv("FLP_JIT_LIBRARY", FLP_TEST_FAKE_PROVIDER, 1);
  setenv("FLP_CACHE_DIR", folder, 1);
  setenv("FLP_GENERIC_DIR", folder, 1);
  void *cuda = dlopen(FLP_TEST_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  void *generator = dlopen(FLP_TEST_FAKE_PROVIDER, RTLD_NOW | RTLD_LOCAL);
  void *reset = find(cuda, "fake_cuda_reset"), *sources = find(generator, "fake_provider_set_sources");
  void (*set_sources)(const uint8_t *);
  memcpy(&forget_launches, &reset, sizeof reset);
  memcpy(&set_sources, &sources, sizeof sources);
  set_sources(flp_sources_hash());
}

/* All that was made on the stand-in is gone. */
static void expect_nothing_held(void) {
  fake_cuda_held_fn held;
  size_t bytes;
  int modules, contexts;
  void *address = find(dlopen(FLP_TEST_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL), "fake_cuda_held");
  memcpy(&held, &address, sizeof address);
  held(&bytes, &modules, &contexts);
  EXPECT(bytes == 0 && modules == 0 && contexts == 0);
}

static void run_all(void) {
  pthread_t ids[THREADS_MAX];
  for (unsigned long long i = 0; i < threads; i++)
    EXPECT(pthread_create(&ids[i], NULL, thread, (void *)(uintptr_t)(i + 1)) == 0);
  for (unsigned long long i = 0; i < threads; i++) pthread_join(ids[i], NULL);
}

static int read_options(int argc, char **argv) {
  for (int i = 1; i < argc; i += 2) {
    unsigned long long *out = strcmp(argv[i], "--seed") == 0      ? &seed
                              : strcmp(argv[i], "--threads") == 0 ? &threads
                              : strcmp(argv[i], "--rounds") == 0  ? &rounds
                                                                  : NULL;
    char *end = NULL;
    if (out && argv[i + 1]) *out = strtoull(argv[i + 1], &end, 10);
    if (!end || *end || end == argv[i + 1]) return 0;
  }
  return threads >= 1 && threads <= THREADS_MAX;
}

int main(int argc, char **argv) {
  char folder[] = "/tmp/flp_threads_XXXXXX", command[64];
  if (argc == 2 && strcmp(argv[1], "--help") == 0) return fputs(usage, stdout) < 0;
  if (!read_options(argc, argv)) return fputs(usage, stderr), 2;
  if (!mkdtemp(folder)) failed("mkdtemp");
  set_stage(folder);
  fill_operands();
  for (int i = 0; i < SHARED; i++) shared[i] = make_plan(1 + i, 0);
  run(shared[0], &expected);
  shared_device = make_device_plan(1000, NULL);
  EXPECT(flp_arena_create(FLP_DEVICE_HOST, &shared_arena) == FLP_OK);
  run_all();
  for (int i = 0; i < SHARED; i++) flp_plan_destroy(shared[i]);
  flp_plan_destroy(shared_device);
  flp_arena_destroy(shared_arena);
  expect_nothing_held();
  snprintf(command, sizeof command, "rm -r %s", folder);
  if (system(command) != 0) failed("the cache could not be removed");
  printf("thread_driver: seed %llu, %llu threads, %ld rounds: %ld calls, %ld forks\n", seed, threads,
         atomic_load(&rounds_done), atomic_load(&calls_done), atomic_load(&forks_done));
  return 0;
}
