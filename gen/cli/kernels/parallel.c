/* parallel.c: threads that take jobs from one counter.
 *
 * Invariant: a job is begun only after all before it, so the first that fails is the one that fails on one thread
 * too. */
#include "gen/cli/kernels/parallel.h"

#include <pthread.h>

#include "gen/cli/shared/progress.h"
#include "runtime/base/process.h"

enum { THREADS_MAX = 16 };

/* Everything but job, context and count is under the lock. */
typedef struct batch {
  cli_job_fn job;
  void *context;
  size_t count, next, done;
  size_t failed;       /* least index that failed, or count */
  flp_failure failure; /* its own */
  cli_progress progress;
  pthread_mutex_t lock;
} batch;

static void *work(void *context) {
  batch *shared = context;
  pthread_mutex_lock(&shared->lock);
  while (shared->next < shared->count && shared->failed == shared->count) {
    size_t i = shared->next++;
    pthread_mutex_unlock(&shared->lock);
    flp_status status = shared->job(shared->context, i);
    pthread_mutex_lock(&shared->lock);
    if (status != FLP_OK && i < shared->failed) {
      shared->failed = i;
      shared->failure = flp_failure_hold(status);
    }
    cli_progress_update(&shared->progress, (int64_t)++shared->done, (int64_t)shared->count);
  }
  pthread_mutex_unlock(&shared->lock);
  return NULL;
}

static void run(batch *shared) {
  int processors = flp_processors();
  size_t threads = processors > THREADS_MAX ? THREADS_MAX : (size_t)processors, started = 0;
  pthread_t ids[THREADS_MAX];
  if (threads > shared->count) threads = shared->count;
  while (started + 1 < threads && flp_thread_start(&ids[started], work, shared) == 0) started++;
  work(shared);
  for (size_t i = 0; i < started; i++) pthread_join(ids[i], NULL);
}

flp_status cli_parallel(cli_job_fn job, void *context, size_t count, const char *label) {
  batch shared = {.job = job, .context = context, .count = count, .failed = count};
  pthread_mutex_init(&shared.lock, NULL);
  cli_progress_start(&shared.progress, label ? label : "", label == NULL);
  run(&shared);
  cli_progress_end(&shared.progress);
  pthread_mutex_destroy(&shared.lock);
  return flp_failure_restore(&shared.failure);
}
