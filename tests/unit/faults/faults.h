/* faults.h: makes the k-th call of a system function fail, in programs of this folder, which are linked with --wrap.
 *
 *   int k = 0;
 *   do {
 *     faults_arm(FAULTS_MEMORY, ++k, 0);
 *     ... the operation ...
 *     failed = faults_disarm();        what failed in it: "malloc"; NULL: it made fewer than k such calls
 *     ... what must hold after either ...
 *   } while (failed);
 *
 * Calls count while armed, on all threads, if libflp's objects or the program's make them; those of shared libraries
 * (libc, the stand-ins) do not. One call fails, those behind it do not: each way out of an operation is met alone. */
#ifndef FLP_TEST_FAULTS_H
#define FLP_TEST_FAULTS_H

#include "runtime/flp.h"

typedef enum faults_kind {
  FAULTS_MEMORY = 1, /* malloc, calloc, realloc, strdup, asprintf, aligned_alloc, getcwd, realpath */
  FAULTS_OPEN = 2,   /* open, openat, fdopendir */
  FAULTS_READ = 4,   /* read, pread */
  FAULTS_WRITE = 8,  /* write, fsync, close, renameat, unlinkat */
  FAULTS_STAT = 16,  /* fstat, fstatat, lstat */
  FAULTS_LOCK = 32,  /* flock */
  FAULTS_THREAD = 64,
  FAULTS_START = 128,  /* sodium_init, sched_getaffinity, dladdr1, getpwuid_r */
  FAULTS_CREATE = 256, /* mkdir, getrandom */
  FAULTS_FILES = FAULTS_CREATE | FAULTS_OPEN | FAULTS_READ | FAULTS_WRITE | FAULTS_STAT | FAULTS_LOCK
} faults_kind;

/* error: errno of the call that fails; 0 for that of each kind: ENOMEM, EIO, EAGAIN. FAULTS_END: read and pread find
 * the end of the file instead. */
enum { FAULTS_END = -1 };
void faults_arm(unsigned kinds, int k, int error);
const char *faults_disarm(void);

/* An operation for faults_each. Nothing fails in prepare and check, which may be NULL. */
typedef struct faults_operation {
  const char *name;
  void (*prepare)(void);
  flp_status (*run)(void);
  void (*check)(flp_status status, const char *failed); /* looks at what run did, and gives it back */
  unsigned accepted; /* FAULTS_MAY(status) of what run may return when a call failed, beside FLP_OK */
} faults_operation;

#define FAULTS_MAY(status) (1u << FLP_ERROR_##status)

/* Runs it with call 1, 2, ... failing, until it makes no further call, and that run must succeed. A run that fails must
 * return what is accepted and leave a sentence, and none may leave a descriptor open. Returns how many calls failed. */
int faults_each(const faults_operation *operation, unsigned kinds, int error);

#endif
