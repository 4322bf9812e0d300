/* process.c: threads and processors of the process, and what a parent process made (process.h). */
#include "runtime/base/process.h"

#include <sched.h>
#include <signal.h>
#include <stddef.h>

flp_status flp_process_check(const char *what, unsigned made_in) {
  if (made_in == flp_process()) return FLP_OK;
  return flp_fail(FLP_ERROR_UNAVAILABLE,
                  "the %s is one of a GPU that the parent process made, and CUDA does not outlive a fork (accepted: "
                  "a %s of this process)",
                  what, what);
}

/* Faults stay unblocked: a blocked one would kill the process without the host's handler. */
static void block_signals(sigset_t *before) {
  static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
  sigset_t all;
  sigfillset(&all);
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) sigdelset(&all, faults[i]);
  pthread_sigmask(SIG_SETMASK, &all, before);
}

int flp_thread_start(pthread_t *thread, void *(*work)(void *), void *argument) {
  sigset_t before;
  block_signals(&before);
  int failed = pthread_create(thread, NULL, work, argument);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return failed;
}

int flp_processors(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}
