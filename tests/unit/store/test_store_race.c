/* test_store_race.c: the kernel cache between processes and threads: one compile a key, whoever dies or dawdles. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/store/internal.h"
#include "tests/unit/support/kernel_sample.h"

static const char key[] = "flp-key/1 race";

enum { KEY_BYTES = sizeof key - 1, PTX_BYTES = 300000 };

/* Lives in memory that forked processes share. */
typedef struct shared {
  atomic_int ready, go, makes, right;
} shared;

/* Of every test: a fresh cache and its directory, the name of the key's files, and what is shared. */
static const char *directory;
static int folder;
static char hex[STORE_HEX + 1], path[512];
static shared *s;

static void open_cache(void) {
  directory = sample_directory();
  folder = open(directory, O_RDONLY | O_DIRECTORY);
  cr_assert_geq(folder, 0);
  store_entry_name(key, KEY_BYTES, hex);
  s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  cr_assert_neq(s, MAP_FAILED);
}

TestSuite(store_race, .init = open_cache);

static int take_lock(uint32_t timeout_ms) {
  int lock;
  store_lock_take(folder, hex, timeout_ms, &lock);
  return lock;
}

/* A child that must end well. */
static void wait_for(pid_t pid) {
  int status;
  cr_assert_eq(waitpid(pid, &status, 0), pid);
  cr_expect_eq(status, 0);
}

static void sleep_us(long us) {
  struct timespec t = {us / 1000000, us % 1000000 * 1000};
  nanosleep(&t, NULL);
}

static flp_status make_slowly(void *context, flp_kernel_image *out) {
  shared *s = context;
  atomic_fetch_add(&s->makes, 1);
  sleep_us(50000);
  *out = sample_image(FLP_KERNEL_FORWARD, PTX_BYTES, 1);
  return FLP_OK;
}

/* One get_or_make; counts in s->right if the image is the right one. Returns *made, or -1. */
static int get_one(const char *cache, uint32_t timeout_ms) {
  flp_store *store;
  flp_kernel_image got, want = sample_image(FLP_KERNEL_FORWARD, PTX_BYTES, 1);
  int made = -1;
  if (flp_store_open(cache, NULL, &store) == FLP_OK &&
      flp_store_get_or_make(store, key, KEY_BYTES, timeout_ms, make_slowly, s, &got, &made) == FLP_OK) {
    if (sample_image_equal(&got, &want)) atomic_fetch_add(&s->right, 1);
    flp_kernel_image_clear(&got);
  }
  flp_kernel_image_clear(&want);
  flp_store_close(store);
  return made;
}

/* Forks count processes that start together on the same cold key. */
static void race(const char *cache, int count) {
  for (int i = 0; i < count; i++) {
    pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (pid) continue;
    atomic_fetch_add(&s->ready, 1);
    while (!atomic_load(&s->go)) sleep_us(1000);
    _exit(get_one(cache, 60000) < 0);
  }
  while (atomic_load(&s->ready) < count) sleep_us(1000);
  atomic_store(&s->go, 1);
  for (int i = 0, status; i < count; i++) {
    cr_assert_gt(wait(&status), 0);
    cr_expect_eq(status, 0);
  }
}

Test(store_race, sixty_four_processes_compile_once) {
  snprintf(path, sizeof path, "%s/cold", directory);
  race(path, 64);
  cr_expect_eq(atomic_load(&s->makes), 1, "%d compiles", atomic_load(&s->makes));
  cr_expect_eq(atomic_load(&s->right), 64);
  cr_expect_eq(sample_count(path, ".flpk"), 1);
  cr_expect_eq(sample_count(path, ".tmp-"), 0);
}

Test(store_race, sixty_four_processes_replace_a_corrupt_entry_once) {
  snprintf(path, sizeof path, "%s/%s.flpk", directory, hex);
  FILE *file = fopen(path, "w");
  fputs("FLPK", file);
  fclose(file);
  race(directory, 64);
  cr_expect_eq(atomic_load(&s->makes), 1, "%d compiles", atomic_load(&s->makes));
  cr_expect_eq(atomic_load(&s->right), 64);
  cr_expect_eq(sample_count(directory, ".bad-"), 1);
}

static void *thread_main(void *unused) {
  (void)unused;
  get_one(directory, 60000);
  return NULL;
}

Test(store_race, threads_of_one_process_compile_once) {
  pthread_t threads[8];
  for (int i = 0; i < 8; i++) cr_assert_eq(pthread_create(&threads[i], NULL, thread_main, NULL), 0);
  for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
  cr_expect_eq(atomic_load(&s->makes), 1);
  cr_expect_eq(atomic_load(&s->right), 8);
}

Test(store_race, lock_that_is_not_had_means_a_private_compile) {
  int lock = take_lock(0);
  cr_assert_geq(lock, 0);
  struct timespec before, after;
  clock_gettime(CLOCK_MONOTONIC, &before);
  cr_expect_eq(get_one(directory, 100), 1);
  clock_gettime(CLOCK_MONOTONIC, &after);
  double seconds = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
  cr_expect_geq(seconds, 0.1, "it waited for the lock first");
  cr_expect_eq(atomic_load(&s->makes), 1);
  cr_expect_eq(atomic_load(&s->right), 1);
  cr_expect_eq(get_one(directory, 100), 0, "what was compiled in private is stored all the same");
  store_lock_release(lock);
}

