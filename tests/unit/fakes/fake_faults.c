/* fake_faults.c: preloaded into a command, it ends the process or fills the disk at the n-th call that changes files.
 *
 * FAKE_FAULTS is one of
 *   count=<file>  writes how many such calls there were, when the process ends
 *   kill=<n>      SIGKILL in place of call n
 *   tear=<n>      the same, but a write has put half of its bytes
 *   nospc=<n>     call n and all after it that would take room fail with ENOSPC, as on a full disk
 * Calls: open and openat that create, mkdir, write, fsync, close, rename, renameat, unlinkat. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int calls;

/* The number behind "name=" in FAKE_FAULTS, 0 if it is not that. */
static int asked(const char *name) {
  const char *text = getenv("FAKE_FAULTS");
  size_t length = strlen(name);
  return text && strncmp(text, name, length) == 0 && text[length] == '=' ? atoi(text + length + 1) : 0;
}

static void *next(const char *name) {
  void *found = dlsym(RTLD_NEXT, name);
  if (!found) abort();
  return found;
}

/* Counts a call. Returns 1 if it is to find the disk full. */
static int count(int takes_room) {
  int number = ++calls, full_from = asked("nospc");
  if (number == asked("kill")) raise(SIGKILL);
  if (!takes_room || !full_from || number < full_from) return 0;
  errno = ENOSPC;
  return 1;
}

__attribute__((destructor)) static void report(void) {
  const char *text = getenv("FAKE_FAULTS");
  if (!text || strncmp(text, "count=", 6) != 0) return;
  FILE *file = fopen(text + 6, "w");
  if (!file) return;
  fprintf(file, "%d\n", calls);
  fclose(file);
}

static mode_t mode_of(int flags, va_list arguments) {
  return flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
}

int open(const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  if ((flags & O_CREAT) && count(1)) return -1;
  return ((int (*)(const char *, int, ...))next("open"))(path, flags, mode);
}

int openat(int directory, const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  if ((flags & O_CREAT) && count(1)) return -1;
  return ((int (*)(int, const char *, int, ...))next("openat"))(directory, path, flags, mode);
}

int mkdir(const char *path, mode_t mode) {
  if (count(1)) return -1;
  return ((int (*)(const char *, mode_t))next("mkdir"))(path, mode);
}

ssize_t write(int fd, const void *bytes, size_t length) {
  ssize_t (*real)(int, const void *, size_t) = (ssize_t(*)(int, const void *, size_t))next("write");
  if (count(1)) return -1;
  if (calls == asked("tear")) {
    (void)!real(fd, bytes, length / 2);
    raise(SIGKILL);
  }
  return real(fd, bytes, length);
}

int fsync(int fd) {
  if (count(1)) return -1;
  return ((int (*)(int))next("fsync"))(fd);
}

int close(int fd) {
  count(0);
  return ((int (*)(int))next("close"))(fd);
}

int rename(const char *from, const char *to) {
  count(0);
  return ((int (*)(const char *, const char *))next("rename"))(from, to);
}

int renameat(int from_directory, const char *from, int to_directory, const char *to) {
  count(0);
  return ((int (*)(int, const char *, int, const char *))next("renameat"))(from_directory, from, to_directory, to);
}

int unlinkat(int directory, const char *path, int flags) {
  count(0);
  return ((int (*)(int, const char *, int))next("unlinkat"))(directory, path, flags);
}
