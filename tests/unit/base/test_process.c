/* test_process.c: what a fork leaves to the child while other threads use the library, and the signals of its threads.
 * */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/process.h"
#include "runtime/eager/core.h"
#include "tests/unit/support/stage.h"
#include "tests/unit/support/words.h"

enum { HANG_SECONDS = 300 }; /* a child that waits for nobody is ended then */

/* Runs what the child does; it must return NULL, or a description of what was wrong. */
typedef const char *(*child_fn)(void *context);

static void expect_child(child_fn run, void *context) {
  fflush(NULL);
  pid_t pid = fork();
  cr_assert_geq(pid, 0);
  if (pid == 0) {
    alarm(HANG_SECONDS);
    const char *wrong = run(context);
    if (wrong) fprintf(stderr, "child: %s (%s)\n", wrong, flp_error_detail());
    _exit(wrong ? 1 : 0);
  }
  int status = 0;
  cr_assert_eq(waitpid(pid, &status, 0), pid);
  cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
}

/* ---- locks ---- */

static const char *take_every_lock(void *context) {
  (void)context;
  for (int i = 0; i < FLP_LOCK_COUNT; i++) flp_lock((flp_lock_id)i);
  for (int i = 0; i < FLP_LOCK_COUNT; i++) flp_unlock((flp_lock_id)i);
  return NULL;
}

/* libcuda forks in cuInit, which runs under a lock. */
Test(process, the_thread_that_forks_may_hold_locks) {
  for (int i = 0; i < FLP_LOCK_COUNT; i++) {
    flp_lock((flp_lock_id)i);
    expect_child(take_every_lock, NULL);
    flp_unlock((flp_lock_id)i);
    take_every_lock(NULL);
  }
}

static atomic_int stop;
static volatile long pair[FLP_LOCK_COUNT][2];

static void *change_pairs(void *context) {
  (void)context;
  for (int i = 0; !atomic_load(&stop); i = (i + 1) % FLP_LOCK_LOG_TARGET) {
    flp_lock((flp_lock_id)i);
    pair[i][0]++;
    for (int spin = 0; spin < 1000; spin++) (void)flp_process();
    pair[i][1]++;
    flp_unlock((flp_lock_id)i);
  }
  return NULL;
}

static const char *compare_pairs(void *context) {
  take_every_lock(context);
  for (int i = 0; i < FLP_LOCK_COUNT; i++)
    if (pair[i][0] != pair[i][1]) return "half of a change";
  return NULL;
}

Test(process, what_locks_protect_is_whole_in_the_child) {
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) cr_assert_eq(pthread_create(&threads[i], NULL, change_pairs, NULL), 0);
  for (int i = 0; i < 200; i++) expect_child(compare_pairs, NULL);
  atomic_store(&stop, 1);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

static const char *count_forks(void *context) {
  const unsigned *before = context;
  return flp_process() == *before + 1 ? NULL : "not counted";
}

Test(process, forks_are_counted_in_the_child) {
  unsigned before = flp_process();
  expect_child(count_forks, &before);
  cr_expect_eq(flp_process(), before);
}

/* ---- plans while another thread makes some ---- */

static flp_status create_host_plan(flp_plan **plan) {
  flp_spec spec = words_spec("dtype=fp32 V=50 D=8");
  flp_options options = words_options("rung=auto device=host threads=4");
  return flp_plan_create(&spec, &options, plan);
}

/* One pass over host memory with several threads; row 1 is bad. */
static const char *run_host_plan(flp_plan *plan) {
  static float hidden[4 * 8], weight[50 * 8], logprob[4];
  static int64_t target[4] = {0, 50, 2, 49};
  static _Alignas(256) char workspace[8 << 20];
  for (int i = 0; i < 50 * 8; i++) weight[i] = (float)(i % 7);
  for (int i = 0; i < 4 * 8; i++) hidden[i] = (float)(i % 3);
  flp_args args = FLP_ARGS_INIT;
  args.n = 4;
  args.hidden = hidden;
  args.weight = weight;
  args.target = target;
  args.logprob = logprob;
  args.workspace = workspace;
  if (flp_plan_workspace(plan, FLP_PASS_FORWARD, 4, sizeof workspace, &args.workspace_bytes) != FLP_OK)
    return "workspace";
  if (flp_execute(plan, &args) != FLP_OK) return "execute";
  if (!(logprob[0] < 0 && logprob[3] <= 0)) return "numbers";
  return flp_plan_check(plan, NULL) == FLP_ERROR_DATA ? NULL : "check";
}

static const char *use_host_plans(void *plan_of_parent) {
  flp_plan *plan;
  if (create_host_plan(&plan) != FLP_OK) return "create";
  const char *wrong = run_host_plan(plan);
  flp_plan_destroy(plan);
  return !wrong && plan_of_parent ? run_host_plan(plan_of_parent) : wrong;
}

