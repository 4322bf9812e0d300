/* threads.c: a team of threads that share the units of one job after another.
 *
 * Invariants: generation counts jobs, so a worker that wakes late cannot take a job twice; units are handed out by one
 * atomic counter, so which worker does which is unspecified and results must not depend on it. */
#include <string.h>

#include "runtime/base/process.h"
#include "runtime/eager/core.h"

static void do_units(eager_team *team, int worker) {
  for (;;) {
    long long unit = atomic_fetch_add(&team->next, 1);
    if (unit >= team->units) return;
    team->work(team->context, unit, worker);
  }
}

static int worker_of(eager_team *team) {
  pthread_t self = pthread_self();
  for (int i = 1; i < team->count; i++)
    if (pthread_equal(team->threads[i], self)) return i;
  return 0;
}

static void *worker_main(void *argument) {
  eager_team *team = argument;
  eager_blas_enter_thread();
  uint64_t done = 0;
  pthread_mutex_lock(&team->lock);
  int worker = 0; /* known once a job has begun: by then every thread id is stored */
  for (;;) {
    while (team->generation == done && !team->stopping) pthread_cond_wait(&team->begun, &team->lock);
    if (team->stopping) break;
    done = team->generation;
    if (worker == 0) worker = worker_of(team);
    pthread_mutex_unlock(&team->lock);
    do_units(team, worker);
    pthread_mutex_lock(&team->lock);
    if (--team->busy == 0) pthread_cond_signal(&team->ended);
  }
  pthread_mutex_unlock(&team->lock);
  return NULL;
}

void eager_team_start(eager_team *team, int threads) {
  memset(team, 0, sizeof *team);
  pthread_mutex_init(&team->lock, NULL);
  pthread_cond_init(&team->begun, NULL);
  pthread_cond_init(&team->ended, NULL);
  eager_blas_enter_thread();
  team->count = 1;
  while (team->count < threads && team->count < EAGER_THREADS_MAX) {
    if (flp_thread_start(&team->threads[team->count], worker_main, team) != 0) return;
    team->count++;
  }
}

void eager_team_run(eager_team *team, int64_t units, eager_work_fn work, void *context) {
  pthread_mutex_lock(&team->lock);
  team->work = work;
  team->context = context;
  team->units = units;
  atomic_store(&team->next, 0);
  team->busy = team->count - 1;
  team->generation++;
  pthread_cond_broadcast(&team->begun);
  pthread_mutex_unlock(&team->lock);
  do_units(team, 0);
  pthread_mutex_lock(&team->lock);
  while (team->busy > 0) pthread_cond_wait(&team->ended, &team->lock);
  pthread_mutex_unlock(&team->lock);
}

void eager_team_stop(eager_team *team) {
  pthread_mutex_lock(&team->lock);
  team->stopping = 1;
  pthread_cond_broadcast(&team->begun);
  pthread_mutex_unlock(&team->lock);
  for (int i = 1; i < team->count; i++) pthread_join(team->threads[i], NULL);
  pthread_cond_destroy(&team->ended);
  pthread_cond_destroy(&team->begun);
  pthread_mutex_destroy(&team->lock);
}
