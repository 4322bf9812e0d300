/* locks.c: the locks of the process, and what a fork does to them (process.h).
 *
 * Invariant: the handlers run in every fork of a process that has this code loaded, from the moment it is loaded. */
#include "runtime/base/process.h"

#include <stdatomic.h>
#include <stddef.h>

static pthread_mutex_t locks[FLP_LOCK_COUNT] = {
#define FREE(NAME, waits) [FLP_LOCK_##NAME] = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP,
    FLP_LOCK_LIST(FREE)
#undef FREE
};

static const int waited_for[FLP_LOCK_COUNT] = {
#define WAITS(NAME, waits) [FLP_LOCK_##NAME] = (waits),
    FLP_LOCK_LIST(WAITS)
#undef WAITS
};

static atomic_uint process;

void flp_lock(flp_lock_id id) {
  pthread_mutex_lock(&locks[id]);
}

void flp_unlock(flp_lock_id id) {
  pthread_mutex_unlock(&locks[id]);
}

/* ---- code of others that a fork must not cut in two ---- */

static const pthread_rwlock_t open_gate = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static pthread_rwlock_t gate = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static _Thread_local int inside;

void flp_fork_hold(void) {
  if (inside++ == 0) pthread_rwlock_rdlock(&gate);
}

void flp_fork_release(void) {
  if (--inside == 0) pthread_rwlock_unlock(&gate);
}

/* ---- forks ---- */

/* A signal handler may fork inside; that thread does not wait for itself. */
static void before_fork(void) {
  for (int i = 0; i < FLP_LOCK_COUNT; i++)
    if (waited_for[i]) pthread_mutex_lock(&locks[i]);
  if (!inside) pthread_rwlock_wrlock(&gate);
}

static void after_fork_in_parent(void) {
  if (!inside) pthread_rwlock_unlock(&gate);
  for (int i = FLP_LOCK_COUNT - 1; i >= 0; i--)
    if (waited_for[i]) pthread_mutex_unlock(&locks[i]);
}

/* A lock is initialised again, not unlocked: a recursive lock belongs to the parent's thread. */
static void after_fork_in_child(void) {
  gate = open_gate;
  if (inside) pthread_rwlock_rdlock(&gate);
  static const pthread_mutex_t unlocked = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
  for (int i = 0; i < FLP_LOCK_COUNT; i++) locks[i] = unlocked;
  atomic_fetch_add(&process, 1);
}

__attribute__((constructor)) static void watch_forks(void) {
  (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

unsigned flp_process(void) {
  return atomic_load(&process);
}