/* The child has no GPU, and reports it; all else works. */
static const char *use_everything(void *plan_of_parent) {
  flp_spec spec = stage_spec(0);
  flp_plan *plan;
  flp_log_set(NULL, NULL);
  if (flp_plan_create(&spec, NULL, &plan) != FLP_ERROR_UNAVAILABLE) return "a GPU plan in the child";
  if (!strstr(flp_error_detail(), "CUDA does not outlive a fork, and the parent process has opened "))
    return "the reason";
  flp_options options = words_options("rung=auto host_fallback");
  if (flp_plan_create(&spec, &options, &plan) != FLP_OK || flp_plan_get_rung(plan) != FLP_RUNG_EAGER) return "fallback";
  flp_plan_destroy(plan);
  return use_host_plans(plan_of_parent);
}

static void *make_plans(void *context) {
  (void)context;
  flp_spec spec = stage_spec(FLP_GRAD_HIDDEN);
  while (!atomic_load(&stop)) flp_plan_destroy(stage_plan(&spec, NULL));
  return NULL;
}

static void *run_host_plans(void *context) {
  while (!atomic_load(&stop)) use_host_plans(context);
  return NULL;
}

Test(process, a_child_works_whatever_other_threads_were_doing) {
#ifdef __SANITIZE_ADDRESS__
  cr_skip_test("the allocator of AddressSanitizer keeps the locks of the parent's other threads");
#endif
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(0);
  flp_plan_destroy(stage_plan(&spec, NULL)); /* libcuda is open from here */
  flp_plan *host;
  cr_assert_eq(create_host_plan(&host), FLP_OK, "%s", flp_error_detail());
  pthread_t makers[2], runner;
  for (int i = 0; i < 2; i++) cr_assert_eq(pthread_create(&makers[i], NULL, make_plans, NULL), 0);
  cr_assert_eq(pthread_create(&runner, NULL, run_host_plans, NULL), 0);
  for (int i = 0; i < 100; i++) expect_child(use_everything, host);
  atomic_store(&stop, 1);
  for (int i = 0; i < 2; i++) pthread_join(makers[i], NULL);
  pthread_join(runner, NULL);
  flp_plan_destroy(host);
}

/* ---- a fork while a message is on its way: like Python's, its receiver waits for the thread that forks ---- */

static int entered[2], leave[2]; /* pipes */

static void wait_inside(flp_log_level level, const char *message, void *user) {
  (void)level;
  (void)user;
  char byte = 0;
  if (!strstr(message, "pack ")) return;
  if (write(entered[1], &byte, 1) != 1 || read(leave[0], &byte, 1) != 1) abort();
}

static int no_key(void *context, const char *key) {
  (void)context;
  (void)key;
  return 1;
}

static const char *log_and_read_packs(void *path) {
  flp_store *store;
  flp_log_set(NULL, NULL);
  flp_log(FLP_LOG_WARNING, "a message");
  if (flp_store_open(NULL, path, &store) != FLP_OK || flp_store_each_key(store, no_key, NULL) != FLP_OK) return "store";
  flp_store_close(store);
  return NULL;
}

static void *make_one_plan(void *context) {
  (void)context;
  flp_spec spec = stage_spec(0);
  flp_plan_destroy(stage_plan(&spec, NULL));
  return NULL;
}

Test(process, a_fork_does_not_wait_for_the_log_callback) {
  stage s;
  stage_open(&s, "");
  char path[400], byte = 0;
  snprintf(path, sizeof path, "%s/bad.flpp", s.root);
  FILE *file = fopen(path, "w");
  cr_assert(file && fputs("not a pack", file) >= 0 && fclose(file) == 0);
  setenv("FLP_CACHE_PATH", path, 1);
  cr_assert(pipe(entered) == 0 && pipe(leave) == 0);
  flp_log_set(wait_inside, NULL);
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, make_one_plan, NULL), 0);
  cr_assert_eq(read(entered[0], &byte, 1), 1);
  expect_child(log_and_read_packs, path);
  cr_assert_eq(write(leave[1], &byte, 1), 1);
  pthread_join(thread, NULL);
}

/* ---- what the parent made ---- */

typedef struct possessions {
  stage *stage;
  flp_plan *plan;
  flp_arena *arena, *host_arena;
  flp_args args;
} possessions;

static const char refused[] =
    "is one of a GPU that the parent process made, and CUDA does not outlive a fork (accepted: ";

static int is_refused(flp_status status) {
  return status == FLP_ERROR_UNAVAILABLE && strstr(flp_error_detail(), refused);
}