Test(store_race, waiter_takes_what_the_holder_stored) {
  pid_t pid = fork();
  if (!pid) _exit(get_one(directory, 1000) != 1);
  while (atomic_load(&s->makes) == 0) sleep_us(500);
  cr_expect_eq(get_one(directory, 60000), 0);
  wait_for(pid);
  cr_expect_eq(atomic_load(&s->makes), 1);
}

Test(store_race, lock_whose_file_was_removed_is_taken_anew) {
  int first = take_lock(0);
  snprintf(path, sizeof path, "%s/%s.lock", directory, hex);
  cr_assert_eq(unlink(path), 0);
  int second = take_lock(0);
  cr_expect_geq(second, 0, "the name stands for a new lock");
  cr_expect_lt(take_lock(20), 0);
  store_lock_release(first);
  store_lock_release(second);
  int third = take_lock(0);
  cr_expect_geq(third, 0);
  store_lock_release(third);
}

/* Stands before libc's flock in this program: once, it removes the lock's file between its opening and its locking,
 * as `collect` in another process may. */
static const char *remove_before_flock;

int flock(int fd, int operation) {
  if (remove_before_flock) {
    cr_assert_eq(unlink(remove_before_flock), 0);
    remove_before_flock = NULL;
  }
  return (int)syscall(SYS_flock, fd, operation);
}

Test(store_race, lock_whose_file_goes_while_it_is_taken_is_not_had) {
  snprintf(path, sizeof path, "%s/%s.lock", directory, hex);
  remove_before_flock = path;
  int lock = take_lock(1000);
  cr_assert_geq(lock, 0);
  cr_expect_null(remove_before_flock);
  struct stat held, named;
  cr_assert_eq(fstat(lock, &held), 0);
  cr_assert_eq(stat(path, &named), 0, "the second try made the file anew");
  cr_expect_eq(held.st_ino, named.st_ino);
  store_lock_release(lock);
}

Test(store_race, released_lock_is_free_although_a_child_shares_it) {
  int lock = take_lock(0);
  pid_t pid = fork(); /* e.g. a data loader of the host, forked during a compile */
  if (!pid) {
    pause();
    _exit(0);
  }
  store_lock_release(lock);
  int again = take_lock(0);
  cr_expect_geq(again, 0);
  store_lock_release(again);
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
}

/* ---- makers that are killed ---- */

static flp_status make_and_die(void *context, flp_kernel_image *out) {
  (void)context;
  (void)out;
  raise(SIGKILL);
  return FLP_ERROR_INTERNAL;
}

Test(store_race, maker_killed_while_compiling_blocks_nobody) {
  pid_t pid = fork();
  if (!pid) {
    flp_store *store;
    flp_kernel_image got;
    int made;
    flp_store_open(directory, NULL, &store);
    flp_store_get_or_make(store, key, KEY_BYTES, 1000, make_and_die, NULL, &got, &made);
    _exit(0);
  }
  int status;
  cr_assert_eq(waitpid(pid, &status, 0), pid);
  cr_assert(WIFSIGNALED(status));
  cr_expect_eq(get_one(directory, 60000), 1);
  cr_expect_eq(atomic_load(&s->right), 1);
}

static int expect_sound(void *context, const flp_store_item *item) {
  (void)context;
  cr_expect_eq(item->status, FLP_OK, "%s", item->reason);
  return 1;
}

/* A child puts one entry after the other until it is killed. */
static void put_for_ever(void) {
  flp_store *store;
  flp_kernel_image image = sample_image(FLP_KERNEL_FORWARD, PTX_BYTES, 1);
  flp_store_open(directory, NULL, &store);
  for (int i = 0;; i++) {
    char text[32];
    int length = snprintf(text, sizeof text, "key %d", i % 4);
    flp_store_put(store, text, (size_t)length, &image);
    atomic_fetch_add(&s->makes, 1);
  }
}

Test(store_race, writer_killed_at_any_time_leaves_the_cache_valid, .timeout = 120) {
  enum { ROUNDS = 60 };
  flp_store *store;
  cr_assert_eq(flp_store_open(directory, NULL, &store), FLP_OK);
  for (int round = 0; round < ROUNDS; round++) {
    int before = atomic_load(&s->makes);
    pid_t pid = fork();
    if (!pid) put_for_ever();
    while (atomic_load(&s->makes) == before) sleep_us(100);
    sleep_us(round * 37 % 1000); /* somewhere in the next put */
    kill(pid, SIGKILL);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    cr_assert_eq(flp_store_each(store, expect_sound, NULL), FLP_OK);
    cr_expect_eq(get_one(directory, 60000), round == 0, "round %d", round);
  }
  cr_expect_eq(atomic_load(&s->right), ROUNDS);
  cr_expect_eq(sample_count(directory, ".bad-"), 0);
  flp_store_close(store);
}
