/* process.h: locks and threads of the process, and how they survive a fork.
 *
 * A fork copies one thread and every lock as it is. So the thread that forks first takes the locks below, in their
 * order, and what they protect is whole in the child, which starts with all of them free. A fork does not wait for
 * two of them. They are held while the host's log callback runs, which may wait for the forking thread (Python's
 * callback waits for the interpreter's lock): LOG protects nothing else, and of PACKS the child starts anew.
 * No thread holds one of the others while it takes a second; all are recursive, since libcuda may fork in cuInit. */
#ifndef FLP_PROCESS_H
#define FLP_PROCESS_H

#include <pthread.h>

#include "runtime/base/status.h"

/* ---- locks.c ---- */

/* Name, and whether a fork waits for it. */
#define FLP_LOCK_LIST(LOCK)                                                  \
  LOCK(DRIVER, 1)      /* driver.c: libraries that are open */               \
  LOCK(PROVIDER, 1)    /* jit.c: likewise */                                 \
  LOCK(BLAS, 1)        /* eager/blas.c: passes that multiply */              \
  LOCK(HOST_ARENAS, 1) /* arena.c: every arena of host memory */             \
  LOCK(REASONS, 1)     /* ladder.c: what was logged */                       \
  LOCK(KERNELS, 1)     /* store/memory.c: kernels that no cache took */      \
  LOCK(TOPICS, 1)      /* store/warn.c: what was logged */                   \
  LOCK(LOG_TARGET, 1)  /* status.c: where messages go, while that changes */ \
  LOCK(PACKS, 0)       /* store/pack.c: tables of packs */                   \
  LOCK(LOG, 0)         /* status.c: one message at a time; LOG_TARGET is taken inside */

typedef enum flp_lock_id {
#define FLP_LOCK_ID(NAME, waits) FLP_LOCK_##NAME,
  FLP_LOCK_LIST(FLP_LOCK_ID)
#undef FLP_LOCK_ID
      FLP_LOCK_COUNT
} flp_lock_id;

void flp_lock(flp_lock_id id);
void flp_unlock(flp_lock_id id);

/* Brackets code of a library that has locks of its own: a fork waits until no thread is inside, so that the child has
 * them free. Threads run inside side by side, and may nest; they take none of the locks above there. */
void flp_fork_hold(void);
void flp_fork_release(void);

/* The number of forks that led to this process; it identifies objects that a parent made. */
unsigned flp_process(void);

/* ---- process.c ---- */

/* Refuses an object of a parent process. what: "plan", "arena". error: UNAVAILABLE */
flp_status flp_process_check(const char *what, unsigned made_in);

/* pthread_create of a thread that the host's signal handlers never run on: it blocks every signal but those that its
 * instructions raise. */
int flp_thread_start(pthread_t *thread, void *(*work)(void *), void *argument);

/* The number of processors that this process may run on. */
int flp_processors(void);

#endif