static const char *use_what_the_parent_made(void *context) {
  possessions *p = context;
  char text[2000];
  void *memory;
  flp_arena_stats stats = FLP_ARENA_STATS_INIT;
  p->stage->reset();
  if (!is_refused(flp_execute(p->plan, &p->args))) return "execute";
  if (!is_refused(flp_plan_check(p->plan, NULL))) return "check";
  if (flp_plan_describe(p->plan, text, sizeof text) != FLP_OK || !strstr(text, "rung jit")) return "describe";
  if (!is_refused(flp_arena_take(p->arena, 1000, NULL, &memory))) return "arena take";
  if (!is_refused(flp_arena_give_back(p->arena, p, NULL))) return "arena give back";
  if (!is_refused(flp_arena_end_phase(p->arena, NULL))) return "arena end phase";
  if (!is_refused(flp_arena_get_stats(p->arena, &stats))) return "arena statistics";
  flp_arena_reset_peaks(p->arena);
  flp_arena_destroy(p->arena);
  flp_plan_destroy(p->plan);
  if (p->stage->calls(NULL) != 0) return "a CUDA call";
  if (flp_arena_take(p->host_arena, 1000, NULL, &memory) != FLP_OK) return "host arena";
  memset(memory, 1, 1000);
  if (flp_arena_give_back(p->host_arena, memory, NULL) != FLP_OK) return "host arena give back";
  flp_arena_destroy(p->host_arena);
  return NULL;
}

Test(process, what_a_gpu_holds_stays_with_the_parent) {
  stage s;
  stage_open(&s, "");
  flp_spec spec = stage_spec(0);
  possessions p = {.stage = &s, .plan = stage_plan(&spec, NULL), .args = stage_args(&spec, FLP_PASS_FORWARD, 100)};
  void *memory;
  p.args.workspace_bytes = stage_workspace(p.plan, FLP_PASS_FORWARD, 100, 0);
  cr_assert_eq(flp_arena_create(0, &p.arena), FLP_OK);
  cr_assert_eq(flp_arena_create(FLP_DEVICE_HOST, &p.host_arena), FLP_OK);
  cr_assert_eq(flp_arena_take(p.arena, 5000, NULL, &memory), FLP_OK);
  expect_child(use_what_the_parent_made, &p);
  cr_expect_eq(flp_arena_give_back(p.arena, memory, NULL), FLP_OK);
  stage_execute(&s, p.plan, &p.args);
  flp_arena_destroy(p.arena);
  flp_arena_destroy(p.host_arena);
  flp_plan_destroy(p.plan);
}

/* ---- signals ---- */

static void expect_all_but_faults_blocked(void) {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, NULL, &blocked);
  static const int some[] = {SIGINT, SIGALRM, SIGTERM, SIGCHLD, SIGUSR1, SIGPROF, SIGHUP};
  for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) cr_expect(sigismember(&blocked, some[i]), "%d", some[i]);
  cr_expect_not(sigismember(&blocked, SIGSEGV));
}

enum { TEAM = 4 };
static pthread_barrier_t all_here;
static pthread_t caller;
static atomic_int workers;

/* Each thread takes one unit, as none ends before all have begun. */
static void look_at_signals(void *context, int64_t unit, int worker) {
  (void)context;
  (void)unit;
  pthread_barrier_wait(&all_here);
  if (pthread_equal(pthread_self(), caller)) return;
  cr_expect_gt(worker, 0);
  expect_all_but_faults_blocked();
  atomic_fetch_add(&workers, 1);
}

Test(process, threads_of_the_eager_rung_take_no_signals) {
  static eager_team team;
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, NULL, &before);
  caller = pthread_self();
  pthread_barrier_init(&all_here, NULL, TEAM);
  eager_team_start(&team, TEAM);
  eager_team_run(&team, TEAM, look_at_signals, NULL);
  eager_team_stop(&team);
  pthread_sigmask(SIG_SETMASK, NULL, &after);
  cr_expect_eq(atomic_load(&workers), TEAM - 1);
  cr_expect_eq(sigismember(&before, SIGINT), sigismember(&after, SIGINT), "the caller's mask is as it was");
}

/* Whatever starts a thread starts it there. */
Test(process, only_one_file_starts_threads) {
  char line[512] = "", more[512];
  FILE *found = popen("cd '" FLP_TEST_TREE "' && grep -rl --include=*.c 'pthread_create *(' runtime gen autotune", "r");
  cr_assert_not_null(found);
  cr_assert_not_null(fgets(line, sizeof line, found));
  cr_expect_str_eq(line, "runtime/base/process.c\n");
  cr_expect_null(fgets(more, sizeof more, found), "%s", more);
  pclose(found);
}
