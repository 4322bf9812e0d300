/* lock.c: one advisory lock a key, so that processes on a cold cache compile it once.
 *
 * Invariants: the lock that was taken is the one that stands in the directory under its name now (`collect` removes old
 * ones); it ends with its holder, so a killed process blocks nobody; not getting it is never a failure. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "runtime/store/internal.h"

static int64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void sleep_ms(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  (void)nanosleep(&t, NULL); /* woken early by a signal: the caller's loop looks at the clock */
}

static int still_named(int directory, const char *name, int fd) {
  struct stat held, named;
  return fstat(fd, &held) == 0 && fstatat(directory, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

/* One try. Returns 1 with the lock in *lock, 0 if another process holds it, -1 if locks do not work in this
 * directory. */
static int try_lock(int directory, const char *name, int *lock) {
  int fd = openat(directory, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0) return errno == EINTR ? 0 : -1;
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    int busy = errno == EWOULDBLOCK || errno == EINTR;
    close(fd);
    return busy ? 0 : -1;
  }
  if (!still_named(directory, name, fd)) {
    close(fd);
    return 0;
  }
  *lock = fd;
  return 1;
}

void store_lock_take(int directory, const char *hex, uint32_t timeout_ms, int *lock) {
  enum { SLEEP_MAX_MS = 16 }; /* a compile takes some 100 ms, so this adds little and costs nothing */
  *lock = -1;
  char name[STORE_HEX + 16];
  snprintf(name, sizeof name, "%s.lock", hex);
  int64_t end = now_ms() + timeout_ms;
  for (long pause = 1;; pause = pause < SLEEP_MAX_MS ? 2 * pause : SLEEP_MAX_MS) {
    if (try_lock(directory, name, lock) != 0) return;
    int64_t left = end - now_ms();
    if (left <= 0) return;
    sleep_ms(left < pause ? (long)left : pause);
  }
}

void store_lock_release(int lock) {
  if (lock < 0) return;
  (void)flock(lock, LOCK_UN); /* a child forked meanwhile shares the descriptor; closing alone would not unlock */
  close(lock);
}
